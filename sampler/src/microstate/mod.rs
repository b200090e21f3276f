//! Exact microstates of each vCPU: one clock per vCPU (Chubb), always on.
//!
//! ```text
//!             vCPU thread                                     collector
//!  [`clock`] in KVM_RUN │ VMM │ sampler │ paused ──┐
//!  [`exits`] VMM time by exit reason and address ──┼──▶ [`meter`] ──▶ tables vcpu, microstate,
//!              host's scheduler: [`host`] ─────────┤                  exit, kvm_counter
//!              KVM's counters ─────────────────────┘
//! ```
//!
//! The vCPU's thread knows when it is in KVM_RUN. The host's scheduler shows what happens there: a blocked
//! thread has a halted guest, a thread in a run queue waits for a host CPU, and the remainder is the guest's.
//! A tick gets a halted vCPU out of KVM_RUN and in again without running the guest; the cost of that is
//! measured, too.

pub(crate) mod clock;
pub(crate) mod exits;
pub(crate) mod foreign;
pub(crate) mod host;
pub(crate) mod meter;
pub(crate) mod stats;
pub(crate) mod wait;
