//! Samples, combined by stack and root.

use std::collections::HashMap;

use profile::report::Recording;
use text::units::rounded;

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

/// Sums of stacks by their roots.
#[derive(Debug)]
pub(crate) struct Sums {
    /// Names above the outermost frame.
    pub roots: Vec<Vec<String>>,
    /// Index of the root, index of the stack, sum: in the order of both.
    pub stacks: Vec<(u32, u32, Sum)>,
}

impl Sums {
    /// Sums of all samples.
    pub(crate) fn new(recording: &Recording, root: Root) -> Self {
        let mut roots: Vec<Vec<String>> = Vec::new();
        let mut known: HashMap<Vec<String>, u32> = HashMap::new();
        let of_owner: Vec<u32> = recording
            .owners
            .iter()
            .map(|owner| {
                *known.entry(names::roots(recording, owner, root)).or_insert_with_key(|names| {
                    roots.push(names.clone());
                    u32::try_from(roots.len() - 1).unwrap_or(u32::MAX)
                })
            })
            .collect();
        let mut keyed: Vec<(u32, u32, Sum)> = Vec::new();
        // By stack, of which there are many, then by root, of which each stack has few.
        let mut first: Vec<Vec<(u32, u32)>> = vec![Vec::new(); recording.stacks.len()];
        for sample in &recording.samples {
            let (Some(&root), Some(list)) =
                (of_owner.get(sample.owner as usize), first.get_mut(sample.stack as usize))
            else {
                continue;
            };
            let place = match list.iter().find(|(of, _)| *of == root) {
                Some((_, place)) => *place,
                None => {
                    let place = u32::try_from(keyed.len()).unwrap_or(u32::MAX);
                    keyed.push((root, sample.stack, Sum::default()));
                    list.push((root, place));
                    place
                }
            };
            if let Some((_, _, sum)) = keyed.get_mut(place as usize) {
                sum.add(Sum { samples: 1, ns: sample.weight_ns });
            }
        }
        keyed.sort_unstable_by_key(|(root, stack, _)| (*root, *stack));
        Self { roots, stacks: keyed }
    }
}
