//! `vprof annotate`: the instructions of a function with the samples that hit them.

mod render;

use profile::Profile;
use profile::report::{Annotation, FunctionListing, ShownLines, Target};

use crate::args::AnnotateArgs;
use crate::errors::{Error, ExitCode};
use crate::output::write_json;
use crate::pager::page;
use crate::render::PageLayout;
use crate::render::by::BLOCKS;

/// Runs the command.
pub fn command(args: &AnnotateArgs) -> Result<ExitCode, Error> {
    let profile = Profile::open(&args.profile)?;
    let target = Target { symbol: args.function.clone(), module: args.module.clone() };
    let annotation = Annotation::read(&profile, &args.filter.to_filter(), &target)?;
    let listing = listing(&annotation, args.intel);
    if args.json {
        write_json(&listing)?;
    } else {
        let shown = match args.rows {
            None => ShownLines::Sampled,
            Some(0) => ShownLines::All,
            Some(rows) => ShownLines::Hottest(rows),
        };
        page(&render::render(&listing, shown, PageLayout::stdout()))?;
    }
    Ok(ExitCode::Done)
}

/// Returns the lines of a function, with notes on what limits them.
pub fn listing(annotation: &Annotation, intel: bool) -> FunctionListing {
    let mut listing = FunctionListing::new(annotation, intel);
    if annotation.emulated {
        listing.notes.push(BLOCKS.to_owned());
    }
    if annotation.nameless && annotation.kind == "user" {
        listing.notes.push(
            "No symbol covers the function: a debug file of its build would name it (`vprof docs symbols`)."
                .to_owned(),
        );
    }
    listing
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use profile::report::Estimate;

    use super::*;

    #[test]
    fn notes_say_what_limits_the_lines() {
        let annotation = |kind: &str, nameless, emulated| Annotation {
            symbol: "f".to_owned(),
            module: None,
            kind: kind.to_owned(),
            nameless,
            emulated,
            start: 0x1000,
            code: Some(vec![0xc3]),
            read: None,
            own: Estimate::default(),
            total: Estimate::default(),
            hits: BTreeMap::new(),
            names: BTreeMap::new(),
        };
        let notes = |annotation: &Annotation| listing(annotation, false).notes;
        // Debug files are of user code.
        assert!(notes(&annotation("kernel", true, false)).is_empty());
        let nameless = notes(&annotation("user", true, false));
        assert!(nameless[0].contains("a debug file of its build would name it"), "{nameless:?}");
        let emulated = notes(&annotation("kernel", false, true));
        assert!(emulated[0].contains("exact to a block"), "{emulated:?}");
    }
}
