//! /proc/PID/stat.

/// Fields of /proc/PID/stat (proc_pid_stat(5)), from the third one on.
#[derive(Debug, Clone, Copy)]
pub struct StatFields<'a>(&'a str);

impl<'a> StatFields<'a> {
    /// Finds the fields; `None` if the text has another form.
    pub fn new(stat: &'a str) -> Option<Self> {
        // The name may contain anything, brackets too.
        stat.rsplit_once(')').map(|(_, rest)| Self(rest))
    }

    /// Returns the field with this number, from 3, the state, on.
    pub fn get(&self, number: usize) -> Option<&'a str> {
        self.0.split_ascii_whitespace().nth(number.checked_sub(3)?)
    }

    /// Returns the value of a field that is a number.
    pub fn number(&self, number: usize) -> Option<u64> {
        self.get(number)?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_counted_after_the_name() {
        let stat = StatFields::new("7 (a) R 1) S 4 -5 6").unwrap();
        assert_eq!(
            (stat.get(3), stat.number(4), stat.number(5), stat.get(5)),
            (Some("S"), Some(4), None, Some("-5"))
        );
        assert_eq!((stat.get(2), stat.get(7)), (None, None));
        assert!(StatFields::new("7 a S 4").is_none());
    }
}
