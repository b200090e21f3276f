//! `vprof`: see inside any Linux virtual machine from the host.
//!
//! This crate is the only one that prints. Commands: [`run`], [`boot`], [`report`], [`stat`], [`rusage`], [`annotate`], [`diff`],
//! [`export`], [`query`], [`symbolize`], [`simulate`], [`inspect`], [`doctor`], [`selftest`]. Started as the init of
//! a portable host, the same program is that host's inner half ([`host::portable::inner`]); as the init of a guest of the
//! self-test, it is all of that guest's programs ([`selftest::guest`]).

mod annotate;
mod args;
mod attach;
mod boot;
mod cmdline;
mod config;
mod ctl;
mod diff;
mod doctor;
mod errors;
mod export;
mod inspect;
mod man;
mod output;
mod progress;
mod query;
mod render;
mod report;
mod run;
mod rusage;
mod selftest;
mod simulate;
mod spread;
mod stat;
mod symbolize;
mod terminal;
mod top;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};

use args::{Cli, Command, ImageCommand};

/// Bounds of hostile debug information follow from what it really takes.
#[global_allocator]
static ALLOCATOR: symbols::counted::CountingAllocator = symbols::counted::CountingAllocator;

fn main() -> ExitCode {
    if host::portable::inner::is_inner() {
        host::portable::inner::main();
    }
    if selftest::guest::is_guest() {
        selftest::guest::main();
    }
    // A limit on file sizes shall be an error of write(2), which is reported, and not a signal, which kills.
    // SAFETY: no other thread runs yet, and ignoring a signal installs no handler.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
    let command = match config::apply(Cli::command()) {
        Ok(command) => command,
        Err(error) => {
            eprintln!("vprof: {error}");
            return ExitCode::from(errors::ExitCode::Usage.number());
        }
    };
    let cli = Cli::from_arg_matches(&command.get_matches()).unwrap_or_else(|error| error.exit());
    let result = match cli.command {
        Command::Run(args) => run::command(&args),
        Command::Boot(args) => boot::command(&args),
        Command::Attach(args) => attach::command(&args),
        Command::Report(args) => report::command(&args),
        Command::Rusage(args) => rusage::command(&args),
        Command::Stat(args) => stat::command(&args),
        Command::Annotate(args) => annotate::command(&args),
        Command::Diff(args) => diff::command(&args),
        Command::Export(args) => export::command(&args),
        Command::Query(args) => query::command(&args),
        Command::Symbolize(args) => symbolize::command(&args),
        Command::Simulate(args) => simulate::command(&args),
        Command::Top(args) => top::command(&args),
        Command::Ctl(args) => ctl::command(&args),
        Command::Image(ImageCommand::Inspect(args)) => inspect::command(&args),
        Command::Doctor(args) => doctor::command(&args),
        Command::Selftest(args) => selftest::command(&args),
        Command::Man { directory } => man::command(&Cli::command(), &directory),
        Command::GdbGuard => attach::gdb::guard(),
        Command::GuestHalf { job } => run::guest_half(job),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "vprof", &mut script);
            let written = std::io::Write::write_all(&mut std::io::stdout(), &script);
            written.map(|()| errors::ExitCode::Done).map_err(output::stdout_error)
        }
    };
    match result {
        Ok(code) => ExitCode::from(code.number()),
        Err(error) if error.is_broken_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("vprof: {error}");
            ExitCode::from(error.exit_code().number())
        }
    }
}
