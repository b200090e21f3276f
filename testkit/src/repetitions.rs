//! Repetitions of what can fail at any moment in a test.

/// Option of libtest that also runs ignored tests: `cargo xtask test --all` passes it.
pub const INCLUDE_IGNORED: &str = "--include-ignored";

/// Returns the second number with `cargo xtask test --all`, else the first one. For example, a test that
/// kills a profiler somewhere in a tick does it 25 times for each change, and 100 times before a release.
#[must_use]
pub fn repetitions<T>(by_default: T, with_all: T) -> T {
    chosen(std::env::args(), by_default, with_all)
}

fn chosen<T>(mut arguments: impl Iterator<Item = String>, by_default: T, with_all: T) -> T {
    if arguments.any(|argument| argument == INCLUDE_IGNORED) { with_all } else { by_default }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_tests_come_with_more_repetitions() {
        let arguments = |words: &str| words.split(' ').map(str::to_owned).collect::<Vec<_>>().into_iter();
        assert_eq!(chosen(arguments("flat --quiet"), 25, 100), 25);
        assert_eq!(chosen(arguments("flat --include-ignored"), 25, 100), 100);
    }
}
