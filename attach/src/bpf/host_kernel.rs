//! Offsets and numbers from the types of the host's kernel, looked up once: the types take some 20 ms to read
//! and to index, and are the same for all machines. A copy of a process (`fork`) has what that one has found.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use aya::{Btf, Endianness};
use guest_linux::HostTypes;

use super::course::KernelCounter;
use super::offsets::{HostOffsets, MissingMember, Vendor};
use super::refusal::BpfRefusal;

/// Modules whose types are of interest, if they are not built in. The vendors' have KVM's types, too.
const MODULES: [&str; 4] = ["kvm_amd", "kvm_pvm", "kvm_intel", "kvm"];
/// The kernel's iterator of open files, to which a program attaches.
const FILES: &str = "task_file";
/// Bytes of `struct btf_header` and `struct btf_type`, and the kinds of types that are written here
/// (include/uapi/linux/btf.h).
const HEADER: u32 = 24;
const TYPE: u32 = 12;
const KIND_FWD: u32 = 7;
const KIND_FUNC: u32 = 12;

/// Offsets and numbers from the types of the host's kernel.
#[derive(Debug)]
pub(crate) struct HostKernel {
    /// Of each vendor's module.
    offsets: [(Vendor, Result<HostOffsets, MissingMember>); 3],
    counters: Vec<KernelCounter>,
    files: Option<FileIterator>,
}

/// The iterator of open files, by its number among the kernel's types.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FileIterator(u32);

impl HostKernel {
    /// Returns what is known, or looks it up if it is not, or the modules are others by now.
    ///
    /// # Errors
    /// The kernel has no types that can be read.
    pub(crate) fn known() -> Result<Arc<Self>, BpfRefusal> {
        static KNOWN: Mutex<Option<(KvmModules, Arc<HostKernel>)>> = Mutex::new(None);
        let modules = KvmModules::loaded();
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, kernel)) = &*known
            && of.is_certainly(&modules)
        {
            return Ok(Arc::clone(kernel));
        }
        let kernel = Arc::new(Self::read()?);
        *known = Some((modules, Arc::clone(&kernel)));
        Ok(kernel)
    }

    fn read() -> Result<Self, BpfRefusal> {
        let types = HostTypes::read(&MODULES).map_err(BpfRefusal::NoTypes)?;
        let layouts = types.layouts();
        let counters = layouts.words("kvm_vcpu.stat").into_iter();
        Ok(Self {
            offsets: [Vendor::Svm, Vendor::Pvm, Vendor::Vmx]
                .map(|vendor| (vendor, HostOffsets::new(&layouts, vendor))),
            counters: counters.map(|(name, offset)| KernelCounter { name, offset }).collect(),
            files: layouts.function(&format!("bpf_iter_{FILES}")).map(FileIterator),
        })
    }

    /// Returns the offsets in the structures of this vendor's module.
    ///
    /// # Errors
    /// A member is missing.
    pub(crate) fn offsets(&self, vendor: Vendor) -> Result<HostOffsets, BpfRefusal> {
        let of_vendor = self.offsets.iter().find(|(of, _)| *of == vendor);
        Ok(of_vendor.map(|(_, offsets)| *offsets).ok_or(BpfRefusal::Vendor)??)
    }

    /// Returns KVM's counters in a vCPU.
    pub(crate) fn counters(&self) -> &[KernelCounter] {
        &self.counters
    }

    /// Returns the iterator of open files.
    ///
    /// # Errors
    /// The kernel has none.
    pub(crate) fn files(&self) -> Result<FileIterator, BpfRefusal> {
        self.files.ok_or_else(|| BpfRefusal::Program(format!("the kernel has no iterator {FILES}")))
    }
}

/// Looks up offsets in the host's kernel, for this process and those that it copies itself to: each of them
/// would do it by itself otherwise, in some 20 ms.
///
/// # Errors
/// The kernel has no types that can be read.
pub fn look_up_host_kernel() -> Result<(), BpfRefusal> {
    HostKernel::known().map(drop)
}

impl FileIterator {
    /// The iterator's name, as [`Iter::load`](aya::programs::Iter::load) takes it.
    pub(crate) const NAME: &str = FILES;

    /// Returns types of which the iterator's function has its number, and all others have no name: its number
    /// is all that the loader looks up, and the kernel's own types take 20 MB there.
    pub(crate) fn types(self) -> Result<Btf, BpfRefusal> {
        let names = [b"\0bpf_iter_".as_slice(), FILES.as_bytes(), b"\0"].concat();
        let bytes = |types: u32| types.checked_mul(TYPE);
        let (Some(types), Ok(strings)) = (bytes(self.0), u32::try_from(names.len())) else {
            return Err(BpfRefusal::Program("the kernel has too many types".to_owned()));
        };
        // Magic and version; type 0 is not written.
        let mut btf = vec![0x9f, 0xeb, 1, 0];
        let words = [HEADER, 0, types, types, strings].into_iter();
        let others = (1..self.0).flat_map(|_| [0, KIND_FWD << 24, 0]);
        let function = [1, KIND_FUNC << 24, 0];
        btf.extend(words.chain(others).chain(function).flat_map(u32::to_le_bytes));
        btf.extend(names);
        Btf::parse(&btf, Endianness::Little).map_err(|error| BpfRefusal::Program(error.to_string()))
    }
}

/// The modules of KVM that are loaded, by what distinguishes two builds of a module.
#[derive(Debug, PartialEq, Eq)]
struct KvmModules(Vec<KvmModule>);

/// A module with separate types.
#[derive(Debug, PartialEq, Eq)]
struct KvmModule {
    name: &'static str,
    /// ELF note with its build-id, if it has one.
    build: Option<Vec<u8>>,
}

impl KvmModules {
    fn loaded() -> Self {
        let module = |name: &'static str| {
            let has_types = Path::new("/sys/kernel/btf").join(name).exists();
            let notes: PathBuf = ["/sys/module", name, "notes/.note.gnu.build-id"].iter().collect();
            has_types.then(|| KvmModule { name, build: fs::read(notes).ok() })
        };
        Self(MODULES.into_iter().filter_map(module).collect())
    }

    /// Returns true if these are the same modules: one without a build-id may be another one.
    fn is_certainly(&self, other: &Self) -> bool {
        self == other && self.0.iter().all(|module| module.build.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_iterator_has_its_number_among_the_types_that_the_loader_sees() {
        let types = FileIterator(70_000).types().unwrap();
        let mut bytes = types.to_bytes();
        assert_eq!(Btf::parse(&bytes, Endianness::Little).unwrap().to_bytes(), bytes);
        // Header, and the types before it.
        let at = 24 + 69_999 * 12;
        assert_eq!(&bytes[at..at + 12], [1, 0, 0, 0, 0, 0, 0, 12, 0, 0, 0, 0]);
        assert_eq!(bytes.split_off(at + 12), b"\0bpf_iter_task_file\0");
        assert!(FileIterator(u32::MAX).types().is_err());
    }

    #[test]
    fn the_host_is_looked_up_once_for_the_same_modules() {
        let Ok(first) = HostKernel::known() else { return testkit::missing("types of the host's kernel") };
        let again = HostKernel::known().unwrap();
        let modules = KvmModules::loaded();
        assert_eq!(Arc::ptr_eq(&first, &again), modules.is_certainly(&modules));
    }

    #[test]
    fn a_module_without_a_build_id_may_be_another_one() {
        let module = |build: Option<&[u8]>| KvmModule { name: "kvm", build: build.map(<[u8]>::to_vec) };
        let modules = |build| KvmModules(vec![module(build)]);
        assert!(modules(Some(b"1")).is_certainly(&modules(Some(b"1"))));
        assert!(!modules(Some(b"1")).is_certainly(&modules(Some(b"2"))));
        assert!(!modules(Some(b"1")).is_certainly(&KvmModules(Vec::new())));
        assert!(!modules(None).is_certainly(&modules(None)));
        assert!(KvmModules(Vec::new()).is_certainly(&KvmModules(Vec::new())));
    }
}
