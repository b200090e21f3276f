//! `vprof agent` on an emulated host: guests of Linux under QEMU with KVM.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, Row};
use vprof_tests::{KvmHost, on_kvm_host};

use crate::attach_kvm::SPLIT;

/// An agent for one window of a minute, which starts with the next minute of the clock.
const AGENT: &str = "cd /run; mkdir lake; { /run/vprof agent --once --window 1m --rate 100 --budget 50% \
    --guest-budget 50% --label team=web --to lake --spool spool 2>agent.errors; echo $? >agent.status; } &";

/// Returns the rows of the only file of a table of the agent's lake.
fn table(host: &mut KvmHost, name: &str) -> Vec<Row> {
    let text = host.must(&format!("base64 -w 0 /run/lake/v1/{name}/*/*/*.parquet"));
    let reader = SerializedFileReader::new(Bytes::from(STANDARD.decode(text).unwrap())).unwrap();
    reader.get_row_iter(None).unwrap().map(Result::unwrap).collect()
}

fn field<'r>(row: &'r Row, column: &str) -> &'r Field {
    row.get_column_iter().find(|(name, _)| *name == column).map(|(_, field)| field).expect("the column")
}

fn text(row: &Row, column: &str) -> String {
    match field(row, column) {
        Field::Str(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Returns the sum of a column of numbers in the rows of a program.
fn sum(rows: &[Row], process: &str, column: &str) -> f64 {
    let of_process = rows.iter().filter(|row| text(row, "process") == process);
    of_process.filter_map(|row| field(row, column).to_string().parse::<f64>().ok()).sum()
}

/// Asserts the shares of [`SPLIT`] in a column.
fn assert_split(rows: &[Row], column: &str, messages: &str) {
    let [alpha, beta] = ["alpha", "beta"].map(|name| sum(rows, name, column));
    assert!((alpha / (alpha + beta) - 0.75).abs() < 0.1, "{column}: {alpha} and {beta}, {messages}");
}

#[test]
#[ignore = "an emulated host: --all"]
fn a_window_has_the_programs_of_a_linux_guest() {
    on_kvm_host(|host| {
        host.guest("web", "-m 512 -smp 1 -uuid 6f1c2a7e-0b1d-4a57-9a51-0242ac120002", SPLIT);
        host.must(AGENT);
        host.wait_until("ls /run/spool/*/*.vprof");
        host.wait_until("[ -s /run/agent.status ]");
        let messages = host.must("cat /run/agent.errors");
        assert_eq!(host.must("cat /run/agent.status").trim(), "0", "{messages}");

        let samples = table(host, "samples");
        assert_split(&samples, "weight_ns", &messages);
        for row in &samples {
            assert_eq!((text(row, "vm_name"), text(row, "group_")), ("web".into(), "team=web".into()));
            assert!(text(row, "kernel").ends_with("-amd64"), "{row}");
        }
        let vms = table(host, "vms");
        assert_eq!(vms.len(), 1, "{messages}");
        assert_eq!(text(&vms[0], "uuid"), "6f1c2a7e-0b1d-4a57-9a51-0242ac120002");
        assert_eq!((text(&vms[0], "engine"), text(&vms[0], "complete")), ("bpf".into(), "1".into()));
        // The guest's own account of both, over the same time.
        assert_split(&table(host, "tasks"), "user_ns", &messages);
    });
}
