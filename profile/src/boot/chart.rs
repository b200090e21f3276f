//! Stacks over time, for a flame chart.

use super::read::{BootInput, Hit};
use crate::store::{Profile, ProfileError};

/// Limit of calls per stack, outermost first.
const DEEPEST: usize = 24;
/// A gap between samples of a vCPU after which a piece ends, ns.
const LONGEST_GAP: u64 = 50_000_000;

/// A boot over time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Chart {
    /// End of the chart, s since the guest's first instruction.
    pub end_s: f64,
    /// Phases, all at depth 0, for a separate lane.
    pub phases: Vec<ChartPiece>,
    /// Pieces by vCPU; depth 0 is the process, the next its outermost function.
    pub vcpus: Vec<(u16, Vec<ChartPiece>)>,
}

/// A process or function from its first to its last sample in sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct ChartPiece {
    /// Process or function.
    pub name: String,
    /// True for kernel code.
    pub kernel: bool,
    /// Number of calls above it.
    pub depth: usize,
    /// Its beginning, s.
    pub from_s: f64,
    /// Its end, s.
    pub to_s: f64,
}

impl Chart {
    /// Reads the chart of a profile's boot.
    ///
    /// # Errors
    /// See [`ProfileError`].
    pub fn read(profile: &Profile) -> Result<Self, ProfileError> {
        profile.has_one_vm("boot")?;
        let input = BootInput::read(profile.connection()).map_err(|error| profile.error(&error))?;
        let mut vcpus: Vec<u16> = input.hits.iter().map(|hit| hit.vcpu).collect();
        vcpus.sort_unstable();
        vcpus.dedup();
        let lane = |bounds: &super::read::PhaseBounds| ChartPiece {
            name: bounds.name.to_owned(),
            kernel: !matches!(bounds.name, "initrd" | "userspace"),
            depth: 0,
            from_s: input.since(bounds.from_ns),
            to_s: input.since(bounds.to_ns),
        };
        let phases = input.phases();
        let parts = phases.iter().filter(|bounds| !matches!(bounds.name, "total" | "kernel"));
        Ok(Self {
            end_s: input.since(input.end_ns),
            phases: parts.map(lane).collect(),
            vcpus: vcpus.into_iter().map(|vcpu| (vcpu, pieces(&input, vcpu))).collect(),
        })
    }
}

fn path(input: &BootInput, hit: &Hit) -> Vec<(String, bool)> {
    let who = hit.instance.and_then(|instance| input.who.get(&instance)).filter(|who| who.pid != 0);
    let root = match who {
        Some(who) => (who.comm.clone(), false),
        None if hit.kernel_half => ("kernel".to_owned(), true),
        None => ("decompression".to_owned(), true),
    };
    let mut frames = input.code.frames(hit.stack);
    if frames.is_empty() && hit.kernel_half {
        frames.push(hit.frame);
    }
    let function = |frame: i64| {
        let kernel = input.code.functions.get(&frame).is_some_and(|function| function.kernel);
        (input.code.name(frame).to_owned(), kernel)
    };
    std::iter::once(root).chain(frames.into_iter().map(function)).take(DEEPEST).collect()
}

/// Joins samples that follow one another and have the same calls.
fn pieces(input: &BootInput, vcpu: u16) -> Vec<ChartPiece> {
    let mut done = Vec::new();
    let mut open: Vec<ChartPiece> = Vec::new();
    let mut last_ns = 0;
    let hits = input.hits.iter().filter(|hit| hit.vcpu == vcpu && hit.time_ns <= input.end_ns);
    for hit in hits {
        let gap = hit.time_ns.saturating_sub(last_ns) > LONGEST_GAP;
        let from_s = if gap { input.since(hit.time_ns) } else { input.since(last_ns) };
        let path = path(input, hit);
        let same = open.iter().zip(&path).take_while(|(piece, (name, _))| piece.name == *name).count();
        done.extend(open.drain(if gap { 0 } else { same }..));
        for (depth, (name, kernel)) in path.into_iter().enumerate().skip(open.len()) {
            open.push(ChartPiece { name, kernel, depth, from_s, to_s: from_s });
        }
        last_ns = hit.time_ns;
        open.iter_mut().for_each(|piece| piece.to_s = input.since(last_ns));
    }
    done.extend(open);
    done
}
