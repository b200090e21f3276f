//! Calls of the system's tools.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail};

/// Lines of a failed tool's output that an error quotes.
const QUOTED_LINES: usize = 3;

/// Returns the path of an installed program. Searches `PATH` and Debian's directories that only root's `PATH`
/// has.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|directory| directory.join(name))
        .find(|candidate| candidate.is_file())
}

/// Returns a command for a tool of the Debian package `package`.
pub(crate) fn tool(name: &str, package: &str) -> Result<Command> {
    let path = find_program(name).with_context(|| {
        format!("{name} is not installed: run apt-get install {package}, or cargo xtask deps as root")
    })?;
    let mut command = Command::new(path);
    // The output is parsed or quoted, so it must not depend on the user's language.
    command.env("LC_ALL", "C").stdin(Stdio::null());
    Ok(command)
}

/// Runs a command to its end and returns its standard output.
pub(crate) fn output_of(command: &mut Command) -> Result<String> {
    let output = run(command)?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a command to its end. The error of a failed command quotes its last lines.
pub(crate) fn run(command: &mut Command) -> Result<Output> {
    let name = program_name(command);
    let output = command.output().with_context(|| format!("cannot start {name}"))?;
    if !output.status.success() {
        bail!("{name} failed ({}): {}", output.status, last_lines(&output.stderr, &output.stdout));
    }
    Ok(output)
}

/// Runs `first | second`; an error of either is an error.
pub(crate) fn pipe(first: &mut Command, second: &mut Command) -> Result<()> {
    let name = program_name(first);
    let mut source = first
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {name}"))?;
    if let Some(stdout) = source.stdout.take() {
        second.stdin(stdout);
    }
    let sink = run(second);
    // This process has to close its end of the pipe, or a source whose sink failed would wait for ever.
    second.stdin(Stdio::null());
    let output = source.wait_with_output().with_context(|| format!("cannot wait for {name}"))?;
    sink?;
    if !output.status.success() {
        bail!("{name} failed ({}): {}", output.status, last_lines(&output.stderr, b""));
    }
    Ok(())
}

fn program_name(command: &Command) -> String {
    Path::new(command.get_program()).file_name().unwrap_or(OsStr::new("?")).to_string_lossy().into_owned()
}

/// Returns the last lines of a tool's output on one line.
fn last_lines(stderr: &[u8], stdout: &[u8]) -> String {
    let output = if stderr.trim_ascii().is_empty() { stdout } else { stderr };
    let output = String::from_utf8_lossy(output);
    let mut lines: Vec<&str> = output.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines.drain(..lines.len().saturating_sub(QUOTED_LINES));
    if lines.is_empty() { "it printed nothing".to_owned() } else { lines.join("; ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_failed_tool_is_quoted() {
        let error = run(&mut sh("echo ignored; echo E: no space >&2; exit 3")).unwrap_err();
        assert_eq!(error.to_string(), "sh failed (exit status: 3): E: no space");
    }

    #[test]
    fn a_pipe_reports_both_ends() {
        pipe(&mut sh("echo hello"), &mut sh("grep -q hello")).unwrap();
        let error = pipe(&mut sh("echo broken >&2; exit 4"), &mut sh("cat >/dev/null")).unwrap_err();
        assert_eq!(error.to_string(), "sh failed (exit status: 4): broken");
        let error = pipe(&mut sh("yes 2>/dev/null"), &mut sh("echo full >&2; exit 5")).unwrap_err();
        assert_eq!(error.to_string(), "sh failed (exit status: 5): full");
    }

    #[test]
    fn a_missing_tool_names_its_package() {
        let error = tool("no-such-tool-here", "some-package").unwrap_err();
        assert!(error.to_string().contains("apt-get install some-package"), "{error}");
    }
}
