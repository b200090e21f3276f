//! Location of the call frame information of a file.

use gimli::{BaseAddresses, EhFrameHdr, LittleEndian, Pointer};
use goblin::elf::program_header::PT_GNU_EH_FRAME;

use super::{ElfError, ElfFile, ElfSection};

const FRAMES: &str = ".eh_frame";
const TABLE: &str = ".eh_frame_hdr";

impl ElfFile {
    /// `.eh_frame_hdr`: the sorted table of functions; by PT_GNU_EH_FRAME where section headers lack it.
    pub fn eh_frame_hdr(&self) -> Result<ElfSection, ElfError> {
        self.section(TABLE).or_else(|error| {
            let header = self.program_header(PT_GNU_EH_FRAME).filter(|header| header.p_filesz > 0);
            let header = header.ok_or(error)?;
            let bytes = self.bytes_at(header.p_vaddr, header.p_filesz)?;
            Ok(ElfSection { bytes, address: header.p_vaddr })
        })
    }

    /// `.eh_frame`; without section headers from where `.eh_frame_hdr` says it starts to the end of its
    /// segment, so that other data may follow its terminator.
    pub fn eh_frame(&self) -> Result<ElfSection, ElfError> {
        self.section(FRAMES).or_else(|error| {
            let table = self.eh_frame_hdr().map_err(|_| error)?;
            let damaged = || ElfError::Malformed(TABLE.into());
            let bases = BaseAddresses::default().set_eh_frame_hdr(table.address);
            let parsed = EhFrameHdr::new(&table.bytes, LittleEndian).parse(&bases, 8);
            let Ok(Pointer::Direct(address)) = parsed.map(|parsed| parsed.eh_frame_ptr()) else {
                return Err(damaged());
            };
            let segment =
                self.segments().iter().find(|segment| segment.contains(address)).ok_or_else(damaged)?;
            let size = segment.file_size.saturating_sub(address - segment.address);
            Ok(ElfSection { bytes: self.bytes_at(address, size)?, address })
        })
    }
}
