//! Tests on a program of this machine: compiled, stripped and named again.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use symbols::elf::ElfFile;
use tempfile::TempDir;

use super::*;
use crate::rows::{Batch, FileRow, FrameKind, Sink};
use crate::store::{Profile, ProfileWriter, Value};

/// `work` begins at line 5; `inner` and `outer`, lines 2 and 4, are copied into it.
const SOURCE: &str = "\
static inline __attribute__((always_inline)) void inner(void) {
    __asm__ volatile(\".globl inside\\ninside: nop\" ::: \"memory\");
}
static inline __attribute__((always_inline)) void outer(void) { inner(); }
__attribute__((noinline)) int work(int n) { __asm__ volatile(\"nop\");
    outer();
    return n + 1;
}
int main(int count, char **arguments) { return work(count) + (arguments == 0); }
";

/// A directory with a profile, and debug files in `dbg/.build-id`.
struct Setup {
    directory: TempDir,
    build_id: String,
    /// Addresses of `work`, `inside` and `main`.
    work: u64,
    inside: u64,
    main: u64,
}

/// Runs a tool; returns `None` if it is not installed and not required.
fn tool(program: &str, arguments: &[&str], files: &[&Path]) -> Option<()> {
    let status = testkit::tool(program)?.args(arguments).args(files).status().unwrap();
    assert!(status.success(), "{program} {arguments:?}");
    Some(())
}

fn open(path: &Path) -> ElfFile {
    ElfFile::open(Box::new(File::open(path).unwrap())).unwrap()
}

impl Setup {
    /// Compiles with `options`. The debug file is at the path of the build-id `as_if`, or of its own
    /// build-id.
    fn new(options: &[&str], as_if: Option<&str>) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::write(at("prog.c"), SOURCE).unwrap();
        let all = [options, &["-O1", "-fno-pie", "-no-pie", "-Wl,--build-id=sha1", "-o"]].concat();
        tool("cc", &all, &[&at("prog"), &at("prog.c")])?;
        tool("objcopy", &["--only-keep-debug"], &[&at("prog"), &at("prog.debug")])?;
        let elf = open(&at("prog"));
        let build_id = elf.build_id().unwrap().to_string();
        let symbols = symbols_of(&at("prog"));
        let address = |name: &str| symbols.iter().find(|(_, symbol)| symbol == name).unwrap().0;
        let (work, inside, main) = (address("work"), address("inside"), address("main"));
        let (first, rest) = as_if.unwrap_or(&build_id).split_at(2);
        fs::create_dir_all(at("dbg/.build-id").join(first)).unwrap();
        let place = at("dbg/.build-id").join(first).join(format!("{rest}.debug"));
        fs::rename(at("prog.debug"), place).unwrap();
        Some(Self { work, inside, main, build_id, directory })
    }

    fn places(&self) -> DebugFiles {
        DebugFiles::new().with_directory(self.directory.path().join("dbg"))
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("p.vprof")
    }

    /// A profile in which file 1 is the program with these frames of it.
    fn write(&self, build_id: Option<&str>, frames: Vec<FrameRow>) {
        let file = FileRow {
            id: 1,
            path: "/usr/bin/prog".to_owned(),
            build_id: build_id.map(str::to_owned),
            read_from: Some("image".to_owned()),
            named_by: Some(".dynsym".to_owned()),
            ..FileRow::default()
        };
        let batch = Batch { files: vec![file], frames, ..Batch::default() };
        let mut writer = ProfileWriter::create(&self.path(), true).unwrap();
        writer.write(&batch).unwrap();
        writer.finish().unwrap();
    }

    fn symbolize(&self) -> SymbolizeResult {
        symbolize(&self.path(), &self.places(), |_| {}).unwrap()
    }

    /// The answer to a query, columns separated by blanks.
    fn rows(&self, sql: &str) -> Vec<String> {
        let table = Profile::open(&self.path()).unwrap().query(sql).unwrap();
        let text = |value: &Value| match value {
            Value::Null => "-".to_owned(),
            Value::Integer(number) => number.to_string(),
            Value::Text(text) => text.rsplit('/').next().unwrap().to_owned(),
            other => panic!("{other:?}"),
        };
        table.rows.iter().map(|row| row.iter().map(text).collect::<Vec<_>>().join(" ")).collect()
    }

    fn frames(&self) -> Vec<String> {
        self.rows("SELECT id, symbol, offset, source, line FROM frame ORDER BY id")
    }
}

/// Address and name of all symbols, as nm(1) has them.
fn symbols_of(path: &Path) -> Vec<(u64, String)> {
    let output = testkit::tool("nm").expect("objcopy was there").arg(path).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let symbol = |line: &str| {
        let mut words = line.split(' ');
        Some((u64::from_str_radix(words.next()?, 16).ok()?, words.nth(1)?.to_owned()))
    };
    text.lines().filter_map(symbol).collect()
}

/// A frame of file 1.
fn frame(id: u32, address: u64, symbol: Option<&str>, offset: u64) -> FrameRow {
    FrameRow {
        id,
        address,
        kind: FrameKind::User,
        file: Some(1),
        symbol: symbol.map(str::to_owned),
        module: Some("prog".to_owned()),
        offset,
        ..FrameRow::default()
    }
}

#[test]
fn code_gets_names_lines_and_inlined_functions() {
    let Some(setup) = Setup::new(&["-g"], None) else { return };
    let (work, inside, main) = (setup.work, setup.inside, setup.main);
    let by_start = format!("prog[{work:#x}]");
    let frames = vec![
        frame(1, work, Some(&by_start), 0),
        frame(2, inside, Some(&by_start), inside - work),
        frame(3, main + 1, Some("prog[?]"), 0),
        frame(4, main, None, 0),
        // The instruction before this return address is `inside`.
        FrameRow { call: true, ..frame(5, inside + 1, Some(&by_start), inside + 1 - work) },
        FrameRow { file: None, ..frame(6, work, None, 0) },
        FrameRow { file: Some(2), ..frame(7, work, None, 0) },
        FrameRow { kind: FrameKind::Kernel, ..frame(8, work, Some("kernel_code"), 0) },
    ];
    setup.write(Some(&setup.build_id), frames);
    let mut reported = Vec::new();
    let result = symbolize(&setup.path(), &setup.places(), |progress| {
        reported.push((progress.done, progress.files, progress.path.to_owned()));
    })
    .unwrap();
    assert_eq!(reported, [(0, 1, "/usr/bin/prog".to_owned())]);
    assert_eq!(result.frames, FrameCounts { all: 5, before: 0, after: 5 });
    assert_eq!(result.found[0].build_id, setup.build_id);
    assert!(result.not_found.is_empty());
    assert_eq!(
        setup.frames(),
        [
            "1 work 0 prog.c 5".to_owned(),
            format!("2 work {} prog.c 6", inside - work),
            "3 main 1 prog.c 9".to_owned(),
            "4 main 0 prog.c 9".to_owned(),
            format!("5 work {} prog.c 6", inside + 1 - work),
            "6 - 0 - -".to_owned(),
            "7 - 0 - -".to_owned(),
            "8 kernel_code 0 - -".to_owned(),
        ]
    );
    let inlined =
        setup.rows("SELECT depth, symbol, source, line FROM inlined WHERE frame = 2 ORDER BY depth");
    assert_eq!(inlined, ["0 inner prog.c 2", "1 outer prog.c 4"]);
    assert_eq!(
        setup.rows("SELECT named_by FROM file"),
        [result.found[0].debug_file.rsplit('/').next().unwrap()]
    );
    let (once, twice) = (setup.frames(), setup.symbolize());
    assert_eq!(twice.frames, FrameCounts { all: 5, before: 5, after: 5 });
    assert_eq!((once, inlined.len()), (setup.frames(), 2));
}

#[test]
fn names_never_get_worse() {
    // Without DWARF: symbols alone.
    let Some(setup) = Setup::new(&[], None) else { return };
    let (work, main) = (setup.work, setup.main);
    let with_line = |row| FrameRow { source: Some("mine.c".to_owned()), line: Some(7), ..row };
    let frames = vec![
        // Nothing covers the ELF header.
        frame(1, 0x40_0010, Some("kept"), 4),
        frame(2, 0x40_0010, Some("prog[0x400008]"), 8),
        frame(3, 0x40_0010, Some("prog[?]"), 0),
        frame(4, 0x40_0010, None, 0),
        with_line(frame(5, work, Some("known_with_line"), 0)),
        frame(6, main + 1, Some("exported"), 1),
    ];
    setup.write(Some(&setup.build_id), frames);
    let result = setup.symbolize();
    assert_eq!(result.frames, FrameCounts { all: 6, before: 3, after: 3 });
    assert_eq!(
        setup.frames(),
        [
            "1 kept 4 - -",
            "2 prog[0x400008] 8 - -",
            "3 prog[?] 0 - -",
            "4 - 0 - -",
            "5 known_with_line 0 mine.c 7",
            "6 main 1 - -",
        ]
    );
}

#[test]
fn a_debug_file_that_knows_nothing_new_names_nothing() {
    let Some(setup) = Setup::new(&[], None) else { return };
    setup.write(Some(&setup.build_id), vec![frame(1, 0x40_0010, Some("kept"), 4)]);
    assert_eq!(setup.symbolize().found.len(), 1);
    assert_eq!(setup.rows("SELECT named_by FROM file"), [".dynsym"]);
}

#[test]
fn only_the_very_build_is_used() {
    let other = "00112233445566778899aabbccddeeff00112233";
    let Some(setup) = Setup::new(&["-g"], Some(other)) else { return };
    fs::copy(setup.directory.path().join("prog"), setup.directory.path().join("dbg/prog")).unwrap();
    // The file at the build-id's path, and the one of the program's name, are of another build.
    for (build_id, reason) in [
        (Some(other), "no debug file of this build"),
        (Some("0x12"), "its build-id is invalid"),
        (None, "it has no build-id"),
    ] {
        setup.write(build_id, vec![frame(1, setup.work, None, 0)]);
        let result = setup.symbolize();
        assert_eq!(setup.frames(), ["1 - 0 - -"]);
        assert_eq!((result.found.len(), result.not_found.len()), (0, 1));
        assert_eq!(result.not_found[0].reason, reason);
        assert_eq!(result.not_found[0].build_id.as_deref(), build_id);
        assert_eq!(result.not_found[0].frames, FrameCounts { all: 1, before: 0, after: 0 });
    }
    // The program itself, with its symbols, serves as well.
    setup.write(Some(&setup.build_id), vec![frame(1, setup.work, None, 0)]);
    assert_eq!(setup.symbolize().frames, FrameCounts { all: 1, before: 0, after: 1 });
    assert_eq!(setup.rows("SELECT named_by FROM file"), ["prog"]);
}
