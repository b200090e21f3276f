//! Entry points to parsers that are otherwise reached only through a running guest, for the fuzz targets.

use crate::resolve::PerfMap;

/// Parses `text` as a `/tmp/perf-PID.map` and looks `addresses` up in it. Returns the range and the name of
/// each function that is found.
pub fn perf_map(text: &[u8], addresses: &[u64]) -> Vec<(u64, u64, String)> {
    let map = PerfMap::parse(text);
    assert!(map.memory() <= 32 << 20, "names of a map are bounded");
    let found = addresses.iter().filter_map(|&address| map.find(guest_linux::VirtAddr(address)));
    found.map(|symbol| (symbol.start.0, symbol.end.0, symbol.name.to_string())).collect()
}
