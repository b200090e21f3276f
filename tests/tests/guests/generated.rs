//! Code that the guest's kernel has generated: trampolines of its function tracer, and BPF programs.

use vprof_tests::{Guest, Run};

/// Traces `vfs_read` while a program reads as often as it can.
const TRACED: &str = "cd /sys/kernel/tracing; echo vfs_read >set_ftrace_filter && echo function >current_tracer; \
     grep ftrace_trampoline /proc/kallsyms; timeout 5 dd if=/dev/zero of=/dev/null bs=1; true";

fn run(guest: Guest, script: &str) -> Run {
    guest.next_to_others().options(["--rate", "1000"]).script(script).run().succeeded()
}

/// Counts the samples of process `comm` with a stack on which, from within outwards, functions like `names`
/// follow each other directly.
fn chains(run: &Run, comm: &str, names: &[&str]) -> f64 {
    let links: String = (1..names.len())
        .map(|i| {
            format!(" JOIN stack s{i} ON s{i}.id = s{}.parent JOIN frame f{i} ON f{i}.id = s{i}.frame", i - 1)
        })
        .collect();
    let likes: Vec<String> =
        (0..).zip(names).map(|(i, name)| format!("f{i}.symbol LIKE '{name}' ESCAPE '\\'")).collect();
    run.number(&format!(
        "WITH RECURSIVE holds(id) AS (SELECT s0.id FROM stack s0 JOIN frame f0 ON f0.id = s0.frame{links} \
         WHERE {} UNION SELECT stack.id FROM stack JOIN holds ON stack.parent = holds.id) \
         SELECT count(*) FROM sample JOIN instance ON instance.id = sample.instance \
         WHERE instance.comm = '{comm}' AND sample.stack IN holds",
        likes.join(" AND ")
    ))
}

fn the_traced_function_is_below_its_trampoline(guest: Guest) {
    let run = run(guest, TRACED);
    assert!(run.stdout.contains("ftrace_trampoline"), "the tracer has a trampoline: {}", run.stdout);
    let walks = run.report().walks("kernel");
    assert!(walks.walks > 1000 && walks.lost() * 20 <= walks.walks, "{walks:?}");
    let through = chains(&run, "dd", &["ftrace\\_trampoline"]);
    let whole = chains(&run, "dd", &["ftrace\\_trampoline", "vfs\\_read", "ksys\\_read"]);
    assert!(
        through > 200.0 && whole >= 0.95 * through,
        "{whole} of {through} lead to vfs_read and its caller"
    );
    let modules = run.query("SELECT DISTINCT module FROM frame WHERE symbol = 'ftrace_trampoline'");
    assert_eq!(modules, [["__builtin__ftrace"]]);
}

#[test]
#[ignore = "a tracer in the guest: --all"]
fn a_traced_function_is_below_its_tracers_trampoline() {
    the_traced_function_is_below_its_trampoline(Guest::demo());
}

#[test]
#[ignore = "a tracer in the guest, another kernel: --all"]
fn a_traced_function_of_the_newest_kernel_is_below_its_tracers_trampoline() {
    the_traced_function_is_below_its_trampoline(Guest::demo_with_kernel("newest"));
}

#[test]
#[ignore = "a BPF program in the guest: --all"]
fn a_bpf_program_has_its_name_and_leads_to_its_system_call() {
    let run = run(Guest::demo(), "filter --seconds 4; filter --classic --seconds 2");
    let functions = run.report().functions();
    let is_ours = |symbol: &str| symbol.starts_with("bpf_prog_") && symbol.ends_with("_filter");
    let program = functions.iter().find(|f| is_ours(&f.symbol)).expect("the program among the functions");
    assert!(program.module.as_deref() == Some("bpf") && program.samples > 50, "{program:?}");
    let named = chains(&run, "filter", &["bpf\\_prog\\_%\\_filter"]);
    let whole = chains(
        &run,
        "filter",
        &["bpf\\_prog\\_%\\_filter", "sk\\_filter\\_trim\\_cap", "unix\\_dgram\\_sendmsg"],
    );
    assert!(named > 50.0 && whole >= 0.99 * named, "{whole} of {named} lead through the program");
    // A classic program has no name, but its memory is known.
    let classic = functions.iter().find(|f| f.symbol == "[bpf]");
    assert!(classic.is_some_and(|f| f.samples > 30), "{functions:#?}");
    let walks = run.report().walks("kernel");
    assert!(walks.lost() * 20 <= walks.walks, "{walks:?}");
}
