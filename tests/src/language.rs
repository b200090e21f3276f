//! Programs in managed languages that measure the CPU time of their own functions, and what a profile of one
//! must have.
//!
//! A program (tests/languages) prints `begun`, and at its end `phase NAME SECONDS` for each function that it
//! measures, with the name that the function has in a profile. None of them calls another one, and `measure`
//! calls all.

use std::path::Path;
use std::process::Command;

use crate::corpus::{corpus_image, run_with_demo_kernel};
use crate::{Guest, NamedRow, Run, assert_share};

/// Image that has the runtime of a language.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LanguageImage {
    /// The demo image.
    Demo,
    /// The image of the runtimes of this release of Debian.
    Corpus(&'static str),
}

const BOOKWORM: LanguageImage = LanguageImage::Corpus("bookworm");
const TRIXIE: LanguageImage = LanguageImage::Corpus("trixie");

/// A program in a managed language.
#[derive(Debug, Clone, Copy)]
pub struct LanguageProgram {
    /// Name of its process.
    pub process: &'static str,
    /// Its command in the guest, where its file is in `/tmp`.
    pub command: &'static str,
    /// Start of the names of its functions in a profile.
    pub prefix: &'static str,
    /// Its source file, in tests/languages.
    file: &'static str,
    image: LanguageImage,
}

/// CPython 3.11.
pub const PYTHON: LanguageProgram = LanguageProgram {
    process: "python3",
    command: "python3 /tmp/phases.py",
    prefix: "",
    file: "phases.py",
    image: LanguageImage::Demo,
};

/// CPython 3.13.
pub const PYTHON_3_13: LanguageProgram = LanguageProgram { image: TRIXIE, ..PYTHON };

/// CRuby 3.1.
pub const RUBY: LanguageProgram = LanguageProgram {
    process: "ruby",
    command: "ruby /tmp/phases.rb",
    prefix: "",
    file: "phases.rb",
    image: BOOKWORM,
};

/// CRuby 3.3.
pub const RUBY_3_3: LanguageProgram = LanguageProgram { image: TRIXIE, ..RUBY };

/// PHP 8.2.
pub const PHP: LanguageProgram = LanguageProgram {
    process: "php",
    command: "php /tmp/phases.php",
    prefix: "",
    file: "phases.php",
    image: BOOKWORM,
};

/// PHP 8.4.
pub const PHP_8_4: LanguageProgram = LanguageProgram { image: TRIXIE, ..PHP };

/// Node.js 18. Its clock is the process's, so no other thread compiles or collects.
pub const NODE: LanguageProgram = LanguageProgram {
    process: "node",
    command: "node --single-threaded /tmp/phases.js",
    prefix: "",
    file: "phases.js",
    image: BOOKWORM,
};

/// Node.js 20.
pub const NODE_20: LanguageProgram = LanguageProgram { image: TRIXIE, ..NODE };

/// OpenJDK 17.
pub const JAVA: LanguageProgram = LanguageProgram {
    process: "java",
    command: "java -cp /tmp Phases",
    prefix: "Phases.",
    file: "Phases.java",
    image: BOOKWORM,
};

/// OpenJDK 21.
pub const JAVA_21: LanguageProgram = LanguageProgram {
    command: "/usr/lib/jvm/java-21-openjdk-amd64/bin/java -cp /tmp Phases",
    image: TRIXIE,
    ..JAVA
};

/// OpenJDK 25.
pub const JAVA_25: LanguageProgram =
    LanguageProgram { command: "/usr/lib/jvm/java-25-openjdk-amd64/bin/java -cp /tmp Phases", ..JAVA_21 };

impl LanguageProgram {
    /// Returns a shell script that writes the program's file and runs it for about so many seconds of CPU
    /// time; `None` if this machine lacks the compiler.
    pub fn script(&self, seconds: u32) -> Option<String> {
        let (name, bytes) = self.compiled()?;
        let octal: String = bytes.iter().map(|byte| format!("\\{byte:03o}")).collect();
        Some(format!("printf '{octal}' >/tmp/{name}; exec {} {seconds}", self.command))
    }

    /// Runs the program in a guest; `None` if this machine lacks the compiler.
    pub fn run(&self, seconds: u32) -> Option<Run> {
        let script = self.script(seconds)?;
        let guest = match self.image {
            LanguageImage::Demo => Guest::demo(),
            LanguageImage::Corpus(release) => Guest::distribution(corpus_image(release)),
        };
        let guest = guest.options(["-m", "1G", "-F", "250"]).next_to_others().script(&script);
        Some(match self.image {
            LanguageImage::Demo => guest.run().succeeded(),
            LanguageImage::Corpus(_) => run_with_demo_kernel(guest),
        })
    }

    fn path(&self) -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("languages").join(self.file)
    }

    /// Returns name and bytes of the file that the guest runs.
    fn compiled(&self) -> Option<(String, Vec<u8>)> {
        let Some(class) = self.file.strip_suffix(".java") else {
            return Some((self.file.to_owned(), std::fs::read(self.path()).expect("the program")));
        };
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut javac: Command = testkit::tool("javac")?;
        javac.args(["--release", "17", "-d"]).arg(directory.path()).arg(self.path());
        assert!(javac.status().expect("javac starts").success(), "{} does not compile", self.file);
        let name = format!("{class}.class");
        let bytes = std::fs::read(directory.path().join(&name)).expect("a class");
        Some((name, bytes))
    }

    /// Returns the measured functions with their seconds in what the program has printed.
    fn phases(printed: &str) -> Vec<(String, f64)> {
        let phase = |line: &str| {
            let (name, seconds) = line.trim_end().strip_prefix("phase ")?.split_once(' ')?;
            Some((name.to_owned(), seconds.parse().ok()?))
        };
        let phases: Vec<(String, f64)> = printed.lines().filter_map(phase).collect();
        assert!(phases.len() >= 5, "{printed}");
        phases
    }

    /// Asserts that the functions have the shares that they have measured, by what the program has printed.
    ///
    /// # Panics
    /// A share is out of bounds.
    pub fn assert_shares(&self, run: &Run, printed: &str) {
        let report = run.report_with(&["--by", "function", "--process", self.process]);
        let phases = Self::phases(printed);
        let total: f64 = phases.iter().map(|(_, seconds)| seconds).sum();
        let samples = |name: &str| report.row(name).total_samples;
        let all: i64 = phases.iter().map(|(name, _)| samples(name)).sum();
        for (name, seconds) in &phases {
            println!(
                "{name}: {} of {all} samples, {:.1} % by its clock",
                samples(name),
                100.0 * seconds / total
            );
            assert_share(name, samples(name), all, seconds / total);
        }
    }

    /// Returns the functions of user code below `measure`, so without those from before the process was
    /// recognised.
    pub fn measured(&self, run: &Run) -> Vec<NamedRow> {
        let measure = format!("{}measure", self.prefix);
        let known = ["--by", "function", "--process", self.process, "--mode", "user", "--symbol", &measure];
        run.report_with(&known).rows()
    }

    /// Asserts that the frames of at least 98 % of the stacks are there, that there are at least so many
    /// samples in the measured functions, and that 95 % of them have a name. Stacks in the middle of a switch
    /// of tasks, at which an emulated processor is interrupted more often than by chance, do not count.
    ///
    /// # Panics
    /// There are fewer.
    pub fn assert_complete(&self, run: &Run, fewest: i64) {
        let walks = run.report_with(&["--process", self.process]).walks("user");
        let counts = walks.broken.iter().filter(|(why, _)| !why.starts_with("the kernel is switching"));
        let broken: i64 = counts.map(|(_, count)| count).sum();
        println!("{walks:?}");
        assert!(broken * 50 <= walks.walks, "{walks:?}");
        let rows = self.measured(run);
        let all: i64 = rows.iter().map(|row| row.self_samples).sum();
        let unnamed = rows.iter().filter(|row| row.name.contains('['));
        let unnamed: i64 = unnamed.map(|row| row.self_samples).sum();
        println!("{unnamed} of {all} samples have no name");
        assert!(unnamed * 20 <= all && all >= fewest, "{unnamed} of {all}");
    }

    /// Asserts that frames have lines of their own functions, and the line of the call where there is one.
    ///
    /// # Panics
    /// Lines are those of other code, or missing.
    pub fn assert_lines(&self, run: &Run) {
        let source = std::fs::read_to_string(self.path()).expect("the program");
        for function in ["work", "plain", "recursive", "thrown", "fail", "measure"] {
            let lines = run.query(&format!(
                "SELECT DISTINCT line FROM frame WHERE kind = 'managed' AND symbol = '{}{function}' \
                 AND source LIKE '%{}' AND line > 0 ORDER BY line",
                self.prefix, self.file
            ));
            let lines: Vec<i64> = lines.iter().filter_map(|row| row[0].as_i64()).collect();
            let range = lines_of(&source, function);
            assert!(lines.iter().all(|line| range.contains(line)), "{function}: {lines:?} in {range:?}");
            // `plain` only calls `work`.
            let has_call = function != "plain" || lines.contains(&(range.start + 1));
            assert!(!lines.is_empty() && has_call, "{function}: {lines:?} in {range:?}");
        }
    }
}

/// Returns the lines of a function: from its definition to the next empty line.
fn lines_of(source: &str, function: &str) -> std::ops::Range<i64> {
    let defines = |line: &str| {
        let begins = ["def ", "function ", "static "].iter().any(|word| line.trim_start().starts_with(word));
        begins && line.contains(&format!(" {function}("))
    };
    let lines: Vec<&str> = source.lines().collect();
    let start = lines.iter().position(|line| defines(line)).expect("the function's definition");
    let len = lines[start..].iter().take_while(|line| !line.is_empty()).count();
    let number = |index: usize| i64::try_from(index + 1).expect("a short program");
    number(start)..number(start + len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_end_at_an_empty_line() {
        let source = "import x\n\ndef one(a):\n    two(a)\n\ndef two(a):\n    pass\n";
        assert_eq!(lines_of(source, "one"), 3..5);
        assert_eq!(lines_of(source, "two"), 6..8);
    }

    #[test]
    fn every_program_defines_the_functions_whose_lines_are_compared() {
        for program in [PYTHON, RUBY, PHP, NODE, JAVA] {
            let source = std::fs::read_to_string(program.path()).expect("the program");
            let range = lines_of(&source, "plain");
            let call = source.lines().nth(usize::try_from(range.start).expect("a line")).expect("a line");
            assert!(call.contains("work("), "{}: {call}", program.file);
        }
    }
}
