//! The configuration file: defaults of options, so that they need not be typed. A table for each command, a key for each of
//! its long options:
//!
//! ```toml
//! [run]
//! rate = 500
//! memory = "2G"
//! ```
//!
//! What is on the command line wins. docs/config.md describes it for users.

use std::io;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, Command};
use text::suggest::suggest;

use text::clean::escaped;
use text::message::{Reason, Shown};

/// Names the file, or, empty, none.
pub const VARIABLE: &str = "VPROF_CONFIG";
/// The longest file that is read, bytes.
const LONGEST: u64 = 1 << 20;

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It cannot be read.
    #[error("can't read the configuration {}: {}", Shown(.path), Reason(.source))]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It says what it must not.
    #[error("the configuration {}: {what}", Shown(.path))]
    Wrong {
        /// The file.
        path: PathBuf,
        /// One clause.
        what: String,
    },
}

/// Where the file is: `$VPROF_CONFIG`, else `vprof/config.toml` in `$XDG_CONFIG_HOME` or `~/.config`. `None` where there is
/// no such place; whether it has to exist is told with it.
fn place() -> Option<(PathBuf, bool)> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    if let Some(path) = variable(VARIABLE) {
        return (!path.as_os_str().is_empty()).then_some((path, true));
    }
    let configuration = variable("XDG_CONFIG_HOME").filter(|path| path.is_absolute());
    let directory = configuration.or_else(|| Some(variable("HOME")?.join(".config")))?;
    Some((directory.join("vprof/config.toml"), false))
}

/// The commands with the defaults that the file gives them.
pub fn apply(command: Command) -> Result<Command, ConfigError> {
    let Some((path, must_exist)) = place() else { return Ok(command) };
    let text = match read(&path) {
        Ok(text) => text,
        Err(_) if !must_exist && is_out_of_reach(&path) => return Ok(command),
        Err(source) => return Err(ConfigError::Read { path, source }),
    };
    with_defaults(command, &text).map_err(|what| ConfigError::Wrong { path, what })
}

/// Nobody can tell whether there is a file: whose home directory it is.
fn is_out_of_reach(path: &Path) -> bool {
    let found = std::fs::symlink_metadata(path);
    found.is_err_and(|error| {
        matches!(
            error.kind(),
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::PermissionDenied
        )
    })
}

fn read(path: &Path) -> io::Result<String> {
    use io::Read as _;
    let mut text = String::new();
    std::fs::File::open(path)?.take(LONGEST).read_to_string(&mut text)?;
    Ok(text)
}

fn with_defaults(mut command: Command, text: &str) -> Result<Command, String> {
    let tables: toml::Table = text.parse().map_err(|error: toml::de::Error| {
        let line = error
            .span()
            .map_or(1, |span| text.get(..span.start).map_or(1, |before| before.lines().count().max(1)));
        format!("line {line}: {}", escaped(error.message()))
    })?;
    for (name, keys) in &tables {
        let known = || command.get_subcommands().map(Command::get_name);
        if !known().any(|known| known == name) {
            return Err(format!("[{}]: vprof has no such command{}", escaped(name), meant(name, known())));
        }
        let toml::Value::Table(keys) = keys else {
            return Err(format!("{name}: it is a table, written [{name}]"));
        };
        let mut failed = None;
        command = command.mut_subcommand(name, |mut subcommand| {
            for (key, value) in keys {
                match with_default(subcommand.clone(), key, value) {
                    Ok(changed) => subcommand = changed,
                    Err(what) => {
                        failed = failed.take().or(Some(format!("[{name}] {}: {what}", escaped(key))))
                    }
                }
            }
            subcommand
        });
        if let Some(what) = failed {
            return Err(what);
        }
    }
    Ok(command)
}

fn with_default(command: Command, key: &str, value: &toml::Value) -> Result<Command, String> {
    let options = || command.get_arguments().filter(|arg| !arg.is_hide_set()).filter_map(Arg::get_long);
    // Hidden aliases are old names of options.
    let is_key = |arg: &&Arg| {
        arg.get_long() == Some(key) || arg.get_all_aliases().is_some_and(|old| old.contains(&key))
    };
    let arg = command.get_arguments().find(is_key);
    let Some(arg) = arg.filter(|arg| {
        !matches!(
            arg.get_action(),
            ArgAction::Help | ArgAction::HelpLong | ArgAction::HelpShort | ArgAction::Version
        )
    }) else {
        return Err(format!("there is no such option{}", meant(key, options())));
    };
    let id = arg.get_id().clone();
    let values = match (value, arg.get_action()) {
        (toml::Value::Boolean(on), ArgAction::SetTrue) => vec![on.to_string()],
        (_, ArgAction::SetTrue) => return Err("it is true or false".to_owned()),
        (toml::Value::Array(values), ArgAction::Append) => {
            values.iter().map(plain).collect::<Result<_, _>>()?
        }
        (toml::Value::Array(_), _) => return Err("it takes one value".to_owned()),
        (value, _) => vec![plain(value)?],
    };
    Ok(command.mut_arg(id, |arg| arg.default_values(values)))
}

/// A value as it would be typed.
fn plain(value: &toml::Value) -> Result<String, String> {
    match value {
        toml::Value::String(text) => Ok(text.clone()),
        toml::Value::Integer(number) => Ok(number.to_string()),
        toml::Value::Float(number) => Ok(number.to_string()),
        _ => Err("it is a text or a number".to_owned()),
    }
}

/// What may have been meant.
fn meant<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> String {
    match suggest(wanted, names).first() {
        Some(name) => format!("; did you mean {name}?"),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, FromArgMatches};

    use super::*;
    use crate::args::{self, Cli};

    fn parsed(text: &str, line: &[&str]) -> Result<Cli, String> {
        let command = with_defaults(Cli::command(), text)?;
        let matches = command.try_get_matches_from(line).map_err(|error| error.to_string())?;
        Cli::from_arg_matches(&matches).map_err(|error| error.to_string())
    }

    fn run(text: &str, line: &[&str]) -> Box<args::RunArgs> {
        let line = [&["vprof", "run", "x.img"], line].concat();
        match parsed(text, &line).unwrap().command {
            args::Command::Run(args) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_typed_wins_over_the_file() {
        let file = "[run]\nrate = 250\nmemory = \"2G\"\nsnapshot = true\nclock = \"exponential\"\ndisk = [\"a\", \"b\"]\n";
        let args = run(file, &[]);
        assert_eq!((args.recording.rate, args.memory, args.snapshot), (250.0, 2 << 30, true));
        assert_eq!((args.recording.clock, args.disk.len()), (profile::ClockKind::Exponential, 2));
        assert_eq!(run(file, &["-F", "99.5"]).recording.rate, 99.5);
        assert_eq!(run("", &[]).recording.rate, 1_000.0);
    }

    #[test]
    fn what_is_not_known_is_refused_with_what_was_meant() {
        for (file, said) in [
            ("[rum]\nrate = 1", "[rum]: vprof has no such command; did you mean run?"),
            ("[run]\nrats = 1", "[run] rats: there is no such option; did you mean rate?"),
            ("[run]\nhelp = true", "[run] help: there is no such option"),
            ("[run]\nsnapshot = 1", "[run] snapshot: it is true or false"),
            ("[run]\nrate = [1]", "[run] rate: it takes one value"),
            ("[run]\nrate = {}", "[run] rate: it is a text or a number"),
            ("run = 1", "run: it is a table, written [run]"),
            ("[run]\n\nrate = ", "line 3"),
            ("[run]\n\"\\u001b\" = 1", "[run] \\x1b: there is no such option"),
        ] {
            let error = parsed(file, &["vprof", "doctor"]).unwrap_err();
            assert!(error.contains(said) && !error.contains('\u{1b}'), "{file:?}: {error}");
        }
    }

    /// docs/config.md has every key of every command, and no other.
    #[test]
    fn every_key_is_documented() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/config.md");
        let document = std::fs::read_to_string(path).unwrap();
        let sections: Vec<&str> = document.split("\n### ").skip(1).collect();
        for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            let heading = format!("`[{}]`", command.get_name());
            let told: Vec<&str> = sections
                .iter()
                .filter(|section| section.starts_with(&heading))
                .flat_map(|section| section.lines())
                .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
                .collect();
            let visible = command.get_arguments().filter(|arg| !arg.is_hide_set()).filter_map(Arg::get_long);
            let mut keys: Vec<&str> = visible.filter(|key| *key != "help").collect();
            let mut told_sorted = told.clone();
            keys.sort_unstable();
            told_sorted.sort_unstable();
            assert_eq!(told_sorted, keys, "{heading}");
        }
    }

    #[test]
    fn a_value_that_the_option_refuses_is_refused() {
        let error = parsed("[run]\nrate = 1000000", &["vprof", "run", "x.img"]).unwrap_err();
        assert!(error.contains("0.1 to 50000"), "{error}");
    }
}
