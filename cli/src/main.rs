//! `vprof`: see inside any Linux virtual machine from the host.
//!
//! This crate is the only one that prints. Commands: [`run`], [`boot`], [`mem`], [`report`], [`stat`],
//! [`rusage`], [`annotate`], [`diff`], [`merge`], [`agent`], [`export`], [`open`], [`query`], [`symbolize`],
//! [`inspect`], [`docs`], [`doctor`], [`selftest`]. Started as the init of a portable host, the same program
//! is that host's inner half ([`host::portable::inner`]); as the init of a guest of the self-test, it is all
//! of that guest's programs ([`selftest::guest`]).

// The macros of the standard library panic where nobody reads, which replaces the exit code: see
// `display::stderr_line!` and `output::write_text`.
#![warn(clippy::print_stdout, clippy::print_stderr)]

#[cfg(feature = "fleet")]
mod agent;
mod annotate;
mod args;
mod attach;
mod boot;
mod cmdline;
mod completion;
mod config;
mod ctl;
mod diff;
mod docs;
mod doctor;
mod errors;
mod export;
#[cfg(feature = "fleet")]
mod fleet;
mod inspect;
mod man;
mod mem;
mod merge;
mod open;
mod output;
mod pager;
mod progress;
mod query;
mod report;
mod run;
mod rusage;
mod selftest;
mod stat;
mod symbolize;
mod top;

use std::error::Error as _;
use std::io;
use std::num::{IntErrorKind, ParseIntError};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory, FromArgMatches};
use display::message::write_stderr;
use display::suggest::suggest;

use args::{Cli, CliCommand, ImageCommand};

/// Counts heap memory: the bounds of hostile debug information depend on the memory that it takes.
#[global_allocator]
static ALLOCATOR: symbols::counted::CountingAllocator = symbols::counted::CountingAllocator;

fn main() -> ExitCode {
    // Before there is another thread, and before anything is opened.
    if let Err(error) = ::attach::capabilities::confine_process() {
        display::stderr_line!("vprof: cannot drop capabilities: {error}");
        return ExitCode::FAILURE;
    }
    if host::portable::inner::is_inner() {
        host::portable::inner::main();
    }
    if selftest::guest::is_guest() {
        selftest::guest::main();
    }
    completion::answer(|| args::with_short_help(Cli::command()));
    // A write beyond the limit on file sizes should be an error of write(2), which is reported, and not a
    // signal, which kills.
    // SAFETY: no other thread runs yet, and ignoring a signal installs no handler.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
    let words = args::with_report(&Cli::command(), std::env::args_os().collect());
    let configured = match config::apply(Cli::command(), &words) {
        Ok(configured) => configured,
        Err(error) => {
            display::stderr_line!("vprof: {error}");
            return ExitCode::from(errors::ExitCode::Usage.number());
        }
    };
    for warning in &configured.warnings {
        display::stderr_line!("vprof: {warning}; this is ignored");
    }
    let parsed = args::with_short_help(configured.command).try_get_matches_from(&words).and_then(|matches| {
        let mut cli = Cli::from_arg_matches(&matches)?;
        cli.keep_older(&matches);
        Ok(cli)
    });
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => {
            if let Some(left_out) = args::left_out(&error, &words).filter(|_| !cfg!(feature = "fleet")) {
                display::stderr_line!("vprof: {left_out}");
                return ExitCode::from(errors::ExitCode::Usage.number());
            }
            let file = configured.path.filter(|_| config::is_of_file(&error, &words));
            return unparsed(error, file);
        }
    };
    cli.color.set();
    if !render::is_utf8_locale(|name| std::env::var(name).ok()) {
        render::use_ascii();
    }
    if cli.no_pager {
        pager::disable();
    }
    if !cli.command.keeps_capabilities()
        && let Err(error) = ::attach::capabilities::drop_all()
    {
        display::stderr_line!("vprof: cannot drop capabilities: {error}");
        return ExitCode::FAILURE;
    }
    let result = match cli.command {
        CliCommand::Run(args) => run::command(&args),
        CliCommand::Boot(args) => boot::command(&args),
        CliCommand::Attach(args) => attach::command(&args),
        CliCommand::Mem(args) => mem::command(&args),
        CliCommand::Report(args) => report::command(&args),
        CliCommand::Rusage(args) => rusage::command(&args),
        CliCommand::Stat(args) => stat::command(&args),
        CliCommand::Annotate(args) => annotate::command(&args),
        CliCommand::Diff(args) => diff::command(&args),
        CliCommand::Merge(args) => merge::command(&args),
        #[cfg(feature = "fleet")]
        CliCommand::Fleet(command) => fleet::command(&command),
        CliCommand::Export(args) => export::command(&args),
        CliCommand::Open(args) => open::command(&args),
        CliCommand::Query(args) => query::command(&args),
        CliCommand::Symbolize(args) => symbolize::command(&args),
        CliCommand::Top(args) => top::command(&args),
        CliCommand::Ctl(args) => ctl::command(&args),
        CliCommand::Image(ImageCommand::Inspect(args)) => inspect::command(&args),
        CliCommand::Doctor(args) => doctor::command(&args),
        CliCommand::Docs(args) => docs::command(&args),
        CliCommand::Selftest(args) => selftest::command(&args),
        CliCommand::Man { directory } => man::command(&Cli::command(), &directory),
        CliCommand::GuestHalf { job } => run::guest_half(job),
        CliCommand::ImageReader { job } => run::image_reader(job),
        CliCommand::AttachHalf { job } => attach::half(job),
        CliCommand::AttachGuard { stops } => attach::guard(stops),
        CliCommand::Completions { shell } => completion::print_script(shell).map(|()| errors::ExitCode::Done),
    };
    match result {
        Ok(code) => ExitCode::from(code.number()),
        Err(error) if error.is_broken_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            display::stderr_line!("vprof: {error}");
            ExitCode::from(error.exit_code().number())
        }
    }
}

/// Returns the message on a value that is not a number, for which clap has the words of the standard library.
fn number_of_words(error: &clap::Error) -> Option<String> {
    let reason = error.source()?.downcast_ref::<ParseIntError>()?;
    let is_word = matches!(reason.kind(), IntErrorKind::InvalidDigit | IntErrorKind::Empty);
    is_word.then(|| error.render().to_string().replace(&reason.to_string(), "write a whole number"))
}

/// Takes the tip from an unknown option that resembles no option: clap offers `--json` for `--dso`.
fn without_far_tip(mut error: clap::Error) -> clap::Error {
    let word = |kind| match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word.trim_start_matches('-')),
        _ => None,
    };
    let words = word(ContextKind::InvalidArg).zip(word(ContextKind::SuggestedArg));
    if words.is_some_and(|(wanted, tip)| suggest(wanted, std::iter::once(tip)).is_empty()) {
        error.remove(ContextKind::SuggestedArg);
        // It is that of the tip.
        error.remove(ContextKind::Usage);
    }
    error
}

/// Prints help, the version, or what is wrong with the command line. `file`: the configuration that has the
/// wrong value.
fn unparsed(error: clap::Error, file: Option<PathBuf>) -> ExitCode {
    let error = without_far_tip(error);
    let printed = match number_of_words(&error) {
        Some(text) => {
            write_stderr(&text);
            Ok(())
        }
        None => error.print(),
    };
    match printed {
        // The reader of the help may have gone.
        Err(failed) if !error.use_stderr() && failed.kind() != io::ErrorKind::BrokenPipe => {
            display::stderr_line!("vprof: {}", output::stdout_error(failed));
            return ExitCode::FAILURE;
        }
        _ => {}
    }
    if let Some(file) = file {
        display::stderr_line!("The value is in the configuration {}.", display::message::Shown(&file));
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(errors::ExitCode::Usage.number()))
}
