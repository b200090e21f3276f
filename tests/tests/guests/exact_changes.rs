//! Exact mode while the guest changes itself: modules, its own tracers, its CPUs, its clock, its end.

use vprof_tests::{Guest, Run};

use crate::exact::{
    counts_and_instances_add_up, each_vcpu_is_idle_or_runs_a_task, sleep_is_as_long_as_the_guest_says,
    watched, watched_on_two,
};

/// Returns the reason why exact data ended.
fn end(run: &Run) -> String {
    let end = run.query("SELECT value FROM meta WHERE key = 'exact_end'");
    end[0][0].as_str().expect("a sentence").to_owned()
}

fn nothing_is_wrong_in(run: &Run) {
    let console = run.console();
    let complaints = ["ftrace", "WARNING", "Oops", "BUG", "detected stall"];
    assert!(complaints.iter().all(|word| !console.contains(word)), "{console}");
}

#[test]
#[ignore = "one more change of the guest: --all"]
fn a_guest_that_loads_and_unloads_a_module_is_still_watched() {
    let run = watched(
        Guest::demo(),
        "sleep 0.2; insmod /lib/modules/*/kernel/drivers/block/loop.ko && lsmod; rmmod loop && echo unloaded; sleep 0.2",
    );
    assert!(run.stdout.contains("loop ") && run.stdout.contains("unloaded"), "{}", run.stdout);
    nothing_is_wrong_in(&run);
    assert_eq!(end(&run), "the run ended");
    counts_and_instances_add_up(&run);
}

#[test]
#[ignore = "one more change of the guest: --all"]
fn a_kprobe_on_a_watched_function_meets_no_probe() {
    let run = watched(
        Guest::demo(),
        "sleep 0.2; cd /sys/kernel/tracing; echo 'p:own try_to_wake_up' > kprobe_events; echo 1 > events/kprobes/own/enable; \
         sleep 0.3; grep -c 'own:' trace; echo 0 > events/kprobes/own/enable; echo > kprobe_events; echo continued",
    );
    let probed = run.stdout.lines().find_map(|line| line.trim().parse::<u32>().ok());
    assert!(probed.is_some_and(|count| count > 0) && run.stdout.contains("continued"), "{}", run.stdout);
    nothing_is_wrong_in(&run);
    assert!(end(&run).contains("its own code"), "{}", end(&run));
    counts_and_instances_add_up(&run);
}

/// Writes the kernel's text, as `/proc/kcore` shows it, and prints its digest.
const TEXT: &str = r#"python3 -c "
import struct, sys
named = {}
for line in open('/proc/kallsyms'):
    word = line.split()
    if word[2] in ('_stext', '_etext'): named[word[2]] = int(word[0], 16)
begin, end = named['_stext'], named['_etext']
core = open('/proc/kcore', 'rb', 0)
head = core.read(64)
table, count = struct.unpack('<Q', head[32:40])[0], struct.unpack('<H', head[56:58])[0]
for n in range(count):
    core.seek(table + 56 * n)
    kind, _, at, virtual, _, size = struct.unpack('<IIQQQQ', core.read(40))
    if kind == 1 and virtual <= begin and end <= virtual + size: break
core.seek(at + begin - virtual)
left = end - begin
while left:
    part = core.read(min(left, 65536))
    sys.stdout.buffer.write(part)
    left -= len(part)
" > /tmp/text; echo "text $(wc -c < /tmp/text) $(sha256sum < /tmp/text)""#;

/// The bytes of the kernel's text are the same in a guest in exact mode as in one without. Reading the text
/// ends exact data; the kernel is at the same address in both, or the texts would differ by it.
#[test]
#[ignore = "two guests that read themselves: --all"]
fn the_kernels_text_is_byte_for_byte_what_it_was() {
    let text = |run: &Run| {
        let digest = run.stdout.lines().find_map(|line| line.strip_prefix("text ")).expect("a digest");
        let bytes = digest.split(' ').next().and_then(|bytes| bytes.parse::<u64>().ok()).expect("a size");
        assert!(bytes > 8 << 20, "{digest}");
        digest.to_owned()
    };
    let script = format!("sleep 0.5; {TEXT}");
    let fixed = || Guest::demo().options(["--append", "nokaslr"]);
    let run = watched(fixed(), &script);
    assert!(end(&run).contains("its own code"), "{}", end(&run));
    assert!(run.number("SELECT sum(probe_exits) FROM exact_vcpu") > 100.0);
    counts_and_instances_add_up(&run);
    let plain = fixed().script(&script).run().succeeded();
    assert_eq!(text(&run), text(&plain));
}

#[test]
#[ignore = "one more change of the guest: --all"]
fn a_cpu_that_is_unplugged_and_comes_back_is_still_watched() {
    let run = watched_on_two(
        Guest::demo(),
        "cd /sys/devices/system/cpu; spin --seconds 2 & spin --seconds 2 & sleep 0.3; \
         echo 0 > cpu1/online; echo left $(cat online); sleep 0.5; echo 1 > cpu1/online; echo back $(cat online); wait",
    );
    let said = |line: &str| run.stdout.lines().any(|printed| printed == line);
    assert!(said("left 0") && said("back 0-1"), "{}", run.stdout);
    nothing_is_wrong_in(&run);
    assert_eq!(end(&run), "the run ended");
    counts_and_instances_add_up(&run);
    // A CPU that is off has nothing to run; both together have been busy or idle all the time.
    each_vcpu_is_idle_or_runs_a_task(&run);
}

#[test]
#[ignore = "one more change of the guest: --all"]
fn a_guest_that_changes_its_clock_is_still_watched() {
    let run = watched(
        Guest::demo_with_kernel("6.12"),
        "cd /sys/devices/system/clocksource/clocksource0; threads --seconds 1; echo tsc > current_clocksource; \
         echo now $(cat current_clocksource); threads --seconds 1; from=$(date +%s%N); sleep 0.3; echo slept $(($(date +%s%N) - from))",
    );
    assert!(run.stdout.contains("now tsc"), "{}", run.stdout);
    assert_eq!(end(&run), "the run ended");
    counts_and_instances_add_up(&run);
    sleep_is_as_long_as_the_guest_says(&run, 300.0);
}

#[test]
#[ignore = "one more way to end: --all"]
fn a_guest_that_reboots_keeps_its_exact_data() {
    let run = Guest::demo()
        .options(["--cpus", "2", "--exact"])
        .script("threads --seconds 1 --cpu 0; echo b > /proc/sysrq-trigger; sleep 5")
        .run();
    let ends = run.query("SELECT text FROM event WHERE kind = 'end'");
    assert!(ends[0][0].as_str().is_some_and(|text| text.contains("reset")), "{ends:?}");
    assert_eq!(end(&run), "the run ended");
    counts_and_instances_add_up(&run);
}
