//! Sources of Debian packages: suites and mirrors.
//!
//! The suites are those of a [`DebianSuites`], so that every machine gets the same packages, Ubuntu included.
//! Only the mirror and its key come from the machine's apt sources, because a company's mirror is often the
//! only reachable one.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// Set of suites that packages are taken from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DebianSuites {
    /// Debian 12, from which guests are made.
    Bookworm,
    /// Debian 13.
    Trixie,
    /// Debian 11, for its kernel. Mirrors will drop Debian 11 one day; archive.debian.org keeps it.
    Bullseye,
    /// Suites with Debian's newest kernel of any version: unstable, and the backports to the stable release.
    Newest,
}

impl DebianSuites {
    /// Returns the release's name in the names of files.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Bookworm => "bookworm",
            Self::Trixie => "trixie",
            Self::Bullseye => "bullseye",
            Self::Newest => "newest",
        }
    }

    /// Returns the suites of the main archive.
    pub(crate) fn suites(self) -> &'static str {
        match self {
            Self::Bookworm => "bookworm bookworm-updates",
            Self::Trixie => "trixie trixie-updates",
            Self::Bullseye => "bullseye",
            // Backports may be ahead of a mirror's copy of unstable.
            Self::Newest => "trixie-backports unstable",
        }
    }

    /// Returns the suite of security updates if there is one.
    fn security_suite(self) -> Option<&'static str> {
        match self {
            Self::Bookworm => Some("bookworm-security"),
            Self::Trixie => Some("trixie-security"),
            Self::Bullseye => Some("bullseye-security"),
            Self::Newest => None,
        }
    }
}

/// Suites that mark an entry as one of Debian's own archive.
const DEBIAN_SUITES: &[&str] = &[
    "bullseye",
    "bookworm",
    "trixie",
    "forky",
    "sid",
    "oldoldstable",
    "oldstable",
    "stable",
    "testing",
    "unstable",
];

/// Path of Debian's key ring, from the package debian-archive-keyring.
pub(crate) const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Mirror of an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ArchiveMirror {
    /// Address of the mirror.
    pub(crate) uri: String,
    /// Path of the key ring, or the key itself.
    pub(crate) signed_by: String,
}

/// Mirrors of the two archives that guests are made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ArchiveMirrors {
    /// Mirror of Debian.
    pub(crate) main: ArchiveMirror,
    /// Mirror of the security updates, if the machine has one.
    pub(crate) security: Option<ArchiveMirror>,
}

/// Environment variable with a mirror, like `http://HOST/debian`, for machines whose apt sources have none of
/// Debian.
pub(crate) const MIRROR_VARIABLE: &str = "VPROF_DEBIAN_MIRROR";

impl ArchiveMirrors {
    /// Returns the mirror `named` ([`MIRROR_VARIABLE`]), or else those in the sources below `directory`
    /// (`/etc/apt`).
    ///
    /// # Errors
    /// There is neither, as on Ubuntu.
    pub(crate) fn from_machine(directory: &Path, named: Option<String>) -> Result<Self> {
        let with_key = |uri: String| ArchiveMirror { uri, signed_by: KEYRING.into() };
        if let Some(named) = named.filter(|named| !named.is_empty()) {
            let base = named.trim_end_matches('/');
            let security = Some(with_key(format!("{base}-security")));
            return Ok(Self { main: with_key(base.to_owned()), security });
        }
        let mut files = vec![directory.join("sources.list")];
        if let Ok(entries) = fs::read_dir(directory.join("sources.list.d")) {
            files.extend(entries.flatten().map(|entry| entry.path()));
        }
        files.sort();
        let mut entries = Vec::new();
        for file in files {
            let Ok(text) = fs::read_to_string(&file) else {
                continue;
            };
            match file.extension().and_then(|extension| extension.to_str()) {
                Some("list") => entries.extend(text.lines().filter_map(one_line_entry)),
                Some("sources") => entries.extend(deb822_entries(&text)),
                _ => {}
            }
        }
        Self::choose(&entries).with_context(|| {
            format!(
                "no Debian mirror among the apt sources in {}: set {MIRROR_VARIABLE} to one, like http://HOST/debian",
                directory.display()
            )
        })
    }

    fn choose(entries: &[SourceEntry]) -> Option<Self> {
        let find = |is: fn(&str) -> bool| {
            entries.iter().find(|entry| entry.is_debian() && entry.suites.iter().any(|suite| is(suite)))
        };
        let main = find(|suite| DEBIAN_SUITES.contains(&suite));
        let security = find(|suite| {
            suite
                .strip_suffix("-security")
                .or_else(|| suite.strip_suffix("/updates"))
                .is_some_and(|base| DEBIAN_SUITES.contains(&base))
        });
        let mirror = |entry: &SourceEntry| ArchiveMirror {
            uri: entry.uri.clone(),
            signed_by: entry.signed_by.clone().unwrap_or_else(|| KEYRING.into()),
        };
        Some(Self { main: mirror(main?), security: security.map(mirror) })
    }

    /// Returns the sources of a release in apt's deb822 format.
    pub(crate) fn to_deb822(&self, release: DebianSuites) -> String {
        let stanza = |mirror: &ArchiveMirror, suites: &str| {
            let ArchiveMirror { uri, signed_by } = mirror;
            format!("Types: deb\nURIs: {uri}\nSuites: {suites}\nComponents: main\nSigned-By: {signed_by}\n")
        };
        let mut text = stanza(&self.main, release.suites());
        if let Some((security, suite)) = self.security.as_ref().zip(release.security_suite()) {
            text.push('\n');
            text.push_str(&stanza(security, suite));
        }
        text
    }
}

/// Enabled source of binary packages.
#[derive(Debug, Default, PartialEq, Eq)]
struct SourceEntry {
    uri: String,
    suites: Vec<String>,
    components: Vec<String>,
    signed_by: Option<String>,
}

impl SourceEntry {
    /// Returns true for a source of Debian. Third parties use Debian's suite names too, so the path or the
    /// key must be Debian's as well.
    fn is_debian(&self) -> bool {
        let path = self.uri.split('/').skip(3).any(|part| part == "debian" || part == "debian-security");
        let key = self.signed_by.as_ref().is_some_and(|key| key.contains("debian-archive"));
        (path || key) && self.components.iter().any(|component| component == "main")
    }
}

/// Reads `deb [option=value ...] URI SUITE COMPONENT...`.
fn one_line_entry(line: &str) -> Option<SourceEntry> {
    let line = line.split('#').next()?.trim();
    let mut rest = line.strip_prefix("deb")?.strip_prefix([' ', '\t'])?.trim_start();
    let mut entry = SourceEntry::default();
    if let Some(options) = rest.strip_prefix('[') {
        let (options, after) = options.split_once(']')?;
        entry.signed_by = options
            .split_whitespace()
            .find_map(|option| option.strip_prefix("signed-by="))
            .map(str::to_owned);
        rest = after;
    }
    let mut words = rest.split_whitespace().map(str::to_owned);
    entry.uri = words.next()?;
    entry.suites = vec![words.next()?];
    entry.components = words.collect();
    Some(entry)
}

/// Reads stanzas of `Field: value`, with continuation lines.
fn deb822_entries(text: &str) -> Vec<SourceEntry> {
    let mut entries = Vec::new();
    let mut fields: Vec<(String, String)> = Vec::new();
    for line in text.lines().chain([""]) {
        if line.starts_with('#') {
            continue;
        }
        if line.trim().is_empty() {
            entries.extend(deb822_entry(&fields));
            fields.clear();
        } else if line.starts_with([' ', '\t']) {
            if let Some((_, value)) = fields.last_mut() {
                value.push('\n');
                value.push_str(line);
            }
        } else if let Some((name, value)) = line.split_once(':') {
            fields.push((name.trim().to_ascii_lowercase(), value.trim().to_owned()));
        }
    }
    entries
}

fn deb822_entry(fields: &[(String, String)]) -> Option<SourceEntry> {
    let field = |name| fields.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str());
    let words = |name| field(name).map(|v| v.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
    if field("enabled").is_some_and(|value| matches!(value, "no" | "false" | "0"))
        || !words("types")?.iter().any(|kind| kind == "deb")
    {
        return None;
    }
    Some(SourceEntry {
        uri: words("uris")?.into_iter().next()?,
        suites: words("suites")?,
        components: words("components").unwrap_or_default(),
        signed_by: field("signed-by").map(str::to_owned),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(files: &[(&str, &str)]) -> Result<ArchiveMirrors> {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("sources.list.d")).unwrap();
        for (name, text) in files {
            fs::write(directory.path().join(name), text).unwrap();
        }
        ArchiveMirrors::from_machine(directory.path(), None)
    }

    #[test]
    fn a_mirror_in_the_new_format_is_taken_over() {
        let mirrors = machine(&[(
            "sources.list.d/debian.sources",
            "Types: deb deb-src\n# a comment\nURIs: http://mirror.example/debian\nSuites: trixie trixie-updates\n\
             Components: main\nSigned-By: /keys/a.gpg\n\n\
             Types: deb\nURIs: http://mirror.example/debian-security/\nSuites: trixie-security\nComponents: main\n",
        )])
        .unwrap();
        let security = mirrors.security.unwrap();
        assert_eq!(mirrors.main.uri, "http://mirror.example/debian");
        assert_eq!(mirrors.main.signed_by, "/keys/a.gpg");
        assert_eq!(security.uri, "http://mirror.example/debian-security/");
        assert_eq!(security.signed_by, KEYRING);
    }

    #[test]
    fn a_mirror_in_the_old_format_is_taken_over() {
        let mirrors = machine(&[(
            "sources.list",
            "# deb http://off.example/debian bookworm main\n\
             deb-src http://src.example/debian bookworm main\n\
             deb [arch=amd64 signed-by=/keys/b.gpg] http://snap.example/archive/debian/20250101T000000Z stable main\n\
             deb http://snap.example/debian-security stable/updates main # security\n",
        )])
        .unwrap();
        let security = mirrors.security.unwrap();
        assert_eq!(mirrors.main.uri, "http://snap.example/archive/debian/20250101T000000Z");
        assert_eq!(mirrors.main.signed_by, "/keys/b.gpg");
        assert_eq!(security.uri, "http://snap.example/debian-security");
    }

    #[test]
    fn other_archives_are_left_alone() {
        let mirrors = machine(&[
            (
                "sources.list.d/ubuntu.sources",
                "Types: deb\nURIs: http://archive.example/ubuntu\nSuites: noble\nComponents: main\n",
            ),
            ("sources.list.d/third.list", "deb http://apt.example/releases bookworm main\n"),
            (
                "sources.list.d/off.sources",
                "Enabled: no\nTypes: deb\nURIs: http://off.example/debian\nSuites: bookworm\nComponents: main\n",
            ),
            (
                "sources.list.d/debian.sources.disabled",
                "Types: deb\nURIs: http://bak.example/debian\nSuites: sid\nComponents: main\n",
            ),
        ]);
        let error = mirrors.unwrap_err().to_string();
        assert!(error.contains(MIRROR_VARIABLE), "{error}");
    }

    #[test]
    fn a_named_mirror_comes_first() {
        let directory = tempfile::tempdir().unwrap();
        let named = Some("http://named.example/debian/".to_owned());
        let mirrors = ArchiveMirrors::from_machine(directory.path(), named).unwrap();
        assert_eq!(mirrors.main.uri, "http://named.example/debian");
        assert_eq!(mirrors.security.unwrap().uri, "http://named.example/debian-security");
    }

    #[test]
    fn the_suites_are_those_of_the_release() {
        let named = Some("http://named.example/debian".to_owned());
        let mirrors = ArchiveMirrors::from_machine(Path::new("/nowhere"), named).unwrap();
        for (release, suites) in [
            (DebianSuites::Bookworm, &["bookworm bookworm-updates", "bookworm-security"][..]),
            (DebianSuites::Trixie, &["trixie trixie-updates", "trixie-security"]),
            (DebianSuites::Bullseye, &["bullseye", "bullseye-security"]),
            (DebianSuites::Newest, &["trixie-backports unstable"]),
        ] {
            let entries = deb822_entries(&mirrors.to_deb822(release));
            assert_eq!(entries.iter().map(|entry| entry.suites.join(" ")).collect::<Vec<_>>(), suites);
            assert!(entries.iter().all(|entry| entry.signed_by.as_deref() == Some(KEYRING)));
        }
    }
}
