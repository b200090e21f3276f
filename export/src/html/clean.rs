//! Text of the guest in a page.

pub(super) use display::clean::cut;
use serde_json::Value;

/// Length at which a name of the page is cut, characters.
const LONGEST: usize = 1_000;

/// Returns one line without characters that move, hide or reorder text, of bounded length.
pub(super) fn name(text: &str) -> String {
    cut(&display::clean::escaped(text), LONGEST)
}

/// Cleans all text in a value, names of members included. Values are as deep as the types that they come
/// from, which no guest chooses.
pub(super) fn value(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(name(&text)),
        Value::Array(list) => list.into_iter().map(self::value).collect(),
        Value::Object(members) => {
            members.into_iter().map(|(key, value)| (name(&key), self::value(value))).collect()
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_one_harmless_line_of_bounded_length() {
        assert_eq!(name("a\u{1b}[2J\u{202e}\nb"), "a\\x1b[2J\\u{202e}\\x0ab");
        assert_eq!(name(&"ä".repeat(10_000)).chars().count(), LONGEST);
        assert_eq!(cut("four", 4), "four");
        assert_eq!(cut("fiver", 4), "fiv…");
        let dirty = serde_json::json!({"k\n": ["\u{7}", 1, null]});
        assert_eq!(value(dirty), serde_json::json!({"k\\x0a": ["\\x07", 1, null]}));
    }
}
