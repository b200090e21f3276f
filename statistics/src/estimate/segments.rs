//! Weights of ticks: the exact time of the segment of a tick, divided by the number of ticks in it.
//!
//! Ticks may be missing more often in some phases of a run than in others. If the exact clock is read
//! repeatedly, each of its segments is a stratum: its share counts for its time, however many ticks it has.
//! Segments with few ticks are combined with the next ones. If the segments have as many ticks as the clock
//! gives them, all ticks count the same: the remaining differences are chance, which the design effect
//! includes already.

/// Least number of ticks in a group of segments, except for the last group: chance would move a share of
/// fewer more than lost ticks do. The variance grows by at most about one part in this many.
const FEWEST: u32 = 16;

/// Sum of weights of ticks, and of their squares. A weight is the time that a tick represents, ns.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Weights {
    pub sum: f64,
    pub squares: f64,
}

impl Weights {
    /// Returns the sums with more ticks of this weight.
    pub fn with(self, ticks: u64, weight: f64) -> Self {
        let ticks = ticks as f64;
        Self { sum: self.sum + ticks * weight, squares: self.squares + ticks * weight * weight }
    }
}

/// Segments that are combined.
#[derive(Debug, Clone, Copy, Default)]
struct Group {
    /// Exact time, ns.
    ns: f64,
    /// Ticks in that time, and those of them in the part that is divided.
    timed: u32,
    inside: u32,
}

impl Group {
    /// Returns the weight of one tick.
    fn weight(&self) -> f64 {
        self.ns / f64::from(self.timed.max(1))
    }
}

/// The segments of one vCPU.
#[derive(Debug, Default)]
pub(super) struct SegmentList {
    /// End and exact time, ns, in the order of time.
    list: Vec<(u64, u64)>,
    /// Index of the first segment that is not in a group yet.
    next: usize,
    /// Time of the segments that are not in a group yet, ns.
    rest_ns: u64,
    /// End of the last segment in a group.
    until_ns: u64,
    /// True if there is any exact time.
    timed: bool,
    /// Groups; ticks are counted in the last one.
    groups: Vec<Group>,
    /// Sums over all groups but the last two, which may still change.
    over: Sums,
    /// True if the clock's rate has changed: ticks cannot count the same.
    pub never_even: bool,
}

/// Sums over groups.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    groups: u32,
    ns: f64,
    timed: f64,
    /// Sum of squared numbers of ticks, each by the time of its group.
    density: f64,
    /// Ticks inside, unweighted and weighted.
    plain: f64,
    inside: Weights,
}

impl Sums {
    fn with(self, group: &Group) -> Self {
        let timed = f64::from(group.timed);
        if group.timed == 0 {
            return self;
        }
        Self {
            groups: self.groups + 1,
            ns: self.ns + group.ns,
            timed: self.timed + timed,
            density: self.density + timed * timed / group.ns.max(1.0),
            plain: self.plain + f64::from(group.inside),
            inside: self.inside.with(group.inside.into(), group.weight()),
        }
    }

    /// True if the chi-square of the numbers of ticks against the times exceeds its mean by more than four
    /// standard deviations. A Poisson process has this chi-square; clocks with less chance in them stay below
    /// it.
    fn uneven(&self) -> bool {
        let free = f64::from(self.groups.saturating_sub(1));
        let chi_square = self.density * self.ns / self.timed - self.timed;
        self.groups > 1 && chi_square > free + 4.0 * (2.0 * free).sqrt()
    }
}

impl SegmentList {
    /// Adds segments after the known ones.
    pub fn extend(&mut self, more: impl IntoIterator<Item = (u64, u64)>) {
        self.list.extend(more);
        let ahead = &mut self.list[self.next..];
        ahead.sort_by_key(|(end, _)| *end);
        self.rest_ns = ahead.iter().fold(0, |sum: u64, (_, ns)| sum.saturating_add(*ns));
        self.timed |= self.rest_ns > 0;
    }

    /// Adds the next tick and returns its group. From the 65,536th on, groups are one.
    pub fn tick(&mut self, time_ns: u64, timed: bool, inside: bool) -> u16 {
        if self.groups.is_empty() {
            self.groups.push(Group::default());
        }
        while let Some(&(end, ns)) = self.list.get(self.next).filter(|_| time_ns > self.until_ns) {
            if self.groups.last().is_some_and(|group| group.timed >= FEWEST) {
                self.open();
            }
            if let Some(group) = self.groups.last_mut() {
                group.ns += ns as f64;
            }
            (self.until_ns, self.next) = (end, self.next + 1);
            self.rest_ns = self.rest_ns.saturating_sub(ns);
        }
        if let Some(group) = self.groups.last_mut() {
            group.timed += u32::from(timed);
            group.inside += u32::from(inside);
        }
        self.place()
    }

    /// Begins a new group.
    fn open(&mut self) {
        if self.place() == u16::MAX {
            return;
        }
        if let Some(over) = self.groups.len().checked_sub(2).and_then(|place| self.groups.get(place)) {
            self.over = self.over.with(over);
        }
        self.groups.push(Group::default());
    }

    fn place(&self) -> u16 {
        u16::try_from(self.groups.len().saturating_sub(1)).unwrap_or(u16::MAX)
    }

    /// Returns the last groups in their present state, with the time after the last tick. A last group
    /// without a tick gives its time to the one before.
    fn last(&self) -> [Group; 2] {
        let at = |back: usize| {
            self.groups.len().checked_sub(back).and_then(|place| self.groups.get(place)).copied()
        };
        let (mut before, mut last) = (at(2).unwrap_or_default(), at(1).unwrap_or_default());
        last.ns += self.rest_ns as f64;
        if last.timed == 0 && before.timed > 0 {
            before.ns += std::mem::take(&mut last.ns);
        }
        [before, last]
    }

    fn sums(&self) -> Sums {
        self.last().iter().fold(self.over, Sums::with)
    }

    /// Returns the weight of a tick of this group, ns.
    pub fn weight(&self, group: u16) -> f64 {
        let group = usize::from(group);
        match self.groups.len().saturating_sub(group) {
            0 => 0.0,
            1 => self.last()[1].weight(),
            2 => self.last()[0].weight(),
            _ => self.groups.get(group).map_or(0.0, Group::weight),
        }
    }

    /// Returns the ticks inside by weight, if ticks are missing unevenly; otherwise all count the same.
    pub fn inside(&self) -> Option<Weights> {
        let sums = self.sums();
        (self.uneven(&sums) && sums.inside.sum > 0.0).then_some(sums.inside)
    }

    fn uneven(&self, sums: &Sums) -> bool {
        self.timed && (self.never_even || sums.uneven())
    }

    /// Returns the part of the exact time that is inside; `None` without ticks in that time.
    pub fn part_inside(&self) -> Option<f64> {
        let sums = self.sums();
        let part = if self.uneven(&sums) { sums.inside.sum / sums.ns } else { sums.plain / sums.timed };
        (sums.timed > 0.0).then(|| part.min(1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segments(list: impl IntoIterator<Item = (u64, u64)>) -> SegmentList {
        let mut segments = SegmentList::default();
        segments.extend(list);
        segments
    }

    /// A hundred ticks in a segment of 100 ns; the second has lost four of five. The third has no tick.
    fn uneven() -> SegmentList {
        let mut segments = segments([(100, 100), (200, 100), (300, 50)]);
        for time in 1..=100 {
            assert_eq!(segments.tick(time, true, time % 2 == 0), 0);
        }
        for time in (101..=200).step_by(5) {
            assert_eq!(segments.tick(time, true, true), 1);
        }
        segments
    }

    #[test]
    fn a_tick_stands_for_its_part_of_its_stretch() {
        let segments = uneven();
        assert!((segments.weight(0) - 1.0).abs() < 1e-12);
        // The third segment has no tick: its time is with the second.
        assert!((segments.weight(1) - 150.0 / 20.0).abs() < 1e-12);
        let inside = segments.inside().expect("uneven");
        assert!((inside.sum - (50.0 + 150.0)).abs() < 1e-9, "{inside:?}");
        assert!((segments.part_inside().expect("ticks") - 200.0 / 250.0).abs() < 1e-12);
    }

    #[test]
    fn a_stretch_with_few_ticks_joins_the_next() {
        let mut segments = segments([(100, 100), (200, 100), (300, 100)]);
        for time in [10, 20, 110, 120] {
            assert_eq!(segments.tick(time, true, true), 0);
        }
        for time in 201..=220 {
            assert_eq!(segments.tick(time, true, true), 0);
        }
        assert!((segments.weight(0) - 300.0 / 24.0).abs() < 1e-12);
    }

    #[test]
    fn ticks_count_the_same_where_none_is_missing() {
        let mut without = SegmentList::default();
        assert_eq!((without.part_inside(), without.inside()), (None, None));
        for time in 1..=40 {
            without.tick(time, true, time <= 10);
        }
        assert_eq!((without.inside(), without.part_inside()), (None, Some(0.25)));
        let mut even = segments((1..=10).map(|n| (n * 100, 100)));
        for time in 1..=1_000_u64 {
            // 100 in one segment, 90 in the next.
            even.tick(time, time % 10 > 0 || (time - 1) / 100 % 2 == 0, true);
        }
        assert_eq!(even.inside(), None);
    }

    #[test]
    fn stretches_may_come_one_by_one() {
        let mut segments = segments([(100, 100)]);
        for time in 1..=100 {
            segments.tick(time, true, time % 2 == 0);
        }
        segments.extend([(200, 100)]);
        for time in (101..=200).step_by(5) {
            segments.tick(time, true, true);
        }
        segments.extend([(300, 50)]);
        assert_eq!(segments.inside(), uneven().inside());
        assert_eq!(segments.part_inside(), uneven().part_inside());
    }

    #[test]
    fn many_groups_add_up() {
        let mut segments = segments((1..=70_000).map(|n| (n * 20, 20)));
        let mut last = 0;
        for time in 1..=70_000 * 20 {
            last = segments.tick(time, true, true);
        }
        assert_eq!(last, u16::MAX);
        let sums = segments.sums();
        assert!((sums.inside.sum - 1_400_000.0).abs() < 1e-3 && (sums.ns - 1_400_000.0).abs() < 1e-3);
        assert!(!sums.uneven());
    }
}
