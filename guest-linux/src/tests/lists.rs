//! Task and module lists.

use super::{STYLES, booted, comm, find, styled};
use crate::fixture::{Config, Process, Style};
use crate::{Missing, PhysAddr, VirtAddr};
use proptest::prelude::*;

#[test]
fn all_threads_of_all_processes_are_listed() {
    for style in STYLES {
        let (guest, kernel) = styled(style, |_| ());
        let tasks = kernel.tasks(&guest.memory).unwrap();
        let listed: Vec<_> =
            tasks.iter().map(|t| (t.pid, t.tid, comm(&t.comm), comm(&t.process_comm), t.start_ns)).collect();
        assert_eq!(
            listed,
            [
                (1, 1, "init", "init", 20),
                (2, 2, "kthreadd", "kthreadd", 10),
                (100, 100, "many", "many", 5_000),
                (100, 101, "worker-101", "many", 5_000),
                (100, 102, "worker-102", "many", 5_000),
                (100, 103, "worker-103", "many", 5_000),
            ]
        );
        assert_eq!(tasks.iter().filter(|t| t.kernel_thread).count(), 1);
        assert_eq!(Some(tasks[3].task), guest.task(101));
    }
}

#[test]
fn a_loop_of_tasks_ends() {
    let mut guest = Config::new(Style::V6_12).build();
    guest.tie_task_loop();
    let tasks = find(&guest).unwrap().tasks(&guest.memory).unwrap();
    assert_eq!(tasks.len(), 6);
}

#[test]
fn a_list_that_leads_nowhere_gives_what_was_before() {
    let mut guest = Config::new(Style::V6_1).build();
    let kernel = find(&guest).unwrap();
    // kthreadd's link to the next process.
    let at = VirtAddr(guest.task(2).unwrap() + 0x300);
    let phys = kernel.address_space().translate(&guest.memory, at).unwrap().phys;
    guest.put(phys, &0xdead_0000_0000_0100u64.to_le_bytes());
    let tasks = kernel.tasks(&guest.memory).unwrap();
    assert_eq!(tasks.len(), 2);
}

#[test]
fn modules_have_their_functions() {
    for style in STYLES {
        let (guest, kernel) = styled(style, |_| ());
        let modules = kernel.modules(&guest.memory).unwrap();
        let listed: Vec<_> = modules.iter().collect();
        assert_eq!(
            listed,
            [("virtio_ring", guest.module_text(0, 0), 0x2000), ("ext4", guest.module_text(1, 0), 0x2000),]
        );
        let at = |module, offset| {
            let found = modules.symbol_at(guest.module_text(module, offset))?;
            Some((found.name, found.module?, found.offset))
        };
        assert_eq!(at(0, 0x25), Some(("virtio_ring_add", "virtio_ring", 5)));
        assert_eq!(at(1, 0x1fff), Some(("ext4_kick", "ext4", 0x17ff)));
        // Before the first function: the module's name is still worth something.
        assert_eq!(at(1, 0x4), Some(("", "ext4", 4)));
        assert_eq!(at(1, 0x2000), None);
        assert_eq!(modules.symbol_at(guest.text(0x1000)), None);
        assert_eq!(kernel.symbol_at(guest.module_text(0, 0x25)), None);
    }
}

#[test]
fn an_unformed_module_is_left_out() {
    let mut guest = Config::new(Style::V6_12).build();
    // `state` of the first module, at the start of its struct module.
    guest.put(PhysAddr(0x2c0_2000), &3u32.to_le_bytes());
    let modules = find(&guest).unwrap().modules(&guest.memory).unwrap();
    let names: Vec<_> = modules.iter().map(|m| m.0).collect();
    assert_eq!(names, ["ext4"]);
}

#[test]
fn a_module_with_absurd_tables_keeps_its_name() {
    let mut guest = Config::new(Style::V6_12).build();
    // `num_symtab` of the first, `st_name` of a symbol of the second.
    guest.put(PhysAddr(0x2c0_2808), &u32::MAX.to_le_bytes());
    guest.put(PhysAddr(0x2c0_7000), &u32::MAX.to_le_bytes());
    let modules = find(&guest).unwrap().modules(&guest.memory).unwrap();
    for (i, name) in ["virtio_ring", "ext4"].into_iter().enumerate() {
        let found = modules.symbol_at(guest.module_text(i as u64, 0x25)).unwrap();
        assert_eq!((found.name, found.module), ("", Some(name)));
    }
}

#[test]
fn no_modules_are_no_error() {
    let (guest, kernel) = booted(|c| c.modules.clear());
    assert_eq!(kernel.modules(&guest.memory).unwrap().iter().count(), 0);
}

#[test]
fn a_list_whose_head_is_gone_is_told() {
    let (_, kernel) = booted(|_| ());
    let gone = crate::FlatMemory(Vec::new());
    assert_eq!(kernel.tasks(&gone).err(), Some(Missing::TaskList));
    assert_eq!(kernel.modules(&gone).err(), Some(Missing::ModuleList));
    assert_eq!(kernel.current_reader(&gone).err(), Some(Missing::PerCpuNotReady));
}

proptest! {
    #[test]
    fn any_processes_come_back(
        described in prop::collection::vec(("[a-z(/) ]{1,15}", 0u64..u64::MAX / 2), 1..100),
        style in prop::sample::select(STYLES.to_vec()),
    ) {
        let processes: Vec<_> = (1..).zip(&described)
            .map(|(pid, (comm, start))| Process::new(pid, comm, *start)).collect();
        let (guest, kernel) = styled(style, |c| {
            c.processes = processes;
            c.running = vec![1, 0];
        });
        let tasks = kernel.tasks(&guest.memory).unwrap();
        let found: Vec<_> = tasks.iter().map(|t| (comm(&t.comm).to_owned(), t.start_ns)).collect();
        prop_assert_eq!(found, described);
    }
}
