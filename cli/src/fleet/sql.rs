//! Views of the lake's tables and of the chosen part, in the dialects of the engines.

use std::fmt::{self, Write as _};
use std::str::FromStr;

use super::question::FleetQuestion;
use crate::args::FleetArgs;

/// Dialect of SQL. The questions need none; how files are read and texts are quoted does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// DuckDB.
    DuckDb,
    /// Apache Spark.
    Spark,
}

/// Key of a condition of `--before` and `--after`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SelectorKey {
    Kernel,
    Build,
    Day,
    Label,
    Vm,
    Host,
}

impl SelectorKey {
    const ALL: [Self; 6] = [Self::Kernel, Self::Build, Self::Day, Self::Label, Self::Vm, Self::Host];

    fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Build => "build",
            Self::Day => "day",
            Self::Label => "label",
            Self::Vm => "vm",
            Self::Host => "host",
        }
    }
}

/// A condition like `kernel=6.1.0-26-amd64`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selector {
    key: SelectorKey,
    value: String,
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.key.name(), self.value)
    }
}

impl FromStr for Selector {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const KEYS: &str =
            "not kernel=RELEASE, build=BUILD-ID, day=DAY, label=KEY=VALUE, vm=NAME or host=HOST";
        let (key, value) = text.split_once('=').ok_or(KEYS)?;
        let key = SelectorKey::ALL.into_iter().find(|known| known.name() == key).ok_or(KEYS)?;
        if value.is_empty() {
            return Err(KEYS);
        }
        Ok(Self { key, value: value.to_owned() })
    }
}

impl Dialect {
    /// Returns the statements that make views of the tables.
    fn tables(self) -> &'static str {
        match self {
            Self::DuckDb => include_str!("../../../fleet/views/duckdb.sql"),
            Self::Spark => include_str!("../../../fleet/views/spark.sql"),
        }
    }

    /// Returns the beginning of a statement that makes a view.
    fn create_view(self) -> &'static str {
        match self {
            Self::DuckDb => "CREATE OR REPLACE VIEW",
            Self::Spark => "CREATE OR REPLACE TEMPORARY VIEW",
        }
    }

    /// Returns a text as a literal.
    fn literal(self, text: &str) -> String {
        let text = match self {
            Self::DuckDb => text.replace('\'', "''"),
            // A backslash begins an escape.
            Self::Spark => text.replace('\\', "\\\\").replace('\'', "\\'"),
        };
        format!("'{text}'")
    }

    /// Returns the condition that a column has this name; `*` in it stands for any characters.
    fn is_called(self, column: &str, name: &str) -> String {
        if !name.contains('*') {
            return format!("{column} = {}", self.literal(name));
        }
        let mut pattern = String::new();
        for c in name.chars() {
            match c {
                '*' => pattern.push('%'),
                '%' | '_' | '\\' => {
                    pattern.push('\\');
                    pattern.push(c);
                }
                _ => pattern.push(c),
            }
        }
        // Spark has that escape by default.
        let escape = if self == Self::DuckDb { " ESCAPE '\\'" } else { "" };
        format!("{column} LIKE {}{escape}", self.literal(&pattern))
    }

    /// Returns the condition that the labels have this one.
    fn has_label(self, label: &str) -> String {
        // A `*` in it is its own.
        format!("contains(',' || group_ || ',', {})", self.literal(&format!(",{label},")))
    }

    /// Returns the condition that a window begins on this day (UTC).
    fn is_on(self, day: &str) -> String {
        let text = match self {
            Self::DuckDb => "strftime(t, '%Y-%m-%d')",
            Self::Spark => "date_format(t, 'yyyy-MM-dd')",
        };
        format!("{text} = {}", self.literal(day))
    }

    /// Returns the condition of a selector, in a table with the columns of a machine.
    fn selects(self, selector: &Selector) -> String {
        let value = &selector.value;
        match selector.key {
            SelectorKey::Kernel => self.is_called("kernel", value),
            SelectorKey::Day => self.is_on(value),
            SelectorKey::Label => self.has_label(value),
            SelectorKey::Vm => self.is_called("vm_name", value),
            SelectorKey::Host => self.is_called("host", value),
            // The machines and windows in which that build has run.
            SelectorKey::Build => {
                format!("(vm, t) IN (SELECT vm, t FROM samples WHERE build_id = {})", self.literal(value))
            }
        }
    }
}

/// Returns ` WHERE` and the conditions, or nothing.
fn filter(conditions: &[String]) -> String {
    if conditions.is_empty() { String::new() } else { format!(" WHERE {}", conditions.join(" AND ")) }
}

/// Returns the statements before the question: the views of the tables, and of the part that the options
/// choose.
pub(super) fn views(args: &FleetArgs, dialect: Dialect) -> String {
    // Between quotes in the files. An engine may be started elsewhere.
    let absolute = if args.lake.contains("://") { None } else { std::path::absolute(&args.lake).ok() };
    let lake = absolute.as_ref().map_or(args.lake.as_str().into(), |path| path.to_string_lossy());
    let quoted = dialect.literal(&lake);
    let lake = quoted.get(1..quoted.len().saturating_sub(1)).unwrap_or_default();
    let mut text = String::new();
    for statement in dialect.tables().lines().filter(|line| !line.starts_with("--")) {
        text.push_str(&statement.replace("LAKE", lake));
        text.push('\n');
    }
    let mut machine: Vec<String> = Vec::new();
    machine.extend(args.day.as_ref().map(|day| dialect.is_on(day)));
    machine.extend(args.vm.as_ref().map(|name| dialect.is_called("vm_name", name)));
    machine.extend(args.vm_host.as_ref().map(|name| dialect.is_called("host", name)));
    machine.extend(args.kernel.as_ref().map(|name| dialect.is_called("kernel", name)));
    machine.extend(args.label.iter().map(|label| dialect.has_label(label)));
    let mut view = |name: &str, of: &str, conditions: &[String]| {
        let create = dialect.create_view();
        // Writing to a String can't fail.
        let _ = writeln!(text, "{create} {name} AS SELECT * FROM {of}{};", filter(conditions));
    };
    view("chosen", "samples", &machine);
    match args.question {
        question if question.has_part() => {
            let mut part: Vec<String> = Vec::new();
            part.extend(args.process.as_ref().map(|name| dialect.is_called("process", name)));
            part.extend(args.function.as_ref().map(|name| dialect.is_called("function", name)));
            view("part", "chosen", &part);
        }
        FleetQuestion::Diff => {
            for (name, side) in [("before", &args.before), ("after", &args.after)] {
                let own = side.iter().map(|selector| dialect.selects(selector));
                let conditions: Vec<String> = machine.iter().cloned().chain(own).collect();
                view(name, "samples", &conditions);
                view(&format!("{name}_vms"), "vms", &conditions);
            }
        }
        FleetQuestion::Vms => view("chosen_vms", "vms", &machine),
        FleetQuestion::Noisy => view("chosen_vcpus", "vcpus", &machine),
        _ => {}
    }
    text
}
