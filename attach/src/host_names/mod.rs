//! Names of the functions on stacks of the host: of its kernel, and of the VMM.
//!
//! ```text
//!  /proc/kallsyms ──────────────────▶ kernel   functions by address
//!  /proc/PID/maps, mapped files ────▶ program  mappings; functions and unwind tables of a file
//! ```
//!
//! Everything is opened before the process enters its sandbox, and files are parsed within it.

mod kernel;
mod program;

use std::io;

use symbols::cfi::{UserEnd, UserUnwinder, UserWalkError};

use crate::bpf::{HostStack, HostState, HostTick, VmmStack};
use kernel::KernelSymbols;
use program::ProgramCode;

/// Beginning of the functions with which an interrupt enters the kernel (arch/x86/entry/entry_64.S,
/// entry_64_fred.S, arch/x86/include/asm/idtentry.h, Linux 5.10 to 6.18): `asm_sysvec_call_function_single`.
const INTERRUPT: &str = "asm_";
/// Function in which a thread leaves its CPU (kernel/sched/core.c, Linux 6.18).
const SCHEDULE: &str = "__schedule";

/// Reason why functions of the host's kernel have no names.
#[derive(Debug, thiserror::Error)]
pub enum NamesRefusal {
    /// The kernel's list cannot be read.
    #[error("cannot read the names of the host's functions (/proc/kallsyms): {0}")]
    Unreadable(io::Error),
    /// The kernel hides the addresses.
    #[error(
        "the host's kernel hides the addresses of its functions (/proc/kallsyms); run vprof as root, and set \
         kernel.kptr_restrict below 2"
    )]
    Hidden,
}

/// Kind of a frame of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HostFrameKind {
    /// Code of the host's kernel.
    Kernel,
    /// Code of the VMM.
    User,
    /// Not code: frames beyond it are missing.
    Missing(MissingFrames),
}

/// Reason why frames of the host are missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MissingFrames {
    /// No stack was taken.
    NoStack,
    /// The stack is longer than the kernel walks.
    TooLong,
    /// The walk of the VMM's stack ends before its outermost function.
    Walk(UserWalkError),
}

impl MissingFrames {
    /// Returns the reason as a clause.
    pub fn reason(self) -> String {
        match self {
            Self::NoStack => "no stack was taken of this thread".to_owned(),
            Self::TooLong => "more frames than the host's kernel walks".to_owned(),
            Self::Walk(why) => why.to_string(),
        }
    }
}

/// Frame on a stack of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HostFrame {
    /// Kind of the frame.
    pub kind: HostFrameKind,
    /// Address in the kernel or in the VMM's process.
    pub address: u64,
    /// A return address: the call is right before it.
    pub call: bool,
}

impl HostFrame {
    fn lookup(&self) -> u64 {
        self.address.wrapping_sub(u64::from(self.call))
    }
}

fn missing(reason: MissingFrames) -> HostFrame {
    HostFrame { kind: HostFrameKind::Missing(reason), address: 0, call: false }
}

/// Name of a frame.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostName {
    /// Function; `None` if no symbol covers it.
    pub symbol: Option<String>,
    /// Kernel module, or file name of the VMM's code; `None` for the kernel image and for other code.
    pub module: Option<String>,
    /// Bytes from the symbol's start.
    pub offset: u64,
}

/// Names of the host's functions.
#[derive(Debug)]
pub struct HostNames {
    kernel: KernelSymbols,
    program: ProgramCode,
    unwinder: UserUnwinder,
}

impl HostNames {
    /// Reads the kernel's functions, and the mappings of the process of a VMM, and opens its files.
    ///
    /// # Errors
    /// The kernel's functions have no names. Code of the VMM without a file has none.
    pub(crate) fn open(pid: i32) -> Result<Self, NamesRefusal> {
        let (kernel, program) = (KernelSymbols::read()?, ProgramCode::open(pid));
        Ok(Self { kernel, program, unwinder: UserUnwinder::new() })
    }

    /// Returns the frames of a tick, outermost first; none for a tick in the guest without a stack.
    pub fn frames(&mut self, tick: &HostTick) -> Vec<HostFrame> {
        let nothing = || match tick.state {
            HostState::Guest => Vec::new(),
            _ => vec![missing(MissingFrames::NoStack)],
        };
        let Some(HostStack { kernel, user }) = &tick.stack else { return nothing() };
        let (skipped, exact) = self.begin(kernel, tick.on_cpu);
        let own = kernel.get(skipped..).unwrap_or_default();
        // The interrupt has to have come from KVM_RUN.
        if tick.state == HostState::Guest && (!exact || own.is_empty()) {
            return nothing();
        }
        // The instruction that was interrupted is not a return address.
        let kernel_frame = |(at, address): (usize, &u64)| HostFrame {
            kind: HostFrameKind::Kernel,
            address: *address,
            call: at > 0 || !exact,
        };
        let mut frames: Vec<_> = own.iter().enumerate().map(kernel_frame).collect();
        if kernel.len() >= HostStack::MOST {
            frames.push(missing(MissingFrames::TooLong));
        } else {
            self.add_user_frames(user, &mut frames);
        }
        frames.reverse();
        // The program's code was interrupted by the tick itself, and nothing is left of it.
        if frames.is_empty() { nothing() } else { frames }
    }

    /// Adds the frames of the VMM's code, innermost first.
    fn add_user_frames(&mut self, user: &VmmStack, frames: &mut Vec<HostFrame>) {
        // The kernel has not shown its registers.
        if user.registers.rip == 0 {
            return;
        }
        let end = self.unwinder.walk(&user.registers, user, &self.program, HostStack::MOST, |frame| {
            let (kind, address) = (HostFrameKind::User, frame.at.address.0);
            frames.push(HostFrame { kind, address, call: frame.at.is_return() });
        });
        if let UserEnd::Broken(why) = end {
            frames.push(missing(MissingFrames::Walk(why)));
        }
    }

    /// Returns the index of the first function that belongs to the thread itself, and not to the interrupt or
    /// the switch in which the stack was taken, and whether its address is that of the next instruction.
    fn begin(&self, kernel: &[u64], on_cpu: bool) -> (usize, bool) {
        let name = |address: &u64| self.kernel.find(address.wrapping_sub(1)).map(|found| found.name);
        let find = |wanted: &dyn Fn(&str) -> bool| {
            kernel.iter().position(|address| name(address).is_some_and(wanted))
        };
        match on_cpu {
            true => match find(&|name| name.starts_with(INTERRUPT)) {
                Some(at) => (at.saturating_add(1), true),
                None => (0, false),
            },
            false => (find(&|name| name == SCHEDULE).unwrap_or(0), false),
        }
    }

    /// Returns the name of a frame.
    pub fn name(&self, frame: &HostFrame) -> HostName {
        match frame.kind {
            HostFrameKind::Kernel => {
                let found = self.kernel.find(frame.lookup());
                found.map_or_else(HostName::default, |found| HostName {
                    symbol: Some(found.name.to_owned()),
                    module: found.module.map(str::to_owned),
                    offset: frame.address.wrapping_sub(found.start),
                })
            }
            HostFrameKind::User => {
                let mut name = self.program.name(frame.lookup());
                if name.symbol.is_some() {
                    name.offset = name.offset.saturating_add(u64::from(frame.call));
                }
                name
            }
            HostFrameKind::Missing(reason) => {
                HostName { symbol: Some(reason.reason()), ..HostName::default() }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use symbols::Registers;

    use super::*;
    use crate::bpf::HostState;

    const KALLSYMS: &str = "\
ffffffff81000000 T _text
ffffffff81001000 T asm_sysvec_call_function_single
ffffffff81002000 t __schedule
ffffffff81003000 T schedule
ffffffff81004000 T bpf_get_stack_raw_tp
ffffffff81005000 T entry_SYSCALL_64_after_hwframe
ffffffffc0001000 t kvm_vcpu_ioctl\t[kvm]
";
    const BPF: u64 = 0xffff_ffff_8100_4010;
    const INTERRUPTED: u64 = 0xffff_ffff_8100_1010;
    const SWITCH: u64 = 0xffff_ffff_8100_2010;
    const IOCTL: u64 = 0xffff_ffff_c000_1000;
    const ENTRY: u64 = 0xffff_ffff_8100_5010;

    fn names() -> HostNames {
        let maps = "55550000-55551000 r-xp 00000000 00:00 0 \n";
        let program = ProgramCode::from_maps(maps, |_| None);
        let kernel = KernelSymbols::parse(KALLSYMS).unwrap();
        HostNames { kernel, program, unwinder: UserUnwinder::new() }
    }

    /// Returns the stack of code without tables, which has frame pointers: called at each of these addresses,
    /// the innermost first, from address 0.
    fn framed(addresses: &[u64]) -> VmmStack {
        const RSP: u64 = 0x7ffc_0000_0000;
        let mut user = VmmStack { bytes: vec![0; 128], ..VmmStack::default() };
        user.registers.rip = addresses[0];
        (user.registers.gpr[Registers::RSP], user.registers.gpr[Registers::RBP]) = (RSP, RSP);
        for (frame, caller) in addresses[1..].iter().chain(&[0]).enumerate() {
            // The outermost one has no frame below it.
            let next = if *caller == 0 { 0 } else { RSP + 16 * u64::try_from(frame + 1).unwrap() };
            user.bytes.extend(next.to_le_bytes().into_iter().chain(caller.to_le_bytes()));
        }
        user
    }

    fn named(on_cpu: bool, stack: Option<HostStack>) -> Vec<String> {
        named_in(HostState::Vmm, on_cpu, stack)
    }

    fn named_in(state: HostState, on_cpu: bool, stack: Option<HostStack>) -> Vec<String> {
        let mut names = names();
        let tick = HostTick { time_ns: 1, state, on_cpu, stack };
        let frames = names.frames(&tick);
        let name = |frame: &HostFrame| {
            let name = names.name(frame);
            name.symbol.unwrap_or_else(|| format!("{:#x}", frame.address))
        };
        frames.iter().map(name).collect()
    }

    #[test]
    fn the_interrupt_that_takes_a_stack_is_not_part_of_it() {
        let user = framed(&[0x5555_0010, 0x5555_0020]);
        let stack = HostStack { kernel: vec![BPF, INTERRUPTED, IOCTL, ENTRY], user: user.clone() };
        // The first byte of a function was interrupted.
        let in_kernel = ["0x55550020", "0x55550010", "entry_SYSCALL_64_after_hwframe", "kvm_vcpu_ioctl"];
        assert_eq!(named(true, Some(stack)), in_kernel);
        let in_program = HostStack { kernel: vec![BPF, INTERRUPTED], user };
        assert_eq!(named(true, Some(in_program)), ["0x55550020", "0x55550010"]);
    }

    #[test]
    fn a_walk_that_ends_early_says_why() {
        let mut user = framed(&[0x5555_0010, 0x5555_0020]);
        user.bytes.truncate(128 + 16);
        let stack = HostStack { kernel: vec![BPF, INTERRUPTED], user };
        let why = UserWalkError::AnonymousCode.to_string();
        assert_eq!(named(true, Some(stack)), [why.as_str(), "0x55550020", "0x55550010"]);
    }

    #[test]
    fn in_the_guest_the_stack_is_the_way_into_it() {
        let user = framed(&[0x5555_0010]);
        let stack = HostStack { kernel: vec![BPF, INTERRUPTED, IOCTL, ENTRY], user: user.clone() };
        let way = ["0x55550010", "entry_SYSCALL_64_after_hwframe", "kvm_vcpu_ioctl"];
        assert_eq!(named_in(HostState::Guest, true, Some(stack)), way);
        for kernel in [vec![BPF, INTERRUPTED], vec![BPF, IOCTL]] {
            let unknown = HostStack { kernel, user: user.clone() };
            assert_eq!(named_in(HostState::Guest, true, Some(unknown)), [""; 0]);
        }
        assert_eq!(named_in(HostState::Guest, true, None), [""; 0]);
    }

    #[test]
    fn a_thread_without_a_cpu_is_where_it_has_left_it() {
        let kernel = vec![BPF, SWITCH, 0xffff_ffff_8100_3010, IOCTL + 0x20, ENTRY];
        let stack = HostStack { kernel, user: VmmStack::default() };
        assert_eq!(
            named(false, Some(stack)),
            ["entry_SYSCALL_64_after_hwframe", "kvm_vcpu_ioctl", "schedule", "__schedule"]
        );
    }

    #[test]
    fn missing_frames_have_a_reason() {
        let no_stack = MissingFrames::NoStack.reason();
        assert_eq!(named(false, None), [no_stack.as_str()]);
        assert_eq!(named(true, Some(HostStack::default())), [no_stack.as_str()]);
        let long = HostStack { kernel: vec![ENTRY; HostStack::MOST], user: framed(&[0x5555_0010]) };
        let names = named(true, Some(long));
        assert_eq!((names.len(), names[0].clone()), (HostStack::MOST + 1, MissingFrames::TooLong.reason()));
        assert!(names[1..].iter().all(|name| name == "entry_SYSCALL_64_after_hwframe"));
    }

    #[test]
    fn kernel_modules_are_named() {
        let frame = HostFrame { kind: HostFrameKind::Kernel, address: IOCTL + 4, call: true };
        let wanted =
            HostName { symbol: Some("kvm_vcpu_ioctl".to_owned()), module: Some("kvm".to_owned()), offset: 4 };
        assert_eq!(names().name(&frame), wanted);
    }
}
