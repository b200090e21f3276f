//! Messages of the wire between the halves of a run, in both directions, the first message of an attach half
//! and its answer about memory, the job that the inner half of the portable host is given, and the answer of
//! the reader of images.
//!
//! The first byte says which of them, and in parts of what length they come.

use std::time::Duration;

use attach::{AttachmentEnd, RunningMachine};
use control::SessionChange;
use disk_images::{ImageInspection, RunSummary};
use host::attached::{AttachedMemoryUse, AttachedVm, FoundVm, HostMemory, MemoryAnswer};
use host::protocol::{Decoder, FromHost, Job, OutputStream, ToHost, encode};
use host::reader::{Answer, BootFacts};
use host::spec::{DiskSpec, GuestEnd, MachineSpec, Outcome, RunSpec};
use profile::Batch;
use profile::conditions::{Condition, RunTrigger};
use profile::session::SessionStatus;
use sampler::{RecordingConfig, SessionTotals};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Kinds of messages, by the remainder of the first byte. The last one is the job.
const KINDS: u8 = 6;
const FROM_HOST: u8 = 0;
const TO_HOST: u8 = 1;
const ANSWER: u8 = 2;
const FOUND_VM: u8 = 3;
const MEMORY: u8 = 4;
const JOB: u8 = 5;

/// Runs the target on one input of the fuzzer.
pub fn test_one_input(bytes: &[u8]) {
    let Some((&kind, bytes)) = bytes.split_first() else { return };
    let length = usize::from(kind / KINDS) + 1;
    match kind % KINDS {
        FROM_HOST => same_in_parts::<FromHost>(bytes, length),
        TO_HOST => same_in_parts::<ToHost>(bytes, length),
        ANSWER => check_answer(bytes),
        FOUND_VM => same_in_parts::<FoundVm>(bytes, length),
        MEMORY => same_in_parts::<MemoryAnswer>(bytes, length),
        _ => {
            let Ok(mut job) = serde_json::from_slice::<Job>(bytes) else { return };
            // JSON rounds numbers with a fraction.
            job.run.recording = RecordingConfig::default();
            let again = serde_json::to_vec(&job).expect("a job can be written");
            assert_eq!(serde_json::from_slice::<Job>(&again).ok().as_ref(), Some(&job));
        }
    }
}

/// An answer that is accepted has no text that moves a cursor, and is accepted again.
fn check_answer(bytes: &[u8]) {
    let Ok(answer) = Answer::from_bytes(bytes) else { return };
    let sentence = match &answer {
        Answer::Boot(facts) => facts.sentence.as_deref(),
        Answer::Refused(sentence) | Answer::Panicked(sentence) => Some(sentence.as_str()),
        Answer::Checked | Answer::Inspection(_) => None,
    };
    assert!(sentence.is_none_or(|sentence| !sentence.contains(char::is_control)), "{sentence:?}");
    // Escapes are longer than what they stand for.
    if let Ok(again) = Answer::from_bytes(&answer.to_bytes().expect("a short answer")) {
        assert_eq!(again, answer);
    }
}

/// Returns all messages of a stream, each encoded again; true if the stream broke off.
fn messages<T: Serialize + DeserializeOwned>(bytes: &[u8], length: usize) -> (Vec<Vec<u8>>, bool) {
    let (mut decoder, mut messages) = (Decoder::default(), Vec::new());
    for part in bytes.chunks(length) {
        decoder.push(part);
        loop {
            match decoder.next_message::<T>() {
                Ok(Some(message)) => messages.push(encode(&message).expect("it was short enough")),
                Ok(None) => break,
                Err(_) => return (messages, true),
            }
        }
    }
    (messages, false)
}

/// However a stream comes in parts, its messages are the same; and each says the same when it is sent on.
fn same_in_parts<T: Serialize + DeserializeOwned>(bytes: &[u8], length: usize) {
    let whole = messages::<T>(bytes, usize::MAX);
    assert_eq!(messages::<T>(bytes, length), whole);
    let (sent, _) = whole;
    assert_eq!(messages::<T>(&sent.concat(), length), (sent, false));
}

/// Returns inputs of all kinds: streams in parts of 5 bytes, of 3, and of 6, and single messages.
pub fn seeds() -> Vec<Vec<u8>> {
    let frames = |kind: u8, frames: Vec<Vec<u8>>| [vec![kind], frames.concat()].concat();
    let streams = [
        frames(4 * KINDS + FROM_HOST, encoded(&from_host())),
        frames(2 * KINDS + TO_HOST, encoded(&to_host())),
        frames(5 * KINDS + FOUND_VM, encoded(&found_vms())),
        frames(6 * KINDS + MEMORY, encoded(&memory())),
    ];
    let answers = answers()
        .into_iter()
        .map(|answer| [vec![ANSWER], answer.to_bytes().expect("a short answer")].concat());
    let job = [vec![JOB], serde_json::to_vec(&job()).expect("a job")].concat();
    answers.chain(streams).chain([job]).collect()
}

fn encoded<T: Serialize>(messages: &[T]) -> Vec<Vec<u8>> {
    messages.iter().map(|message| encode(message).expect("it is short")).collect()
}

fn from_host() -> Vec<FromHost> {
    let mut batch = Batch::default();
    profile::made_up::stacks(2, &mut batch);
    batch.frames.truncate(8);
    batch.stacks.truncate(8);
    profile::made_up::finish(&mut batch, 4);
    vec![
        FromHost::Hello { kernel: "6.1".to_owned(), version: "0.1.0".to_owned() },
        FromHost::Preparing("writing the disks".to_owned()),
        FromHost::Batch(Box::new(batch)),
        FromHost::Console(b"login: ".to_vec()),
        FromHost::Output(OutputStream::Errors, b"err".to_vec()),
        FromHost::Status(SessionStatus {
            kernel: Some("6.1".to_owned()),
            top: Some(("a".to_owned(), 0.5)),
            ..SessionStatus::default()
        }),
        FromHost::End(Outcome {
            end: GuestEnd::Ran(vmm::MachineEnd::Failed("triple fault".to_owned())),
            totals: SessionTotals::default(),
            host_restarts: 0,
            trouble: vec!["can't write the rest of x".to_owned()],
        }),
        FromHost::End(Outcome {
            end: GuestEnd::Left(AttachmentEnd::Detached),
            totals: SessionTotals::default(),
            host_restarts: 0,
            trouble: Vec::new(),
        }),
        FromHost::Error { stage: host::Stage::Guest, sentence: "no".to_owned() },
    ]
}

fn found_vms() -> Vec<FoundVm> {
    vec![
        FoundVm::Found(AttachedVm {
            label: "process 4711 (qemu)".to_owned(),
            sentences: vec!["attached to process 4711 (qemu), 1 vCPU".to_owned()],
        }),
        FoundVm::Unchosen(vec![RunningMachine {
            pid: 4711,
            name: "web".to_owned(),
            program: "qemu".to_owned(),
            vcpus: 2,
        }]),
        FoundVm::Refused("process 4711 runs no virtual machine".to_owned()),
    ]
}

/// Answers about memory: of a guest with one holder of each kind, and a refusal.
fn memory() -> Vec<MemoryAnswer> {
    let config = guest_linux::fixture::Config::new(guest_linux::fixture::Style::V6_12);
    let guest = config.build();
    let kernel = guest_linux::Kernel::find(&guest.memory, guest.cr3, guest.five_level).expect("a kernel");
    let reader = kernel.memory_reader(&guest.memory).expect("a reader");
    let memory = AttachedMemoryUse {
        kernel: Some("6.12".to_owned()),
        memory: reader.read(&guest.memory, 1).expect("memory"),
        host: Some(HostMemory { mapped: 1 << 30, resident: 1 << 29, swapped: 0, huge: 0 }),
        read_s: 0.01,
    };
    vec![MemoryAnswer::Memory(Box::new(memory)), MemoryAnswer::Refused("no Linux".to_owned())]
}

/// A condition for the end of sampling.
fn trigger() -> RunTrigger {
    RunTrigger::Stop { when: Condition::Console("^a".to_owned()), end: true }
}

fn to_host() -> Vec<ToHost> {
    vec![
        ToHost::Stop,
        ToHost::ConsoleInput(b"ls\r".to_vec()),
        ToHost::Control(SessionChange::Wait(trigger())),
        ToHost::Control(SessionChange::Rate(50.0)),
        ToHost::OutputRead([1 << 20, 7]),
        ToHost::Control(SessionChange::Mark("here".to_owned())),
        ToHost::Control(SessionChange::Wait(RunTrigger::Still(Some(Duration::from_secs(3))))),
    ]
}

fn job() -> Job {
    Job {
        run: RunSpec {
            machine: MachineSpec {
                vcpus: 2,
                memory_bytes: 1 << 30,
                huge_pages: false,
                cpu: vmm::CpuFeatures::default(),
                cmdline: "quiet".to_owned(),
                disks: vec![DiskSpec {
                    path: "/dev/vda".into(),
                    format: disk_images::contents::ImageFormat::Raw,
                    mode: vmm::DiskMode::ReadWrite,
                }],
                network: None,
                virtio_console: false,
                output_ports: true,
            },
            command: None,
            recording: RecordingConfig::default(),
            policy: sandbox::SyscallPolicy::Refuse,
            duration: Some(Duration::from_secs(1)),
            retries: 1,
            waits: vec![trigger()],
            meta: vec![("image".to_owned(), "x".to_owned())],
        },
        has_initrd: true,
        devices: vec!["/dev/vda".into()],
    }
}

fn answers() -> Vec<Answer> {
    vec![
        Answer::Boot(BootFacts {
            is_disk: true,
            has_initrd: true,
            takes_command: false,
            has_systemd: Some(true),
            words: Some("root=/dev/vda".to_owned()),
            longest_command_line: 2047,
            origin: "/boot/vmlinuz in x".to_owned(),
            sentence: Some("kernel: /boot/vmlinuz".to_owned()),
        }),
        Answer::Inspection(ImageInspection {
            image: "x".to_owned(),
            format: "raw".to_owned(),
            bytes: Some(4096),
            partition_table: None,
            damage: None,
            volumes: Vec::new(),
            kernels: Vec::new(),
            run: RunSummary { boots: false, cmdline: None, sentence: "no kernel".to_owned() },
        }),
        Answer::Checked,
        Answer::Refused("x is empty".to_owned()),
    ]
}
