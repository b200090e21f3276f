//! Arguments of `vprof docs`.

use clap::Args;
use clap::builder::PossibleValuesParser;

/// `vprof docs`.
#[derive(Debug, Args)]
pub struct DocsArgs {
    /// The document: `images` for docs/images.md [default: a list of all]
    #[arg(value_parser = PossibleValuesParser::new(crate::docs::names()), hide_possible_values = true)]
    pub name: Option<String>,
}
