//! Functions of the kernel that are watched on request.

use super::site::{NOP, PAGE, ProbeSite, no_op};
use crate::btf::FunctionArgument;
use crate::kernel::Kernel;
use crate::memory::PhysicalMemory;
use display::clean::escaped;
use display::suggest::suggest;
use symbols::{PhysAddr, VirtAddr};

/// Opcodes at the start of a function that the guest traces: the tracer's CALL, and the breakpoint and the
/// JMP of a kprobe (arch/x86/kernel/ftrace.c, arch/x86/kernel/kprobes, Linux 6.12).
const TRACED: [u8; 3] = [0xe8, 0xcc, 0xe9];

/// A function of the kernel image whose calls can be observed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchedFunction {
    /// Its name in kallsyms.
    pub name: String,
    /// Its address.
    pub address: VirtAddr,
    /// Address of the no-op.
    pub(super) virt: VirtAddr,
    phys: PhysAddr,
    /// Its arguments in registers, from the first on; `None` if BTF does not describe the function, as for
    /// variants that the compiler has made (`.isra.0`).
    pub arguments: Option<Vec<FunctionArgument>>,
}

impl WatchedFunction {
    /// Returns the place to observe calls of the function, the `number`-th one that is watched.
    pub(super) fn site(&self, number: u8) -> ProbeSite {
        ProbeSite { event: None, watched: Some(number), virt: self.virt, phys: self.phys, loads: None }
    }
}

/// Reason why calls of a function cannot be observed. The message has names of the guest's functions in
/// printable form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CannotWatch {
    /// No function of the kernel image has the name.
    #[error("the guest's kernel has no function {} in its image{}", escaped(.name), resembling(.similar))]
    Unknown {
        /// The name that was given.
        name: String,
        /// Names that resemble it.
        similar: Vec<String>,
    },
    /// Several functions have the name.
    #[error("the guest's kernel has {count} functions {}: such a name cannot be watched", escaped(.name))]
    Ambiguous {
        /// The name.
        name: String,
        /// Number of functions.
        count: usize,
    },
    /// The kernel frees the function's code when it has booted.
    #[error("the guest's kernel has freed the code of {}, which runs during boot only", escaped(.name))]
    Init {
        /// The name.
        name: String,
    },
    /// The function has no no-op for the function tracer.
    #[error(
        "the function {} of the guest's kernel has no 5-byte no-op at its start: it is not traceable (notrace){}",
        escaped(.name), resembling(.similar)
    )]
    NoNoOp {
        /// The name.
        name: String,
        /// Names of traceable functions that resemble it.
        similar: Vec<String>,
    },
    /// The guest traces the function.
    #[error("the guest traces the function {} itself (ftrace, kprobe or BPF)", escaped(.name))]
    Traced {
        /// The name.
        name: String,
    },
    /// The kernel has no symbols.
    #[error(transparent)]
    Missing(#[from] crate::Missing),
}

/// Formats names that resemble one.
fn resembling(names: &[String]) -> String {
    let names: Vec<_> = names.iter().map(|name| escaped(name)).collect();
    if names.is_empty() { String::new() } else { format!("; similar: {}", names.join(", ")) }
}

impl Kernel {
    /// Checks that each name is that of one function of the image. For a kernel that still boots: the code of
    /// the functions is not read.
    ///
    /// # Errors
    /// The first function that cannot be watched.
    pub fn check_watched(&self, memory: &impl PhysicalMemory, names: &[String]) -> Result<(), CannotWatch> {
        names.iter().try_for_each(|name| self.function(memory, name, false).map(drop))
    }

    /// Returns the functions with these names, by the present text of a kernel that has booted.
    ///
    /// # Errors
    /// The first function that cannot be watched.
    pub fn watched(
        &self,
        memory: &impl PhysicalMemory,
        names: &[String],
    ) -> Result<Vec<WatchedFunction>, CannotWatch> {
        let found = names.iter().map(|name| self.watched_function(memory, name));
        let mut found = found.collect::<Result<Vec<_>, _>>()?;
        // A kernel without readable BTF has no exact mode either; functions are watched all the same.
        let _no_types = self.with_btf(memory, |btf| {
            let names: Vec<&str> = found.iter().map(|function| function.name.as_str()).collect();
            let arguments = btf.arguments(&names);
            for (function, arguments) in found.iter_mut().zip(arguments) {
                function.arguments = arguments;
            }
            Ok(())
        });
        Ok(found)
    }

    fn watched_function(
        &self,
        memory: &impl PhysicalMemory,
        name: &str,
    ) -> Result<WatchedFunction, CannotWatch> {
        let address = self.function(memory, name, true)?;
        let image = self.view(memory).image;
        let name = name.to_owned();
        let Some(virt) = no_op(memory, image, address) else {
            let mut start = [0; 5];
            let at = [address, address.saturating_add(4)]
                .map(|at| image.read(memory, at, &mut start).filter(|()| TRACED.contains(&start[0])));
            return Err(match at {
                [None, None] => CannotWatch::NoNoOp { similar: self.similar(memory, &name, true), name },
                _ => CannotWatch::Traced { name },
            });
        };
        let phys = image.translate(virt).filter(|_| virt & (PAGE - 1) <= PAGE - NOP.len() as u64);
        // A no-op that is not the tracer's may be anything's.
        let (Some(phys), Ok(counts)) = (phys, self.trace_counts(memory, &[virt])) else {
            return Err(CannotWatch::NoNoOp { similar: self.similar(memory, &name, true), name });
        };
        if super::trace::are_traced(&counts, memory) {
            return Err(CannotWatch::Traced { name });
        }
        let (address, virt) = (VirtAddr(address), VirtAddr(virt));
        Ok(WatchedFunction { name, address, virt, phys, arguments: None })
    }

    /// Returns the address of the only function of the image with this name. `booted`: suggestions are
    /// functions that can be watched.
    fn function(&self, memory: &impl PhysicalMemory, name: &str, booted: bool) -> Result<u64, CannotWatch> {
        self.symbol_table()?;
        let named = self.symbols().filter(|(found, at)| *found == name && self.is_function(*at));
        let mut addresses: Vec<u64> = named.map(|(_, at)| at.0).collect();
        addresses.sort_unstable();
        addresses.dedup();
        match addresses.as_slice() {
            [at] if self.is_init(*at) => Err(CannotWatch::Init { name: name.to_owned() }),
            [at] => Ok(*at),
            [] => Err(CannotWatch::Unknown {
                similar: self.similar(memory, name, booted),
                name: name.to_owned(),
            }),
            several => Err(CannotWatch::Ambiguous { name: name.to_owned(), count: several.len() }),
        }
    }

    /// True at the start of a function of the image.
    fn is_function(&self, at: VirtAddr) -> bool {
        self.symbol_at(at).is_some_and(|symbol| symbol.offset == 0)
    }

    /// True for code that the kernel frees when it has booted (include/asm-generic/vmlinux.lds.h).
    fn is_init(&self, at: u64) -> bool {
        let bound = |name| self.symbol(name).ok();
        bound("_sinittext").zip(bound("_einittext")).is_some_and(|(start, end)| (start..end).contains(&at))
    }

    /// Returns names of functions that resemble one; with `traceable` only of those with a no-op.
    fn similar(&self, memory: &impl PhysicalMemory, wanted: &str, traceable: bool) -> Vec<String> {
        let image = self.view(memory).image;
        let functions = self.symbols().filter(|(name, at)| {
            *name != wanted
                && self.is_function(*at)
                && !self.is_init(at.0)
                && (!traceable || no_op(memory, image, at.0).is_some())
        });
        suggest(wanted, functions.map(|(name, _)| name)).into_iter().map(str::to_owned).collect()
    }
}
