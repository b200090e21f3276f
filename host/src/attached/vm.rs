//! Machines of other VMMs as [profiled VMs](ProfiledVm) of a session.

use std::os::fd::BorrowedFd;

use attach::{AttachEvent, Attachment, PauseCause, PluggedVcpu, RateLimit};
use sampler::{AttachedSampler, Session};

use crate::guest::ProfiledVm;

/// Reasons why an attached machine is stopped.
const PAUSED: &str = "the virtual machine is paused, or has migrated away";
const STOPPED: &str = "the virtual machine's process is stopped by a signal";

/// Excess of a rate over the sustainable one that is tolerated, as a factor.
const TOLERANCE: f64 = 1.1;

/// Writes what is new of the machine into the profile, and profiles the vCPUs that are new.
fn record_events(session: &Session, attachment: &Attachment<AttachedSampler>) {
    for event in attachment.take_events() {
        match event {
            AttachEvent::MemoryProven(text) => session.event("memory", &text),
            AttachEvent::MemoryChanged(text) => {
                session.event("memory", &format!("the VMM has changed the guest's memory: {text}"));
            }
            AttachEvent::Missing(text) => session.event("missing", &text),
            AttachEvent::Paused(cause) => {
                let why = match cause {
                    PauseCause::Vmm => PAUSED,
                    PauseCause::Signal => STOPPED,
                };
                session.event("paused", why);
                session.set_stopped(Some(why));
            }
            AttachEvent::Resumed => {
                session.event("paused", "the virtual machine runs on");
                session.set_stopped(None);
            }
            AttachEvent::Plugged(plugged) => adopt(session, attachment, plugged),
            AttachEvent::NotAdopted(number) => session.event("missing", &not_adopted(number)),
            AttachEvent::Unplugged(number) => {
                session.event(
                    "missing",
                    &format!("vCPU {number} was taken out: it is in this profile up to then"),
                );
            }
        }
    }
}

/// Profiles a vCPU that was plugged in.
fn adopt(session: &Session, attachment: &Attachment<AttachedSampler>, plugged: PluggedVcpu) {
    let number = plugged.number;
    let Some(sampler) = session.add_vcpu(attachment.counts(plugged)) else {
        return session.event("missing", &not_adopted(number));
    };
    match attachment.adopt(plugged, AttachedSampler::from(sampler)) {
        Ok(()) => {
            let text = format!("vCPU {number} was plugged in: it is in this profile from now on");
            session.event("plugged", &text);
        }
        Err(error) => session.event("missing", &format!("{}: {error}", not_adopted(number))),
    }
}

/// Returns the sentence on a vCPU that was plugged in and is not profiled.
fn not_adopted(number: u32) -> String {
    format!("vCPU {number} was plugged in later, and is not in this profile")
}

impl ProfiledVm for Attachment<AttachedSampler> {
    fn ended_fd(&self) -> BorrowedFd<'_> {
        Attachment::ended_fd(self)
    }

    fn has_ended(&self) -> bool {
        Attachment::has_ended(self)
    }

    fn stop(&self) {
        Attachment::stop(self);
    }

    /// Its console is its VMM's: nobody waits for these bytes.
    fn input(&self, bytes: &[u8]) -> usize {
        bytes.len()
    }

    fn poll(&self, session: &Session) {
        record_events(session, self);
        let wanted = session.status().wanted_hz;
        if let Some(lowered) = LoweredRate::new(wanted, self.rate_limit()) {
            session.event("rate", &lowered.sentence());
            session.set_rate(lowered.hz);
        }
    }
}

/// Sampling rate that is lower than the wanted one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LoweredRate {
    /// The rate, Hz per vCPU.
    pub hz: f64,
    wanted: f64,
    limit: RateLimit,
}

impl LoweredRate {
    /// Applies a limit to the wanted rate, Hz per vCPU; `None` if the wanted rate is within the limit.
    pub fn new(wanted: f64, limit: Option<RateLimit>) -> Option<Self> {
        let limit = limit?;
        let most = match limit {
            RateLimit::Stub(hz) => hz * TOLERANCE,
            RateLimit::Stops(hz) => hz,
        };
        (wanted > most).then(|| Self { hz: round(limit.hz()), wanted, limit })
    }

    /// Returns a sentence with the reason.
    pub fn sentence(&self) -> String {
        let Self { hz, wanted, limit } = self;
        match limit {
            RateLimit::Stub(_) => {
                // The limit follows from this.
                let stop_ms = 100.0 / hz.max(0.1);
                format!(
                    "a stop by the GDB stub takes {stop_ms:.1} ms: the rate is {hz} Hz instead of {wanted} Hz, so that \
                     stops take at most a tenth of the time"
                )
            }
            RateLimit::Stops(_) => format!(
                "the rate is {hz} Hz per vCPU instead of {wanted} Hz: more than 8,000 stops a second of all vCPUs \
                 together would slow the whole host down"
            ),
        }
    }
}

/// A rate that a person reads, Hz.
fn round(hz: f64) -> f64 {
    if hz >= 10.0 { hz.floor() } else { (hz * 10.0).floor().max(1.0) / 10.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_above_the_limit_is_lowered_and_the_sentence_names_both() {
        let stops = |wanted| LoweredRate::new(wanted, Some(RateLimit::Stops(8_000.0 / 64.0)));
        assert_eq!(stops(125.0), None);
        let lowered = stops(1_000.0).unwrap();
        assert_eq!(lowered.hz, 125.0);
        let sentence = lowered.sentence();
        assert!(sentence.contains("125 Hz") && sentence.contains("1000 Hz") && sentence.contains("8,000"));
        let stub = |wanted| LoweredRate::new(wanted, Some(RateLimit::Stub(40.0)));
        assert_eq!(stub(43.0), None, "measured limits vary");
        assert!(stub(45.0).unwrap().sentence().starts_with("a stop by the GDB stub takes 2.5 ms"));
        assert_eq!(LoweredRate::new(1_000.0, None), None);
    }
}
