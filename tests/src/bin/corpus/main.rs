//! Profiles the programs of the corpus images, and writes their figures into the table of docs/guests.md,
//! between its marks. Rows of programs that are not chosen stay.
//!
//! Called by `cargo xtask corpus`: `corpus DOCUMENT NAME...`.

mod table;

use std::fs;
use std::panic::catch_unwind;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use vprof_tests::corpus::{CORPUS_PROGRAMS, CorpusProgram};

fn main() -> Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [document, names @ ..] = &arguments[..] else {
        bail!("usage: corpus DOCUMENT [NAME...]");
    };
    let mut failed = false;
    for entry in chosen(names)? {
        eprintln!("{} ...", entry.name);
        // A guest that fails has printed why; the others do not depend on it, and its old row stays.
        let Ok((measured, kernel)) = catch_unwind(|| {
            let run = entry.run();
            let kernel = run.report().get("kernel").as_str().unwrap_or("unknown").to_owned();
            (entry.measure(&run), kernel)
        }) else {
            failed = true;
            continue;
        };
        let faults = entry.faults(&measured);
        faults.iter().for_each(|fault| eprintln!("{}: {fault}", entry.name));
        failed |= !faults.is_empty();
        let old = fs::read_to_string(document).with_context(|| format!("cannot read {document}"))?;
        let fresh = table::with_row(&old, entry, &table::row(entry, &measured, &kernel))
            .with_context(|| format!("in {document}"))?;
        fs::write(document, fresh).with_context(|| format!("cannot write {document}"))?;
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Returns the programs of these names, or all if no name is given, in the order of the table.
fn chosen(names: &[String]) -> Result<Vec<&'static CorpusProgram>> {
    if let Some(name) = names.iter().find(|name| CORPUS_PROGRAMS.iter().all(|entry| entry.name != **name)) {
        let known: Vec<_> = CORPUS_PROGRAMS.iter().map(|entry| entry.name).collect();
        bail!("there is no program {name}; there are {}", known.join(", "));
    }
    Ok(CORPUS_PROGRAMS
        .iter()
        .filter(|entry| names.is_empty() || names.iter().any(|name| name == entry.name))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_chosen_by_name() {
        assert_eq!(chosen(&[]).unwrap().len(), CORPUS_PROGRAMS.len());
        let some = chosen(&["perl".to_owned(), "go_19".to_owned()]).unwrap();
        assert_eq!(some.iter().map(|entry| entry.name).collect::<Vec<_>>(), ["go_19", "perl"]);
        assert!(chosen(&["cobol".to_owned()]).unwrap_err().to_string().contains("there are python_11"));
    }
}
