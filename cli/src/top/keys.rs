//! Keys, out of the bytes that a terminal sends for them.

/// A key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
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

/// No key has more bytes; what is longer is none.
const LONGEST: usize = 16;

/// Puts keys together from bytes, which may come in any pieces.
#[derive(Debug, Default)]
pub struct Parser {
    pending: Vec<u8>,
}

impl Parser {
    /// The keys that end in these bytes.
    pub fn feed(&mut self, bytes: &[u8]) -> Vec<Key> {
        let mut keys = Vec::new();
        for byte in bytes {
            self.pending.push(*byte);
            self.take(&mut keys);
        }
        keys
    }

    /// Something has begun that may be a key of its own: see [`Parser::flush`].
    pub fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Nothing follows: an escape that stands alone was the key of that name.
    pub fn flush(&mut self) -> Option<Key> {
        let pending = std::mem::take(&mut self.pending);
        (pending == [ESC]).then_some(Key::Escape)
    }

    fn take(&mut self, keys: &mut Vec<Key>) {
        match read(&self.pending) {
            Read::More if self.pending.len() < LONGEST => {}
            Read::More | Read::Nothing => self.pending.clear(),
            Read::Key(key) => {
                keys.push(key);
                self.pending.clear();
            }
            Read::EscapeThen => {
                keys.push(Key::Escape);
                self.pending.remove(0);
                self.take(keys);
            }
        }
    }
}

const ESC: u8 = 0x1b;

enum Read {
    Key(Key),
    /// A key that means nothing here.
    Nothing,
    More,
    /// The key of that name, and then another.
    EscapeThen,
}

/// What these bytes are (ECMA-48: CSI and SS3; xterm's "PC-Style Function Keys").
fn read(bytes: &[u8]) -> Read {
    match bytes {
        [] | [ESC] | [ESC, b'[' | b'O'] => Read::More,
        [ESC, b'[', parameters @ .., last] => match last {
            0x40..=0x7e => named(parameters, *last),
            0x20..=0x3f => Read::More,
            _ => Read::Nothing,
        },
        [ESC, b'O', last] => named(&[], *last),
        [ESC, ..] => Read::EscapeThen,
        [b'\r' | b'\n'] => Read::Key(Key::Enter),
        [b'\t'] => Read::Key(Key::Tab),
        [0x08 | 0x7f] => Read::Key(Key::Backspace),
        [control @ 0x01..=0x1a] => Read::Key(Key::Ctrl(char::from(control + b'a' - 1))),
        [0x00 | 0x1c..=0x1f] => Read::Nothing,
        text => match std::str::from_utf8(text) {
            Ok(text) => text.chars().next().map_or(Read::Nothing, |c| Read::Key(Key::Char(c))),
            Err(error) if error.error_len().is_none() => Read::More,
            Err(_) => Read::Nothing,
        },
    }
}

fn named(parameters: &[u8], last: u8) -> Read {
    let key = match (last, parameters) {
        (b'A', _) => Key::Up,
        (b'B', _) => Key::Down,
        (b'H', _) | (b'~', b"1" | b"7") => Key::Home,
        (b'F', _) | (b'~', b"4" | b"8") => Key::End,
        (b'Z', _) => Key::BackTab,
        (b'~', b"5") => Key::PageUp,
        (b'~', b"6") => Key::PageDown,
        (b'M', []) => Key::Enter,
        _ => return Read::Nothing,
    };
    Read::Key(key)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn keys_of_usual_terminals() {
        let cases: [(&[u8], &[Key]); 9] = [
            (b"q?\r\t", &[Key::Char('q'), Key::Char('?'), Key::Enter, Key::Tab]),
            (b"\x1b[A\x1bOB", &[Key::Up, Key::Down]),
            (b"\x1b[5~\x1b[6~", &[Key::PageUp, Key::PageDown]),
            (b"\x1b[H\x1b[4~\x1b[1;5F", &[Key::Home, Key::End, Key::End]),
            (b"\x1b[Z\x7f\x03", &[Key::BackTab, Key::Backspace, Key::Ctrl('c')]),
            ("ß漢".as_bytes(), &[Key::Char('ß'), Key::Char('漢')]),
            (b"\x1bx", &[Key::Escape, Key::Char('x')]),
            (b"\x1b\x1b[A", &[Key::Escape, Key::Up]),
            (b"\x1b[200~a\xff\x1b[<0;1;1Mb", &[Key::Char('a'), Key::Char('b')]),
        ];
        for (bytes, keys) in cases {
            assert_eq!(Parser::default().feed(bytes), keys, "{bytes:?}");
            let mut parser = Parser::default();
            let pieces: Vec<_> = bytes.iter().flat_map(|byte| parser.feed(&[*byte])).collect();
            assert_eq!(pieces, keys, "{bytes:?} in pieces");
        }
    }

    #[test]
    fn an_escape_alone_is_a_key_once_nothing_follows() {
        let mut parser = Parser::default();
        assert_eq!(parser.feed(b"\x1b"), []);
        assert!(parser.is_pending());
        assert_eq!(parser.flush(), Some(Key::Escape));
        assert_eq!((parser.flush(), parser.is_pending()), (None, false));
        assert_eq!((parser.feed(b"\x1b["), parser.flush()), (vec![], None));
    }

    proptest! {
        #[test]
        fn any_bytes_end(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut parser = Parser::default();
            prop_assert!(parser.feed(&bytes).len() <= bytes.len());
            prop_assert!(parser.pending.len() < LONGEST);
        }
    }
}
