use std::collections::BTreeMap;

use profile::Profile as Recorded;

use super::*;
use crate::tests::fixture;

/// Decodes a message, and asserts that all references are into its tables.
pub(crate) fn decoded(bytes: &[u8]) -> ProfilesData {
    let data = ProfilesData::decode(bytes).expect("a message");
    let tables = data.dictionary.as_ref().expect("tables");
    assert_eq!(tables.string_table[0], "");
    assert!(tables.string_table.iter().all(|text| !text.contains(char::is_control)));
    assert_eq!(tables.mapping_table[0], Mapping::default());
    assert_eq!(tables.location_table[0], Location::default());
    assert_eq!(tables.function_table[0], Function::default());
    assert_eq!(tables.link_table, [Link::default()]);
    assert_eq!(tables.attribute_table[0], KeyValueAndUnit::default());
    assert_eq!(tables.stack_table[0], Stack::default());
    let is_in = |index: i32, length: usize| usize::try_from(index).is_ok_and(|index| index < length);
    let is_attribute = |index: &i32| *index > 0 && is_in(*index, tables.attribute_table.len());
    for location in &tables.location_table[1..] {
        assert!(is_in(location.mapping_index, tables.mapping_table.len()) && !location.lines.is_empty());
        assert!(location.lines.iter().all(|line| line.function_index > 0));
        assert!(location.lines.iter().all(|line| is_in(line.function_index, tables.function_table.len())));
        assert!(location.attribute_indices.iter().all(is_attribute));
    }
    for stack in &tables.stack_table {
        assert!(stack.location_indices.iter().all(|index| *index > 0));
        assert!(stack.location_indices.iter().all(|index| is_in(*index, tables.location_table.len())));
    }
    for function in &tables.function_table {
        assert!(is_in(function.name_strindex, tables.string_table.len()));
        assert!(is_in(function.filename_strindex, tables.string_table.len()));
    }
    for attribute in &tables.attribute_table {
        assert!(is_in(attribute.key_strindex, tables.string_table.len()));
    }
    for resource in &data.resource_profiles {
        let [scope] = resource.scope_profiles.as_slice() else { panic!("{resource:?}") };
        let [cpu, count] = scope.profiles.as_slice() else { panic!("{scope:?}") };
        assert_eq!((cpu.profile_id.len(), cpu.samples.len()), (16, count.samples.len()));
        assert_ne!(cpu.profile_id, count.profile_id);
        for sample in cpu.samples.iter().chain(&count.samples) {
            assert_eq!(sample.values.len(), 1);
            assert!(is_in(sample.stack_index, tables.stack_table.len()));
            assert!(sample.attribute_indices.iter().all(is_attribute));
            let keys = sample
                .attribute_indices
                .iter()
                .map(|index| tables.attribute_table[usize::try_from(*index).expect("an index")].key_strindex);
            let keys: Vec<i32> = keys.collect();
            let distinct: std::collections::BTreeSet<&i32> = keys.iter().collect();
            assert_eq!(distinct.len(), keys.len(), "keys are unique");
        }
    }
    data
}

fn exported(made: &fixture::Made) -> ProfilesData {
    decoded(&crate::tests::written(made, &Request::new(Format::Otlp)))
}

/// Sums of the values of all profiles with this unit.
fn sum(data: &ProfilesData, unit: &str) -> i64 {
    let tables = data.dictionary.as_ref().expect("tables");
    let unit = tables.string_table.iter().position(|text| text == unit).expect("a unit");
    let profiles = data.resource_profiles.iter().flat_map(|resource| &resource.scope_profiles[0].profiles);
    profiles
        .filter(|profile| profile.sample_type.expect("a type").unit_strindex == index(unit as u64))
        .flat_map(|profile| profile.samples.iter().flat_map(|sample| &sample.values))
        .sum()
}

#[test]
fn a_message_has_all_samples_and_their_time() {
    let data = exported(&fixture::plain());
    assert_eq!(sum(&data, "count"), fixture::SAMPLES.cast_signed());
    let time = sum(&data, NANOSECONDS);
    // Each sum is rounded.
    assert!((time - fixture::GUEST_NS.cast_signed()).abs() <= 100, "{time}");
    let tables = data.dictionary.expect("tables");
    let name = |index: i32| {
        let function = tables.function_table[usize::try_from(index).expect("an index")];
        tables.string_table[usize::try_from(function.name_strindex).expect("an index")].as_str()
    };
    let stacks: Vec<Vec<&str>> = tables
        .stack_table
        .iter()
        .map(|stack| {
            let locations = stack.location_indices.iter();
            let lines = locations
                .flat_map(|place| &tables.location_table[usize::try_from(*place).expect("an index")].lines);
            lines.map(|line| name(line.function_index)).collect()
        })
        .collect();
    assert!(stacks.contains(&vec!["mix", "hash", "work", "main"]), "{stacks:?}");
}

#[test]
fn messages_of_the_agent_are_small_and_have_the_same_sums() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("run.vprof");
    profile::made_up::write_run(&path, 40_000, 30_000, 7);
    let window = LakeWindow {
        host: "alpha".to_owned(),
        start_unix_ns: 0,
        length_ns: crate::lake::HOUR_NS,
        inclusion: 0.5,
        dropped_windows: 0,
    };
    let vm = LakeVm {
        id: "0123".to_owned(),
        name: "web".to_owned(),
        group: "host.name=other,team=db".to_owned(),
        ..LakeVm::default()
    };
    let recorded = LakeProfile::read(&Recorded::open(&path).expect("a profile")).expect("a profile");
    let mut messages = Vec::new();
    let mut send = |bytes: &[u8]| {
        messages.push(bytes.to_vec());
        Ok(())
    };
    let totals = write_messages(&recorded, (&window, &vm), &mut send).expect("messages");
    assert!(messages.len() > 1, "{}", messages.len());
    let longest = messages.iter().map(Vec::len).max().expect("messages");
    assert!(longest < 4 << 20 && longest > 1 << 20, "{longest}: the estimate is a rough one");
    let data: Vec<ProfilesData> = messages.iter().map(|bytes| decoded(bytes)).collect();
    let all = |unit: &str| data.iter().map(|data| sum(data, unit)).sum::<i64>();
    assert_eq!(all("count").cast_unsigned(), totals.samples);
    assert!((all(NANOSECONDS) as f64 / totals.weight_ns - 1.0).abs() < 1e-6);
    let mut ids = std::collections::BTreeSet::new();
    for data in &data {
        let [machine] = data.resource_profiles.as_slice() else { panic!("one machine") };
        ids.extend(machine.scope_profiles[0].profiles.iter().map(|profile| profile.profile_id.clone()));
        let attributes = &machine.resource.as_ref().expect("a resource").attributes;
        let attributes: BTreeMap<&str, &Value> = attributes
            .iter()
            .map(|pair| {
                (
                    pair.key.as_str(),
                    pair.value.as_ref().and_then(|value| value.value.as_ref()).expect("a value"),
                )
            })
            .collect();
        let text = |text: &str| Value::StringValue(text.to_owned());
        assert_eq!(attributes["service.name"], &text("web"));
        assert_eq!(attributes["vm.id"], &text("0123"));
        assert_eq!(attributes["host.name"], &text("other"), "a label has the last word");
        assert_eq!(attributes["team"], &text("db"));
        assert_eq!(attributes["vprof.inclusion"], &Value::DoubleValue(0.5));
        assert!(!attributes.contains_key("k8s.pod.uid"), "it is empty");
    }
    assert_eq!(ids.len(), 2 * messages.len(), "each profile has its own id");
    let again = std::mem::take(&mut messages);
    let mut number = 0;
    let mut same = |bytes: &[u8]| {
        assert_eq!(bytes, again[number], "a repetition is the same");
        number += 1;
        Ok(())
    };
    write_messages(&recorded, (&window, &vm), &mut same).expect("messages");
}
