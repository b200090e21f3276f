//! Why a GDB stub cannot be used.

use std::fmt;
use std::io;

/// Why a GDB stub cannot be used; the message is a whole sentence.
#[derive(Debug, thiserror::Error)]
pub enum GdbError {
    /// The address has no host or no port, or the host's name is unknown.
    #[error("{address} is no address of a GDB stub: give HOST:PORT, like localhost:1234")]
    Address {
        /// What was given.
        address: String,
    },
    /// Nobody listens.
    #[error(
        "nothing listens at {address}: let the VMM start its GDB stub there (QEMU: the option `-gdb tcp::PORT`, or \
         `gdbserver tcp::PORT` in its monitor)"
    )]
    Refused {
        /// Where.
        address: String,
    },
    /// It cannot be reached.
    #[error("can't connect to {address}: {}", Reason(.source))]
    Unreachable {
        /// Where.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// It accepts the connection and says nothing.
    #[error(
        "{address} takes the connection and says nothing for {seconds} s: it is no GDB stub, or one that has a debugger \
         already, which it serves one at a time"
    )]
    Silent {
        /// Where.
        address: String,
        /// How long was waited, s.
        seconds: u64,
    },
    /// It talks something else.
    #[error("{address} is no GDB stub: what it sends is no packet of GDB's protocol")]
    NoStub {
        /// Where.
        address: String,
    },
    /// It hangs up.
    #[error("{address} closed the connection: it is no GDB stub, or its VMM has ended")]
    Closed {
        /// Where.
        address: String,
    },
    /// It has a debugger.
    #[error("the GDB stub at {address} has a debugger already, and serves one at a time: end that first")]
    InUse {
        /// Where.
        address: String,
    },
    /// Its machine was paused before.
    #[error("the virtual machine at {address} is paused: let it run on (QEMU: `cont`), and attach then")]
    Paused {
        /// Where.
        address: String,
    },
    /// It describes another machine.
    #[error("the virtual machine at {address} is of the architecture {architecture}; vprof profiles x86-64")]
    Architecture {
        /// Where.
        address: String,
        /// By GDB's name.
        architecture: String,
    },
    /// It describes none.
    #[error(
        "the GDB stub at {address} does not describe its registers (target.xml) in a way that can be read"
    )]
    Description {
        /// Where.
        address: String,
    },
    /// Its description lacks a register.
    #[error(
        "the GDB stub at {address} does not give the register {register}, without which the guest's memory can't be \
         understood; QEMU's stub does"
    )]
    Register {
        /// Where.
        address: String,
        /// The register.
        register: &'static str,
    },
    /// Memory can be had in no way.
    #[error(
        "the GDB stub at {address} reads no physical memory, and the memory of its VMM can't be read on this machine: QEMU's \
         stub does, and so can root where the VMM runs"
    )]
    Memory {
        /// Where.
        address: String,
    },
    /// It answers what is no answer.
    #[error("the GDB stub at {address} does not do what is needed: {what}")]
    Lacking {
        /// Where.
        address: String,
        /// What it does not do.
        what: &'static str,
    },
    /// More vCPUs than can be profiled.
    #[error("the virtual machine at {address} has {vcpus} vCPUs; vprof profiles at most {most}")]
    TooMany {
        /// Where.
        address: String,
        /// How many it has.
        vcpus: usize,
        /// How many are possible.
        most: usize,
    },
}

/// The reason in a sentence, without the error's number.
struct Reason<'a>(&'a io::Error);

impl fmt::Display for Reason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.to_string();
        f.write_str(&text.split(" (os error").next().unwrap_or_default().to_lowercase())
    }
}
