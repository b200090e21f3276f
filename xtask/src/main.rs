//! The developer's commands: `cargo xtask demo`, `test`, `fuzz`, `bench`, `experiments`, `corpus`, `image`, `install`,
//! `lint`, `tree`, `licences`, `deps`.

mod bench;
mod corpus;
mod demo;
mod deps;
mod experiments;
mod fuzz;
mod image;
mod install;
mod licences;
mod lint;
mod progress;
mod test;
mod tree;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The developer's commands of vprof.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Profile a demo guest: fetches and builds everything that takes
    Demo(demo::Options),
    /// Run all tests: units, KVM, and guests end to end
    Test(test::Options),
    /// Run everything that reads a guest's or a file's bytes on hostile ones, by cargo-fuzz
    Fuzz(fuzz::Options),
    /// Measure vprof against its budgets
    Bench,
    /// Run the papers' experiments on guests and write docs/experiments.md
    Experiments(experiments::Options),
    /// Profile real programs that measure themselves and write the table of docs/guests.md
    Corpus(corpus::Options),
    /// Install the program, its manual pages and completions into a prefix
    Install(install::Options),
    /// Check the wording of comments, messages and documents, links, and widths of lines
    Lint(lint::Options),
    /// Make an image
    #[command(subcommand)]
    Image(image::Image),
    /// Draw the crates and their imports into docs/contributing.md
    Tree(tree::Options),
    /// Check the licences of dependencies, and which are there in two versions
    Licences,
    /// Install the Debian packages that the other commands need
    Deps,
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Demo(options) => demo::run(&options),
        Command::Test(options) => test::run(&options),
        Command::Fuzz(options) => fuzz::run(&options),
        Command::Bench => bench::run(),
        Command::Experiments(options) => experiments::run(&options),
        Command::Corpus(options) => corpus::run(&options),
        Command::Install(options) => install::run(&options),
        Command::Lint(options) => lint::run(&options),
        Command::Image(image) => image::run(&image),
        Command::Tree(options) => tree::run(&options),
        Command::Licences => licences::run(),
        Command::Deps => deps::run(),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            // One line: what was tried, then why it failed, down to the cause.
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }
}
