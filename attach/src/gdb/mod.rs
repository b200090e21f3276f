//! Ticks of a virtual machine with a GDB stub: QEMU without KVM, and QEMU on another machine.
//!
//! ```text
//! due ──▶ interrupt, registers of all vCPUs ──▶ a sample of each ──▶ continue
//!              one message to the stub          memory: the VMM's own, where its process is here ([`crate::ForeignMemory`]),
//!                                                       else the stub's                          ([`StubMemory`])
//! ```
//!
//! A stub stops all vCPUs together, so that there is one clock for them all, and each tick is a sample of each.

mod client;
mod description;
mod error;
mod guard;
mod memory;
mod owner;
mod packet;
mod stub;
mod target;
#[cfg(test)]
mod tests;
mod ticker;
mod x86;

pub use description::{Description, Unusable};
pub use error::GdbError;
pub use guard::keep_guard;
pub use memory::StubMemory;
pub use packet::{Decoder, Garbage};
pub use target::{GdbTarget, Source};
pub use ticker::GdbAttached;
