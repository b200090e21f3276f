//! The lanes of the timeline: states of each vCPU in stretches, and how its samples divide the time in the guest.

use profile::Profile;
use profile::report::{Recording, Report, Vcpu};
use profile::rows::Mode;
use profile::store::{QueryError, Value};
use serde_json::{Value as Json, json};

/// Stretches of a lane, at most: neighbours are taken together.
const MOST: usize = 1_000;
/// The states that clocks tell, in the order of table `microstate`.
const STATES: [&str; 7] = ["guest", "halted", "waiting", "kvm", "vmm", "sampler", "paused"];
/// What samples tell apart in the guest.
const PARTS: [&str; 4] = ["user", "kernel", "interrupt", "idle"];

/// A stretch.
#[derive(Debug, Clone, Default)]
struct Stretch {
    end_ns: u64,
    /// By [`STATES`], ns.
    states: [u64; 7],
    /// Samples by [`PARTS`].
    parts: [u64; 4],
}

/// The stretches of one vCPU.
#[derive(Debug)]
pub(super) struct Lane {
    vcpu: u8,
    stretches: Vec<Stretch>,
}

/// Reads the lanes of the report's vCPUs.
pub(super) fn read(
    profile: &Profile,
    report: &Report,
    recording: &Recording,
) -> Result<Vec<Lane>, QueryError> {
    let mut lanes: Vec<Lane> =
        report.vcpus.iter().map(|vcpu| Lane { vcpu: vcpu.id, stretches: Vec::new() }).collect();
    let sql = "SELECT vcpu, time_ns, guest_ns, halted_ns, waiting_ns, kvm_ns, vmm_ns, sampler_ns, paused_ns \
               FROM microstate ORDER BY vcpu, time_ns";
    for row in &profile.query(sql)?.rows {
        let numbers: Vec<u64> = row.iter().map(number).collect();
        let [vcpu, end_ns, states @ ..] = numbers.as_slice() else { continue };
        let lane = lanes.iter_mut().find(|lane| u64::from(lane.vcpu) == *vcpu);
        if let (Some(lane), Ok(states)) = (lane, states.try_into()) {
            lane.stretches.push(Stretch { end_ns: *end_ns, states, parts: [0; 4] });
        }
    }
    for (lane, vcpu) in lanes.iter_mut().zip(&report.vcpus) {
        lane.shorten();
        if lane.stretches.is_empty() {
            lane.stretches.push(whole(vcpu));
        }
    }
    for sample in &recording.samples {
        let part = match sample.mode {
            Mode::User => 0,
            Mode::HardIrq | Mode::SoftIrq | Mode::Nmi => 2,
            Mode::Idle => 3,
            Mode::Kernel | Mode::Boot | Mode::Unknown => 1,
        };
        count(&mut lanes, sample.vcpu, sample.time_ns, part);
    }
    // The recording has no idle ones.
    let sql = "SELECT s.vcpu, s.time_ns FROM sample s JOIN mode m ON m.id = s.mode \
               WHERE m.name = 'idle' AND s.vcpu_state = 'guest'";
    for row in &profile.query(sql)?.rows {
        if let [vcpu, time] = row.as_slice() {
            count(&mut lanes, u8::try_from(number(vcpu)).unwrap_or(u8::MAX), number(time), 3);
        }
    }
    Ok(lanes)
}

/// A count or a time.
fn number(value: &Value) -> u64 {
    match value {
        Value::Integer(number) => number.max(&0).unsigned_abs(),
        _ => 0,
    }
}

/// The whole run as one stretch.
fn whole(vcpu: &Vcpu) -> Stretch {
    let times =
        [vcpu.guest_s, vcpu.halted_s, vcpu.waiting_s, vcpu.kvm_s, vcpu.vmm_s, vcpu.sampler_s, vcpu.paused_s];
    let states = times.map(|s| super::samples::rounded(s * 1e9));
    Stretch { end_ns: super::samples::rounded(vcpu.wall_s * 1e9), states, parts: [0; 4] }
}

fn count(lanes: &mut [Lane], vcpu: u8, time_ns: u64, part: usize) {
    let Some(lane) = lanes.iter_mut().find(|lane| lane.vcpu == vcpu) else { return };
    let place = lane.stretches.partition_point(|stretch| stretch.end_ns <= time_ns);
    let place = place.min(lane.stretches.len().saturating_sub(1));
    if let Some(stretch) = lane.stretches.get_mut(place) {
        stretch.parts[part] += 1;
    }
}

impl Lane {
    /// Takes neighbours together until there are at most [`MOST`].
    fn shorten(&mut self) {
        let group = self.stretches.len().div_ceil(MOST).max(1);
        let merged = |stretches: &[Stretch]| {
            let mut all = Stretch::default();
            for stretch in stretches {
                all.end_ns = stretch.end_ns;
                for (sum, ns) in all.states.iter_mut().zip(stretch.states) {
                    *sum = sum.saturating_add(ns);
                }
            }
            all
        };
        self.stretches = self.stretches.chunks(group).map(merged).collect();
    }

    /// Columns: ends and times in us, numbers of samples.
    pub(super) fn json(&self) -> Json {
        let column = |of: &dyn Fn(&Stretch) -> u64| Json::from_iter(self.stretches.iter().map(of));
        let mut columns = json!({ "vcpu": self.vcpu, "end": column(&|stretch| stretch.end_ns / 1_000) });
        for (place, name) in STATES.iter().enumerate() {
            columns[*name] = column(&|stretch| stretch.states[place] / 1_000);
        }
        for (place, name) in PARTS.iter().enumerate() {
            columns[*name] = column(&|stretch| stretch.parts[place]);
        }
        columns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_stretches_become_few() {
        let stretch =
            |n: u64| Stretch { end_ns: (n + 1) * 1_000, states: [n, 1_000, 0, 0, 0, 0, 0], parts: [0; 4] };
        let mut lane = Lane { vcpu: 0, stretches: (0..2_500).map(stretch).collect() };
        lane.shorten();
        assert_eq!(lane.stretches.len(), 834);
        assert_eq!(
            (lane.stretches[0].end_ns, lane.stretches[0].states[..2].to_vec()),
            (3_000, vec![3, 3_000])
        );
        assert_eq!(lane.stretches.iter().map(|s| s.states[0]).sum::<u64>(), 2_500 * 2_499 / 2);
        let mut lanes = [lane];
        count(&mut lanes, 0, 2_999, 0);
        count(&mut lanes, 0, 3_000, 2);
        count(&mut lanes, 0, u64::MAX, 1);
        count(&mut lanes, 9, 0, 1);
        let json = lanes[0].json();
        assert_eq!((json["user"][0].as_u64(), json["interrupt"][1].as_u64()), (Some(1), Some(1)));
        assert_eq!((json["kernel"][833].as_u64(), json["end"][0].as_u64()), (Some(1), Some(3)));
    }
}
