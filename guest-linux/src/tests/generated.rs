//! Code that the kernel has generated: names, and hostile lists.

use super::{STYLES, find, styled};
use crate::VirtAddr;
use crate::fixture::generated::{DISPATCHER, PACK, PROBES, PROGRAM, TRACERS, TRAMPOLINE};
use crate::fixture::{Config, Guest, Style};

/// Returns the name, module and offset of what covers a place in generated code.
fn named(guest: &Guest, offset: u64) -> Option<(String, String, u64)> {
    let code = find(guest).expect("a kernel").generated_code(&guest.memory);
    let found = code.symbol_at(VirtAddr(guest.generated(offset)))?;
    Some((found.name.to_owned(), found.module?.to_owned(), found.offset))
}

fn name(name: &str, module: &str, offset: u64) -> Option<(String, String, u64)> {
    Some((name.to_owned(), module.to_owned(), offset))
}

#[test]
fn generated_code_has_the_names_of_kallsyms() {
    for style in STYLES {
        let (guest, kernel) = styled(style, |_| ());
        let program = "bpf_prog_6deef7357e7b4530_fixture";
        assert_eq!(named(&guest, PROGRAM.0), name(program, "bpf", 0));
        assert_eq!(named(&guest, PROGRAM.0 + PROGRAM.1 - 1), name(program, "bpf", 0x3f));
        assert_eq!(named(&guest, PROGRAM.0 + PROGRAM.1), None);
        assert_eq!(named(&guest, TRAMPOLINE.0 + 1), name("bpf_trampoline_6442536467", "bpf", 1));
        assert_eq!(named(&guest, DISPATCHER.0), name("bpf_dispatcher_xdp", "bpf", 0));
        for (start, _) in TRACERS {
            assert_eq!(named(&guest, start + 4), name("ftrace_trampoline", "__builtin__ftrace", 4));
        }
        assert_eq!(named(&guest, PROBES[0] + 9), name("kprobe_insn_page", "__builtin__kprobes", 9));
        assert_eq!(named(&guest, PROBES[1]), name("kprobe_optinsn_page", "__builtin__kprobes", 0));
        // A classic program is on no list; what it shares its memory with is known.
        assert_eq!(named(&guest, PACK + 0x44), name("", "bpf", 0x44));
        assert_eq!(named(&guest, PACK - 1), None);
        assert_eq!(kernel.generated_code(&guest.memory).iter().count(), 7);
        assert_eq!(kernel.generated_code(&guest.memory), kernel.generated_code(&guest.memory));
    }
}

#[test]
fn a_loop_of_programs_ends() {
    let mut guest = Config::new(Style::V6_12).build();
    guest.tie_program_loop();
    assert_eq!(find(&guest).unwrap().generated_code(&guest.memory).iter().count(), 7);
}

#[test]
fn a_program_that_cannot_be_is_left_out() {
    let mut guest = Config::new(Style::V6_12).build();
    let start = guest.generated(PROGRAM.0);
    let before = find(&guest).unwrap().generated_code(&guest.memory);
    for (start, end) in [(start, start), (start, start - 1), (start, start + (16 << 20) + 1), (0, u64::MAX)] {
        guest.set_program(b"bpf_prog_x", start, end);
        assert_eq!(named(&guest, PROGRAM.0), None, "{start:#x} {end:#x}");
    }
    assert!(before != find(&guest).unwrap().generated_code(&guest.memory), "a change shows");
    // Code that cannot be read has a name nevertheless.
    guest.set_program(b"bpf_prog_x\0", start, start + (16 << 20));
    assert_eq!(named(&guest, PROGRAM.0), name("bpf_prog_x", "bpf", 0));
}

#[test]
fn a_name_without_an_end_ends_with_its_array() {
    let mut guest = Config::new(Style::V6_1).build();
    let start = guest.generated(PROGRAM.0);
    guest.set_program(&[b'x'; 128], start, start + 16);
    assert_eq!(named(&guest, PROGRAM.0), name(&"x".repeat(128), "bpf", 0));
    guest.set_program(b"a\x1b[31m\0", start, start + 16);
    assert_eq!(named(&guest, PROGRAM.0), name("a?[31m", "bpf", 0));
}

#[test]
fn a_trampoline_of_any_size_ends() {
    let mut guest = Config::new(Style::V6_15).build();
    for bytes in [0, (16 << 20) + 1, u64::MAX] {
        guest.set_tracer_size(bytes);
        assert_eq!(named(&guest, TRACERS[0].0), None, "{bytes:#x}");
    }
    guest.set_tracer_size(1);
    assert_eq!(named(&guest, TRACERS[0].0 + 1), None);
}

#[test]
fn a_kernel_without_the_lists_has_no_such_code() {
    let gone = crate::FlatMemory(Vec::new());
    let (_, kernel) = styled(Style::V6_12, |_| ());
    assert_eq!(kernel.generated_code(&gone), crate::GeneratedCode::default());
    let (guest, kernel) = styled(Style::V6_12, |config| config.btf = false);
    assert_eq!(kernel.generated_code(&guest.memory), crate::GeneratedCode::default());
}

#[test]
fn modules_are_read_again_when_they_have_changed() {
    let (mut guest, kernel) = styled(Style::V6_12, |_| ());
    let modules = kernel.modules(&guest.memory).unwrap();
    assert!(kernel.other_modules(&guest.memory, &modules).unwrap().is_none());
    // The name of the first.
    guest.put(crate::PhysAddr(0x2c0_2000 + 24), b"another");
    let others = kernel.other_modules(&guest.memory, &modules).unwrap().expect("other modules");
    assert_eq!(others.iter().next().map(|module| module.0.to_owned()), Some("anotherring".to_owned()));
}
