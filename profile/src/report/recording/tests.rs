use super::*;
use crate::report::Report;
use crate::report::tests::{known, known_with_stacks};
use crate::store::Profile;

fn recording(path: &std::path::Path, idle: bool) -> Recording {
    let profile = Profile::open(path).expect("a profile");
    let request = RecordingRequest { idle, ..RecordingRequest::default() };
    Recording::read(&profile, &request, &mut |_, _| {}).expect("a recording")
}

#[test]
fn weights_add_up_to_the_times_of_a_report() {
    let (_directory, path) = known().write();
    let recording = recording(&path, false);
    let report = Report::read(&Profile::open(&path).expect("a profile"), &Filter::default());
    for process in report.expect("a report").processes {
        let of = |owner: &Owner| match recording.process_of(owner) {
            Some(own) => (own.comm.as_str(), own.pid) == (process.comm.as_str(), process.pid),
            None => owner.name == process.comm,
        };
        let own = recording.samples.iter().filter(|sample| of(&recording.owners[sample.owner as usize]));
        let (count, ns) = own.fold((0, 0.0), |(count, ns), sample| (count + 1, ns + sample.weight_ns));
        assert_eq!(count, process.estimate.samples, "{}", process.comm);
        assert!((ns / 1e9 - process.estimate.time_s).abs() < 1e-9, "{}: {ns}", process.comm);
    }
    assert!(recording.samples.is_sorted_by_key(|sample| sample.time_ns));
}

#[test]
fn idle_samples_come_where_they_are_wanted() {
    let (_directory, path) = known().write();
    assert!(recording(&path, false).samples.iter().all(|sample| sample.mode != Mode::Idle));
    let recording = recording(&path, true);
    let idle: Vec<_> = recording.samples.iter().filter(|sample| sample.mode == Mode::Idle).collect();
    assert_eq!((recording.samples.len(), idle.len()), (100, 20));
    assert_eq!(recording.owners[idle[0].owner as usize].name, "[idle]");
}

#[test]
fn each_sample_has_a_stack_and_reasons_stand_in_it() {
    let (_directory, path) = known_with_stacks().write();
    let recording = recording(&path, false);
    let mut texts: Vec<String> = Vec::new();
    for sample in &recording.samples {
        let entries = recording.frames_of(sample.stack).flat_map(|frame| recording.entries_of(frame));
        let names = entries.map(|entry| recording.functions[entry.function as usize].symbol.as_str());
        texts.push(names.collect::<Vec<_>>().join(";"));
    }
    texts.dedup();
    let has =
        |wanted: &str| assert!(texts.iter().any(|text| text == wanted), "{wanted} is not in {texts:#?}");
    has("mix;hash;work;main");
    has("recurse(int);recurse(int);recurse(int);main");
    has("[prog];[no frame: no CFI for this code]");
    has("vfs_read.isra.0;[no frame: stack is swapped out]");
}
