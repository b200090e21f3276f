//! Each fuzz target on its seeds, and the text of its program.

use std::collections::BTreeSet;
use std::path::Path;

/// Runs a target on its seeds: sound ones, cut ones, and ones with a wrong byte.
fn run(seeds: fn() -> Vec<Vec<u8>>, test_one_input: fn(&[u8])) {
    let seeds = seeds();
    assert!(!seeds.is_empty());
    for seed in seeds {
        test_one_input(&seed);
        let half = seed.len() / 2;
        test_one_input(&seed[..half]);
        let mut wrong = seed;
        wrong[half] ^= 0xff;
        test_one_input(&wrong);
    }
}

macro_rules! targets {
    ($($target:ident),*) => {
        const TARGETS: &[&str] = &[$(stringify!($target)),*];

        $(#[test]
        fn $target() {
            run(fuzz_targets::$target::seeds, fuzz_targets::$target::test_one_input);
        })*
    };
}

targets!(
    accounting,
    boot,
    control,
    dwarf,
    elf,
    gdb,
    go,
    host_message,
    image,
    initrd,
    journal,
    kernel,
    kernel_stack,
    managed,
    memory,
    processes,
    profile,
    tables,
    tasks,
    text,
    user_stack,
    virtio
);

/// The program of a target.
fn program(target: &str) -> String {
    let mut imports = [target, "offer_seeds"];
    imports.sort_unstable();
    format!(
        "//! The fuzz target `{target}` under libFuzzer.\n\n\
         #![no_main]\n\n\
         use fuzz_targets::{{{}}};\n\
         use libfuzzer_sys::fuzz_target;\n\n\
         fuzz_target!(init: offer_seeds({target}::seeds), |bytes: &[u8]| {target}::test_one_input(bytes));\n",
        imports.join(", ")
    )
}

/// Returns the names of a directory's Rust files.
fn sources(directory: &Path) -> BTreeSet<String> {
    let files = std::fs::read_dir(directory).expect("a directory").map(|file| file.expect("a file").path());
    let sources = files.filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    sources.map(|path| path.file_stem().expect("a name").to_string_lossy().into_owned()).collect()
}

// The programs are not compiled here. Each is this text, so it names a function that the tests above call.
#[test]
fn every_target_is_tested_and_has_a_program() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let targets: BTreeSet<String> = TARGETS.iter().map(|&target| target.to_owned()).collect();
    let mut modules = sources(&here.join("src"));
    modules.remove("lib");
    assert_eq!(modules, targets);
    let programs = here.join("../fuzz/src/bin");
    assert_eq!(sources(&programs), targets);
    for target in &targets {
        let path = programs.join(format!("{target}.rs"));
        let text = std::fs::read_to_string(&path).expect("a program");
        assert_eq!(text, program(target), "{}", path.display());
    }
}
