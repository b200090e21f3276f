//! Texts: mangled names, and the maps in which programs name code that they make at run time.

use symbols::names;

/// Returns inputs to start from.
pub fn seeds() -> Vec<Vec<u8>> {
    let names: [&[u8]; 7] = [
        b"_ZN4shop4Till3sumEi",
        b"_ZNSt3mapINSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEEiSt4lessIS5_EEixEOS5_",
        b"_ZN4core3fmt9Formatter3pad17h0123456789abcdefE",
        b"_RNvMs_NtCs1234_7mycrate3fooNtB4_3Bar3baz",
        b"_RINvNtC3std3mem8align_ofdE",
        b"_ZZN1aIiE1bEvENKUlT_E_clIiEEDaS1_.isra.0.cold",
        b"main.(*T).method",
    ];
    let maps: [&[u8]; 2] =
        [b"7f0000001000 40 first\n7f0000001020 40 second\n", b"0x10 ffffffffffffffff all\n 1 2 3\n"];
    names.into_iter().chain(maps).map(<[u8]>::to_vec).collect()
}

/// Runs the target on one input of the fuzzer.
pub fn test_one_input(bytes: &[u8]) {
    let name = names::readable(bytes);
    assert!(name.len() < 5000, "a name is bounded");
    for line in bytes.split(|&byte| byte == b'\n').take(16) {
        let _ = names::readable(line);
    }
    let addresses = [0, 0x10, 0x7f00_0000_1030, u64::MAX];
    let found = sampler::fuzz::perf_map(bytes, &addresses);
    assert!(found.iter().all(|(start, end, name)| start < end && !name.is_empty()));
}
