//! Turns of phrase that comments, messages and documents do without, and the words to use instead.

use std::sync::LazyLock;

use regex::{Regex, RegexBuilder};

use super::finding::LintFinding;
use super::passage::{PassageKind, TextPassage};

/// A turn to avoid.
#[derive(Debug)]
struct WordRule {
    /// Name under which findings are counted.
    name: &'static str,
    pattern: Regex,
    /// Text in which the turn is right: a match that is inside of a match of this is not a finding.
    allowed: Option<Regex>,
    /// The words to use.
    instead: &'static str,
}

/// Name, pattern, where it is right (an empty pattern for never), and the words to use instead.
const TURNS: &[(&str, &str, &str, &str)] = &[
    ("tell", r"\b(?:tells?|told|telling)\b", "", "report, show, indicate, return or distinguish"),
    (
        "stand",
        r"\b(?:stands?|stood|standing)\b",
        r"\b(?:stands?|stood|standing) (?:for|out|in for|by)\b|\b(?:long|free)-standing\b|\bstand-(?:in|ins|alone|by)\b",
        "is, is at or is stopped",
    ),
    (
        "lie",
        r"\b(?:lies?|lying|lay)\b",
        r"\blay (?:out|down)\b|\blay (?:it|them|this|that) out\b",
        "is or is at",
    ),
    (
        "is no",
        r"\b(?:is|are|was|were|be|been|being) no\s",
        concat!(
            r"\bthere,? (?:\S+ ){0,2}(?:is|are|was|were|be|been) no\s",
            r"|\b(?:is|are|was|were|be|been|being) no (?:longer|more than|less than|fewer than|different|other than",
            r"|better|worse|larger|smaller|greater|higher|lower|slower|faster|older|newer|later|earlier|further",
            r"|shorter|wider|narrower|deeper|stronger|weaker|matter)\b",
        ),
        "is not a",
    ),
    (
        "is none",
        r"\b(?:is|are|was|were|be|been) (?-i:none)\b",
        r"\bthere,? (?:\S+ ){0,2}(?:is|are|was|were|be|been) none\b|\b(?:is|are|was|were|be|been) none of\b",
        "is not one or there is none",
    ),
    (
        "go on",
        r"\b(?:goes|go|went|going|gone) on\b",
        r"\b(?:goes|go|went|going|gone) on (?:the|an?|its|their|top|standard|stdout|stderr|disk|one|another|both)\b",
        "continue, run or be in progress",
    ),
    ("be had", r"\b(?:is|are|was|were|be|been|being) had\b", "", "available"),
    (
        "no more",
        concat!(
            r"\b(no more)(?:[.,;:!?)]|$| (?:and|or|but|when|once|after|until|if|since|as|while|in|at|by|because|then",
            r"|so|that|which|where|of)\b)",
        ),
        r"\bthere (?:is|are|was|were) no more\b",
        "no longer",
    ),
    (
        "of its own",
        // With a noun after it, as in "the time of its own threads", it is plain English.
        concat!(
            r"\b(of (?:its|their|his|her|our|your|my|one's) own)(?:[^\w\s]|$| (?:and|or|but|that|which|who|where|when",
            r"|while|if|in|on|at|by|with|without|for|from|to|of|than|as|per|after|before|between|under|since|so",
            r"|until|unless|into|is|are|was|were|has|have|had|can|does|do|may|must|it|they|then|there|too|again)\b)",
        ),
        concat!(
            r"\bof (?:its|their|his|her|our|your|my|one's) own (?:accord|making)\b",
            r"|\b(?:one|some|any|none|all|most|each|several|part) of (?:its|their|his|her|our|your|my|one's) own\b",
        ),
        "its own or separate",
    ),
    ("anew", r"\banew\b", "", "again"),
    ("beside", r"\bbeside\b", "", "next to or besides"),
    (
        "behind",
        r"\bbehind\b",
        concat!(
            r"\b(?:left|leaves?|leaving|lag\w*|fall\w*|fell|far|ns|us|µs|ms|s|seconds|ticks|reasons?|ideas?) behind\b",
            r"|\bleav\w* (?:\w+ ){1,3}behind\b|\bleft (?:\w+ ){1,3}behind\b",
            r"|\bbehind (?:a|an|the) (?:\w+ )?(?:feature|flag|lock|mutex|proxy|nat|firewall|pointer|reference|stub)\b",
        ),
        "after or past",
    ),
    ("dear", r"\bdear(?:er|est|ly)?\b", "", "expensive"),
    ("bear", r"\b(?:bears?|bore|borne)\b", r"\b(?:bears?|borne) in mind\b", "tolerate, have or carry"),
    ("whoever", r"\b(?:whoever|whomever|whosever|whosoever)\b", "", "the caller, the reader or the user"),
    ("in the mean", r"\bin the mean\b", r"\bin the mean time\b", "on average"),
    ("looked at", r"\blooked at\b", "", "checked, scanned or read"),
    (
        "look (noun)",
        r"\b(?:each|every|per|last|latest|next) look\b|\b(?:two|several|between|of the|latest) looks\b",
        "",
        "refresh, check or scan",
    ),
    ("truth", r"\b(?:truly|the truth)\b", "", "measured, exact or the true value"),
    ("in the place of", r"\bin the place of\b", "", "instead of"),
    ("none but", r"\b(?-i:none|nobody) but\b", "", "only"),
    ("farewell", r"\bfarewells?\b", "", "close or detach"),
    ("let be", r"\b(?:is|are|was|were|be) let be\b", "", "is kept"),
    // The project's words for its own things.
    ("census", r"\bcensus(?:es)?\b", "", "task-state sampling or sampled"),
    ("books", r"\bbooks\b", "", "CPU accounting"),
    ("ledger", r"\bledgers?\b", "", "accounting poller"),
    ("tripwire", r"\btripwires?\b", "", "probe"),
    ("stretch", r"\bstretch(?:es)?\b", r"\bdebian (?:9 )?stretch\b", "segment or interval"),
    (
        "life (of a process)",
        r"\b(?:this|one|each|which|every) life\b|\b(?:all|two|several|their|equal) lives\b|\blives of\b",
        // The glossary defines the word by it.
        r"\bone life of a process\b",
        "instance",
    ),
];

/// Words that the documentation of an item does not open with.
const OPENERS: [&str; 6] = ["What", "Whether", "Where", "How", "Who", "Whose"];

static COMPILED: LazyLock<Vec<WordRule>> = LazyLock::new(|| {
    #[expect(clippy::expect_used, reason = "a constant expression, which the tests compile")]
    let compiled = |pattern: &str| {
        RegexBuilder::new(pattern).case_insensitive(true).build().expect("a regular expression")
    };
    TURNS
        .iter()
        .map(|(name, pattern, allowed, instead)| WordRule {
            name,
            pattern: compiled(pattern),
            allowed: (!allowed.is_empty()).then(|| compiled(allowed)),
            instead,
        })
        .collect()
});

/// Checks a passage of any kind of file.
pub fn check(passage: &TextPassage) -> Vec<LintFinding> {
    let mut findings: Vec<LintFinding> = COMPILED.iter().flat_map(|turn| turn.findings(passage)).collect();
    findings.extend(opener(passage));
    findings
}

impl WordRule {
    fn findings(&self, passage: &TextPassage) -> Vec<LintFinding> {
        let allowed: Vec<_> =
            self.allowed.iter().flat_map(|allowed| allowed.find_iter(&passage.text)).collect();
        let is_allowed = |found: &regex::Match<'_>| {
            allowed.iter().any(|right| right.start() <= found.start() && found.end() <= right.end())
        };
        // A pattern that needs context has the turn itself as its group.
        let found =
            self.pattern.captures_iter(&passage.text).filter_map(|found| found.get(1).or(found.get(0)));
        found
            .filter(|found| !is_allowed(found))
            .map(|found| {
                let turn = found.as_str().trim();
                let text = format!("\"{turn}\": use {}", self.instead);
                LintFinding::new(self.name, passage.line_at(found.start()), text)
            })
            .collect()
    }
}

/// Checks how documentation of an item opens: a type's with a noun, a function's with a verb.
fn opener(passage: &TextPassage) -> Option<LintFinding> {
    if passage.kind != PassageKind::Documentation || !passage.opens_comment {
        return None;
    }
    let first = passage.text.split(|end: char| !end.is_alphanumeric()).next()?;
    let opener = OPENERS.into_iter().find(|opener| *opener == first)?;
    let text = format!("opens with \"{opener}\": use a noun for a thing, a verb for a function");
    Some(LintFinding::new("opener", passage.line_at(0), text))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sentences, each after the names of the findings that it has. They are in a file that is not Rust, so
    /// that they are not checked themselves.
    const CASES: &str = include_str!("wording_cases.txt");

    fn names(text: &str, kind: PassageKind) -> Vec<&'static str> {
        let mut passage = TextPassage::new(kind);
        passage.opens_comment = true;
        passage.push(1, text);
        passage.blank_code();
        check(&passage).into_iter().map(|finding| finding.rule).collect()
    }

    #[test]
    fn every_case_has_its_findings_and_no_others() {
        let mut seen = Vec::new();
        for line in CASES.lines().filter(|line| !line.is_empty()) {
            let (expected, sentence) = line.split_once(": ").unwrap();
            let expected: Vec<&str> =
                if expected == "ok" { Vec::new() } else { expected.split(" + ").collect() };
            assert_eq!(names(sentence, PassageKind::Prose), expected, "{sentence}");
            seen.extend(expected);
        }
        for (name, ..) in TURNS {
            assert!(seen.contains(name), "no case for {name}");
        }
    }

    #[test]
    fn documentation_opens_with_a_noun_or_a_verb() {
        assert_eq!(names("Whether it runs.", PassageKind::Documentation), ["opener"]);
        assert_eq!(names("How: x", PassageKind::Documentation), ["opener"]);
        assert!(names("Whether it runs.", PassageKind::Comment).is_empty());
        assert!(names("Whatever runs.", PassageKind::Documentation).is_empty());
        assert!(names("Configuration of it.", PassageKind::Documentation).is_empty());
    }

    #[test]
    fn a_finding_has_the_line_of_its_first_word() {
        let mut passage = TextPassage::new(PassageKind::Comment);
        passage.push(3, "It is so no");
        passage.push(4, "more.");
        let findings = check(&passage);
        assert_eq!(findings, [LintFinding::new("no more", 3, "\"no more\": use no longer".to_owned())]);
    }
}
