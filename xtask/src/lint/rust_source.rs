//! Comments and messages of a Rust source file.
//!
//! A small scanner that knows comments, string and character literals, and nothing else of the language.

use super::passage::{PassageKind, TextPassage, starts_block};

/// Words that a string literal has at least if it is a message.
const MESSAGE_WORDS: usize = 3;

/// A comment or a string literal, with the line that it starts on.
#[derive(Debug, PartialEq, Eq)]
enum SourceToken<'a> {
    /// Everything from `//` to the end of the line.
    LineComment { line: usize, text: &'a str },
    /// Everything from `/*` to the matching `*/`.
    BlockComment { line: usize, text: &'a str },
    /// The inside of the quotes; `raw` without escapes.
    Literal { line: usize, text: &'a str, raw: bool },
}

/// Scanner over the text of a file.
#[derive(Debug)]
struct SourceScanner<'a> {
    source: &'a str,
    position: usize,
    line: usize,
}

impl<'a> SourceScanner<'a> {
    fn new(source: &'a str) -> Self {
        Self { source, position: 0, line: 1 }
    }

    fn rest(&self) -> &'a str {
        &self.source[self.position..]
    }

    /// Advances by `length` bytes, returns them and counts their lines.
    fn take(&mut self, length: usize) -> &'a str {
        let taken = &self.rest()[..length];
        self.line += taken.matches('\n').count();
        self.position += length;
        taken
    }

    fn line_comment(&mut self) -> SourceToken<'a> {
        let line = self.line;
        let length = self.rest().find('\n').unwrap_or(self.rest().len());
        SourceToken::LineComment { line, text: self.take(length) }
    }

    /// Takes a block comment. Block comments nest in Rust.
    fn block_comment(&mut self) -> SourceToken<'a> {
        let line = self.line;
        let rest = self.rest();
        let mut depth = 0;
        let mut length = 0;
        while length < rest.len() {
            if rest[length..].starts_with("/*") {
                depth += 1;
                length += 2;
            } else if rest[length..].starts_with("*/") {
                depth -= 1;
                length += 2;
                if depth == 0 {
                    break;
                }
            } else {
                length += rest[length..].chars().next().map_or(1, char::len_utf8);
            }
        }
        SourceToken::BlockComment { line, text: self.take(length) }
    }

    /// Takes a literal whose opening quote is next.
    fn escaped_literal(&mut self) -> SourceToken<'a> {
        self.take(1);
        let line = self.line;
        let mut escaped = false;
        let length = self
            .rest()
            .find(|character| {
                let ends = character == '"' && !escaped;
                escaped = character == '\\' && !escaped;
                ends
            })
            .unwrap_or(self.rest().len());
        let text = self.take(length);
        self.take(usize::from(!self.rest().is_empty()));
        SourceToken::Literal { line, text, raw: false }
    }

    /// Takes a raw literal whose `#` or opening quote is next; `None` for a raw identifier.
    fn raw_literal(&mut self) -> Option<SourceToken<'a>> {
        let hashes = self.rest().bytes().take_while(|byte| *byte == b'#').count();
        if !self.rest()[hashes..].starts_with('"') {
            return None;
        }
        self.take(hashes + 1);
        let line = self.line;
        let end = format!("\"{}", "#".repeat(hashes));
        let length = self.rest().find(&end).unwrap_or(self.rest().len());
        let text = self.take(length);
        self.take(end.len().min(self.rest().len()));
        Some(SourceToken::Literal { line, text, raw: true })
    }

    /// Skips a character literal or the quote of a lifetime.
    fn quote(&mut self) {
        self.take(1);
        let mut characters = self.rest().chars();
        match (characters.next(), characters.next()) {
            (Some('\\'), Some(escaped)) => {
                let after = 1 + escaped.len_utf8();
                let length = self.rest()[after..].find('\'').map_or(0, |length| after + length + 1);
                self.take(length);
            }
            (Some(character), Some('\'')) => {
                self.take(character.len_utf8() + 1);
            }
            // A lifetime: its name is an identifier like any other.
            _ => {}
        }
    }

    /// Skips an identifier or number. Returns a literal if it turns out to be the prefix of one.
    fn word(&mut self) -> Option<SourceToken<'a>> {
        let length = self
            .rest()
            .find(|next: char| !next.is_alphanumeric() && next != '_')
            .unwrap_or(self.rest().len());
        let word = self.take(length);
        match (word, self.rest().as_bytes().first()) {
            ("b" | "c", Some(b'"')) => {
                // Bytes are data, not messages.
                self.escaped_literal();
                None
            }
            ("r", Some(b'"' | b'#')) => self.raw_literal(),
            ("br" | "cr", Some(b'"' | b'#')) => {
                self.raw_literal();
                None
            }
            _ => None,
        }
    }
}

impl<'a> Iterator for SourceScanner<'a> {
    type Item = SourceToken<'a>;

    fn next(&mut self) -> Option<SourceToken<'a>> {
        loop {
            let rest = self.rest();
            let next = rest.chars().next()?;
            if rest.starts_with("//") {
                return Some(self.line_comment());
            }
            if rest.starts_with("/*") {
                return Some(self.block_comment());
            }
            match next {
                '"' => return Some(self.escaped_literal()),
                '\'' => self.quote(),
                _ if next.is_alphanumeric() || next == '_' => {
                    if let Some(literal) = self.word() {
                        return Some(literal);
                    }
                }
                _ => {
                    self.take(next.len_utf8());
                }
            }
        }
    }
}

/// Returns the comments and messages of a source file in the order of their lines, without code in backticks.
pub fn passages(source: &str) -> Vec<TextPassage> {
    let mut collector = PassageCollector::default();
    for token in SourceScanner::new(source) {
        match token {
            SourceToken::LineComment { line, text } => {
                let (kind, body) = comment_body(text);
                collector.comment(kind, line, body);
            }
            SourceToken::BlockComment { line, text } => {
                collector.end();
                let kind = match text.as_bytes().get(2) {
                    Some(b'!') => PassageKind::Documentation,
                    Some(b'*') if text.len() > "/**/".len() => PassageKind::Documentation,
                    _ => PassageKind::Comment,
                };
                for (index, body) in text.trim_end_matches("*/").lines().enumerate() {
                    let body = body.trim().trim_start_matches(['/', '*', '!']);
                    collector.comment(kind, line + index, body);
                }
                collector.end();
            }
            SourceToken::Literal { line, text, raw } => collector.literal(line, text, raw),
        }
    }
    collector.finish()
}

/// Returns the kind of a line comment and its text.
fn comment_body(text: &str) -> (PassageKind, &str) {
    // Four slashes and more are an ordinary comment to rustdoc.
    let documentation = (text.starts_with("///") && !text.starts_with("////")) || text.starts_with("//!");
    if documentation {
        (PassageKind::Documentation, &text[3..])
    } else {
        (PassageKind::Comment, text.trim_start_matches('/'))
    }
}

/// Lines of comments on their way into passages.
#[derive(Debug, Default)]
struct PassageCollector {
    passages: Vec<TextPassage>,
    current: Option<TextPassage>,
    /// The kind of the comment that the last line belonged to, and that line.
    last: Option<(PassageKind, usize)>,
    in_fence: bool,
}

impl PassageCollector {
    fn comment(&mut self, kind: PassageKind, line: usize, body: &str) {
        let continues = self.last.is_some_and(|(last, number)| last == kind && number + 1 == line);
        if !continues {
            self.end();
        }
        self.last = Some((kind, line));
        if body.trim_start().starts_with("```") {
            self.end_passage();
            self.in_fence = !self.in_fence;
            return;
        }
        if self.in_fence {
            return;
        }
        if body.trim().is_empty() || starts_block(body) {
            self.end_passage();
        }
        if body.trim().is_empty() {
            return;
        }
        let passage = self.current.get_or_insert_with(|| TextPassage::new(kind));
        passage.opens_comment |= !continues;
        passage.push(line, body);
    }

    fn literal(&mut self, line: usize, text: &str, raw: bool) {
        let text = if raw { text.to_owned() } else { without_escapes(text) };
        let text = without_placeholders(&text);
        if !is_message(&text) {
            return;
        }
        let mut passage = TextPassage::new(PassageKind::Message);
        for (index, part) in text.lines().enumerate() {
            passage.push(line + index, part);
        }
        self.keep(passage);
    }

    fn keep(&mut self, mut passage: TextPassage) {
        if !passage.is_empty() {
            passage.blank_code();
            self.passages.push(passage);
        }
    }

    /// Ends a paragraph.
    fn end_passage(&mut self) {
        if let Some(passage) = self.current.take() {
            self.keep(passage);
        }
    }

    /// Ends a whole comment.
    fn end(&mut self) {
        self.end_passage();
        self.last = None;
        self.in_fence = false;
    }

    fn finish(mut self) -> Vec<TextPassage> {
        self.end();
        self.passages.sort_by_key(|passage| passage.line_at(0));
        self.passages
    }
}

/// Replaces escapes of a literal by blanks. An escaped line break stays one, so that lines can be counted.
fn without_escapes(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        if character != '\\' {
            plain.push(character);
            continue;
        }
        match characters.next() {
            Some('\n') => plain.push('\n'),
            Some('x') => {
                characters.next();
                characters.next();
                plain.push(' ');
            }
            Some('u') => {
                for part in characters.by_ref() {
                    if part == '}' {
                        break;
                    }
                }
                plain.push(' ');
            }
            _ => plain.push(' '),
        }
    }
    plain
}

/// Replaces the insides of `{...}`, which are names of the program.
fn without_placeholders(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut depth = 0_usize;
    for character in text.chars() {
        match character {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            '\n' => {}
            _ if depth > 0 => continue,
            _ => {}
        }
        plain.push(character);
    }
    plain
}

/// True for a literal of several words that is neither SQL nor a piece of code.
fn is_message(text: &str) -> bool {
    let trimmed = text.trim_start();
    let sql = ["SELECT ", "INSERT ", "CREATE ", "UPDATE ", "DELETE ", "WITH ", "PRAGMA "];
    if sql.iter().any(|start| trimmed.starts_with(start)) {
        return false;
    }
    let word = |part: &&str| {
        let part = part.trim_matches(|mark: char| mark.is_ascii_punctuation());
        !part.is_empty() && part.chars().all(|letter| letter.is_alphabetic() || "'-".contains(letter))
    };
    text.split_whitespace().filter(word).count() >= MESSAGE_WORDS
}

/// Returns the numbers of the lines that have a comment, for the check of widths.
pub fn comment_lines(source: &str) -> Vec<usize> {
    let mut lines = Vec::new();
    for token in SourceScanner::new(source) {
        match token {
            SourceToken::LineComment { line, .. } => lines.push(line),
            SourceToken::BlockComment { line, text } => lines.extend((line..).take(text.lines().count())),
            SourceToken::Literal { .. } => {}
        }
    }
    lines.dedup();
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(source: &str) -> Vec<(PassageKind, usize, String)> {
        let facts = |passage: TextPassage| (passage.kind, passage.line_at(0), passage.text.clone());
        passages(source).into_iter().map(facts).collect()
    }

    #[test]
    fn comments_are_joined_by_paragraph() {
        use PassageKind::{Comment, Documentation};
        let source =
            "//! Head\n//! goes\n//!\n//! - item\nfn f() {} // tail\n/// `a b`\n/* block\n * two */\n";
        assert_eq!(
            texts(source),
            [
                (Documentation, 1, "Head goes".to_owned()),
                (Documentation, 4, "- item".to_owned()),
                (Comment, 5, "tail".to_owned()),
                (Documentation, 6, "`___`".to_owned()),
                (Comment, 7, "block two".to_owned()),
            ]
        );
    }

    #[test]
    fn only_the_first_paragraph_opens() {
        let opening: Vec<bool> =
            passages("/// A\n///\n/// B\n// C").iter().map(|passage| passage.opens_comment).collect();
        assert_eq!(opening, [true, false, true]);
    }

    #[test]
    fn fenced_code_is_left_out() {
        assert_eq!(texts("/// A\n/// ```\n/// let b;\n/// ```\n/// C").len(), 2);
    }

    #[test]
    fn messages_are_found_and_code_is_not() {
        for (source, message) in [
            (r#"f("cannot open the file")"#, Some("cannot open the file")),
            (r#"f("cannot open {name}: is it there")"#, Some("cannot open {}: is it there")),
            (r##"f(r#"a raw "one" here"#)"##, Some("a raw \"one\" here")),
            ("f(\"over two \\\n    lines here\")", Some("over two lines here")),
            (r#"f(b"bytes have no message")"#, None),
            (r#"f("two words")"#, None),
            (r#"f("SELECT a FROM b WHERE c")"#, None),
            (r#"f('"', "short", '"')"#, None),
            (r#"fn f<'a>(x: &'a str) { g('\'', "one two three") }"#, Some("one two three")),
            (r#"f("\x1b[1m a b c \u{202e}d \" e")"#, Some("[1m a b c  d   e")),
            (r#"let r#type = "the type of it";"#, Some("the type of it")),
            ("let x = 1; // \"not a message\"", None),
        ] {
            let found: Vec<String> = texts(source)
                .into_iter()
                .filter(|(kind, ..)| *kind == PassageKind::Message)
                .map(|(.., text)| text)
                .collect();
            assert_eq!(found.first().map(String::as_str), message, "{source}");
        }
    }

    #[test]
    fn lines_are_counted_through_everything() {
        let source = "/* a\n/* b */\n*/\nlet x = \"one\n two three\"; // c\nlet y = '\\n';\n// d";
        let found: Vec<usize> = texts(source).iter().map(|(_, line, _)| *line).collect();
        assert_eq!(found, [1, 4, 5, 7]);
        assert_eq!(comment_lines(source), [1, 2, 3, 5, 7]);
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_scanned(source in "[a-z \n'\"/*#\\\\`{}é]{0,60}") {
            let lines = source.matches('\n').count() + 1;
            for passage in passages(&source) {
                proptest::prop_assert!((1..=lines).contains(&passage.line_at(0)));
            }
            proptest::prop_assert!(comment_lines(&source).iter().all(|line| (1..=lines).contains(line)));
        }
    }
}
