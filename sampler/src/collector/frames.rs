//! Code addresses, each stored once: kernel addresses by themselves, user addresses together with their instance.

use std::collections::HashMap;
use std::fmt;

use crate::batch::{FrameKind, FrameRow};
use crate::text;

/// How many addresses are remembered at once. Beyond that all are forgotten and get new rows, so a guest that jumps
/// about costs rows in the file but no memory here. Readers of the profile add up by address, not by row.
const REMEMBERED: usize = 262_144;

/// A kernel address' name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Name {
    /// Symbol; `None` for an address in a module that no symbol covers.
    pub symbol: Option<String>,
    /// Module, `None` for the kernel image.
    pub module: Option<String>,
    /// Bytes from the start of the symbol.
    pub offset: u64,
}

/// Names kernel addresses.
pub(crate) trait Names: fmt::Debug + Send + Sync {
    /// The name of `address`.
    fn name(&self, address: u64) -> Option<Name>;
    /// Whether `address` lies in the kernel image, whose code never moves.
    fn in_image(&self, address: u64) -> bool;
}

/// All frames that are remembered.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    kernel: HashMap<u64, u32>,
    user: HashMap<(u32, u64), u32>,
    unnamed: Vec<(u32, u64)>,
    given: u32,
}

impl Frames {
    /// The row of a kernel address.
    pub(crate) fn kernel(
        &mut self,
        address: u64,
        names: Option<&dyn Names>,
        rows: &mut Vec<FrameRow>,
    ) -> u32 {
        if let Some(&id) = self.kernel.get(&address) {
            return id;
        }
        let id = self.next_id();
        let name = names.and_then(|names| names.name(address));
        if name.is_none() {
            self.unnamed.push((id, address));
        }
        rows.push(kernel_row(id, address, name));
        self.kernel.insert(address, id);
        id
    }

    /// The row of a user address; without an instance the process is not known.
    pub(crate) fn user(&mut self, address: u64, instance: Option<u32>, rows: &mut Vec<FrameRow>) -> u32 {
        let key = (instance.unwrap_or(0), address);
        if let Some(&id) = self.user.get(&key) {
            return id;
        }
        let id = self.next_id();
        rows.push(FrameRow { id, address, kind: FrameKind::User, instance, ..FrameRow::default() });
        self.user.insert(key, id);
        id
    }

    fn next_id(&mut self) -> u32 {
        if self.kernel.len() + self.user.len() >= REMEMBERED {
            self.kernel.clear();
            self.user.clear();
            self.unnamed.clear();
        }
        self.given = self.given.saturating_add(1);
        self.given
    }

    /// Names what had no name yet. What still has none is tried again at the next call.
    pub(crate) fn name_unnamed(&mut self, names: &dyn Names, rows: &mut Vec<FrameRow>) {
        self.unnamed.retain(|&(id, address)| match names.name(address) {
            Some(name) => {
                rows.push(kernel_row(id, address, Some(name)));
                false
            }
            None => true,
        });
    }

    /// Other modules are loaded now: an address outside of the image may have got another name, so it gets a new row.
    pub(crate) fn modules_changed(&mut self, names: &dyn Names, rows: &mut Vec<FrameRow>) {
        self.name_unnamed(names, rows);
        self.kernel.retain(|&address, _| names.in_image(address));
        let kernel = &self.kernel;
        self.unnamed.retain(|(_, address)| kernel.contains_key(address));
    }
}

fn kernel_row(id: u32, address: u64, name: Option<Name>) -> FrameRow {
    let (symbol, module, offset) = name.map_or((None, None, 0), |n| (n.symbol, n.module, n.offset));
    let clean = |name: Option<String>| name.map(|name| text::printable(&name));
    FrameRow { id, address, symbol: clean(symbol), module: clean(module), offset, ..FrameRow::default() }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Image of 0x1000 bytes at 0x1000, symbols of 0x100 bytes each; one module at 0x10000 if it has a name.
    #[derive(Debug, Default, Clone)]
    pub(crate) struct Fake {
        pub module: Option<&'static str>,
    }

    impl Names for Fake {
        fn name(&self, address: u64) -> Option<Name> {
            let symbol = Some(format!("symbol_{:x}", address >> 8));
            match address {
                0x1000..0x2000 => Some(Name { symbol, module: None, offset: address & 0xff }),
                0x10000..0x20000 => {
                    self.module.map(|m| Name { symbol, module: Some(m.to_owned()), offset: address & 0xff })
                }
                _ => None,
            }
        }
        fn in_image(&self, address: u64) -> bool {
            (0x1000..0x2000).contains(&address)
        }
    }

    #[test]
    fn addresses_are_stored_once_and_per_instance() {
        let (mut frames, mut rows) = (Frames::default(), Vec::new());
        let a = frames.user(0x1000, Some(1), &mut rows);
        assert_eq!(frames.user(0x1000, Some(1), &mut rows), a);
        assert_ne!(frames.user(0x1000, Some(2), &mut rows), a);
        assert_ne!(frames.user(0x1000, None, &mut rows), a);
        let k = frames.kernel(0x1000, None, &mut rows);
        assert_eq!(frames.kernel(0x1000, None, &mut rows), k);
        assert_eq!(
            rows.iter().map(|r| (r.id, r.kind == FrameKind::Kernel)).collect::<Vec<_>>(),
            [(1, false), (2, false), (3, false), (4, true)]
        );
    }

    #[test]
    fn early_frames_get_their_names_afterwards() {
        let (mut frames, mut rows) = (Frames::default(), Vec::new());
        let early = frames.kernel(0x1234, None, &mut rows);
        frames.kernel(0x99, None, &mut rows);
        rows.clear();
        frames.name_unnamed(&Fake::default(), &mut rows);
        assert_eq!(rows.len(), 1, "an address outside of the image stays without a name");
        assert_eq!((rows[0].id, rows[0].symbol.as_deref(), rows[0].offset), (early, Some("symbol_12"), 0x34));
    }

    #[test]
    fn another_module_at_the_same_address_is_another_frame() {
        let (mut frames, mut rows) = (Frames::default(), Vec::new());
        let (one, two) = (Fake { module: Some("one") }, Fake { module: Some("two") });
        let image = frames.kernel(0x1000, Some(&one), &mut rows);
        let before = frames.kernel(0x10000, Some(&one), &mut rows);
        frames.modules_changed(&two, &mut rows);
        assert_eq!(frames.kernel(0x1000, Some(&two), &mut rows), image);
        assert_ne!(frames.kernel(0x10000, Some(&two), &mut rows), before);
        let modules: Vec<_> = rows.iter().map(|r| r.module.as_deref()).collect();
        assert_eq!(modules, [None, Some("one"), Some("two")]);
    }

    #[test]
    fn a_guest_that_jumps_about_is_bounded() {
        let (mut frames, mut rows) = (Frames::default(), Vec::new());
        for address in 0..600_000 {
            frames.kernel(address, None, &mut rows);
            frames.user(address, Some(1), &mut rows);
            rows.clear();
        }
        assert!(frames.kernel.len() + frames.user.len() <= REMEMBERED && frames.unnamed.len() <= REMEMBERED);
    }
}
