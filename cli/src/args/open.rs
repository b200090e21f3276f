//! `vprof open`.

use std::path::PathBuf;

use clap::Args;

use super::{DEFAULT_PROFILE, TEMPLATE};

const EXAMPLES: &str = "\
Examples:
  vprof open                                     this directory's profile
  vprof open after.vprof --base before.vprof     with the difference
  vprof open -o page.html                        keep the page
";

const NOTES: &str = "\
The page is one file without references to others, as `vprof export -o page.html` writes it; docs/page.md \
describes it. `xdg-open` chooses the browser. Without a display vprof prints the path of the page. A browser that snap \
installed sees no files in /tmp: keep the page in the home directory with -o.";

/// `vprof open`.
#[derive(Debug, Args)]
#[command(before_help = EXAMPLES, after_help = NOTES, help_template = TEMPLATE)]
pub struct OpenArgs {
    /// The profile
    #[arg(default_value = DEFAULT_PROFILE)]
    pub profile: PathBuf,

    /// The page to write [default: a new file in $TMPDIR, else /tmp]
    #[arg(long, short = 'o', value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Replace FILE if it exists
    #[arg(long, requires = "output")]
    pub force: bool,

    /// Also show the difference from another profile
    #[arg(long, value_name = "PROFILE")]
    pub base: Option<PathBuf>,

    /// Print no progress, only errors and the path of the page
    #[arg(long, short = 'q')]
    pub quiet: bool,
}
