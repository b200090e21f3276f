//! Ticks of a virtual machine with a GDB stub: QEMU without KVM, and QEMU on another machine.
//!
//! ```text
//! due ──▶ interrupt, registers of all vCPUs ──▶ a sample of each ──▶ continue
//!              one message to the stub          memory: the VMM's own, if its process is on this machine
//!                                               ([`crate::ForeignMemory`]), else the stub's ([`StubMemory`])
//! ```
//!
//! A stub stops all vCPUs together. So there is one clock for all of them, and each tick is a sample of each.

mod description;
mod owner;
mod stub;
mod target;
#[cfg(test)]
mod tests;
mod ticker;
mod x86;

pub use crate::error::GdbError;
pub use crate::rsp::memory::StubMemory;
pub use crate::rsp::packet::{PacketDecoder, PacketError};
pub use description::{DescriptionError, TargetDescription};
pub use target::{ConnectedStub, GdbTarget};
pub(crate) use ticker::{GdbTicker, SustainableRate};
