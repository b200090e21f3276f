//! Errors of GDB stubs.

use std::fmt;
use std::io;

/// Reason why a GDB stub cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum GdbError {
    /// The address has no host or no port, or the host's name is unknown.
    #[error("invalid address of a GDB stub: {address}; give HOST:PORT, like localhost:1234")]
    Address {
        /// The given address.
        address: String,
    },
    /// Nothing listens at the address.
    #[error(
        "nothing listens at {address}; start the VMM's GDB stub there (QEMU: the option `-gdb tcp::PORT`, or \
         `gdbserver tcp::PORT` in its monitor)"
    )]
    Refused {
        /// The stub's address.
        address: String,
    },
    /// The address cannot be reached.
    #[error("cannot connect to {address}: {}", IoReason(.source))]
    Unreachable {
        /// The stub's address.
        address: String,
        /// Reason of the failure.
        source: io::Error,
    },
    /// The peer accepts the connection and sends nothing.
    #[error(
        "{address} accepts the connection and sends nothing for {seconds} s: it is not a GDB stub, or it already \
         serves another debugger"
    )]
    Silent {
        /// The stub's address.
        address: String,
        /// Time without an answer, s.
        seconds: u64,
    },
    /// The peer uses another protocol.
    #[error("{address} is not a GDB stub: its answer is not a packet of GDB's protocol")]
    NoStub {
        /// The stub's address.
        address: String,
    },
    /// The peer closes the connection.
    #[error("{address} closed the connection: it is not a GDB stub, or its VMM has ended")]
    Closed {
        /// The stub's address.
        address: String,
    },
    /// The stub serves another debugger.
    #[error("the GDB stub at {address} already serves another debugger; end that first")]
    InUse {
        /// The stub's address.
        address: String,
    },
    /// The machine was paused before vprof connected.
    #[error("the virtual machine at {address} is paused; resume it (QEMU: `cont`), then attach")]
    Paused {
        /// The stub's address.
        address: String,
    },
    /// The stub describes a machine of another architecture.
    #[error("the virtual machine at {address} has the architecture {architecture}; vprof supports x86-64")]
    Architecture {
        /// The stub's address.
        address: String,
        /// The architecture by GDB's name.
        architecture: String,
    },
    /// The stub does not describe its target.
    #[error("cannot read the description of registers (target.xml) from the GDB stub at {address}")]
    Description {
        /// The stub's address.
        address: String,
    },
    /// The stub's description lacks a register.
    #[error(
        "the GDB stub at {address} lacks the register {register}, which vprof needs to read the guest's memory; \
         QEMU's stub has it"
    )]
    Register {
        /// The stub's address.
        address: String,
        /// Name of the register.
        register: &'static str,
    },
    /// Memory cannot be read in any way.
    #[error(
        "cannot read physical memory through the GDB stub at {address}, nor from its VMM's process; use QEMU's stub, \
         or run vprof as root where the VMM runs"
    )]
    Memory {
        /// The stub's address.
        address: String,
    },
    /// The stub's answers lack something that is needed.
    #[error("cannot use the GDB stub at {address}: {what}")]
    Lacking {
        /// The stub's address.
        address: String,
        /// The missing feature, as a clause.
        what: &'static str,
    },
    /// The machine has more vCPUs than can be profiled.
    #[error("the virtual machine at {address} has {vcpus} vCPUs; vprof supports at most {most}")]
    TooMany {
        /// The stub's address.
        address: String,
        /// Number of vCPUs.
        vcpus: usize,
        /// Maximum number of vCPUs.
        most: usize,
    },
}

/// Displays an I/O error without its number.
struct IoReason<'a>(&'a io::Error);

impl fmt::Display for IoReason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.to_string();
        f.write_str(&text.split(" (os error").next().unwrap_or_default().to_lowercase())
    }
}
