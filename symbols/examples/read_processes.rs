//! Reads processes out of a dump of a guest's RAM: mappings, files, arguments, control groups, interrupts.
//!
//! ```text
//! cargo run --release -p symbols --example read_processes -- RAM CR3 [la57] [truth=FILE [root=DIR]...] [file=PATH:OUT]...
//! ```
//!
//! RAM and CR3 as for `read_dump`. `truth` compares with what the guest said of itself right before, in lines
//! of "KIND PID TEXT": `MAP` with a line of `/proc/PID/maps`, `CGROUP` with one of `/proc/PID/cgroup`, `STATUS`
//! with the `PPid:` and `Uid:` lines of `/proc/PID/status`, `CMD` with `/proc/PID/cmdline` in hexadecimal, `EXE`
//! with the target of `/proc/PID/exe` in hexadecimal and "MAJOR:MINOR INODE SIZE SECONDS.NANOSECONDS" of it,
//! `IRQ 0` with a line of `/proc/interrupts`. Differences are printed; the exit code is 1 if there are any.
//! `root` names a directory that processes have as their root: their paths start there, those that the guest
//! said do not. Every mapped file is looked up by its path, too: another one is a difference. `file` writes the
//! pages of a mapped file that the page cache holds to OUT, and zeros for the others.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::File;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use symbols::{
    FileRef, Interrupts, Kernel, Mapping, MappingKind, Missing, PageCache, Process, TaskSnapshot, VirtAddr,
    container, systemd_unit,
};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

/// How often a read is repeated to time it.
const ROUNDS: u32 = 1000;

/// What was read of one process.
struct Read {
    task: TaskSnapshot,
    process: Process,
    mappings: Result<Vec<Mapping>, Missing>,
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(ram), Some(cr3)) = (args.next(), args.next()) else {
        eprintln!("usage: read_processes RAM CR3 [la57] [truth=FILE [root=DIR]...] [file=PATH:OUT]...");
        return Ok(ExitCode::from(2));
    };
    let rest: Vec<String> = args.collect();
    let memory = load(&ram)?;
    let cr3 = u64::from_str_radix(cr3.trim_start_matches("0x"), 16)?;
    let kernel = Kernel::find(&memory, cr3, rest.iter().any(|arg| arg == "la57"))?;
    println!("release  {}", kernel.release().unwrap_or("?"));
    let found: Vec<Read> = kernel
        .tasks(&memory)?
        .into_iter()
        .filter(|task| task.tid == task.pid)
        .map(|task| Read {
            task,
            process: kernel.process(&memory, task.task),
            mappings: kernel.mappings(&memory, task.task),
        })
        .collect();
    for read in &found {
        print(&kernel, &memory, read);
    }
    let interrupts = kernel.interrupts(&memory);
    print_interrupts(&kernel, &memory, &interrupts);
    time(&kernel, &memory, &found);

    let mut differences = look_up(&kernel, &memory, &found);
    for arg in &rest {
        match arg.split_once('=') {
            Some(("truth", file)) => {
                let truth = String::from_utf8_lossy(&std::fs::read(file)?).replace('\r', "");
                let roots = rest.iter().filter_map(|arg| arg.strip_prefix("root=")).collect();
                differences += compare(&found, &interrupts, &truth, roots);
            }
            Some(("file", what)) => {
                let (path, out) = what.split_once(':').ok_or("file=PATH:OUT")?;
                save(&kernel, &memory, &found, path, out)?;
            }
            _ => {}
        }
    }
    println!("differences {differences}");
    Ok(ExitCode::from(u8::from(differences > 0)))
}

fn load(path: &str) -> Result<GuestMemoryMmap, Box<dyn Error>> {
    let mut file = File::open(path)?;
    let size = usize::try_from(file.metadata()?.len())?;
    let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), size)])?;
    memory.read_exact_volatile_from(GuestAddress(0), &mut file, size)?;
    Ok(memory)
}

/// Looks up every mapped file by its path; returns how many led to another one.
fn look_up(kernel: &Kernel, memory: &GuestMemoryMmap, found: &[Read]) -> usize {
    let (mut same, mut below, mut others) = (0, 0, 0);
    let start = Instant::now();
    for Read { task, mappings, .. } in found {
        for mapping in mappings.iter().flatten() {
            let MappingKind::File(file) = &mapping.kind else { continue };
            if file.deleted {
                continue;
            }
            let found = kernel
                .root_directory(memory, task.task)
                .and_then(|root| kernel.lookup(memory, root, &file.raw_path));
            match found {
                Ok(other) if other == **file => same += 1,
                // In a lower layer of a stacked file system.
                Err(Missing::NotCached) if file.stacked.is_some() => below += 1,
                other => {
                    others += 1;
                    println!("lookup   {} {file:?}\n         led to {other:?}", task.pid);
                }
            }
        }
    }
    println!(
        "lookup   {same} mapped files found again, {below} in lower layers, {others} not, in {:?}",
        start.elapsed()
    );
    others
}

fn print(kernel: &Kernel, memory: &GuestMemoryMmap, read: &Read) {
    let Read { task, process, mappings } = read;
    let name = String::from_utf8_lossy(&task.comm);
    println!("process  {} {} {process:?}", task.pid, name.trim_end_matches('\0'));
    if let Ok(cgroup) = &process.cgroup
        && cgroup != "/"
    {
        println!("         unit {:?}, container {:?}", systemd_unit(cgroup), container(cgroup));
    }
    match kernel.work_function(memory, task.task) {
        Ok(Some(at)) => println!("         works on {:?}", kernel.symbol_at(at)),
        Ok(None) => {}
        Err(missing) => println!("         {missing}"),
    }
    match mappings {
        Err(Missing::NoUserMemory) => {}
        Err(missing) => println!("         {missing}"),
        Ok(mappings) => {
            for mapping in mappings {
                println!("         {}", line(mapping));
                // One descent must find the same.
                for at in [mapping.start, mapping.end - 1] {
                    let again = kernel.mapping_at(memory, task.task, VirtAddr(at));
                    assert_eq!(again.as_ref(), Ok(&Some(mapping.clone())));
                }
            }
        }
    }
}

fn print_interrupts(kernel: &Kernel, memory: &GuestMemoryMmap, interrupts: &Interrupts) {
    let name = |at: VirtAddr| kernel.symbol_at(at).map_or("?".into(), |s| s.name.to_owned());
    for line in interrupts.lines.iter().flatten().filter(|line| !line.actions.is_empty()) {
        let actions: Vec<_> = line
            .actions
            .iter()
            .map(|a| format!("{} {} {:?}", a.name, name(a.handler), a.thread.map(name)))
            .collect();
        println!("irq {:<4} {actions:?}", line.irq);
    }
    let softirqs: Vec<_> = interrupts
        .softirqs
        .iter()
        .flatten()
        .map(|s| format!("{} {:?}", s.name, s.handler.map(name)))
        .collect();
    println!("softirqs {softirqs:?}");
    println!("vectors  {:?}", interrupts.vectors);
    println!("missing  {:?} {:?}", interrupts.lines.as_ref().err(), interrupts.softirqs.as_ref().err());
    match kernel.system_calls(memory) {
        Ok(calls) => {
            let named = calls.iter().flatten().count();
            println!("syscalls {} numbers, {named} named: {:?}", calls.len(), &calls[..calls.len().min(512)]);
        }
        Err(missing) => println!("syscalls {missing}"),
    }
}

/// Times reads of the process with most mappings.
fn time(kernel: &Kernel, memory: &GuestMemoryMmap, found: &[Read]) {
    let count = |read: &&Read| read.mappings.as_ref().map_or(0, Vec::len);
    let python = found.iter().filter(|read| read.task.comm.starts_with(b"python3")).min_by_key(count);
    for read in [python, found.iter().max_by_key(count)].into_iter().flatten() {
        let task = read.task.task;
        let files = read.mappings.iter().flatten().filter(|m| matches!(m.kind, MappingKind::File(_))).count();
        println!("process {} with {} mappings, {files} of files:", read.task.pid, count(&read));
        timed("mappings", || kernel.mappings(memory, task).map_or(0, |m| m.len()) == count(&read));
        let inside = VirtAddr(read.mappings.iter().flatten().last().map_or(0, |m| m.start));
        timed("mapping_at", || kernel.mapping_at(memory, task, inside).is_ok_and(|m| m.is_some()));
        timed("process", || kernel.process(memory, task) == read.process);
    }
}

fn timed(name: &str, mut what: impl FnMut() -> bool) {
    let start = Instant::now();
    for _ in 0..ROUNDS {
        assert!(what(), "{name} changed");
    }
    println!("time: {name:<10} {:>10.2?}", start.elapsed() / ROUNDS);
}

/// A mapping as a line of `/proc/PID/maps`.
fn line(mapping: &Mapping) -> String {
    let flag = |set, letter| if set { letter } else { '-' };
    let (offset, device, inode, name) = match &mapping.kind {
        MappingKind::File(file) => {
            // Since 6.8 the guest shows the file that was opened, before that the one that has the bytes.
            let deleted = if file.deleted { " (deleted)" } else { "" };
            (mapping.file_offset, file.device, file.inode, format!("{}{deleted}", file.path))
        }
        MappingKind::UnknownFile => (mapping.file_offset, (0, 0), 0, "?".into()),
        MappingKind::Anonymous => (0, (0, 0), 0, String::new()),
        MappingKind::Heap => (0, (0, 0), 0, "[heap]".into()),
        MappingKind::Stack => (0, (0, 0), 0, "[stack]".into()),
        MappingKind::Vdso => (0, (0, 0), 0, "[vdso]".into()),
        MappingKind::Vvar => (0, (0, 0), 0, "[vvar]".into()),
        MappingKind::Special(name) => (0, (0, 0), 0, name.clone()),
    };
    format!(
        "{:08x}-{:08x} {}{}{}{} {offset:08x} {:02x}:{:02x} {inode} {name}",
        mapping.start,
        mapping.end,
        flag(mapping.read, 'r'),
        flag(mapping.write, 'w'),
        flag(mapping.execute, 'x'),
        if mapping.shared { 's' } else { 'p' },
        device.0,
        device.1,
    )
}

/// The same with the file that was opened, where that is another one.
fn opened_line(mapping: &Mapping) -> String {
    let MappingKind::File(file) = &mapping.kind else { return line(mapping) };
    let Some(stacked) = &file.stacked else { return line(mapping) };
    let mut file = FileRef::clone(file);
    (file.device, file.inode) = (stacked.device, stacked.inode);
    line(&Mapping { kind: MappingKind::File(file.into()), ..mapping.clone() })
}

/// Compares with what the guest said; returns the number of differences.
fn compare(found: &[Read], interrupts: &Interrupts, truth: &str, roots: Vec<&str>) -> usize {
    let mut said: BTreeMap<(i32, &str), Vec<&str>> = BTreeMap::new();
    for line in truth.lines() {
        let mut words = line.splitn(3, ' ');
        if let (Some(kind), Some(Ok(pid)), Some(text)) =
            (words.next(), words.next().map(str::parse), words.next())
        {
            said.entry((pid, kind)).or_default().push(text);
        }
    }
    let mut compared = Compared { said, same: BTreeMap::new(), different: 0, roots };
    for read in found {
        compared.process(read);
    }
    compared.interrupts(interrupts);
    println!("equal    {:?}", compared.same);
    compared.different
}

struct Compared<'a> {
    said: BTreeMap<(i32, &'a str), Vec<&'a str>>,
    same: BTreeMap<&'static str, usize>,
    different: usize,
    /// Directories that processes have as their root.
    roots: Vec<&'a str>,
}

impl Compared<'_> {
    fn check(&mut self, kind: &'static str, pid: i32, (said, read): (&str, &str)) {
        if said == read {
            *self.same.entry(kind).or_default() += 1;
        } else {
            println!("differs: {kind} {pid}: said {said:?}, read {read:?}");
            self.different += 1;
        }
    }

    fn lines(&self, pid: i32, kind: &str) -> Vec<String> {
        self.said.get(&(pid, kind)).into_iter().flatten().map(|line| (*line).to_owned()).collect()
    }

    fn process(&mut self, read: &Read) {
        let pid = read.task.pid;
        let lines = self.lines(pid, "MAP");
        // The guest adds a mapping that no process has (`gate_vma`, arch/x86/entry/vsyscall).
        let lines: Vec<_> = lines.iter().filter(|line| !line.ends_with("[vsyscall]")).collect();
        let mappings = read.mappings.as_deref().unwrap_or(&[]);
        self.check("count", pid, (&lines.len().to_string(), &mappings.len().to_string()));
        for (said, mapping) in lines.iter().zip(mappings) {
            let mut words: Vec<&str> = said.splitn(6, ' ').collect();
            let name = words.pop().unwrap_or_default().trim_start();
            let said = format!("{} {}", words.join(" "), escape(name));
            let read = [line(mapping), opened_line(mapping)];
            // What another root holds is told from that root.
            let said = self.roots.iter().fold(said, |said, root| said.replace(&format!(" {root}/"), " /"));
            let best = read.iter().find(|line| **line == said).unwrap_or(&read[1]);
            self.check("mapping", pid, (&said, best));
        }
        for said in self.lines(pid, "STATUS") {
            let mut words = said.split_whitespace();
            let (kind, value) = (words.next(), words.next().unwrap_or_default());
            let (name, read) = match kind {
                Some("PPid:") => ("parent", read.process.parent.as_ref().map(ToString::to_string)),
                _ => ("uid", read.process.uid.as_ref().map(ToString::to_string)),
            };
            self.check(name, pid, (value, &read.unwrap_or_default()));
        }
        for said in self.lines(pid, "CGROUP") {
            if let Some(path) = said.strip_prefix("0::") {
                self.check("cgroup", pid, (path, read.process.cgroup.as_deref().unwrap_or_default()));
            }
        }
        for said in self.lines(pid, "CMD") {
            self.argv(pid, &said, &read.process.argv);
        }
        for said in self.lines(pid, "EXE") {
            self.exe(pid, &said, &read.process.exe);
        }
    }

    fn argv(&mut self, pid: i32, said: &str, read: &Result<Vec<String>, Missing>) {
        let mut bytes = hex(said);
        bytes.truncate(4096);
        let text = bytes.strip_suffix(&[0]).unwrap_or(&bytes);
        let said: Vec<String> = text.split(|&b| b == 0).map(printable).collect();
        let said = if bytes.is_empty() { Vec::new() } else { said };
        let read = read.as_deref().unwrap_or(&[]);
        self.check("argv", pid, (&said.join("\n"), &read.join("\n")));
    }

    fn exe(&mut self, pid: i32, said: &str, read: &Result<FileRef, Missing>) {
        let words: Vec<&str> = said.split(' ').collect();
        let path = words.first().map(|path| hex(path)).unwrap_or_default();
        let Ok(exe) = read else { return self.check("exe", pid, (said, "nothing")) };
        let mut raw = exe.raw_path.clone();
        if exe.deleted {
            raw.extend(b" (deleted)");
        }
        let path = printable(&path);
        let path = self.roots.iter().find_map(|root| path.strip_prefix(*root)).unwrap_or(&path);
        self.check("exe path", pid, (path, &printable(&raw)));
        let (seconds, nanoseconds) = exe.modified.unwrap_or_default();
        let (device, inode) = exe.stacked.as_ref().map_or((exe.device, exe.inode), |s| (s.device, s.inode));
        let mut said = words.get(1..).unwrap_or(&[]).to_vec();
        let device = format!("{}:{}", device.0, device.1);
        let rest = format!("{inode} {} {seconds}.{nanoseconds}", exe.size);
        // overlayfs shows another device for each of its layers (Documentation/filesystems/overlayfs.rst).
        if exe.stacked.is_some() && !said.is_empty() {
            said[0] = &device;
        }
        self.check("exe file", pid, (&said.join(" "), &format!("{device} {rest}")));
    }

    /// The names at the ends of the lines that start with a number.
    fn interrupts(&mut self, interrupts: &Interrupts) {
        let mut read = BTreeMap::new();
        for line in interrupts.lines.iter().flatten() {
            let names: Vec<_> = line.actions.iter().map(|action| action.name.as_str()).collect();
            read.insert(line.irq, names.join(", "));
        }
        for said in self.lines(0, "IRQ") {
            let Some((irq, rest)) = said.split_once(':') else { continue };
            let Ok(irq) = irq.trim().parse::<u32>() else { continue };
            let names = read.get(&irq).map_or("", String::as_str);
            let tail = rest.trim_end();
            let read = if tail.ends_with(names) && !names.is_empty() { tail } else { names };
            self.check("interrupt", 0, (tail, read));
        }
    }
}

/// As the guest's kernel escapes names in `/proc/PID/maps`: a newline alone.
fn escape(name: &str) -> String {
    printable(name.as_bytes())
}

fn printable(bytes: &[u8]) -> String {
    bytes.iter().map(|&b| if (b' '..=b'~').contains(&b) { char::from(b) } else { '?' }).collect()
}

fn hex(digits: &str) -> Vec<u8> {
    digits
        .as_bytes()
        .chunks_exact(2)
        .filter_map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect()
}

/// Writes what the page cache has of the file at `path`.
fn save(
    kernel: &Kernel,
    memory: &GuestMemoryMmap,
    found: &[Read],
    path: &str,
    out: &str,
) -> Result<(), Box<dyn Error>> {
    let file = found
        .iter()
        .flat_map(|read| read.mappings.iter().flatten())
        .find_map(|mapping| match &mapping.kind {
            MappingKind::File(file) if file.path == path => Some(Arc::clone(file)),
            _ => None,
        })
        .ok_or_else(|| format!("nothing has mapped {path}"))?;
    let cache = PageCache::new(kernel, memory)?;
    let mut bytes = vec![0; usize::try_from(file.size)?];
    let start = Instant::now();
    let mut there = 0;
    for (number, page) in (0u64..).zip(bytes.chunks_mut(4096)) {
        there += u32::from(cache.read(memory, &file, number * 4096, page).is_some());
    }
    let pages = bytes.len().div_ceil(4096);
    println!("file     {path}: {there} of {pages} pages in {:.1?}", start.elapsed());
    let mut present = 0;
    let start = Instant::now();
    let mut whole = vec![0; bytes.len()];
    if cache.read(memory, &file, 0, &mut whole).is_some() {
        present += 1;
        assert_eq!(whole, bytes);
    }
    println!("         at once: {present} in {:.1?}", start.elapsed());
    std::fs::write(out, bytes)?;
    Ok(())
}
