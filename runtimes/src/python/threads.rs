//! Names of threads (`threading.Thread.name`).
//!
//! ```text
//! PyThreadState ──▶ outermost frame, of Thread._bootstrap ──▶ self ──▶ attribute _name ──▶ str
//! ```
//!
//! Before 3.14 the kernel does not know these names. The main thread, and threads that `threading` has not
//! started, have no such frame.

use symbols::VirtAddr;
use symbols::bytes::u64_at;

use super::layout::AttributeStorage;
use super::names::PythonNames;
use super::walk::PythonPlan;
use crate::ProcessMemory;

/// Function of the outermost frame of a thread that `threading` has started, with its class and without.
const FUNCTIONS: [&str; 2] = ["Thread._bootstrap", "_bootstrap"];
/// File of that function.
const FILE: &str = "threading.py";
/// Attribute with the name.
const ATTRIBUTE: &str = "_name";
/// Attributes of an object that are searched, at most.
const MAX_ATTRIBUTES: u64 = 256;
/// `PyObject.ob_type`; `PyTypeObject.tp_dictoffset` (3.9 to 3.13).
const TYPE: u64 = 8;
const DICT_OFFSET: u64 = 288;
/// `PyDictObject.ma_keys` and `.ma_values` (3.9 to 3.13).
const KEYS: u64 = 32;
const VALUES: u64 = 40;
/// An object's pointer to its dict, or to its attributes, is so far below it (`MANAGED_DICT_OFFSET`, 3.11 to
/// 3.13), and that to its attributes in 3.11.
const MANAGED_DICT: u64 = 24;
const MANAGED_VALUES: u64 = 32;
/// Bytes of an object without items; flag in `PyDictValues` that attributes are there (3.13), and the first
/// attribute.
const OBJECT: u64 = 16;
const VALID: u64 = 3;
const INLINE_VALUES: u64 = 8;

/// Returns the name of `thread`; `None` if `threading` has not started it, or its memory changes meanwhile.
pub(super) fn thread_name(
    plan: &PythonPlan,
    names: &PythonNames,
    memory: &impl ProcessMemory,
    thread: VirtAddr,
) -> Option<String> {
    let layout = names.thread_layout()?;
    let (frame, code) = plan.outermost(memory, thread)?;
    let (function, file) = names.function(memory, code)?;
    if !FUNCTIONS.contains(&function.as_str()) || !file.ends_with(FILE) {
        return None;
    }
    let read = |at: Option<VirtAddr>| at.and_then(|at| memory.read_u64(at)).filter(|&word| word != 0);
    let object = VirtAddr(read(frame.checked_add(layout.locals.into()))?);
    let class = VirtAddr(read(object.checked_add(TYPE))?);
    let below = |bytes: u64| object.0.checked_sub(bytes).map(VirtAddr);
    let shared = || read(class.checked_add(layout.cached_keys.into())).map(VirtAddr);
    let keys = |keys: Option<VirtAddr>| Keys::read(memory, keys?, layout.storage);
    let of_dict = |dict: u64| {
        let dict = VirtAddr(dict);
        let keys = keys(read(dict.checked_add(KEYS)).map(VirtAddr))?;
        let position = keys.position(memory, names)?;
        match read(dict.checked_add(VALUES)) {
            // The values start after a header since 3.13.
            Some(values) if layout.storage == AttributeStorage::Inline => {
                value(memory, VirtAddr(values).checked_add(INLINE_VALUES), position)
            }
            Some(values) => value(memory, Some(VirtAddr(values)), position),
            None => keys.own_value(memory, position),
        }
    };
    let of_values = |values: Option<VirtAddr>| {
        let position = keys(shared())?.position(memory, names)?;
        value(memory, values, position)
    };
    let name = match layout.storage {
        AttributeStorage::Dict => {
            let offset = read(class.checked_add(DICT_OFFSET))?;
            of_dict(read(object.checked_add(offset))?)
        }
        AttributeStorage::Values => match read(below(MANAGED_VALUES)) {
            Some(values) => of_values(Some(VirtAddr(values))),
            None => of_dict(read(below(MANAGED_DICT))?),
        },
        AttributeStorage::Tagged => match read(below(MANAGED_DICT))? {
            values if values & 1 == 1 => of_values(VirtAddr(values).checked_add(1)),
            dict => of_dict(dict),
        },
        AttributeStorage::Inline => match read(below(MANAGED_DICT)) {
            Some(dict) => of_dict(dict),
            None => {
                let mut valid = [0];
                let values = object.checked_add(OBJECT)?;
                memory.read(values.checked_add(VALID)?, &mut valid)?;
                of_values(values.checked_add(INLINE_VALUES).filter(|_| valid != [0]))
            }
        },
    }?;
    names.string(memory, name).filter(|name| !name.is_empty())
}

/// Returns the attribute with this number.
fn value(memory: &impl ProcessMemory, values: Option<VirtAddr>, position: u64) -> Option<VirtAddr> {
    memory.read_u64(values?.checked_add(position * 8)?).map(VirtAddr)
}

/// Keys of a dict, or of the attributes of a class's objects (`PyDictKeysObject`).
struct Keys {
    entries: VirtAddr,
    count: u64,
    /// Bytes of an entry, and of what precedes its key.
    entry: (u64, u64),
}

impl Keys {
    fn read(memory: &impl ProcessMemory, at: VirtAddr, storage: AttributeStorage) -> Option<Self> {
        let mut head = [0; 40];
        memory.read(at, &mut head)?;
        let word = |offset: usize| u64_at(&head, offset);
        let (count, indices, entry) = if storage == AttributeStorage::Dict {
            // `dk_size`, whose indices have the bytes that they need, `dk_nentries`.
            let size = word(8)?;
            let width = match size {
                0..=0xff => 1,
                0x100..=0xffff => 2,
                0x1_0000..=0xffff_ffff => 4,
                _ => 8,
            };
            (word(32)?, size.checked_mul(width)?.checked_add(40)?, (24, 8))
        } else {
            // `dk_log2_index_bytes`, `dk_kind` (general: with a hash; all keys are strings), `dk_nentries`.
            let [_, bytes, kind, ..] = word(8)?.to_le_bytes();
            let indices = 1_u64.checked_shl(bytes.into())?.checked_add(32)?;
            (word(24)?, indices, if kind == 0 { (24, 8) } else { (16, 0) })
        };
        Some(Self { entries: at.checked_add(indices)?, count: count.min(MAX_ATTRIBUTES), entry })
    }

    /// Returns the number of the entry whose key is [`ATTRIBUTE`].
    fn position(&self, memory: &impl ProcessMemory, names: &PythonNames) -> Option<u64> {
        (0..self.count).find(|number| {
            let key = self.entries.checked_add(number * self.entry.0 + self.entry.1);
            let key = key.and_then(|at| memory.read_u64(at)).filter(|&key| key != 0);
            key.and_then(|key| names.string(memory, VirtAddr(key))).is_some_and(|key| key == ATTRIBUTE)
        })
    }

    /// Returns the value in an entry.
    fn own_value(&self, memory: &impl ProcessMemory, number: u64) -> Option<VirtAddr> {
        let at = self.entries.checked_add(number * self.entry.0 + self.entry.1 + 8)?;
        memory.read_u64(at).map(VirtAddr)
    }
}

#[cfg(test)]
mod tests {
    use crate::fixture::{self, BASE, FS_BASE, FlatMemory, SIZE, THREAD_NAME, VERSIONS};
    use crate::{RuntimeNames, RuntimePlan};

    fn found(version: (u8, u8), memory: &FlatMemory) -> (RuntimePlan, RuntimeNames) {
        let (plan, names) = fixture::binary(version).plan(memory, 0).expect("a layout");
        (RuntimePlan::Python(plan), RuntimeNames::Python(names))
    }

    /// Returns the name of the thread with frames.
    fn name(version: (u8, u8), memory: &FlatMemory) -> Option<String> {
        let (plan, names) = found(version, memory);
        let thread = plan.thread(memory, crate::tests::thread(FS_BASE), None)?;
        names.thread_name(memory, &plan, thread)
    }

    #[test]
    fn a_thread_of_each_version_has_its_name() {
        for version in VERSIONS {
            let wanted = (version < (3, 14)).then_some(THREAD_NAME);
            assert_eq!(name(version, &fixture::python_thread(version)).as_deref(), wanted, "{version:?}");
            assert_eq!(name(version, &fixture::python(version)), None, "another function");
        }
    }

    #[test]
    fn attributes_may_have_been_moved_to_a_dict() {
        for version in [(3, 11), (3, 12), (3, 13)] {
            let mut memory = fixture::python_thread(version);
            let (object, dict, strings) = (BASE + 0x7000, BASE + 0x7600, BASE + 0x7680);
            memory.put(object - 32, 0);
            memory.put(object - 24, dict);
            // With its own keys and values.
            let keys = BASE + 0x7e00;
            memory.put(dict + 32, keys);
            memory.write(keys + 8, &[3, 3, 1]);
            memory.put(keys + 24, 1);
            memory.put(keys + 40, strings + 0x80);
            memory.put(keys + 48, strings + 0x100);
            assert_eq!(name(version, &memory).as_deref(), Some(THREAD_NAME), "{version:?}");
        }
    }

    #[test]
    fn any_word_may_be_another_one() {
        for version in VERSIONS {
            let memory = fixture::python_thread(version);
            let (plan, names) = found(version, &memory);
            let thread = plan.thread(&memory, crate::tests::thread(FS_BASE), None).expect("a thread");
            for at in (0..SIZE as u64).step_by(8) {
                for word in [0, 1, u64::MAX, BASE, BASE + at, BASE + 0x7000, BASE + SIZE as u64 - 4] {
                    let mut memory = memory.clone();
                    memory.put(BASE + at, word);
                    let name = names.thread_name(&memory, &plan, thread);
                    assert!(name.is_none_or(|name| name.chars().count() <= 1024));
                }
            }
        }
    }
}
