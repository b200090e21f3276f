//! The table between its marks in the document.

use anyhow::{Context, Result};
use vprof_tests::corpus::{CORPUS_PROGRAMS, CorpusProgram, ProfileFigures, ValueComparison};

const BEGIN: &str = "<!-- corpus: written by cargo xtask corpus -->\n";
const END: &str = "<!-- end of corpus -->\n";
const HEADING: &str = "\
| program | Debian, kernel | samples | named | stacks complete | phases: own clock, vprof | CPU time: own clock, vprof | test |
|---|---|---|---|---|---|---|---|
";

/// Returns a line of the table, with its end.
pub fn row(entry: &CorpusProgram, measured: &ProfileFigures, kernel: &str) -> String {
    let list = |values: &[ValueComparison], judged: bool, show: fn(f64) -> String| {
        let one = |value: &ValueComparison| {
            let far = if judged && !value.agrees() { " (too far)" } else { "" };
            format!("{} {}, {}{far}", value.name, show(value.own), show(value.found))
        };
        let texts: Vec<String> = values.iter().map(one).collect();
        if texts.is_empty() { "not shown".to_owned() } else { texts.join("; ") }
    };
    let percent = |part: f64| format!("{:.1} %", 100.0 * part);
    let functions = measured
        .functions_named
        .map_or(String::new(), |part| format!(", functions of the language {}", percent(part)));
    format!(
        "| {} | {}, {kernel} | {} | {}{functions} | {} | {} | {} | `{}` |\n",
        entry.runtime,
        entry.release,
        measured.samples,
        percent(measured.named),
        percent(measured.complete),
        list(&measured.phases, true, percent),
        list(&measured.times, !measured.emulated, |seconds| format!("{seconds:.2} s")),
        entry.name
    )
}

/// Returns the document with this row instead of the program's old one.
pub fn with_row(document: &str, entry: &CorpusProgram, row: &str) -> Result<String> {
    let (before, rest) = document.split_once(BEGIN).context("the mark before the table is missing")?;
    let (old, after) = rest.split_once(END).context("the mark after the table is missing")?;
    let old_row = |wanted: &CorpusProgram| {
        let sign = format!("| `{}` |", wanted.name);
        old.lines().find(|line| line.ends_with(&sign)).map(|line| format!("{line}\n"))
    };
    let rows: String = CORPUS_PROGRAMS
        .iter()
        .filter_map(|known| if known.name == entry.name { Some(row.to_owned()) } else { old_row(known) })
        .collect();
    Ok(format!("{before}{BEGIN}{HEADING}{rows}{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_replaced_one_by_one_in_their_order() {
        let document = format!("# Guests\n{BEGIN}{END}\nmore\n");
        let (perl, go) = (CorpusProgram::named("perl"), CorpusProgram::named("go_19"));
        let one = with_row(&document, perl, "| a | `perl` |\n").unwrap();
        let two = with_row(&one, go, "| b | `go_19` |\n").unwrap();
        assert_eq!(two, format!("# Guests\n{BEGIN}{HEADING}| b | `go_19` |\n| a | `perl` |\n{END}\nmore\n"));
        let again = with_row(&two, perl, "| c | `perl` |\n").unwrap();
        assert_eq!(again, two.replace("| a |", "| c |"));
        assert!(with_row("# Guests\n", perl, "").is_err());
    }

    #[test]
    fn a_row_says_what_is_too_far_apart() {
        let compared = |found| ValueComparison { name: "fib".into(), own: 0.5, found, tolerance: 0.02 };
        let measured = ProfileFigures {
            samples: 4_000,
            named: 0.99,
            functions_named: Some(1.0),
            complete: 1.0,
            phases: vec![compared(0.51), compared(0.6)],
            times: Vec::new(),
            memory: 40e6,
            emulated: true,
        };
        let text = row(CorpusProgram::named("go_19"), &measured, "6.1.0");
        assert!(text.contains("| 99.0 %, functions of the language 100.0 % |"), "{text}");
        assert!(text.contains("fib 50.0 %, 51.0 %; fib 50.0 %, 60.0 % (too far) | not shown |"), "{text}");
    }
}
