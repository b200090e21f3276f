//! The parts of a Markdown document: text, headings and links.

use std::sync::LazyLock;

use regex::Regex;

use super::passage::{PassageKind, TextPassage, starts_block, without_code};

/// The target of a link or an image, or of the definition of one.
static LINK: LazyLock<Regex> = LazyLock::new(|| constant(r"\]\(\s*<?([^)<>\s]+)|^\s*\[[^\]]+\]:\s+(\S+)"));
/// An anchor that a document sets by itself.
static ANCHOR: LazyLock<Regex> = LazyLock::new(|| constant(r#"<a\s+(?:id|name)="([^"]+)""#));
/// A link with its text.
static LINK_TEXT: LazyLock<Regex> = LazyLock::new(|| constant(r"\[([^\]]*)\]\([^)]*\)"));

#[expect(clippy::expect_used, reason = "constant expressions, which the tests compile")]
fn constant(expression: &str) -> Regex {
    Regex::new(expression).expect("a regular expression")
}

/// A line of a document.
#[derive(Debug)]
pub struct DocumentLine<'a> {
    pub number: usize,
    pub text: &'a str,
    /// True inside of a fenced block and for its fences.
    pub fenced: bool,
}

/// A link of a document, as it is written.
#[derive(Debug, PartialEq, Eq)]
pub struct DocumentLink {
    pub line: usize,
    pub target: String,
}

/// Returns the lines of a document.
pub fn lines(document: &str) -> Vec<DocumentLine<'_>> {
    let mut fence: Option<&str> = None;
    let mut lines = Vec::new();
    for (index, text) in document.lines().enumerate() {
        let trimmed = text.trim_start();
        let mark = ["```", "~~~"].into_iter().find(|mark| trimmed.starts_with(mark));
        let fenced = fence.is_some() || mark.is_some();
        fence = match (fence, mark) {
            (None, mark) => mark,
            (Some(open), Some(mark)) if open == mark => None,
            (open, _) => open,
        };
        lines.push(DocumentLine { number: index + 1, text, fenced });
    }
    lines
}

/// Returns the paragraphs, list items, headings and table rows outside of fenced blocks.
pub fn passages(document: &str) -> Vec<TextPassage> {
    let mut passages = Vec::new();
    let mut current = TextPassage::new(PassageKind::Prose);
    for line in lines(document) {
        let ends = line.fenced || line.text.trim().is_empty();
        if ends || starts_block(line.text) {
            passages.push(std::mem::replace(&mut current, TextPassage::new(PassageKind::Prose)));
        }
        if !ends {
            current.push(line.number, line.text);
        }
    }
    passages.push(current);
    passages.retain(|passage| !passage.is_empty());
    for passage in &mut passages {
        passage.blank_code();
    }
    passages
}

/// Returns the links outside of code: `[text](target)`, images, and definitions `[name]: target`.
pub fn links(document: &str) -> Vec<DocumentLink> {
    let mut links = Vec::new();
    for line in lines(document).iter().filter(|line| !line.fenced) {
        for found in LINK.captures_iter(&without_code(line.text)) {
            if let Some(target) = found.get(1).or_else(|| found.get(2)) {
                links.push(DocumentLink { line: line.number, target: target.as_str().to_owned() });
            }
        }
    }
    links
}

/// Returns the anchors that GitHub gives a document's headings, and those that it sets by `<a id="...">`.
pub fn anchors(document: &str) -> Vec<String> {
    let mut anchors: Vec<String> = Vec::new();
    for line in lines(document).iter().filter(|line| !line.fenced) {
        anchors.extend(ANCHOR.captures_iter(line.text).map(|found| found[1].to_owned()));
        let Some(title) = heading(line.text) else { continue };
        let anchor = anchor(title);
        // The second heading of the same text gets -1, the third -2.
        let numbered = |number: usize| format!("{anchor}-{number}");
        let mut unique = anchor.clone();
        let mut number = 0;
        while anchors.contains(&unique) {
            number += 1;
            unique = numbered(number);
        }
        anchors.push(unique);
    }
    anchors
}

/// Returns the title of a heading `# ...`.
fn heading(line: &str) -> Option<&str> {
    let level = line.bytes().take_while(|byte| *byte == b'#').count();
    let title = line[level..].strip_prefix(' ')?;
    (1..=6).contains(&level).then_some(title.trim())
}

fn anchor(title: &str) -> String {
    let text = LINK_TEXT.replace_all(title, "$1").to_lowercase();
    text.chars()
        .filter(|character| character.is_alphanumeric() || " -_".contains(*character))
        .map(|character| if character == ' ' { '-' } else { character })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str = "# The `vprof top` view\n\
        Text [one](a.md#b) and\n\
        more ![two](c.svg), `[no](d.md)`.\n\
        - item\n\
        \n\
        ```text\n\
        # not a heading [x](e.md)\n\
        ```\n\
        ## What's [here](f.md), now?\n\
        ## Same\n\
        ## Same\n\
        <a id=\"own\"></a>\n\
        [name]: g.md\n";

    #[test]
    fn text_is_split_at_blocks() {
        let found: Vec<(usize, String)> = passages(DOCUMENT)
            .into_iter()
            .map(|passage| (passage.line_at(0), passage.text.clone()))
            .collect();
        assert_eq!(
            found[0],
            (1, "# The `_________` view Text [one](a.md#b) and more ![two](c.svg), `__________`.".to_owned())
        );
        assert_eq!(found[1], (4, "- item".to_owned()));
        assert_eq!(found[2].0, 9);
    }

    #[test]
    fn links_outside_of_code_are_found() {
        let found: Vec<(usize, String)> =
            links(DOCUMENT).into_iter().map(|link| (link.line, link.target)).collect();
        let expected = [(2, "a.md#b"), (3, "c.svg"), (9, "f.md"), (13, "g.md")];
        assert_eq!(found, expected.map(|(line, target)| (line, target.to_owned())));
    }

    #[test]
    fn anchors_are_those_of_github() {
        assert_eq!(anchors(DOCUMENT), ["the-vprof-top-view", "whats-here-now", "same", "same-1", "own"]);
    }

    #[test]
    fn fences_of_another_kind_do_not_end_a_block() {
        let fenced: Vec<bool> = lines("~~~\n```\n# a\n~~~\nb").iter().map(|line| line.fenced).collect();
        assert_eq!(fenced, [true, true, true, true, false]);
    }
}
