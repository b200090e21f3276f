//! A fault that a check has found.

/// One fault in a file.
#[derive(Debug, PartialEq, Eq)]
pub struct LintFinding {
    /// Name of the rule, under which findings are counted.
    pub rule: &'static str,
    /// Line in the file, from 1.
    pub line: usize,
    /// Description of the fault and of its cure.
    pub text: String,
}

impl LintFinding {
    pub fn new(rule: &'static str, line: usize, text: String) -> Self {
        Self { rule, line, text }
    }
}
