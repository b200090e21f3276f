//! Boots guests for the experiments of the papers that vprof comes from, and writes the results into
//! docs/experiments.md, each into the section between its own marks.
//!
//! Called by `cargo xtask experiments`: `experiments DIRECTORY RUNS NAME...`, the directory being `docs`.
//! `experiments simulate RUNS SEED` needs no guest, and prints its tables.

mod blocked;
mod costs;
mod document;
mod hog;
mod interference;
mod isochronous;
mod measured;
mod native;
mod overhead;
mod simulate;
mod soak;
mod table;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use document::{DocumentSection, ExperimentDocument};

/// An experiment: its name, and the function that makes its section from a number of runs.
type Experiment = (&'static str, fn(usize) -> Result<DocumentSection>);

/// All experiments, in the order of the document.
const EXPERIMENTS: [Experiment; 8] = [
    ("hog", hog::run),
    ("interference", interference::run),
    ("isochronous", isochronous::run),
    ("overhead", overhead::run),
    ("costs", costs::run),
    ("blocked", blocked::run),
    ("soak", soak::attached),
    ("soak-exact", soak::exact),
];

fn main() -> Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments == [soak::GUEST] {
        return soak::guest().map(|()| ExitCode::SUCCESS);
    }
    if let Some((name, rest)) = arguments.split_first()
        && name == "simulate"
    {
        return simulate::print(rest).map(|()| ExitCode::SUCCESS);
    }
    let [directory, runs, names @ ..] = &arguments[..] else {
        bail!("usage: experiments DIRECTORY RUNS [NAME...] | simulate RUNS SEED");
    };
    let runs = runs.parse().ok().filter(|runs| *runs > 0).context("the number of runs is not positive")?;
    let document = ExperimentDocument::new(PathBuf::from(directory));
    let mut failed = false;
    for (name, run) in chosen(names)? {
        eprintln!("experiment {name} ...");
        match run(runs).and_then(|section| document.put(name, &section)) {
            Ok(()) => eprintln!("experiment {name}: written"),
            // The others do not depend on this one; its old section stays.
            Err(error) => {
                eprintln!("error: experiment {name}: {error:#}");
                failed = true;
            }
        }
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Returns the experiments of these names, in the document's order; all if no name is given.
fn chosen(names: &[String]) -> Result<Vec<Experiment>> {
    if let Some(name) = names.iter().find(|name| EXPERIMENTS.iter().all(|(known, _)| known != name)) {
        let known = EXPERIMENTS.map(|(name, _)| name).join(", ");
        bail!("there is no experiment {name}; there are {known}");
    }
    let all = EXPERIMENTS.into_iter();
    Ok(all.filter(|(known, _)| names.is_empty() || names.iter().any(|name| name == known)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experiments_are_chosen_by_name() {
        let names = |names: &[&str]| {
            let names: Vec<_> = names.iter().map(ToString::to_string).collect();
            chosen(&names).map(|chosen| chosen.into_iter().map(|(name, _)| name).collect::<Vec<_>>())
        };
        assert_eq!(names(&[]).unwrap().len(), EXPERIMENTS.len());
        assert_eq!(names(&["costs", "hog"]).unwrap(), ["hog", "costs"]);
        let error = names(&["hogs"]).unwrap_err().to_string();
        assert!(error.starts_with("there is no experiment hogs; there are hog, "), "{error}");
    }
}
