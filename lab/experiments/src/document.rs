//! The document that experiments write their sections into.
//!
//! ```text
//! <!-- experiment hog: written by cargo xtask experiments hog -->
//! ...
//! <!-- end of experiment hog -->
//! ```

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

/// Results of one experiment.
#[derive(Debug)]
pub struct DocumentSection {
    /// Markdown, from the heading on.
    pub text: String,
    /// File names, without `.svg`, and contents of its plots.
    pub plots: Vec<(&'static str, String)>,
}

/// `experiments.md` in a directory, and `experiments/*.svg` next to it.
#[derive(Debug)]
pub struct ExperimentDocument {
    directory: PathBuf,
}

impl ExperimentDocument {
    /// Returns the document in this directory.
    pub fn new(directory: PathBuf) -> Self {
        Self { directory }
    }

    /// Replaces the section of an experiment, or adds it at the end, and writes its plots.
    pub fn put(&self, name: &str, section: &DocumentSection) -> Result<()> {
        let plots = self.directory.join("experiments");
        fs::create_dir_all(&plots).with_context(|| format!("cannot make {}", plots.display()))?;
        for (plot, svg) in &section.plots {
            let path = plots.join(plot).with_added_extension("svg");
            fs::write(&path, svg).with_context(|| format!("cannot write {}", path.display()))?;
        }
        let path = self.directory.join("experiments.md");
        let old = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let fresh =
            with_section(&old, name, &section.text).with_context(|| format!("in {}", path.display()))?;
        fs::write(&path, fresh).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// Returns the document with this text between the marks of an experiment.
fn with_section(document: &str, name: &str, text: &str) -> Result<String> {
    let begin = format!("<!-- experiment {name}: written by cargo xtask experiments {name} -->\n");
    let end = format!("<!-- end of experiment {name} -->\n");
    let section = format!("{begin}{}\n\n{end}", text.trim());
    match (document.find(&begin), document.find(&end)) {
        (Some(from), Some(to)) if from < to => {
            Ok(format!("{}{section}{}", &document[..from], &document[to + end.len()..]))
        }
        (None, None) => Ok(format!("{}\n\n{section}", document.trim_end())),
        _ => bail!("the marks of experiment {name} are not a pair"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_is_added_and_replaced_alone() {
        let one = with_section("# Head\n", "a", "first").unwrap();
        let two = with_section(&one, "b", "other\n").unwrap();
        assert!(two.starts_with("# Head\n\n<!-- experiment a: written by"), "{two}");
        let again = with_section(&two, "a", "second").unwrap();
        assert_eq!(again, two.replace("first", "second"));
        assert!(again.contains("other"), "{again}");
    }

    #[test]
    fn half_a_pair_of_marks_is_refused() {
        let document = with_section("", "a", "x").unwrap();
        let broken = document.replace("<!-- end of experiment a -->\n", "");
        assert!(with_section(&broken, "a", "y").is_err());
    }

    #[test]
    fn plots_lie_beside_the_document() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("experiments.md");
        fs::write(&path, "# Head\n").unwrap();
        let section = DocumentSection { text: "text".into(), plots: vec![("p", "<svg/>".into())] };
        ExperimentDocument::new(directory.path().to_owned()).put("a", &section).unwrap();
        assert_eq!(fs::read_to_string(directory.path().join("experiments/p.svg")).unwrap(), "<svg/>");
        assert!(fs::read_to_string(path).unwrap().contains("\ntext\n"));
    }
}
