//! `run --trip`: the functions to watch, and what a call of them costs here.

use std::time::Duration;

use display::units;
use host::choice::Host;

use crate::args::RunArgs;
use crate::errors::UsageError;

/// Cost of a call of a watched function.
pub struct Cost {
    /// Time of an exit, if it was measured.
    exit: Option<Duration>,
    sentence: String,
}

impl Cost {
    /// Returns the cost as a sentence.
    pub fn sentence(&self) -> &String {
        &self.sentence
    }

    /// Returns the row of `meta`.
    pub fn meta(&self) -> Option<(String, String)> {
        self.exit.map(|exit| ("trip_exit_ns".to_owned(), exit.as_nanos().to_string()))
    }
}

/// Returns the functions to watch, each once.
pub fn names(args: &RunArgs) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for name in &args.trip {
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    names
}

/// Checks the number of functions.
pub fn check(args: &RunArgs) -> Result<(), UsageError> {
    let (count, most) = (names(args).len(), sampler::MAX_TRIPS);
    if count > most { Err(UsageError::TooManyTrips(count, most)) } else { Ok(()) }
}

/// Returns the cost of a call on this host; `None` if nothing is watched.
pub fn cost(args: &RunArgs, host: &Host) -> Option<Cost> {
    if args.trip.is_empty() {
        return None;
    }
    // A host whose KVM does not run the small machine shows that when the guest starts.
    let exit = if matches!(host, Host::Kvm) { vmm::kvm_check::exit_time().ok() } else { None };
    Some(Cost { exit, sentence: sentence(host, exit) })
}

fn sentence(host: &Host, exit: Option<Duration>) -> String {
    let cost = match (host, exit) {
        (_, Some(exit)) => format!("about {} here (measured)", units::seconds(exit.as_secs_f64())),
        (Host::Kvm, None) => "an exit to vprof, which could not be timed here,".to_owned(),
        (Host::Portable(_) | Host::Tcg(_), None) => {
            "about 100 us here, where the virtualization is emulated,".to_owned()
        }
    };
    format!("each call of a watched function (--trip) costs its vCPU {cost} and its record")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn run(names: &[String]) -> RunArgs {
        let options = names.iter().flat_map(|name| ["--trip", name]);
        let words = ["vprof", "run", "x.img"].into_iter().chain(options);
        let crate::args::CliCommand::Run(args) = crate::args::Cli::try_parse_from(words).unwrap().command
        else {
            panic!("a run")
        };
        *args
    }

    #[test]
    fn a_function_counts_once_and_there_is_a_limit() {
        let named = |count: usize| (0..count).map(|n| format!("f{n}")).collect::<Vec<_>>();
        let mut twice = named(16);
        twice.push("f3".to_owned());
        assert_eq!(names(&run(&twice)), named(16));
        assert!(check(&run(&twice)).is_ok());
        let refused = check(&run(&named(17))).unwrap_err().to_string();
        assert_eq!(refused, "--trip names 17 functions: give at most 16");
        assert!(cost(&run(&[]), &Host::Kvm).is_none());
    }

    #[test]
    fn a_cost_without_a_measurement_is_not_that_of_an_emulation() {
        let measured = sentence(&Host::Kvm, Some(Duration::from_micros(15)));
        assert!(measured.contains("costs its vCPU about 15 us here (measured) and its record"), "{measured}");
        let failed = sentence(&Host::Kvm, None);
        assert!(failed.contains("an exit to vprof, which could not be timed here"), "{failed}");
        assert!(!failed.contains("emulated"), "{failed}");
    }
}
