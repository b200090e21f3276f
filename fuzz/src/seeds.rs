//! Seeds: sound inputs that a target starts from, written by code when they are asked for.

use std::path::Path;

/// Names the directory that a target writes its seeds into, instead of running.
pub const VARIABLE: &str = "VPROF_FUZZ_SEEDS";

/// Writes `seeds` and ends the process, if [`VARIABLE`] is set. To be called before fuzzing starts.
pub fn offer<F, S>(seeds: F)
where
    F: FnOnce() -> S,
    S: IntoIterator<Item = Vec<u8>>,
{
    let Some(directory) = std::env::var_os(VARIABLE) else { return };
    for (number, seed) in seeds().into_iter().enumerate() {
        let path = Path::new(&directory).join(format!("seed-{number}"));
        if let Err(error) = std::fs::write(&path, seed) {
            eprintln!("error: cannot write {}: {error}", path.display());
            std::process::exit(1);
        }
    }
    std::process::exit(0);
}
