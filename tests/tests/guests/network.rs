//! The guest's network card, and its virtio-console.

use vprof_tests::{Guest, GuestNetwork, Run};

/// Loads the drivers that the image's initrd does not have.
pub(crate) const DRIVERS: &str =
    "for module in $(cat /usr/lib/modules/more/load-order); do /usr/sbin/insmod $module; done; ";

/// Brings eth0 up with the first address and sends 320 KiB to the second one, which echoes them meanwhile.
pub(crate) const TRAFFIC: &str = "\
import fcntl, os, socket, struct, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
address = socket.inet_aton(sys.argv[1])
fcntl.ioctl(s, 0x8916, struct.pack('16sH2s4s8s', b'eth0', socket.AF_INET, b'', address, b''))
fcntl.ioctl(s, 0x8914, struct.pack('16sH14s', b'eth0', 0x41, b''))
data = os.urandom(5 << 16)
c = socket.create_connection((sys.argv[2], 7), timeout=60)
if os.fork() == 0:
    c.sendall(data)
    os._exit(0)
back = bytearray()
while len(back) < len(data):
    part = c.recv(1 << 16)
    assert part, 'the connection ended'
    back += part
assert back == data, 'what came back is not what was sent'
read = lambda name: int(open('/sys/class/net/eth0/statistics/' + name).read())
print(len(back), 'bytes came back;', 'errors:', read('rx_errors') + read('tx_errors'), flush=True)
";

/// Runs a guest that talks to the host.
fn talked(network: &str, [guest, host]: &[String; 2]) -> Run {
    let script = format!("{DRIVERS}cat /sys/class/net/eth0/address; exec python3 -c \"$0\" \"$@\"");
    Guest::demo()
        .next_to_others()
        .options(["-F", "200", "--net", network])
        .command(["sh", "-c", &script, TRAFFIC, guest, host])
        .run()
        .succeeded()
}

/// Asserts that a guest with this card has talked.
pub(crate) fn assert_talked(run: &Run, mac: &str) {
    assert!(run.stdout.contains(mac), "{}", run.stdout);
    assert!(run.stdout.contains("327680 bytes came back; errors: 0"), "{}", run.stdout);
    let stat = run.json(&["stat"]);
    let count = |part: &str| {
        stat[part].as_array().expect("a list").iter().filter(|row| row["device"] == "network").count()
    };
    assert!(count("exits") > 0 && count("interrupts") > 0, "{stat}");
}

#[test]
#[ignore = "one more network: --all"]
fn a_guest_talks_to_the_host_through_passt() {
    let Some(run) = GuestNetwork::apart(|network| talked("passt", &network.by_passt())) else { return };
    assert!(run.stdout.contains("327680 bytes came back; errors: 0"), "{}", run.stdout);
    assert!(run.query("SELECT text FROM event WHERE kind = 'network'").is_empty());
}

#[test]
fn an_unavailable_network_is_reported_before_the_guest_starts() {
    for (network, sentence) in [
        ("tap=lo", "the network interface lo is not a tap"),
        ("tap=a-name-of-16-chr", "is not a name of a network interface"),
    ] {
        let run = Guest::demo().next_to_others().options(["--net", network]).run();
        assert!(run.stderr.contains(sentence), "{}", run.stderr);
        run.exited(1);
    }
}

#[test]
#[ignore = "one more device: --all"]
fn a_virtio_console_has_the_output_of_the_kernel_and_of_its_users() {
    let run = Guest::demo().next_to_others()
        .options(["-F", "200", "--console", "-", "--console-device", "virtio", "--append", "console=ttyS0 console=hvc0"])
        .script(&format!(
            "{DRIVERS}i=0; while [ $i -lt 200 ]; do echo \"line $i of the virtio console\"; i=$((i+1)); done >/dev/hvc0"
        ))
        .run()
        .succeeded();
    for line in [0, 99, 199] {
        assert!(
            run.stdout.contains(&format!("line {line} of the virtio console\r\n")),
            "{line}: {}",
            run.stdout
        );
    }
    let exits = run.json(&["stat"])["exits"].clone();
    let console: i64 = exits
        .as_array()
        .expect("a list")
        .iter()
        .filter(|row| row["device"] == "console")
        .filter_map(|row| row["count"].as_i64())
        .sum();
    assert!((1..1_000).contains(&console), "6,000 bytes would be as many exits: {exits}");
}
