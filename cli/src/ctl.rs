//! `vprof ctl`: controls a run in progress, from scripts.

use control::ControlError;
use control::client::Client;
use control::message::MOST_ROWS;
use control::message::{About, Request};
use control::place;
use display::clean::escaped;
use display::units;
use profile::live::View;
use serde_json::Value;

use crate::args::{CtlArgs, CtlCommand};
use crate::errors::{Error, ExitCode};
use crate::output::{write_json, write_json_line, write_text};
use render::table::{ColumnAlign, TextTable};
use render::{PageLayout, all_for_zero, live as tables};

/// Runs the command.
pub fn command(args: &CtlArgs) -> Result<ExitCode, Error> {
    if matches!(args.command, CtlCommand::List) {
        list(args.json)?;
        return Ok(ExitCode::Done);
    }
    let mut client = Client::new(place::connect(args.run.as_deref())?)?;
    match &args.command {
        CtlCommand::List => {}
        CtlCommand::Status => {
            let about = client.about()?;
            if args.json { write_json(&about)? } else { write_text(&status(&about))? }
        }
        CtlCommand::Tables { last, rows } => {
            let snapshot = client.tables(view(*last, *rows))?;
            if args.json {
                write_json(&snapshot)?
            } else {
                write_text(&tables::render(&snapshot, PageLayout::stdout()))?
            }
        }
        CtlCommand::Watch { last, rows, every } => {
            let every_ms = u64::try_from(every.as_millis()).unwrap_or(u64::MAX);
            client = client.with_more_patience(*every);
            watch(&mut client, &Request::Watch { view: view(*last, *rows), every_ms })?;
        }
        CtlCommand::Start { when } => {
            let message = when.as_ref().map_or_else(
                || "sampling continues".to_owned(),
                |when| format!("sampling is stopped until {when}"),
            );
            let when = when.as_ref().map(ToString::to_string);
            done(args, client.ask(&Request::Start { when })?, &escaped(&message))?;
        }
        CtlCommand::Stop { when, then } => {
            let message = when.as_ref().map_or_else(
                || "sampling is stopped; resume with `vprof ctl start`".to_owned(),
                |when| format!("sampling stops at {when}"),
            );
            let when = when.as_ref().map(ToString::to_string);
            done(args, client.ask(&Request::Stop { when, then: *then })?, &escaped(&message))?;
        }
        CtlCommand::Rate { hz } => {
            done(
                args,
                client.ask(&Request::Rate { hz: *hz })?,
                &format!("the rate is now {}", units::rate(*hz)),
            )?;
        }
        CtlCommand::Mark { text } => {
            let text = text.join(" ");
            done(args, client.ask(&Request::Mark { text })?, "marked")?;
        }
        CtlCommand::Write => {
            let written = client.ask(&Request::Write)?;
            let path = written.get("profile").and_then(Value::as_str).unwrap_or_default();
            let sentence = format!("the data recorded so far is in {}", escaped(path));
            done(args, written.clone(), &sentence)?;
        }
        CtlCommand::End => done(args, client.ask(&Request::End)?, "the run ends")?,
    }
    Ok(ExitCode::Done)
}

fn view(last: Option<std::time::Duration>, rows: usize) -> View {
    let span = match last {
        Some(last) => profile::live::Span::Last(last.as_secs_f64()),
        None => profile::live::Span::Run,
    };
    View { span, rows: all_for_zero(rows).min(MOST_ROWS), ..View::default() }
}

fn done(args: &CtlArgs, answer: Value, sentence: &str) -> Result<(), Error> {
    if args.json { write_json(&answer) } else { write_text(&format!("{sentence}\n")) }
}

/// Prints each snapshot in one line, until the run ends.
fn watch(client: &mut Client, request: &Request) -> Result<(), Error> {
    client.send(request)?;
    loop {
        let reply = match client.receive() {
            Err(ControlError::Ended) => return Ok(()),
            received => received?,
        };
        if let Some(error) = reply.error {
            return Err(ControlError::Refused(error).into());
        }
        if let Some(snapshot) = reply.snapshot {
            write_json_line(&snapshot)?;
        }
    }
}

fn list(json: bool) -> Result<(), Error> {
    let mut runs = Vec::new();
    for found in place::running() {
        // A run that is ending does not answer, and is left out.
        if let Ok(about) = Client::new(found).and_then(|mut client| client.about()) {
            runs.push(about);
        }
    }
    if json {
        return write_json(&runs);
    }
    if runs.is_empty() {
        return write_text("you have no `vprof run` in progress\n");
    }
    let mut table = TextTable::new(&[
        ("run", ColumnAlign::Right),
        ("time", ColumnAlign::Right),
        ("samples", ColumnAlign::Right),
        ("image", ColumnAlign::Left),
        ("profile", ColumnAlign::Left),
    ])
    .flexible(4);
    for run in &runs {
        table.row(vec![
            run.pid.to_string(),
            units::seconds(run.time_s),
            units::count(run.samples),
            escaped(&run.image).into_owned(),
            escaped(&run.profile.to_string_lossy()).into_owned(),
        ]);
    }
    write_text(&table.render(PageLayout::stdout().width))
}

fn status(about: &About) -> String {
    let sampling = match (&about.preparing, about.sampling) {
        (Some(step), _) => format!("not running yet: {}", escaped(step)),
        (None, _) if about.standing.is_some() => {
            escaped(about.standing.as_deref().unwrap_or_default()).into_owned()
        }
        (None, true) => format!("sampled at {}", units::rate(about.rate_hz)),
        (None, false) => "sampling is stopped".to_owned(),
    };
    let kernel =
        about.kernel.as_deref().map_or_else(|| "not found yet".to_owned(), |k| escaped(k).into_owned());
    format!(
        "run      {} (vprof {})\nimage    {}\nprofile  {}\nkernel   {kernel}\ntime     {}\nguest    {sampling}\nsamples  {}, {} lost\n",
        about.pid,
        escaped(&about.version),
        escaped(&about.image),
        escaped(&about.profile.to_string_lossy()),
        units::seconds(about.time_s),
        units::count(about.samples),
        units::count(about.lost),
    )
}
