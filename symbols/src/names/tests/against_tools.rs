//! Names, PLT entries, lines and inlined frames against nm, objdump, c++filt and llvm-symbolizer.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::names::{FunctionKind, FunctionTable, SourceLines, Symbolizer, readable, unnamed};

const LIBC: &str = "/lib/x86_64-linux-gnu/libc.so.6";

/// `address size type name` of each function that nm knows: names by start, the largest size.
fn nm(path: &str, options: &[&str]) -> Option<BTreeMap<u64, (u64, BTreeSet<String>)>> {
    let mut arguments = vec!["-S", "--defined-only"];
    arguments.extend(options);
    arguments.push(path);
    let text = tool("nm", &arguments, None)?;
    let mut functions: BTreeMap<u64, (u64, BTreeSet<String>)> = BTreeMap::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [start, size, kind, name] = words[..] else { continue };
        if !"TtWwi".contains(kind) {
            continue;
        }
        let entry = functions.entry(u64::from_str_radix(start, 16).unwrap()).or_default();
        entry.0 = entry.0.max(u64::from_str_radix(size, 16).unwrap());
        entry.1.insert(readable(name.as_bytes()));
    }
    Some(functions)
}

/// Returns true if a file of Debian is on this machine.
fn is_there(path: &str) -> bool {
    let is_there = Path::new(path).exists();
    if !is_there {
        testkit::missing(&format!("{path} (a Debian or Ubuntu; `cargo xtask deps` installs libc6-dbg)"));
    }
    is_there
}

/// Each function of nm must be found at its first and last byte, by one of its names.
fn equals_nm(table: &FunctionTable, expected: &BTreeMap<u64, (u64, BTreeSet<String>)>, path: &str) {
    let mut compared = 0;
    for (start, (size, names)) in expected {
        let Some(first) = table.find(*start, &|_| None) else {
            panic!("{path}: nothing at {start:#x} {names:?}")
        };
        assert!(names.contains(&first.name), "{path} {start:#x}: {} is none of {names:?}", first.name);
        assert_eq!(first.start, *start);
        let last = *start + size.saturating_sub(1);
        if last > *start && expected.range(*start + 1..=last).next().is_none() {
            assert_eq!(table.find(last, &|_| None).map(|f| f.name), Some(first.name), "{path} {last:#x}");
        }
        compared += 1;
    }
    assert!(compared > 100, "{path}: {compared} functions");
    eprintln!("{path}: {compared} functions equal nm's");
}

#[test]
fn functions_are_those_of_nm() {
    let own = own();
    if let Some(expected) = nm(own.to_str().unwrap(), &[]) {
        equals_nm(&FunctionTable::read(&open(&own), None), &expected, "own");
    }
    for path in ["/bin/bash", "/usr/bin/python3", LIBC] {
        if !is_there(path) {
            continue;
        }
        if let Some(expected) = nm(path, &["-D"]) {
            equals_nm(&FunctionTable::read(&open(path), None), &expected, path);
        }
    }
}

#[test]
fn a_debug_file_names_what_was_stripped() {
    if !is_there(LIBC) {
        return;
    }
    let libc = open(LIBC);
    let digits = libc.build_id().unwrap().to_string();
    let path = format!("/usr/lib/debug/.build-id/{}/{}.debug", &digits[..2], &digits[2..]);
    if !is_there(&path) {
        return;
    }
    let debug = open(&path);
    let Some(expected) = nm(&path, &[]) else { return };
    let (alone, both) = (FunctionTable::read(&libc, None), FunctionTable::read(&libc, Some(&debug)));
    assert!(both.len() > alone.len() + 500, "{} {}", both.len(), alone.len());
    equals_nm(&both, &expected, &path);
    assert!(SourceLines::open(&debug, None).is_ok());
}

#[test]
fn implementations_have_the_name_of_the_function_that_has_them() {
    if !is_there(LIBC) {
        return;
    }
    let libc = open(LIBC);
    let digits = libc.build_id().unwrap().to_string();
    let path = format!("/usr/lib/debug/.build-id/{}/{}.debug", &digits[..2], &digits[2..]);
    if !is_there(&path) {
        return;
    }
    let Some(expected) = nm(&path, &[]) else { return };
    let (exported, table) = (nm(LIBC, &["-D"]).unwrap(), FunctionTable::read(&libc, None));
    let mut compared = 0;
    for (start, (_, names)) in expected.iter().filter(|(start, _)| !exported.contains_key(*start)) {
        let found = table.find(*start, &|_| None).filter(|found| found.start == *start);
        let Some(found) = found else { continue };
        // `memcpy` for `__memcpy_avx_unaligned_erms`.
        let base = found.name.trim_start_matches('_');
        assert!(names.iter().any(|name| name.contains(base)), "{start:#x}: {} for {names:?}", found.name);
        compared += 1;
    }
    assert!(compared > 100, "{compared} implementations");
    // Each implementation of `memset` but its parts, which begin in others.
    let missing: Vec<_> = expected
        .iter()
        .filter(|(_, (_, names))| names.iter().any(|name| name.starts_with("__memset_avx")))
        .filter(|(start, _)| table.find(**start, &|_| None).is_none_or(|found| found.start != **start))
        .collect();
    assert!(missing.is_empty(), "{missing:x?}");
    eprintln!("{LIBC}: {compared} implementations have the names of their functions");
}

#[test]
fn plt_entries_are_named_as_objdump_names_them() {
    for path in ["/bin/bash", "/bin/ls", LIBC] {
        if !is_there(path) {
            continue;
        }
        let elf = open(path);
        let table = FunctionTable::read(&elf, None);
        let mut compared = 0;
        for section in [".plt", ".plt.sec", ".plt.got"].into_iter().filter(|name| elf.has_section(name)) {
            let Some(text) = tool("objdump", &["-d", "-j", section, path], None) else { continue };
            for line in text.lines().filter_map(|line| line.strip_suffix("@plt>:")) {
                let (start, name) = line.split_once(" <").unwrap();
                let start = u64::from_str_radix(start, 16).unwrap();
                let found = table.find(start + 3, &|_| None).unwrap_or_else(|| panic!("{path} {line}"));
                assert_eq!((found.start, found.kind), (start, FunctionKind::Plt), "{path} {line}");
                let name = name.split('@').next().unwrap();
                if !name.starts_with('*') {
                    assert_eq!(found.name, format!("{name}@plt"), "{path} {line}");
                }
                compared += 1;
            }
        }
        assert!(compared > 0, "{path}");
        eprintln!("{path}: {compared} PLT entries equal objdump's");
    }
}

#[test]
fn demangled_names_are_those_of_cxxfilt() {
    let mut mangled: Vec<String> = Vec::new();
    for path in [own().to_str().unwrap(), "/usr/lib/x86_64-linux-gnu/libstdc++.so.6"] {
        let options: &[&str] = if path.contains("libstdc++") { &["-D"] } else { &[] };
        let Some(text) = nm_names(path, options) else { continue };
        mangled.extend(text);
    }
    mangled.sort();
    mangled.dedup();
    let Some(expected) = tool("c++filt", &[], Some(&mangled.join("\n"))) else { return };
    let pairs = mangled.iter().zip(expected.lines());
    let different: Vec<_> =
        pairs.filter(|(from, to)| alike(&readable(from.as_bytes())) != alike(to)).collect();
    for (from, to) in different.iter().step_by(different.len() / 40 + 1) {
        eprintln!("{from}\n  c++filt {to}\n  here    {}", readable(from.as_bytes()));
    }
    eprintln!("{} of {} names differ from c++filt's", different.len(), mangled.len());
    assert!(mangled.len() > 1000 && different.len() * 20 < mangled.len());
}

fn nm_names(path: &str, options: &[&str]) -> Option<Vec<String>> {
    let mut arguments = vec!["--defined-only"];
    arguments.extend(options);
    arguments.push(path);
    let text = tool("nm", &arguments, None)?;
    let words = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let functions = words.filter(|words| words.len() == 3 && "TtWw".contains(words[1]));
    let names: Vec<String> = functions.map(|words| words[2].to_owned()).collect();
    let names = names.iter();
    let plain = names.map(|name| name.split('@').next().unwrap());
    Some(plain.filter(|name| name.starts_with("_Z") || name.starts_with("_R")).map(str::to_owned).collect())
}

/// Without blanks, where programs differ, and without the hashes that c++filt leaves to crates: `core[9b..]`.
fn alike(name: &str) -> String {
    let mut out = String::new();
    let mut rest = name;
    while let Some((before, after)) = rest.split_once('[') {
        out.push_str(before);
        let digits = after.bytes().take_while(u8::is_ascii_hexdigit).count();
        rest = after;
        match after[digits..].strip_prefix(']') {
            Some(after) if digits >= 10 => rest = after,
            _ => out.push('['),
        }
    }
    out.push_str(rest);
    out.retain(|c| !c.is_whitespace());
    // c++filt writes the types of constants: `10: usize`.
    for kind in
        ["usize", "isize", "u8", "u16", "u32", "u64", "u128", "i8", "i16", "i32", "i64", "bool", "char"]
    {
        out = out
            .replace(&format!(":{kind}>"), ">")
            .replace(&format!(":{kind}]"), "]")
            .replace(&format!(":{kind},"), ",");
    }
    let out =
        out.replace("std::basic_string<char,std::char_traits<char>,std::allocator<char>>", "std::string");
    // And the hash of Rust's older names: `name::h0123456789abcdef`.
    match out.rsplit_once("::h") {
        Some((name, hash)) if hash.len() == 16 && hash.bytes().all(|b| b.is_ascii_hexdigit()) => {
            name.to_owned()
        }
        _ => out,
    }
}

/// Function, file, line.
type Frame = (String, Option<String>, u32);
type Frames = Vec<Frame>;

fn llvm_frames(path: &str, addresses: &[u64]) -> Option<Vec<Frames>> {
    let input: Vec<String> = addresses.iter().map(|address| format!("{address:#x}")).collect();
    let object = format!("--obj={path}");
    let arguments = ["--inlining", "--functions=linkage", "--no-demangle", &object];
    let text = tool("llvm-symbolizer", &arguments, Some(&input.join("\n")))?;
    let block = |block: &str| {
        let lines: Vec<&str> = block.lines().collect();
        let frame = |pair: &[&str]| {
            let mut place = pair[1].rsplitn(3, ':');
            let (_, line, file) = (place.next(), place.next().unwrap(), place.next().unwrap());
            let file = Some(file).filter(|file| *file != "??").map(str::to_owned);
            (readable(pair[0].as_bytes()), file, line.parse().unwrap())
        };
        lines.chunks_exact(2).map(frame).collect()
    };
    Some(text.split("\n\n").filter(|block| !block.trim().is_empty()).map(block).collect())
}

/// Frames at `addresses` must be those of llvm-symbolizer, but for a few per thousand: where two functions
/// share their code each program may name the other.
fn equals_llvm(path: &str, addresses: &[u64]) -> usize {
    let Some(expected) = llvm_frames(path, addresses) else { return 0 };
    assert_eq!(expected.len(), addresses.len());
    let names = Symbolizer::new(&open(path), None, None);
    let mut different = 0;
    for (address, expected) in addresses.iter().zip(&expected) {
        let found: Frames = names
            .frames_at(*address, &|_| None)
            .into_iter()
            .map(|f| (f.function.unwrap_or_default(), f.file, f.line.unwrap_or(0)))
            .collect();
        let same = |(a, b): (&Frame, &Frame)| alike(&a.0) == alike(&b.0) && a.2 == b.2 && a.1 == b.1;
        if found.len() != expected.len() || !found.iter().zip(expected).all(same) {
            different += 1;
            if different <= 3 {
                eprintln!("{address:#x}:\n  llvm {expected:?}\n  here {found:?}");
            }
        }
    }
    assert_eq!(names.lines().unwrap().stopped(), None);
    let inlined = expected.iter().filter(|frames| frames.len() > 1).count();
    eprintln!("{path}: {different} of {} differ; {inlined} have inlined frames", addresses.len());
    assert!(different * 100 <= addresses.len(), "{different}");
    inlined
}

#[test]
fn lines_and_inlined_frames_are_those_of_llvm() {
    let own = own();
    let elf = open(&own);
    let table = FunctionTable::read(&elf, None);
    let functions: Vec<_> = table.iter().filter(|f| f.name.contains("symbols::")).collect();
    let addresses: Vec<u64> = functions
        .iter()
        .flat_map(|f| (0..f.size.unwrap_or(1)).step_by(61).map(|within| f.start + within))
        .collect();
    let step = (addresses.len() / 5000).max(1);
    let addresses: Vec<u64> = addresses.into_iter().step_by(step).collect();
    assert!(addresses.len() > 2000);
    equals_llvm(own.to_str().unwrap(), &addresses);
}

#[test]
fn a_cxx_program_has_its_names_lines_and_inlined_frames() {
    let Some(shop) = shop() else { return };
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("shop");
    std::fs::write(&path, shop).unwrap();
    let elf = open(&path);
    let table = FunctionTable::read(&elf, None);
    let sum = table.iter().find(|f| f.name == "shop::Till::sum(int) const").expect("the method");
    let addresses: Vec<u64> = (sum.start..sum.start + sum.size.unwrap()).collect();
    let lines = SourceLines::open(&elf, None).unwrap();
    let deepest = addresses.iter().map(|at| lines.frames_at(*at)).max_by_key(Vec::len).unwrap();
    let names: Vec<_> = deepest.iter().filter_map(|frame| frame.function.as_deref()).collect();
    assert_eq!(names.last(), Some(&"shop::Till::sum(int) const"), "{names:?}");
    assert!(names.len() > 1, "{names:?}");
    assert!(deepest.iter().any(|f| f.file.as_deref().unwrap_or("").ends_with("shop.cc")), "{deepest:?}");
    equals_llvm(path.to_str().unwrap(), &addresses);
}

#[test]
fn a_debugdata_section_names_functions() {
    let Some(shop) = shop() else { return };
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("shop");
    std::fs::write(&path, shop).unwrap();
    let at = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (program, mini, stripped) = (path.to_str().unwrap().to_owned(), at("mini"), at("stripped"));
    let steps: [(&str, Vec<&str>); 4] = [
        ("objcopy", vec!["--only-keep-debug", "-g", &program, &mini]),
        ("xz", vec!["-k", "-f", &mini]),
        ("strip", vec!["-o", &stripped, &program]),
        ("objcopy", vec!["--add-section", "", &stripped]),
    ];
    let add = format!(".gnu_debugdata={mini}.xz");
    for (program, mut arguments) in steps {
        arguments.iter_mut().filter(|word| word.is_empty()).for_each(|word| *word = &add);
        if tool(program, &arguments, None).is_none() {
            return;
        }
    }
    let named =
        |path: &str| FunctionTable::read(&open(path), None).iter().any(|f| f.name.contains("Till::sum"));
    assert!(open(&stripped).has_section(".gnu_debugdata"));
    assert!(named(&stripped));
}

#[test]
fn without_a_symbol_the_function_s_start_names_it() {
    let table = FunctionTable::default();
    assert_eq!(table.name_at("libz.so.1", 0x1234, &|_| Some(0x1200)), "libz.so.1[0x1200]");
    assert_eq!(table.name_at("libz.so.1", 0x1234, &|_| None), unnamed("libz.so.1", None));
}
