//! Counters over a sequence of samples: the ticks of each vCPU, and for each thing of interest its samples
//! and the pairs of them that are neighbours, or next but one.

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::correlation::Pairs;
use super::segments::{SegmentList, Weights};
use crate::clock::ClockKind;

/// Bounds of the classes of intervals between neighbouring ticks, as parts of the mean: a quarter each of the
/// intervals that the uniform clock draws. Longer ones (a tick served late, a lost sample) do not join
/// neighbours.
const CLASSES: [f64; 4] = [0.75, 1.0, 1.25, 1.6];

/// Key of a profile's `meta`: `1` if one clock ticks all vCPUs.
pub const ONE_CLOCK: &str = "one_clock";

/// Returns the key of a profile's `meta` for the relative standard error of a vCPU's time in the guest, if
/// that is an estimate.
pub fn guest_error_key(vcpu: u16) -> String {
    format!("{GUEST_ERROR}{vcpu}")
}

/// Start of these keys; the number of the vCPU follows.
pub(crate) const GUEST_ERROR: &str = "guest_error_";

/// One tick of one vCPU, from [`Ticks::tick`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tick {
    pub(super) vcpu: u16,
    group: u16,
    position: u32,
}

/// The clock that ticks a vCPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct VcpuClock {
    /// Distribution of its intervals.
    pub kind: ClockKind,
    /// Mean interval, ns.
    pub mean_ns: f64,
    /// Number of the clock that ticks several vCPUs at the same time, whose errors may be correlated; `None`
    /// for a clock of this vCPU alone.
    pub shared: Option<u32>,
}

/// The ticks of all vCPUs, in the order of each vCPU. Two bytes of memory per tick, and 24 per segment of
/// time.
#[derive(Debug)]
pub struct Ticks {
    /// Clock of vCPUs that have no other.
    clock: VcpuClock,
    /// Tracks by vCPU.
    tracks: Vec<Track>,
    /// True if the time of some vCPU is an estimate itself.
    times_are_estimated: bool,
}

impl Ticks {
    /// Creates an empty sequence of a clock with this mean interval.
    pub fn new(kind: ClockKind, mean_ns: f64) -> Self {
        let clock = VcpuClock { kind, mean_ns, shared: None };
        Self { clock, tracks: Vec::new(), times_are_estimated: false }
    }

    /// Declares that one clock ticks all vCPUs at the same time: their errors may be correlated.
    pub fn tick_at_once(&mut self) {
        self.clock.shared = Some(0);
        self.tracks.iter_mut().for_each(|track| track.clock.shared = Some(0));
    }

    /// Declares that ticks are left out at random, each with the same chance: what remains is close to a
    /// clock without memory. Call this before all other methods but [`Self::tick_by`].
    pub fn thin(&mut self) {
        self.clock.kind = ClockKind::Exponential;
        self.tracks.iter_mut().for_each(|track| track.clock.kind = ClockKind::Exponential);
    }

    /// Declares the clock of `vcpu`. Call this before other methods for this vCPU.
    pub fn tick_by(&mut self, vcpu: u16, clock: VcpuClock) {
        self.track_mut(vcpu).clock = clock;
    }

    /// Declares the time of `vcpu` to be an estimate with this relative standard error.
    pub fn time_is_estimated(&mut self, vcpu: u16, relative_error: f64) {
        if relative_error > 0.0 {
            self.track_mut(vcpu).time_error = relative_error * relative_error;
            self.times_are_estimated = true;
        }
    }

    /// Declares the bounds of the time of `vcpu`, for which `ns` is used: the ends of the chosen time cut
    /// segments of the clock.
    pub fn time_lies_within(&mut self, vcpu: u16, ns: u64, (low, high): (u64, u64)) {
        if ns > 0 && (low < ns || ns < high) {
            let part = |apart: u64| apart as f64 / ns as f64;
            self.track_mut(vcpu).time_bounds = [part(ns.saturating_sub(low)), part(high.saturating_sub(ns))];
        }
    }

    /// Returns the relative bounds, see [`Self::time_lies_within`].
    pub(super) fn time_bounds(&self, vcpu: u16) -> [f64; 2] {
        self.track(vcpu).map_or([0.0; 2], |track| track.time_bounds)
    }

    /// Takes facts about the clocks from a profile's `meta`: one clock for all vCPUs, and estimated times.
    pub fn read_meta(&mut self, meta: &BTreeMap<String, String>) {
        if meta.get(ONE_CLOCK).is_some_and(|value| value == "1") {
            self.tick_at_once();
        }
        let errors = meta.range(GUEST_ERROR.to_owned()..);
        for (key, error) in errors.take_while(|(key, _)| key.starts_with(GUEST_ERROR)) {
            let vcpu = key.strip_prefix(GUEST_ERROR).and_then(|vcpu| vcpu.parse::<u16>().ok());
            let error = error.parse::<f64>().ok().filter(|error| error.is_finite());
            if let Some((vcpu, error)) = vcpu.zip(error) {
                self.time_is_estimated(vcpu, error);
            }
        }
    }

    /// Returns the variance of a vCPU's time over its square; 0 for an exact time.
    pub(super) fn time_error(&self, vcpu: u16) -> f64 {
        self.track(vcpu).map_or(0.0, |track| track.time_error)
    }

    pub(super) fn times_are_exact(&self) -> bool {
        !self.times_are_estimated
    }

    /// Returns the variance of a sum over vCPUs from the standard error of each. Among vCPUs that one clock
    /// ticks, the correlation of errors is not known; they add up at most, and do so if vCPUs work in step.
    pub(super) fn variance_of_sum(&self, errors: impl Iterator<Item = (u16, f64)>) -> f64 {
        let (mut variance, mut shared) = (0.0, HashMap::new());
        for (vcpu, error) in errors {
            match self.clock_of(vcpu).shared {
                Some(clock) => *shared.entry(clock).or_insert(0.0) += error,
                None => variance += error * error,
            }
        }
        variance + shared.into_values().map(|error: f64| error * error).sum::<f64>()
    }

    /// Adds segments of the exact time of `vcpu`: for each its end, ns since the origin of the ticks' times,
    /// and its part of the time, ns. Add them before the ticks in them, in the order of time, all at once or
    /// one after the other. A share then consists of the shares of the segments, so that one with many lost
    /// or late ticks counts for its time and not for its ticks.
    pub fn divide(&mut self, vcpu: u16, segments: impl IntoIterator<Item = (u64, u64)>) {
        self.track_mut(vcpu).segments.extend(segments);
    }

    /// Adds changes of the mean interval of `vcpu`: start, ns since the origin of the ticks' times, and mean,
    /// ns. Add them before the ticks from there on, in the order of time. The ticks of `vcpu` then count by
    /// the segments of [`Self::divide`].
    pub fn change_mean(&mut self, vcpu: u16, changes: impl IntoIterator<Item = (u64, f64)>) {
        let track = self.track_mut(vcpu);
        track.changes.extend(changes);
        track.segments.never_even |= !track.changes.is_empty();
    }

    /// Adds the next tick of `vcpu`, at `time_ns` since any origin. `inside` is true if the vCPU was in the
    /// time that is to be divided, for which there is an exact clock. A tick that was late because the host
    /// had descheduled the vCPU's thread is outside, like a tick in a halt.
    pub fn tick(&mut self, vcpu: u16, time_ns: u64, inside: bool) -> Tick {
        self.tick_of_part(vcpu, time_ns, inside, inside)
    }

    /// Adds a tick like [`Self::tick`], if only a part of the clock's time is divided: `timed` if the vCPU
    /// was in the clock's time, `inside` if in that part of it.
    pub fn tick_of_part(&mut self, vcpu: u16, time_ns: u64, timed: bool, inside: bool) -> Tick {
        let track = self.track_mut(vcpu);
        let group = track.segments.tick(time_ns, timed, inside);
        Tick { vcpu, group, position: track.push(time_ns, inside) }
    }

    /// Returns the part of a vCPU's exact time that is inside, according to its ticks; 1 without ticks.
    pub fn part_inside(&self, vcpu: u16) -> f64 {
        self.track(vcpu).and_then(|track| track.segments.part_inside()).unwrap_or(1.0)
    }

    /// Returns the mean interval of the clock of a vCPU, ns.
    pub fn mean_ns(&self, vcpu: u16) -> f64 {
        self.clock_of(vcpu).mean_ns
    }

    fn clock_of(&self, vcpu: u16) -> VcpuClock {
        self.track(vcpu).map_or(self.clock, |track| track.clock)
    }

    /// Returns the time that each tick of a vCPU inside represents, ns, for the vCPU's exact time `ns`: all
    /// add up to it. If ticks are missing unevenly, it is longer in segments with few ticks, as in
    /// [`Self::estimate`].
    pub fn stands_for(&self, vcpu: u16, ns: u64) -> impl Fn(Tick) -> f64 + '_ {
        let track = self.track(vcpu);
        let all = track.and_then(|track| track.segments.inside());
        let each = ns as f64 / track.map_or(0, |track| track.inside).max(1) as f64;
        move |tick| match (track, all) {
            (Some(track), Some(all)) => track.segments.weight(tick.group) / all.sum * ns as f64,
            _ => each,
        }
    }

    fn track_mut(&mut self, vcpu: u16) -> &mut Track {
        let place = usize::from(vcpu);
        if self.tracks.len() <= place {
            let clock = self.clock;
            self.tracks.resize_with(place + 1, || Track::new(clock));
        }
        &mut self.tracks[place]
    }

    /// Returns the number of ticks inside, of all vCPUs.
    pub fn inside(&self) -> u64 {
        self.tracks.iter().map(|track| track.inside).sum()
    }

    /// Returns the number of ticks inside, of one vCPU.
    pub fn inside_of(&self, vcpu: u16) -> u64 {
        self.track(vcpu).map_or(0, |track| track.inside)
    }

    pub(super) fn track(&self, vcpu: u16) -> Option<&Track> {
        self.tracks.get(usize::from(vcpu))
    }
}

/// The ticks of one vCPU.
#[derive(Debug)]
pub(super) struct Track {
    /// Per tick: itself and its neighbours, see [`INSIDE`] and below. Bits about later ticks are set as those
    /// come.
    flags: Vec<u16>,
    /// Its clock, whose mean interval changes, and these changes.
    pub clock: VcpuClock,
    changes: VecDeque<(u64, f64)>,
    /// Mean intervals that have passed between the ticks.
    passed: f64,
    last_ns: Option<u64>,
    pub inside: u64,
    /// Neighbouring ticks, and the pairs of them that are both inside.
    pub all: Pairs,
    pub both: Pairs,
    pub segments: SegmentList,
    /// Relative variance of the vCPU's time, if that is an estimate itself.
    time_error: f64,
    /// Parts by which that time may be shorter and longer.
    time_bounds: [f64; 2],
}

/// The tick was inside.
const INSIDE: u16 = 1 << 6;
/// The previous tick, the next, the one two before and the one two after are joined to it, and inside.
const BEFORE: u16 = 1 << 7;
const AFTER: u16 = 1 << 8;
const TWO_BEFORE: u16 = 1 << 9;
const TWO_AFTER: u16 = 1 << 10;
/// Bits 0 to 2: class of the interval before the tick. Bits 3 to 5: of the one after it, if [`AFTER`] is set.
const CLASS: u16 = 0x07;
const CLASS_AFTER: u32 = 3;
/// Instead of a class: the previous tick is missing or too far away.
const APART: u16 = 0x04;

impl Track {
    fn new(clock: VcpuClock) -> Self {
        Self {
            flags: Vec::new(),
            clock,
            changes: VecDeque::new(),
            passed: 0.0,
            last_ns: None,
            inside: 0,
            all: Pairs::default(),
            both: Pairs::default(),
            segments: SegmentList::default(),
            time_error: 0.0,
            time_bounds: [0.0; 2],
        }
    }

    /// Number of ticks.
    pub fn len(&self) -> u64 {
        self.flags.len() as u64
    }

    /// Returns the part of the clock's ticks that exist: others were lost, or skipped since they would have
    /// been overdue.
    pub fn kept(&self) -> f64 {
        let (drawn, there) = (self.passed, self.len().saturating_sub(1) as f64);
        // Three standard deviations of a count of uniform intervals, whose variance is a twelfth of the
        // squared mean.
        let chance = 3.0 * (drawn / 12.0).sqrt();
        if there + chance < drawn { there / drawn } else { 1.0 }
    }

    fn push(&mut self, time_ns: u64, inside: bool) -> u32 {
        while let Some((_, mean_ns)) = self.changes.pop_front_if(|(since, _)| *since <= time_ns) {
            // Ticks on either side of a change are not neighbours.
            (self.clock.mean_ns, self.last_ns) = (mean_ns, None);
        }
        let last = self.last_ns.replace(time_ns);
        let interval = last.map(|last| time_ns.saturating_sub(last) as f64 / self.clock.mean_ns);
        self.passed += interval.unwrap_or(0.0);
        self.inside += u64::from(inside);
        let class = interval.and_then(|interval| CLASSES.iter().position(|bound| interval < *bound));
        let bits = class.and_then(|class| u16::try_from(class).ok()).unwrap_or(APART);
        let position = u32::try_from(self.flags.len()).unwrap_or(u32::MAX);
        let mut flag = bits | if inside { INSIDE } else { 0 };
        let mut earlier = self.flags.iter_mut().rev();
        if let (Some(class), Some(before)) = (class, earlier.next()) {
            let was_inside = *before & INSIDE != 0;
            flag |= if was_inside { BEFORE } else { 0 };
            *before |= if inside { AFTER | bits << CLASS_AFTER } else { 0 };
            self.all.first[class] += 1;
            self.both.first[class] += u32::from(inside && was_inside);
            if let Some(two_before) = earlier.next().filter(|_| *before & CLASS != APART) {
                let was_inside = *two_before & INSIDE != 0;
                flag |= if was_inside { TWO_BEFORE } else { 0 };
                *two_before |= if inside { TWO_AFTER } else { 0 };
                self.all.second += 1;
                self.both.second += u32::from(inside && was_inside);
            }
        }
        self.flags.push(flag);
        position
    }

    /// Returns the flags of a tick; 0, which is outside and has no neighbours, for an index without a tick.
    fn flag(&self, position: u32) -> u16 {
        self.flags.get(position as usize).copied().unwrap_or(0)
    }
}

/// The samples of one thing on one vCPU: O(1) per sample, 80 bytes, no allocation.
#[derive(Debug, Clone, Copy)]
pub struct Tally {
    count: u64,
    /// Weights in groups of segments that are complete, and the group and the count of the one that is not.
    weights: Weights,
    group: u16,
    in_group: u32,
    /// Pairs of neighbours that both belong to it.
    same: Pairs,
    /// Ticks of it with a neighbour that is inside, each side counted.
    near: Pairs,
    /// The last two ticks of it, whose later neighbours are not known yet; [`NEVER`] without.
    last: u32,
    before: u32,
}

/// No tick.
const NEVER: u32 = u32::MAX;

impl Default for Tally {
    fn default() -> Self {
        Self {
            count: 0,
            weights: Weights::default(),
            group: 0,
            in_group: 0,
            same: Pairs::default(),
            near: Pairs::default(),
            last: NEVER,
            before: NEVER,
        }
    }
}

impl Tally {
    /// Counts the vCPU's latest tick. A tick counts once, however often it is added, and only if it was
    /// inside.
    pub fn add(&mut self, ticks: &Ticks, tick: Tick) {
        let Some(track) = ticks.track(tick.vcpu) else { return };
        let (position, flag) = (tick.position, track.flag(tick.position));
        if flag & INSIDE == 0 || (self.last == position && self.count > 0) {
            return;
        }
        self.count += 1;
        if tick.group != self.group {
            self.weights = self.weights(track);
            (self.group, self.in_group) = (tick.group, 0);
        }
        self.in_group += 1;
        if track.clock.kind == ClockKind::Uniform {
            // NEVER wraps to -1 and 0, which no tick has as its neighbour before: flags say that the first
            // has none.
            if flag & BEFORE != 0 && self.last.wrapping_add(1) == position {
                self.same.first[usize::from(flag & CLASS)] += 1;
            }
            let two = |hit: u32| hit.wrapping_add(2) == position;
            self.same.second += u32::from(flag & TWO_BEFORE != 0 && (two(self.last) || two(self.before)));
            self.settle(track.flag(self.before));
            self.before = self.last;
        }
        self.last = position;
    }

    /// Returns the number of samples.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the sum of the weights of its samples, and of their squares.
    pub(super) fn weights(&self, track: &Track) -> Weights {
        self.weights.with(u64::from(self.in_group), track.segments.weight(self.group))
    }

    /// Counts the neighbours of a tick whose neighbours are all known.
    fn settle(&mut self, flag: u16) {
        if flag & BEFORE != 0 {
            self.near.first[usize::from(flag & CLASS)] += 1;
        }
        if flag & AFTER != 0 {
            self.near.first[usize::from(flag >> CLASS_AFTER & CLASS)] += 1;
        }
        self.near.second += u32::from(flag & TWO_BEFORE != 0) + u32::from(flag & TWO_AFTER != 0);
    }

    /// Returns the pairs that both belong to it, and neighbours that are inside, at the end of the run.
    pub(super) fn pairs(mut self, track: &Track) -> (Pairs, Pairs) {
        self.settle(track.flag(self.before));
        self.settle(track.flag(self.last));
        (self.same, self.near)
    }
}

/// Samples of one thing on all vCPUs, instead of a plain count.
#[derive(Debug, Clone, Default)]
pub struct Tallies {
    /// One tally for each vCPU with a sample, by number.
    by_vcpu: Vec<(u16, Tally)>,
}

impl Tallies {
    /// Counts the latest tick of its vCPU, as [`Tally::add`] does.
    pub fn add(&mut self, ticks: &Ticks, tick: Tick) {
        let place = self.place(tick.vcpu).unwrap_or_else(|place| {
            self.by_vcpu.insert(place, (tick.vcpu, Tally::default()));
            place
        });
        self.by_vcpu[place].1.add(ticks, tick);
    }

    /// Returns the number of samples.
    pub fn count(&self) -> u64 {
        self.by_vcpu.iter().map(|(_, tally)| tally.count()).sum()
    }

    /// Returns the tally of a vCPU, if it has a sample.
    pub fn tally(&self, vcpu: u16) -> Option<&Tally> {
        self.by_vcpu.get(self.place(vcpu).ok()?).map(|(_, tally)| tally)
    }

    fn place(&self, vcpu: u16) -> Result<usize, usize> {
        self.by_vcpu.binary_search_by_key(&vcpu, |(of, _)| *of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns ticks 1 ms apart unless `late`; each has a flag for inside, and one for the key.
    fn tallied(ticks: &[(bool, bool)], late: &[usize]) -> (Ticks, Tally) {
        let mut all = Ticks::new(ClockKind::Uniform, 1e6);
        let mut key = Tally::default();
        let mut time = 0;
        for (n, (inside, hit)) in ticks.iter().enumerate() {
            time += if late.contains(&n) { 9_000_000 } else { 1_000_000 };
            let tick = all.tick(0, time, *inside);
            if *hit {
                key.add(&all, tick);
                key.add(&all, tick);
            }
        }
        (all, key)
    }

    const OUT: (bool, bool) = (false, false);
    const IN: (bool, bool) = (true, false);
    const HIT: (bool, bool) = (true, true);

    /// Pairs of neighbours (all have an interval of 1 mean: class 2) and next but one.
    fn sums(pairs: Pairs) -> (u32, u32) {
        assert_eq!(pairs.first.iter().sum::<u32>(), pairs.first[2]);
        (pairs.first[2], pairs.second)
    }

    #[test]
    fn pairs_are_counted_as_by_hand() {
        let (all, key) = tallied(&[HIT, HIT, IN, HIT, OUT, HIT, HIT], &[]);
        let track = all.track(0).expect("a track");
        assert_eq!((key.count(), all.inside(), track.len()), (5, 6, 7));
        assert_eq!((sums(track.all), sums(track.both)), ((6, 5), (4, 3)));
        let (same, near) = key.pairs(track);
        assert_eq!(sums(same), (2, 2));
        // Neighbours inside: 1, 2, 1, 1, 1; next but one: 1, 1, 2, 1, 0.
        assert_eq!(sums(near), (6, 5));
    }

    #[test]
    fn a_gap_joins_no_neighbours() {
        let (all, key) = tallied(&[HIT, HIT, HIT, HIT], &[2]);
        let track = all.track(0).expect("a track");
        assert_eq!((sums(track.all), sums(track.both)), ((2, 0), (2, 0)));
        let (same, near) = key.pairs(track);
        assert_eq!((sums(same), sums(near)), ((2, 0), (4, 0)));
    }

    #[test]
    fn a_change_of_the_rate_joins_no_neighbours() {
        let mut ticks = Ticks::new(ClockKind::Uniform, 1e6);
        ticks.change_mean(0, [(2_500_000, 1e5)]);
        for time in [1_000_000, 2_000_000, 2_600_000, 2_700_000, 2_800_000] {
            ticks.tick(0, time, true);
        }
        let track = ticks.track(0).expect("a track");
        assert_eq!(sums(track.all), (3, 1));
        assert!((track.kept() - 1.0).abs() < 1e-12 && (track.passed - 3.0).abs() < 1e-9);
    }

    #[test]
    fn ticks_outside_are_no_samples() {
        let (all, key) = tallied(&[(false, true), HIT, (false, true)], &[]);
        assert_eq!((all.inside(), all.inside_of(0), all.inside_of(9), key.count()), (1, 1, 0, 1));
    }

    #[test]
    fn a_tally_is_small() {
        assert!(size_of::<Tally>() <= 80 && size_of::<Tick>() == 8);
    }
}
