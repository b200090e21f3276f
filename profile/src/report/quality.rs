//! How well stacks were walked and code was named.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::code::NONE;
use super::view::View;
use crate::numbers::part;
use crate::rows::FrameKind;

/// At most so many files are listed.
const MOST_FILES: usize = 1_000;

/// How the walks over the stacks of the chosen samples ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Walks {
    /// Over kernel stacks.
    pub kernel: Ends,
    /// Over user stacks.
    pub user: Ends,
}

/// How walks ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Ends {
    /// Samples whose stack was walked.
    pub walks: u64,
    /// Those that reached the stack's end.
    pub complete: u64,
    /// `complete / walks`, 0 without any.
    pub complete_share: f64,
    /// Of the complete ones those with frames that were found by what their callee's code does, by frame pointer or by return
    /// address, where no unwind table tells.
    pub doubtful: u64,
    /// Why the others did not, the most frequent reason first.
    pub broken: Vec<Broken>,
}

/// A reason that ended walks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Broken {
    /// In a few words.
    pub reason: String,
    /// Walks that it ended.
    pub walks: u64,
    /// Part of all walks of this kind.
    pub share: f64,
}

/// What of the user code that was hit has a name.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct UserCode {
    /// Chosen samples in user code.
    pub samples: u64,
    /// Those in code without a name: at most the start of its function is known.
    pub unnamed: u64,
    /// `unnamed / samples`, 0 without any.
    pub unnamed_share: f64,
    /// The files that were hit, those with most unnamed samples first; at most 1,000.
    pub files: Vec<File>,
}

/// A file of user code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct File {
    /// Path in the guest.
    pub path: String,
    /// GNU build-id, hexadecimal.
    pub build_id: Option<String>,
    /// Where its bytes were found, or why not.
    pub read_from: Option<String>,
    /// What names its functions.
    pub named_by: Option<String>,
    /// Samples in it.
    pub samples: u64,
    /// Those in code without a name.
    pub unnamed: u64,
}

impl Walks {
    pub(super) fn new(view: &View<'_>) -> Self {
        let (mut kernel, mut user) = (Counts::default(), Counts::default());
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

/// Walks by the function that says why they ended.
#[derive(Debug, Default)]
struct Counts {
    complete: u64,
    doubtful: u64,
    broken: HashMap<u32, u64>,
}

impl Counts {
    fn add(&mut self, reason: u32, doubtful: bool, samples: u64) {
        if reason == NONE {
            self.complete += samples;
            self.doubtful += if doubtful { samples } else { 0 };
        } else {
            *self.broken.entry(reason).or_default() += samples;
        }
    }

    fn ends(self, view: &View<'_>) -> Ends {
        let walks = self.complete + self.broken.values().sum::<u64>();
        let reason = |(reason, samples): (u32, u64)| Broken {
            reason: view.code.functions[reason as usize].symbol.clone(),
            walks: samples,
            share: part(samples, walks),
        };
        let mut broken: Vec<Broken> = self.broken.into_iter().map(reason).collect();
        broken.sort_by(|a, b| b.walks.cmp(&a.walks).then_with(|| a.reason.cmp(&b.reason)));
        let complete_share = part(self.complete, walks);
        Ends { walks, complete: self.complete, complete_share, doubtful: self.doubtful, broken }
    }
}

impl UserCode {
    pub(super) fn new(view: &View<'_>) -> Self {
        let mut code = Self::default();
        let mut files: HashMap<u32, (u64, u64)> = HashMap::new();
        for &(leaf, samples) in &view.sums.leaves.list {
            let frame = &view.code.frames[leaf.frame as usize];
            if frame.kind != FrameKind::User {
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
            .map(|(file, (samples, unnamed))| File {
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
