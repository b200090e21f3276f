//! Entry points of the fuzz targets.

use std::collections::BTreeMap;
use std::path::Path;

use crate::choice;
use crate::survey::DiskSurvey;
use crate::volume::table;

/// Kernels that the boot loaders of a disk would boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bootable {
    /// Paths of kernels, in the order of the choice.
    pub kernels: Vec<String>,
    /// Initrds of each kernel.
    pub initrds: Vec<Vec<String>>,
    /// Words for the command line of each kernel.
    pub words: Vec<String>,
    /// Sentence that explains the choice, or the reason for which there is none.
    pub sentence: String,
}

/// Searches the files of a disk without partitions for kernels, as a boot loader would.
pub fn bootable(files: BTreeMap<String, Vec<u8>>) -> Bootable {
    let survey = DiskSurvey { table: None, volumes: vec![table::volume(files)] };
    let entries = survey.entries();
    let sentence = match choice::choose(&survey, entries.first(), Path::new("disk")) {
        Ok(choice) => choice.sentence,
        Err(error) => error.to_string(),
    };
    Bootable {
        kernels: entries.iter().map(|entry| entry.kernel.clone()).collect(),
        initrds: entries.iter().map(|entry| entry.initrds.clone()).collect(),
        words: entries
            .iter()
            .map(|entry| choice::words(&survey, entry.options.as_deref(), !entry.initrds.is_empty()))
            .collect(),
        sentence,
    }
}
