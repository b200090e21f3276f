//! `vprof mem`: the numbers of a guest that runs, against those that the guest itself shows.

use std::collections::HashMap;

use serde_json::Value;
use vprof_tests::EmulatedGuest;

/// A process in a control group has 48 MiB of anonymous memory, a file of 16 MiB, and one of 8 MiB in tmpfs;
/// then the guest prints its own numbers, each line with the name of its source.
const SCRIPT: &str = r#"
cd /sys/fs/cgroup && echo +memory > cgroup.subtree_control && mkdir held && cd /
cat > /tmp/hold.py << 'END'
import os, time
own = bytearray(48 << 20)
for at in range(0, len(own), 4096): own[at] = 1
with open('/var/tmp/cached', 'wb') as file: file.write(b'x' * (16 << 20))
with open('/dev/shm/shared', 'wb') as file: file.write(b'x' * (8 << 20))
with open('/run/pid', 'w') as file: file.write(str(os.getpid()))
time.sleep(900)
END
(echo 0 > /sys/fs/cgroup/held/cgroup.procs; exec python3 /tmp/hold.py) &
while [ ! -s /run/pid ]; do sleep 0.2; done
sync; sleep 8
for source in /sys/fs/cgroup/held/memory.stat /sys/fs/cgroup/held/memory.current /proc/$(cat /run/pid)/smaps_rollup \
    /proc/slabinfo /proc/meminfo; do
    while read -r line; do echo "own $source $line"; done < $source
done
echo ready; wait
"#;

/// Difference that a guest makes by reading and printing its own numbers, bytes: some tasks, their memory and
/// their kernel objects.
const OWN_WORK: u64 = 1 << 20;

/// Numbers of the guest, bytes: by the last part of their source's path and the first word of their line.
fn own_numbers(console: &str) -> HashMap<(String, String), u64> {
    let mut numbers = HashMap::new();
    for line in console.lines().filter_map(|line| line.trim().strip_prefix("own ")) {
        let mut words = line.split_whitespace();
        let (Some(source), Some(name)) = (words.next(), words.next()) else { continue };
        let source = source.rsplit('/').next().unwrap_or_default().to_owned();
        // One number has no name, and the objects of a slab cache are the second number.
        let number = match source.as_str() {
            "memory.current" => Some(name),
            "slabinfo" => words.nth(1),
            _ => words.next(),
        };
        let Some(number) = number.and_then(|number| number.parse::<u64>().ok()) else { continue };
        let unit = if line.ends_with(" kB") { 1024 } else { 1 };
        let name = if source == "memory.current" { "" } else { name.trim_end_matches(':') };
        numbers.insert((source, name.to_owned()), number * unit);
    }
    numbers
}

/// Asserts that a number is the guest's own within 1 %, or within what the guest itself does meanwhile.
fn assert_near(what: &str, found: &Value, own: Option<&u64>, slack: u64) {
    let (Some(found), Some(own)) = (found.as_u64(), own) else {
        panic!("{what}: {found} is not {own:?}");
    };
    assert!(found.abs_diff(*own) <= slack.max(own / 100), "{what}: {found} is not {own}");
}

/// Names of vprof and of /proc/meminfo.
const MEMINFO: [(&str, &str); 27] = [
    ("total", "MemTotal"),
    ("free", "MemFree"),
    ("available", "MemAvailable"),
    ("buffers", "Buffers"),
    ("cached", "Cached"),
    ("swap_cached", "SwapCached"),
    ("active_anon", "Active(anon)"),
    ("inactive_anon", "Inactive(anon)"),
    ("active_file", "Active(file)"),
    ("inactive_file", "Inactive(file)"),
    ("unevictable", "Unevictable"),
    ("mlocked", "Mlocked"),
    ("swap_total", "SwapTotal"),
    ("swap_free", "SwapFree"),
    ("anonymous", "AnonPages"),
    ("mapped", "Mapped"),
    ("shmem", "Shmem"),
    ("kernel_reclaimable", "KReclaimable"),
    ("slab_reclaimable", "SReclaimable"),
    ("slab_unreclaimable", "SUnreclaim"),
    ("kernel_stacks", "KernelStack"),
    ("page_tables", "PageTables"),
    ("secondary_page_tables", "SecPageTables"),
    ("vmalloc", "VmallocUsed"),
    ("per_cpu", "Percpu"),
    ("anon_huge", "AnonHugePages"),
    ("huge_pool", "Hugetlb"),
];

fn assert_memory(memory: &Value, console: &str) {
    let own = own_numbers(console);
    let number = |source: &str, name: &str| own.get(&(source.to_owned(), name.to_owned()));
    for (ours, theirs) in MEMINFO {
        let what = format!("{theirs} of /proc/meminfo");
        assert_near(&what, &memory["meminfo"][ours], number("meminfo", theirs), OWN_WORK);
    }
    let rows = |kind: &str| memory[kind]["rows"].as_array().expect("rows");
    let process = rows("processes").iter().find(|row| row["group"] == "/held").expect("the process");
    assert_near("Rss of smaps_rollup", &process["resident"], number("smaps_rollup", "Rss"), 0);
    assert_near("Anonymous of smaps_rollup", &process["anonymous"], number("smaps_rollup", "Anonymous"), 0);
    let group = rows("groups").iter().find(|row| row["path"] == "/held").expect("the group");
    assert_near("memory.current", &group["current"], number("memory.current", ""), 0);
    for (ours, theirs) in [("anonymous", "anon"), ("file", "file"), ("shmem", "shmem"), ("slab", "slab")] {
        assert_near(theirs, &group["stat"][ours], number("memory.stat", theirs), 64 << 10);
    }
    for (ours, theirs) in [("kernel_stacks", "kernel_stack"), ("page_tables", "pagetables")] {
        assert_near(theirs, &group["stat"][ours], number("memory.stat", theirs), 0);
    }
    let dentries = rows("slabs").iter().find(|row| row["name"] == "dentry").expect("a cache of names");
    assert_near("objects of dentry", &dentries["objects"], number("slabinfo", "dentry"), 100);
    assert_files(memory);
    let parts = memory["holders"].as_array().expect("holders").iter();
    let sum: u64 = parts.filter_map(|part| part["bytes"].as_u64()).sum();
    assert_eq!(Some(sum), memory["meminfo"]["total"].as_u64(), "the holders have all of the memory");
}

/// The files that the process has written are those with the most pages, and all page cache is some file
/// system's.
fn assert_files(memory: &Value) {
    let files = memory["files"].as_array().expect("files");
    for (path, mib) in [("/var/tmp/cached", 16_u64), ("/dev/shm/shared", 8)] {
        let file =
            files.iter().find(|file| file["path"] == path).unwrap_or_else(|| panic!("{path}: {files:?}"));
        assert_eq!(file["bytes"].as_u64(), Some(mib << 20), "{path}");
    }
    let rows = memory["filesystems"]["rows"].as_array().expect("file systems");
    let sum: u64 = rows.iter().filter_map(|row| row["bytes"].as_u64()).sum();
    let cached = ["cached", "buffers"].map(|key| memory["meminfo"][key].as_u64().expect("a number"));
    assert!(sum.abs_diff(cached[0] + cached[1]) <= sum / 100, "{sum} is not {cached:?}");
}

fn numbers_are_the_guests_own(image: &str) -> EmulatedGuest {
    let mut guest = EmulatedGuest::start_image(image, &["-m", "512", "-smp", "2"], SCRIPT);
    let memory = guest.memory(guest.stub());
    assert_memory(&memory, &guest.console());
    let host = &memory["host"];
    assert_eq!(host["mapped"].as_u64(), Some(512 << 20), "{host}");
    // The guest has used more than its process has, and not all of its memory.
    let resident = host["resident"].as_u64().expect("a number");
    assert!((72 << 20..512 << 20).contains(&resident), "{host}");
    assert!(guest.runs(), "the guest still runs");
    guest
}

#[test]
fn of_linux_6_1_also_through_the_stub() {
    let guest = numbers_are_the_guests_own("demo.img");
    // Through a tunnel QEMU's process is unknown.
    let memory = guest.memory(&guest.tunnel());
    assert!(memory["host"].is_null(), "{}", memory["host"]);
    assert_memory(&memory, &guest.console());
}

#[test]
#[ignore = "one more kernel: --all"]
fn of_linux_6_12() {
    numbers_are_the_guests_own("demo-6.12.img");
}

#[test]
#[ignore = "one more kernel: --all"]
fn of_debians_newest_linux() {
    numbers_are_the_guests_own("demo-newest.img");
}
