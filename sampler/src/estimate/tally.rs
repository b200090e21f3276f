//! What is counted while samples go by: the ticks of each vCPU, and for each thing of interest its samples and the
//! pairs of them that are neighbours, or next but one.

use super::correlation::Pairs;
use crate::clock::ClockKind;

/// Bounds of the classes of intervals between neighbouring ticks, as parts of the mean: a quarter each of what the
/// uniform clock draws. Longer ones (a tick served late, a lost sample) do not join neighbours.
const CLASSES: [f64; 4] = [0.75, 1.0, 1.25, 1.6];

/// One tick of one vCPU, as [`Ticks::tick`] gave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tick {
    pub(super) vcpu: u8,
    position: u32,
}

/// The ticks of all vCPUs, in the order of each vCPU. One byte of memory per tick.
#[derive(Debug)]
pub struct Ticks {
    pub(super) clock: ClockKind,
    mean_ns: f64,
    /// By vCPU.
    tracks: Vec<Track>,
}

impl Ticks {
    /// No ticks yet, of a clock with this mean interval.
    pub fn new(clock: ClockKind, mean_ns: f64) -> Self {
        Self { clock, mean_ns, tracks: Vec::new() }
    }

    /// The next tick of `vcpu`, at `time_ns` since any moment. `inside` says whether it found the vCPU in the time that
    /// is to be shared out, that is, for which there is an exact clock; a tick that was late because the host had
    /// descheduled the vCPU's thread is outside, as one that found the vCPU halted.
    pub fn tick(&mut self, vcpu: u8, time_ns: u64, inside: bool) -> Tick {
        let place = usize::from(vcpu);
        if self.tracks.len() <= place {
            self.tracks.resize_with(place + 1, Track::default);
        }
        let position = self.tracks[place].push(self.mean_ns, time_ns, inside);
        Tick { vcpu, position }
    }

    /// Ticks of all vCPUs that were inside.
    pub fn inside(&self) -> u64 {
        self.tracks.iter().map(|track| track.inside).sum()
    }

    /// Ticks of one vCPU that were inside.
    pub fn inside_of(&self, vcpu: u8) -> u64 {
        self.track(vcpu).map_or(0, |track| track.inside)
    }

    pub(super) fn track(&self, vcpu: u8) -> Option<&Track> {
        self.tracks.get(usize::from(vcpu))
    }
}

/// The ticks of one vCPU.
#[derive(Debug, Default)]
pub(super) struct Track {
    /// Per tick: [`INSIDE`], and the class of the interval before it, or [`APART`].
    flags: Vec<u8>,
    last_ns: Option<u64>,
    pub inside: u64,
    /// Neighbouring ticks, and of those the ones that are both inside.
    pub all: Pairs,
    pub both: Pairs,
}

/// Bit of a tick that was inside.
const INSIDE: u8 = 0x80;
/// In place of a class: the tick before is missing or too far away.
const APART: u8 = 0x04;

impl Track {
    /// Number of ticks.
    pub fn len(&self) -> u64 {
        self.flags.len() as u64
    }

    fn push(&mut self, mean_ns: f64, time_ns: u64, inside: bool) -> u32 {
        let interval = self.last_ns.map(|last| time_ns.saturating_sub(last) as f64 / mean_ns);
        self.last_ns = Some(time_ns);
        self.inside += u64::from(inside);
        let class = interval.and_then(|interval| CLASSES.iter().position(|bound| interval < *bound));
        let class = class.and_then(|class| u8::try_from(class).ok()).unwrap_or(APART);
        let position = u32::try_from(self.flags.len()).unwrap_or(u32::MAX);
        self.flags.push(class | if inside { INSIDE } else { 0 });
        if let Some(class) = self.class(position) {
            self.all.first[class] += 1;
            let before = position.checked_sub(1);
            self.both.first[class] += u32::from(inside && before.is_some_and(|at| self.is_inside(at)));
        }
        if let Some(start) = self.start_of_two(position) {
            self.all.second += 1;
            self.both.second += u32::from(inside && self.is_inside(start));
        }
        position
    }

    fn flag(&self, position: u32) -> u8 {
        self.flags.get(position as usize).copied().unwrap_or(APART)
    }

    fn is_inside(&self, position: u32) -> bool {
        self.flag(position) & INSIDE != 0
    }

    /// The class of the interval that ends with this tick; `None` if it joins no neighbours.
    fn class(&self, position: u32) -> Option<usize> {
        let class = self.flag(position) & !INSIDE;
        (class != APART).then_some(usize::from(class))
    }

    /// The tick two before this one, if neither of the two intervals between them is too long.
    fn start_of_two(&self, position: u32) -> Option<u32> {
        let before = position.checked_sub(1)?;
        self.class(position)?;
        self.class(before)?;
        before.checked_sub(1)
    }
}

/// The samples of one thing on one vCPU: O(1) per sample, 64 bytes, no allocation.
#[derive(Debug, Clone, Copy)]
pub struct Tally {
    count: u64,
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
        Self { count: 0, same: Pairs::default(), near: Pairs::default(), last: NEVER, before: NEVER }
    }
}

impl Tally {
    /// Counts the vCPU's latest tick. A tick counts once, however often it is added, and only if it was inside.
    pub fn add(&mut self, ticks: &Ticks, tick: Tick) {
        let Some(track) = ticks.track(tick.vcpu).filter(|track| track.is_inside(tick.position)) else {
            return;
        };
        let position = tick.position;
        if self.last == position && self.count > 0 {
            return;
        }
        self.count += 1;
        if ticks.clock != ClockKind::Uniform {
            self.last = position;
            return;
        }
        let hit = |at: Option<u32>| at.is_some_and(|at| at == self.last || at == self.before);
        if let Some(class) = track.class(position).filter(|_| hit(position.checked_sub(1))) {
            self.same.first[class] += 1;
        }
        self.same.second += u32::from(hit(track.start_of_two(position)));
        self.settle(track, self.before);
        (self.before, self.last) = (self.last, position);
    }

    /// Samples.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Looks at the neighbours of a tick, all of which have come.
    fn settle(&mut self, track: &Track, position: u32) {
        if position == NEVER {
            return;
        }
        let next = position + 1;
        for (link, neighbour) in [(position, position.checked_sub(1)), (next, Some(next))] {
            let class = track.class(link).filter(|_| neighbour.is_some_and(|at| track.is_inside(at)));
            if let Some(class) = class {
                self.near.first[class] += 1;
            }
        }
        let far = position + 2;
        for (link, neighbour) in [(position, position.checked_sub(2)), (far, Some(far))] {
            let joined =
                track.start_of_two(link).is_some() && neighbour.is_some_and(|at| track.is_inside(at));
            self.near.second += u32::from(joined);
        }
    }

    /// Pairs that both belong to it, and neighbours that are inside, at the end of the run.
    pub(super) fn pairs(mut self, track: &Track) -> (Pairs, Pairs) {
        self.settle(track, self.before);
        self.settle(track, self.last);
        (self.same, self.near)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ticks 1 ms apart unless `late`, whether each is inside, and whether it hits the key.
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
    fn ticks_outside_are_no_samples() {
        let (all, key) = tallied(&[(false, true), HIT, (false, true)], &[]);
        assert_eq!((all.inside(), all.inside_of(0), all.inside_of(9), key.count()), (1, 1, 0, 1));
    }

    #[test]
    fn a_tally_is_small() {
        assert!(size_of::<Tally>() <= 64);
    }
}
