//! The common configuration structure (specification 4.1.4.3) as plain data.

use virtio_bindings::virtio_config::{
    VIRTIO_CONFIG_S_DRIVER_OK, VIRTIO_CONFIG_S_FEATURES_OK, VIRTIO_CONFIG_S_NEEDS_RESET, VIRTIO_F_VERSION_1,
};
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use virtio_queue::{Queue, QueueT};
use vm_memory::{GuestAddress, GuestMemoryMmap};

use super::{BrokenQueue, Interrupts};

/// Length of the structure, bytes.
pub(super) const LENGTH: usize = 0x38;

/// Offsets of its fields.
const DEVICE_FEATURE_SELECT: usize = 0x00;
const DEVICE_FEATURE: usize = 0x04;
const DRIVER_FEATURE_SELECT: usize = 0x08;
const DRIVER_FEATURE: usize = 0x0c;
const CONFIG_VECTOR: usize = 0x10;
const NUM_QUEUES: usize = 0x12;
const DEVICE_STATUS: usize = 0x14;
const QUEUE_SELECT: usize = 0x16;
const QUEUE_SIZE: usize = 0x18;
const QUEUE_VECTOR: usize = 0x1a;
const QUEUE_ENABLE: usize = 0x1c;
const QUEUE_NOTIFY_OFFSET: usize = 0x1e;
const QUEUE_DESCRIPTORS: usize = 0x20;
const QUEUE_DRIVER: usize = 0x28;
const QUEUE_DEVICE: usize = 0x30;

/// Status bits as bytes.
const FEATURES_OK: u8 = status_bit(VIRTIO_CONFIG_S_FEATURES_OK);
const DRIVER_OK: u8 = status_bit(VIRTIO_CONFIG_S_DRIVER_OK);
const NEEDS_RESET: u8 = status_bit(VIRTIO_CONFIG_S_NEEDS_RESET);

const fn status_bit(bit: u32) -> u8 {
    assert!(bit <= 0xff);
    bit.to_le_bytes()[0]
}

/// Features of the transport and the rings, which every device has.
const COMMON_FEATURES: u64 =
    1 << VIRTIO_F_VERSION_1 | 1 << VIRTIO_RING_F_EVENT_IDX | 1 << VIRTIO_RING_F_INDIRECT_DESC;

/// Request of the registers to the device after a write.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// Nothing.
    Nothing,
    /// The driver is ready: serve the queues.
    Start,
    /// Reset everything, and the worker, which has the queues.
    Reset,
    /// Reset everything; no queue was handed out.
    ResetIdle,
}

/// Queue as the driver describes it.
#[derive(Debug, Clone)]
struct QueueRegisters {
    most: u16,
    size: u16,
    enabled: bool,
    descriptors: u64,
    driver: u64,
    device: u64,
}

impl QueueRegisters {
    fn new(most: u16) -> Self {
        Self { most, size: most, enabled: false, descriptors: 0, driver: 0, device: 0 }
    }

    /// Makes the queue, if the driver's values are valid.
    fn build(&self, memory: &GuestMemoryMmap, event_index: bool) -> Result<Queue, BrokenQueue> {
        let mut queue = Queue::new(self.most).map_err(|_| BrokenQueue)?;
        queue.try_set_size(self.size).map_err(|_| BrokenQueue)?;
        queue.try_set_desc_table_address(GuestAddress(self.descriptors)).map_err(|_| BrokenQueue)?;
        queue.try_set_avail_ring_address(GuestAddress(self.driver)).map_err(|_| BrokenQueue)?;
        queue.try_set_used_ring_address(GuestAddress(self.device)).map_err(|_| BrokenQueue)?;
        queue.set_event_idx(event_index);
        queue.set_ready(true);
        if queue.is_valid(memory) { Ok(queue) } else { Err(BrokenQueue) }
    }
}

/// The registers' state.
#[derive(Debug)]
pub(super) struct Registers {
    offered: u64,
    accepted: u64,
    device_select: u32,
    driver_select: u32,
    status: u8,
    queue_select: u16,
    queues: Vec<QueueRegisters>,
}

impl Registers {
    /// Makes registers after reset.
    pub(super) fn new(features: u64, queues: &[u16]) -> Self {
        Self {
            offered: features | COMMON_FEATURES,
            accepted: 0,
            device_select: 0,
            driver_select: 0,
            status: 0,
            queue_select: 0,
            queues: queues.iter().map(|most| QueueRegisters::new(*most)).collect(),
        }
    }

    /// Restores the state after reset.
    pub(super) fn reset(&mut self) {
        let most: Vec<u16> = self.queues.iter().map(|queue| queue.most).collect();
        *self = Self::new(self.offered, &most);
    }

    /// Returns true between DRIVER_OK and the next reset.
    fn running(&self) -> bool {
        self.status & DRIVER_OK != 0
    }

    /// Returns the structure as the guest reads it.
    pub(super) fn image(&self, interrupts: &Interrupts, broken: bool) -> [u8; LENGTH] {
        let mut image = [0; LENGTH];
        let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
        let select = self.queue_select;
        put(DEVICE_FEATURE_SELECT, &self.device_select.to_le_bytes());
        put(DEVICE_FEATURE, &word(self.offered, self.device_select).to_le_bytes());
        put(DRIVER_FEATURE_SELECT, &self.driver_select.to_le_bytes());
        put(DRIVER_FEATURE, &word(self.accepted, self.driver_select).to_le_bytes());
        put(CONFIG_VECTOR, &interrupts.assigned(None).to_le_bytes());
        put(NUM_QUEUES, &u16::try_from(self.queues.len()).unwrap_or(u16::MAX).to_le_bytes());
        put(DEVICE_STATUS, &[self.status | if broken { NEEDS_RESET } else { 0 }]);
        put(QUEUE_SELECT, &select.to_le_bytes());
        // A queue that does not exist has size 0 (4.1.4.3.1).
        if let Some(queue) = self.queues.get(usize::from(select)) {
            put(QUEUE_SIZE, &queue.size.to_le_bytes());
            put(QUEUE_VECTOR, &interrupts.assigned(Some(select)).to_le_bytes());
            put(QUEUE_ENABLE, &u16::from(queue.enabled).to_le_bytes());
            put(QUEUE_NOTIFY_OFFSET, &select.to_le_bytes());
            put(QUEUE_DESCRIPTORS, &queue.descriptors.to_le_bytes());
            put(QUEUE_DRIVER, &queue.driver.to_le_bytes());
            put(QUEUE_DEVICE, &queue.device.to_le_bytes());
        }
        image
    }

    /// Serves the guest's write to a field. Accesses of another width than the field's are ignored, except
    /// that a 64-bit field may be written in halves.
    pub(super) fn write(&mut self, at: usize, data: &[u8], interrupts: &Interrupts) -> Request {
        match *data {
            [status] if at == DEVICE_STATUS => return self.write_status(status),
            [low, high] => self.write_half(at, u16::from_le_bytes([low, high]), interrupts),
            [a, b, c, d] => self.write_word(at, u32::from_le_bytes([a, b, c, d])),
            [a, b, c, d, e, f, g, h] if at >= QUEUE_DESCRIPTORS => {
                self.write_word(at, u32::from_le_bytes([a, b, c, d]));
                self.write_word(at.saturating_add(4), u32::from_le_bytes([e, f, g, h]));
            }
            _ => {}
        }
        Request::Nothing
    }

    fn write_status(&mut self, status: u8) -> Request {
        let was_running = self.running();
        if status == 0 {
            // The worker has something to drop only if it was started. Otherwise the reset is done
            // before the driver reads the status back, which it takes for the end of it.
            if was_running {
                return Request::Reset;
            }
            return Request::ResetIdle;
        }
        let acceptable = self.accepted & !self.offered == 0 && self.accepted & (1 << VIRTIO_F_VERSION_1) != 0;
        // A driver may only add bits (2.1.1): one that takes back DRIVER_OK must reset.
        self.status |= status & !NEEDS_RESET;
        if !acceptable {
            // The driver reads FEATURES_OK back to learn that the device refused (3.1.1).
            self.status &= !(FEATURES_OK | DRIVER_OK);
        }
        if self.running() && !was_running { Request::Start } else { Request::Nothing }
    }

    fn write_half(&mut self, at: usize, value: u16, interrupts: &Interrupts) {
        let running = self.running();
        let select = self.queue_select;
        let queue = self.queues.get_mut(usize::from(select));
        match (at, queue) {
            (QUEUE_SELECT, _) => self.queue_select = value,
            (CONFIG_VECTOR, _) => interrupts.assign(None, value),
            (QUEUE_VECTOR, Some(_)) => interrupts.assign(Some(select), value),
            (QUEUE_SIZE, Some(queue)) if !running && value.is_power_of_two() && value <= queue.most => {
                queue.size = value;
            }
            (QUEUE_ENABLE, Some(queue)) if !running => queue.enabled |= value == 1,
            _ => {}
        }
    }

    fn write_word(&mut self, at: usize, value: u32) {
        let running = self.running();
        match at {
            DEVICE_FEATURE_SELECT => self.device_select = value,
            DRIVER_FEATURE_SELECT => self.driver_select = value,
            DRIVER_FEATURE if self.status & FEATURES_OK == 0 => {
                set_word(&mut self.accepted, self.driver_select, value);
            }
            _ => {}
        }
        let select = usize::from(self.queue_select);
        let Some(queue) = self.queues.get_mut(select).filter(|_| !running) else { return };
        let field = match at & !7 {
            QUEUE_DESCRIPTORS => &mut queue.descriptors,
            QUEUE_DRIVER => &mut queue.driver,
            QUEUE_DEVICE => &mut queue.device,
            _ => return,
        };
        match at & 7 {
            0 => set_word(field, 0, value),
            4 => set_word(field, 1, value),
            _ => {}
        }
    }

    /// Makes the queues as the driver has configured them.
    pub(super) fn queues(&self, memory: &GuestMemoryMmap) -> Result<Vec<Option<Queue>>, BrokenQueue> {
        let event_index = self.accepted & (1 << VIRTIO_RING_F_EVENT_IDX) != 0;
        let build =
            |queue: &QueueRegisters| queue.enabled.then(|| queue.build(memory, event_index)).transpose();
        self.queues.iter().map(build).collect()
    }
}

/// Returns 32 of 64 bits; beyond them are zeroes.
fn word(value: u64, index: u32) -> u32 {
    let [a, b, c, d, e, f, g, h] = value.to_le_bytes();
    match index {
        0 => u32::from_le_bytes([a, b, c, d]),
        1 => u32::from_le_bytes([e, f, g, h]),
        _ => 0,
    }
}

/// Replaces 32 of 64 bits; beyond them nothing is kept.
fn set_word(value: &mut u64, index: u32, word: u32) {
    if index <= 1 {
        let shift = index * 32;
        *value = (*value & !(u64::from(u32::MAX) << shift)) | (u64::from(word) << shift);
    }
}
