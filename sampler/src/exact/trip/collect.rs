//! Collector's side of watched functions: calls become rows.

use std::collections::HashMap;

use display::clean::escaped;
use guest_linux::{ArgumentKind, StackCopy, WatchedFunction};
use profile::rows::{Batch, TripArgumentRow, TripCallRow, TripRow, TripTextRow};

use super::record::{ARGUMENTS, TripMessage, TripRecord, TripRingEnds};
use crate::resolve::resolver::SampleResolver;

/// Different texts that are kept, at most: the guest chooses them.
const MAX_TEXTS: usize = 65_536;

/// Collector of the calls of all vCPUs.
#[derive(Debug, Default)]
pub(crate) struct TripCollector {
    /// Names that were requested.
    names: Vec<String>,
    ends: Vec<TripRingEnds>,
    watched: Vec<WatchedFunction>,
    /// Row ids of texts.
    texts: HashMap<String, u32>,
    zero_ns: u64,
}

impl TripCollector {
    pub(crate) fn new(names: Vec<String>, ends: Vec<TripRingEnds>, zero_ns: u64) -> Self {
        Self { names, ends, zero_ns, ..Self::default() }
    }

    /// Returns the names that were requested.
    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    /// Adds rows of the functions that are watched from now on.
    pub(crate) fn begin(&mut self, watched: Vec<WatchedFunction>, batch: &mut Batch) {
        for (function, trip) in watched.iter().zip(1..) {
            for (argument, number) in function.arguments.iter().flatten().zip(1..) {
                let values = match &argument.kind {
                    ArgumentKind::Enum(_, values) => values.clone(),
                    _ => Vec::new(),
                };
                batch.trip_arguments.push(TripArgumentRow {
                    trip,
                    number,
                    name: argument.name.clone(),
                    type_name: argument.type_name.clone(),
                    kind: kind_name(&argument.kind).to_owned(),
                    values,
                });
            }
        }
        self.watched = watched;
        self.flush(batch);
    }

    /// Takes the calls out of the rings.
    pub(crate) fn drain(&mut self, resolver: &mut SampleResolver, batch: &mut Batch) {
        for vcpu in 0..self.ends.len() {
            // No more than there are now: a ring that fills as fast as it is drained must not starve the
            // others.
            let waiting = self.ends.get(vcpu).map_or(0, |ends| ends.calls.slots());
            for _ in 0..waiting {
                let Some(message) = self.ends.get_mut(vcpu).and_then(|ends| ends.calls.pop().ok()) else {
                    break;
                };
                let TripMessage { record, stack } = message;
                self.call(vcpu, &record, stack.as_deref(), resolver, batch);
                if let (Some(stack), Some(ends)) = (stack, self.ends.get_mut(vcpu)) {
                    // The pool has room for all of its buffers.
                    drop(ends.pool.push(stack));
                }
            }
        }
    }

    fn call(
        &mut self,
        vcpu: usize,
        record: &TripRecord,
        stack: Option<&StackCopy>,
        resolver: &mut SampleResolver,
        batch: &mut Batch,
    ) {
        let place = resolver.call(&record.sample, stack, batch);
        let arguments = self.arguments(record, batch);
        batch.trip_calls.push(TripCallRow {
            trip: u32::from(record.number) + 1,
            vcpu: u8::try_from(vcpu).unwrap_or(u8::MAX),
            time_ns: record.sample.time_ns.saturating_sub(self.zero_ns),
            mode: place.mode,
            instance: place.instance,
            tid: place.tid,
            stack: place.stack,
            weight: place.stack.map_or(0, |_| record.weight),
            arguments,
        });
    }

    /// Returns the values of the arguments by their types.
    fn arguments(&mut self, record: &TripRecord, batch: &mut Batch) -> [Option<i64>; ARGUMENTS] {
        let mut values = [None; ARGUMENTS];
        let function = self.watched.get(usize::from(record.number));
        let described = function.and_then(|function| function.arguments.as_ref());
        let kinds: Vec<&ArgumentKind> =
            described.iter().flat_map(|all| all.iter()).map(|argument| &argument.kind).collect();
        let mut texts = record.texts.iter();
        for ((value, register), kind) in values.iter_mut().zip(record.arguments).zip(kinds) {
            *value = match kind {
                ArgumentKind::Text if register == 0 => None,
                ArgumentKind::Text => {
                    let copied = texts.next().and_then(|copy| copy.text());
                    Some(copied.map_or(0, |text| i64::from(text_id(&mut self.texts, text, batch))))
                }
                other => Some(other.value(register)),
            };
        }
        values
    }

    /// Adds rows of the sums so far.
    pub(crate) fn flush(&self, batch: &mut Batch) {
        if self.watched.is_empty() {
            return;
        }
        let first = batch.trips.len();
        for (index, function) in self.watched.iter().enumerate() {
            let sum = |counter: fn(&super::record::TripCounters) -> &std::sync::atomic::AtomicU64| {
                self.ends.iter().map(|ends| ends.load(index, counter)).sum()
            };
            batch.trips.push(TripRow {
                id: u32::try_from(index + 1).unwrap_or(u32::MAX),
                symbol: function.name.clone(),
                address: function.address.0,
                typed: function.arguments.is_some(),
                calls: sum(|counters| &counters.calls),
                lost: sum(|counters| &counters.lost),
                stacks_missed: sum(|counters| &counters.stacks_missed),
                cost_ns: sum(|counters| &counters.cost_ns),
                switching_ns: sum(|counters| &counters.switching_ns),
                switching_samples: sum(|counters| &counters.switching),
            });
        }
        let rows = batch.trips.get(first..).unwrap_or_default();
        let sum = |value: fn(&TripRow) -> u64| rows.iter().map(value).sum::<u64>().to_string();
        let sums = [
            ("trip_calls", sum(|row| row.calls)),
            ("trip_lost", sum(|row| row.lost)),
            ("trip_cost_ns", sum(|row| row.cost_ns.saturating_add(row.switching_ns))),
        ];
        batch.meta.extend(sums.map(|(key, value)| (key.to_owned(), value)));
    }
}

/// Returns the row id of a text; 0 beyond the limit.
fn text_id(texts: &mut HashMap<String, u32>, text: &[u8], batch: &mut Batch) -> u32 {
    let text = escaped(&String::from_utf8_lossy(text)).into_owned();
    if let Some(&id) = texts.get(text.as_str()) {
        return id;
    }
    if texts.len() >= MAX_TEXTS {
        return 0;
    }
    let id = u32::try_from(texts.len() + 1).unwrap_or(u32::MAX);
    batch.trip_texts.push(TripTextRow { id, text: text.clone() });
    texts.insert(text, id);
    id
}

fn kind_name(kind: &ArgumentKind) -> &'static str {
    match kind {
        ArgumentKind::Signed(_) => "signed",
        ArgumentKind::Unsigned(_) => "unsigned",
        ArgumentKind::Bool => "bool",
        ArgumentKind::Pointer => "pointer",
        ArgumentKind::Text => "text",
        ArgumentKind::Enum(..) => "enum",
    }
}
