//! GDB's remote serial protocol: the connection to a stub, and guest memory through it.

pub(crate) mod client;
pub(crate) mod memory;
pub(crate) mod packet;
