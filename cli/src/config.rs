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

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, Command};
use display::suggest::suggest;

use display::clean::escaped;
use display::message::{Reason, Shown};

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

impl ConfigFault {
    /// True if a command must not run with it: one of its own table, or one that leaves open which it
    /// concerns.
    fn concerns(&self, command: Option<&str>) -> bool {
        match (self, command) {
            (_, Some(ALWAYS)) => false,
            (Self::Syntax { .. }, _) => true,
            (Self::Key { table, .. } | Self::NoTable(table), Some(command)) => table == command,
            (Self::UnknownCommand { .. }, Some(_)) | (_, None) => false,
        }
    }
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

/// The command line's definition, with the defaults that the configuration file sets.
#[derive(Debug)]
pub struct Configured {
    /// The command.
    pub command: Command,
    /// The file, if there is one.
    pub path: Option<PathBuf>,
    /// Faults that the invoked command does not depend on.
    pub warnings: Vec<ConfigError>,
}

/// Command that has to work whatever the file has: it helps to find out what is wrong.
const ALWAYS: &str = "doctor";

/// Gives the commands the defaults of the file. A fault is an error if it concerns the command that the words
/// of the command line invoke.
pub fn apply(command: Command, words: &[OsString]) -> Result<Configured, ConfigError> {
    let plain = |command| Configured { command, path: None, warnings: Vec::new() };
    let Some((path, must_exist)) = config_path() else { return Ok(plain(command)) };
    let invoked = invoked(&command, words);
    let text = match read(&path) {
        Ok(text) => text,
        Err(_) if !must_exist && is_out_of_reach(&path) => return Ok(plain(command)),
        Err(source) => {
            let error = ConfigError::Read { path, source };
            return match invoked.as_deref() {
                Some(ALWAYS) => Ok(Configured { warnings: vec![error], ..plain(command) }),
                _ => Err(error),
            };
        }
    };
    let (command, faults) = with_defaults(command, &text);
    let (own, others): (Vec<_>, Vec<_>) =
        faults.into_iter().partition(|fault| fault.concerns(invoked.as_deref()));
    let wrong = |fault| ConfigError::Wrong { path: path.clone(), fault };
    if let Some(fault) = own.into_iter().next() {
        return Err(wrong(fault));
    }
    Ok(Configured { command, warnings: others.into_iter().map(wrong).collect(), path: Some(path) })
}

/// Returns the name of the command that the words of the command line invoke.
fn invoked(command: &Command, words: &[OsString]) -> Option<String> {
    let is_name = |word: &&OsString| command.get_subcommands().any(|known| known.get_name() == **word);
    words.iter().skip(1).find(is_name).map(|word| word.to_string_lossy().into_owned())
}

/// Returns true if the parser's error is about a value that is not on the command line but in the file.
pub fn is_of_file(error: &clap::Error, words: &[OsString]) -> bool {
    let Some(ContextValue::String(value)) = error.get(ContextKind::InvalidValue) else { return false };
    let is_value = matches!(error.kind(), ErrorKind::ValueValidation | ErrorKind::InvalidValue);
    is_value && !words.iter().any(|word| word.to_string_lossy().contains(value.as_str()))
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

/// Gives the commands the defaults of a text. Returns also the faults of the text.
fn with_defaults(mut command: Command, text: &str) -> (Command, Vec<ConfigFault>) {
    let tables: Result<toml::Table, toml::de::Error> = text.parse();
    let tables = match tables {
        Ok(tables) => tables,
        Err(error) => {
            let line = error
                .span()
                .map_or(1, |span| text.get(..span.start).map_or(1, |before| before.lines().count().max(1)));
            let message = escaped(error.message()).into_owned();
            return (command, vec![ConfigFault::Syntax { line, message }]);
        }
    };
    let mut faults = Vec::new();
    for (name, keys) in &tables {
        let known = || command.get_subcommands().map(Command::get_name);
        if !known().any(|known| known == name) {
            let (table, hint) = (escaped(name).into_owned(), suggestion(name, known()));
            faults.push(ConfigFault::UnknownCommand { table, hint });
            continue;
        }
        let toml::Value::Table(keys) = keys else {
            faults.push(ConfigFault::NoTable(escaped(name).into_owned()));
            continue;
        };
        command = command.mut_subcommand(name, |mut subcommand| {
            for (key, value) in keys {
                match with_default(subcommand.clone(), key, value) {
                    Ok(changed) => subcommand = changed,
                    Err(fault) => {
                        let (table, key) = (name.clone(), escaped(key).into_owned());
                        faults.push(ConfigFault::Key { table, key, fault });
                    }
                }
            }
            subcommand
        });
    }
    (command, faults)
}

fn with_default(command: Command, key: &str, value: &toml::Value) -> Result<Command, KeyFault> {
    let options = || command.get_arguments().filter(|arg| !arg.is_hide_set()).filter_map(Arg::get_long);
    // Some options have two names, such as `--cpu` and `--vcpu`.
    let is_key = |arg: &&Arg| {
        arg.get_long() == Some(key) || arg.get_all_aliases().is_some_and(|names| names.contains(&key))
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
    Ok(command.mut_arg(id, |arg| match without_default(arg) {
        arg if matches!(arg.get_action(), ArgAction::SetTrue) => arg
            // `--snapshot=false` undoes it.
            .action(ArgAction::Set)
            .value_parser(clap::value_parser!(bool))
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true")
            .default_values(values),
        arg => arg.default_values(values),
    }))
}

/// Takes the default out of an option's help, since the help names that of the file.
fn without_default(arg: Arg) -> Arg {
    let cut = |text: &clap::builder::StyledStr| {
        let text = text.to_string();
        let (before, rest) = text.split_once(" [default: ")?;
        let (_, after) = rest.split_once(']')?;
        Some(format!("{before}{after}"))
    };
    let (help, long) = (arg.get_help().and_then(cut), arg.get_long_help().and_then(cut));
    let arg = match help {
        Some(help) => arg.help(help),
        None => arg,
    };
    match long {
        Some(long) => arg.long_help(long),
        None => arg,
    }
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
    use std::error::Error;

    use clap::{CommandFactory, FromArgMatches};

    use super::*;
    use crate::args::{self, Cli};

    fn parsed(text: &str, line: &[&str]) -> Result<Cli, Box<dyn Error>> {
        let (command, faults) = with_defaults(Cli::command(), text);
        if let Some(fault) = faults.into_iter().next() {
            return Err(fault.to_string().into());
        }
        Ok(Cli::from_arg_matches(&command.try_get_matches_from(line)?)?)
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
        assert_eq!((args.recording.clock, args.disk.len()), (statistics::clock::ClockKind::Exponential, 2));
        assert_eq!(run(file, &["-F", "99.5"]).recording.rate, 99.5);
        assert_eq!(run("", &[]).recording.rate, 1_000.0);
    }

    #[test]
    fn a_switch_of_the_file_can_be_turned_off() {
        let file = "[run]\nsnapshot = true\nquiet = false\n";
        assert!(run(file, &[]).snapshot && run(file, &["--snapshot"]).snapshot);
        let args = run(file, &["--snapshot=false", "--quiet"]);
        assert!(!args.snapshot && args.recording.quiet && !run(file, &[]).recording.quiet);
    }

    #[test]
    fn a_fault_stops_the_commands_that_it_concerns() {
        let faults = |file: &str| with_defaults(Cli::command(), file).1;
        let stops = |file: &str, command| faults(file).iter().any(|fault| fault.concerns(command));
        let typo = "[run]\nrats = 1\n[report]\nrows = 3\n";
        assert!(stops(typo, Some("run")));
        assert!(!stops(typo, Some("report")) && !stops(typo, Some("doctor")) && !stops(typo, None));
        assert!(stops("[run", Some("report")) && !stops("[run", Some("doctor")));
        assert!(!stops("[rum]\nrate = 1", Some("run")));
        // The defaults without a fault apply.
        let (command, _) = with_defaults(Cli::command(), typo);
        let matches = command.try_get_matches_from(["vprof", "report", "x"]).unwrap();
        let args::CliCommand::Report(report) = Cli::from_arg_matches(&matches).unwrap().command else {
            panic!()
        };
        assert_eq!(report.rows, Some(3));
    }

    #[test]
    fn the_invoked_command_is_found_among_options() {
        let found =
            |words: &[&str]| invoked(&Cli::command(), &words.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(found(&["vprof", "--color", "never", "report", "run"]).as_deref(), Some("report"));
        assert_eq!(found(&["vprof", "--help"]), None);
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
            let error = parsed(file, &["vprof", "doctor"]).unwrap_err().to_string();
            assert!(error.contains(said) && !error.contains('\u{1b}'), "{file:?}: {error}");
        }
    }

    #[test]
    fn a_value_that_the_option_refuses_is_refused() {
        let error = parsed("[run]\nrate = 1000000", &["vprof", "run", "x.img"]).unwrap_err().to_string();
        assert!(error.contains("0.1 to 50000"), "{error}");
    }

    #[test]
    fn a_wrong_value_of_the_file_is_not_taken_for_one_of_the_command_line() {
        let of_file = |file: &str, line: &[&str]| {
            let (command, _) = with_defaults(Cli::command(), file);
            let error = command.try_get_matches_from(line).unwrap_err();
            is_of_file(&error, &line.iter().map(OsString::from).collect::<Vec<_>>())
        };
        assert!(of_file("[report]\nrows = \"many\"", &["vprof", "report", "x"]));
        let (command, _) = with_defaults(Cli::command(), "[report]\nrows = 2");
        let mut report = command.find_subcommand("report").unwrap().clone();
        let help = report.render_long_help().to_string();
        assert!(help.contains("[default: 2]"), "{help}");
        assert!(!help.contains("50 with --callers"), "{help}");
        assert!(!of_file("", &["vprof", "report", "x", "--rows", "many"]));
        assert!(!of_file("", &["vprof", "report", "x", "--rows=many"]));
        assert!(!of_file("", &["vprof", "fly"]));
    }
}
