//! A booted kernel: found in guest memory, then asked.

use display::clean::ascii;

use crate::btf::{self, Btf};
use crate::current::CurrentReader;
use crate::generated::GeneratedCode;
use crate::image::KernelImage;
use crate::kallsyms::table::SymbolTable;
use crate::kernel_identity::KernelIdentity;
use crate::layout::Layouts;
use crate::memory::PhysicalMemory;
use crate::memory_use::MemoryReader;
use crate::missing::Missing;
use crate::module::{ModuleHead, Modules};
use crate::paging::{AddressSpace, roots};
use crate::stack::StackReader;
use crate::symbol::SymbolAt;
use crate::task::{self, TaskSnapshot};
use crate::unwind::KernelUnwinder;
use crate::view::View;
use symbols::VirtAddr;
use symbols::bytes::until_nul;

/// First bytes of the banner (`linux_banner`, init/version-timestamp.c).
const BANNER: &[u8] = b"Linux version ";
/// A release is shorter than this (`__NEW_UTS_LEN`, include/uapi/linux/utsname.h).
const MAX_RELEASE: usize = 64;

/// One booted kernel as found in guest memory: immutable, shared between threads.
#[derive(Debug)]
pub struct Kernel {
    image: KernelImage,
    space: AddressSpace,
    symbols: Option<SymbolTable>,
    pub(crate) layouts: Result<Layouts, Missing>,
    release: Option<String>,
    missing: Vec<Missing>,
}

/// A step of [`Kernel::find_in_steps`] that has just ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FindStep {
    /// The page tables were walked and the image was found.
    Image,
    /// The symbols were found and decoded.
    Kallsyms,
    /// BTF was indexed and the offsets were looked up.
    Btf,
}

impl Kernel {
    /// Finds the kernel in guest memory. `cr3` and `five_level` (CR4.LA57) come from any vCPU once
    /// paging with the kernel's own tables is on; a process's tables under PTI do, too. Tolerates a guest
    /// that runs meanwhile; call again later when it fails, which is cheap: nothing but page tables is read
    /// until an image is there.
    ///
    /// # Errors
    /// [`Missing::NoKernelImage`]. What else is not there is shown by [`Kernel::missing`].
    pub fn find(memory: &impl PhysicalMemory, cr3: u64, five_level: bool) -> Result<Kernel, Missing> {
        Self::find_in_steps(memory, cr3, five_level, |_| ())
    }

    /// Finds the kernel like [`Kernel::find`], and reports the end of each step, for measurements.
    ///
    /// # Errors
    /// As [`Kernel::find`].
    pub fn find_in_steps(
        memory: &impl PhysicalMemory,
        cr3: u64,
        five_level: bool,
        mut ended: impl FnMut(FindStep),
    ) -> Result<Kernel, Missing> {
        let (image, found_by) = roots(cr3)
            .filter_map(|cr3| {
                let space = AddressSpace::new(cr3, five_level);
                Some((KernelImage::find(memory, &space)?, space))
            })
            // Process tables under PTI show but a part of the image.
            .max_by_key(|(image, _)| image.mapped_bytes())
            .ok_or(Missing::NoKernelImage)?;
        ended(FindStep::Image);

        let mut missing = Vec::new();
        let symbols = SymbolTable::read(memory, &image);
        ended(FindStep::Kallsyms);
        let layouts = match &symbols {
            Some(symbols) => from_btf(memory, &image, symbols, Layouts::new),
            None => Err(Missing::NoKallsyms),
        };
        ended(FindStep::Btf);
        match &layouts {
            Err(reason) => missing.push(reason.clone()),
            Ok(layouts) => missing.extend(
                [layouts.task.as_ref().err(), layouts.threads.as_ref().err(), layouts.module.as_ref().err()]
                    .into_iter()
                    .flatten()
                    .cloned(),
            ),
        }
        let root =
            symbols.as_ref().and_then(|s| s.address_of("init_top_pgt")).and_then(|at| image.translate(at));
        Ok(Kernel {
            release: release(memory, &image, symbols.as_ref()),
            space: root.map_or(found_by, |root| AddressSpace::new(root.0, five_level)),
            image,
            symbols,
            layouts,
            missing,
        })
    }

    /// Returns the kernel's release, like `6.1.0-50-cloud-amd64`.
    pub fn release(&self) -> Option<&str> {
        self.release.as_deref()
    }

    /// Returns the reasons why parts of this kernel are not available, for the report ("no BTF in this
    /// kernel: no process names").
    pub fn missing(&self) -> &[Missing] {
        &self.missing
    }

    /// Returns the addresses of this kernel's banner, by which a stopped vCPU is known to run it; `None` for
    /// a kernel whose banner or release is not known.
    pub fn identity(&self) -> Option<KernelIdentity> {
        let at = self.banner()?;
        Some(KernelIdentity::new(VirtAddr(at), self.image.translate(at)?))
    }

    /// Returns true if this very kernel is still in memory: its banner with the same release, and the
    /// variables of each CPU where `reader` has them, if that was made. Another boot of the same kernel may
    /// have them elsewhere. Always true of a kernel whose banner is not known.
    pub fn is_there(&self, memory: &impl PhysicalMemory, reader: Option<&CurrentReader>) -> bool {
        self.banner().is_none_or(|at| release_at(memory, &self.image, at) == self.release)
            && reader.is_none_or(|before| {
                self.current_reader(memory).is_ok_and(|now| now.has_same_addresses(before))
            })
    }

    /// Returns the address of `linux_banner`, if the release could be read from there.
    fn banner(&self) -> Option<u64> {
        self.release.as_ref().and(self.symbols.as_ref())?.address_of("linux_banner")
    }

    /// Returns the start and end virtual address of the mapped kernel image.
    pub fn image(&self) -> (VirtAddr, VirtAddr) {
        self.image.public_range()
    }

    /// Returns the kernel's own address space (`init_top_pgt`), which maps all of the kernel, direct map and
    /// modules included, once it has booted; that of the CR3 it was found by, where that symbol is not known.
    pub fn address_space(&self) -> AddressSpace {
        self.space
    }

    /// Returns the kernel image's symbol that covers `at` (functions only).
    pub fn symbol_at(&self, at: VirtAddr) -> Option<SymbolAt<'_>> {
        let (name, offset) = self.symbols.as_ref()?.function_at(at.0)?;
        Some(SymbolAt { name, module: None, offset })
    }

    /// Returns the address of the first symbol with this name. A per-CPU symbol's is relative to each CPU's
    /// area (`__per_cpu_offset[]` is to be added).
    pub fn address_of(&self, name: &str) -> Option<VirtAddr> {
        self.symbols.as_ref()?.address_of(name).map(VirtAddr)
    }

    /// Returns the number of kallsyms symbols.
    pub fn symbol_count(&self) -> usize {
        self.symbols.as_ref().map_or(0, SymbolTable::len)
    }

    /// Returns the name and address of every kallsyms symbol, data included, in the order of
    /// `/proc/kallsyms`.
    pub fn symbols(&self) -> impl Iterator<Item = (&str, VirtAddr)> {
        self.symbols.iter().flat_map(SymbolTable::iter).map(|(name, address)| (name, VirtAddr(address)))
    }

    /// Returns the loaded modules with their symbols, read now; at most 4,096.
    ///
    /// # Errors
    /// The reason why they cannot be found.
    pub fn modules(&self, memory: &impl PhysicalMemory) -> Result<Modules, Missing> {
        Ok(self.other_modules(memory, &Modules::default())?.unwrap_or_default())
    }

    /// Returns the loaded modules as [`Kernel::modules`] reads them; `None` while they are `known`, which few
    /// reads show.
    ///
    /// # Errors
    /// The reason why they cannot be found.
    pub fn other_modules(
        &self,
        memory: &impl PhysicalMemory,
        known: &Modules,
    ) -> Result<Option<Modules>, Missing> {
        let layouts = self.layouts.as_ref().map_err(Clone::clone)?;
        let layout = layouts.module.as_ref().map_err(Clone::clone)?;
        let view = self.view(memory);
        let heads = ModuleHead::all(&view, layout, self.symbol("modules")?)?;
        Ok((!known.have(&heads)).then(|| Modules::read(&view, layout, heads)))
    }

    /// Returns all tasks (threads) but the idle ones, read now; at most 65,536. Threads that start or end
    /// meanwhile may be left out.
    ///
    /// # Errors
    /// The reason why they cannot be found.
    pub fn tasks(&self, memory: &impl PhysicalMemory) -> Result<Vec<TaskSnapshot>, Missing> {
        let layouts = self.layouts.clone()?;
        task::all(&self.view(memory), &layouts.task?, &layouts.threads?, self.symbol("init_task")?)
    }

    /// Returns a reader of current tasks, once the per-CPU areas are set up.
    ///
    /// # Errors
    /// The reason; [`Missing::may_come`] is true if a later attempt may succeed.
    pub fn current_reader(&self, memory: &impl PhysicalMemory) -> Result<CurrentReader, Missing> {
        let layouts = self.layouts.as_ref().map_err(Clone::clone)?;
        let symbols = self.symbols.as_ref().ok_or(Missing::NoKallsyms)?;
        CurrentReader::new(&self.view(memory), symbols, layouts)
    }

    /// Returns a copier of stacks, once the per-CPU areas are set up.
    ///
    /// # Errors
    /// The reason; [`Missing::may_come`] is true if a later attempt may succeed.
    pub fn stack_reader(&self, memory: &impl PhysicalMemory) -> Result<StackReader, Missing> {
        let layouts = self.layouts.as_ref().map_err(Clone::clone)?;
        let symbols = self.symbols.as_ref().ok_or(Missing::NoKallsyms)?;
        StackReader::new(&self.view(memory), symbols, layouts)
    }

    /// Returns the unwinder `before` for these modules instead of those that it was made for.
    pub fn unwinder_for(
        &self,
        memory: &impl PhysicalMemory,
        modules: &Modules,
        before: &KernelUnwinder,
    ) -> KernelUnwinder {
        before.with_modules(&self.view(memory), modules)
    }

    /// Returns an unwinder of kernel stacks, for the image and for these modules, whose tables are read now.
    pub fn unwinder(&self, memory: &impl PhysicalMemory, modules: &Modules) -> KernelUnwinder {
        let layout = match &self.layouts {
            Ok(layouts) => layouts.orc.clone(),
            Err(missing) => Err(missing.clone()),
        };
        KernelUnwinder::new(&self.view(memory), self.symbols.as_ref(), layout, modules)
    }

    /// Returns the code that the kernel has generated, as far as its lists can be read, read now; at most
    /// 4,096 functions of each kind.
    pub fn generated_code(&self, memory: &impl PhysicalMemory) -> GeneratedCode {
        let (Ok(layouts), Some(symbols)) = (&self.layouts, &self.symbols) else {
            return GeneratedCode::default();
        };
        GeneratedCode::read(self.view(memory), symbols, layouts.generated)
    }

    /// Returns a reader of the guest's memory by holder, once the per-CPU areas are set up. It takes the time
    /// of parsing BTF.
    ///
    /// # Errors
    /// The reason; [`Missing::may_come`] is true if a later attempt may succeed.
    pub fn memory_reader(&self, memory: &impl PhysicalMemory) -> Result<MemoryReader<&Self>, Missing> {
        MemoryReader::new(self, memory)
    }

    pub(crate) fn view<'a, M: PhysicalMemory>(&'a self, memory: &'a M) -> View<'a, M> {
        View::new(memory, &self.image, self.space)
    }

    /// Returns what `read` finds in the kernel's BTF, which is parsed for it.
    pub(crate) fn with_btf<T>(
        &self,
        memory: &impl PhysicalMemory,
        read: impl FnOnce(&Btf<'_>) -> Result<T, Missing>,
    ) -> Result<T, Missing> {
        from_btf(memory, &self.image, self.symbol_table()?, read)
    }

    pub(crate) fn symbol_table(&self) -> Result<&SymbolTable, Missing> {
        self.symbols.as_ref().ok_or(Missing::NoKallsyms)
    }

    pub(crate) fn symbol(&self, name: &str) -> Result<u64, Missing> {
        let symbols = self.symbols.as_ref().ok_or(Missing::NoKallsyms)?;
        symbols.address_of(name).ok_or_else(|| Missing::NoSymbol(name.into()))
    }
}

/// Returns what `read` finds in the kernel's BTF, which is dropped again.
fn from_btf<T>(
    memory: &impl PhysicalMemory,
    image: &KernelImage,
    symbols: &SymbolTable,
    read: impl FnOnce(&Btf<'_>) -> Result<T, Missing>,
) -> Result<T, Missing> {
    let start = symbols.address_of("__start_BTF").ok_or(Missing::NoBtf)?;
    let end = symbols.address_of("__stop_BTF").ok_or(Missing::NoBtf)?;
    match end.checked_sub(start) {
        Some(0) => return Err(Missing::NoBtf),
        Some(len) if len <= btf::MAX_BYTES => {}
        _ => return Err(Missing::BadBtf),
    }
    let bytes = image.bytes(memory, (start, end)).ok_or(Missing::BadBtf)?;
    let btf = Btf::parse(&bytes).ok_or(Missing::BadBtf)?;
    read(&btf)
}

/// Returns the release in the banner: where the symbol says, else the first in the image.
fn release(
    memory: &impl PhysicalMemory,
    image: &KernelImage,
    symbols: Option<&SymbolTable>,
) -> Option<String> {
    let release_at = |at| release_at(memory, image, at);
    symbols
        .and_then(|s| s.address_of("linux_banner"))
        .and_then(release_at)
        .or_else(|| image.search(memory, BANNER, release_at))
}

/// Returns the release in a banner that is at `at`.
fn release_at(memory: &impl PhysicalMemory, image: &KernelImage, at: u64) -> Option<String> {
    let mut text = [0; BANNER.len() + MAX_RELEASE];
    image.read(memory, at, &mut text)?;
    let text = text.strip_prefix(BANNER)?;
    let end = text.iter().position(|&b| b == b' ')?;
    // A version starts with a digit; a format string for one does not.
    text[0].is_ascii_digit().then(|| ascii(until_nul(&text[..end])))
}
