//! The configuration file: defaults of options. It has a table for each command, with a key for each of the
//! command's long options:
//!
//! ```toml
//! [run]
//! rate = 500
//! memory = "2G"
//! ```
//!
//! The command line takes precedence. docs/config.md describes the file for users.

use std::io;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, Command};
use text::suggest::suggest;

use text::clean::escaped;
use text::message::{Reason, Shown};

/// Environment variable with the path of the file; empty for no file.
pub const VARIABLE: &str = "VPROF_CONFIG";
/// Longest file that is read, bytes.
const LONGEST: u64 = 1 << 20;

/// Reason why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file can't be read.
    #[error("can't read the configuration {}: {}", Shown(.path), Reason(.source))]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The contents are wrong.
    #[error("the configuration {}: {fault}", Shown(.path))]
    Wrong {
        /// The file.
        path: PathBuf,
        /// The first fault.
        fault: ConfigFault,
    },
}

/// Fault in the contents of the file. Names from the file are escaped.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigFault {
    /// The text is not TOML.
    #[error("line {line}: {message}")]
    Syntax {
        /// Number of the line, from 1.
        line: usize,
        /// Message of the parser.
        message: String,
    },
    /// No command has the name of a table.
    #[error("[{table}]: vprof has no such command{hint}")]
    UnknownCommand {
        /// Name of the table.
        table: String,
        /// Suggestion of another name, or empty.
        hint: String,
    },
    /// A value where a table is due.
    #[error("{0}: it is a table, written [{0}]")]
    NoTable(String),
    /// A wrong key or value in the table of a command.
    #[error("[{table}] {key}: {fault}")]
    Key {
        /// Name of the command.
        table: String,
        /// Name of the key.
        key: String,
        /// The fault.
        fault: KeyFault,
    },
}

/// Fault of one key.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyFault {
    /// No option has the name; with a suggestion of another name, or empty.
    #[error("there is no such option{0}")]
    UnknownOption(String),
    /// The option is a switch.
    #[error("it is true or false")]
    NotBoolean,
    /// The option takes one value.
    #[error("it takes one value")]
    SeveralValues,
    /// The value has another type.
    #[error("it is a text or a number")]
    WrongType,
}

/// Returns the path of the file and whether the file has to exist: `$VPROF_CONFIG`, else `vprof/config.toml`
/// in
/// `$XDG_CONFIG_HOME` or `~/.config`. Returns `None` if there is no such place.
fn config_path() -> Option<(PathBuf, bool)> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    if let Some(path) = variable(VARIABLE) {
        return (!path.as_os_str().is_empty()).then_some((path, true));
    }
    let configuration = variable("XDG_CONFIG_HOME").filter(|path| path.is_absolute());
    let directory = configuration.or_else(|| Some(variable("HOME")?.join(".config")))?;
    Some((directory.join("vprof/config.toml"), false))
}

/// Gives the commands the defaults of the file.
pub fn apply(command: Command) -> Result<Command, ConfigError> {
    let Some((path, must_exist)) = config_path() else { return Ok(command) };
    let text = match read(&path) {
        Ok(text) => text,
        Err(_) if !must_exist && is_out_of_reach(&path) => return Ok(command),
        Err(source) => return Err(ConfigError::Read { path, source }),
    };
    with_defaults(command, &text).map_err(|fault| ConfigError::Wrong { path, fault })
}

/// Returns true if the file does not exist, or if its directory is not accessible, as of another user's home.
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

fn with_defaults(mut command: Command, text: &str) -> Result<Command, ConfigFault> {
    let tables: toml::Table = text.parse().map_err(|error: toml::de::Error| {
        let line = error
            .span()
            .map_or(1, |span| text.get(..span.start).map_or(1, |before| before.lines().count().max(1)));
        ConfigFault::Syntax { line, message: escaped(error.message()).into_owned() }
    })?;
    for (name, keys) in &tables {
        let known = || command.get_subcommands().map(Command::get_name);
        if !known().any(|known| known == name) {
            let (table, hint) = (escaped(name).into_owned(), suggestion(name, known()));
            return Err(ConfigFault::UnknownCommand { table, hint });
        }
        let toml::Value::Table(keys) = keys else {
            return Err(ConfigFault::NoTable(escaped(name).into_owned()));
        };
        let mut failed = None;
        command = command.mut_subcommand(name, |mut subcommand| {
            for (key, value) in keys {
                match with_default(subcommand.clone(), key, value) {
                    Ok(changed) => subcommand = changed,
                    Err(fault) => {
                        let (table, key) = (name.clone(), escaped(key).into_owned());
                        failed.get_or_insert(ConfigFault::Key { table, key, fault });
                    }
                }
            }
            subcommand
        });
        if let Some(fault) = failed {
            return Err(fault);
        }
    }
    Ok(command)
}

fn with_default(command: Command, key: &str, value: &toml::Value) -> Result<Command, KeyFault> {
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
        return Err(KeyFault::UnknownOption(suggestion(key, options())));
    };
    let id = arg.get_id().clone();
    let values = match (value, arg.get_action()) {
        (toml::Value::Boolean(on), ArgAction::SetTrue) => vec![on.to_string()],
        (_, ArgAction::SetTrue) => return Err(KeyFault::NotBoolean),
        (toml::Value::Array(values), ArgAction::Append) => {
            values.iter().map(typed).collect::<Result<_, _>>()?
        }
        (toml::Value::Array(_), _) => return Err(KeyFault::SeveralValues),
        (value, _) => vec![typed(value)?],
    };
    Ok(command.mut_arg(id, |arg| arg.default_values(values)))
}

/// Returns a value as a user types it.
fn typed(value: &toml::Value) -> Result<String, KeyFault> {
    match value {
        toml::Value::String(text) => Ok(text.clone()),
        toml::Value::Integer(number) => Ok(number.to_string()),
        toml::Value::Float(number) => Ok(number.to_string()),
        _ => Err(KeyFault::WrongType),
    }
}

/// Returns a clause that suggests the most similar name, or an empty text.
fn suggestion<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> String {
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
        let command = with_defaults(Cli::command(), text).map_err(|fault| fault.to_string())?;
        let matches = command.try_get_matches_from(line).map_err(|error| error.to_string())?;
        Cli::from_arg_matches(&matches).map_err(|error| error.to_string())
    }

    fn run(text: &str, line: &[&str]) -> Box<args::RunArgs> {
        let line = [&["vprof", "run", "x.img"], line].concat();
        match parsed(text, &line).unwrap().command {
            args::CliCommand::Run(args) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_command_line_takes_precedence_over_the_file() {
        let file = "[run]\nrate = 250\nmemory = \"2G\"\nsnapshot = true\nclock = \"exponential\"\ndisk = [\"a\", \"b\"]\n";
        let args = run(file, &[]);
        assert_eq!((args.recording.rate, args.memory, args.snapshot), (250.0, 2 << 30, true));
        assert_eq!((args.recording.clock, args.disk.len()), (profile::ClockKind::Exponential, 2));
        assert_eq!(run(file, &["-F", "99.5"]).recording.rate, 99.5);
        assert_eq!(run("", &[]).recording.rate, 1_000.0);
    }

    #[test]
    fn unknown_names_are_refused_with_a_suggestion() {
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
            let documented: Vec<&str> = sections
                .iter()
                .filter(|section| section.starts_with(&heading))
                .flat_map(|section| section.lines())
                .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
                .collect();
            let visible = command.get_arguments().filter(|arg| !arg.is_hide_set()).filter_map(Arg::get_long);
            let mut keys: Vec<&str> = visible.filter(|key| *key != "help").collect();
            let mut documented_sorted = documented.clone();
            keys.sort_unstable();
            documented_sorted.sort_unstable();
            assert_eq!(documented_sorted, keys, "{heading}");
        }
    }

    #[test]
    fn a_value_that_the_option_refuses_is_refused() {
        let error = parsed("[run]\nrate = 1000000", &["vprof", "run", "x.img"]).unwrap_err();
        assert!(error.contains("0.1 to 50000"), "{error}");
    }
}
