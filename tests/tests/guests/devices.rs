//! Processors, memory and disks as the guest sees them.

use std::io::{Read, Seek, SeekFrom, Write};

use vprof_tests::{Guest, GuestNetwork, Run};

use crate::network::{self, DRIVERS};
use crate::{exact, output};

const MAC: &str = "02:00:00:00:be:ef";

/// One guest has all of them, prints much, and is recorded in exact mode, because one boot serves all.
#[test]
fn vcpus_memory_above_4_gib_random_numbers_and_a_network_card() {
    let Some((run, links)) = GuestNetwork::apart(|network| {
        let run = with_all_devices(network);
        (run, network.ip(&["link", "show", network.tap()]))
    }) else {
        return;
    };
    assert!(links.contains("tap-guest"), "a tap that was there stays: {links}");
    output::assert_output(&run, 0);
    exact::counts_and_instances_add_up(&run);
    network::assert_talked(&run, MAC);
    let is_line = |line: &&str| ["vcpus 2", "random 16"].contains(&line.trim());
    assert_eq!(run.stdout.lines().filter(is_line).count(), 2, "{}", run.stdout);
    let vcpus = run.report().vcpus();
    assert_eq!(vcpus.len(), 2);
    assert!(vcpus.iter().all(|v| v.samples > 0), "{vcpus:?}");
    let line = run.stdout.lines().find(|l| l.contains("MemTotal")).expect("a line of meminfo");
    let kib: u64 = line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("a number");
    assert!(kib > 4_500_000, "{line}");
    assert!(run.stdout.contains("virtio_rng"), "{}", run.stdout);
}

fn with_all_devices(network: &GuestNetwork) -> Run {
    let [guest, gateway] = network.by_tap();
    let net = format!("tap={},mac={MAC}", network.tap());
    let script = format!(
        "{}{DRIVERS}echo vcpus $(nproc); grep MemTotal /proc/meminfo; cat /sys/class/misc/hw_random/rng_current; \
         echo random $(head -c 16 /dev/hwrng | wc -c); cat /sys/class/net/eth0/address; \
         python3 -c \"$0\" \"$@\" && exit 3",
        output::script()
    );
    Guest::demo()
        .next_to_others()
        .options(["--cpus", "2", "--memory", "5G", "-F", "50", "--exact", "--net", &net])
        .command(["sh", "-c", &script, network::TRAFFIC, &guest, &gateway])
        .run()
        .exited(3)
}

#[test]
#[ignore = "two guests: --all"]
fn a_second_disk_is_written_through_and_a_snapshot_is_not() {
    for (snapshot, expected) in [(false, *b"written!"), (true, [0; 8])] {
        let mut disk = tempfile::NamedTempFile::new().expect("a temporary file");
        disk.as_file().set_len(1 << 20).expect("a sparse file");
        let mut options = vec!["--disk".into(), disk.path().to_owned()];
        if snapshot {
            options.push("--snapshot".into());
        }
        let run = Guest::demo()
            .next_to_others()
            .write_through()
            .options(options)
            .script(
                "printf 'written!' | dd of=/dev/vdb bs=512 conv=sync,fsync 2>&1; dd if=/dev/vdb bs=8 count=1",
            )
            .run()
            .succeeded();
        assert!(run.stdout.contains("written!"), "stdout: {}", run.stdout);
        let mut start = [0; 8];
        disk.flush().and_then(|()| disk.seek(SeekFrom::Start(0))).expect("seekable");
        disk.read_exact(&mut start).expect("eight bytes");
        assert_eq!(start, expected, "snapshot: {snapshot}");
    }
}

#[test]
#[ignore = "one more kind of memory: --all"]
fn memory_in_huge_pages_is_memory() {
    // The portable host's kernel reserves them for the guest; another machine's need not have any.
    let run = Guest::demo()
        .next_to_others()
        .options(["--huge-pages", "--host", "portable", "--memory", "256M"])
        .script("grep MemTotal /proc/meminfo; spin --seconds 1")
        .run()
        .succeeded();
    assert!(run.stdout.contains("MemTotal"), "{}", run.stdout);
    assert!(run.report().process("spin").share > 0.0);
}
