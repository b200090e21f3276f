//! `extlinux.conf` of syslinux, U-Boot and Debian's u-boot-menu.

use super::{BootEntry, MAX_ENTRIES, MAX_INITRDS, bounded, config, find_file, readable, rooted};
use crate::volume::DiskVolume;

/// Directories of the file on a volume.
const PLACES: &[&str] = &["/boot/extlinux", "/extlinux", "/boot/syslinux", "/syslinux"];

/// Entry of the file.
#[derive(Debug, Default, PartialEq, Eq)]
struct MenuLabel {
    name: String,
    title: Option<String>,
    linux: Option<String>,
    initrds: Vec<String>,
    append: String,
}

/// Returns the entries in the order of the file, the default first.
pub fn entries(volumes: &[DiskVolume]) -> Vec<BootEntry> {
    let mut found = Vec::new();
    for (index, files) in readable(volumes) {
        for place in PLACES {
            let path = format!("{place}/extlinux.conf");
            let Some(text) = config(files, &path) else { continue };
            let (mut labels, default) = parse(&text);
            labels.sort_by_key(|label| Some(&label.name) != default.as_ref());
            // Paths without a leading slash are relative to the directory of the file.
            let absolute = |file: &str| match file.strip_prefix('/') {
                Some(_) => rooted(file),
                None => format!("{place}/{}", file.trim_start_matches("./")),
            };
            found.extend(labels.into_iter().filter_map(|label| {
                let kernel = absolute(&label.linux?);
                Some(BootEntry {
                    volume: find_file(volumes, index, &kernel)?,
                    kernel,
                    initrds: label.initrds.iter().take(MAX_INITRDS).map(|file| absolute(file)).collect(),
                    options: Some(bounded(label.append)),
                    unified: false,
                    title: label.title.or(Some(label.name)),
                    source: path.clone(),
                })
            }));
        }
    }
    found
}

/// Returns the labels, and the name of the one that is the default.
fn parse(text: &str) -> (Vec<MenuLabel>, Option<String>) {
    let mut labels: Vec<MenuLabel> = Vec::new();
    let mut default = None;
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
        let (key, value) = line.split_once([' ', '\t']).unwrap_or((line, ""));
        let value = value.trim();
        let room = labels.len() < MAX_ENTRIES;
        match (key.to_ascii_lowercase().as_str(), labels.last_mut()) {
            ("label", _) if room => {
                labels.push(MenuLabel { name: value.to_owned(), ..MenuLabel::default() });
            }
            ("default", _) => default = Some(value.to_owned()),
            ("linux" | "kernel", Some(label)) => label.linux = Some(value.to_owned()),
            ("initrd", Some(label)) => label.initrds = value.split(',').map(str::to_owned).collect(),
            ("append", Some(label)) => {
                // syslinux allows an initrd among the words of the command line.
                let (initrds, words): (Vec<&str>, Vec<&str>) =
                    value.split_whitespace().partition(|word| word.starts_with("initrd="));
                let named = initrds.iter().filter_map(|word| word.strip_prefix("initrd="));
                label.initrds.extend(named.flat_map(|names| names.split(',')).map(str::to_owned));
                label.append = words.join(" ");
            }
            ("menu", Some(label)) => {
                let title =
                    value.split_once([' ', '\t']).filter(|(key, _)| key.eq_ignore_ascii_case("label"));
                label.title = title.map(|(_, title)| title.trim().replace('^', "")).or(label.title.take());
            }
            _ => {}
        }
    }
    (labels, default)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_read() {
        let (labels, default) = parse(
            "default l0\nprompt 0\nLABEL l0\n\tmenu label ^Debian GNU/Linux\n\tlinux /boot/vmlinuz-6.1\n\
             \tinitrd /boot/initrd.img-6.1\n\tappend root=/dev/vda1 ro quiet\n\nlabel old\n\tkernel vmlinuz\n\
             \tappend initrd=a.img,b.img root=LABEL=x\n",
        );
        assert_eq!(default.as_deref(), Some("l0"));
        assert_eq!(labels[0].title.as_deref(), Some("Debian GNU/Linux"));
        assert_eq!(labels[0].linux.as_deref(), Some("/boot/vmlinuz-6.1"));
        assert_eq!(
            (labels[0].append.as_str(), labels[0].initrds[0].as_str()),
            ("root=/dev/vda1 ro quiet", "/boot/initrd.img-6.1")
        );
        assert_eq!(
            (labels[1].append.as_str(), labels[1].initrds.as_slice()),
            ("root=LABEL=x", &["a.img".to_owned(), "b.img".to_owned()][..])
        );
    }
}
