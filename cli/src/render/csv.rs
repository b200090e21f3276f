//! Comma-separated values by RFC 4180: lines end with CR LF, quotes are doubled. What a terminal could take for a command
//! is escaped, as in all text; JSON has it as it is.

use text::clean::escaped;

/// One line.
pub fn line<T: AsRef<str>>(fields: &[T]) -> String {
    let fields: Vec<String> = fields.iter().map(|text| field(text.as_ref())).collect();
    fields.join(",") + "\r\n"
}

fn field(text: &str) -> String {
    let text = escaped(text);
    if text.contains([',', '"']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.into_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_quoted_and_escaped_where_they_have_to_be() {
        assert_eq!(line(&["plain", "a,b"]), "plain,\"a,b\"\r\n");
        assert_eq!(line(&["say \"x\"\n"]), "\"say \"\"x\"\"\\x0a\"\r\n");
    }
}
