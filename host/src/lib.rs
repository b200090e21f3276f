//! A run of a guest: on this machine's KVM or in the portable host, and the control socket by which it is
//! steered.
//!
//! ```text
//!                       vprof run (outer)                  portable host: QEMU, TCG with SVM
//!  vprof ctl, top  <-- control socket --> +---------+  port   +--------------------------+
//!    client                 server        |  link   | <-----> | vprof as /init: a `link` |
//!                                         +---------+ frames  +--------------------------+
//!                                           |     |                        |
//!                                     on KVM|     |in the portable host    |
//!                                      guest|     |portable::outer         | portable::inner, guest
//! ```
//!
//! [`spec`] is a run as plain data, [`protocol`] everything that crosses a wire, [`guest`] the one way to run
//! a guest, [`link`] its connection with a watcher, [`choice`] the decision where it runs.

#![warn(clippy::print_stdout, clippy::print_stderr)]

pub mod attached;
pub mod choice;
mod connection;
pub mod guest;
pub mod half;
pub mod link;
pub mod network;
mod output;
pub mod portable;
mod process;
pub mod protocol;
pub mod reader;
mod relay;
pub mod resident;
pub mod spec;
mod stage;
pub mod systemd;
mod tcg;

pub use attached::AttachedError;
pub use choice::HostError;
pub use guest::GuestError;
pub use half::HalfError;
pub use network::NetworkError;
pub use portable::PortableError;
pub use process::{ForkedChild, fork_child};
pub use reader::ReaderError;
pub use stage::Stage;
