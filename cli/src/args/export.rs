//! `vprof export`.

use std::path::PathBuf;

use ::export::{Count, Format, Root};
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser, ValueParser};

use super::{DEFAULT_PROFILE, FilterArgs, TEMPLATE};

const EXAMPLES: &str = "\
Examples:
  vprof export vprof.vprof -o vprof.folded
  vprof export vprof.vprof -o page.html          a page for the browser
  vprof export after.vprof --base before.vprof -o change.html
  vprof export vprof.vprof --format folded --root none -o - | head
  vprof export vprof.vprof --host -o vcpus.svg   the guest and its host
  vprof export vprof.vprof --trip vfs_read -o calls.folded
";

const NOTES: &str = "\
Without --format vprof infers the format from the end of the output's name. docs/export.md shows where each format \
has which part of a profile, and which programs open it. Without --host, only samples that fell into the guest are written; numbers \
are estimates of this run's time as in `vprof report`.";

/// `vprof export`.
#[derive(Debug, Args)]
#[command(before_help = EXAMPLES, after_help = NOTES, help_template = TEMPLATE)]
pub struct ExportArgs {
    /// The profile
    #[arg(default_value = DEFAULT_PROFILE)]
    pub profile: PathBuf,

    /// The format [default: by the end of the output's name]
    #[arg(long, short = 'f', value_name = "FORMAT", value_parser = format_parser())]
    pub format: Option<Format>,

    /// The file to write; `-` for standard output
    #[arg(long, short = 'o', default_value = "-", value_name = "FILE")]
    pub output: PathBuf,

    /// Replace the file if it exists
    #[arg(long)]
    pub force: bool,

    /// Root of stacks (folded, flamegraph): the program, the instance of a process and its thread, the vCPU
    /// and the program, or nothing [default: process; vcpu with --host]
    #[arg(long, value_name = "WHAT", value_parser = named(Root::ALL))]
    pub root: Option<Root>,

    /// Also the functions of the host: of the VMM, KVM and the host's kernel, on one axis with the guest's
    /// (profiles of `attach --host-stacks`; not html and bootchart)
    #[arg(long)]
    pub host: bool,

    /// The calls of this watched function instead of samples, with their stacks (folded; profiles of `run
    /// --trip`)
    #[arg(long, value_name = "FUNCTION", conflicts_with_all = ["host", "count"])]
    pub trip: Option<String>,

    /// Number of a stack (folded): estimated time in us, or samples
    #[arg(long, default_value = "time", value_name = "WHAT", value_parser = named(Count::ALL))]
    pub count: Count,

    /// Keep text that a spreadsheet takes for a formula (csv); otherwise vprof puts a `'` before it
    #[arg(long)]
    pub raw: bool,

    /// Also show the difference from another profile (html)
    #[arg(long, value_name = "PROFILE")]
    pub base: Option<PathBuf>,

    /// Print no progress, only errors
    #[arg(long, short = 'q')]
    pub quiet: bool,

    /// Part of the profile to export.
    #[command(flatten)]
    pub filter: FilterArgs,
}

fn format_parser() -> ValueParser {
    // A flame graph is what most mean by the format of its file.
    let value = |format: Format| match format {
        Format::Flamegraph => PossibleValue::new(format.name()).alias("svg"),
        // A format that this build lacks is understood, so that the answer can say how to get it.
        _ => PossibleValue::new(format.name()).hide(!format.is_built()),
    };
    let parse = |name: String| match name.as_str() {
        "svg" => Ok(Format::Flamegraph),
        name => name.parse::<Format>(),
    };
    PossibleValuesParser::new(Format::all().map(value)).try_map(parse).into()
}

/// Returns a parser of one of several names.
fn named<T>(all: &'static [(&'static str, T)]) -> ValueParser
where
    T: std::str::FromStr<Err = display::message::UnknownName> + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(all.iter().map(|(name, _)| *name)).try_map(|name| name.parse::<T>()).into()
}
