//! `vprof attach` to guests under QEMU with KVM, and under vprof, on an emulated host.

use vprof_tests::language::{JAVA, LanguageProgram, PYTHON};
use vprof_tests::{KvmHost, Run, images, on_kvm_host, on_kvm_host_with};

use crate::attach::assert_split;

/// Two processes that share CPU 0 three to one for longer than any test samples; by work, since emulated
/// clocks are too inexact to share by.
pub const SPLIT: &str = "split --seconds 900 --ratio 3:1 --slice-rounds 500000 --cpu 0 & echo ready; wait";
/// File that the checksumming guest reads.
const SUMMED: &str = "usr/lib/x86_64-linux-gnu/libcrypto.so.3";
/// Kills a profiler of the VM `web`, by either engine: every fifth while it searches the guest's memory, the
/// others while they sample. After that no thread of the VM is traced or stopped.
const KILL: &str = r#"set -e
vm=$(cat /run/web.pid)
engine=auto
[ $((round % 2)) = 0 ] || engine=ptrace
/run/vprof attach $vm -q -F 2000 --engine $engine -o /run/killed.vprof & vprof=$!
if [ $((round % 5)) = 0 ]; then sleep 1.$round; else
    until [ -s /run/killed.vprof ]; do sleep 0.05; done
    sleep 0.0$round
fi
kill -9 $vprof
status=0
wait $vprof || status=$?
[ $status = 137 ]
if grep -hE '^(TracerPid:.[^0]|State:.[tT])' /proc/$vm/task/*/status; then exit 1; fi
rm -f /run/killed.vprof*"#;
/// Number of profilers that are killed.
const KILLS: u32 = 20;

/// Means of sampling, and whether each is expected to stop vCPUs.
const ENGINES: [(&str, bool); 3] = [("bpf", false), ("auto", false), ("ptrace", true)];

/// Attaches by one of the [`ENGINES`], and asserts that it stops vCPUs exactly if it is one that does.
fn attached_by((engine, stops): (&str, bool), host: &mut KvmHost, name: &str, words: &str) -> Run {
    let before = host.ended_by_signals(name);
    let run = host.attached(&format!("{words} --engine {engine}")).succeeded();
    let stopped = host.ended_by_signals(name) - before;
    let sentence = if stops { "vCPUs are stopped for samples (ptrace)" } else { "(BPF), without stops" };
    let events = run.query("SELECT text FROM event WHERE kind = 'engine'");
    assert!(events[0][0].as_str().is_some_and(|text| text.contains(sentence)), "{engine}: {events:?}");
    let samples = run.number("SELECT count(*) FROM sample");
    let part = stopped as f64 / samples;
    // QEMU's own signals, and with `auto` the stops before the first sample.
    assert!(if stops { part > 0.3 } else { part < 0.1 }, "{engine}: {stopped} stops, {samples} samples");
    run
}

/// Asserts exit code 1 and one sentence on standard error.
fn assert_refused(run: Run, sentence: &str) {
    let run = run.exited(1);
    assert!(run.stderr.contains(sentence) && run.stderr.lines().count() == 1, "{}", run.stderr);
}

/// Asserts a sentence on standard error, after a profile was written.
fn assert_ended(run: Run, sentence: &str) {
    let run = run.succeeded();
    assert!(run.stderr.contains(sentence), "{}", run.stderr);
    assert!(run.number("SELECT count(*) FROM sample") > 0.0);
}

/// Asserts roughly the shares of [`SPLIT`], for a guest that was delayed by more than its own turns.
fn assert_roughly_split(run: &Run) {
    let report = run.report();
    let [alpha, beta] = ["alpha", "beta"].map(|name| report.process(name).samples as f64);
    assert!((alpha / (alpha + beta) - 0.75).abs() < 0.15, "{alpha} and {beta} samples");
}

fn memory_of(run: &Run) -> String {
    let rows = run.query("SELECT text FROM event WHERE kind = 'memory'");
    rows[0][0].as_str().expect("a text").to_owned()
}

#[test]
#[ignore = "an emulated host: --all"]
fn one_vcpu_by_its_process_and_by_its_name() {
    on_kvm_host(|host| {
        host.guest("web", "-m 512 -smp 1", SPLIT);
        for engine in ENGINES {
            assert_split(&attached_by(engine, host, "web", "$(cat /run/web.pid) -d 6s -F 100"));
            assert!(host.runs("web"), "the guest still runs after {engine:?}");
        }
        let run = host.attached("--name web -d 6s -F 100 --disk /dev/vdb").succeeded();
        assert_split(&run);
        let burns = run.user_code("alpha", "function").rows();
        assert!(burns.iter().any(|row| row.name.contains("burn")), "named by the disk: {burns:?}");
        assert_refused(host.attached("--name db"), "no virtual machine is named db (");
    });
}

/// Memory above 4 GiB is a second region.
#[test]
#[ignore = "an emulated host: --all"]
fn stacks_of_the_host_lead_into_the_guest() {
    on_kvm_host(|host| {
        host.guest("web", "-m 512 -smp 1", SPLIT);
        let run = host.attached("--name web -d 6s -F 100 --host-stacks").succeeded();
        assert_split(&run);
        let names = |place: &str| -> Vec<String> {
            let rows = run.query(&format!(
                "WITH RECURSIVE caller(id) AS (SELECT stack FROM host_sample WHERE place = '{place}' \
                 UNION SELECT parent FROM caller JOIN host_stack USING (id) WHERE parent IS NOT NULL) \
                 SELECT DISTINCT symbol FROM caller JOIN host_stack USING (id) JOIN host_frame f ON f.id = frame",
            ));
            rows.iter().filter_map(|row| row[0].as_str().map(str::to_owned)).collect()
        };
        for place in ["guest", "kvm"] {
            let names = names(place);
            for wanted in ["kvm_arch_vcpu_ioctl_run", "kvm_vcpu_ioctl", "ioctl"] {
                assert!(names.iter().any(|name| name == wanted), "{place}, {wanted}: {names:?}");
            }
            assert!(names.iter().all(|name| name != "asm_sysvec_call_function_single"), "{place}: {names:?}");
        }
        // QEMU has no frame pointers: each stack begins with a function all the same. A thread whose CPU
        // vprof has taken has none.
        let cut = run.number(
            "SELECT count(*) FROM host_stack JOIN host_frame f ON f.id = frame \
             WHERE parent IS NULL AND kind = 'reason' AND symbol NOT LIKE 'no stack%'",
        );
        let guest = run.number("SELECT count(*) FROM sample WHERE vcpu_state = 'guest'");
        let led = run.number("SELECT count(*) FROM host_sample WHERE place = 'guest'");
        assert!(cut == 0.0 && led > 0.5 * guest, "{cut} of {led}, {guest} in the guest");
    });
}

#[test]
#[ignore = "a separate emulated host: --all"]
fn two_vcpus_of_which_one_idles_and_memory_above_4_gib() {
    on_kvm_host(|host| {
        host.guest("web", "-m 5G -smp 2", SPLIT);
        for engine in ENGINES {
            assert_two_vcpus(engine, &attached_by(engine, host, "web", "--name web -d 8s -F 100"));
        }
    });
}

/// Asserts that of two vCPUs one is as [`SPLIT`] has it and the other one idles.
fn assert_two_vcpus((engine, stops): (&str, bool), run: &Run) {
    assert_split(run);
    assert!(memory_of(run).contains("at 0x100000000"), "{}", memory_of(run));
    let figure =
        |what: &str, vcpu: u8| run.number(&format!("SELECT 1.0 * {what} FROM vcpu WHERE id = {vcpu}"));
    let halted = [0, 1].map(|vcpu| figure("halted_ns / (guest_ns + halted_ns)", vcpu));
    assert!(halted[0] < 0.1 && halted[1] > 0.9, "{engine}, halted: {halted:?}");
    // The idle vCPU is sampled as often, but stopped only once a second.
    let ticks = [0, 1].map(|vcpu| run.number(&format!("SELECT count(*) FROM sample WHERE vcpu = {vcpu}")));
    assert!(ticks[1] > 0.7 * ticks[0], "{engine}, ticks: {ticks:?}");
    let stopped = [0, 1].map(|vcpu| figure("sampler_ns", vcpu));
    let few = if stops { stopped[1] < 0.2 * stopped[0] } else { stopped == [0.0, 0.0] };
    assert!(few, "{engine}, ns in stops: {stopped:?}");
    if !stops {
        assert_counted(run);
    }
}

/// Asserts that the host's kernel has counted exits by reason and time, and that the idle vCPU's are halts.
fn assert_counted(run: &Run) {
    let rows = |what: &str| run.number(&format!("SELECT coalesce(sum({what}"));
    let halts = rows("count), 0) FROM exit WHERE vcpu = 1 AND reason = 'kvm: hlt'");
    let halted = rows("total_ns), 0) FROM exit WHERE vcpu = 1 AND reason = 'kvm: hlt'");
    let wall = rows("halted_ns + guest_ns), 0) FROM vcpu WHERE id = 1");
    assert!(halts > 10.0 && halted > 0.8 * wall, "{halts} halts of {halted} ns in {wall} ns");
    assert!(rows("count), 0) FROM exit WHERE reason LIKE 'kvm: %'") > halts, "other reasons, too");
    let counters = run.number("SELECT count(*) FROM kvm_counter WHERE name = 'exits' AND value > 0");
    let errors = run.number("SELECT count(*) FROM meta WHERE key LIKE 'guest_error%'");
    assert!(counters == 2.0 && errors == 0.0, "{counters} vCPUs with counters, {errors} inexact times");
    let stat = run.json(&["stat"]);
    let states = &stat["vcpus"][1]["states"];
    assert!(states["halted"].as_f64() > states["vmm"].as_f64(), "{states}");
    assert_sites(&stat);
}

/// Asserts that exits have the processes and functions that they are from.
fn assert_sites(stat: &serde_json::Value) {
    let sum = |list: &str, keep: &dyn Fn(&serde_json::Value) -> bool| -> f64 {
        let rows = stat[list].as_array().expect("rows").iter().filter(|row| keep(row));
        rows.map(|row| row["count"].as_f64().expect("a count")).sum()
    };
    // Rounded, row by row.
    let (exits, sites) = (sum("exits", &|_| true), sum("exit_sites", &|_| true));
    assert!((sites / exits - 1.0).abs() < 0.01, "{sites} of {exits} exits");
    let halts = |row: &serde_json::Value| row["reason"] == "kvm: hlt" && row["vcpu"] == 1;
    let idle = |row: &serde_json::Value| halts(row) && row["process"] == "[idle]";
    assert!(sum("exit_sites", &idle) > 0.9 * sum("exits", &halts), "{:?}", stat["exit_sites"]);
    let burns = |row: &serde_json::Value| {
        row["process"] == "alpha" && row["mode"] == "user" && row["module"] == "split" && row["vcpu"] == 0
    };
    assert!(sum("exit_sites", &burns) > 10.0, "interrupts of the host: {:?}", stat["exit_sites"]);
    let other = sum("exit_sites", &|row| row["process"] == "[other]");
    assert!(other < 0.1 * exits, "{other} of {exits} without a note");
}

#[test]
#[ignore = "a separate emulated host: --all"]
fn memory_in_a_shared_file_and_in_huge_pages() {
    on_kvm_host(|host| {
        let machine = "-m 512 -machine q35,memory-backend=m -object";
        let file = "memory-backend-file,id=m,size=512M,share=on,mem-path=/dev/shm/ram";
        host.guest("file", &format!("{machine} {file}"), SPLIT);
        for engine in ["ptrace", "bpf"] {
            assert_split(&host.attached(&format!("--name file -d 5s -F 100 --engine {engine}")).succeeded());
        }
        host.kill("file");
        host.must(
            "rm /dev/shm/ram; echo 256 >/proc/sys/vm/nr_hugepages; grep 'HugePages_Free: *256' /proc/meminfo",
        );
        let huge = "memory-backend-memfd,id=m,size=512M,hugetlb=on,hugetlbsize=2M";
        host.guest("huge", &format!("{machine} {huge}"), SPLIT);
        for engine in ["ptrace", "bpf"] {
            assert_split(&host.attached(&format!("--name huge -d 5s -F 100 --engine {engine}")).succeeded());
        }
    });
}

#[test]
#[ignore = "a separate emulated host: --all"]
fn vprof_profiles_vprof() {
    on_kvm_host(|host| {
        let run = host.vprof(&format!("run /dev/vdb --read-only --host kvm -F 100 -- sh -c '{SPLIT}'"));
        host.wait_for_output(&run, "ready");
        let pid = host.pid(&run);
        for (engine, _) in ENGINES {
            assert_split(&host.attached(&format!("{pid} -d 6s -F 100 --engine {engine}")).succeeded());
        }
        host.signal(&run, "TERM");
        assert_split(&host.finish(run).succeeded());
    });
}

/// The guest reads and sums the same file over and over again, in ever new processes.
#[test]
#[ignore = "a separate emulated host: --all"]
fn killed_profilers_leave_the_guest_as_it_was() {
    on_kvm_host(|host| {
        let script = format!("echo ready; cd /; while sha256sum {SUMMED}; do :; done");
        host.guest("web", "-m 512 -smp 2", &script);
        let expected = host.must(&format!("cd /mnt; sha256sum {SUMMED}"));
        for round in 0..KILLS {
            host.must(&format!("round={round}; {KILL}"));
        }
        let sums = |host: &mut KvmHost| {
            let console = host.must("cat /run/web.console");
            let (lines, _) = console.rsplit_once('\n').expect("lines");
            let sums = lines.lines().skip_while(|line| !line.contains("ready")).skip(1);
            sums.map(|line| assert_eq!(line.trim(), expected.trim(), "{console}")).count()
        };
        let before = sums(host);
        assert!(before > 5, "{before} sums");
        host.attached("--name web -d 2s").succeeded();
        let lines = host.must("wc -l </run/web.console");
        host.wait_until(&format!("[ $(wc -l </run/web.console) -gt {} ]", lines.trim()));
        assert!(sums(host) > before);
    });
}

#[test]
#[ignore = "a separate emulated host: --all"]
fn bad_moments_of_a_guest() {
    on_kvm_host(|host| {
        let balloon =
            "for module in $(grep balloon /usr/lib/modules/more/load-order); do insmod $module; done";
        let options = "-m 512 -smp 1 -device virtio-balloon-pci -action reboot=reset";
        host.guest("web", options, &format!("{balloon}; {SPLIT}"));

        let first = host.attach("--name web -F 100");
        host.wait_for_profile(&first);
        let by = host.pid(&first);
        let sentence = format!("is being profiled by another vprof (process {by}); end that first");
        assert_refused(host.attached("--name web"), &sentence);
        host.monitor("web", "balloon 480");
        host.wait_for_monitor("web", "info balloon", "actual=480");
        host.signal(&first, "TERM");
        // A balloon delays the guest for any time, in the turn of either process.
        assert_roughly_split(&host.finish(first).succeeded());
        assert_split(&host.attached("--name web -d 4s -F 100").succeeded());

        host.monitor("web", "stop");
        assert_refused(host.attached("--name web"), "is paused: none of its vCPUs was in the guest for 3 s");
        assert!(!host.runs("web"), "vprof has resumed it");
        host.monitor("web", "cont");
        host.must("kill -STOP $(cat /run/web.pid)");
        assert_refused(host.attached("--name web"), "is stopped; resume it (`kill -CONT");
        host.must("kill -CONT $(cat /run/web.pid)");

        let reset = host.attach("--name web");
        host.wait_for_profile(&reset);
        host.must("sleep 1");
        host.monitor("web", "system_reset");
        assert_ended(host.finish(reset), "the guest was reset");
        host.wait_for_console("web", 2, "ready");
        let ended = host.attach("--name web");
        host.wait_for_profile(&ended);
        host.must("sleep 1");
        host.kill("web");
        assert_ended(host.finish(ended), "process has ended");
        assert_refused(host.attached("$(cat /run/web.pid)"), "there is no process");
        assert_refused(host.attached("1"), "runs no virtual machine: it has no KVM vCPU");
    });
}

/// Samples of such a program in user code, at least: an emulated host is slow.
const FEWEST: i64 = 50;

/// Starts a guest that runs a program in a managed language, and waits until it measures; `disk` is its root.
fn start_language(host: &mut KvmHost, (program, disk): (&LanguageProgram, &str), seconds: u32) -> bool {
    let Some(script) = program.script(seconds) else { return false };
    host.guest_on(disk, "web", "-m 700 -smp 1", &format!("echo ready; ({script}); sleep 900"));
    host.wait_for_console("web", 1, "begun");
    host.must("sleep 5");
    true
}

/// Returns what the guest's program has printed, once it has ended, of its first thread: the others end
/// earlier, so their part of a shorter time is another one.
fn printed(host: &mut KvmHost) -> String {
    host.wait_until("[ $(grep -c '^phase ' /run/web.console) -ge 6 ]");
    host.must("grep -v pooled /run/web.console")
}

/// Samples a program for `seconds` by each engine, and asserts shares, whole stacks, names and lines.
fn assert_functions(host: &mut KvmHost, (program, disk): (&LanguageProgram, &str), seconds: u32) {
    let runs = ["ptrace", "bpf"].map(|engine| {
        let words = format!("--name web -d {seconds}s -F 100 --disk {disk} --engine {engine}");
        host.attached(&words).succeeded()
    });
    let printed = printed(host);
    for run in &runs {
        program.assert_shares(run, &printed);
        program.assert_complete(run, FEWEST);
        program.assert_lines(run);
    }
}

#[test]
#[ignore = "a separate emulated host: --all"]
fn functions_of_python_by_both_engines() {
    on_kvm_host(|host| {
        if start_language(host, (&PYTHON, "/dev/vdb"), 60) {
            assert_functions(host, (&PYTHON, "/dev/vdb"), 20);
        }
    });
}

#[test]
#[ignore = "a separate emulated host: --all"]
fn functions_of_java_by_both_engines() {
    let image = images().join("corpus-bookworm.img");
    on_kvm_host_with(Some(&image), |host| {
        if start_language(host, (&JAVA, "/dev/vdd"), 60) {
            assert_functions(host, (&JAVA, "/dev/vdd"), 30);
        }
    });
}

/// Paused, given another CPU, and migrated away while it is profiled.
#[test]
#[ignore = "a separate emulated host: --all"]
fn a_guest_that_does_not_stay_as_it_was() {
    on_kvm_host(|host| {
        host.guest("web", "-m 256 -smp 1,maxcpus=2", SPLIT);
        let profiling = host.attach("--name web -F 100");
        host.wait_for_profile(&profiling);
        let pid = host.pid(&profiling);
        let paused = "the virtual machine is paused, or has migrated away";
        host.must("sleep 2");
        host.monitor("web", "stop");
        host.wait_for_status(&profiling, paused);
        host.must("sleep 2");
        host.monitor("web", "cont");
        host.wait_for_status(&profiling, "sampled at 100 Hz");
        host.monitor("web", "device_add host-x86_64-cpu,id=more,socket-id=0,core-id=1,thread-id=0");
        host.must("sleep 2");
        host.monitor("web", "migrate \"exec:cat >/dev/null\"");
        host.wait_for_status(&profiling, paused);
        host.must(&format!("kill -0 {pid}"));
        host.signal(&profiling, "TERM");
        let run = host.finish(profiling).succeeded();
        // A migration delays the guest as well.
        assert_roughly_split(&run);
        let events =
            |kind: &str| run.query(&format!("SELECT text FROM event WHERE kind = '{kind}' ORDER BY time_ns"));
        assert_eq!(events("paused").len(), 3, "{:?}", events("paused"));
        // By the engine: profiled from then on, or not.
        let plugged = [events("plugged"), events("missing")].concat();
        let is_plugged = |text: &str| text.starts_with("vCPU 1 was plugged in");
        assert!(plugged.iter().any(|row| row[0].as_str().is_some_and(is_plugged)), "{plugged:?}");
        let paused = run.number("SELECT paused_ns / 1e9 FROM vcpu WHERE id = 0");
        assert!(paused > 1.5, "{paused} s");
    });
}

#[test]
#[ignore = "a separate emulated host: --all"]
fn memory_that_is_plugged_in_is_known() {
    on_kvm_host(|host| {
        host.guest("web", "-m 512,slots=2,maxmem=1G -smp 1", SPLIT);
        let profiling = host.attach("--name web -F 100 --engine bpf");
        host.wait_for_profile(&profiling);
        host.must("sleep 1");
        host.monitor("web", "object_add memory-backend-ram,id=more,size=128M");
        host.monitor("web", "device_add pc-dimm,id=dimm,memdev=more");
        host.must("sleep 3");
        host.signal(&profiling, "TERM");
        let run = host.finish(profiling).succeeded();
        assert_roughly_split(&run);
        let events = run.query("SELECT text FROM event WHERE kind = 'memory'");
        let plugged = |text: &str| {
            text.contains("has changed the guest's memory") && text.contains("128 MiB at 0x100000000")
        };
        assert!(events.iter().any(|row| row[0].as_str().is_some_and(plugged)), "{events:?}");
    });
}

/// Firmware without anything to boot, and a boot sector that jumps to itself.
#[test]
#[ignore = "a separate emulated host: --all"]
fn guests_without_linux() {
    on_kvm_host(|host| {
        host.qemu("asleep", "-S");
        assert_refused(
            host.attached("--name asleep"),
            "is paused: none of its vCPUs was in the guest for 3 s",
        );
        host.kill("asleep");
        host.must(r"printf '\353\376%508s\125\252' '' >/run/sector");
        host.qemu("sector", "-drive file=sector,format=raw,if=ide");
        host.wait_for_monitor("sector", "info registers", "EIP=00007c00");
        host.qemu("firmware", "");
        let sector = host.attach("--name sector -d 12s");
        let firmware = host.attach("--name firmware -d 12s");
        for profiling in [sector, firmware] {
            let run = host.finish(profiling).succeeded();
            let missing = run.report().get("missing").to_string();
            assert!(missing.contains("no Linux kernel proves the layout of the guest's memory"), "{missing}");
            assert!(run.stdout.contains("no Linux kernel proves"), "{}", run.stdout);
            assert!(run.number("SELECT count(*) FROM sample") > 0.0);
        }
        assert!(host.runs("sector") && host.runs("firmware"), "both still run");
    });
}
