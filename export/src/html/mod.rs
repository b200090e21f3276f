//! One page without any other files: `vprof export --format html` (docs/page.md).
//!
//! The page is a file of HTML with one style, one script and one block of data. [`facts`] gathers the data of
//! `profile`'s readers, [`tree`] and [`samples`] write its samples in few bytes, [`block`] packs all of it.
//! The page unpacks the block, draws it, and counts again for each time that the user picks.
//!
//! Names come from the guest, so none of them is ever HTML or script: they are in the block only, which is
//! base64, and the script puts them into the page as text. A policy in the page's head lets the browser run
//! this script, by its hash, and nothing else, and load nothing at all.

mod block;
mod clean;
mod console;
mod document;
mod facts;
mod host;
mod lanes;
mod leaves;
mod page;
mod samples;
mod tree;
mod who;

pub use document::write_document;

use std::io::{self, Write};

use profile::boot::Boot;
use profile::report::{
    Annotation, Breakdown, By, ExactReport, Filter, FullReport, Recording, RecordingRequest, Report,
    ReportError,
};
use profile::rusage::Rusage;
use profile::stat::Stat;
use profile::store::QueryError;
use profile::{Profile, ProfileError};

use block::Block;
use host::Host;
use tree::{Functions, Tree};
use who::ProcessRows;

/// Request for a page.
#[derive(Debug, Clone, Default)]
pub struct PageRequest<'a> {
    /// vCPU and time; the page itself chooses processes, functions and modes.
    pub filter: Filter,
    /// Title of the profile.
    pub title: String,
    /// Title and profile to compare with.
    pub base: Option<(String, &'a Profile)>,
}

/// Error of writing a page.
#[derive(Debug, thiserror::Error)]
pub enum PageError {
    /// The profile could not be read.
    #[error(transparent)]
    Read(#[from] ReportError),
    /// A query on the profile failed.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// The page could not be written.
    #[error("cannot write the page: {0}")]
    Write(#[from] io::Error),
    /// The page chooses such a part by itself.
    #[error("a page has all processes, threads, functions and modes: leave {0} out and choose in the page")]
    Choice(&'static str),
}

impl From<ProfileError> for PageError {
    fn from(error: ProfileError) -> Self {
        Self::Read(error.into())
    }
}

/// Reason why a profile has no exact data.
struct NoExactData(String);

/// Kinds of rows that a page has tables of, besides processes.
const KINDS: [By; 9] = [
    By::Function,
    By::Process,
    By::Thread,
    By::Cgroup,
    By::Module,
    By::Line,
    By::Instruction,
    By::Syscall,
    By::Irq,
];

/// Further ones of a merged profile.
const MERGED_KINDS: [By; 2] = [By::Vm, By::Host];

/// Limit of functions whose code a page has: those with most samples.
const MOST_CODE: usize = 30;

/// Data of a page.
struct Sources {
    report: Report,
    /// By [`KINDS`], and of a merged profile by [`MERGED_KINDS`].
    breakdowns: Vec<Breakdown>,
    /// Code of the functions with most samples.
    code: Vec<Annotation>,
    /// The guest's boot, if the profile has it.
    boot: Option<Boot>,
    recording: Recording,
    rusage: Rusage,
    stat: Stat,
    exact: Result<ExactReport, NoExactData>,
    lanes: Vec<lanes::Lane>,
    /// `None` if the profile has no stacks of the host.
    host: Option<Host>,
    console: console::Console,
}

impl Sources {
    /// Reads all data of the same state of the profile.
    fn read(
        profile: &Profile,
        filter: &Filter,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, PageError> {
        let _snapshot = profile.snapshot()?;
        let recording = record(profile, filter, progress)?;
        let mut kinds = KINDS.to_vec();
        if profile.is_merged()? {
            kinds.extend(MERGED_KINDS);
        }
        let FullReport { report, breakdowns, hottest } =
            FullReport::read(profile, filter, &kinds, MOST_CODE)?;
        let boot = if Boot::is_recorded(profile)? { Some(Boot::read(profile)?) } else { None };
        let exact = match ExactReport::read(profile, &[]) {
            Ok(exact) => Ok(exact),
            Err(ReportError::NoExact(reason)) => Err(NoExactData(reason)),
            Err(error) => return Err(error.into()),
        };
        let host = Host::read(profile, filter, progress)?;
        let ticks = host.as_ref().map(|host| host.ticks.as_slice());
        Ok(Self {
            lanes: lanes::read(profile, &report, &recording, ticks)?,
            host,
            console: console::read(profile)?,
            rusage: match Rusage::read(profile) {
                Err(ProfileError::Merged { .. }) => Rusage::default(),
                read => read?,
            },
            stat: Stat::read(profile)?,
            recording,
            report,
            breakdowns,
            code: hottest,
            boot,
            exact,
        })
    }
}

fn record(
    profile: &Profile,
    filter: &Filter,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Recording, ReportError> {
    let request = RecordingRequest { filter: filter.clone(), idle: false, host: false };
    Recording::read(profile, &request, progress)
}

/// Writes one page of HTML that shows the profile and needs no other files. Calls `progress` from time to
/// time with the number of samples read and the number of all.
///
/// # Errors
/// See [`PageError`]. Output before an error is not complete.
pub fn write_page(
    profile: &Profile,
    request: &PageRequest<'_>,
    out: &mut dyn Write,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), PageError> {
    check(&request.filter)?;
    let sources = Sources::read(profile, &request.filter, progress)?;
    let mut functions = Functions::default();
    let mut tree = Tree::default();
    let mut process_rows = ProcessRows::new(&sources.report);

    let time = samples::TimeBuckets::new(&sources.recording, &sources.report.filter);
    let mut picked =
        samples::Samples::new(&sources.recording, time, &mut functions, &mut tree, &mut process_rows);
    let asleep = sources.exact.as_ref().ok();
    let asleep = asleep.map(|exact| leaves::asleep(exact, &mut functions, &mut tree, &mut process_rows));
    let base = match &request.base {
        Some((name, profile)) => {
            let recording = record(profile, &Filter::default(), progress)?;
            Some((name, leaves::of_recording(&recording, &mut functions, &mut tree, &mut process_rows)))
        }
        None => None,
    };

    let on_host = sources
        .host
        .as_ref()
        .map(|host| leaves::under_vcpus(&host.recording, &mut functions, &mut tree, &mut process_rows));

    let mut facts = facts::collect(sources, &request.title, &mut functions, &process_rows);
    let order = tree.order();
    let mut block = Block::default();
    block.section("nodes", tree.written(&order));
    picked.renumber(&order);
    picked.write(&mut block, &mut facts);
    if let Some(asleep) = &asleep {
        facts.leaves("offCpu", asleep);
        block.section("offCpu", asleep.written(&order));
    }
    if let Some(on_host) = &on_host {
        facts.leaves("host", on_host);
        block.section("host", on_host.written(&order));
    }
    if let Some((name, leaves)) = &base {
        facts.base(name, leaves);
        facts.leaves("base", leaves);
        block.section("base", leaves.written(&order));
    }
    facts.lists(&functions, &process_rows, order.len() - 1);
    page::write(&block.packed(facts.finish())?, out)?;
    Ok(out.flush()?)
}

/// Checks that the filter chooses only vCPU and time: the page itself chooses processes, functions and modes.
fn check(filter: &Filter) -> Result<(), PageError> {
    let Filter { process, tree, instance, cgroup, thread, symbol, modes, .. } = filter;
    let options = [
        ("--process", !process.is_empty()),
        ("--tree-of", tree.is_some()),
        ("--instance", instance.is_some()),
        ("--cgroup", cgroup.is_some()),
        ("--thread", thread.is_some()),
        ("--symbol", symbol.is_some()),
        ("--mode", !modes.is_empty()),
    ];
    match options.into_iter().find(|(_, given)| *given) {
        Some((option, _)) => Err(PageError::Choice(option)),
        None => Ok(()),
    }
}
