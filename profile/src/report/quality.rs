//! Quality of stack walks and of names.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use statistics::part;

use super::code::NONE;
use super::view::View;
use crate::rows::FrameKind;

/// Limit of files that are listed.
const MOST_FILES: usize = 1_000;

/// Ends of the walks over the stacks of the chosen samples.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StackWalks {
    /// Walks over kernel stacks.
    pub kernel: WalkEnds,
    /// Walks over user stacks.
    pub user: WalkEnds,
}

/// Counters of walks by their end.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct WalkEnds {
    /// Samples whose stack was walked.
    pub walks: u64,
    /// Walks that reached the stack's end.
    pub complete: u64,
    /// `complete / walks`, 0 without any.
    pub complete_share: f64,
    /// Complete walks with frames that were found without an unwind table: by the code of their callee, by
    /// frame pointer or by return address.
    pub doubtful: u64,
    /// Reasons of all other walks, the most frequent first.
    pub broken: Vec<WalkFailure>,
}

/// A reason that ended walks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WalkFailure {
    /// Reason in a few words.
    pub reason: String,
    /// Walks that it ended.
    pub walks: u64,
    /// Part of all walks of this kind.
    pub share: f64,
}

/// Names of the user code that was sampled.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct UserCode {
    /// Chosen samples in user code.
    pub samples: u64,
    /// Samples in code without a name: at most the start of its function is known.
    pub unnamed: u64,
    /// `unnamed / samples`, 0 without any.
    pub unnamed_share: f64,
    /// The files that were sampled, those with most unnamed samples first; at most 1,000.
    pub files: Vec<UserFile>,
}

/// A file of user code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserFile {
    /// Path in the guest.
    pub path: String,
    /// GNU build-id, hexadecimal.
    pub build_id: Option<String>,
    /// Source of its bytes, or the reason why they could not be read.
    pub read_from: Option<String>,
    /// Source of its functions' names.
    pub named_by: Option<String>,
    /// Samples in it.
    pub samples: u64,
    /// Samples in code without a name.
    pub unnamed: u64,
}

impl StackWalks {
    pub(super) fn new(view: &View<'_>) -> Self {
        let (mut kernel, mut user) = (EndCounts::default(), EndCounts::default());
        for &(leaf, samples) in &view.sums.leaves.list {
            let Some(node) = view.stacks.get(leaf.stack) else { continue };
            if node.kernel {
                kernel.add(node.kernel_broken, false, samples);
            }
            if node.user {
                user.add(node.user_broken, node.doubtful, samples);
            }
        }
        Self { kernel: kernel.ends(view), user: user.ends(view) }
    }
}

/// Walks by the function that gives the reason of their end.
#[derive(Debug, Default)]
struct EndCounts {
    complete: u64,
    doubtful: u64,
    broken: HashMap<u32, u64>,
}

impl EndCounts {
    fn add(&mut self, reason: u32, doubtful: bool, samples: u64) {
        if reason == NONE {
            self.complete += samples;
            self.doubtful += if doubtful { samples } else { 0 };
        } else {
            *self.broken.entry(reason).or_default() += samples;
        }
    }

    fn ends(self, view: &View<'_>) -> WalkEnds {
        let walks = self.complete + self.broken.values().sum::<u64>();
        let reason = |(reason, samples): (u32, u64)| WalkFailure {
            reason: view.code.functions[reason as usize].symbol.clone(),
            walks: samples,
            share: part(samples, walks),
        };
        let mut broken: Vec<WalkFailure> = self.broken.into_iter().map(reason).collect();
        broken.sort_by(|a, b| b.walks.cmp(&a.walks).then_with(|| a.reason.cmp(&b.reason)));
        let complete_share = part(self.complete, walks);
        WalkEnds { walks, complete: self.complete, complete_share, doubtful: self.doubtful, broken }
    }
}

impl UserCode {
    pub(super) fn new(view: &View<'_>) -> Self {
        let mut code = Self::default();
        let mut files: HashMap<u32, (u64, u64)> = HashMap::new();
        for &(leaf, samples) in &view.sums.leaves.list {
            let frame = &view.code.frames[leaf.frame as usize];
            if !matches!(frame.kind, FrameKind::User | FrameKind::Managed) {
                continue;
            }
            let unnamed = if frame.nameless { samples } else { 0 };
            code.samples += samples;
            code.unnamed += unnamed;
            if let Some(file) = frame.file {
                let counts = files.entry(file).or_default();
                *counts = (counts.0 + samples, counts.1 + unnamed);
            }
        }
        code.unnamed_share = part(code.unnamed, code.samples);
        let known = files.into_iter().filter_map(|(id, counts)| Some((view.tables.files.get(&id)?, counts)));
        code.files = known
            .map(|(file, (samples, unnamed))| UserFile {
                path: file.path.clone(),
                build_id: file.build_id.clone(),
                read_from: file.read_from.clone(),
                named_by: file.named_by.clone(),
                samples,
                unnamed,
            })
            .collect();
        code.files.sort_by(|a, b| {
            (b.unnamed, b.samples).cmp(&(a.unnamed, a.samples)).then_with(|| a.path.cmp(&b.path))
        });
        code.files.truncate(MOST_FILES);
        code
    }
}
