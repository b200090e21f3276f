//! Compiles the guests' C and C++ programs with the machine's compilers, dynamically linked and with debug information.
//!
//! They run against Debian 12's libraries whatever the machine has, so they keep to functions that glibc and libstdc++
//! have had for long: no iostreams, no `strtol` (`__isoc23_strtol` since glibc 2.38).

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::place::{make_directory, workspace};
use crate::tools::{run, tool};

/// A program or library: where it goes in the image, and how it is made.
struct Made {
    path: &'static str,
    source: &'static str,
    compiler: &'static str,
    options: &'static [&'static str],
}

const MADE: &[Made] = &[
    Made {
        path: "usr/bin/cpp-inlined",
        source: "cpp-inlined.cc",
        compiler: "g++",
        options: &["-std=c++17", "-fomit-frame-pointer"],
    },
    Made { path: "usr/bin/dlopened", source: "dlopened.c", compiler: "gcc", options: &["-ldl"] },
    Made {
        path: "usr/lib/vprof/libplugin.so",
        source: "plugin.c",
        compiler: "gcc",
        options: &["-shared", "-fPIC", "-fomit-frame-pointer"],
    },
];

/// The sources, for fingerprints.
pub(crate) const SOURCES: &[&str] = &[
    include_str!("foreign.rs"),
    include_str!("../foreign/cpp-inlined.cc"),
    include_str!("../foreign/dlopened.c"),
    include_str!("../foreign/plugin.c"),
];

/// Where the debug information says that the sources lie.
const SOURCE_DIRECTORY: &str = "/usr/src/vprof";

/// Compiles everything below `root`, and returns the paths made.
pub(crate) fn compile(root: &Path) -> Result<Vec<PathBuf>> {
    let sources = workspace().join("guest-images/foreign");
    let mut paths = Vec::new();
    for made in MADE {
        let path = root.join(made.path);
        make_directory(path.parent().unwrap_or(root))?;
        let mut compiler = tool(made.compiler, made.compiler)?;
        compiler.args(["-O2", "-g", "-Wall", "-Wextra", "-Werror"]);
        compiler.arg(format!("-ffile-prefix-map={}={SOURCE_DIRECTORY}", sources.display()));
        compiler.arg("-o").arg(&path).arg(sources.join(made.source)).args(made.options);
        run(&mut compiler).with_context(|| format!("cannot compile {}", made.source))?;
        paths.push(path);
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn programs_compile_and_tell_what_they_did() {
        let directory = tempfile::tempdir().unwrap();
        let paths = compile(directory.path()).unwrap();
        assert_eq!(paths.len(), MADE.len());
        let output = Command::new(&paths[0]).arg("0.05").output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("bench::Multiplier::apply used 0."), "{text}");
        assert!(text.contains("bench::Shifter::apply used 0."), "{text}");
    }
}
