//! Files in a table, for tests and the fuzz targets.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;

use super::{Files, Volume};
use crate::contents::{Contents, Part};

/// Files by path.
#[derive(Debug, Default)]
struct Table(BTreeMap<String, Vec<u8>>);

impl Files for Table {
    fn read(&self, path: &str, most: u64) -> Result<Vec<u8>, String> {
        let bytes = self.0.get(path).ok_or("no such file")?;
        if bytes.len() as u64 > most { Err("too large".to_owned()) } else { Ok(bytes.clone()) }
    }

    fn is_file(&self, path: &str) -> bool {
        self.0.contains_key(path)
    }

    fn names(&self, directory: &str) -> Vec<String> {
        let start = format!("{}/", directory.trim_end_matches('/'));
        let below = self.0.keys().filter_map(|path| path.strip_prefix(&start));
        below.filter(|name| !name.contains('/')).map(str::to_owned).collect()
    }

    fn resolved(&self, path: String) -> String {
        path
    }
}

/// A volume with these files, by path.
///
/// # Panics
/// There is no /dev/null, which stands for its disk.
pub fn volume(files: BTreeMap<String, Vec<u8>>) -> Volume {
    let nothing = Contents::Raw(Arc::new(File::open("/dev/null").expect("/dev/null")));
    let part = Part::whole(nothing).expect("a size");
    let files: Box<dyn Files> = Box::new(Table(files));
    Volume { part, signature: None, files: Some(Ok(files)) }
}
