//! Where the time of each vCPU goes, exactly: one clock per vCPU (Chubb), always on.
//!
//! ```text
//!             vCPU thread                                     collector
//!  [`clock`] in KVM_RUN │ VMM │ sampler │ paused ──┐
//!  [`exits`] VMM time by exit reason and address ──┼──▶ [`meter`] ──▶ tables vcpu, microstate, exit, kvm_counter
//!              host's scheduler: [`host`] ─────────┤
//!              KVM's counters ─────────────────────┘
//! ```
//!
//! The vCPU's thread knows whether it is in KVM_RUN. What happens in there the host's scheduler tells: a thread that is
//! blocked has a halted guest, one that waits in a run queue lacks a host CPU, and the remainder is the guest's. A tick
//! gets a halted vCPU out of KVM_RUN and in again without running the guest; what that costs is measured, too.

pub(crate) mod clock;
pub(crate) mod exits;
pub(crate) mod host;
pub(crate) mod meter;
pub(crate) mod wait;
