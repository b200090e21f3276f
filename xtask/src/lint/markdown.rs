//! The lines, headings and links of a Markdown document.

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

/// Returns the links outside of code: `[text](target)`, images, and definitions `[name]: target`.
pub fn links(document: &str) -> Vec<DocumentLink> {
    let mut links = Vec::new();
    for line in lines(document).iter().filter(|line| !line.fenced) {
        let text = without_code(line.text);
        let definition = text.trim_start().strip_prefix('[').and_then(|rest| rest.split_once("]: "));
        let inline = text.split("](").skip(1).map(|rest| rest.trim_start_matches([' ', '<']));
        let targets = definition.map(|(_, rest)| rest.trim_start()).into_iter().chain(inline);
        links.extend(targets.map(|rest| {
            let end = |end: char| end.is_whitespace() || "<>)".contains(end);
            let target = rest.split(end).next().unwrap_or_default();
            DocumentLink { line: line.number, target: target.to_owned() }
        }));
    }
    links
}

/// Returns `text` without what is between two backticks, or two equal runs of them.
fn without_code(text: &str) -> String {
    let mut kept = String::new();
    let mut rest = text;
    while let Some((before, from)) = rest.split_once('`') {
        let inside = from.trim_start_matches('`');
        let run = "`".repeat(1 + from.len() - inside.len());
        kept.push_str(before);
        // A run without a partner is text.
        rest = inside.split_once(&run).map_or(inside, |(_, after)| after);
    }
    kept + rest
}

/// Returns the anchors that GitHub gives a document's headings, and those that it sets by `<a id="...">`.
pub fn anchors(document: &str) -> Vec<String> {
    let mut anchors: Vec<String> = Vec::new();
    for line in lines(document).iter().filter(|line| !line.fenced) {
        for mark in ["<a id=\"", "<a name=\""] {
            let set = line.text.split(mark).skip(1).filter_map(|rest| rest.split_once('"'));
            anchors.extend(set.map(|(name, _)| name.to_owned()));
        }
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
    let mut text = title.to_lowercase();
    // Of a link only its text counts.
    while let Some((start, rest)) = text.split_once("](") {
        let after = rest.split_once(')').map_or("", |(_, after)| after);
        text = format!("{start}{after}");
    }
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
    fn links_outside_of_code_are_found() {
        let found: Vec<(usize, String)> =
            links(DOCUMENT).into_iter().map(|link| (link.line, link.target)).collect();
        let expected = [(2, "a.md#b"), (3, "c.svg"), (9, "f.md"), (13, "g.md")];
        assert_eq!(found, expected.map(|(line, target)| (line, target.to_owned())));
    }

    #[test]
    fn code_is_left_out() {
        for (text, left) in
            [("a `b c` d", "a  d"), ("``x ` y`` z", " z"), ("no ` partner", "no  partner"), ("`é` é", " é")]
        {
            assert_eq!(without_code(text), left);
        }
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
