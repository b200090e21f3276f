use super::*;
use crate::rows::Microstates;
use crate::rows::{
    Batch, ExitRow, HostWaitRow, InjectedRow, InterruptSourceRow, KvmCounterRow, Sink, VcpuRow,
};
use crate::store::{Profile, ProfileWriter};

fn exit(id: u32, vcpu: u8, address: u64, count: u64) -> ExitRow {
    ExitRow {
        id,
        vcpu,
        reason: "port write".to_owned(),
        address: Some(address),
        device: Some("serial port".to_owned()),
        count,
        total_ns: count * 1_000,
        max_ns: 1_020,
        p50_ns: 1,
        p99_ns: 1,
        times: vec![(960, count - 1), (1_024, 1)],
    }
}

fn batch(n: u64) -> Batch {
    let states = Microstates { guest: 600 * n, halted: 300 * n, vmm: 100 * n, ..Microstates::default() };
    let counter = |name: &str, value, grows| KvmCounterRow { vcpu: 0, name: name.to_owned(), value, grows };
    let injected = |device: &str, vector, count| InjectedRow { device: device.to_owned(), vector, count };
    let source =
        |vcpu, vector| InterruptSourceRow { vcpu, interrupt: 1, vector, ns: 150 * n, count: n, max_ns: 9 };
    // Rows of the same key add up.
    let interrupt_sources = vec![source(0, 0x23), source(1, 0x23), source(0, 0)];
    Batch {
        interrupt_sources,
        meta: vec![("duration_ns".to_owned(), (n * 1_000_000_000).to_string())],
        vcpus: vec![VcpuRow { id: 0, samples: n, lost: 0, exits: 7 * n, states }],
        exits: vec![exit(1, 0, 0x3f8, 10 * n), exit(2, 0, 0x3f9, 2), exit(3, 1, 0x3f8, 5)],
        kvm_counters: vec![counter("exits", 50 * n, true), counter("blocking", n, false)],
        host_waits: vec![
            HostWaitRow { vcpu: 0, pid: 7, name: "cc1".to_owned(), count: 2 * n, total_ns: 900 * n },
            HostWaitRow { vcpu: 1, pid: 7, name: "cc1".to_owned(), count: 1, total_ns: 100 },
            HostWaitRow { vcpu: 0, pid: 0, name: String::new(), count: 1, total_ns: 10 },
        ],
        injected: vec![injected("serial port", None, 3), injected("disk 0", Some(0x23), 4 * n)],
        ..Batch::default()
    }
}

#[test]
fn a_look_and_what_came_after_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("run.vprof");
    let mut writer = ProfileWriter::create(&path, false).expect("a new profile");
    writer.write(&batch(1)).expect("room");
    let profile = Profile::open(&path).expect("a profile");
    let first = Stat::read(&profile).expect("figures");
    writer.write(&batch(3)).expect("room");
    let second = Stat::read(&profile).expect("figures");

    assert_eq!((first.complete, first.from_s, first.to_s), (false, 0.0, 1.0));
    assert_eq!((first.vcpus[0].wall_ns, first.vcpus[0].states["guest"]), (1_000, 600));
    assert_eq!(first.vcpus[0].states.values().sum::<u64>(), first.vcpus[0].wall_ns);
    let devices = first.by_device();
    assert_eq!(devices.len(), 1, "{devices:?}");
    assert_eq!((devices[0].count, devices[0].mean_ns, devices[0].vcpu), (17, 1_000, None));
    assert!((960..1_024).contains(&devices[0].p50_ns) && devices[0].p99_ns >= devices[0].p50_ns);
    assert_eq!(first.interrupts[0].device, "disk 0", "most first");

    let by_process = first.waits_by_process();
    let of = |wait: &HostWaitStat| (wait.vcpu, wait.pid, wait.name.clone(), wait.count, wait.total_ns);
    let expected = [(None, Some(7), "cc1".to_owned(), 3, 1_000), (None, None, String::new(), 1, 10)];
    assert_eq!(by_process.iter().map(of).collect::<Vec<_>>(), expected);

    let window = second.since(&first);
    assert_eq!(window.host_waits.len(), 1, "the others did not change");
    assert_eq!((window.host_waits[0].count, window.host_waits[0].mean_ns), (4, 450));
    assert_eq!(second.clone().of_vcpu(1).host_waits.len(), 1);
    assert_eq!((window.from_s, window.to_s), (1.0, 3.0));
    assert_eq!((window.vcpus[0].wall_ns, window.vcpus[0].exits), (2_000, 14));
    assert_eq!(window.exits.len(), 1, "the others did not change");
    assert_eq!((window.exits[0].count, window.exits[0].total_ns), (20, 20_000));
    let counters: Vec<_> = window.kvm_counters.iter().map(|c| (c.name.as_str(), c.value)).collect();
    assert_eq!(counters, [("blocking", 3), ("exits", 100)], "only what grows is a difference");
    assert_eq!(
        window.interrupts,
        [InterruptStat { device: "disk 0".to_owned(), vector: Some(0x23), count: 8 }]
    );
    let of = |stat: &Stat| {
        stat.served_by_name().iter().map(|s| (s.count, s.total_ns, s.mean_ns, s.vector)).collect::<Vec<_>>()
    };
    // Two vectors on vCPU 0, one of them on vCPU 1 as well: by name they are one.
    assert_eq!((first.served.len(), of(&first)), (3, vec![(3, 450, 150, None)]));
    assert_eq!((of(&second), of(&window)), (vec![(12, 1_800, 150, None)], vec![(9, 1_350, 150, None)]));
    assert_eq!(of(&second.clone().of_vcpu(1)), [(4, 600, 150, Some(0x23))]);
    let other = second.of_vcpu(1);
    assert!(other.vcpus.is_empty() && other.kvm_counters.is_empty());
    assert_eq!(other.exits.len(), 1);
}
