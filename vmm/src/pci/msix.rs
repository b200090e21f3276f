//! MSI-X (PCI 3.0, 6.8.2): a table of messages in device memory, masks, and pending bits.

use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Capability id.
pub(crate) const CAPABILITY: u8 = 0x11;
/// Message control: MSI-X is on.
pub(crate) const ENABLE: u16 = 1 << 15;
/// Message control: every vector is masked.
pub(crate) const MASK_ALL: u16 = 1 << 14;
/// Bytes of a table entry: address (8), data (4), vector control (4).
pub(crate) const ENTRY: usize = 16;
/// Vector control: this vector is masked.
const MASKED: u8 = 1;
/// Offset of vector control in an entry.
const CONTROL: usize = 12;

/// Receiver of messages: KVM, or a test.
pub(crate) trait MessageSink: Send + Sync + Debug {
    /// Delivers one message-signalled interrupt.
    fn send(&self, address: u64, data: u32);
}

/// The interrupts of one function, used by vCPUs (registers) and the device's thread (signals).
#[derive(Debug)]
pub(crate) struct Msix {
    state: Mutex<State>,
    sink: Arc<dyn MessageSink>,
}

#[derive(Debug)]
struct State {
    control: u16,
    table: Vec<[u8; ENTRY]>,
    pending: Vec<bool>,
}

impl State {
    /// Returns the message of a vector if it may be sent now; otherwise it becomes pending.
    fn take(&mut self, vector: usize) -> Option<(u64, u32)> {
        let entry = self.table.get(vector)?;
        let held = self.control & MASK_ALL != 0 || entry[CONTROL] & MASKED != 0;
        *self.pending.get_mut(vector)? = held;
        let (address, rest) = entry.split_first_chunk::<8>()?;
        let data = rest.first_chunk::<4>()?;
        (!held).then(|| (u64::from_le_bytes(*address), u32::from_le_bytes(*data)))
    }
}

impl Msix {
    /// Makes `vectors` vectors, all masked, with MSI-X off.
    pub(crate) fn new(vectors: usize, sink: Arc<dyn MessageSink>) -> Self {
        let mut masked = [0; ENTRY];
        masked[CONTROL] = MASKED;
        let state = State { control: 0, table: vec![masked; vectors], pending: vec![false; vectors] };
        Self { state: Mutex::new(state), sink }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of vectors.
    pub(crate) fn vectors(&self) -> usize {
        self.lock().table.len()
    }

    /// Returns true while the guest has MSI-X switched on.
    pub(crate) fn enabled(&self) -> bool {
        self.lock().control & ENABLE != 0
    }

    /// Interrupts the guest, at once or when it unmasks. Ignored while MSI-X is off.
    pub(crate) fn signal(&self, vector: usize) {
        let mut state = self.lock();
        if state.control & ENABLE != 0
            && let Some((address, data)) = state.take(vector)
        {
            self.sink.send(address, data);
        }
    }

    /// Serves the guest's write to message control.
    pub(crate) fn set_control(&self, control: u16) {
        let mut state = self.lock();
        state.control = control & (ENABLE | MASK_ALL);
        for vector in 0..state.table.len() {
            self.deliver_pending(&mut state, vector);
        }
    }

    fn deliver_pending(&self, state: &mut State, vector: usize) {
        if state.control & ENABLE != 0
            && state.pending.get(vector) == Some(&true)
            && let Some((address, data)) = state.take(vector)
        {
            self.sink.send(address, data);
        }
    }

    /// Serves the guest's read of the table. Only aligned accesses of 4 or 8 bytes are defined; others get
    /// what is there.
    pub(crate) fn read_table(&self, offset: usize, data: &mut [u8]) {
        let state = self.lock();
        let cells = state.table.as_flattened().iter().skip(offset);
        data.fill(0);
        for (byte, cell) in data.iter_mut().zip(cells) {
            *byte = *cell;
        }
    }

    /// Serves the guest's write to the table; unmasking delivers what is pending.
    pub(crate) fn write_table(&self, offset: usize, data: &[u8]) {
        let mut state = self.lock();
        let cells = state.table.as_flattened_mut().iter_mut().skip(offset);
        for (cell, byte) in cells.zip(data) {
            *cell = *byte;
        }
        self.deliver_pending(&mut state, offset / ENTRY);
    }

    /// Serves the guest's read of the pending bits.
    pub(crate) fn read_pending(&self, offset: usize, data: &mut [u8]) {
        let state = self.lock();
        for (index, byte) in data.iter_mut().enumerate() {
            let from = offset.saturating_add(index).saturating_mul(8);
            let bits = state.pending.iter().skip(from).take(8).enumerate();
            *byte = bits.fold(0, |byte, (bit, on)| byte | (u8::from(*on) << bit));
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Keeps what was sent.
    #[derive(Debug, Default)]
    pub(crate) struct Messages(pub Mutex<Vec<(u64, u32)>>);

    impl MessageSink for Messages {
        fn send(&self, address: u64, data: u32) {
            self.0.lock().unwrap().push((address, data));
        }
    }

    fn msix() -> (Msix, Arc<Messages>) {
        let messages = Arc::new(Messages::default());
        let sink: Arc<dyn MessageSink> = Arc::<Messages>::clone(&messages);
        (Msix::new(3, sink), messages)
    }

    fn program(msix: &Msix, vector: usize, data: u32, masked: bool) {
        msix.write_table(vector * ENTRY, &0xfee0_1000u64.to_le_bytes());
        msix.write_table(vector * ENTRY + 8, &data.to_le_bytes());
        msix.write_table(vector * ENTRY + CONTROL, &u32::from(masked).to_le_bytes());
    }

    #[test]
    fn an_unmasked_vector_sends_its_message() {
        let (msix, sent) = msix();
        program(&msix, 1, 0x41, false);
        msix.signal(1);
        assert!(sent.0.lock().unwrap().is_empty(), "MSI-X is off");
        msix.set_control(ENABLE);
        msix.signal(1);
        assert_eq!(*sent.0.lock().unwrap(), [(0xfee0_1000, 0x41)]);
    }

    #[test]
    fn a_masked_vector_is_pending_and_sent_once_when_unmasked() {
        let (msix, sent) = msix();
        program(&msix, 2, 0x42, true);
        msix.set_control(ENABLE);
        msix.signal(2);
        msix.signal(2);
        let mut pending = [0; 8];
        msix.read_pending(0, &mut pending);
        assert_eq!(pending, [4, 0, 0, 0, 0, 0, 0, 0]);
        msix.write_table(2 * ENTRY + CONTROL, &[0; 4]);
        assert_eq!(*sent.0.lock().unwrap(), [(0xfee0_1000, 0x42)]);
        msix.read_pending(0, &mut pending);
        assert_eq!(pending, [0; 8]);
    }

    #[test]
    fn the_function_mask_holds_all_vectors() {
        let (msix, sent) = msix();
        program(&msix, 0, 1, false);
        program(&msix, 1, 2, false);
        msix.set_control(ENABLE | MASK_ALL);
        msix.signal(0);
        msix.signal(1);
        assert!(sent.0.lock().unwrap().is_empty());
        msix.set_control(ENABLE);
        assert_eq!(sent.0.lock().unwrap().len(), 2);
    }

    #[test]
    fn vectors_and_offsets_out_of_range_are_ignored() {
        let (msix, sent) = msix();
        msix.set_control(ENABLE);
        msix.signal(3);
        msix.signal(usize::MAX);
        msix.write_table(3 * ENTRY - 4, &[0xff; 8]);
        msix.write_table(usize::MAX, &[0; 4]);
        let mut data = [1; 8];
        msix.read_table(usize::MAX, &mut data);
        assert_eq!(data, [0; 8]);
        msix.read_pending(usize::MAX, &mut data);
        assert_eq!(data, [0; 8]);
        assert!(sent.0.lock().unwrap().is_empty());
    }
}
