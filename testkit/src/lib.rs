//! Test support: fixtures and drivers that the tests of several crates share, and plots of what is measured.
//!
//! Never a dependency of the program.

mod cache;
mod cpio;
pub mod elf;
pub mod events;
mod eventually;
mod kernel;
mod needs;
mod plot;
mod process;
mod python;
mod receiver;
mod repetitions;
mod terminal;

pub use cache::{cache_directory, cached};
pub use cpio::{CpioEntry, cpio_archive};
pub use eventually::eventually;
pub use kernel::bz_image;
pub use needs::{ALLOW_MISSING, FILES, InstalledSign, PROGRAMS, TestNeed, missing, python_module, tool};
pub use plot::{LinePlot, PlotLine, PlotScale};
pub use process::{OwnProcess, resident_kb};
pub use python::python_packages;
pub use receiver::{HttpAnswer, HttpReceiver, HttpRequest};
pub use repetitions::{INCLUDE_IGNORED, repetitions};
pub use terminal::Terminal;
