//! Boots a guest under the real `vprof` binary and reads its profile.
//!
//! A test is a few lines: build a [`Guest`], run it, read its [`Run`].
//!
//! ```no_run
//! use vprof_tests::Guest;
//! let run = Guest::demo().command(["spin", "--seconds", "2"]).run().succeeded();
//! assert!(run.report().process("spin").share > 0.5);
//! ```
//!
//! A guest runs alone because two would share the host's CPUs and blur each other's time. Two run at once if
//! their tests measure nothing ([`Guest::next_to_others`]), or if each needs one CPU only and gets it for
//! itself ([`Guest::on_own_cpu`]).

pub mod corpus;
mod emulated;
mod image;
mod kernel;
mod kvm_host;
pub mod language;
mod network;
mod report;
mod run;
mod turn;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

pub use emulated::EmulatedGuest;
pub use image::Ext4Image;
pub use kernel::{RemovedPart, kernel_of, kernel_without};
pub use kvm_host::{KvmHost, ProfilerRun, ScriptOutput, on_kvm_host, on_kvm_host_with, once_on_kvm_host};
pub use network::GuestNetwork;
pub use report::{FunctionRow, NamedRow, ProcessRow, Report, VcpuRow, WalkCounts};
pub use run::{ActiveRun, Run};
pub use testkit::Terminal;
use testkit::events::{EmulationFailure, repeated};

use turn::{GuestTurn, Sharing};

/// SQL query of the frames at probes, where the guest is while exact mode switches to the host and back.
pub const FRAMES_AT_PROBES: &str = "SELECT id FROM frame WHERE kind = 'kernel' AND \"offset\" < 10 \
    AND (symbol LIKE 'finish_task_switch%' OR symbol IN ('try_to_wake_up', 'wake_up_new_task', 'release_task', \
    'irq_enter_rcu', 'irq_exit_rcu', '__common_interrupt', '__text_poke'))";

/// Maximum number of repeats of a guest because the portable host failed.
const REPEATS: usize = 2;

/// Configuration of a test's guest, and arguments of `vprof run`.
#[derive(Debug, Clone)]
pub struct Guest {
    image: PathBuf,
    verb: &'static str,
    options: Vec<OsString>,
    command: Vec<OsString>,
    limit: Duration,
    write_through: bool,
    in_place: bool,
    sharing: Sharing,
}

/// Limit of a guest, which takes far less: a broken guest must not delay all other tests.
const RUN_LIMIT: Duration = Duration::from_secs(240);

impl Guest {
    /// Returns the demo image with Debian's default cloud kernel.
    pub fn demo() -> Self {
        Self::image(images().join("demo.img"))
    }

    /// Returns the demo image with another kernel, by the part of its file's name: a series, a flavour or
    /// both, like `6.12`, `rt` or `newest-rt`.
    pub fn demo_with_kernel(kernel: &str) -> Self {
        Self::image(images().join(format!("demo-{kernel}.img")))
    }

    /// Returns an unmodified Debian with systemd, on a disk with partitions.
    pub fn debian() -> Self {
        Self::distribution(images().join("debian.img"))
    }

    /// Returns the next release of Debian, on a disk in qcow2.
    pub fn debian_trixie() -> Self {
        Self::distribution(images().join("debian-trixie.qcow2"))
    }

    /// Returns an image with a complete system.
    pub fn distribution(image: impl Into<PathBuf>) -> Self {
        // It starts a whole system, which takes an emulated host on a slow machine minutes.
        Self { limit: 2 * RUN_LIMIT, ..Self::image(image) }
    }

    /// Returns any image or kernel.
    pub fn image(image: impl Into<PathBuf>) -> Self {
        Self {
            image: image.into(),
            verb: "run",
            options: Vec::new(),
            command: Vec::new(),
            limit: RUN_LIMIT,
            write_through: false,
            in_place: false,
            sharing: Sharing::Alone,
        }
    }

    /// Lets the guest run at the same time as guests of other tests: no assertion of its test depends on its
    /// speed.
    pub fn next_to_others(mut self) -> Self {
        self.sharing = Sharing::NextToOthers;
        self
    }

    /// Lets the guest, which has one vCPU, run at the same time as other such guests, each on a CPU of this
    /// machine: assertions may depend on its speed.
    pub fn on_own_cpu(mut self) -> Self {
        self.sharing = Sharing::OwnCpu;
        self
    }

    /// Uses `vprof boot` instead of `vprof run`.
    pub fn boot(mut self) -> Self {
        self.verb = "boot";
        self
    }

    /// Adds options of `vprof run`.
    pub fn options<S: AsRef<OsStr>>(mut self, options: impl IntoIterator<Item = S>) -> Self {
        self.options.extend(options.into_iter().map(|o| o.as_ref().to_owned()));
        self
    }

    /// Sets the command that the guest runs, after which the run ends.
    pub fn command<S: AsRef<OsStr>>(mut self, argv: impl IntoIterator<Item = S>) -> Self {
        self.command = argv.into_iter().map(|a| a.as_ref().to_owned()).collect();
        self
    }

    /// Sets a shell script that the guest runs.
    pub fn script(self, script: &str) -> Self {
        self.command(["sh", "-c", script])
    }

    /// Lets the guest write to its disks; the image itself is then a private copy.
    pub fn write_through(mut self) -> Self {
        self.write_through = true;
        self
    }

    /// Lets the guest write to its image, which is the test's own.
    pub fn in_place(mut self) -> Self {
        self.in_place = true;
        self
    }

    /// Runs the guest to its end. Repeats, and reports, a run in which the portable host's emulation failed
    /// (docs/limits.md).
    pub fn run(self) -> Run {
        self.run_watched(|_| ()).0
    }

    /// Runs the guest like [`Guest::run`], and calls `watch` at the start of each run. Returns what it
    /// returned for the run that counts.
    pub fn run_watched<T>(self, watch: impl Fn(&ActiveRun) -> T) -> (Run, T) {
        let start = || {
            let running = self.clone().start();
            let watched = watch(&running);
            (running, watched)
        };
        let attempt = || {
            let (running, watched) = start();
            let run =
                running.finish_unless_frozen().map_err(|frozen| (EmulationFailure::Frozen, frozen.state))?;
            match run.emulation_failed() {
                Some(failure) => Err((failure, run.stderr)),
                None => Ok((run, watched)),
            }
        };
        unless_emulation_fails(attempt).unwrap_or_else(|| {
            let (running, watched) = start();
            (running.finish(), watched)
        })
    }

    /// Calls `work`, which runs guests itself, while no other guest runs.
    pub fn alone<T>(work: impl FnOnce() -> T) -> T {
        let _turn = GuestTurn::take(Sharing::Alone, RUN_LIMIT);
        work()
    }

    /// Starts the guest.
    pub fn start(self) -> ActiveRun {
        let turn = GuestTurn::take(self.sharing, self.limit);
        let directory = tempfile::tempdir().expect("a temporary directory");
        let profile = directory.path().join("out.vprof");
        let mut command = Command::new(vprof());
        command.arg(self.verb);
        // Guests of tests never change the image that all of them share.
        if self.write_through {
            let copy = directory.path().join("image");
            std::fs::copy(&self.image, &copy).expect("room for a copy of the image");
            command.arg(copy);
        } else if self.in_place {
            command.arg(&self.image);
        } else {
            command.arg(&self.image).arg("--snapshot");
        }
        command
            .arg("-o")
            .arg(&profile)
            .arg("--control")
            .arg(profile.with_extension("sock"))
            .args(&self.options);
        if !self.command.is_empty() {
            command.arg("--").args(&self.command);
        }
        command.env("VPROF_PORTABLE_HOST", images().join("portable-host")).stdin(Stdio::null());
        ActiveRun::spawn(command, directory, profile, self.limit, turn)
    }
}

/// Makes up to [`REPEATS`] attempts, and reports those in which the emulation failed. `None` if it always
/// did.
fn unless_emulation_fails<T>(
    mut attempt: impl FnMut() -> Result<T, (EmulationFailure, String)>,
) -> Option<T> {
    let once = |_| attempt().map_err(|(failure, state)| repeated(failure, &state)).ok();
    (0..REPEATS).find_map(once)
}

/// Asserts that `part` of `all` samples is the share `expected`, within the bounds of chance.
///
/// # Panics
/// The share is out of bounds.
pub fn assert_share(what: &str, part: i64, all: i64, expected: f64) {
    let found = part as f64 / all as f64;
    // Four standard errors: a run of the tests compares ten shares, and in one of 1,600 runs chance puts one
    // of them beyond.
    let bound = 4.0 * (expected * (1.0 - expected) / all as f64).sqrt();
    assert!(
        (found - expected).abs() <= bound,
        "{what}: {found} of {all} samples is not {expected} +- {bound}"
    );
}

/// Returns the `vprof` binary under test: `VPROF_BIN`, else one that is built now.
pub fn vprof() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| match std::env::var_os("VPROF_BIN") {
        Some(path) => path.into(),
        None => guest_images::static_binary("vprof").expect("the static vprof"),
    })
}

/// Returns the directory of the guest images, which `cargo xtask test` builds.
pub fn images() -> &'static Path {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| {
        let directory = std::env::var_os("VPROF_GUEST_DIR")
            .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/guest"), PathBuf::from);
        assert!(
            directory.join("demo.img").exists(),
            "no guest images in {}: run `cargo xtask test`, which builds them",
            directory.display()
        );
        directory
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_run_again_only_if_the_emulation_fails() {
        let attempts = |failures: usize| {
            let mut made = 0;
            let made_it = unless_emulation_fails(|| {
                made += 1;
                if made <= failures { Err((EmulationFailure::Frozen, String::new())) } else { Ok(made) }
            });
            (made, made_it)
        };
        assert_eq!([0, 1, 2].map(attempts), [(1, Some(1)), (2, Some(2)), (2, None)]);
    }
}
