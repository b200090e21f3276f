//! A vCPU's true course: its state at every point of time.

/// State of time in which the vCPU is not in the guest.
pub(super) const OUTSIDE: u8 = u8::MAX;
/// State of time in which the guest is idle, but not halted: it is not part of the time that is divided.
pub(super) const POLLING: u8 = u8::MAX - 1;
/// State of time in which the vCPU's thread waits for a CPU of the host, so that the guest is stopped.
pub(super) const WAITING: u8 = u8::MAX - 2;
/// Any state that is not estimated.
pub(super) const REST: u8 = 0;

/// True if time in this state is the guest's.
pub(super) fn in_guest(state: u8) -> bool {
    state != OUTSIDE && state != WAITING
}

/// States in sequence; two that follow each other differ.
#[derive(Debug, Default, Clone)]
pub(super) struct Timeline {
    /// End of each state, ns.
    ends: Vec<u64>,
    states: Vec<u8>,
}

impl Timeline {
    /// Returns the length, ns.
    pub fn length(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Adds a state of this length.
    pub fn push(&mut self, state: u8, ns: u64) {
        let end = self.length() + ns;
        match (self.states.last(), self.ends.last_mut()) {
            _ if ns == 0 => {}
            (Some(last), Some(last_end)) if *last == state => *last_end = end,
            _ => {
                self.states.push(state);
                self.ends.push(end);
            }
        }
    }

    /// Cuts the course at `ns`, if it is longer.
    pub fn truncated(mut self, ns: u64) -> Self {
        let kept = self.ends.partition_point(|end| *end < ns);
        self.ends.truncate(kept + 1);
        self.states.truncate(kept + 1);
        if let Some(end) = self.ends.last_mut() {
            *end = (*end).min(ns);
        }
        self
    }

    /// Returns this course at times when `outer` is at [`REST`], and `outer` at others; as long as the
    /// shorter.
    pub fn within(&self, outer: &Self) -> Self {
        let mut both = Self::default();
        let (mut inner_at, mut outer_at) = (self.cursor(), outer.cursor());
        let end = self.length().min(outer.length());
        while both.length() < end {
            let now = both.length();
            let (outside, state) = (outer_at.state_at(now), inner_at.state_at(now));
            let until = inner_at.end().min(outer_at.end()).min(end);
            both.push(if outside == REST { state } else { outside }, until - now);
        }
        both
    }

    /// Returns the time in a state, ns.
    pub fn time(&self, wanted: impl Fn(u8) -> bool) -> u64 {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let spans = starts.zip(&self.ends).zip(&self.states);
        spans.filter(|(_, state)| wanted(**state)).map(|((start, end), _)| end - start).sum()
    }

    /// Returns the time in a state before a point of time, ns.
    pub fn time_until(&self, until: u64, wanted: impl Fn(u8) -> bool) -> u64 {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let spans = starts.zip(&self.ends).zip(&self.states);
        let spans = spans.take_while(|((start, _), _)| *start < until).filter(|(_, state)| wanted(**state));
        spans.map(|((start, end), _)| (*end).min(until) - start).sum()
    }

    /// Returns segments of this length: the end of each, ns, and the time in wanted states within it, ns.
    pub fn segments(&self, length: u64, wanted: impl Fn(u8) -> bool) -> Vec<(u64, u64)> {
        let mut segments = Vec::new();
        let (mut cursor, mut now, mut time) = (self.cursor(), 0, 0);
        while now < self.length() {
            let state = cursor.state_at(now);
            let border = (now / length + 1) * length;
            let until = cursor.end().min(border).min(self.length());
            time += if wanted(state) { until - now } else { 0 };
            if until == border || until == self.length() {
                segments.push((until, std::mem::take(&mut time)));
            }
            now = until;
        }
        segments
    }

    /// Returns start and end of each wait of the vCPU's thread, ns.
    pub fn waits(&self) -> impl Iterator<Item = (u64, u64)> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let spans = starts.zip(&self.ends).zip(&self.states);
        spans.filter(|(_, state)| **state == WAITING).map(|((start, end), _)| (start, *end))
    }

    /// Returns a cursor that looks up rising times.
    pub fn cursor(&self) -> Cursor<'_> {
        Cursor { timeline: self, place: 0 }
    }
}

/// A position in a timeline.
#[derive(Debug)]
pub(super) struct Cursor<'a> {
    timeline: &'a Timeline,
    place: usize,
}

impl Cursor<'_> {
    /// Returns the state at a time before the end, not before the one of the previous call.
    pub fn state_at(&mut self, ns: u64) -> u8 {
        let ends = &self.timeline.ends;
        while ends.get(self.place).is_some_and(|end| *end <= ns) {
            self.place += 1;
        }
        self.timeline.states.get(self.place).copied().unwrap_or(OUTSIDE)
    }

    /// Returns the end of the state that was found last, ns.
    pub fn end(&self) -> u64 {
        self.timeline.ends.get(self.place).copied().unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_follow_one_another() {
        let mut line = Timeline::default();
        for (state, ns) in [(1, 10), (1, 5), (0, 0), (2, 10), (1, 25)] {
            line.push(state, ns);
        }
        assert_eq!((line.length(), line.time(|s| s == 1), line.time(|s| s == 2)), (50, 40, 10));
        let mut cursor = line.cursor();
        assert_eq!([0, 14, 15, 24, 25, 49, 50].map(|ns| cursor.state_at(ns)), [1, 1, 2, 2, 1, 1, OUTSIDE]);
        assert_eq!(line.segments(20, |s| s == 1), [(20, 15), (40, 15), (50, 10)]);
        let short = line.clone().truncated(20);
        assert_eq!((short.length(), short.time(|s| s == 2)), (20, 5));
        assert_eq!(line.clone().truncated(15).length(), 15);
        let mut outer = Timeline::default();
        outer.push(OUTSIDE, 12);
        outer.push(REST, 10);
        let both = line.within(&outer);
        assert_eq!((both.length(), both.time(|s| s == 1), both.time(|s| s == OUTSIDE)), (22, 3, 12));
        outer.push(WAITING, 5);
        assert_eq!(outer.waits().collect::<Vec<_>>(), [(22, 27)]);
        assert!(in_guest(REST) && in_guest(POLLING) && !in_guest(WAITING) && !in_guest(OUTSIDE));
    }
}
