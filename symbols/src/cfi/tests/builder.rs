//! `.eh_frame`, `.debug_frame` and `.eh_frame_hdr` written by code.

use crate::cfi::{CfiSection, CfiSections, CfiTable};

/// Address of `.eh_frame` in the file.
pub const EH_FRAME: u64 = 0x20_0000;
/// Address of `.eh_frame_hdr` in the file.
pub const HEADER: u64 = 0x30_0000;

/// CFA = RSP + 8, return address at CFA - 8: what a call leaves.
const AFTER_CALL: [u8; 5] = [0x0c, 7, 8, 0x90, 1];

/// DW_CFA_def_cfa_offset, for offsets below 128.
pub fn cfa_offset(offset: u8) -> [u8; 2] {
    [0x0e, offset]
}
/// DW_CFA_offset: `register` saved at CFA - 8 * `slot`.
pub fn saved(register: u8, slot: u8) -> [u8; 2] {
    [0x80 | register, slot]
}
/// DW_CFA_undefined of the return address.
pub const OUTERMOST: [u8; 2] = [0x07, 16];

/// A section with one CIE for calls and one for signal frames.
#[derive(Debug, Clone)]
pub struct Builder {
    pub eh_frame: Vec<u8>,
    cies: [usize; 2],
    starts: Vec<(u64, usize)>,
}

impl Builder {
    pub fn new() -> Self {
        let mut builder = Self { eh_frame: Vec::new(), cies: [0; 2], starts: Vec::new() };
        for (place, augmentation) in ["zR\0", "zRS\0"].into_iter().enumerate() {
            builder.cies[place] = builder.eh_frame.len();
            let mut cie = vec![0, 0, 0, 0, 1];
            cie.extend(augmentation.as_bytes());
            // Code alignment 1, data alignment -8, return address in column 16, pointers pcrel | sdata4.
            cie.extend([1, 0x78, 16, 1, 0x1b]);
            cie.extend(AFTER_CALL);
            builder.entry(&cie);
        }
        builder
    }

    fn entry(&mut self, body: &[u8]) {
        let size = body.len().next_multiple_of(8) + 4;
        self.eh_frame.extend(u32::try_from(size).unwrap().to_le_bytes());
        self.eh_frame.extend(body);
        self.eh_frame.resize(self.eh_frame.len() + size - body.len(), 0);
    }

    fn fde(mut self, cie: usize, start: u64, length: u32, rules: &[u8]) -> Self {
        let at = self.eh_frame.len();
        let to_cie = u32::try_from(at + 4 - self.cies[cie]).unwrap();
        let from = EH_FRAME + at as u64 + 8;
        let mut fde = to_cie.to_le_bytes().to_vec();
        fde.extend(i32::try_from(start.wrapping_sub(from).cast_signed()).unwrap().to_le_bytes());
        fde.extend(length.to_le_bytes());
        fde.push(0);
        fde.extend(rules);
        self.entry(&fde);
        self.starts.push((start, at));
        self
    }

    /// A function of 256 bytes at `start` of the file with these rules from its first byte on.
    pub fn function(self, start: u64, rules: &[u8]) -> Self {
        self.fde(0, start, 0x100, rules)
    }

    /// The same for a signal frame.
    pub fn signal_frame(self, start: u64, rules: &[u8]) -> Self {
        self.fde(1, start, 0x100, rules)
    }

    pub fn sections(&self) -> CfiSections {
        let eh_frame = CfiSection { bytes: self.eh_frame.as_slice().into(), address: EH_FRAME };
        CfiSections { eh_frame: Some(eh_frame), ..CfiSections::default() }
    }

    /// `.eh_frame_hdr` with the functions in the order in which they were added.
    pub fn header(&self) -> CfiSection {
        let relative = |address: u64, base: u64| {
            i32::try_from(address.wrapping_sub(base).cast_signed()).unwrap().to_le_bytes()
        };
        // Version 1; pointer pcrel | sdata4, count udata4, table datarel | sdata4.
        let mut bytes = vec![1, 0x1b, 0x03, 0x3b];
        bytes.extend(relative(EH_FRAME, HEADER + 4));
        bytes.extend(u32::try_from(self.starts.len()).unwrap().to_le_bytes());
        for &(start, at) in &self.starts {
            bytes.extend(relative(start, HEADER));
            bytes.extend(relative(EH_FRAME + at as u64, HEADER));
        }
        CfiSection { bytes: bytes.into(), address: HEADER }
    }

    pub fn table(&self) -> CfiTable {
        CfiTable::parse(self.sections()).unwrap()
    }
}

/// A `.debug_frame` of one function at `start` with CFA = RSP + `cfa`.
pub fn debug_frame(start: u64, cfa: u8) -> CfiSection {
    let mut cie = vec![0xff, 0xff, 0xff, 0xff, 3, 0, 1, 0x78, 16, 0x0c, 7, cfa, 0x90, 1, 0, 0];
    let mut bytes = u32::try_from(cie.len()).unwrap().to_le_bytes().to_vec();
    bytes.append(&mut cie);
    let mut fde = vec![0, 0, 0, 0];
    fde.extend(start.to_le_bytes());
    fde.extend(0x100_u64.to_le_bytes());
    bytes.extend(u32::try_from(fde.len()).unwrap().to_le_bytes());
    bytes.append(&mut fde);
    CfiSection { bytes: bytes.into(), address: 0 }
}
