//! The guests' C and C++ programs: compiled by the machine's compilers, dynamically linked, with debug
//! information.
//!
//! The programs run with Debian 12's libraries, which may be older than the machine's. Therefore they use
//! only functions that glibc and libstdc++ have had for long: no iostreams, no `strtol` (`__isoc23_strtol`
//! since glibc 2.38).

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::place::{make_directory, workspace};
use crate::tools::{run, tool};

/// Program or library: its path in the image, and the way to compile it.
struct ForeignProgram {
    path: &'static str,
    source: &'static str,
    compiler: &'static str,
    options: &'static [&'static str],
}

const PROGRAMS: &[ForeignProgram] = &[
    ForeignProgram {
        path: "usr/bin/cpp-inlined",
        source: "cpp-inlined.cc",
        compiler: "g++",
        options: &["-std=c++17", "-fomit-frame-pointer"],
    },
    ForeignProgram { path: "usr/bin/dlopened", source: "dlopened.c", compiler: "gcc", options: &["-ldl"] },
    ForeignProgram {
        path: "usr/lib/vprof/libplugin.so",
        source: "plugin.c",
        compiler: "gcc",
        options: &["-shared", "-fPIC", "-fomit-frame-pointer"],
    },
];

/// Sources, for fingerprints.
pub(crate) const SOURCES: &[&str] = &[
    include_str!("foreign.rs"),
    include_str!("../foreign/cpp-inlined.cc"),
    include_str!("../foreign/dlopened.c"),
    include_str!("../foreign/plugin.c"),
];

/// Directory of the sources in the debug information.
const SOURCE_DIRECTORY: &str = "/usr/src/vprof";

/// Compiles all programs into `root`, and returns their paths.
pub(crate) fn compile(root: &Path) -> Result<Vec<PathBuf>> {
    let sources = workspace().join("guest-images/foreign");
    let mut paths = Vec::new();
    for program in PROGRAMS {
        let path = root.join(program.path);
        make_directory(path.parent().unwrap_or(root))?;
        let mut compiler = tool(program.compiler, program.compiler)?;
        compiler.args(["-O2", "-g", "-Wall", "-Wextra", "-Werror"]);
        compiler.arg(format!("-ffile-prefix-map={}={SOURCE_DIRECTORY}", sources.display()));
        compiler.arg("-o").arg(&path).arg(sources.join(program.source)).args(program.options);
        run(&mut compiler).with_context(|| format!("cannot compile {}", program.source))?;
        paths.push(path);
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn programs_compile_and_report_their_work() {
        let directory = tempfile::tempdir().unwrap();
        let paths = compile(directory.path()).unwrap();
        assert_eq!(paths.len(), PROGRAMS.len());
        let output = Command::new(&paths[0]).arg("0.05").output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("bench::Multiplier::apply used 0."), "{text}");
        assert!(text.contains("bench::Shifter::apply used 0."), "{text}");
    }
}
