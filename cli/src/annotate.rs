//! `vprof annotate`: the instructions of a function with the samples that hit them.

use profile::Profile;
use profile::report::{Annotation, ShownLines, Target};
use render::{PageLayout, annotate};

use crate::args::AnnotateArgs;
use crate::errors::{Error, ExitCode};
use crate::output::write_json;
use crate::pager::page;

/// Runs the command.
pub fn command(args: &AnnotateArgs) -> Result<ExitCode, Error> {
    let profile = Profile::open(&args.profile)?;
    let target = Target { symbol: args.function.clone(), module: args.module.clone() };
    let annotation = Annotation::read(&profile, &args.filter.to_filter(), &target)?;
    let listing = annotate::annotated_listing(&annotation, args.intel);
    if args.json {
        write_json(&listing)?;
    } else {
        let shown = match args.rows {
            None => ShownLines::Sampled,
            Some(0) => ShownLines::All,
            Some(rows) => ShownLines::Hottest(rows),
        };
        page(&annotate::render(&listing, shown, PageLayout::stdout()))?;
    }
    Ok(ExitCode::Done)
}
