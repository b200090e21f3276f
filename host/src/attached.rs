//! Machines of other VMMs as [profiled VMs](ProfiledVm) of a session.

use std::os::fd::BorrowedFd;

use attach::{AttachEvent, Attachment, PauseCause};
use sampler::Session;

use crate::guest::ProfiledVm;

/// Reasons why an attached machine is stopped.
const PAUSED: &str = "the virtual machine is paused, or has migrated away";
const STOPPED: &str = "the virtual machine's process is stopped by a signal";

/// Excess of a rate over the sustainable one that is tolerated, as a factor.
const TOLERANCE: f64 = 1.1;

/// Writes what is new of the machine into the profile.
fn tell(session: &Session, events: Vec<AttachEvent>) {
    for event in events {
        match event {
            AttachEvent::MemoryProven(text) => session.event("memory", &text),
            AttachEvent::MemoryUnproven(text) => session.event("missing", &text),
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
            AttachEvent::Plugged(number) => session.event(
                "missing",
                &format!("vCPU {number} was plugged in later, and is not in this profile: attach again"),
            ),
            AttachEvent::Unplugged(number) => {
                session.event(
                    "missing",
                    &format!("vCPU {number} was taken out: it is in this profile up to then"),
                );
            }
        }
    }
}

impl<O> ProfiledVm for Attachment<O> {
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

    fn look(&self, session: &Session) {
        tell(session, self.take_events());
        let wanted = session.status().wanted_hz;
        if let Some(held) = lowered_rate(wanted, self.sustainable_hz()) {
            session.event("rate", &rate_sentence(held, wanted));
            session.set_rate(held);
        }
    }
}

/// Returns the rate that a GDB stub holds, where that is less than the wanted one, Hz.
pub fn lowered_rate(wanted: f64, sustainable: Option<f64>) -> Option<f64> {
    sustainable.filter(|held| wanted > held * TOLERANCE).map(round)
}

/// A rate that a person reads, Hz.
fn round(hz: f64) -> f64 {
    if hz >= 10.0 { hz.floor() } else { (hz * 10.0).floor().max(1.0) / 10.0 }
}

/// Why the rate is another than what was wanted.
pub fn rate_sentence(held: f64, wanted: f64) -> String {
    // What the stub holds follows from this.
    let stop_ms = 100.0 / held.max(0.1);
    format!(
        "a stop by the GDB stub takes {stop_ms:.1} ms: the rate is {held} Hz instead of {wanted} Hz, so that the virtual \
         machine is stopped for a tenth of the time at most"
    )
}
