//! The formats, and their options.

use std::fmt;
use std::str::FromStr;

use display::message::UnknownName;

/// A format that other programs read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// One line per stack, its frames separated by semicolons, and a number.
    Folded,
    /// A flame graph as SVG.
    Flamegraph,
    /// JSON of the Firefox Profiler.
    Firefox,
    /// The same, compressed by gzip.
    FirefoxGz,
    /// JSON of speedscope.
    Speedscope,
    /// The protocol buffer of pprof, compressed.
    Pprof,
    /// Protocol buffer of OpenTelemetry profiles.
    Otlp,
    /// Trace of Perfetto, a protocol buffer.
    Perfetto,
    /// Text as `perf script` writes it.
    PerfScript,
    /// A line per sample.
    Csv,
    /// Apache Parquet, a row per sample.
    Parquet,
    /// A flame chart of the guest's boot as SVG.
    Bootchart,
    /// One page of HTML with the whole profile and no other files.
    Html,
}

/// Properties of a format.
struct FormatInfo {
    format: Format,
    name: &'static str,
    /// Endings of names of its files; the first that fits a name counts.
    endings: &'static [&'static str],
    binary: bool,
}

const fn known(
    format: Format,
    name: &'static str,
    endings: &'static [&'static str],
    binary: bool,
) -> FormatInfo {
    FormatInfo { format, name, endings, binary }
}

const KNOWN: [FormatInfo; 13] = [
    known(Format::Folded, "folded", &[".folded", ".collapsed"], false),
    known(Format::Bootchart, "bootchart", &[".boot.svg"], false),
    known(Format::Flamegraph, "flamegraph", &[".svg"], false),
    known(Format::FirefoxGz, "firefox-gz", &[".json.gz"], true),
    known(Format::Speedscope, "speedscope", &[".speedscope.json"], false),
    known(Format::Firefox, "firefox", &[".json"], false),
    known(Format::Pprof, "pprof", &[".pb.gz", ".pprof"], true),
    known(Format::Otlp, "otlp", &[".otlp"], true),
    known(Format::Perfetto, "perfetto", &[".pftrace", ".perfetto-trace"], true),
    known(Format::PerfScript, "perf-script", &[".perf", ".txt"], false),
    known(Format::Csv, "csv", &[".csv"], false),
    known(Format::Parquet, "parquet", &[".parquet"], true),
    known(Format::Html, "html", &[".html", ".htm"], false),
];

impl Format {
    /// Returns all formats.
    pub fn all() -> impl Iterator<Item = Self> {
        KNOWN.iter().map(|known| known.format)
    }

    fn known(self) -> Option<&'static FormatInfo> {
        KNOWN.iter().find(|known| known.format == self)
    }

    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        self.known().map_or("", |known| known.name)
    }

    /// True for a format that is not text.
    pub fn is_binary(self) -> bool {
        self.known().is_some_and(|known| known.binary)
    }

    /// Returns false for a format that needs the feature `fleet` in a build without it.
    pub fn is_built(self) -> bool {
        cfg!(feature = "fleet") || !matches!(self, Self::Otlp | Self::Parquet)
    }

    /// Returns the format for the ending of a file name.
    pub fn of_file(name: &str) -> Option<Self> {
        let ends = |known: &&FormatInfo| known.endings.iter().any(|ending| name.ends_with(ending));
        KNOWN.iter().find(ends).map(|known| known.format)
    }

    /// True if the format can show stacks of the host.
    pub fn shows_host(self) -> bool {
        !matches!(self, Self::Html | Self::Bootchart)
    }

    /// True if the format can show the calls of one watched function instead of samples.
    pub fn shows_calls(self) -> bool {
        self == Self::Folded
    }

    /// True if the format can show samples of an idle vCPU.
    pub(crate) fn shows_idle(self) -> bool {
        matches!(self, Self::Firefox | Self::FirefoxGz)
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Root of a stack.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Root {
    /// The program: all instances of a name together.
    #[default]
    Process,
    /// The instance as `name#number`, and its thread as `name/tid`.
    Thread,
    /// The vCPU, and the program.
    Vcpu,
    /// The outermost frame.
    None,
}

/// Unit of a stack's number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Count {
    /// Estimated time in the guest, us.
    #[default]
    Time,
    /// Samples.
    Samples,
}

/// Declares the names of values on the command line.
macro_rules! named {
    ($type:ident, $($name:literal => $value:ident),+) => {
        impl $type {
            /// All values with their names on the command line.
            pub const ALL: &'static [(&'static str, $type)] = &[$(($name, $type::$value)),+];
        }

        impl FromStr for $type {
            type Err = UnknownName;

            fn from_str(name: &str) -> Result<Self, Self::Err> {
                UnknownName::find(name, Self::ALL.iter().copied())
            }
        }
    };
}

named!(Root, "process" => Process, "thread" => Thread, "vcpu" => Vcpu, "none" => None);
named!(Count, "time" => Time, "samples" => Samples);

impl FromStr for Format {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        UnknownName::find(name, Self::all().map(|format| (format.name(), format)))
    }
}
