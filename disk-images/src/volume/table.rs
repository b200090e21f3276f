//! Files in a table, for tests and the fuzz targets.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::sync::Arc;

use super::{DiskVolume, VolumeError, VolumeFiles};
use crate::contents::{DiskContents, DiskPart};

/// Files of a volume by path.
#[derive(Debug, Default)]
struct FileTable(BTreeMap<String, Vec<u8>>);

impl VolumeFiles for FileTable {
    fn read(&self, path: &str, most: u64) -> Result<Vec<u8>, VolumeError> {
        let missing = || VolumeError::in_file(path, io::Error::from(io::ErrorKind::NotFound));
        let bytes = self.0.get(path).ok_or_else(missing)?;
        if bytes.len() as u64 > most {
            return Err(VolumeError::TooLarge { path: path.to_owned(), most });
        }
        Ok(bytes.clone())
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

/// Returns a volume with these files, by path.
///
/// # Panics
/// /dev/null, which replaces the disk, does not exist.
pub fn volume(files: BTreeMap<String, Vec<u8>>) -> DiskVolume {
    let nothing = DiskContents::Raw(Arc::new(File::open("/dev/null").expect("/dev/null")));
    let part = DiskPart::whole(nothing).expect("a size");
    let files: Box<dyn VolumeFiles> = Box::new(FileTable(files));
    DiskVolume { part, signature: None, files: Some(Ok(files)), unreplayed: None }
}
