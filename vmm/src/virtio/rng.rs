//! virtio-rng: the host's random numbers (specification 5.4).

use std::io::Write;

use virtio_bindings::virtio_ids::VIRTIO_ID_RNG;
use vm_memory::GuestMemoryMmap;

use super::{BrokenQueue, Chain, Identity, RequestResult, VirtioDevice};

/// Most bytes of one request; the driver asks again for more. Linux asks for 64 or less.
const MOST: usize = 4096;

/// The device.
#[derive(Debug)]
pub(crate) struct Rng;

impl VirtioDevice for Rng {
    fn identity(&self) -> Identity {
        Identity {
            id: super::device_id(VIRTIO_ID_RNG),
            // Class 0xff: fits no other.
            class: [0, 0, 0xff],
            features: 0,
            config: Vec::new(),
            queues: &[64],
        }
    }

    fn serve(
        &mut self,
        _: usize,
        memory: &GuestMemoryMmap,
        chain: Chain<'_>,
        _: &dyn Fn() -> bool,
    ) -> Result<RequestResult, BrokenQueue> {
        let mut writer = chain.writer(memory).map_err(|_| BrokenQueue)?;
        let mut bytes = [0; MOST];
        let wanted = writer.available_bytes().min(MOST);
        let random = &mut bytes[..wanted];
        // SAFETY: the pointer is valid for writes of that many bytes.
        let got = unsafe { libc::getrandom(random.as_mut_ptr().cast(), random.len(), 0) };
        let got = usize::try_from(got).unwrap_or(0);
        writer.write_all(&bytes[..got]).map_err(|_| BrokenQueue)?;
        u32::try_from(got).map(RequestResult::Done).map_err(|_| BrokenQueue)
    }
}
