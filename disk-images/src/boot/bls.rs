//! Entries of the boot loader specification (uapi-group.org): type 1, of systemd-boot and of Fedora's GRUB,
//! and type 2, unified kernel images.

use std::cmp::Reverse;

use super::grub::GrubEnvironment;
use super::{
    BootEntry, MAX_CONFIG, MAX_ENTRIES, MAX_INITRDS, UnifiedImage, bounded, config, find_file, readable,
    rooted, version,
};
use crate::MAX_FILE;
use crate::volume::{DiskVolume, VolumeFiles};

/// Directories of the loader on a volume.
const PLACES: &[&str] = &["/loader", "/boot/loader"];
/// Directory of unified kernel images on a volume.
const UNIFIED: &str = "/EFI/Linux";
/// Most unified kernel images that are read of a volume: the newest by their names.
const MAX_UNIFIED: usize = 16;

/// Fields of an entry's file.
#[derive(Debug, Default, PartialEq, Eq)]
struct EntryFields {
    file: String,
    title: Option<String>,
    version: String,
    sort_key: Option<String>,
    linux: Option<String>,
    initrds: Vec<String>,
    options: Vec<String>,
    foreign: bool,
    unified: bool,
}

/// Returns the entries in the order of the loader's menu, its default first.
pub fn entries(volumes: &[DiskVolume]) -> Vec<BootEntry> {
    let mut found = Vec::new();
    for (index, files) in readable(volumes) {
        for place in PLACES {
            let mut entries = read_all(files, &format!("{place}/entries"));
            if *place == "/loader" {
                entries.extend(read_unified(files));
            }
            sort(&mut entries);
            if let Some(wanted) =
                config(files, &format!("{place}/loader.conf")).as_deref().and_then(default_pattern)
            {
                // The sort is stable: the others keep their order.
                entries.sort_by_key(|entry| !matches(&wanted, id(&entry.file)));
            }
            let environment = GrubEnvironment::from_volume(files);
            let made = entries.into_iter().filter_map(|entry| {
                let source = match entry.unified {
                    true => "its place (unified kernel image)".to_owned(),
                    false => format!("{place}/entries/{}", entry.file),
                };
                make(volumes, index, entry, source, &environment)
            });
            found.extend(made);
        }
    }
    found
}

fn read_all(files: &dyn VolumeFiles, directory: &str) -> Vec<EntryFields> {
    let names = files.names(directory).into_iter().filter(|name| name.ends_with(".conf")).take(MAX_ENTRIES);
    let read = |name: String| {
        let bytes = files.read(&format!("{directory}/{name}"), MAX_CONFIG).ok()?;
        Some(EntryFields { file: name, ..parse(&String::from_utf8_lossy(&bytes)) })
    };
    names.filter_map(read).filter(|entry| !entry.foreign && entry.linux.is_some()).collect()
}

fn read_unified(files: &dyn VolumeFiles) -> Vec<EntryFields> {
    let mut names = files.names(UNIFIED);
    names.retain(|name| name.to_ascii_lowercase().ends_with(".efi"));
    names.sort_by(|a, b| version(b).cmp(&version(a)));
    let read = |name: String| {
        let path = format!("{UNIFIED}/{name}");
        let file = files.read(&path, MAX_FILE).ok()?;
        let image = UnifiedImage::parse(&file).ok()?;
        Some(EntryFields {
            file: name,
            title: image.title,
            version: image.version,
            sort_key: image.sort_key,
            linux: Some(path),
            options: image.options.into_iter().collect(),
            unified: true,
            ..EntryFields::default()
        })
    };
    names.into_iter().take(MAX_UNIFIED).filter_map(read).collect()
}

/// Returns the id by which loader.conf names an entry.
fn id(file: &str) -> &str {
    file.trim_end_matches(".conf").trim_end_matches(".efi")
}

fn make(
    volumes: &[DiskVolume],
    index: usize,
    entry: EntryFields,
    source: String,
    environment: &GrubEnvironment,
) -> Option<BootEntry> {
    // Paths are relative to the root of the volume that has the entry, or to its /boot if that is not a
    // mount.
    let place = |path: &str| {
        let path = rooted(path);
        let volume = find_file(volumes, index, &path);
        volume.map(|volume| (volume, path.clone())).or_else(|| {
            let path = format!("/boot{path}");
            find_file(volumes, index, &path).map(|volume| (volume, path))
        })
    };
    let (volume, kernel) = place(&entry.linux?)?;
    let options = entry.options.join(" ");
    let initrds = entry.initrds.iter().take(MAX_INITRDS).map(|path| environment.expand(path));
    let initrds = initrds.flat_map(|paths| paths.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
    Some(BootEntry {
        volume,
        kernel,
        initrds: initrds.take(MAX_INITRDS).map(|path| place(&path).map_or(path, |(_, path)| path)).collect(),
        // GRUB expands variables in its files. No loader expands those in a section of an image.
        options: Some(if entry.unified { bounded(options) } else { environment.expand(&options) }),
        unified: entry.unified,
        title: entry.title,
        source,
    })
}

/// Parses lines of `KEY VALUE`. Unknown keys are skipped.
fn parse(text: &str) -> EntryFields {
    let mut fields = EntryFields::default();
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
        let Some((key, value)) = line.split_once([' ', '\t']) else { continue };
        let value = value.trim().to_owned();
        match key {
            "title" => fields.title = Some(value),
            "version" => fields.version = value,
            "sort-key" => fields.sort_key = Some(value),
            "linux" => fields.linux = Some(value),
            "initrd" => fields.initrds.push(value),
            "options" => fields.options.push(value),
            "architecture" => fields.foreign = !value.eq_ignore_ascii_case("x64"),
            _ => {}
        }
    }
    fields
}

/// Sorts entries as the specification says: those with a sort key first, by that key, then by version, the
/// newest first. An entry for rescue comes last.
fn sort(entries: &mut [EntryFields]) {
    entries.sort_by(|a, b| {
        let key = |entry: &EntryFields| {
            let rescue = entry.file.contains("rescue");
            (rescue, entry.sort_key.is_none(), entry.sort_key.clone())
        };
        key(a).cmp(&key(b)).then_with(|| {
            let newest = |entry: &'_ EntryFields| -> String {
                if entry.version.is_empty() { entry.file.clone() } else { entry.version.clone() }
            };
            let (a, b) = (newest(a), newest(b));
            Reverse(version(&a)).cmp(&Reverse(version(&b)))
        })
    });
}

/// Returns the pattern of `default` in loader.conf. A name that begins with `@` is not a pattern.
fn default_pattern(text: &str) -> Option<String> {
    let line = text.lines().map(str::trim).rfind(|line| line.starts_with("default"))?;
    let pattern = id(line.strip_prefix("default")?.trim());
    (!pattern.is_empty() && !pattern.starts_with('@')).then(|| pattern.to_owned())
}

/// Returns true if a name matches a pattern, in which `*` matches any text.
fn matches(pattern: &str, name: &str) -> bool {
    let mut pieces = pattern.split('*');
    let first = pieces.next().unwrap_or("");
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let mut last = None;
    for piece in pieces {
        match rest.find(piece) {
            Some(at) => rest = rest.get(at + piece.len()..).unwrap_or(""),
            None => return false,
        }
        last = Some(piece);
    }
    match last {
        // A pattern without a star has to match the whole name.
        None => rest.is_empty(),
        Some(piece) => piece.is_empty() || name.ends_with(piece),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read() {
        let fields = parse(
            "# a comment\ntitle  Debian GNU/Linux\nversion 6.1.0-9\nsort-key debian\noptions root=UUID=x ro\noptions quiet\n\
             linux /debian/linux\ninitrd /a\ninitrd /b\nunknown x\nbroken\n",
        );
        assert_eq!(fields.title.as_deref(), Some("Debian GNU/Linux"));
        assert_eq!(
            (fields.linux.as_deref(), fields.initrds.as_slice()),
            (Some("/debian/linux"), &["/a".to_owned(), "/b".to_owned()][..])
        );
        assert_eq!(fields.options, ["root=UUID=x ro", "quiet"]);
        assert!(!fields.foreign && parse("architecture aa64\n").foreign);
    }

    #[test]
    fn the_newest_comes_first_and_rescue_last() {
        let entry = |file: &str, version: &str, key: Option<&str>| EntryFields {
            file: file.to_owned(),
            version: version.to_owned(),
            sort_key: key.map(str::to_owned),
            ..EntryFields::default()
        };
        let mut entries = [
            entry("0-rescue-x.conf", "9.0", Some("a")),
            entry("other.conf", "7.0", None),
            entry("a.conf", "6.1.0-9", Some("debian")),
            entry("b.conf", "6.1.0-10", Some("debian")),
        ];
        sort(&mut entries);
        let order: Vec<_> = entries.iter().map(|entry| entry.file.as_str()).collect();
        assert_eq!(order, ["b.conf", "a.conf", "other.conf", "0-rescue-x.conf"]);
    }

    #[test]
    fn patterns_match_as_in_a_shell() {
        for (pattern, name, expected) in [
            ("debian-*", "debian-6.1", true),
            ("debian-*", "arch", false),
            ("*", "x", true),
            ("a*c", "abc", true),
            ("a*c", "abd", false),
            ("abc", "abc", true),
            ("abc", "abcd", false),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
        assert_eq!(default_pattern("timeout 3\ndefault debian-*.conf\n").as_deref(), Some("debian-*"));
        assert_eq!(default_pattern("default @saved\n"), None);
    }
}
