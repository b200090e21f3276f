//! The commands for many hosts, and `vprof fleet`: questions to their Parquet files.
//!
//! ```text
//! options ──▶ views of the tables, in a dialect (sql) ──┬──▶ client of the engine (engine) ──▶ rows
//!             fleet/*.sql, the same for all (question) ─┘                                        │
//!                                           table, JSON, flame graph (answer), page (page) ◀────┘
//! ```

mod answer;
mod engine;
mod page;
mod question;
mod sql;

use std::path::{Path, PathBuf};

use crate::agent;
use crate::args::{FleetArgs, FleetCommand};
use crate::errors::{Error, ExitCode, FleetError};
use crate::output::{write_json, write_text};
use crate::pager;

pub use engine::Engine;
pub use question::FleetQuestion;
pub use sql::Selector;

/// Runs one of the commands for many hosts.
pub fn command(command: &FleetCommand) -> Result<ExitCode, Error> {
    match command {
        FleetCommand::Agent(args) => agent::command(args),
        FleetCommand::AgentWindow(args) => agent::send_window(args),
        FleetCommand::AgentRecorders => agent::forker::command(),
        FleetCommand::Fleet(args) => ask(args),
    }
}

/// Runs `vprof fleet`.
fn ask(args: &FleetArgs) -> Result<ExitCode, Error> {
    check(args)?;
    let dialect = args.engine.dialect();
    let views = sql::views(args, dialect);
    if let Engine::Print(_) = args.engine {
        let text = format!("{views}{};\n", args.question.sql().trim_end());
        write_text(&text)?;
        return Ok(ExitCode::Done);
    }
    // An address names its service.
    if !args.lake.contains("://") && !Path::new(&args.lake).join("v1/samples").is_dir() {
        return Err(FleetError::NoLake(PathBuf::from(&args.lake)).into());
    }
    let rows = args.engine.run(&views, args.question.sql())?;
    if args.question == FleetQuestion::Flame && !args.json {
        return answer::write_flame(&rows, args);
    }
    let is_page = has_end(&args.output, "html");
    let rows = match args.rows {
        0 => rows.as_slice(),
        most => rows.get(..most).unwrap_or(&rows),
    };
    if is_page {
        page::write(rows, args)?;
    } else if args.json {
        write_json(&rows)?;
    } else {
        pager::page(&answer::table(args.question, rows))?;
    }
    Ok(ExitCode::Done)
}

fn has_end(path: &Path, end: &str) -> bool {
    path.extension().is_some_and(|own| own == end)
}

/// Refuses options that the question has no use for.
fn check(args: &FleetArgs) -> Result<(), FleetError> {
    let question = args.question;
    let is_diff = question == FleetQuestion::Diff;
    if is_diff && (args.before.is_empty() || args.after.is_empty()) {
        return Err(FleetError::NoSides);
    }
    let unused = [
        ("--before", !args.before.is_empty() && !is_diff),
        ("--after", !args.after.is_empty() && !is_diff),
        ("--process", args.process.is_some() && !question.has_part()),
        ("--function", args.function.is_some() && !question.has_part()),
        // Rows of vCPUs have no kernel.
        ("--kernel", args.kernel.is_some() && question == FleetQuestion::Noisy),
        (
            "-o",
            args.output != Path::new("-")
                && (args.json || has_end(&args.output, "html") == (question == FleetQuestion::Flame)),
        ),
    ];
    match unused.iter().find(|(_, is_given)| *is_given) {
        Some((option, _)) => Err(FleetError::NotOfQuestion(option)),
        None => Ok(()),
    }
}
