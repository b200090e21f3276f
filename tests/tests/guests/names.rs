//! Names of functions, threads, interrupts, system calls, files and control groups.

use std::sync::OnceLock;

use vprof_tests::{Guest, Run, assert_share};

use crate::stacks::programs;

/// Runs next to the programs of `stacks.rs`.
pub const SCRIPT: &str = "\
    mkdir -p /sys/fs/cgroup/shop.slice/till.service; \
    sh -c 'echo 0 >/sys/fs/cgroup/shop.slice/till.service/cgroup.procs; exec spin --seconds 4 --name till' & \
    cp /usr/bin/spin /tmp/ghost; exec 9</tmp/ghost; rm /tmp/ghost; /proc/self/fd/9 --seconds 4 --name ghost & \
    dd if=/dev/zero of=/dev/null bs=64k 2>/dev/null & copy=$!; \
    dd if=/dev/vda of=/dev/null bs=4k count=400 iflag=direct 2>/dev/null; sleep 5; kill $copy; \
    dd if=/dev/zero of=/var/tmp/written bs=64k count=64 conv=fsync 2>/dev/null; \
    cp /usr/bin/loop /var/tmp/changing; /var/tmp/changing --seconds 1; \
    cp /usr/bin/shares /var/tmp/new; mv /var/tmp/new /var/tmp/changing; /var/tmp/changing --seconds 1; wait";

/// Asserts that most samples in `program`'s own code, from the first right one until the last, are in
/// `symbol`, inlined in `function`, at one of `lines` of `source`.
fn assert_inlined(program: &str, symbol: &str, function: &str, source: &str, lines: (i64, i64)) {
    let (first, last) = lines;
    let right = format!(
        "inlined_symbol = '{symbol}' AND symbol LIKE '{function}' \
         AND source LIKE '%/{source}' AND line BETWEEN {first} AND {last}"
    );
    // The emulated machine translates code when it runs first, so that start and end of a program take long.
    let count = |condition: &str| {
        programs().number(&format!(
            "WITH own AS (SELECT sample.time_ns, frame.symbol, \
             inlined.symbol AS inlined_symbol, inlined.source, inlined.line \
             FROM sample JOIN frame ON frame.id = sample.frame \
             JOIN instance ON instance.id = sample.instance JOIN file ON file.id = frame.file \
             LEFT JOIN inlined ON inlined.frame = frame.id AND depth = 0 \
             WHERE comm = '{program}' AND file.path = '/usr/bin/{program}'), \
             work AS (SELECT min(time_ns) AS first_ns, max(time_ns) AS last_ns FROM own WHERE {right}) \
             SELECT count(*) FROM own, work WHERE time_ns BETWEEN first_ns AND last_ns AND {condition}"
        ))
    };
    let (right, all) = (count(&right), count("true"));
    assert!(right > 50.0 && right >= 0.9 * all, "{right} of {all}");
}

#[test]
fn inlined_functions_of_rust_are_separate_functions() {
    assert_inlined("inlined", "mixed_in_twice", "outer", "inlined.rs", (19, 24));
    let rows = programs().user_code("inlined", "function");
    let (inner, outer) = (rows.row("mixed_in_twice"), rows.row("mixed_in"));
    assert!(inner.self_samples > 50 && outer.total_samples >= inner.total_samples, "{inner:?} {outer:?}");
}

#[test]
fn inlined_functions_of_cpp_are_separate_functions() {
    let step = "mix::step(unsigned long, unsigned int)";
    assert_inlined("cpp-inlined", step, "bench::%::apply(unsigned long)", "cpp-inlined.cc", (23, 28));
    let rows = programs().user_code("cpp-inlined", "function");
    let total = |name: &str| rows.row(name).total_samples;
    let (one, other) =
        (total("bench::Multiplier::apply(unsigned long)"), total("bench::Shifter::apply(unsigned long)"));
    assert_share("Multiplier", one, one + other, 0.5);
}

#[test]
fn threads_have_their_names_and_shares() {
    let report = programs().user_code("threads", "thread");
    let samples = |name: &str| report.row(name).self_samples;
    let all = samples("three") + samples("two") + samples("one");
    assert_share("three", samples("three"), all, 3.0 / 6.0);
    assert_share("two", samples("two"), all, 2.0 / 6.0);
    assert_share("one", samples("one"), all, 1.0 / 6.0);
}

#[test]
fn a_library_that_was_loaded_late_is_programs() {
    let work = programs().user_code("dlopened", "function").row("plugin_work");
    assert_eq!(work.module.as_deref(), Some("libplugin.so"));
    assert!(work.self_samples > 50, "{work:?}");
    let called = |text: &str| text.starts_with("plugin_work;plugin_entry;main;");
    let stacks = programs().user_stacks("dlopened");
    let found: i64 = stacks.iter().filter(|(text, _)| called(text)).map(|(_, samples)| samples).sum();
    assert!(found * 100 >= work.self_samples * 99, "{found} of {work:?}");
}

#[test]
fn system_calls_are_programs() {
    let report = programs().report_with(&["--by", "syscall", "--process", "dd", "--mode", "kernel"]);
    let rows = report.rows();
    let all: i64 = rows.iter().map(|row| row.self_samples).sum();
    let copied = report.row("read").self_samples + report.row("write").self_samples;
    assert!(copied > 100 && copied * 10 >= all * 9, "{copied} of {all}: {rows:#?}");
}

#[test]
fn hard_interrupts_are_programs() {
    let report = programs().report_with(&["--by", "irq", "--mode", "irq"]);
    let hard: Vec<_> = report.rows().into_iter().filter(|row| row.kind.as_deref() == Some("hard")).collect();
    let samples = |named: &dyn Fn(&str) -> bool| {
        hard.iter().filter(|row| named(&row.name)).map(|row| row.self_samples).sum::<i64>()
    };
    let all = programs()
        .number("SELECT count(*) FROM sample JOIN mode ON mode.id = mode WHERE mode.name = 'hardirq'");
    // Before and after a device's handler nothing on the stack identifies the device.
    assert!(samples(&|name| name != "device interrupt") as f64 >= 0.8 * all, "of {all}: {hard:#?}");
    assert!(samples(&|name| name == "apic_timer_interrupt") > 0, "{hard:#?}");
    assert!(samples(&|name| name.contains("virtio") && name.contains("-req")) > 0, "{hard:#?}");
}

#[test]
fn soft_interrupts_are_programs() {
    let named_as = |condition: &str| {
        programs().number(&format!(
            "SELECT count(*) FROM sample JOIN interrupt ON interrupt.id = interrupt WHERE kind = 'soft' AND {condition}"
        ))
    };
    let (all, some) = (named_as("true"), named_as("name IN ('TIMER', 'SCHED', 'RCU', 'BLOCK', 'NET_RX')"));
    // Between two of them the kernel is in none.
    assert!(all > 20.0 && some >= 0.6 * all, "{some} of {all}");
}

#[test]
fn kernel_threads_are_named_with_what_they_work_on() {
    let rows = programs().report_with(&["--by", "thread"]).rows();
    let threads: Vec<_> = rows.iter().filter(|row| row.kind.as_deref() == Some("kernel_thread")).collect();
    let has = |start: &str| threads.iter().any(|row| row.name.starts_with(start));
    assert!(has("rcu_") && has("kworker/"), "{threads:#?}");
    // The disk's requests are started by a worker.
    let works = threads.iter().filter(|row| row.name.starts_with("kworker/") && row.name.contains("blk_mq_"));
    assert!(works.count() > 0, "{threads:#?}");
}

/// Returns what the profile has of the process of this name: its command line, path, `deleted`, `read_from`
/// and naming of its program, and its control group's path and unit.
fn process_facts(comm: &str) -> Vec<String> {
    let rows = programs().query(&format!(
        "SELECT command, file.path AS exe, deleted, read_from, named_by, cgroup.path AS cgroup, unit FROM instance \
         LEFT JOIN file ON file.id = instance.exe LEFT JOIN cgroup ON cgroup.id = instance.cgroup WHERE comm = '{comm}'"
    ));
    assert_eq!(rows.len(), 1, "{comm}: {rows:?}");
    rows[0].iter().map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned)).collect()
}

#[test]
fn a_process_has_its_command_line_program_and_control_group() {
    let till = process_facts("till");
    assert_eq!(till[0], "spin --seconds 4 --name till");
    assert_eq!((till[1].as_str(), till[2].as_str()), ("/usr/bin/spin", "0"));
    assert_eq!((till[5].as_str(), till[6].as_str()), ("/shop.slice/till.service", "till.service"));
}

#[test]
fn a_deleted_program_is_named_from_the_page_cache() {
    let ghost = process_facts("ghost");
    assert_eq!(ghost[0], "/proc/self/fd/9 --seconds 4 --name ghost");
    assert_eq!((ghost[2].as_str(), ghost[3].as_str()), ("1", "page cache"));
    let report = programs().user_code("ghost", "function");
    let of_the_file: Vec<_> =
        report.rows().into_iter().filter(|row| row.module.as_deref() == Some("ghost")).collect();
    let all: i64 = of_the_file.iter().map(|row| row.self_samples).sum();
    let nameless = of_the_file.iter().filter(|row| row.name.starts_with("ghost["));
    assert!(nameless.map(|row| row.self_samples).sum::<i64>() * 20 <= all, "{of_the_file:#?}");
    assert_eq!(of_the_file[0].name, "guest_programs::work::burn", "{of_the_file:#?}");
}

#[test]
fn a_program_that_was_replaced_is_two_files() {
    let rows = programs().query(
        "SELECT DISTINCT build_id, symbol FROM frame JOIN file ON file.id = file \
         WHERE path LIKE '/var/tmp/changing%' AND symbol IN ('sum_of_indices', 'half') ORDER BY symbol",
    );
    let symbols: Vec<_> = rows.iter().filter_map(|row| row[1].as_str()).collect();
    assert_eq!(symbols, ["half", "sum_of_indices"]);
    assert!(rows[0][0].is_string() && rows[0][0] != rows[1][0], "{rows:?}");
}

/// Returns the run of a command that starts another, without stacks and scans.
pub fn without_stacks_and_scans() -> &'static Run {
    static RUN: OnceLock<Run> = OnceLock::new();
    RUN.get_or_init(|| {
        let guest = Guest::demo().next_to_others().options(["--depth", "0", "--task-rate", "0"]);
        guest.script("spin --seconds 2; true").run().succeeded()
    })
}

#[test]
#[ignore = "one more guest: --all"]
fn a_command_is_all_that_it_started_also_without_stacks() {
    let report = without_stacks_and_scans().report();
    let command = report.get("command")["cpu"]["samples"].as_i64().expect("samples");
    let spin = report.process("spin").samples;
    assert!(spin > 200 && command >= spin, "{command} of the command, {spin} of what it started");
}
