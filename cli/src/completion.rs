//! Completion of command lines by the shell: a script asks the program, so that virtual machines and runs in
//! progress are known too.

use std::ffi::OsStr;

use ::attach::{RunningMachine, running_machines};
use clap_complete::engine::CompletionCandidate;
use clap_complete::env::{CompleteEnv, Shells};
use control::client::Client;
use control::message::About;
use control::place;
use display::clean::escaped;
use profile::watch::WatchCondition;

use crate::errors::Error;
use crate::output::{stdout_error, write_text};

/// Variable of the environment in which a shell's script asks for candidates.
const VARIABLE: &str = "VPROF_COMPLETE";
/// Name of the program, as the shell finds it.
const PROGRAM: &str = "vprof";

/// Answers a shell's script and ends the process, if that is what it was started for.
pub fn answer(command: impl Fn() -> clap::Command) {
    CompleteEnv::with_factory(command).var(VARIABLE).complete();
}

/// Prints the script for a shell.
///
/// # Errors
/// Standard output cannot be written to.
pub fn print_script(shell: clap_complete::Shell) -> Result<(), Error> {
    let mut script = Vec::new();
    let shells = Shells::builtins();
    let completer = shells.completer(&shell.to_string()).expect("the same shells have scripts");
    completer.write_registration(VARIABLE, PROGRAM, PROGRAM, PROGRAM, &mut script).map_err(stdout_error)?;
    write_text(&String::from_utf8_lossy(&script))
}

/// Returns the virtual machines of this host, for `vprof attach`: by name, or by process id if `typed` begins
/// like one.
pub fn machines(typed: &OsStr) -> Vec<CompletionCandidate> {
    let machines = running_machines();
    let named =
        |machine: &RunningMachine| format!("{}, {}", escaped(&machine.name), escaped(&machine.program));
    let by_pid = typed.as_encoded_bytes().first().is_some_and(u8::is_ascii_digit);
    let value = |machine: &RunningMachine| {
        let alone = machines.iter().filter(|other| other.name == machine.name).count() == 1;
        if by_pid || !alone || !is_plain(&machine.name) {
            machine.pid.to_string()
        } else {
            machine.name.clone()
        }
    };
    let candidate = |machine| CompletionCandidate::new(value(machine)).help(Some(named(machine).into()));
    beginning(typed, machines.iter().map(candidate))
}

/// Returns the names of the virtual machines of this host.
pub fn machine_names(typed: &OsStr) -> Vec<CompletionCandidate> {
    let machines = running_machines();
    let plain = machines.into_iter().filter(|machine| is_plain(&machine.name));
    beginning(typed, plain.map(|machine| CompletionCandidate::new(machine.name)))
}

/// Returns the user's runs in progress, by process id.
pub fn runs(typed: &OsStr) -> Vec<CompletionCandidate> {
    // A run that is ending does not answer.
    let runs = place::running().into_iter().filter_map(|found| Client::new(found).ok()?.about().ok());
    let candidate = |run: About| {
        let help = escaped(&run.image).into_owned();
        CompletionCandidate::new(run.pid.to_string()).help(Some(help.into()))
    };
    beginning(typed, runs.map(candidate))
}

/// Returns the conditions of `vprof attach --watch`; in a list, for the last one.
pub fn watch_conditions(typed: &OsStr) -> Vec<CompletionCandidate> {
    let before = typed.to_str().and_then(|typed| typed.rsplit_once(',')).map_or("", |(before, _)| before);
    let list = |name: &str| if before.is_empty() { name.to_owned() } else { format!("{before},{name}") };
    let names = WatchCondition::ALL.map(WatchCondition::name);
    let all = ["all"].into_iter().filter(|_| before.is_empty());
    beginning(typed, all.chain(names).map(|name| CompletionCandidate::new(list(name))))
}

fn beginning(typed: &OsStr, all: impl Iterator<Item = CompletionCandidate>) -> Vec<CompletionCandidate> {
    let typed = typed.as_encoded_bytes();
    all.filter(|candidate| candidate.get_value().as_encoded_bytes().starts_with(typed)).collect()
}

/// Returns true for a name that means itself to every shell: a shell may insert a candidate as it is, and
/// another user chooses the names of virtual machines. A number would be taken for a process id.
fn is_plain(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    name.bytes().all(plain)
        && name.bytes().next().is_some_and(|first| first != b'-')
        && !name.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_a_shell_reads_are_no_candidates() {
        for name in ["web", "web-1", "vm_2.example", "7up"] {
            assert!(is_plain(name), "{name}");
        }
        for name in ["", "-o", "4711", "a b", "$(reboot)", "a;b", "a*", "~", "`x`", "a\nb", "näme", "a:b"] {
            assert!(!is_plain(name), "{name}");
        }
    }

    #[test]
    fn a_list_of_conditions_is_completed_at_its_end() {
        let values = |typed: &str| {
            let found = watch_conditions(OsStr::new(typed));
            found.iter().map(|candidate| candidate.get_value().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(values("").len(), WatchCondition::ALL.len() + 1);
        assert_eq!(values("irqs"), ["irqs-off"]);
        assert_eq!(values("oom,pa"), ["oom,paused"]);
    }

    #[test]
    fn candidates_begin_with_what_is_typed() {
        let all = || ["4711", "4811", "web"].map(CompletionCandidate::new).into_iter();
        let values = |typed| {
            let found = beginning(OsStr::new(typed), all());
            found.iter().map(|candidate| candidate.get_value().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(values("47"), ["4711"]);
        assert_eq!(values("").len(), 3);
        assert!(values("x").is_empty());
    }
}
