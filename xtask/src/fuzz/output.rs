//! Output of a running target (llvm.org/docs/LibFuzzer.html, "Output").

use std::fmt::Write as _;

/// Figures of a run, as far as it came.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FuzzOutcome {
    /// Inputs that were run.
    pub executions: u64,
    /// Inputs a second, on average.
    pub rate: u64,
    /// Edges of the program's flow that were taken.
    pub edges: u64,
    /// Edges with how often, and what was compared: libFuzzer's features.
    pub features: u64,
    /// Inputs that are kept because each reaches something that no other does.
    pub corpus: u64,
    /// Fault that was found.
    pub found: Option<String>,
    panic: Option<String>,
}

impl FuzzOutcome {
    /// Takes one line.
    pub fn take(&mut self, line: &str) {
        let number = |name: &str| -> Option<u64> {
            let rest = line.split_once(name)?.1.trim_start();
            let digits = rest.find(|c: char| !c.is_ascii_digit()).map_or(rest, |end| &rest[..end]);
            digits.parse().ok()
        };
        if line.starts_with('#') {
            let count = line.trim_start_matches('#').split_whitespace().next();
            if let Some(count) = count.and_then(|count| count.parse().ok()) {
                self.executions = self.executions.max(count);
            }
            self.edges = number(" cov:").unwrap_or(self.edges);
            self.features = number(" ft:").unwrap_or(self.features);
            self.corpus = number(" corp:").unwrap_or(self.corpus);
            self.rate = number(" exec/s:").unwrap_or(self.rate);
        } else if let Some(count) = number("stat::number_of_executed_units:") {
            self.executions = count;
        } else if let Some(rate) = number("stat::average_exec_per_sec:") {
            self.rate = rate;
        } else if let Some((_, what)) = line.split_once("panicked at ") {
            self.panic = Some(format!("panicked at {}", what.trim_end_matches(':')));
        } else if let Some((_, what)) = line.split_once("ERROR: ") {
            let what = what.split('(').next().unwrap_or(what).trim();
            let what = self.panic.take().unwrap_or_else(|| what.to_owned());
            self.found.get_or_insert(what);
        } else if let Some((_, path)) = line.split_once("Test unit written to ")
            && let Some(found) = &mut self.found
        {
            // Writing to a string cannot fail.
            let _ = write!(found, "; input in {}", path.trim());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(lines: &[&str]) -> FuzzOutcome {
        let mut outcome = FuzzOutcome::default();
        for line in lines {
            outcome.take(line);
        }
        outcome
    }

    #[test]
    fn a_clean_run_is_told_by_its_last_lines() {
        let lines = [
            "INFO: seed corpus: files: 4 min: 1b max: 900b total: 1024b rss: 60Mb",
            "#5\tINITED cov: 100 ft: 140 corp: 4/1024b exec/s: 0 rss: 61Mb",
            "#8192\tpulse  cov: 2300 ft: 5100 corp: 310/20Kb lim: 98 exec/s: 2730 rss: 90Mb",
            "#9000\tDONE   cov: 2301 ft: 5102 corp: 311/20Kb lim: 98 exec/s: 3000 rss: 90Mb",
            "stat::number_of_executed_units: 9001",
            "stat::average_exec_per_sec:     2999",
        ];
        let outcome = outcome(&lines);
        assert_eq!((outcome.executions, outcome.rate), (9001, 2999));
        assert_eq!((outcome.edges, outcome.features, outcome.corpus), (2301, 5102, 311));
        assert_eq!(outcome.found, None);
    }

    #[test]
    fn a_panic_is_told_with_its_place_and_input() {
        let lines = [
            "thread '<unnamed>' (7) panicked at symbols/src/elf/note.rs:7:9:",
            "index out of bounds",
            "==7== ERROR: libFuzzer: deadly signal",
            "artifact_prefix='a/'; Test unit written to a/crash-1234",
        ];
        let found = outcome(&lines).found;
        assert_eq!(found.as_deref(), Some("panicked at symbols/src/elf/note.rs:7:9; input in a/crash-1234"));
    }

    #[test]
    fn too_much_time_or_memory_is_found() {
        let slow = outcome(&["==9== ERROR: libFuzzer: timeout after 11 seconds"]).found;
        assert_eq!(slow.as_deref(), Some("libFuzzer: timeout after 11 seconds"));
        let large = outcome(&["==9== ERROR: libFuzzer: out-of-memory (used: 2050Mb; limit: 2048Mb)"]).found;
        assert_eq!(large.as_deref(), Some("libFuzzer: out-of-memory"));
    }
}
