//! Kernel and initrd of the guests of the self-test: a kernel of this machine, and this program as the only
//! file.

use std::fs;
use std::path::{Path, PathBuf};

use disk_images::cpio;
use host::portable::{PortableError, ProgramError, bundle, exe};

use super::guest::{GuestLoad, LOAD_FILE};
use crate::errors::{Error, UsageError};

/// Returns the kernel to boot: the given one, else that of this machine, else that of the portable host.
///
/// # Errors
/// No kernel is readable.
pub fn find_kernel(given: Option<&Path>, portable: Option<&Path>) -> Result<PathBuf, Error> {
    if let Some(path) = given {
        return Ok(path.to_owned());
    }
    let own = own_kernel();
    if fs::File::open(&own).is_ok() {
        return Ok(own);
    }
    match bundle::find(portable) {
        Ok(bundle) => Ok(bundle.kernel),
        Err(_) => Err(UsageError::NoKernel(own).into()),
    }
}

/// Returns the file of the running kernel, by the name that distributions use.
fn own_kernel() -> PathBuf {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    Path::new("/boot").join(format!("vmlinuz-{}", release.trim()))
}

/// Makes the initial file system with this program as init.
///
/// # Errors
/// The running program cannot be read.
pub fn make_initrd(load: &GuestLoad) -> Result<Vec<u8>, Error> {
    let mut archive = cpio::ArchiveWriter::append_to(Vec::new());
    for directory in ["dev", "proc", "vprof"] {
        archive.directory(directory);
    }
    exe::whole().map_err(PortableError::Program)?.write(&mut archive);
    let load = serde_json::to_vec(load).map_err(|error| PortableError::Program(ProgramError::Job(error)))?;
    archive.file(LOAD_FILE.trim_start_matches('/'), 0o644, &load);
    Ok(archive.finish())
}
