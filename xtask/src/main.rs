//! The developer's commands: `cargo xtask demo`, `test`, `fuzz`, `bench`, `fleet-bench`, `experiments`,
//! `corpus`, `image`, `install`, `package`, `lint`, `tree`, `licences`, `deps`, `bpf`, `docs`, `pictures`.

mod bench;
mod bpf;
mod compile;
mod corpus;
mod demo;
mod deps;
mod docs;
mod experiments;
#[cfg(test)]
mod features;
mod fleet_bench;
mod fuzz;
mod image;
mod install;
mod licences;
mod lint;
mod package;
mod pictures;
mod progress;
mod test;
mod tree;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The developer's commands of vprof.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct XtaskArgs {
    #[command(subcommand)]
    command: XtaskCommand,
}

#[derive(Debug, Subcommand)]
enum XtaskCommand {
    /// Profile a demo guest; fetches and builds what is needed
    Demo(demo::DemoArgs),
    /// Run all tests: units, KVM, and guests end to end
    Test(test::TestArgs),
    /// Run the fuzz targets: every parser of a guest's or a file's bytes, by cargo-fuzz
    Fuzz(fuzz::FuzzArgs),
    /// Measure vprof against its budgets
    Bench,
    /// Time the questions to lakes of up to 10,000 hosts by DuckDB and Spark, and write docs/fleet.md
    FleetBench(fleet_bench::FleetBenchArgs),
    /// Run the papers' experiments on guests and write docs/experiments.md
    Experiments(experiments::ExperimentsArgs),
    /// Profile real programs that measure themselves and write the table of docs/guests.md
    Corpus(corpus::CorpusArgs),
    /// Install the program, its manual pages and completions into a prefix
    Install(install::InstallArgs),
    /// Make a tarball and a Debian package of what `install` installs
    Package(package::PackageArgs),
    /// Make a site of the documents by mdBook, without dead links
    Docs(docs::DocsArgs),
    /// Draw the pictures of the documents from a run of the demo guest
    Pictures,
    /// Check links of documents, and widths of lines
    Lint(lint::LintArgs),
    /// Make an image
    #[command(subcommand)]
    Image(image::ImageCommand),
    /// Draw the crates and their imports into docs/contributing.md
    Tree(tree::TreeArgs),
    /// Check the licences of dependencies, and dependencies in several versions
    Licences,
    /// Compile the programs that vprof runs in the kernel of the host
    Bpf(bpf::BpfArgs),
    /// Install the Debian packages that the other commands need
    Deps,
}

fn main() -> ExitCode {
    let result = match XtaskArgs::parse().command {
        XtaskCommand::Demo(options) => demo::run(&options),
        XtaskCommand::Test(options) => test::run(&options),
        XtaskCommand::Fuzz(options) => fuzz::run(&options),
        XtaskCommand::Bench => bench::run(),
        XtaskCommand::FleetBench(options) => fleet_bench::run(&options),
        XtaskCommand::Experiments(options) => experiments::run(&options),
        XtaskCommand::Corpus(options) => corpus::run(&options),
        XtaskCommand::Install(options) => install::run(&options),
        XtaskCommand::Package(options) => package::run(&options),
        XtaskCommand::Docs(options) => docs::run(&options),
        XtaskCommand::Pictures => pictures::run(),
        XtaskCommand::Lint(options) => lint::run(&options),
        XtaskCommand::Image(image) => image::run(&image),
        XtaskCommand::Tree(options) => tree::run(&options),
        XtaskCommand::Licences => licences::run(),
        XtaskCommand::Bpf(options) => bpf::run(&options),
        XtaskCommand::Deps => deps::run(),
    };
    match result {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            // One line: what was tried, then why it failed, down to the cause.
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Returns true if the reader of standard output, like `head`, has closed it: this needs no message.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let source = error.downcast_ref::<std::io::Error>();
    source.is_some_and(|source| source.kind() == std::io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        XtaskArgs::command().debug_assert();
    }
}
