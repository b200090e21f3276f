//! `vprof docs`: the documentation, which the program carries with it.

use crate::args::DocsArgs;
use crate::errors::{Error, ExitCode};
use crate::output::write_text;
use crate::pager::page;

macro_rules! documents {
    ($($name:literal),* $(,)?) => {
        /// Names and texts of the files in docs/.
        const DOCUMENTS: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../../docs/", $name, ".md")))),*];
    };
}

documents! {
    "attach", "boot", "browse", "coming-from", "config", "contributing", "control", "experiments", "export", "fleet", "glossary",
    "guests", "hosts", "how-it-works", "images", "json", "limits", "mem", "page", "performance", "profile", "security", "statistics",
    "symbols", "testing", "top", "trip", "tutorial", "watch",
}

/// Returns the names of the documents.
pub fn names() -> impl Iterator<Item = &'static str> {
    DOCUMENTS.iter().map(|(name, _)| *name)
}

/// Runs the command.
pub fn command(args: &DocsArgs) -> Result<ExitCode, Error> {
    match args.name.as_deref().and_then(|name| DOCUMENTS.iter().find(|(known, _)| *known == name)) {
        Some((_, text)) => page(text)?,
        None => write_text(&list())?,
    }
    Ok(ExitCode::Done)
}

/// Returns the names of the documents, each with its title.
pub fn titles() -> impl Iterator<Item = (&'static str, &'static str)> {
    let title = |text: &'static str| text.lines().next().unwrap_or_default().trim_start_matches("# ");
    DOCUMENTS.iter().map(move |(name, text)| (*name, title(text)))
}

/// Formats the names with the documents' titles.
fn list() -> String {
    let lines: String = titles().map(|(name, title)| format!("  {name:<14}{title}\n")).collect();
    format!("`vprof docs NAME` shows one of these:\n{lines}")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn every_document_is_carried() {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs");
        let mut files: Vec<String> = fs::read_dir(directory)
            .expect("the documents")
            .filter_map(|entry| entry.expect("an entry").file_name().into_string().ok())
            .filter_map(|name| name.strip_suffix(".md").map(str::to_owned))
            .collect();
        files.sort();
        assert_eq!(names().collect::<Vec<_>>(), files);
        let list = list();
        assert!(list.contains("  images        Disk images\n"), "{list}");
        assert!(list.lines().all(|line| line.len() <= 80), "{list}");
    }
}
