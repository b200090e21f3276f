//! virtio-blk (specification 5.2): reads, writes, flushes and the serial number.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_RO, VIRTIO_BLK_F_SEG_MAX, VIRTIO_BLK_ID_BYTES,
    VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_OK, VIRTIO_BLK_S_UNSUPP, VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_GET_ID,
    VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT,
};
use virtio_bindings::virtio_ids::VIRTIO_ID_BLOCK;
use virtio_queue::{Reader, Writer};
use vm_memory::GuestMemoryMmap;

use super::disk::{DiskStore, SECTOR};
use super::{BrokenQueue, Chain, Identity, RequestResult, VirtioDevice};
use crate::config::Disk;
use crate::error::DiskError;

/// Requests that may wait.
const QUEUE: u16 = 256;
/// Most data segments of a request: a queue's worth without header and status.
const SEGMENTS: u32 = 254;
/// Number of bytes that are moved at once; between two moves a reset or a stop is noticed.
const CHUNK: usize = 128 << 10;

/// Block device.
#[derive(Debug)]
pub(crate) struct Block {
    store: DiskStore,
    serial: [u8; VIRTIO_BLK_ID_BYTES as usize],
    buffer: Vec<u8>,
}

/// Result of a request; the number is what the driver reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    Done,
    Failed,
    Unsupported,
}

impl Status {
    fn byte(self) -> u8 {
        let status = match self {
            Self::Done => VIRTIO_BLK_S_OK,
            Self::Failed => VIRTIO_BLK_S_IOERR,
            Self::Unsupported => VIRTIO_BLK_S_UNSUPP,
        };
        status.to_le_bytes()[0]
    }
}

impl Block {
    /// Returns what becomes true when a snapshot has no more room.
    pub(crate) fn full(&self) -> Option<Arc<AtomicBool>> {
        self.store.full()
    }

    /// Makes disk number `index`, counted from 0; its serial number is `vprof-disk-INDEX`.
    pub(crate) fn new(index: usize, disk: Disk) -> Result<Self, DiskError> {
        let mut serial = [0; VIRTIO_BLK_ID_BYTES as usize];
        for (to, from) in serial.iter_mut().zip(format!("vprof-disk-{index}").bytes()) {
            *to = from;
        }
        Ok(Self { store: DiskStore::open(disk)?, serial, buffer: vec![0; CHUNK] })
    }

    /// Returns the byte range of a transfer, if it is inside the disk and consists of whole sectors.
    fn range(&self, sector: u64, bytes: usize) -> Option<u64> {
        let bytes = u64::try_from(bytes).ok()?;
        let end = sector.checked_add(bytes / SECTOR)?;
        (bytes.is_multiple_of(SECTOR) && end <= self.store.sectors()).then(|| sector * SECTOR)
    }

    fn read(&mut self, sector: u64, to: &mut Writer<'_>, interrupted: &dyn Fn() -> bool) -> Status {
        let Some(mut offset) = self.range(sector, to.available_bytes()) else {
            return Status::Failed;
        };
        while to.available_bytes() > 0 && !interrupted() {
            let length = to.available_bytes().min(CHUNK);
            let chunk = &mut self.buffer[..length];
            if self.store.read(offset, chunk).is_err() || to.write_all(chunk).is_err() {
                return Status::Failed;
            }
            offset += length as u64;
        }
        Status::Done
    }

    fn write(&mut self, sector: u64, from: &mut Reader<'_>, interrupted: &dyn Fn() -> bool) -> Status {
        let range = self.range(sector, from.available_bytes());
        let Some(mut offset) = range.filter(|_| !self.store.read_only()) else {
            return Status::Failed;
        };
        while from.available_bytes() > 0 && !interrupted() {
            let length = from.available_bytes().min(CHUNK);
            let chunk = &mut self.buffer[..length];
            if from.read_exact(chunk).is_err() || self.store.write(offset, chunk).is_err() {
                return Status::Failed;
            }
            offset += length as u64;
        }
        Status::Done
    }
}

impl VirtioDevice for Block {
    fn identity(&self) -> Identity {
        let mut features = 1 << VIRTIO_BLK_F_FLUSH | 1 << VIRTIO_BLK_F_SEG_MAX | 1 << VIRTIO_BLK_F_BLK_SIZE;
        if self.store.read_only() {
            features |= 1 << VIRTIO_BLK_F_RO;
        }
        // struct virtio_blk_config: capacity (8), size_max (4), seg_max (4), geometry (4),
        // blk_size (4).
        let mut config = self.store.sectors().to_le_bytes().to_vec();
        config.extend([0; 4]);
        config.extend(SEGMENTS.to_le_bytes());
        config.extend([0; 4]);
        config.extend([0, 2, 0, 0]);
        Identity {
            id: super::device_id(VIRTIO_ID_BLOCK),
            // Mass storage, other.
            class: [0, 0x80, 0x01],
            features,
            config,
            queues: &[QUEUE],
        }
    }

    /// Serves a request: a header of 16 bytes (type, reserved, sector), data, and a status byte, in buffers
    /// that the driver may split arbitrarily.
    fn serve(
        &mut self,
        _: usize,
        memory: &GuestMemoryMmap,
        chain: Chain<'_>,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<RequestResult, BrokenQueue> {
        let mut reader: Reader<'_> = chain.clone().reader(memory).map_err(|_| BrokenQueue)?;
        let mut writer: Writer<'_> = chain.writer(memory).map_err(|_| BrokenQueue)?;
        // The last byte is the status, whatever the buffers are.
        let data = writer.available_bytes().checked_sub(1).ok_or(BrokenQueue)?;
        let mut status_at = writer.split_at(data).map_err(|_| BrokenQueue)?;
        let mut header = [0; 16];
        reader.read_exact(&mut header).map_err(|_| BrokenQueue)?;
        let [t0, t1, t2, t3, _, _, _, _, sector @ ..] = header;
        let sector = u64::from_le_bytes(sector);
        let status = match u32::from_le_bytes([t0, t1, t2, t3]) {
            VIRTIO_BLK_T_IN => self.read(sector, &mut writer, interrupted),
            VIRTIO_BLK_T_OUT => self.write(sector, &mut reader, interrupted),
            VIRTIO_BLK_T_FLUSH => match self.store.flush() {
                Ok(()) => Status::Done,
                Err(_) => Status::Failed,
            },
            VIRTIO_BLK_T_GET_ID => {
                let length = self.serial.len().min(writer.available_bytes());
                match writer.write_all(&self.serial[..length]) {
                    Ok(()) => Status::Done,
                    Err(_) => Status::Failed,
                }
            }
            _ => Status::Unsupported,
        };
        status_at.write_all(&[status.byte()]).map_err(|_| BrokenQueue)?;
        let written = writer.bytes_written().checked_add(1).ok_or(BrokenQueue)?;
        u32::try_from(written).map(RequestResult::Done).map_err(|_| BrokenQueue)
    }
}
