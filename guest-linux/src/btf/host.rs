//! Types of the kernel of this machine, from `/sys/kernel/btf`.
//!
//! A module's BTF continues the kernel's: its types have the numbers, and its strings the offsets, that
//! follow the kernel's (Documentation/bpf/btf.rst, split BTF). So both together are BTF again:
//!
//! ```text
//! kernel   header | types 1..n                | strings
//! module   header |            types n+1..m   |          strings
//! merged   header | types 1..m                | strings, strings
//! ```

use std::fs;
use std::io;
use std::path::Path;

use super::Btf;
use symbols::bytes::{index, u32_at};

/// Bytes of a BTF header.
const HEADER: usize = 24;
/// Offset of the offset of the types, of the strings' follows 8 bytes later.
const TYPES: usize = 8;
const STRINGS: usize = 16;

/// BTF of the kernel, and of some of its modules.
#[derive(Debug)]
pub struct HostTypes(Vec<Vec<u8>>);

/// Index over [`HostTypes`].
#[derive(Debug)]
pub struct HostLayouts<'a>(Vec<Btf<'a>>);

impl HostTypes {
    /// Reads the kernel's BTF, and that of the modules that have one of their own: a module that is built in,
    /// or is not loaded, has none.
    ///
    /// # Errors
    /// The kernel has no BTF, or it may not be read.
    pub fn read(modules: &[&str]) -> io::Result<Self> {
        let directory = Path::new("/sys/kernel/btf");
        let kernel = fs::read(directory.join("vmlinux"))?;
        let mut own = Vec::new();
        for module in modules {
            match fs::read(directory.join(module)) {
                Ok(bytes) => own.push(bytes),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Self::from_bytes(kernel, &own).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Merges the BTF of each of the modules with the kernel's; `None` if something is not BTF.
    pub fn from_bytes(kernel: Vec<u8>, modules: &[Vec<u8>]) -> Option<Self> {
        if modules.is_empty() {
            return Some(Self(vec![kernel]));
        }
        modules.iter().map(|module| merge(&kernel, module)).collect::<Option<_>>().map(Self)
    }

    /// Indexes the types.
    pub fn layouts(&self) -> HostLayouts<'_> {
        HostLayouts(self.0.iter().filter_map(|bytes| Btf::parse(bytes)).collect())
    }
}

impl HostLayouts<'_> {
    /// Returns the offset in bytes of the member at `path` (`"structure.member.inner"`).
    pub fn offset(&self, path: &str) -> Option<u32> {
        let member = self.0.iter().find_map(|btf| btf.member_by_path(path))?;
        u32::try_from(member.offset).ok()
    }

    /// Returns the size in bytes of a structure.
    pub fn size_of(&self, name: &str) -> Option<u32> {
        let size = self.0.iter().find_map(|btf| btf.size_of(name))?;
        u32::try_from(size).ok()
    }

    /// Returns names and offsets in bytes of all numbers of 8 bytes in the structure at `path`.
    pub fn words(&self, path: &str) -> Vec<(String, u32)> {
        let found = self.0.iter().map(|btf| btf.words(path)).find(|words| !words.is_empty());
        let words = found.unwrap_or_default().into_iter();
        words.filter_map(|(name, offset)| Some((name, u32::try_from(offset).ok()?))).collect()
    }

    /// Returns the number that the kernel has given to the type of one of its functions.
    pub fn function(&self, name: &str) -> Option<u32> {
        // The kernel's types are the first of each.
        self.0.first()?.function(name)
    }

    /// Returns the value of a name in the enumeration `of`.
    pub fn enumerator(&self, of: &str, name: &str) -> Option<u32> {
        self.0.iter().find_map(|btf| btf.enumerator(of, name))
    }

    /// Returns the number of elements of the array at `path`.
    pub fn elements(&self, path: &str) -> Option<u32> {
        let elements = self.0.iter().find_map(|btf| btf.elements(btf.member_by_path(path)?))?;
        u32::try_from(elements).ok()
    }
}

/// Returns a part of BTF, by the offset of its description in the header.
fn section(bytes: &[u8], at: usize) -> Option<&[u8]> {
    let start = index(u64::from(u32_at(bytes, 4)?)).checked_add(index(u64::from(u32_at(bytes, at)?)))?;
    bytes.get(start..start.checked_add(index(u64::from(u32_at(bytes, at + 4)?)))?)
}

fn merge(kernel: &[u8], module: &[u8]) -> Option<Vec<u8>> {
    let types = [section(kernel, TYPES)?, section(module, TYPES)?];
    let strings = [section(kernel, STRINGS)?, section(module, STRINGS)?];
    let bytes = |parts: [&[u8]; 2]| u32::try_from(parts[0].len().checked_add(parts[1].len())?).ok();
    let (types_len, strings_len) = (bytes(types)?, bytes(strings)?);
    // Magic, version and flags; no offset is needed before the types.
    let mut merged = kernel.get(..4)?.to_vec();
    for word in [u32::try_from(HEADER).ok()?, 0, types_len, types_len, strings_len] {
        merged.extend(word.to_le_bytes());
    }
    merged.extend([types.concat(), strings.concat()].concat());
    Some(merged)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::BtfWriter;

    /// Number of the function in [`split`].
    const ITERATE: u32 = 5;

    /// Returns the BTF of a kernel, and that of a module whose structure has a member of a type, and with a
    /// name, of the kernel's.
    fn split() -> (Vec<u8>, Vec<u8>) {
        let mut kernel = BtfWriter::new();
        let int = kernel.int("int", 4);
        let list = kernel.structure("list", &[("next", int, 0), ("before", int, 4)]);
        kernel.enumeration("register", &[("RIP", 16)]);
        assert_eq!(kernel.function("iterate", &[("list", int)]), ITERATE);
        let kernel = kernel.bytes();
        let names = u32::try_from(section(&kernel, STRINGS).unwrap().len()).unwrap();
        let strings = b"vcpu\0links\0";
        // The structure, of 16 bytes, with one member at byte 8.
        let words = [names, 4 << 24 | 1, 16, names + 5, list, 64];
        let mut module = kernel.get(..4).unwrap().to_vec();
        for word in [24, 0, 24, 24, u32::try_from(strings.len()).unwrap()].into_iter().chain(words) {
            module.extend(word.to_le_bytes());
        }
        module.extend(strings);
        (kernel, module)
    }

    #[test]
    fn a_module_has_members_of_the_kernels_types() {
        let (kernel, module) = split();
        let types = HostTypes::from_bytes(kernel.clone(), &[module]).unwrap();
        let layouts = types.layouts();
        assert_eq!(layouts.offset("vcpu.links.before"), Some(12));
        assert_eq!(layouts.offset("list.before"), Some(4));
        assert_eq!((layouts.size_of("vcpu"), layouts.offset("vcpu.none")), (Some(16), None));
        assert_eq!(layouts.enumerator("register", "RIP"), Some(16));
        assert_eq!(layouts.enumerator("register", "RSP"), None);
        assert_eq!((layouts.function("iterate"), layouts.function("list")), (Some(ITERATE), None));
        let alone = HostTypes::from_bytes(kernel, &[]).unwrap();
        assert_eq!(alone.layouts().offset("vcpu.links"), None);
    }

    #[test]
    fn words_are_the_numbers_of_8_bytes_also_within_structures() {
        let mut types = BtfWriter::new();
        let (small, word) = (types.int("int", 4), types.int("u64", 8));
        let inner = types.structure("generic", &[("polls", word, 0), ("small", small, 8)]);
        let stat = types.structure("stat", &[("generic", inner, 0), ("exits", word, 16)]);
        types.structure("vcpu", &[("before", word, 0), ("stat", stat, 8)]);
        let types = HostTypes::from_bytes(types.bytes(), &[]).unwrap();
        let words = types.layouts().words("vcpu.stat");
        assert_eq!(words, [("polls".to_owned(), 8), ("exits".to_owned(), 24)]);
        assert!(types.layouts().words("vcpu.before").is_empty());
        assert!(types.layouts().words("vcpu.none").is_empty());
    }

    #[test]
    fn what_is_no_btf_has_no_types() {
        let (kernel, module) = split();
        for cut in 0..module.len() {
            let types = HostTypes::from_bytes(kernel.clone(), &[module[..cut].to_vec()]);
            assert!(types.is_none_or(|types| types.layouts().offset("vcpu.links").is_none()), "{cut}");
        }
        assert_eq!(HostTypes::from_bytes(b"no".to_vec(), &[]).unwrap().layouts().offset("a.b"), None);
    }

    #[test]
    fn this_kernel_has_tasks() {
        match HostTypes::read(&["no_such_module"]) {
            Ok(types) => assert!(types.layouts().offset("task_struct.pid").is_some_and(|offset| offset > 0)),
            Err(error) => testkit::missing(&format!("/sys/kernel/btf/vmlinux ({error})")),
        }
    }
}
