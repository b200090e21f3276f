//! Keys, from the bytes that a terminal sends.

/// A key, with its modifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyPress {
    /// A character.
    Char(char),
    /// A letter with the control key, in lower case.
    Ctrl(char),
    Enter,
    Escape,
    Tab,
    /// Tab with the shift key.
    BackTab,
    Backspace,
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
}

/// Bytes of the longest key; a longer sequence is ignored.
const LONGEST: usize = 16;

/// Parses keys from bytes, which may come in any pieces.
#[derive(Debug, Default)]
pub struct KeyParser {
    pending: Vec<u8>,
}

impl KeyParser {
    /// Returns the keys that end in these bytes.
    pub fn feed(&mut self, bytes: &[u8]) -> Vec<KeyPress> {
        let mut keys = Vec::new();
        for byte in bytes {
            self.pending.push(*byte);
            self.take(&mut keys);
        }
        keys
    }

    /// Returns true after the first bytes of a sequence, which may be a key by themselves: see
    /// [`KeyParser::flush`].
    pub fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Ends a sequence, as no byte follows: a single escape byte is the key of that name.
    pub fn flush(&mut self) -> Option<KeyPress> {
        let pending = std::mem::take(&mut self.pending);
        (pending == [ESC]).then_some(KeyPress::Escape)
    }

    fn take(&mut self, keys: &mut Vec<KeyPress>) {
        match read(&self.pending) {
            KeyMatch::More if self.pending.len() < LONGEST => {}
            KeyMatch::More | KeyMatch::Nothing => self.pending.clear(),
            KeyMatch::Key(key) => {
                keys.push(key);
                self.pending.clear();
            }
            KeyMatch::EscapeThen => {
                keys.push(KeyPress::Escape);
                self.pending.remove(0);
                self.take(keys);
            }
        }
    }
}

const ESC: u8 = 0x1b;

/// Meaning of the bytes so far.
enum KeyMatch {
    /// A key.
    Key(KeyPress),
    /// A key without a meaning here.
    Nothing,
    /// The beginning of a key.
    More,
    /// The escape key, and then another key.
    EscapeThen,
}

/// Parses the bytes of one key (ECMA-48: CSI and SS3; xterm's "PC-Style Function Keys").
fn read(bytes: &[u8]) -> KeyMatch {
    match bytes {
        [] | [ESC] | [ESC, b'[' | b'O'] => KeyMatch::More,
        [ESC, b'[', parameters @ .., last] => match last {
            0x40..=0x7e => named(parameters, *last),
            0x20..=0x3f => KeyMatch::More,
            _ => KeyMatch::Nothing,
        },
        [ESC, b'O', last] => named(&[], *last),
        [ESC, ..] => KeyMatch::EscapeThen,
        [b'\r' | b'\n'] => KeyMatch::Key(KeyPress::Enter),
        [b'\t'] => KeyMatch::Key(KeyPress::Tab),
        [0x08 | 0x7f] => KeyMatch::Key(KeyPress::Backspace),
        [control @ 0x01..=0x1a] => KeyMatch::Key(KeyPress::Ctrl(char::from(control + b'a' - 1))),
        [0x00 | 0x1c..=0x1f] => KeyMatch::Nothing,
        text => match std::str::from_utf8(text) {
            Ok(text) => text.chars().next().map_or(KeyMatch::Nothing, |c| KeyMatch::Key(KeyPress::Char(c))),
            Err(error) if error.error_len().is_none() => KeyMatch::More,
            Err(_) => KeyMatch::Nothing,
        },
    }
}

fn named(parameters: &[u8], last: u8) -> KeyMatch {
    let key = match (last, parameters) {
        (b'A', _) => KeyPress::Up,
        (b'B', _) => KeyPress::Down,
        (b'H', _) | (b'~', b"1" | b"7") => KeyPress::Home,
        (b'F', _) | (b'~', b"4" | b"8") => KeyPress::End,
        (b'Z', _) => KeyPress::BackTab,
        (b'~', b"5") => KeyPress::PageUp,
        (b'~', b"6") => KeyPress::PageDown,
        (b'M', []) => KeyPress::Enter,
        _ => return KeyMatch::Nothing,
    };
    KeyMatch::Key(key)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn keys_of_usual_terminals() {
        let cases: [(&[u8], &[KeyPress]); 9] = [
            (b"q?\r\t", &[KeyPress::Char('q'), KeyPress::Char('?'), KeyPress::Enter, KeyPress::Tab]),
            (b"\x1b[A\x1bOB", &[KeyPress::Up, KeyPress::Down]),
            (b"\x1b[5~\x1b[6~", &[KeyPress::PageUp, KeyPress::PageDown]),
            (b"\x1b[H\x1b[4~\x1b[1;5F", &[KeyPress::Home, KeyPress::End, KeyPress::End]),
            (b"\x1b[Z\x7f\x03", &[KeyPress::BackTab, KeyPress::Backspace, KeyPress::Ctrl('c')]),
            ("ß漢".as_bytes(), &[KeyPress::Char('ß'), KeyPress::Char('漢')]),
            (b"\x1bx", &[KeyPress::Escape, KeyPress::Char('x')]),
            (b"\x1b\x1b[A", &[KeyPress::Escape, KeyPress::Up]),
            (b"\x1b[200~a\xff\x1b[<0;1;1Mb", &[KeyPress::Char('a'), KeyPress::Char('b')]),
        ];
        for (bytes, keys) in cases {
            assert_eq!(KeyParser::default().feed(bytes), keys, "{bytes:?}");
            let mut parser = KeyParser::default();
            let pieces: Vec<_> = bytes.iter().flat_map(|byte| parser.feed(&[*byte])).collect();
            assert_eq!(pieces, keys, "{bytes:?} in pieces");
        }
    }

    #[test]
    fn a_single_escape_is_a_key_once_no_byte_follows() {
        let mut parser = KeyParser::default();
        assert_eq!(parser.feed(b"\x1b"), []);
        assert!(parser.is_pending());
        assert_eq!(parser.flush(), Some(KeyPress::Escape));
        assert_eq!((parser.flush(), parser.is_pending()), (None, false));
        assert_eq!((parser.feed(b"\x1b["), parser.flush()), (vec![], None));
    }

    proptest! {
        #[test]
        fn any_bytes_end(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut parser = KeyParser::default();
            prop_assert!(parser.feed(&bytes).len() <= bytes.len());
            prop_assert!(parser.pending.len() < LONGEST);
        }
    }
}
