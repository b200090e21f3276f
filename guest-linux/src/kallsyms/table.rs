//! The symbol table of a kernel image.

use crate::image::KernelImage;
use crate::kallsyms::decode::{SymbolNames, decode};
use crate::kallsyms::functions::{FunctionTable, KallsymsSymbol};
use crate::kallsyms::locate::{SymbolAddresses, locate};
use crate::memory::PhysicalMemory;
use symbols::shared_table::SharedTable;

/// All symbols of the image, with an index by address (functions) and one by name.
#[derive(Debug)]
pub(crate) struct SymbolTable {
    names: SymbolNames,
    addresses: SymbolAddresses,
    functions: FunctionTable,
    /// Numbers of the names, by their hashes and then in their order.
    by_name: SharedTable<u32>,
}

impl SymbolTable {
    /// Finds and decodes the symbols of `image`; `None` when it has none.
    pub(crate) fn read(memory: &impl PhysicalMemory, image: &KernelImage) -> Option<Self> {
        let arrays = locate(memory, image)?;
        let (names, types) = decode(&arrays);
        let addresses = arrays.addresses.shared(names.len());
        let functions = FunctionTable::new(image.range(), names.len(), |i| KallsymsSymbol {
            address: addresses.get(i).unwrap_or(0),
            kind: types.get(i as usize).copied().unwrap_or(0),
            name: names.get(i),
        });
        let mut by_name: Vec<u32> = (0u32..).take(names.len()).collect();
        by_name.sort_by_cached_key(|i| hash(names.get(*i)));
        Some(Self { names, addresses, functions, by_name: SharedTable::from(by_name).shared() })
    }

    /// Returns the number of symbols.
    pub(crate) fn len(&self) -> usize {
        self.addresses.len()
    }

    /// Returns the address of the first symbol with this name.
    pub(crate) fn address_of(&self, name: &str) -> Option<u64> {
        let hash = hash(name);
        let hash_of = |i: u32| self::hash(self.names.get(i));
        let first = self.by_name.partition_point(|&i| hash_of(i) < hash);
        self.by_name[first..]
            .iter()
            .take_while(|&&i| hash_of(i) == hash)
            .find(|&&i| self.names.get(i) == name)
            .and_then(|&i| self.addresses.get(i))
    }

    /// Returns the function that covers `at`, and the distance from its start.
    pub(crate) fn function_at(&self, at: u64) -> Option<(&str, u64)> {
        let (name, offset) = self.functions.find(at)?;
        Some((self.names.get(name), offset))
    }

    /// Returns every symbol's name and address, in the order of kallsyms.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        (0..).zip(self.addresses.iter()).map(|(i, address)| (self.names.get(i), address))
    }
}

/// FNV-1a, 32 bits (RFC 9923): spreads names; equal hashes are compared by name.
fn hash(name: &str) -> u32 {
    name.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}
