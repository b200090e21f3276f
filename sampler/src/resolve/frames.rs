//! Code addresses, each stored once: kernel addresses alone, user addresses together with their file, or with
//! their instance if they have none.

use std::collections::HashMap;
use std::fmt;

use guest_linux::{CodeAddr, VirtAddr};

use super::entry::CodeOwner;
use super::walker::{JitSymbol, LateNames, ManagedFunction, ReasonSubject};
use display::clean;
use profile::rows::{FrameKind, FrameRow};
use runtimes::ManagedFrame;
use symbols::LinkAddr;

/// Addresses that are remembered at once. Beyond that all are forgotten and get new rows, so a guest that
/// jumps about costs rows in the file but no memory here. Readers of the profile add up by address, not by
/// row.
const REMEMBERED: usize = 262_144;

/// Name of all code of guests of the guest.
pub(crate) const NESTED_GUEST: &str = "[nested guest]";
/// Name of all code whose address is not known.
const NO_ADDRESS: &str = "[code without an address]";
/// Module of code in memory without a file, which a program has made itself.
const ANONYMOUS: &str = "anonymous";
/// Module of such code that the program has named.
const JIT: &str = "[jit]";

/// Name of a kernel address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KernelName {
    /// Symbol; `None` for an address in a module that no symbol covers.
    pub symbol: Option<String>,
    /// Module, `None` for the kernel image.
    pub module: Option<String>,
    /// Bytes from the start of the symbol.
    pub offset: u64,
}

/// Source of names of kernel addresses.
pub(crate) trait KernelNames: fmt::Debug + Send + Sync {
    /// Returns the name of `address`.
    fn name(&self, address: VirtAddr) -> Option<KernelName>;
    /// Returns true if `address` is in the kernel image, whose code never moves.
    fn in_image(&self, address: VirtAddr) -> bool;
}

/// Key of a frame.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum FrameKey {
    Kernel(CodeAddr),
    /// By file row id.
    File {
        file: u32,
        at: CodeAddr<LinkAddr>,
    },
    /// By instance row id; 0 if the process is not known.
    Process {
        instance: u32,
        at: CodeAddr,
    },
    /// Code that a process has made and named.
    Made {
        instance: u32,
        at: CodeAddr,
        symbol: JitSymbol,
    },
    Managed {
        instance: u32,
        frame: ManagedFrame,
    },
    Reason {
        of: ReasonSubject,
        why: String,
    },
    NestedGuest,
    NoAddress,
}

/// A function of the kernel.
#[derive(Debug)]
struct KernelFunction {
    start: u64,
    symbol: Box<str>,
    part: CodeOwner,
}

/// All frames that are remembered.
#[derive(Debug, Default)]
pub(crate) struct FrameTable {
    known: HashMap<FrameKey, u32>,
    /// Functions of kernel frames, by row id.
    functions: HashMap<u32, KernelFunction>,
    unnamed: Vec<(u32, CodeAddr)>,
    /// Frames of code that an instance has made and not named yet: row id and address.
    made: HashMap<u32, Vec<(u32, CodeAddr)>>,
    given: u32,
}

impl FrameTable {
    /// Returns the row id of a kernel address.
    pub(crate) fn kernel(
        &mut self,
        at: CodeAddr,
        names: Option<&dyn KernelNames>,
        rows: &mut Vec<FrameRow>,
    ) -> u32 {
        let key = FrameKey::Kernel(at);
        if let Some(&id) = self.known.get(&key) {
            return id;
        }
        let id = self.add(key);
        let name = names.and_then(|names| names.name(at.lookup()));
        self.note(id, at, name.as_ref());
        rows.push(kernel_row(id, at, name));
        id
    }

    /// Returns the row id of an address in a file, and true if the row is new.
    pub(crate) fn file(
        &mut self,
        (file, module): (u32, &str),
        at: CodeAddr<LinkAddr>,
        rows: &mut Vec<FrameRow>,
    ) -> (u32, bool) {
        let key = FrameKey::File { file, at };
        if let Some(&id) = self.known.get(&key) {
            return (id, false);
        }
        let id = self.add(key);
        let module = Some(clean::printable(module));
        let kind = FrameKind::User;
        let (address, call) = (at.address.0, at.is_return());
        rows.push(FrameRow { id, address, call, kind, file: Some(file), module, ..FrameRow::default() });
        (id, true)
    }

    /// Returns the row id of an address in a process's own memory, or in unknown memory. Without an instance,
    /// the process is not known.
    pub(crate) fn user(
        &mut self,
        at: CodeAddr,
        instance: Option<u32>,
        anonymous: bool,
        rows: &mut Vec<FrameRow>,
    ) -> u32 {
        let key = FrameKey::Process { instance: instance.unwrap_or(0), at };
        if let Some(&id) = self.known.get(&key) {
            return id;
        }
        let id = self.add(key);
        let (kind, module) = (FrameKind::User, anonymous.then(|| ANONYMOUS.to_owned()));
        let (address, call) = (at.address.0, at.is_return());
        rows.push(FrameRow { id, address, call, kind, instance, module, ..FrameRow::default() });
        if let Some(instance) = instance.filter(|_| anonymous) {
            self.made.entry(instance).or_default().push((id, at));
        }
        id
    }

    /// Returns the instances with code of their own making that has no name yet.
    pub(crate) fn without_names(&self) -> Vec<u32> {
        self.made.keys().copied().collect()
    }

    /// Names code that `instance` has made.
    pub(crate) fn name_made(&mut self, instance: u32, late: &LateNames<'_>, rows: &mut Vec<FrameRow>) {
        let (map, ended) = match late {
            LateNames::Unchanged => return,
            LateNames::Changed(map) => (Some(*map), false),
            LateNames::Ended(map) => (*map, true),
        };
        if let Some((map, frames)) = map.zip(self.made.get_mut(&instance)) {
            frames.retain(|&(id, at)| {
                let Some(symbol) = map.find(at.lookup()) else { return true };
                rows.push(made_row(id, at, Some(instance), symbol));
                false
            });
        }
        if ended || self.made.get(&instance).is_some_and(Vec::is_empty) {
            self.made.remove(&instance);
        }
    }

    /// Returns the row id of an address in code that a process has made, in the function `symbol`. Other code
    /// at the same address gets another row.
    pub(crate) fn made(
        &mut self,
        at: CodeAddr,
        instance: Option<u32>,
        symbol: &JitSymbol,
        rows: &mut Vec<FrameRow>,
    ) -> u32 {
        let key = FrameKey::Made { instance: instance.unwrap_or(0), at, symbol: symbol.clone() };
        if let Some(&id) = self.known.get(&key) {
            return id;
        }
        let id = self.add(key);
        rows.push(made_row(id, at, instance, symbol));
        id
    }

    /// Returns the row id of a frame of a managed language, in `function`.
    pub(crate) fn managed(
        &mut self,
        frame: &ManagedFrame,
        function: &ManagedFunction,
        instance: Option<u32>,
        rows: &mut Vec<FrameRow>,
    ) -> u32 {
        let key = FrameKey::Managed { instance: instance.unwrap_or(0), frame: *frame };
        if let Some(&id) = self.known.get(&key) {
            return id;
        }
        let id = self.add(key);
        let offset = frame.instruction.map_or(0, u64::from);
        rows.push(FrameRow {
            id,
            address: frame.code.0.wrapping_add(offset),
            kind: FrameKind::Managed,
            instance,
            symbol: function.name().map(clean::printable),
            module: Some(function.language().to_owned()),
            offset,
            source: function.file().map(clean::printable),
            line: function.line(frame),
            ..FrameRow::default()
        });
        id
    }

    /// Returns the row id of a reason why frames are missing.
    pub(crate) fn reason(&mut self, of: ReasonSubject, why: &str, rows: &mut Vec<FrameRow>) -> u32 {
        let key = FrameKey::Reason { of, why: why.to_owned() };
        if let Some(&id) = self.known.get(&key) {
            return id;
        }
        let id = self.add(key);
        let (kind, symbol) = (FrameKind::Reason, Some(clean::printable(why)));
        let module = Some(of.name().to_owned());
        rows.push(FrameRow { id, kind, symbol, module, ..FrameRow::default() });
        id
    }

    /// Returns the row id of all code of guests of the guest.
    pub(crate) fn nested_guest(&mut self, rows: &mut Vec<FrameRow>) -> u32 {
        self.without_address(FrameKey::NestedGuest, NESTED_GUEST, 0, rows)
    }

    /// Returns the row id of all code whose address is not known.
    pub(crate) fn no_address(&mut self, rows: &mut Vec<FrameRow>) -> u32 {
        self.without_address(FrameKey::NoAddress, NO_ADDRESS, 1, rows)
    }

    /// Returns the row id of code without an address. It has one that no code has, since it is not canonical.
    fn without_address(&mut self, key: FrameKey, name: &str, number: u64, rows: &mut Vec<FrameRow>) -> u32 {
        if let Some(&id) = self.known.get(&key) {
            return id;
        }
        let id = self.add(key);
        let (kind, symbol) = (FrameKind::Kernel, Some(name.to_owned()));
        rows.push(FrameRow { id, address: 1 << 63 | number, kind, symbol, ..FrameRow::default() });
        id
    }

    /// Returns the function of a kernel frame: start address and symbol.
    pub(crate) fn function(&self, id: u32) -> Option<(u64, &str)> {
        self.functions.get(&id).map(|function| (function.start, function.symbol.as_ref()))
    }

    /// Returns the owner of a kernel frame's function.
    pub(crate) fn part(&self, id: u32) -> CodeOwner {
        self.functions.get(&id).map_or(CodeOwner::Other, |function| function.part)
    }

    fn add(&mut self, key: FrameKey) -> u32 {
        if self.known.len() >= REMEMBERED {
            self.known.clear();
            self.functions.clear();
            self.unnamed.clear();
            self.made.clear();
        }
        self.given = self.given.saturating_add(1);
        self.known.insert(key, self.given);
        self.given
    }

    fn note(&mut self, id: u32, at: CodeAddr, name: Option<&KernelName>) {
        match name {
            Some(KernelName { symbol: Some(symbol), offset, .. }) => {
                let start = at.lookup().0.wrapping_sub(*offset);
                let part = CodeOwner::from_symbol(symbol);
                self.functions.insert(id, KernelFunction { start, symbol: symbol.as_str().into(), part });
            }
            Some(_) => {}
            None => self.unnamed.push((id, at)),
        }
    }

    /// Names the frames without a name. Frames that stay without one are tried again at the next call.
    pub(crate) fn name_unnamed(&mut self, names: &dyn KernelNames, rows: &mut Vec<FrameRow>) {
        for (id, at) in std::mem::take(&mut self.unnamed) {
            let name = names.name(at.lookup());
            self.note(id, at, name.as_ref());
            if name.is_some() {
                rows.push(kernel_row(id, at, name));
            }
        }
    }

    /// Forgets the kernel's frames: another kernel's addresses get their own rows.
    pub(crate) fn forget_kernel(&mut self) {
        self.known.retain(|key, _| !matches!(key, FrameKey::Kernel(_)));
        self.unnamed.clear();
    }

    /// Notes that other modules are loaded. An address outside of the image may have got another name, so it
    /// gets a new row.
    pub(crate) fn modules_changed(&mut self, names: &dyn KernelNames, rows: &mut Vec<FrameRow>) {
        self.name_unnamed(names, rows);
        self.known.retain(|key, _| !matches!(key, FrameKey::Kernel(at) if !names.in_image(at.address)));
        let known = &self.known;
        self.unnamed.retain(|&(_, at)| known.contains_key(&FrameKey::Kernel(at)));
    }
}

fn made_row(id: u32, at: CodeAddr, instance: Option<u32>, symbol: &JitSymbol) -> FrameRow {
    FrameRow {
        id,
        address: at.address.0,
        call: at.is_return(),
        kind: FrameKind::User,
        instance,
        symbol: Some(symbol.name.to_string()),
        module: Some(JIT.to_owned()),
        offset: at.address.0.wrapping_sub(symbol.start.0),
        ..FrameRow::default()
    }
}

fn kernel_row(id: u32, at: CodeAddr, name: Option<KernelName>) -> FrameRow {
    let (symbol, module, offset) = name.map_or((None, None, 0), |n| (n.symbol, n.module, n.offset));
    let clean = |name: Option<String>| name.map(|name| clean::printable(&name));
    let (address, call) = (at.address.0, at.is_return());
    let offset = if call { offset.wrapping_add(1) } else { offset };
    FrameRow {
        id,
        address,
        call,
        symbol: clean(symbol),
        module: clean(module),
        offset,
        ..FrameRow::default()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::walker::PerfMap;
    use super::*;

    /// Image of 0x1000 bytes at 0x1000, symbols of 0x100 bytes each; one module at 0x10000 if it has a name.
    #[derive(Debug, Default, Clone)]
    pub(crate) struct FakeNames {
        pub module: Option<&'static str>,
    }

    impl KernelNames for FakeNames {
        fn name(&self, VirtAddr(address): VirtAddr) -> Option<KernelName> {
            let symbol = Some(format!("symbol_{:x}", address >> 8));
            match address {
                0x1000..0x2000 => Some(KernelName { symbol, module: None, offset: address & 0xff }),
                0x10000..0x20000 => self.module.map(|m| KernelName {
                    symbol,
                    module: Some(m.to_owned()),
                    offset: address & 0xff,
                }),
                _ => None,
            }
        }
        fn in_image(&self, VirtAddr(address): VirtAddr) -> bool {
            (0x1000..0x2000).contains(&address)
        }
    }

    fn exact(address: u64) -> CodeAddr {
        CodeAddr::exact(VirtAddr(address))
    }

    fn returning(address: u64) -> CodeAddr {
        CodeAddr::returning(VirtAddr(address))
    }

    #[test]
    fn addresses_are_stored_once_and_per_instance() {
        let (mut frames, mut rows) = (FrameTable::default(), Vec::new());
        let a = frames.user(exact(0x1000), Some(1), false, &mut rows);
        assert_eq!(frames.user(exact(0x1000), Some(1), false, &mut rows), a);
        assert_ne!(frames.user(exact(0x1000), Some(2), false, &mut rows), a);
        assert_ne!(frames.user(exact(0x1000), None, false, &mut rows), a);
        let k = frames.kernel(exact(0x1000), None, &mut rows);
        assert_eq!(frames.kernel(exact(0x1000), None, &mut rows), k);
        assert_eq!(
            rows.iter().map(|r| (r.id, r.kind == FrameKind::Kernel)).collect::<Vec<_>>(),
            [(1, false), (2, false), (3, false), (4, true)]
        );
    }

    #[test]
    fn a_return_address_is_named_by_the_call_before_it() {
        let (mut frames, mut rows) = (FrameTable::default(), Vec::new());
        let names = FakeNames::default();
        let id = frames.kernel(returning(0x1300), Some(&names), &mut rows);
        assert_ne!(frames.kernel(exact(0x1300), Some(&names), &mut rows), id);
        assert_eq!(
            (rows[0].symbol.as_deref(), rows[0].offset, rows[0].call),
            (Some("symbol_12"), 0x100, true)
        );
        assert_eq!(frames.function(id), Some((0x1200, "symbol_12")));
    }

    #[test]
    fn code_of_a_file_and_reasons_are_stored_once() {
        let (mut frames, mut rows) = (FrameTable::default(), Vec::new());
        let first = frames.file((3, "libz.so"), CodeAddr::returning(LinkAddr(0x50)), &mut rows);
        assert_eq!(
            frames.file((3, "libz.so"), CodeAddr::returning(LinkAddr(0x50)), &mut rows),
            (first.0, false)
        );
        assert!(first.1 && frames.file((4, "libz.so"), CodeAddr::returning(LinkAddr(0x50)), &mut rows).1);
        let why = frames.reason(ReasonSubject::User, "too \x1bdeep", &mut rows);
        assert_eq!(frames.reason(ReasonSubject::User, "too \x1bdeep", &mut rows), why);
        assert_ne!(frames.reason(ReasonSubject::Kernel, "too \x1bdeep", &mut rows), why);
        assert!(rows.iter().all(|row| row.symbol.as_ref().is_none_or(|symbol| !symbol.contains('\x1b'))));
    }

    #[test]
    fn made_code_that_is_renamed_gets_its_own_row() {
        let (mut frames, mut rows) = (FrameTable::default(), Vec::new());
        let symbol = |start, name: &str| JitSymbol {
            start: VirtAddr(start),
            end: VirtAddr(0x1100),
            name: name.into(),
        };
        let before = frames.user(exact(0x1010), Some(1), true, &mut rows);
        let first = frames.made(exact(0x1010), Some(1), &symbol(0x1000, "first"), &mut rows);
        assert_eq!(frames.made(exact(0x1010), Some(1), &symbol(0x1000, "first"), &mut rows), first);
        let others = [
            frames.made(exact(0x1010), Some(1), &symbol(0x1000, "second"), &mut rows),
            frames.made(exact(0x1010), Some(1), &symbol(0x1008, "second"), &mut rows),
            frames.made(returning(0x1010), Some(1), &symbol(0x1008, "second"), &mut rows),
            frames.made(returning(0x1010), Some(2), &symbol(0x1008, "second"), &mut rows),
        ];
        assert_eq!((before, first, others), (1, 2, [3, 4, 5, 6]));
        let row = |row: &FrameRow| (row.symbol.clone(), row.module.clone(), row.offset);
        let jit = || Some("[jit]".to_owned());
        assert_eq!(row(&rows[1]), (Some("first".into()), jit(), 0x10));
        assert_eq!(row(&rows[3]), (Some("second".into()), jit(), 8));
    }

    #[test]
    fn made_code_gets_its_name_when_the_program_names_it() {
        let (mut frames, mut rows) = (FrameTable::default(), Vec::new());
        let early = frames.user(exact(0x1010), Some(1), true, &mut rows);
        let call = frames.user(returning(0x1020), Some(1), true, &mut rows);
        let never = frames.user(exact(0x9000), Some(1), true, &mut rows);
        frames.user(exact(0x1010), Some(2), true, &mut rows);
        frames.user(exact(0x1010), Some(3), false, &mut rows);
        rows.clear();
        let map = PerfMap::parse(b"1000 20 first\n");
        frames.name_made(1, &LateNames::Unchanged, &mut rows);
        assert!(rows.is_empty());
        frames.name_made(1, &LateNames::Changed(&map), &mut rows);
        let names: Vec<_> = rows
            .iter()
            .map(|row| (row.id, row.symbol.as_deref(), row.module.as_deref(), row.offset))
            .collect();
        // A return address after the function's end is in the function.
        assert_eq!(names, [(early, Some("first"), Some(JIT), 0x10), (call, Some("first"), Some(JIT), 0x20)]);
        rows.clear();
        frames.name_made(
            1,
            &LateNames::Ended(Some(&PerfMap::parse(b"1000 20 second\n9000 20 last\n"))),
            &mut rows,
        );
        let names: Vec<_> = rows.iter().map(|row| (row.id, row.symbol.as_deref())).collect();
        assert_eq!(names, [(never, Some("last"))]);
        assert_eq!(frames.without_names(), [2]);
        frames.name_made(2, &LateNames::Ended(None), &mut rows);
        assert!(frames.without_names().is_empty());
    }

    #[test]
    fn early_frames_get_their_names_afterwards() {
        let (mut frames, mut rows) = (FrameTable::default(), Vec::new());
        let early = frames.kernel(exact(0x1234), None, &mut rows);
        frames.kernel(exact(0x99), None, &mut rows);
        rows.clear();
        frames.name_unnamed(&FakeNames::default(), &mut rows);
        assert_eq!(rows.len(), 1, "an address outside of the image stays without a name");
        assert_eq!((rows[0].id, rows[0].symbol.as_deref(), rows[0].offset), (early, Some("symbol_12"), 0x34));
    }

    #[test]
    fn another_module_at_the_same_address_is_another_frame() {
        let (mut frames, mut rows) = (FrameTable::default(), Vec::new());
        let (one, two) = (FakeNames { module: Some("one") }, FakeNames { module: Some("two") });
        let image = frames.kernel(exact(0x1000), Some(&one), &mut rows);
        let before = frames.kernel(exact(0x10000), Some(&one), &mut rows);
        frames.modules_changed(&two, &mut rows);
        assert_eq!(frames.kernel(exact(0x1000), Some(&two), &mut rows), image);
        assert_ne!(frames.kernel(exact(0x10000), Some(&two), &mut rows), before);
        let modules: Vec<_> = rows.iter().map(|r| r.module.as_deref()).collect();
        assert_eq!(modules, [None, Some("one"), Some("two")]);
    }

    #[test]
    fn a_guest_that_jumps_about_is_bounded() {
        let (mut frames, mut rows) = (FrameTable::default(), Vec::new());
        for address in 0..600_000 {
            frames.kernel(exact(address), None, &mut rows);
            frames.user(exact(address), Some(1), true, &mut rows);
            rows.clear();
        }
        assert!(frames.known.len() <= REMEMBERED && frames.unnamed.len() <= REMEMBERED);
        assert!(frames.made[&1].len() <= REMEMBERED);
    }
}
