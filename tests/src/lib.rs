//! Boots a guest under the real `vprof` binary and looks at what came out.
//!
//! A test is a few lines: build a [`Guest`], run it, ask its [`Run`].
//!
//! ```no_run
//! use vprof_tests::Guest;
//! let run = Guest::demo().command(["spin", "--seconds", "2"]).run().succeeded();
//! assert!(run.report().process("spin").share > 0.5);
//! ```
//!
//! A guest runs alone, since two would share the host's CPUs and blur each other's time, unless its test says that it
//! does not measure ([`Guest::beside_others`]).

pub mod corpus;
mod emulated;
mod image;
mod kernel;
mod kvm_host;
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
pub use image::ImageFiles;
pub use kernel::{RemovedPart, kernel_of, kernel_without};
pub use kvm_host::{KvmHost, ProfilerRun, ScriptOutput, on_kvm_host};
pub use network::GuestNetwork;
pub use report::{FunctionRow, NamedRow, ProcessRow, Report, VcpuRow, WalkCounts};
pub use run::{ActiveRun, Run};
pub use testkit::Terminal;
use testkit::events::{EmulationFailure, repeated};

use turn::GuestTurn;

/// A query of the frames at tripwires, where the guest is while exact mode switches to the host and back.
pub const FRAMES_AT_PROBES: &str = "SELECT id FROM frame WHERE kind = 'kernel' AND \"offset\" < 10 \
    AND (symbol LIKE 'finish_task_switch%' OR symbol IN ('try_to_wake_up', 'wake_up_new_task', 'release_task', \
    'irq_enter_rcu', 'irq_exit_rcu', '__common_interrupt', '__text_poke'))";

/// How often a guest is run again because the portable host failed.
const REPEATS: usize = 2;

/// What one guest of a test is like, and how `vprof run` is called on it.
#[derive(Debug, Clone)]
pub struct Guest {
    image: PathBuf,
    verb: &'static str,
    options: Vec<OsString>,
    command: Vec<OsString>,
    limit: Duration,
    write_through: bool,
    in_place: bool,
    beside_others: bool,
}

/// A guest takes far less; this only keeps a broken one from holding up everything else.
const RUN_LIMIT: Duration = Duration::from_secs(240);

impl Guest {
    /// The demo image with Debian's default cloud kernel.
    pub fn demo() -> Self {
        Self::image(images().join("demo.img"))
    }

    /// The demo image with another kernel, by what its file is named after: a series, a flavour or both, like `6.12`,
    /// `rt` or `newest-rt`.
    pub fn demo_with_kernel(kernel: &str) -> Self {
        Self::image(images().join(format!("demo-{kernel}.img")))
    }

    /// An unmodified Debian with systemd, on a disk with partitions.
    pub fn debian() -> Self {
        Self::distribution(images().join("debian.img"))
    }

    /// The release after that one, on a disk in qcow2.
    pub fn debian_trixie() -> Self {
        Self::distribution(images().join("debian-trixie.qcow2"))
    }

    /// An image with a whole system.
    pub fn distribution(image: impl Into<PathBuf>) -> Self {
        // It starts a whole system, which takes an emulated host on a slow machine minutes.
        Self { limit: 2 * RUN_LIMIT, ..Self::image(image) }
    }

    /// Any image or kernel.
    pub fn image(image: impl Into<PathBuf>) -> Self {
        Self {
            image: image.into(),
            verb: "run",
            options: Vec::new(),
            command: Vec::new(),
            limit: RUN_LIMIT,
            write_through: false,
            in_place: false,
            beside_others: false,
        }
    }

    /// May run at the same time as guests of other tests: nothing that the test looks at depends on how fast it runs.
    pub fn beside_others(mut self) -> Self {
        self.beside_others = true;
        self
    }

    /// Is judged by `vprof boot` instead.
    pub fn boot(mut self) -> Self {
        self.verb = "boot";
        self
    }

    /// Adds options of `vprof run`.
    pub fn options<S: AsRef<OsStr>>(mut self, options: impl IntoIterator<Item = S>) -> Self {
        self.options.extend(options.into_iter().map(|o| o.as_ref().to_owned()));
        self
    }

    /// The command that the guest runs, after which the run ends.
    pub fn command<S: AsRef<OsStr>>(mut self, argv: impl IntoIterator<Item = S>) -> Self {
        self.command = argv.into_iter().map(|a| a.as_ref().to_owned()).collect();
        self
    }

    /// A shell script that the guest runs.
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

    /// Runs the guest to its end; again, and saying so, where the portable host's own emulation failed (docs/limits.md).
    pub fn run(self) -> Run {
        for _ in 0..REPEATS {
            match self.clone().start().finish_unless_frozen() {
                Ok(run) => match run.emulation_failed() {
                    Some(failure) => repeated(failure, &run.stderr),
                    None => return run,
                },
                Err(state) => repeated(EmulationFailure::Frozen, &state),
            }
        }
        self.start().finish()
    }

    /// Does what runs guests of its own, while no other guest runs.
    pub fn alone<T>(work: impl FnOnce() -> T) -> T {
        let _turn = GuestTurn::alone();
        work()
    }

    /// Starts the guest.
    pub fn start(self) -> ActiveRun {
        let turn = if self.beside_others { GuestTurn::beside_others() } else { GuestTurn::alone() };
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

/// Asserts that `part` of `all` samples is the share `truth`, as well as chance allows.
///
/// # Panics
/// It is not.
pub fn assert_share(what: &str, part: i64, all: i64, truth: f64) {
    let found = part as f64 / all as f64;
    // 3.3 standard errors: one time in a thousand it may lie outside by chance.
    let bound = 3.3 * (truth * (1.0 - truth) / all as f64).sqrt();
    assert!((found - truth).abs() <= bound, "{what}: {found} of {all} samples is not {truth} +- {bound}");
}

/// The `vprof` binary under test: `VPROF_BIN`, else built now.
pub fn vprof() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| match std::env::var_os("VPROF_BIN") {
        Some(path) => path.into(),
        None => guest_images::static_binary("vprof").expect("the static vprof"),
    })
}

/// The directory of the guest images; `cargo xtask test` builds them.
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
