//! Ways in for the fuzz targets.

use std::collections::BTreeMap;
use std::path::Path;

use crate::choice;
use crate::survey::Survey;
use crate::volume::table;

/// What a disk with these files would boot, by the configurations of boot loaders among them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bootable {
    /// Paths of kernels, in the order of the choice.
    pub kernels: Vec<String>,
    /// Initrds of each.
    pub initrds: Vec<Vec<String>>,
    /// Words of each for the kernel's command line.
    pub words: Vec<String>,
    /// The sentence on the choice, or on why there is none.
    pub sentence: String,
}

/// Looks for kernels in the files of a disk without partitions, as a boot loader would.
pub fn bootable(files: BTreeMap<String, Vec<u8>>) -> Bootable {
    let survey = Survey { table: None, volumes: vec![table::volume(files)] };
    let entries = survey.entries();
    let sentence = match choice::choose(&survey, Path::new("disk")) {
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
