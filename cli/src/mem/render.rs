//! The tables of `vprof mem`.

use display::clean::escaped;
use display::units;
use guest_linux::{
    FileMemory, FilesystemMemory, GroupMemory, GroupStat, Holders, MemoryCounters, MemoryPart, Missing,
    ProcessMemory, SlabMemory,
};
use host::attached::{AttachedMemoryUse, HostMemory};

use render::PageLayout;
use render::memory::part_label;
use render::table::{ColumnAlign, TextTable};
use render::visible;

/// Formats the memory of the machine with this name.
pub fn render(vm: &str, read: &AttachedMemoryUse, page: PageLayout) -> String {
    let memory = &read.memory;
    [
        heading(vm, read),
        whole(&memory.counters, page),
        section("processes", &PROCESSES, &memory.processes, page, process),
        section("control groups", &GROUPS, &memory.groups, page, group),
        section("page cache by file system", &FILESYSTEMS, &memory.filesystems, page, filesystem),
        files(&memory.files, page),
        section("slab caches", &SLABS, &memory.slabs, page, slab),
    ]
    .concat()
}

const PROCESSES: [&str; 6] = ["process", "resident", "anonymous", "files", "shared", "swap"];

fn process(row: &ProcessMemory) -> Vec<String> {
    let sizes = [row.resident(), row.anonymous, row.file, row.shmem, row.swap].map(size);
    [vec![format!("{} ({})", visible(&row.comm), row.pid)], sizes.to_vec()].concat()
}

const GROUPS: [&str; 6] = ["group", "current", "anonymous", "files", "slab", "swap"];

fn group(row: &GroupMemory) -> Vec<String> {
    let removed = if row.removed { " (removed)" } else { "" };
    let stat = |part: fn(&GroupStat) -> u64| row.stat.as_ref().map(part);
    let sizes =
        [row.current, stat(|stat| stat.anonymous), stat(|stat| stat.file), stat(|stat| stat.slab), row.swap];
    let sizes = sizes.map(|bytes| bytes.map(size).unwrap_or_default());
    [vec![format!("{}{removed}", visible(&row.path))], sizes.to_vec()].concat()
}

const FILESYSTEMS: [&str; 5] = ["mounted at", "pages", "files", "type", "device"];

fn filesystem(row: &FilesystemMemory) -> Vec<String> {
    let mount = row.mount.as_deref().map(visible).unwrap_or("(no path)".into());
    vec![
        mount.into_owned(),
        size(row.bytes),
        row.files.to_string(),
        visible(&row.kind).into_owned(),
        visible(&row.device).into_owned(),
    ]
}

fn files(files: &[FileMemory], page: PageLayout) -> String {
    if files.is_empty() {
        return String::new();
    }
    let mut table = table(&["file", "pages", "size", "type"]);
    for file in files {
        let name = match file.path.as_str() {
            "" => format!("[inode {}]", file.inode),
            path => visible(path).into_owned(),
        };
        table.row(vec![name, size(file.bytes), size(file.size), visible(&file.kind).into_owned()]);
    }
    format!("\nlargest files\n{}", table.render(page.width))
}

const SLABS: [&str; 4] = ["cache", "slabs", "objects", "of"];

fn slab(row: &SlabMemory) -> Vec<String> {
    let name = visible(&row.name).into_owned();
    vec![name, size(row.bytes), row.objects.to_string(), size(row.object_bytes)]
}

fn heading(vm: &str, read: &AttachedMemoryUse) -> String {
    let kernel =
        read.kernel.as_deref().map(|kernel| format!(", Linux {}", escaped(kernel))).unwrap_or_default();
    let host = read.host.map(host).unwrap_or_default();
    format!("{}{kernel}\n{host}\n", escaped(vm))
}

/// Returns the line on the host's memory.
fn host(host: HostMemory) -> String {
    let HostMemory { mapped, resident, swapped, huge } = host;
    let mut line = format!("{} of {} are in the host's memory", size(resident), size(mapped));
    if huge > 0 {
        line += &format!(", {} of it in huge pages", size(huge));
    }
    if swapped > 0 {
        line += &format!("; {} are in its swap", size(swapped));
    }
    line + "\n"
}

/// Formats the holders of the whole memory, and numbers that are parts of them.
fn whole(counters: &MemoryCounters, page: PageLayout) -> String {
    let mut table = TextTable::new(&[
        ("holder", ColumnAlign::Left),
        ("memory", ColumnAlign::Right),
        ("share", ColumnAlign::Right),
        ("of it", ColumnAlign::Left),
    ])
    .flexible(3);
    let total = counters.total.max(1);
    for (part, bytes) in counters.parts() {
        if bytes > 0 {
            let share = format!("{:.1} %", bytes as f64 / total as f64 * 100.0);
            table.row(vec![label(part), size(bytes), share, detail(part, counters)]);
        }
    }
    table.row(vec!["all".to_owned(), size(counters.total), String::new(), available(counters)]);
    let mut text = table.render(page.width);
    let swap = counters.swap_total.filter(|total| *total > 0);
    if let Some((total, free)) = swap.zip(counters.swap_free) {
        let cached = counters.swap_cached.map(|cached| format!("; {} also in memory", size(cached)));
        let used = size(total.saturating_sub(free));
        text += &format!("swap: {used} of {} in use{}\n", size(total), cached.unwrap_or_default());
    }
    if let Some(balloon) = counters.balloon.filter(|balloon| *balloon > 0) {
        text += &format!("balloon: {} given back to the host\n", size(balloon));
    }
    text
}

fn label(part: MemoryPart) -> String {
    part_label(part.name()).unwrap_or(part.name()).to_owned()
}

/// Returns numbers that are parts of a holder's.
fn detail(part: MemoryPart, counters: &MemoryCounters) -> String {
    let details: &[(Option<u64>, &str)] = match part {
        MemoryPart::Free => &[(counters.free_lists, "in lists of CPUs")],
        MemoryPart::Anonymous => &[(counters.anon_huge, "in huge pages")],
        MemoryPart::PageCache => &[
            (Some(counters.mapped), "mapped"),
            (Some(counters.dirty), "dirty"),
            (Some(counters.writeback), "being written"),
        ],
        MemoryPart::Shmem => &[(counters.shmem_huge, "in huge pages")],
        MemoryPart::HugePool => &[(counters.huge_pool_free, "free")],
        MemoryPart::Other => &[(counters.vmalloc, "vmalloc with kernel stacks")],
        _ => &[],
    };
    let shown: Vec<String> = details
        .iter()
        .filter_map(|(bytes, name)| {
            bytes.filter(|bytes| *bytes > 0).map(|bytes| format!("{} {name}", size(bytes)))
        })
        .collect();
    shown.join(", ")
}

fn available(counters: &MemoryCounters) -> String {
    counters.available.map(|available| format!("{} available", size(available))).unwrap_or_default()
}

/// Formats the rows of one kind of holder under a title.
fn section<T>(
    title: &str,
    columns: &[&str],
    holders: &Result<Holders<T>, Missing>,
    page: PageLayout,
    row: impl Fn(&T) -> Vec<String>,
) -> String {
    let Holders { rows, count, complete } = match holders {
        Ok(holders) => holders,
        Err(missing) => return format!("\n{title}: {missing}\n"),
    };
    if rows.is_empty() {
        return format!("\n{title}: none\n");
    }
    let mut table = table(columns);
    rows.iter().for_each(|holder| table.row(row(holder)));
    let more = count.saturating_sub(u64::try_from(rows.len()).unwrap_or(u64::MAX));
    let mut end = if more > 0 { format!("({more} more: -n 0)\n") } else { String::new() };
    if !complete {
        end += "(too many: not all were read)\n";
    }
    format!("\n{title}\n{}{end}", table.render(page.width))
}

/// Makes a table whose first column has names that may be long; the last columns are spare.
fn table(columns: &[&str]) -> TextTable {
    let is_text = |name: &str| matches!(name, "type" | "device");
    let aligned: Vec<(&str, ColumnAlign)> = columns
        .iter()
        .enumerate()
        .map(|(place, name)| {
            (*name, if place == 0 || is_text(name) { ColumnAlign::Left } else { ColumnAlign::Right })
        })
        .collect();
    TextTable::new(&aligned).flexible(0)
}

fn size(bytes: u64) -> String {
    units::bytes(bytes)
}

#[cfg(test)]
mod tests {
    use guest_linux::MemoryUse;

    use super::*;
    use render::TextStyle;

    const MIB: u64 = 1 << 20;

    fn one<T>(row: T) -> Result<Holders<T>, Missing> {
        Ok(Holders { rows: vec![row], count: 3, complete: true })
    }

    fn read() -> AttachedMemoryUse {
        let counters = MemoryCounters {
            total: 500 * MIB,
            free: 300 * MIB,
            free_lists: Some(MIB),
            available: Some(400 * MIB),
            cached: Some(60 * MIB),
            shmem: 10 * MIB,
            anonymous: 80 * MIB,
            anon_huge: Some(2 * MIB),
            mapped: 20 * MIB,
            swap_total: Some(100 * MIB),
            swap_free: Some(99 * MIB),
            balloon: Some(12 * MIB),
            ..MemoryCounters::default()
        };
        let stat = GroupStat { anonymous: 50 * MIB, file: 8 * MIB, slab: MIB, ..GroupStat::default() };
        let memory = MemoryUse {
            counters,
            processes: one(ProcessMemory {
                pid: 7,
                comm: "a\u{1b}b".to_owned(),
                group: None,
                anonymous: 70 * MIB,
                file: 5 * MIB,
                shmem: 0,
                swap: MIB,
                page_tables: 0,
            }),
            groups: one(GroupMemory {
                path: "/system.slice/a-service-with-a-long-name-that-does-not-fit-a-line.service".to_owned(),
                removed: true,
                current: Some(60 * MIB),
                swap: None,
                stat: Some(stat),
            }),
            slabs: Err(Missing::NoField("kmem_cache.list".to_owned())),
            filesystems: one(FilesystemMemory {
                kind: "bdev".to_owned(),
                device: "bdev".to_owned(),
                mount: None,
                files: 1,
                bytes: MIB,
            }),
            files: vec![FileMemory {
                path: String::new(),
                kind: "ext4".to_owned(),
                inode: 12,
                bytes: 4096,
                size: 5000,
            }],
        };
        let host = HostMemory { mapped: 512 * MIB, resident: 256 * MIB, swapped: 0, huge: 64 * MIB };
        AttachedMemoryUse { kernel: Some("6.1".to_owned()), memory, host: Some(host), read_s: 0.01 }
    }

    #[test]
    fn each_part_has_a_label() {
        assert!(MemoryPart::ALL.iter().all(|part| part_label(part.name()).is_some()));
    }

    #[test]
    fn tables_fit_a_terminal_and_name_what_is_missing() {
        let page = PageLayout { width: 80, style: TextStyle::Plain };
        let text = render("process 12 (qemu)", &read(), page);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        for part in [
            "process 12 (qemu), Linux 6.1\n256 MiB of 512 MiB are in the host's memory, 64 MiB of it in huge pages",
            "free                   301 MiB  60.2 %  1 MiB in lists of CPUs",
            "page cache of files     50 MiB  10.0 %  20 MiB mapped",
            "all                    500 MiB          400 MiB available",
            "swap: 1 MiB of 100 MiB in use\n",
            "balloon: 12 MiB given back to the host\n",
            "a\\x1bb (7)",
            "(2 more: -n 0)",
            "60 MiB",
            "(no path)",
            "[inode 12]",
            "slab caches: the BTF of this kernel has no kmem_cache.list\n",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains('\u{1b}'));
    }
}
