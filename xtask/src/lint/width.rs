//! Lines that are too wide.

use super::finding::LintFinding;
use super::markdown;

/// Columns of a line of a document.
const DOCUMENT_COLUMNS: usize = 120;
/// Columns of a comment line: the `max_width` of rustfmt, which leaves comments alone.
const COMMENT_COLUMNS: usize = 110;

/// Checks the lines of a document, except for tables, fenced blocks and HTML.
pub fn check_document(document: &str) -> Vec<LintFinding> {
    let mut findings = Vec::new();
    for line in markdown::lines(document) {
        let start = line.text.trim_start();
        let exempt = line.fenced || start.starts_with('|') || start.starts_with('<');
        if !exempt {
            findings.extend(wide("wide document line", line.number, line.text, DOCUMENT_COLUMNS));
        }
    }
    findings
}

/// Checks the lines of a source file that have a comment, except for rows of tables.
pub fn check_source(source: &str) -> Vec<LintFinding> {
    let is_checked = |line: &str| comment(line).is_some_and(|text| !text.starts_with('|'));
    let lines = source.lines().zip(1..).filter(|(line, _)| is_checked(line));
    lines.filter_map(|(line, number)| wide("wide comment line", number, line, COMMENT_COLUMNS)).collect()
}

/// Returns the text of a line's comment: all of the line, or what follows code. In a string it is none.
fn comment(line: &str) -> Option<&str> {
    let after_code = || {
        let mut starts = line.match_indices(" // ").map(|(start, _)| line.split_at(start));
        starts.find(|(code, _)| code.matches('"').count() % 2 == 0).map(|(_, comment)| comment)
    };
    let comment = Some(line.trim_start()).filter(|line| line.starts_with("//")).or_else(after_code)?;
    Some(comment.trim_start_matches([' ', '/', '!']))
}

/// Returns a finding for a line that is wider than `columns` and can be broken.
fn wide(rule: &'static str, number: usize, line: &str, columns: usize) -> Option<LintFinding> {
    let width = line.chars().count();
    if width <= columns {
        return None;
    }
    let indent = line.chars().take_while(|character| character.is_whitespace()).count();
    let longest = units(line).map(|unit| unit.chars().count()).max().unwrap_or(0);
    // Room for the indentation and the mark of a comment or a list item.
    if indent + longest + "/// ".len() > columns {
        return None;
    }
    Some(LintFinding::new(rule, number, format!("{width} columns: use {columns} at most")))
}

/// Splits a line into what cannot be broken: words, and links as a whole.
fn units(line: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_usize;
    let mut previous = ' ';
    line.split(move |character: char| {
        match character {
            '[' => depth += 1,
            // The target of a link follows its text: `](`.
            '(' if previous == ']' => depth += 1,
            ']' | ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        previous = character;
        character.is_whitespace() && depth == 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(findings: &[LintFinding]) -> Vec<usize> {
        findings.iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn wide_lines_of_documents() {
        let words = "word ".repeat(30);
        let long = "x".repeat(130);
        let document = format!(
            "{words}\n| {words}\n```\n{words}\n```\n- see [{words}]({long})\n{long}\n{}\n",
            "é".repeat(60) + " " + &"é".repeat(59)
        );
        let findings = check_document(&document);
        assert_eq!(numbers(&findings), [1]);
        assert_eq!(findings[0].text, "150 columns: use 120 at most");
    }

    #[test]
    fn wide_comments_of_sources() {
        let words = "word ".repeat(25);
        let source = format!(
            "// {words}\n/// | {words} |\nlet x = \"{words}\";\n    let y = 1; // {words}\n// https://{}\n",
            "x".repeat(110)
        );
        assert_eq!(numbers(&check_source(&source)), [1, 4]);
    }
}
