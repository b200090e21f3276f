//! Every format, read back by other programs.

pub(crate) mod fixture;
mod hostile;
mod page;
mod readers;

use profile::Profile;
use profile::report::{Filter, ModeGroup};

use crate::{Count, ExportError, Format, Request, Root, write};
use fixture::{Made, SAMPLES};

/// Returns the output for a request.
pub(crate) fn written(made: &Made, request: &Request) -> Vec<u8> {
    let profile = Profile::open(&made.path).expect("a profile");
    let mut out = Vec::new();
    write(&profile, request, &mut out, &mut |_, _| {}).expect("an export");
    out
}

pub(super) fn text(made: &Made, request: &Request) -> String {
    String::from_utf8(written(made, request)).expect("UTF-8")
}

fn folded(root: Root, count: Count) -> Request {
    Request { root, count, ..Request::new(Format::Folded) }
}

#[test]
fn folded_stacks_say_who_ran_what() {
    let made = fixture::plain();
    let lines = text(&made, &folded(Root::Process, Count::Samples));
    let expected = [
        "[early boot];[early boot] 4",
        "[hard interrupts];main;work;ksys_read;vfs_read 6",
        "prog;[no frame: no stack was taken];[prog] 5",
        "prog;[no frame: page not present];work 10",
        "prog;main;work;hash;mix 40",
        "prog;main;work;ksys_read;vfs_read 20",
    ];
    assert_eq!(lines.lines().collect::<Vec<_>>(), expected);
    let lines = text(&made, &folded(Root::Thread, Count::Samples));
    assert!(lines.contains("prog#0;worker/11;main;work;hash;mix 40\n"), "{lines}");
    let lines = text(&made, &folded(Root::None, Count::Samples));
    assert!(lines.contains("main;work;ksys_read;vfs_read 26\n"), "{lines}");
}

#[test]
fn folded_times_add_up_to_the_exact_time() {
    let made = fixture::plain();
    let lines = text(&made, &folded(Root::Process, Count::Time));
    let sum: u64 = lines.lines().filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok()).sum();
    // All of the guest's time is busy in this profile; each line is rounded.
    assert!(sum.abs_diff(fixture::GUEST_NS / 1_000) <= 6, "{sum}");
}

#[test]
fn guest_and_host_have_one_axis_under_their_vcpu() {
    let made = fixture::with_host();
    let request = |count| Request { host: true, ..folded(Root::Vcpu, count) };
    let lines = text(&made, &request(Count::Samples));
    let has = |line: &str| assert!(lines.lines().any(|found| found == line), "{line}: {lines}");
    has("vCPU 0;main_loop;kvm_vcpu_ioctl;[host: kvm] 10");
    has("vCPU 0;main_loop;[host: vmm] 5");
    // Ten samples of these have a stack of the host.
    has("vCPU 0;main_loop;kvm_vcpu_ioctl;vcpu_enter_guest;prog;main;work;hash;mix 10");
    has("vCPU 0;prog;main;work;hash;mix 20");
    has("vCPU 0;[hard interrupts];main;work;ksys_read;vfs_read 6");
    let by_program = text(&made, &Request { root: Root::Process, ..request(Count::Samples) });
    for line in ["prog;main;work;hash;mix 30", "[host: kvm];main_loop;kvm_vcpu_ioctl 10"] {
        assert!(by_program.lines().any(|found| found == line), "{line}: {by_program}");
    }
    let times = text(&made, &request(Count::Time));
    let sum: u64 = times.lines().filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok()).sum();
    // The guest's time, of which KVM has a part, and that in the VMM; each line is rounded.
    assert!(sum.abs_diff(fixture::GUEST_NS / 1_000 + 5_000) <= 8, "{sum}");
    let guest = Request { host: false, ..request(Count::Samples) };
    assert!(!text(&made, &guest).contains("[host"), "only where it is wanted");
    for format in Format::all().filter(|format| format.shows_host() && !format.is_binary()) {
        let text = text(&made, &Request { host: true, ..Request::new(format) });
        assert!(text.contains("main_loop") && text.contains("vfs_read"), "{format}");
    }
}

#[test]
fn a_filter_chooses_for_every_format() {
    let made = fixture::plain();
    let filter = Filter { modes: vec![ModeGroup::Irq], ..Filter::default() };
    let other = [Format::Firefox, Format::Html, Format::Bootchart];
    for format in Format::all().filter(|format| !format.is_binary() && !other.contains(format)) {
        let text = text(&made, &Request { filter: filter.clone(), ..Request::new(format) });
        assert!(text.contains("vfs_read") && !text.contains("mix"), "{format}: {text}");
    }
}

#[test]
fn a_filter_that_names_nothing_says_so() {
    let made = fixture::plain();
    let filter = Filter { process: vec!["prig".to_owned()], ..Filter::default() };
    let profile = Profile::open(&made.path).expect("a profile");
    let request = Request { filter, ..Request::new(Format::Folded) };
    let error = write(&profile, &request, &mut Vec::new(), &mut |_, _| {}).expect_err("no such process");
    assert!(matches!(error, ExportError::Read(_)) && error.to_string().contains("prog"), "{error}");
}

#[test]
fn profiles_with_little_in_them_are_exported_too() {
    for (made, samples) in [(fixture::empty(), 0), (fixture::of_one(), 1), (fixture::of_boot(), 5)] {
        for format in Format::all() {
            let profile = Profile::open(&made.path).expect("a profile");
            let mut out = Vec::new();
            match write(&profile, &Request::new(format), &mut out, &mut |_, _| {}) {
                // A picture without samples is an error, and so is a chart of a boot that no sample hit.
                Err(ExportError::Empty(_)) if samples == 0 => assert_eq!(format, Format::Flamegraph),
                Err(ExportError::NoBoot(_)) if samples < 5 => assert_eq!(format, Format::Bootchart),
                result => result.unwrap_or_else(|error| panic!("{format} of {samples} samples: {error}")),
            }
        }
    }
    let boot = text(&fixture::of_boot(), &folded(Root::Process, Count::Samples));
    assert_eq!(boot, "[early boot];[early boot] 5\n");
}

#[test]
fn a_profile_that_is_being_written_is_exported() {
    let (made, _writer) = fixture::unfinished();
    let lines = text(&made, &folded(Root::None, Count::Samples));
    assert!(lines.contains("main;work;hash;mix 40\n"), "{lines}");
}

#[test]
fn progress_ends_with_all_samples() {
    let made = fixture::plain();
    let profile = Profile::open(&made.path).expect("a profile");
    let mut last = (0, 0);
    let request = Request::new(Format::Csv);
    write(&profile, &request, &mut Vec::new(), &mut |done, all| last = (done, all)).expect("an export");
    assert_eq!(last, (SAMPLES + fixture::IDLE, SAMPLES + fixture::IDLE));
}

#[test]
fn names_and_files_tell_formats() {
    for format in Format::all() {
        assert_eq!(format.name().parse(), Ok(format));
    }
    assert_eq!(Format::of_file("a.pb.gz"), Some(Format::Pprof));
    assert_eq!(Format::of_file("a.pftrace"), Some(Format::Perfetto));
    assert_eq!(Format::of_file("p.json.gz"), Some(Format::FirefoxGz));
    assert_eq!(Format::of_file("graph.svg"), Some(Format::Flamegraph));
    assert_eq!(Format::of_file("graph.boot.svg"), Some(Format::Bootchart));
    assert_eq!(Format::of_file("what"), None);
    assert_eq!(Format::of_file("p.speedscope.json"), Some(Format::Speedscope));
    assert!("perf".parse::<Format>().is_err());
}
