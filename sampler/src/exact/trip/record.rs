//! Recorder of calls of watched functions, on the vCPU's own thread between two KVM_RUNs: no lock, no
//! allocation, no system call.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use guest_linux::{
    AddressSpace, ArgumentKind, MAX_WATCHED, PhysicalMemory, StackCopy, VirtAddr, WatchedFunction,
};
use kvm_bindings::kvm_regs;
use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;
use rtrb::{Consumer, Producer, PushError, RingBuffer};
use vmm::TickContext;

use super::thinning::StackThinning;
use crate::exact::record::{STACK_BYTES, USER_BYTES, add};
use crate::managed::{FrameCopier, RuntimeTable};
use crate::record::{self, GuestReaders, SampleRecord};

/// Calls per vCPU's ring: a third of a second at 25,000 calls a second.
const RING: usize = 8_192;
/// Bytes of all rings together, at most.
const RINGS_BYTES: usize = 16 << 20;
/// Stacks per vCPU's pool: those of 40 ms of each of five functions.
const POOL: usize = 200;
/// Bytes of all pools together, at most.
const POOLS_BYTES: usize = 12 << 20;
/// Arguments that are recorded: those in registers.
pub(super) const ARGUMENTS: usize = 6;
/// Texts of a call that are copied, at most.
pub(super) const TEXTS: usize = 2;
/// Bytes of a text that are copied, at most.
const TEXT_BYTES: usize = 64;
/// Bytes of a page.
const PAGE: u64 = 4096;

/// The beginning of a text that an argument points to.
#[derive(Debug, Clone, Copy)]
pub(super) struct TextCopy {
    bytes: [u8; TEXT_BYTES],
    /// Bytes that were read; `None` if nothing was.
    read: Option<u8>,
}

impl TextCopy {
    const NONE: Self = Self { bytes: [0; TEXT_BYTES], read: None };

    /// Copies the text at `at`, up to its NUL. What follows it may be in a page that is not present.
    fn read(memory: &impl PhysicalMemory, space: &AddressSpace, at: u64) -> Self {
        let mut copy = Self::NONE;
        let first = usize::try_from(PAGE - at % PAGE).unwrap_or(TEXT_BYTES).min(TEXT_BYTES);
        let (begin, rest) = copy.bytes.split_at_mut(first);
        if at == 0 || space.read(memory, VirtAddr(at), begin).is_none() {
            return Self::NONE;
        }
        let mut read = first;
        let next = at.checked_add(first as u64).filter(|_| !begin.contains(&0) && !rest.is_empty());
        if next.is_some_and(|next| space.read(memory, VirtAddr(next), rest).is_some()) {
            read = TEXT_BYTES;
        }
        copy.read = u8::try_from(read).ok();
        copy
    }

    /// Returns the text without its NUL; `None` if nothing could be read.
    pub(super) fn text(&self) -> Option<&[u8]> {
        let read = self.bytes.get(..usize::from(self.read?))?;
        read.split(|byte| *byte == 0).next()
    }
}

/// A call: fixed size, nothing resolved.
#[derive(Debug, Clone, Copy)]
pub(super) struct TripRecord {
    /// Number of the function.
    pub number: u8,
    /// Time, current task and context, as those of a sample at the function's first instruction.
    pub sample: SampleRecord,
    /// RDI, RSI, RDX, RCX, R8, R9.
    pub arguments: [u64; ARGUMENTS],
    /// The first texts among the arguments.
    pub texts: [TextCopy; TEXTS],
    /// Number of calls that the stack is for; 0 without a stack.
    pub weight: u32,
}

/// A call as the ring carries it.
#[derive(Debug)]
pub(super) struct TripMessage {
    pub record: TripRecord,
    /// The buffer belongs to the vCPU's pool.
    pub stack: Option<Box<StackCopy>>,
}

/// Counters of one function on one vCPU. The vCPU's thread alone writes.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct TripCounters {
    pub calls: AtomicU64,
    /// Calls whose record found no room in the ring.
    pub lost: AtomicU64,
    /// Stacks that were to be copied while all buffers were in use.
    pub stacks_missed: AtomicU64,
    /// Time from exits to entries, ns.
    pub cost_ns: AtomicU64,
    /// Samples that fell between guest and host for a call, and the time that they represent, ns.
    pub switching: AtomicU64,
    pub switching_ns: AtomicU64,
}

/// The collector's ends of a recorder's ring and pool.
#[derive(Debug)]
pub(crate) struct TripRingEnds {
    pub(super) calls: Consumer<TripMessage>,
    pub(super) pool: Producer<Box<StackCopy>>,
    /// By the number of the function.
    pub(super) counters: Arc<[TripCounters; MAX_WATCHED]>,
}

/// A call that is to be recorded.
#[derive(Debug)]
pub(crate) struct TripCall<'a, M> {
    /// Number of the function.
    pub number: u8,
    pub function: &'a WatchedFunction,
    pub context: &'a TickContext<'a, M>,
    pub readers: Option<&'a GuestReaders>,
    /// The vCPU, by its APIC id.
    pub vcpu: usize,
}

/// Recorder of the calls on one vCPU.
pub(crate) struct TripRecorder {
    ring: Producer<TripMessage>,
    pool: Consumer<Box<StackCopy>>,
    spare: Option<Box<StackCopy>>,
    frames: FrameCopier,
    thinning: [StackThinning; MAX_WATCHED],
    random: ChaCha8Rng,
    counters: Arc<[TripCounters; MAX_WATCHED]>,
}

impl TripRecorder {
    /// Creates the recorder of vCPU `vcpu` of `vcpus`, and the collector's ends.
    pub(crate) fn new((vcpu, vcpus): (u8, u8), seed: u64, runtimes: RuntimeTable) -> (Self, TripRingEnds) {
        let share = |bytes: usize, each: usize| bytes / each / usize::from(vcpus.max(1));
        let slots = RING.min(share(RINGS_BYTES, size_of::<TripMessage>()));
        let buffers = POOL.min(share(POOLS_BYTES, STACK_BYTES)).max(8);
        let (ring, calls) = RingBuffer::new(slots);
        let (mut giver, pool) = RingBuffer::new(buffers);
        for _ in 0..buffers {
            // The ring has as many slots as the pool has buffers.
            drop(giver.push(Box::new(StackCopy::with_room(STACK_BYTES))));
        }
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        // The streams of all intervals, and that of task scans, are other ones.
        random.set_stream(1 << 32 | u64::from(vcpu));
        let counters = Arc::new(std::array::from_fn(|_| TripCounters::default()));
        let ends = TripRingEnds { calls, pool: giver, counters: Arc::clone(&counters) };
        let frames = FrameCopier::new(runtimes);
        let thinning = [StackThinning::default(); MAX_WATCHED];
        (Self { ring, pool, spare: None, frames, thinning, random, counters }, ends)
    }

    /// Returns the counters of a function.
    fn counters(&self, number: u8) -> Option<&TripCounters> {
        self.counters.get(usize::from(number))
    }

    /// Records a call.
    pub(crate) fn record<M: PhysicalMemory>(&mut self, call: &TripCall<'_, M>) {
        let TripCall { number, function, context, readers, vcpu } = *call;
        let Some(counters) = self.counters.get(usize::from(number)) else { return };
        add(&counters.calls, 1);
        // Whether KVM has stopped before or after the probe, the call is at the function's begin.
        let regs = kvm_regs { rip: function.address.0, ..*context.regs };
        let context = &TickContext { regs: &regs, ..*context };
        let current = |memory: &M| readers?.current.read(memory, vcpu);
        let sample = record::read_record(context, current, || None);
        let arguments = [regs.rdi, regs.rsi, regs.rdx, regs.rcx, regs.r8, regs.r9];
        let space = AddressSpace::new(sample.cr3, sample.five_level);
        let mut texts = [TextCopy::NONE; TEXTS];
        for (copy, at) in texts.iter_mut().zip(text_arguments(function, arguments)) {
            *copy = TextCopy::read(context.memory, &space, at);
        }
        let (stack, weight) = match self.thinned_stack(call, context, &sample) {
            Some((stack, weight)) => (Some(stack), weight),
            None => (None, 0),
        };
        let record = TripRecord { number, sample, arguments, texts, weight };
        if let Err(PushError::Full(message)) = self.ring.push(TripMessage { record, stack }) {
            self.spare = message.stack.or(self.spare.take());
            if let Some(counters) = self.counters.get(usize::from(number)) {
                add(&counters.lost, 1);
            }
        }
    }

    /// Copies the stack of the call if it is chosen. Returns it with its weight.
    fn thinned_stack<M: PhysicalMemory>(
        &mut self,
        call: &TripCall<'_, M>,
        context: &TickContext<'_, M>,
        sample: &SampleRecord,
    ) -> Option<(Box<StackCopy>, u32)> {
        let (reader, user_bytes) = call.readers?.stacks.as_ref()?;
        let thinning = self.thinning.get_mut(usize::from(call.number))?;
        let weight = thinning.choose(context.now_ns, &mut self.random)?;
        let Some(mut stack) = self.spare.take().or_else(|| self.pool.pop().ok()) else {
            add(&self.counters.get(usize::from(call.number))?.stacks_missed, 1);
            return None;
        };
        let user_bytes = USER_BYTES.min(*user_bytes);
        record::copy_stacks((reader, user_bytes), call.vcpu, context, sample, &mut stack);
        self.frames.copy(context.memory, (context.sregs.fs.base, sample.five_level), &mut stack);
        Some((stack, weight))
    }

    /// Notes the cost of a call up to the entry, ns.
    pub(crate) fn entered(&self, number: u8, ns: u64) {
        if let Some(counters) = self.counters(number) {
            add(&counters.cost_ns, ns);
        }
    }

    /// Notes a sample between guest and host for a call; it represents `mean_ns`.
    pub(crate) fn switched(&self, number: u8, mean_ns: u64) {
        if let Some(counters) = self.counters(number) {
            add(&counters.switching, 1);
            add(&counters.switching_ns, mean_ns);
        }
    }
}

/// Returns the values of the arguments that point to texts.
fn text_arguments(
    function: &WatchedFunction,
    values: [u64; ARGUMENTS],
) -> impl Iterator<Item = u64> + use<'_> {
    let arguments = function.arguments.iter().flatten();
    let texts = arguments.zip(values).filter(|(argument, _)| argument.kind == ArgumentKind::Text);
    texts.map(|(_, value)| value)
}

impl TripRingEnds {
    /// Returns the sum that a counter of a function has by now.
    pub(super) fn load(&self, number: usize, counter: impl Fn(&TripCounters) -> &AtomicU64) -> u64 {
        self.counters.get(number).map_or(0, |counters| counter(counters).load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use guest_linux::FlatMemory;

    use super::*;

    #[test]
    fn a_text_ends_at_its_nul_or_with_its_page() {
        let text = |bytes: &[u8], read| {
            let mut copy = TextCopy::NONE;
            copy.bytes[..bytes.len()].copy_from_slice(bytes);
            copy.read = read;
            copy.text().map(<[u8]>::to_vec)
        };
        assert_eq!(text(b"/etc/passwd\0rest", Some(64)).as_deref(), Some(&b"/etc/passwd"[..]));
        assert_eq!(text(&[b'a'; TEXT_BYTES], Some(64)).map(|text| text.len()), Some(64));
        assert_eq!(text(b"cut", Some(3)).as_deref(), Some(&b"cut"[..]));
        assert_eq!((text(b"", None), text(b"\0", Some(64)).as_deref()), (None, Some(&b""[..])));
        // No page tables: nothing can be read, whatever the address.
        let (memory, space) = (FlatMemory([0_u8; 64]), AddressSpace::new(0, false));
        for at in [0, 1, 4095, u64::MAX, 1 << 63] {
            assert!(TextCopy::read(&memory, &space, at).text().is_none(), "{at:#x}");
        }
    }
}
