//! Lanes of the timeline: states of each vCPU in segments, and the division of the time in the guest by its
//! samples.

use profile::Profile;
use profile::report::{PlacedTick, Recording, Report, ThreadPlace, Vcpu};
use profile::rows::Mode;
use profile::store::{QueryError, Value};
use serde_json::{Value as Json, json};

/// Limit of segments of a lane, whose neighbours are combined, and of the times without samples.
const MOST: usize = 1_000;
/// States that clocks measure, in the order of table `microstate`.
const STATES: [&str; 7] = ["guest", "halted", "waiting", "kvm", "vmm", "sampler", "paused"];
/// Parts of the time in the guest that samples distinguish.
const PARTS: [&str; 4] = ["user", "kernel", "interrupt", "idle"];

/// A segment.
#[derive(Debug, Clone, Default)]
struct Segment {
    end_ns: u64,
    /// By [`STATES`], ns.
    states: [u64; 7],
    /// Samples by [`PARTS`].
    parts: [u64; 4],
    /// Ticks by place of the thread, in the order of [`ThreadPlace::ALL`].
    places: [u64; ThreadPlace::ALL.len()],
    /// The part of the time in the guest in which sampling was stopped, ns.
    unsampled_ns: u64,
}

/// The segments of one vCPU.
#[derive(Debug)]
pub(super) struct Lane {
    vcpu: u16,
    name: String,
    segments: Vec<Segment>,
    /// Times in which it was not sampled, from and to, ns: the longest [`MOST`] of them.
    stops: Vec<(u64, u64)>,
    /// The places of the thread at ticks are known.
    has_places: bool,
}

impl Lane {
    fn new(vcpu: u16, name: String, segments: Vec<Segment>) -> Self {
        Self { vcpu, name, segments, stops: Vec::new(), has_places: false }
    }
}

/// Reads the lanes of the report's vCPUs, with the places of their threads at `ticks`, if they are known.
pub(super) fn read(
    profile: &Profile,
    report: &Report,
    recording: &Recording,
    ticks: Option<&[PlacedTick]>,
) -> Result<Vec<Lane>, QueryError> {
    let mut lanes: Vec<Lane> =
        report.vcpus.iter().map(|vcpu| Lane::new(vcpu.id, vcpu_name(vcpu), Vec::new())).collect();
    let sql = "SELECT vcpu, time_ns, guest_ns, halted_ns, waiting_ns, kvm_ns, vmm_ns, sampler_ns, paused_ns \
               FROM microstate ORDER BY vcpu, time_ns";
    for row in &profile.query(sql)?.rows {
        let numbers: Vec<u64> = row.iter().map(number).collect();
        let [vcpu, end_ns, states @ ..] = numbers.as_slice() else { continue };
        let place = lanes.binary_search_by_key(vcpu, |lane| lane.vcpu.into());
        let lane = place.ok().and_then(|place| lanes.get_mut(place));
        if let (Some(lane), Ok(states)) = (lane, states.try_into()) {
            lane.segments.push(Segment { end_ns: *end_ns, states, ..Segment::default() });
        }
    }
    let rates = rates(profile)?;
    for (lane, vcpu) in lanes.iter_mut().zip(&report.vcpus) {
        lane.shorten();
        if lane.segments.is_empty() {
            lane.segments.push(whole(vcpu));
        }
        lane.leave_out(&rates);
    }
    for sample in &recording.samples {
        let part = match sample.mode {
            Mode::User => 0,
            Mode::HardIrq | Mode::SoftIrq | Mode::Nmi => 2,
            Mode::Idle => 3,
            Mode::Kernel | Mode::Boot | Mode::Unknown => 1,
        };
        if let Some(segment) = segment_at(&mut lanes, sample.vcpu, sample.time_ns) {
            segment.parts[part] += 1;
        }
    }
    // The recording has no idle samples.
    let sql = "SELECT s.vcpu, s.time_ns FROM sample s JOIN mode m ON m.id = s.mode \
               WHERE m.name = 'idle' AND s.vcpu_state = 'guest'";
    for row in &profile.query(sql)?.rows {
        if let [vcpu, time] = row.as_slice() {
            let vcpu = u16::try_from(number(vcpu)).unwrap_or(u16::MAX);
            if let Some(segment) = segment_at(&mut lanes, vcpu, number(time)) {
                segment.parts[3] += 1;
            }
        }
    }
    for &PlacedTick { vcpu, time_ns, place } in ticks.unwrap_or_default() {
        if let Some(segment) = segment_at(&mut lanes, vcpu, time_ns) {
            segment.places[place as usize] += 1;
        }
    }
    lanes.iter_mut().for_each(|lane| lane.has_places = ticks.is_some());
    Ok(lanes)
}

/// Returns the name of a lane.
fn vcpu_name(vcpu: &Vcpu) -> String {
    match &vcpu.vm {
        Some(vm) => format!("{vm} vCPU {}", vcpu.number),
        None => format!("vCPU {}", vcpu.id),
    }
}

/// A change of a vCPU's rate: vCPU, time in ns, and whether it is sampled from then on.
type RateChange = (u64, u64, bool);

/// Reads the changes of rates in the order of time.
fn rates(profile: &Profile) -> Result<Vec<RateChange>, QueryError> {
    let sql = "SELECT vcpu, time_ns, rate_hz > 0 FROM rate ORDER BY time_ns";
    let rows = profile.query(sql)?.rows;
    let change = |row: &Vec<Value>| match row.as_slice() {
        [vcpu, time, on] => Some((number(vcpu), number(time), number(on) > 0)),
        _ => None,
    };
    Ok(rows.iter().filter_map(change).collect())
}

/// Reads a count or a time.
fn number(value: &Value) -> u64 {
    match value {
        Value::Integer(number) => number.max(&0).unsigned_abs(),
        _ => 0,
    }
}

/// Returns the whole run as one segment.
fn whole(vcpu: &Vcpu) -> Segment {
    let times =
        [vcpu.guest_s, vcpu.halted_s, vcpu.waiting_s, vcpu.kvm_s, vcpu.vmm_s, vcpu.sampler_s, vcpu.paused_s];
    let states = times.map(|s| display::units::rounded(s * 1e9));
    Segment { end_ns: display::units::rounded(vcpu.wall_s * 1e9), states, ..Segment::default() }
}

/// Returns the segment of a vCPU at a time.
fn segment_at(lanes: &mut [Lane], vcpu: u16, time_ns: u64) -> Option<&mut Segment> {
    let lane = lanes.binary_search_by_key(&vcpu, |lane| lane.vcpu).ok().and_then(|at| lanes.get_mut(at))?;
    let place = lane.segments.partition_point(|segment| segment.end_ns <= time_ns);
    let last = lane.segments.len().saturating_sub(1);
    lane.segments.get_mut(place.min(last))
}

impl Lane {
    /// Combines neighbours until there are at most [`MOST`].
    fn shorten(&mut self) {
        let group = self.segments.len().div_ceil(MOST).max(1);
        let merged = |segments: &[Segment]| {
            let mut all = Segment::default();
            for segment in segments {
                all.end_ns = segment.end_ns;
                for (sum, ns) in all.states.iter_mut().zip(segment.states) {
                    *sum = sum.saturating_add(ns);
                }
            }
            all
        };
        self.segments = self.segments.chunks(group).map(merged).collect();
    }

    /// Marks the time in which sampling was stopped: the parts of a segment are proportional.
    fn leave_out(&mut self, rates: &[RateChange]) {
        let mut stops: Vec<(u64, u64)> = Vec::new();
        let mut since = None;
        for &(_, time, on) in rates.iter().filter(|(vcpu, ..)| *vcpu == u64::from(self.vcpu)) {
            match (since, on) {
                (None, false) => since = Some(time),
                (Some(begin), true) => {
                    stops.push((begin, time));
                    since = None;
                }
                _ => {}
            }
        }
        stops.extend(since.map(|begin| (begin, u64::MAX)));
        for segment in &mut self.segments {
            let length = segment.states.iter().fold(0_u64, |sum, ns| sum.saturating_add(*ns));
            let begin = segment.end_ns.saturating_sub(length);
            let off = stops.iter().map(|stop| stop.1.min(segment.end_ns).saturating_sub(stop.0.max(begin)));
            let off = off.fold(0_u64, u64::saturating_add).min(length);
            let guest = u128::from(segment.states[0]) * u128::from(off);
            segment.unsampled_ns =
                guest.checked_div(length.into()).and_then(|ns| u64::try_from(ns).ok()).unwrap_or(0);
        }
        stops.sort_by_key(|(begin, end)| std::cmp::Reverse(end - begin));
        stops.truncate(MOST);
        stops.sort_unstable();
        self.stops = stops;
    }

    /// Returns columns: ends and times in us, numbers of samples.
    pub(super) fn json(&self) -> Json {
        let column = |of: &dyn Fn(&Segment) -> u64| Json::from_iter(self.segments.iter().map(of));
        let mut columns = json!({ "name": self.name, "end": column(&|segment| segment.end_ns / 1_000) });
        for (place, name) in STATES.iter().enumerate() {
            columns[*name] = column(&|segment| segment.states[place] / 1_000);
        }
        let stops = self.stops.iter().map(|(begin, end)| json!([begin / 1_000, end / 1_000]));
        columns["stops"] = stops.collect();
        columns["unsampled"] = column(&|segment| segment.unsampled_ns / 1_000);
        for (place, name) in PARTS.iter().enumerate() {
            columns[*name] = column(&|segment| segment.parts[place]);
        }
        let of_place = |place: ThreadPlace| {
            (place.name().to_owned(), column(&move |segment| segment.places[place as usize]))
        };
        columns["places"] = match self.has_places {
            true => ThreadPlace::ALL.map(of_place).into_iter().collect(),
            false => Json::Null,
        };
        columns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_without_sampling_is_a_part_of_the_time_in_the_guest() {
        let segment = |end_ns| Segment { end_ns, states: [600, 400, 0, 0, 0, 0, 0], ..Segment::default() };
        let mut lane = Lane::new(1, "vCPU 1".to_owned(), [1_000, 2_000, 3_000, 4_000].map(segment).to_vec());
        // Off from the start, on from the middle of the second segment, off again within the last.
        let rates = [(0, 0, false), (1, 0, false), (1, 1_500, true), (1, 3_750, false)];
        lane.leave_out(&rates);
        let unsampled: Vec<u64> = lane.segments.iter().map(|segment| segment.unsampled_ns).collect();
        assert_eq!(unsampled, [600, 300, 0, 150]);
        assert_eq!(lane.stops, [(0, 1_500), (3_750, u64::MAX)]);
        lane.segments[0].states = [0; 7];
        lane.leave_out(&rates);
        assert_eq!(lane.segments[0].unsampled_ns, 0);
    }

    #[test]
    fn many_segments_become_few() {
        let segment = |n: u64| Segment {
            end_ns: (n + 1) * 1_000,
            states: [n, 1_000, 0, 0, 0, 0, 0],
            ..Segment::default()
        };
        let mut lane = Lane::new(0, "vCPU 0".to_owned(), (0..2_500).map(segment).collect());
        lane.shorten();
        assert_eq!(lane.segments.len(), 834);
        assert_eq!((lane.segments[0].end_ns, lane.segments[0].states[..2].to_vec()), (3_000, vec![3, 3_000]));
        assert_eq!(lane.segments.iter().map(|s| s.states[0]).sum::<u64>(), 2_500 * 2_499 / 2);
        let mut lanes = [lane];
        for (time_ns, part) in [(2_999, 0), (3_000, 2), (u64::MAX, 1)] {
            segment_at(&mut lanes, 0, time_ns).expect("a segment").parts[part] += 1;
        }
        assert!(segment_at(&mut lanes, 9, 0).is_none(), "no such vCPU");
        let json = lanes[0].json();
        assert_eq!((json["user"][0].as_u64(), json["interrupt"][1].as_u64()), (Some(1), Some(1)));
        assert_eq!((json["kernel"][833].as_u64(), json["end"][0].as_u64()), (Some(1), Some(3)));
    }
}
