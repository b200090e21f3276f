//! `vprof man`: the manual pages, made from the same description as the help texts.

use std::path::Path;

use clap::Command;

use crate::errors::{Error, ExitCode};

/// Writes a page for `vprof` and one for each of its commands into `directory`.
pub fn command(program: &Command, directory: &Path) -> Result<ExitCode, Error> {
    let written = |source| Error::file("write manual pages to", directory, source);
    std::fs::create_dir_all(directory).map_err(written)?;
    clap_mangen::generate_to(program.clone().disable_help_subcommand(true), directory).map_err(written)?;
    Ok(ExitCode::Done)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::args::Cli;

    #[test]
    fn every_command_has_a_page() {
        let directory = tempfile::tempdir().unwrap();
        command(&Cli::command(), directory.path()).unwrap();
        let page = |name: &str| std::fs::read_to_string(directory.path().join(format!("{name}.1"))).unwrap();
        assert!(page("vprof").contains("See inside any Linux virtual machine"));
        for subcommand in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            assert!(
                page(&format!("vprof-{}", subcommand.get_name())).contains(".TH"),
                "{}",
                subcommand.get_name()
            );
        }
    }
}
