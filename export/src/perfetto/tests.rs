use std::collections::HashSet;

use prost::Message;

use super::proto::{InternedData, PacketData, TracePacket};
use crate::tests::{fixture, written};
use crate::{Format, Request};

/// A trace, as far as tests read it.
#[derive(Clone, PartialEq, Message)]
struct Trace {
    #[prost(message, repeated, tag = "1")]
    packet: Vec<TracePacket>,
}

/// Checks that every number of interned data is defined before its use, and that texts are harmless.
pub(crate) fn assert_sound(bytes: &[u8]) {
    let trace = Trace::decode(bytes).expect("a trace");
    let (mut functions, mut frames, mut mappings) = (HashSet::new(), HashSet::new(), HashSet::new());
    let (mut stacks, mut tracks, mut threads) = (HashSet::new(), HashSet::new(), HashSet::new());
    let mut samples = 0;
    for packet in trace.packet {
        assert_eq!(packet.trusted_packet_sequence_id, super::SEQUENCE);
        if let Some(InternedData {
            function_names,
            mapping_paths,
            frames: new,
            callstacks,
            mappings: maps,
            source_paths,
            ..
        }) = packet.interned_data
        {
            for text in function_names.iter().chain(&mapping_paths).chain(&source_paths) {
                let text = std::str::from_utf8(&text.str).expect("UTF-8");
                assert!(!text.contains(char::is_control) && !text.contains('\u{202e}'), "{text:?}");
            }
            functions.extend(function_names.iter().map(|text| text.iid));
            mappings.extend(maps.iter().map(|mapping| mapping.iid));
            for frame in new {
                assert!(functions.contains(&frame.function_name_id) && mappings.contains(&frame.mapping_id));
                assert!(frames.insert(frame.iid));
            }
            for stack in callstacks {
                assert!(!stack.frame_ids.is_empty() && stack.frame_ids.iter().all(|id| frames.contains(id)));
                assert!(stacks.insert(stack.iid));
            }
        }
        match packet.data {
            Some(PacketData::TrackDescriptor(track)) => {
                assert!(tracks.insert(track.uuid), "{track:?}");
                assert!(track.parent_uuid.is_none_or(|parent| tracks.contains(&parent)));
                if let Some(thread) = track.thread {
                    assert!(!thread.thread_name.contains(char::is_control));
                    assert!(threads.insert(thread.tid.map(i64::unsigned_abs)), "{thread:?}");
                }
            }
            Some(PacketData::TrackEvent(event)) => assert!(tracks.contains(&event.track_uuid), "{event:?}"),
            Some(PacketData::PerfSample(sample)) => {
                assert!(sample.callstack_iid.is_some_and(|stack| stacks.contains(&stack)), "{sample:?}");
                assert!(threads.contains(&sample.tid.map(u64::from)), "{sample:?}");
                samples += 1;
            }
            _ => {}
        }
    }
    assert_eq!(samples, fixture::SAMPLES);
}

#[test]
fn a_part_of_a_profile_has_its_samples_only() {
    let made = fixture::plain();
    let filter = profile::Filter { process: Some("prog".to_owned()), ..profile::Filter::default() };
    let bytes = written(&made, &Request { filter, ..Request::new(Format::Perfetto) });
    let packets = Trace::decode(&bytes[..]).expect("a trace").packet;
    let count = |is: fn(&PacketData) -> bool| {
        packets.iter().filter(|packet| packet.data.as_ref().is_some_and(is)).count()
    };
    assert_eq!(count(|data| matches!(data, PacketData::PerfSample(_))), 75);
    let events = count(|data| matches!(data, PacketData::TrackEvent(_)));
    assert_eq!(events, 1, "the event of the run");
}

/// Function, address, source and line of a frame.
type SeenFrame = (String, u64, String, u32);

#[test]
fn a_stack_has_callers_inlined_functions_lines_and_files() {
    let bytes = written(&fixture::plain(), &Request::new(Format::Perfetto));
    let packets = Trace::decode(&bytes[..]).expect("a trace").packet;
    let mut all = InternedData::default();
    for data in packets.iter().filter_map(|packet| packet.interned_data.clone()) {
        all.merge(&data.encode_to_vec()[..]).expect("the same message");
    }
    let text = |texts: &[super::proto::InternedString], iid| {
        texts.iter().find(|text| text.iid == iid).map(|text| text.str.clone()).unwrap_or_default()
    };
    let named = |texts: &[_], iid| String::from_utf8(text(texts, iid)).expect("UTF-8");
    let frame = |id: u64| all.frames.iter().find(|frame| frame.iid == id).expect("a frame");
    let stack = all
        .callstacks
        .iter()
        .find(|stack| {
            stack
                .frame_ids
                .last()
                .is_some_and(|id| named(&all.function_names, frame(*id).function_name_id) == "mix")
        })
        .expect("the stack of mix");
    let seen = |id: &u64| -> SeenFrame {
        let frame = frame(*id);
        (
            named(&all.function_names, frame.function_name_id),
            frame.rel_pc,
            named(&all.source_paths, frame.source_path_iid),
            frame.line_number,
        )
    };
    let frames: Vec<SeenFrame> = stack.frame_ids.iter().map(seen).collect();
    let wanted =
        |name: &str, address, source: &str, line| (name.to_owned(), address, source.to_owned(), line);
    assert_eq!(
        frames,
        [
            wanted("main", 0x100f, "prog.c", 20),
            wanted("work", 0x2004, "prog.c", 20),
            wanted("hash", 0x2004, "mix.h", 7),
            wanted("mix", 0x2004, "mix.h", 7),
        ]
    );
    let files: HashSet<(String, Vec<u8>)> = all
        .mappings
        .iter()
        .map(|mapping| {
            (named(&all.mapping_paths, mapping.path_string_ids[0]), text(&all.build_ids, mapping.build_id))
        })
        .collect();
    assert!(files.contains(&("usr/bin/prog".to_owned(), vec![0xab, 0xcd, 0x01, 0x23])), "{files:?}");
    assert!(files.contains(&("[kernel.kallsyms]".to_owned(), Vec::new())), "{files:?}");
}

#[test]
fn the_first_packet_has_the_clocks_and_what_samples_have_in_common() {
    let bytes = written(&fixture::plain(), &Request::new(Format::Perfetto));
    let packets = Trace::decode(&bytes[..]).expect("a trace").packet;
    let flags: Vec<u32> = packets.iter().map(|packet| packet.sequence_flags).collect();
    assert_eq!(flags[0], 1, "SEQ_INCREMENTAL_STATE_CLEARED");
    assert!(flags[1..].iter().all(|flags| *flags == 2), "SEQ_NEEDS_INCREMENTAL_STATE: {flags:?}");
    assert!(packets[0].trace_packet_defaults.is_some());
    let Some(PacketData::ClockSnapshot(snapshot)) = &packets[0].data else { panic!("{:?}", packets[0]) };
    let clocks: Vec<_> = snapshot.clocks.iter().map(|clock| (clock.clock_id, clock.timestamp)).collect();
    assert_eq!(clocks, [(Some(6), Some(0)), (Some(1), Some(1_500_000_000_000_000_000))]);
}
