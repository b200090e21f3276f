//! Current tasks.

use super::{STYLES, booted, comm, find, styled};
use crate::fixture::{Config, Guest, Style, phys_to_virt};
use crate::{IrqContext, Missing, PhysAddr, PhysicalMemory};

#[test]
fn every_style_and_paging_mode_has_current_tasks() {
    for style in STYLES {
        for five_level in [false, true] {
            for page_offset_base in [false, true] {
                let (guest, kernel) = styled(style, |c| {
                    c.five_level = five_level;
                    c.page_offset_base = page_offset_base;
                });
                let reader = kernel.current_reader(&guest.memory).unwrap();
                assert_eq!(reader.cpus().collect::<Vec<_>>(), [0, 1]);
                let first = reader.read(&guest.memory, 0).unwrap();
                let second = reader.read(&guest.memory, 1).unwrap();
                assert_eq!(first.preempt_count, 0x8000_0000);
                let interrupted = if style == Style::V6_15 { 0x8100_0001 } else { 0x8001_0001 };
                assert_eq!(second.preempt_count, interrupted);
                assert_eq!((first.serving, second.serving), (IrqContext::Task, IrqContext::HardIrq));
                assert_eq!(reader.missing(), None);
                let (first, second) = (first.task.unwrap(), second.task.unwrap());
                assert_eq!(Some(first.task), guest.task(1));
                assert_eq!((first.pid, first.tid, first.start_ns), (1, 1, 20));
                assert_eq!(comm(&first.comm), "init");
                assert_eq!(comm(&first.process_comm), "init");
                // A thread has its process's start and name next to its own.
                assert_eq!((second.pid, second.tid, second.start_ns), (100, 102, 5_000));
                assert_eq!(comm(&second.comm), "worker-102");
                assert_eq!(comm(&second.process_comm), "many");
                assert!(!second.kernel_thread);
                assert_eq!(reader.read(&guest.memory, 2), None);
                assert_eq!(reader.read(&guest.memory, usize::MAX), None);
            }
        }
    }
}

#[test]
fn a_kernel_that_counts_interrupts_in_an_unknown_way_is_told() {
    for style in STYLES {
        let mut guest = Config::new(style).build();
        // Where `irq_enter_rcu` adds to the preempt count.
        guest.put_text(0x50c5, &[0x90; 16]);
        let reader = find(&guest).unwrap().current_reader(&guest.memory).unwrap();
        assert_eq!(reader.missing(), Some(&Missing::NoHardIrqBits));
        let current = reader.read(&guest.memory, 1).unwrap();
        assert_eq!((current.serving, current.task.unwrap().tid), (IrqContext::Task, 102));
    }
}

#[test]
fn idle_tasks_and_kernel_threads_are_told() {
    let (guest, kernel) = booted(|c| c.running = vec![0, 2]);
    let reader = kernel.current_reader(&guest.memory).unwrap();
    let idle = reader.read(&guest.memory, 0).unwrap().task.unwrap();
    assert_eq!((idle.pid, comm(&idle.comm)), (0, "swapper/0"));
    assert!(idle.kernel_thread);
    let thread = reader.read(&guest.memory, 1).unwrap().task.unwrap();
    assert_eq!((thread.pid, comm(&thread.comm)), (2, "kthreadd"));
    assert!(thread.kernel_thread);
}

#[test]
fn cpus_are_numbered_by_their_apic_ids() {
    for style in STYLES {
        let (guest, kernel) = styled(style, |c| c.apic_ids = vec![4, 1]);
        let reader = kernel.current_reader(&guest.memory).unwrap();
        let tid = |cpu| Some(reader.read(&guest.memory, cpu)?.task?.tid);
        assert_eq!(tid(4), Some(1));
        assert_eq!(tid(1), Some(102));
        assert_eq!((tid(0), tid(3)), (None, None));
        assert_eq!(reader.cpus().collect::<Vec<_>>(), [1, 4]);
    }
}

#[test]
fn cpus_that_are_not_there_take_no_other_ones_place() {
    // BAD_APICID: 0xffff, later all ones.
    for (style, bad) in [(Style::V6_1, 0xffff), (Style::V6_12, u32::MAX)] {
        let (guest, kernel) = styled(style, |c| {
            c.apic_ids = vec![2, 1, bad];
            c.running = vec![1, 102, 2];
        });
        let reader = kernel.current_reader(&guest.memory).unwrap();
        let tids = [0, 1, 2, 3].map(|cpu| Some(reader.read(&guest.memory, cpu)?.task?.tid));
        assert_eq!(tids, [None, Some(102), Some(1), None]);
        // Without any, the kernel's own numbers.
        let (guest, kernel) = styled(style, |c| c.apic_ids = vec![bad; 2]);
        let reader = kernel.current_reader(&guest.memory).unwrap();
        let tids = [0, 1].map(|cpu| Some(reader.read(&guest.memory, cpu)?.task?.tid));
        assert_eq!(tids, [Some(1), Some(102)]);
    }
}

#[test]
fn a_cpu_that_is_plugged_in_is_read_from_then_on() {
    for (style, bad) in [(Style::V6_1, 0xffff), (Style::V6_12, u32::MAX)] {
        let with_third = |id| {
            styled(style, |c| {
                c.apic_ids = vec![2, 1, id];
                c.running = vec![1, 102, 2];
            })
        };
        let ((before, kernel), (later, _)) = (with_third(bad), with_third(7));
        let reader = kernel.current_reader(&before.memory).unwrap();
        let tid = |guest: &Guest, cpu| Some(reader.read(&guest.memory, cpu)?.task?.tid);
        assert_eq!((tid(&before, 7), reader.cpus().count()), (None, 2));
        assert_eq!(tid(&later, 7), Some(2));
        assert_eq!((tid(&later, 0), tid(&later, 1)), (None, Some(102)));
        assert_eq!(reader.cpus().collect::<Vec<_>>(), [1, 2, 7]);
        // It keeps its APIC id.
        assert_eq!(tid(&before, 7), Some(2));
        if let Ok(reads) = kernel.sample_reads(&later.memory, &[7]) {
            let at = reads[0].as_ref().unwrap().apic_id.unwrap();
            assert_eq!(later.memory.read_u32(at).unwrap() & 0xffff, 7);
        }
    }
}

#[test]
fn of_many_absent_cpus_a_few_are_read_at_once() {
    let with_last = |id| {
        styled(Style::V6_12, |c| {
            c.apic_ids = vec![u32::MAX; 100];
            (c.apic_ids[0], c.apic_ids[99]) = (0, id);
        })
    };
    let ((before, kernel), (later, _)) = (with_last(u32::MAX), with_last(7));
    let reader = kernel.current_reader(&before.memory).unwrap();
    let found = [(), ()].map(|()| reader.read(&later.memory, 7).is_some());
    assert_eq!(found, [false, true]);
}

#[test]
fn before_the_areas_are_set_up_the_caller_is_told_to_come_again() {
    for style in STYLES {
        let (guest, kernel) = styled(style, |c| c.per_cpu_ready = false);
        let missing = kernel.current_reader(&guest.memory).err().unwrap();
        assert_eq!(missing, Missing::PerCpuNotReady);
        assert!(missing.may_come());
        assert_eq!(kernel.missing(), []);
    }
}

#[test]
fn a_half_done_set_up_is_not_ready() {
    let mut guest = Config::new(Style::V6_12).build();
    let kernel = find(&guest).unwrap();
    let array = kernel.address_of("__per_cpu_offset").unwrap();
    let phys = kernel.address_space().translate(&guest.memory, array).unwrap().phys;
    // The second CPU still has the initial offset, in the image.
    guest.put(phys.checked_add(8).unwrap(), &guest.text(0x3c_0000).0.to_le_bytes());
    assert_eq!(kernel.current_reader(&guest.memory).err(), Some(Missing::PerCpuNotReady));
}

#[test]
fn a_current_pointer_that_is_no_task_leaves_the_preempt_count() {
    let mut guest = Config::new(Style::V6_12).build();
    let kernel = find(&guest).unwrap();
    let reader = kernel.current_reader(&guest.memory).unwrap();
    let five = guest.five_level;
    let good = guest.task(1).unwrap();
    // pcpu_hot of CPU 0 (see the fixture's map).
    let at = PhysAddr(0x240_0200);
    assert_eq!(guest.memory.read_u64(at), Some(good));
    for bad in [0, good + 1, 0x7fff_1234_5678, !7, phys_to_virt(1 << 40, five), phys_to_virt(0, five) - 8] {
        guest.put(at, &bad.to_le_bytes());
        let current = reader.read(&guest.memory, 0).unwrap();
        assert_eq!(current.task, None, "{bad:#x}");
        assert_eq!(current.preempt_count, 0x8000_0000);
    }
    // A bad leader takes the whole task along: an identity must not be half right.
    guest.put(at, &good.to_le_bytes());
    let leader = good - phys_to_virt(0, five) + 0x3d0;
    guest.put(PhysAddr(leader), &[0xff; 8]);
    assert_eq!(reader.read(&guest.memory, 0).unwrap().task, None);
}

#[test]
fn an_old_longer_name_does_not_show_behind_the_new_one() {
    let mut guest = Config::new(Style::V6_12).build();
    let kernel = find(&guest).unwrap();
    let task = guest.task(1).unwrap() - phys_to_virt(0, guest.five_level);
    guest.put(PhysAddr(task + 0x548), b"sh\0d-something\0\0");
    let reader = kernel.current_reader(&guest.memory).unwrap();
    let read = reader.read(&guest.memory, 0).unwrap().task.unwrap();
    assert_eq!(read.comm, *b"sh\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
}
