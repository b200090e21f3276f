//! Samples, combined by stack and root.

use std::collections::HashMap;

use display::units::rounded;
use profile::report::{RecordedSample, Recording};

use crate::{Count, Root, names};

/// Samples of one stack.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Sum {
    /// Samples.
    pub samples: u64,
    /// Their time, ns.
    pub ns: f64,
}

impl Sum {
    /// Adds the sums of `other`.
    pub(crate) fn add(&mut self, other: Self) {
        self.samples += other.samples;
        self.ns += other.ns;
    }

    /// Returns a whole number: samples or us, at least 1.
    pub(crate) fn number(self, count: Count) -> u64 {
        match count {
            Count::Samples => self.samples,
            Count::Time => rounded(self.ns / 1e3),
        }
        .max(1)
    }
}

/// Properties by which formats with labels distinguish samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SampleKey {
    pub stack: u32,
    pub host_stack: Option<u32>,
    pub owner: u32,
    pub vcpu: u16,
    /// Name of the mode.
    pub mode: &'static str,
    pub syscall: Option<u32>,
    pub interrupt: Option<u32>,
}

impl SampleKey {
    fn new(sample: &RecordedSample) -> Self {
        let RecordedSample { stack, host_stack, owner, vcpu, syscall, interrupt, .. } = *sample;
        Self { stack, host_stack, owner, vcpu, mode: sample.mode.name(), syscall, interrupt }
    }

    /// Returns the frames, the innermost first: those of the host are the callers of the guest's.
    pub(crate) fn frames(self, recording: &Recording) -> impl Iterator<Item = u32> {
        let host = self.host_stack.into_iter().flat_map(|stack| recording.frames_of(stack));
        recording.frames_of(self.stack).chain(host)
    }
}

/// Returns the sums of all samples, in the order of their keys.
pub(crate) fn keyed(recording: &Recording) -> Vec<(SampleKey, Sum)> {
    let mut sums: HashMap<SampleKey, Sum> = HashMap::new();
    for sample in &recording.samples {
        sums.entry(SampleKey::new(sample)).or_default().add(Sum { samples: 1, ns: sample.weight_ns });
    }
    let mut sums: Vec<(SampleKey, Sum)> = sums.into_iter().collect();
    sums.sort_unstable_by_key(|(key, _)| *key);
    sums
}

/// Samples of one stack below one root.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct SummedStack {
    /// Index of the root.
    pub root: u32,
    /// Its parts; that of the host only with [`Root::Vcpu`].
    pub parts: StackParts,
    /// Sum of the samples.
    pub sum: Sum,
}

/// Parts of the stack of a sample, by their indexes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct StackParts {
    /// Stack of the host with which the thread came to where it was.
    pub host: Option<u32>,
    /// Stack of the guest below that; `None` outside of the guest.
    pub guest: Option<u32>,
}

impl StackParts {
    pub(crate) fn new(recording: &Recording, sample: &RecordedSample) -> Self {
        let owner = recording.owners.get(sample.owner as usize);
        match owner.and_then(|owner| owner.place) {
            Some(_) => Self { host: Some(sample.stack), guest: None },
            None => Self { host: sample.host_stack, guest: Some(sample.stack) },
        }
    }

    /// Returns the stack as one part, without that of the host below a guest's.
    pub(crate) fn only(stack: u32) -> Self {
        Self { host: None, guest: Some(stack) }
    }
}

/// Sums of stacks by their roots.
#[derive(Debug)]
pub(crate) struct Sums {
    /// Names above the outermost frame; with [`Root::Vcpu`], the last one is between the frames of the host
    /// and the others.
    pub roots: Vec<Vec<String>>,
    /// In the order of their indexes.
    pub stacks: Vec<SummedStack>,
}

impl Sums {
    /// Sums of all samples.
    pub(crate) fn new(recording: &Recording, of_root: Root) -> Self {
        let mut roots: Vec<Vec<String>> = Vec::new();
        let mut known: HashMap<Vec<String>, u32> = HashMap::new();
        // Owners have the same roots on all vCPUs, unless the vCPU is one of them.
        let mut of_owner: HashMap<(u32, u16), Option<u32>> = HashMap::new();
        let mut root_of = |owner: u32, vcpu: u16| {
            let vcpu = if of_root == Root::Vcpu { vcpu } else { 0 };
            *of_owner.entry((owner, vcpu)).or_insert_with(|| {
                let names = names::roots(recording, recording.owners.get(owner as usize)?, vcpu, of_root);
                Some(*known.entry(names).or_insert_with_key(|names| {
                    roots.push(names.clone());
                    u32::try_from(roots.len() - 1).unwrap_or(u32::MAX)
                }))
            })
        };
        let mut keyed: Vec<SummedStack> = Vec::new();
        // Indexes of sums by stack, of which there are many; each has few roots and stacks of the host.
        let mut of_stack: Vec<Vec<usize>> = vec![Vec::new(); recording.stacks.len()];
        for sample in &recording.samples {
            let (Some(root), Some(places)) =
                (root_of(sample.owner, sample.vcpu), of_stack.get_mut(sample.stack as usize))
            else {
                continue;
            };
            let parts = match of_root {
                Root::Vcpu => StackParts::new(recording, sample),
                Root::Process | Root::Thread | Root::None => StackParts::only(sample.stack),
            };
            let is_known = |place: &&usize| {
                keyed.get(**place).is_some_and(|summed| (summed.root, summed.parts) == (root, parts))
            };
            let place = match places.iter().find(is_known) {
                Some(&place) => place,
                None => {
                    places.push(keyed.len());
                    keyed.push(SummedStack { root, parts, sum: Sum::default() });
                    keyed.len() - 1
                }
            };
            if let Some(summed) = keyed.get_mut(place) {
                summed.sum.add(Sum { samples: 1, ns: sample.weight_ns });
            }
        }
        keyed.sort_unstable_by_key(|summed| (summed.root, summed.parts));
        Self { roots, stacks: keyed }
    }
}
