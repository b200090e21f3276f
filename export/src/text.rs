//! Text of the guest, made harmless for those who read an export.

use std::borrow::Cow;
use std::fmt::Write as _;

use sampler::batch::Mode;
use sampler::report::{Owner, RecordedFunction, Recording};

use crate::Root;

/// `text` in which control characters, and characters that reorder or hide text, are escapes: it is one line, and moves no
/// cursor.
pub fn plain(text: &str) -> Cow<'_, str> {
    without(text, |_| false)
}

/// [`plain`] as text in XML: what is no character of it (XML 1.0, section 2.2) is replaced.
pub fn xml(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in plain(text).chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// [`plain`], with all of `separators` as escapes, too.
pub fn plain_without<'a>(text: &'a str, separators: &[char]) -> Cow<'a, str> {
    without(text, |c| separators.contains(&c))
}

fn without(text: &str, separates: impl Fn(char) -> bool) -> Cow<'_, str> {
    let escaped = |c: char| is_unsafe(c) || separates(c);
    if !text.chars().any(escaped) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if escaped(c) {
            // Writing to a String can't fail.
            let _ = match u32::from(c) {
                code @ 0..=0xff => write!(safe, "\\x{code:02x}"),
                code => write!(safe, "\\u{{{code:x}}}"),
            };
        } else {
            safe.push(c);
        }
    }
    Cow::Owned(safe)
}

/// Control characters, and the format characters that reorder or hide text (Unicode "Bidi_Control", zero widths, line and
/// paragraph separators).
fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// In place of an empty name.
const UNKNOWN: &str = "[unknown]";

/// What a function is called; never empty.
pub fn symbol(function: &RecordedFunction) -> &str {
    if function.symbol.is_empty() { UNKNOWN } else { &function.symbol }
}

/// What a mode is called in table `mode`.
pub(crate) fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::User => "user",
        Mode::Kernel => "kernel",
        Mode::HardIrq => "hardirq",
        Mode::SoftIrq => "softirq",
        Mode::Nmi => "nmi",
        Mode::Idle => "idle",
        Mode::Boot => "boot",
        Mode::Unknown => "unknown",
    }
}

/// What stands above the outermost frame of an owner's stacks: nothing, one name or two.
pub fn roots(recording: &Recording, owner: &Owner, root: Root) -> Vec<String> {
    let process = recording.process_of(owner);
    let mut names = match (root, process) {
        (Root::None, _) => Vec::new(),
        (_, None) => vec![owner.name.clone()],
        (Root::Process, Some(process)) => vec![process.comm.clone()],
        (Root::Thread, Some(process)) => {
            let tid = owner.tid.map_or_else(String::new, |tid| format!("/{tid}"));
            vec![process.instance(), format!("{}{tid}", owner.name)]
        }
    };
    names.iter_mut().filter(|name| name.is_empty()).for_each(|name| UNKNOWN.clone_into(name));
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_moves_or_hides_text_becomes_an_escape() {
        assert_eq!(plain("std::vec<int> größe"), "std::vec<int> größe");
        assert_eq!(plain("a\x1b[2J\nb\u{202e}"), "a\\x1b[2J\\x0ab\\u{202e}");
        assert_eq!(plain_without("a;b", &[';']), "a\\x3bb");
    }
}
