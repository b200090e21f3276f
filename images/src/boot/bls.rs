//! Entries of the boot loader specification (uapi-group.org), type 1: systemd-boot's, and those of Fedora's GRUB; and type 2:
//! unified kernel images.

use std::cmp::Reverse;

use super::grub::Environment;
use super::{
    Entry, MAX_CONFIG, MAX_ENTRIES, MAX_INITRDS, Unified, bounded, config, find_file, readable, rooted,
    version,
};
use crate::MAX_FILE;
use crate::volume::{Files, Volume};

/// Where a volume has the loader's directory.
const PLACES: &[&str] = &["/loader", "/boot/loader"];
/// Where a volume has unified kernel images.
const UNIFIED: &str = "/EFI/Linux";
/// Unified kernel images of a volume that are looked at, at most, the newest by their names: each is read.
const MAX_UNIFIED: usize = 16;

/// An entry file's fields.
#[derive(Debug, Default, PartialEq, Eq)]
struct Fields {
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

/// The entries in the order of the loader's menu, its default first.
pub fn entries(volumes: &[Volume]) -> Vec<Entry> {
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
                // Stable: the order of the others stays.
                entries.sort_by_key(|entry| !matches(&wanted, id(&entry.file)));
            }
            let environment = Environment::of(files);
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

fn read_all(files: &dyn Files, directory: &str) -> Vec<Fields> {
    let names = files.names(directory).into_iter().filter(|name| name.ends_with(".conf")).take(MAX_ENTRIES);
    let read = |name: String| {
        let bytes = files.read(&format!("{directory}/{name}"), MAX_CONFIG).ok()?;
        Some(Fields { file: name, ..parse(&String::from_utf8_lossy(&bytes)) })
    };
    names.filter_map(read).filter(|entry| !entry.foreign && entry.linux.is_some()).collect()
}

fn read_unified(files: &dyn Files) -> Vec<Fields> {
    let mut names = files.names(UNIFIED);
    names.retain(|name| name.to_ascii_lowercase().ends_with(".efi"));
    names.sort_by(|a, b| version(b).cmp(&version(a)));
    let read = |name: String| {
        let path = format!("{UNIFIED}/{name}");
        let file = files.read(&path, MAX_FILE).ok()?;
        let image = Unified::of(&file).ok()?;
        Some(Fields {
            file: name,
            title: image.title,
            version: image.version,
            sort_key: image.sort_key,
            linux: Some(path),
            options: image.options.into_iter().collect(),
            unified: true,
            ..Fields::default()
        })
    };
    names.into_iter().take(MAX_UNIFIED).filter_map(read).collect()
}

/// What loader.conf calls an entry by.
fn id(file: &str) -> &str {
    file.trim_end_matches(".conf").trim_end_matches(".efi")
}

fn make(
    volumes: &[Volume],
    index: usize,
    entry: Fields,
    source: String,
    environment: &Environment,
) -> Option<Entry> {
    // Paths count from the root of the volume that has the entry; on a /boot inside of the root from there.
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
    Some(Entry {
        volume,
        kernel,
        initrds: initrds.take(MAX_INITRDS).map(|path| place(&path).map_or(path, |(_, path)| path)).collect(),
        // GRUB expands what stands in its files; what stands in an image's own section nobody does.
        options: Some(if entry.unified { bounded(options) } else { environment.expand(&options) }),
        unified: entry.unified,
        title: entry.title,
        source,
    })
}

/// Lines of `KEY VALUE`; keys that are not known are passed over.
fn parse(text: &str) -> Fields {
    let mut fields = Fields::default();
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

/// The specification's order: entries with a sort key first, by it; then the newest version. One for rescue comes last.
fn sort(entries: &mut [Fields]) {
    entries.sort_by(|a, b| {
        let key = |entry: &Fields| {
            let rescue = entry.file.contains("rescue");
            (rescue, entry.sort_key.is_none(), entry.sort_key.clone())
        };
        key(a).cmp(&key(b)).then_with(|| {
            let newest = |entry: &'_ Fields| -> String {
                if entry.version.is_empty() { entry.file.clone() } else { entry.version.clone() }
            };
            let (a, b) = (newest(a), newest(b));
            Reverse(version(&a)).cmp(&Reverse(version(&b)))
        })
    });
}

/// The pattern that `default` in loader.conf gives; a name beginning with `@` stands for something else.
fn default_pattern(text: &str) -> Option<String> {
    let line = text.lines().map(str::trim).rfind(|line| line.starts_with("default"))?;
    let pattern = id(line.strip_prefix("default")?.trim());
    (!pattern.is_empty() && !pattern.starts_with('@')).then(|| pattern.to_owned())
}

/// Compares a name with a pattern whose `*` stands for anything.
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
        // No star: the whole name.
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
        let entry = |file: &str, version: &str, key: Option<&str>| Fields {
            file: file.to_owned(),
            version: version.to_owned(),
            sort_key: key.map(str::to_owned),
            ..Fields::default()
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
