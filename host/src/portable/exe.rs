//! This very program as the init of the portable host.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use disk_images::cpio;
use goblin::elf::{Elf, program_header};

use super::ProgramError;

/// A program and the files that it needs to start.
#[derive(Debug)]
pub struct Program {
    /// The program's bytes.
    pub bytes: Vec<u8>,
    /// Shared objects, dynamic loader included, at the paths at which it looks for them.
    pub libraries: Vec<(PathBuf, Vec<u8>)>,
}

impl Program {
    /// Adds it to an archive as `init`, with the libraries at their paths.
    pub fn write(&self, archive: &mut cpio::ArchiveWriter) {
        archive.file("init", 0o755, &self.bytes);
        let mut made = BTreeSet::new();
        for (path, content) in &self.libraries {
            let name = path.to_string_lossy();
            let name = name.trim_start_matches('/');
            for (at, _) in name.match_indices('/') {
                if made.insert(name[..at].to_owned()) {
                    archive.directory(&name[..at]);
                }
            }
            archive.file(name, 0o755, content);
        }
    }
}

/// Reads the running program without what is not loaded. A static one is all there is to it; a dynamic one
/// takes along what it has loaded.
///
/// # Errors
/// It cannot be read.
pub fn own() -> Result<Program, ProgramError> {
    let (mut program, loaded) = parse()?;
    if let Ok(end) = usize::try_from(loaded) {
        program.bytes.truncate(end);
    }
    Ok(program)
}

/// Reads the running program as [`own`] does, with its symbols.
///
/// # Errors
/// It cannot be read.
pub fn whole() -> Result<Program, ProgramError> {
    parse().map(|(program, _)| program)
}

/// True where the running program has kept its symbols.
///
/// # Errors
/// It cannot be read.
pub fn has_symbols() -> Result<bool, ProgramError> {
    let program = whole()?;
    Ok(Elf::parse(&program.bytes).is_ok_and(|elf| elf.syms.iter().next().is_some()))
}

/// The running program, and where in its file what is loaded ends.
fn parse() -> Result<(Program, u64), ProgramError> {
    let read = |path: &Path| {
        std::fs::read(path).map_err(|source| ProgramError::Read { path: path.to_owned(), source })
    };
    let bytes = read(Path::new("/proc/self/exe"))?;
    let (end, interpreter) = {
        let elf = Elf::parse(&bytes).map_err(ProgramError::Elf)?;
        let loads = elf.program_headers.iter().filter(|p| p.p_type == program_header::PT_LOAD);
        let end = loads.map(|p| p.p_offset.saturating_add(p.p_filesz)).max().unwrap_or(0);
        (end, elf.interpreter.map(PathBuf::from))
    };
    let mut libraries = Vec::new();
    if let Some(interpreter) = interpreter {
        let maps = read(Path::new("/proc/self/maps"))?;
        for path in loaded_objects(&String::from_utf8_lossy(&maps)).into_iter().chain([interpreter]) {
            let content = read(&path)?;
            libraries.push((path, content));
        }
    }
    Ok((Program { bytes, libraries }, end))
}

/// The shared objects of a process by its `/proc/PID/maps`: files that are mapped executable, besides the
/// program.
fn loaded_objects(maps: &str) -> BTreeSet<PathBuf> {
    let own = std::fs::read_link("/proc/self/exe").unwrap_or_default();
    maps.lines()
        .filter_map(|line| {
            // address perms offset dev inode path
            let mut fields = line.split_ascii_whitespace();
            let executable = fields.nth(1)?.contains('x');
            let path = line.find('/').map(|at| PathBuf::from(&line[at..]))?;
            (executable && path != own).then_some(path)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_program_is_cut_to_what_is_loaded() {
        let whole = std::fs::read("/proc/self/exe").unwrap();
        let program = own().unwrap();
        assert!(whole.starts_with(&program.bytes));
        let elf = Elf::parse(&whole).unwrap();
        assert!(
            elf.program_headers.iter().all(|p| p.p_offset + p.p_filesz <= program.bytes.len() as u64
                || p.p_type != program_header::PT_LOAD)
        );
        // Either static, or with its loader and at least libc.
        assert_eq!(elf.interpreter.is_some(), program.libraries.len() >= 2);
    }

    #[test]
    fn objects_are_read_from_maps() {
        let maps = "\
            55e0-55e1 r-xp 0000 08:01 1   /usr/bin/other\n\
            7f00-7f01 r--p 0000 08:01 2   /usr/lib/libc.so.6\n\
            7f01-7f02 r-xp 0000 08:01 2   /usr/lib/libc.so.6\n\
            7ffd-7ffe r-xp 0000 00:00 0   [vdso]\n";
        let found: Vec<_> = loaded_objects(maps).into_iter().collect();
        assert_eq!(found, [PathBuf::from("/usr/bin/other"), PathBuf::from("/usr/lib/libc.so.6")]);
    }
}
