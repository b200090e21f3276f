//! `vprof simulate`: the accuracy of estimates, on simulated machines whose shares are known.

use std::io::{self, IsTerminal, Write};

use statistics::simulate::{Options, study};

use crate::args::SimulateArgs;
use crate::errors::{Error, ExitCode};
use crate::output::{OutputTarget, write_json, write_text};
use crate::render::summary::WIDTH;
use crate::render::{PageLayout, coverage, simulate};

/// Runs the command.
pub fn command(args: &SimulateArgs) -> Result<ExitCode, Error> {
    let options = Options { seed: args.seed, runs: args.runs, clock: args.clock };
    let picture = args.plot.as_ref().map(|path| OutputTarget::open(path, args.force)).transpose()?;
    let live = io::stderr().is_terminal() && !args.quiet;
    let result = study(&options, |done, all| {
        if live {
            // A failed write of a progress line is not a reason to stop.
            let end = if done == all { "\r\x1b[K" } else { "" };
            let _ = write!(io::stderr().lock(), "\rmachine {done} of {all}{end}");
        }
    });
    if let Some(mut output) = picture {
        match output.writer().write_all(coverage::plot(&result).as_bytes()) {
            Ok(()) => output.finish()?,
            Err(source) => return Err(output.error(source)),
        }
    }
    if args.json {
        write_json(&result)?;
    } else {
        // The names of its rows are vprof's own, and fit the usual terminal.
        let page = PageLayout::stdout();
        let page = PageLayout { width: if page.width == usize::MAX { WIDTH } else { page.width }, ..page };
        let text =
            if args.quiet { simulate::conclusion(&result, page) } else { simulate::render(&result, page) };
        write_text(&text)?;
    }
    Ok(ExitCode::Done)
}
