//! Names of code that processes make at run time: from their maps `/tmp/perf-PID.map`, out of the guest's
//! page cache.
//!
//! Some programs write their map long after the code, on demand or when they end. An address without a name
//! is therefore was_read up again in each version of the map, for the last time when the process has ended.

use std::collections::HashMap;

use guest_linux::{FileRef, PageCache, RootDirectory, VirtAddr};

use super::StackOwner;
use super::perfmap::{JitSymbol, PerfMap};
use super::source::GuestSource;
use crate::managed::ROOT;
use vmm::monotonic_ns;

/// Processes that are remembered, at most; beyond that all are forgotten.
const REMEMBERED: usize = 4096;
/// Shortest time between two readings of a map that lacks an address, ns.
const AGAIN_NS: u64 = 500_000_000;
/// Time for which a map is used without reading it again, ns: the program may have used the memory again.
const BELIEVED_NS: u64 = 2_000_000_000;
/// Length of the rest after reading a map, in reading times, so that many or large maps delay nothing.
const REST: u64 = 4;
/// Bytes of a map's end that are read, at most.
const MAX_FILE: u64 = 16 << 20;
/// Bytes of all maps together, at most, about.
const MAX_MEMORY: usize = 32 << 20;
/// Bytes of a page.
const PAGE: usize = 4096;

/// Version of a file: address of its pages, size, time of change.
type Version = (u64, u64, Option<(i64, u32)>);

/// Result of reading a map.
#[derive(Debug)]
enum MapReading {
    /// The map does not exist; the names read before may still hold.
    Nothing,
    /// The map has not changed.
    Same,
    New(Version, PerfMap),
}

/// Position of a process's map.
#[derive(Debug, Clone, Copy)]
struct MapPlace {
    pid: i32,
    /// The `task_struct`.
    task: u64,
    directory: RootDirectory,
}

/// One process.
#[derive(Debug, Default)]
struct KnownMap {
    /// Root of its page tables: another one since an exec.
    root: u64,
    place: Option<MapPlace>,
    read_ns: Option<u64>,
    version: Option<Version>,
    map: PerfMap,
    /// The version that [`PerfMaps::late`] gave last.
    given: Option<Version>,
    /// The process ran another program before, and [`PerfMaps::late`] was not called since.
    replaced: bool,
}

/// All maps that are known.
#[derive(Debug, Default)]
pub(super) struct PerfMaps {
    known: HashMap<u32, KnownMap>,
    rest_until_ns: u64,
}

/// Names for addresses that were hit before.
#[derive(Debug)]
pub(crate) enum LateNames<'a> {
    /// No new names: ask again.
    Unchanged,
    /// The map has new names.
    Changed(&'a PerfMap),
    /// The map will not change any more. It is given if it has new names.
    Ended(Option<&'a PerfMap>),
}

impl PerfMaps {
    /// Returns the function at `address` of the process of `owner` with these page tables.
    pub(super) fn find(
        &mut self,
        (owner, root): (&StackOwner, u64),
        address: VirtAddr,
        source: &GuestSource,
    ) -> Option<&JitSymbol> {
        let place = || {
            let directory = source.kernel.root_directory(&source.memory, owner.task.task).ok()?;
            Some(MapPlace { pid: owner.task.pid, task: owner.task.task, directory })
        };
        self.known_process(owner.instance, root & ROOT, place);
        self.find_with(owner.instance, address, monotonic_ns, |place, version| {
            read_map(source, place, version)
        })
    }

    /// Returns the names for addresses of `instance` that had none when they were hit. `last` is true at the
    /// end of a run.
    pub(super) fn late(&mut self, instance: u32, last: bool, source: &GuestSource) -> LateNames<'_> {
        let lives = |known: &KnownMap| {
            known.place.is_some_and(|place| {
                let space = source.kernel.user_memory(&source.memory, place.task);
                space.is_ok_and(|space| space.root().0 & ROOT == known.root)
            })
        };
        self.late_with(
            instance,
            monotonic_ns,
            |known| !last && lives(known),
            |place, version| read_map(source, place, version),
        )
    }

    /// Returns the entry of a process, a new one if the process runs another program now.
    fn known_process(&mut self, instance: u32, root: u64, place: impl FnOnce() -> Option<MapPlace>) {
        if self.known.len() >= REMEMBERED && !self.known.contains_key(&instance) {
            self.known.clear();
        }
        let known = self.known.entry(instance).or_default();
        if known.root != root {
            let replaced = known.root != 0;
            *known = KnownMap { root, place: place(), replaced, ..KnownMap::default() };
        }
    }

    fn find_with(
        &mut self,
        instance: u32,
        address: VirtAddr,
        clock: impl Fn() -> u64,
        read_map: impl FnOnce(MapPlace, Option<Version>) -> MapReading,
    ) -> Option<&JitSymbol> {
        let known = self.known.get(&instance)?;
        let patience = if known.map.find(address).is_some() { BELIEVED_NS } else { AGAIN_NS };
        self.read_map(instance, patience, clock, read_map);
        self.known.get(&instance)?.map.find(address)
    }

    fn late_with(
        &mut self,
        instance: u32,
        clock: impl Fn() -> u64,
        lives: impl FnOnce(&KnownMap) -> bool,
        read_map: impl FnOnce(MapPlace, Option<Version>) -> MapReading,
    ) -> LateNames<'_> {
        let Some(known) = self.known.get_mut(&instance) else { return LateNames::Ended(None) };
        if std::mem::take(&mut known.replaced) {
            // The map of the earlier program is gone.
            return LateNames::Ended(None);
        }
        // Checked before the map is read: the reading then sees everything that the process has written.
        let lives = lives(known);
        let was_read = self.read_map(instance, if lives { AGAIN_NS } else { 0 }, clock, read_map);
        let Some(known) = self.known.get_mut(&instance) else { return LateNames::Ended(None) };
        let new = (known.version.is_some() && known.given != known.version).then_some(&known.map);
        known.given = known.version;
        match new {
            new if was_read && !lives => LateNames::Ended(new),
            Some(map) => LateNames::Changed(map),
            None => LateNames::Unchanged,
        }
    }

    /// Reads the map of `instance` if that was not done for `patience` ns. Returns true if it was read.
    fn read_map(
        &mut self,
        instance: u32,
        patience: u64,
        clock: impl Fn() -> u64,
        read_map: impl FnOnce(MapPlace, Option<Version>) -> MapReading,
    ) -> bool {
        let Some(known) = self.known.get_mut(&instance) else { return false };
        let now = clock();
        let due = known.read_ns.is_none_or(|was_read| now.saturating_sub(was_read) >= patience);
        if !due || now < self.rest_until_ns {
            return false;
        }
        known.read_ns = Some(now);
        if let Some(place) = known.place
            && let MapReading::New(version, map) = read_map(place, known.version)
        {
            (known.version, known.map) = (Some(version), map);
            self.keep_small(instance);
        }
        let end = clock();
        self.rest_until_ns = end.saturating_add(REST.saturating_mul(end.saturating_sub(now)));
        true
    }

    /// Forgets the maps of all processes but one, if they take too much together.
    fn keep_small(&mut self, instance: u32) {
        let memory: usize = self.known.values().map(|known| known.map.memory()).sum();
        if memory > MAX_MEMORY {
            for (_, known) in self.known.iter_mut().filter(|(other, _)| **other != instance) {
                (known.map, known.version) = (PerfMap::default(), None);
            }
        }
    }
}

/// Reads the map at `place`, unless its version is still `known`.
fn read_map(source: &GuestSource, place: MapPlace, known: Option<Version>) -> MapReading {
    let path = format!("/tmp/perf-{}.map", place.pid);
    let Ok(file) = source.kernel.lookup(&source.memory, place.directory, path.as_bytes()) else {
        return MapReading::Nothing;
    };
    let version = (file.address_space, file.size, file.modified);
    if known == Some(version) {
        return MapReading::Same;
    }
    match tail(source, &file) {
        Some(text) => MapReading::New(version, PerfMap::parse(&text)),
        None => MapReading::Nothing,
    }
}

/// Reads the end of a file, from the start of a line; zeros for pages that are not in memory.
fn tail(source: &GuestSource, file: &FileRef) -> Option<Vec<u8>> {
    let cache = PageCache::new(&source.kernel, &source.memory).ok()?;
    let from = file.size.saturating_sub(MAX_FILE).next_multiple_of(PAGE as u64).min(file.size);
    let mut bytes = vec![0; usize::try_from(file.size - from).ok()?];
    for (page, chunk) in (from..).step_by(PAGE).zip(bytes.chunks_mut(PAGE)) {
        // Pages that cannot be read stay zero.
        let _ = cache.read(&source.memory, file, page, chunk);
    }
    if from > 0 {
        let line = bytes.iter().position(|&byte| byte == b'\n').map_or(bytes.len(), |end| end + 1);
        bytes.drain(..line);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Returns a map that names 0x1000..0x1010.
    fn map(size: u64, name: &str) -> MapReading {
        MapReading::New((1, size, None), PerfMap::parse(format!("1000 10 {name}\n").as_bytes()))
    }

    fn place() -> Option<MapPlace> {
        Some(MapPlace { pid: 1, task: 2, directory: RootDirectory::default() })
    }

    /// Returns the name found at `address`, and the number of readings of the map.
    fn find(
        maps: &mut PerfMaps,
        (instance, root): (u32, u64),
        (address, now): (u64, u64),
        read_map: impl FnOnce(Option<Version>) -> MapReading,
    ) -> (Option<String>, u32) {
        let readings = Cell::new(0);
        maps.known_process(instance, root, place);
        let found = maps.find_with(
            instance,
            VirtAddr(address),
            || now,
            |_, version| {
                readings.set(readings.get() + 1);
                read_map(version)
            },
        );
        (found.map(|symbol| symbol.name.to_string()), readings.get())
    }

    /// Returns the new name of 0x1000, and true if no other can follow.
    fn late(maps: &mut PerfMaps, (lives, now): (bool, u64), read_map: MapReading) -> (Option<String>, bool) {
        let name = |map: &PerfMap| map.find(VirtAddr(0x1000)).map(|symbol| symbol.name.to_string());
        match maps.late_with(1, || now, |_| lives, |_, _| read_map) {
            LateNames::Unchanged => (None, false),
            LateNames::Changed(map) => (name(map), false),
            LateNames::Ended(map) => (map.and_then(name), true),
        }
    }

    #[test]
    fn a_map_that_comes_late_is_given_once() {
        let mut maps = PerfMaps::default();
        assert_eq!(find(&mut maps, (1, 7), (0x1000, 5), |_| MapReading::Nothing), (None, 1));
        assert_eq!(late(&mut maps, (true, 6), map(1, "too early")), (None, false));
        let at = 5 + AGAIN_NS;
        assert_eq!(late(&mut maps, (true, at), map(1, "one")), (Some("one".into()), false));
        assert_eq!(late(&mut maps, (true, 2 * at), MapReading::Same), (None, false));
        assert_eq!(late(&mut maps, (true, 3 * at), map(2, "two")), (Some("two".into()), false));
        // A process that ended is asked at once, for the last time.
        assert_eq!(late(&mut maps, (false, 3 * at + 1), map(3, "three")), (Some("three".into()), true));
        assert_eq!(late(&mut maps, (false, 3 * at + 2), MapReading::Same), (None, true));
    }

    #[test]
    fn a_map_says_nothing_of_the_program_before_an_exec() {
        let mut maps = PerfMaps::default();
        find(&mut maps, (1, 7), (0x1000, 5), |_| MapReading::Nothing);
        find(&mut maps, (1, 8), (0x1000, 6), |_| map(1, "another program's"));
        assert_eq!(late(&mut maps, (true, 7), MapReading::Same), (None, true));
    }

    #[test]
    fn a_map_is_read_when_it_lacks_an_address_but_not_too_often() {
        let mut maps = PerfMaps::default();
        let name = |name: &str| Some(name.to_owned());
        assert_eq!(find(&mut maps, (1, 7), (0x1000, 5), |_| MapReading::Nothing), (None, 1));
        assert_eq!(find(&mut maps, (1, 7), (0x1000, AGAIN_NS), |_| map(1, "one")), (None, 0));
        assert_eq!(find(&mut maps, (1, 7), (0x1000, AGAIN_NS + 5), |_| map(1, "one")), (name("one"), 1));
        assert_eq!(find(&mut maps, (1, 7), (0x1000, 2 * AGAIN_NS + 5), |_| map(2, "two")), (name("one"), 0));
        assert_eq!(find(&mut maps, (1, 7), (0x2000, 2 * AGAIN_NS + 5), |_| map(2, "two")), (None, 1));
        assert_eq!(find(&mut maps, (1, 7), (0x1000, 3 * AGAIN_NS), |_| map(3, "three")), (name("two"), 0));
        // Reused memory gets its new name; a removed file takes no names away.
        let later = 2 * AGAIN_NS + BELIEVED_NS + 5;
        let read_map = |version: Option<Version>| {
            assert_eq!(version, Some((1, 2, None)));
            map(3, "three")
        };
        assert_eq!(find(&mut maps, (1, 7), (0x1000, later), read_map), (name("three"), 1));
        for read_map in [MapReading::Nothing, MapReading::Same] {
            let (found, _) = find(&mut maps, (1, 7), (0x1000, 4 * later), |_| read_map);
            assert_eq!(found, name("three"));
        }
    }

    #[test]
    fn processes_and_programs_have_their_own_maps() {
        let mut maps = PerfMaps::default();
        assert_eq!(find(&mut maps, (1, 7), (0x1000, 5), |_| map(1, "one")).1, 1);
        assert_eq!(find(&mut maps, (2, 8), (0x1000, 6), |_| MapReading::Nothing), (None, 1));
        assert_eq!(
            find(&mut maps, (1, 9), (0x1000, 7), |version| {
                assert_eq!(version, None);
                MapReading::Nothing
            }),
            (None, 1)
        );
    }

    #[test]
    fn large_maps_do_not_take_all_time_and_memory() {
        let mut maps = PerfMaps::default();
        let clock = Cell::new(1_000);
        let mut large = |instance, at| {
            clock.set(at);
            maps.known_process(instance, 1, place);
            let found = maps.find_with(
                instance,
                VirtAddr(179_999 * 8),
                || clock.get(),
                |_, _| {
                    clock.set(at + 100);
                    let text: String = (0..180_000)
                        .map(|i| format!("{:x} 8 a_function_with_a_name_of_some_length_{i:080}\n", i * 8))
                        .collect();
                    MapReading::New((1, 1, None), PerfMap::parse(text.as_bytes()))
                },
            );
            found.is_some()
        };
        assert!(large(1, 1_000));
        assert!(!large(2, 1_499), "a rest of four times as long");
        assert!(large(2, 1_500));
        assert!(maps.known[&1].map.find(VirtAddr(0)).is_none(), "two are too large together");
        let memory: usize = maps.known.values().map(|known| known.map.memory()).sum();
        assert!(memory > MAX_MEMORY / 2 && memory <= MAX_MEMORY, "{memory}");
    }

    #[test]
    fn many_processes_are_bounded() {
        let mut maps = PerfMaps::default();
        for instance in 0..10_000 {
            find(&mut maps, (instance, 1), (0, 5), |_| MapReading::Nothing);
        }
        assert!(maps.known.len() <= REMEMBERED);
    }
}
