use prost::Message;

use super::proto::Profile;

/// Checks a profile without its compression.
pub(crate) fn assert_sound(plain: &[u8]) {
    let profile = Profile::decode(plain).expect("a profile");
    let texts = i64::try_from(profile.string_table.len()).expect("a number");
    assert_eq!(profile.string_table[0], "");
    assert!(profile.string_table.iter().all(|text| !text.contains(char::is_control)));
    let (locations, functions) = (profile.location.len() as u64, profile.function.len() as u64);
    let mappings = profile.mapping.len() as u64;
    for sample in &profile.sample {
        assert_eq!(sample.value.len(), profile.sample_type.len());
        assert!(sample.location_id.iter().all(|id| (1..=locations).contains(id)));
        assert!(sample.label.iter().all(|label| label.key < texts && label.str < texts));
    }
    for location in &profile.location {
        assert!(location.mapping_id <= mappings && !location.line.is_empty());
        assert!(location.line.iter().all(|line| (1..=functions).contains(&line.function_id)));
        if let Some(mapping) = profile.mapping.iter().find(|mapping| mapping.id == location.mapping_id) {
            assert!((mapping.memory_start..mapping.memory_limit).contains(&location.address));
        }
    }
    assert!(profile.function.iter().all(|function| function.name < texts && function.filename < texts));
}
