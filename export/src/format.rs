//! The formats, and what can be chosen about them.

use std::fmt;
use std::str::FromStr;

/// A format that other programs read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// One line per stack, its frames separated by semicolons, and a number.
    Folded,
    /// A flame graph as SVG.
    Flamegraph,
    /// JSON of the Firefox Profiler.
    Firefox,
    /// The protocol buffer of pprof, compressed.
    Pprof,
    /// What `perf script` writes.
    PerfScript,
    /// A line per sample.
    Csv,
    /// Apache Parquet, a row per sample.
    Parquet,
    /// A flame chart of the guest's boot as SVG.
    Bootchart,
    /// One page that shows all of a profile and needs nothing else.
    Html,
}

/// What is known of a format.
struct Known {
    format: Format,
    name: &'static str,
    /// How names of its files end; the first that fits a name counts.
    endings: &'static [&'static str],
    binary: bool,
}

const fn known(format: Format, name: &'static str, endings: &'static [&'static str], binary: bool) -> Known {
    Known { format, name, endings, binary }
}

const KNOWN: [Known; 9] = [
    known(Format::Folded, "folded", &[".folded", ".collapsed"], false),
    known(Format::Bootchart, "bootchart", &[".boot.svg"], false),
    known(Format::Flamegraph, "flamegraph", &[".svg"], false),
    known(Format::Firefox, "firefox", &[".json"], false),
    known(Format::Pprof, "pprof", &[".pb.gz", ".pprof"], true),
    known(Format::PerfScript, "perf-script", &[".perf", ".txt"], false),
    known(Format::Csv, "csv", &[".csv"], false),
    known(Format::Parquet, "parquet", &[".parquet"], true),
    known(Format::Html, "html", &[".html", ".htm"], false),
];

impl Format {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        KNOWN.iter().map(|known| known.format)
    }

    fn known(self) -> Option<&'static Known> {
        KNOWN.iter().find(|known| known.format == self)
    }

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        self.known().map_or("", |known| known.name)
    }

    /// Whether it is no text.
    pub fn is_binary(self) -> bool {
        self.known().is_some_and(|known| known.binary)
    }

    /// The format that the name of a file asks for.
    pub fn of_file(name: &str) -> Option<Self> {
        let ends = |known: &&Known| known.endings.iter().any(|ending| name.ends_with(ending));
        KNOWN.iter().find(ends).map(|known| known.format)
    }

    /// Whether it has a place for samples that found a vCPU idle.
    pub(crate) fn shows_idle(self) -> bool {
        self == Self::Firefox
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What stands at the root of a stack.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Root {
    /// The program: all lives of a name together.
    #[default]
    Process,
    /// The life of a process as `name#number`, and its thread as `name/tid`.
    Thread,
    /// The outermost frame.
    None,
}

/// What the number of a stack counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Count {
    /// Estimated time in the guest, us.
    #[default]
    Time,
    /// Samples.
    Samples,
}

/// Names on the command line.
macro_rules! named {
    ($type:ident, $($name:literal => $value:ident),+) => {
        impl $type {
            /// All with their names on the command line.
            pub const ALL: &'static [(&'static str, $type)] = &[$(($name, $type::$value)),+];
        }

        impl FromStr for $type {
            type Err = String;

            fn from_str(name: &str) -> Result<Self, Self::Err> {
                find(Self::ALL, name)
            }
        }
    };
}

named!(Root, "process" => Process, "thread" => Thread, "none" => None);
named!(Count, "time" => Time, "samples" => Samples);

impl FromStr for Format {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let found = Self::all().find(|format| format.name() == name);
        let names = || Self::all().map(Self::name).collect::<Vec<_>>().join(", ");
        found.ok_or_else(|| format!("{name} is none of {}", names()))
    }
}

fn find<T: Copy>(all: &[(&str, T)], name: &str) -> Result<T, String> {
    let found = all.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
    let names = || all.iter().map(|(known, _)| *known).collect::<Vec<_>>().join(", ");
    found.ok_or_else(|| format!("{name} is none of {}", names()))
}
