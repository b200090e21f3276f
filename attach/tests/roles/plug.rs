//! A VMM that plugs in a vCPU.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::thread::JoinHandleExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use kvm_bindings::{KVM_MP_STATE_RUNNABLE, kvm_cpuid_entry2, kvm_mp_state, kvm_regs, kvm_sregs};
use vmm::config::FLAT_ENTRY;
use vmm::{Machine, Observer, Tick, VmConfig};

use super::{LOOPS, SECOND, wait_for_word};

/// KVM's number of the vCPU.
pub const NUMBER: u32 = 2;
/// Requests to KVM (include/uapi/linux/kvm.h).
const KVM_GET_SUPPORTED_CPUID: libc::Ioctl = 0xc008_ae05;
const KVM_CREATE_VCPU: libc::Ioctl = 0xae41;
const KVM_RUN: libc::Ioctl = 0xae80;
const KVM_SET_REGS: libc::Ioctl = 0x4090_ae82;
const KVM_GET_SREGS: libc::Ioctl = 0x8138_ae83;
const KVM_SET_SREGS: libc::Ioctl = 0x4138_ae84;
const KVM_SET_CPUID2: libc::Ioctl = 0x4008_ae90;
const KVM_SET_MP_STATE: libc::Ioctl = 0x4004_ae99;

/// Registers of a vCPU in the guest.
type Registers = (kvm_regs, kvm_sregs);

/// Observer of a vCPU; that of the first one notes the registers at its first tick.
struct FirstRegisters(Option<Arc<OnceLock<Registers>>>);

impl Observer for FirstRegisters {
    fn started(&mut self) -> Option<Duration> {
        Some(Duration::from_millis(10))
    }

    fn ticked(&mut self, tick: &Tick<'_>) -> Option<Duration> {
        if let Some(first) = &self.0 {
            first.get_or_init(|| (*tick.regs, *tick.sregs));
        }
        None
    }
}

/// `struct kvm_cpuid2`, with room for all entries.
#[repr(C)]
struct CpuidTable {
    count: u32,
    padding: u32,
    entries: [kvm_cpuid_entry2; 256],
}

/// Runs a guest with two vCPUs, of which the first one loops, and plugs in a third one at the test's word,
/// which jumps to itself at [`SECOND`]. With `again` it takes that one out at the next word, and gives it
/// another thread a second later, as QEMU does. Ends when the process is killed.
pub fn vmm(again: bool) -> ! {
    let mut code = LOOPS.to_vec();
    code.resize(SECOND, 0x90);
    code.extend([0xeb, 0xfe]);
    let config = VmConfig { vcpus: 2, memory_bytes: 64 << 20, ..VmConfig::flat(code) };
    let first: Arc<OnceLock<Registers>> = Arc::default();
    // The other vCPU is not started.
    let observer = |vcpu| FirstRegisters((vcpu == 0).then(|| Arc::clone(&first)));
    let machine = Machine::start(config, observer).unwrap();
    println!("it runs");
    wait_for_word();
    let vcpu = plug_in(first.wait());
    let thread = run(vcpu);
    if again {
        wait_for_word();
        END.store(true, Ordering::SeqCst);
        // A signal may come before KVM_RUN, so that it is sent again after a pause.
        while !thread.is_finished() {
            // SAFETY: the thread was not joined; the signal has a handler, which does nothing.
            unsafe { libc::pthread_kill(thread.as_pthread_t(), libc::SIGUSR1) };
            std::thread::sleep(Duration::from_millis(1));
        }
        thread.join().unwrap();
        // QEMU takes as long before it gives the vCPU another thread.
        std::thread::sleep(Duration::from_secs(1));
        END.store(false, Ordering::SeqCst);
        run(vcpu);
    }
    drop(machine.wait(Some(Duration::from_secs(100))));
    std::process::exit(0)
}

/// The thread of the vCPU that was plugged in is to end.
static END: AtomicBool = AtomicBool::new(false);

extern "C" fn on_signal(_: libc::c_int) {}

/// Runs a vCPU on a new thread, until a signal comes and [`END`] is set.
fn run(vcpu: i32) -> JoinHandle<()> {
    // SAFETY: the handler does nothing. Zeroes are a valid action; without SA_RESTART a signal ends KVM_RUN.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as extern "C" fn(libc::c_int) as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()), 0);
    }
    let run = move || {
        while !END.load(Ordering::SeqCst) {
            // SAFETY: takes no argument. A signal ends it.
            unsafe { libc::ioctl(vcpu, KVM_RUN, 0) };
        }
    };
    std::thread::Builder::new().name(format!("vcpu {NUMBER}")).spawn(run).unwrap()
}

/// Calls KVM, which has to succeed.
fn call<T>(fd: i32, request: libc::Ioctl, argument: *mut T) -> i32 {
    // SAFETY: the argument is of the type of the request, or a number, and lives through the call.
    let result = unsafe { libc::ioctl(fd, request, argument) };
    assert!(result >= 0, "{request:x}: {}", std::io::Error::last_os_error());
    result
}

/// Makes a third vCPU that is ready to run; returns its descriptor.
fn plug_in((regs, sregs): &Registers) -> i32 {
    let link = |fd: i32| fs::read_link(format!("/proc/self/fd/{fd}")).unwrap_or_default();
    let machine = (0..1_000).find(|fd| link(*fd).as_os_str() == "anon_inode:kvm-vm").expect("the machine");
    let number = std::ptr::without_provenance_mut::<u8>(usize::try_from(NUMBER).unwrap());
    let vcpu = call(machine, KVM_CREATE_VCPU, number);
    let kvm = File::open("/dev/kvm").unwrap();
    let entries = [kvm_cpuid_entry2::default(); 256];
    let mut cpuid = CpuidTable { count: 256, padding: 0, entries };
    call(kvm.as_raw_fd(), KVM_GET_SUPPORTED_CPUID, &raw mut cpuid);
    call(vcpu, KVM_SET_CPUID2, &raw mut cpuid);
    let mut reset = kvm_sregs::default();
    call(vcpu, KVM_GET_SREGS, &raw mut reset);
    let mut sregs = kvm_sregs { apic_base: reset.apic_base, ..*sregs };
    call(vcpu, KVM_SET_SREGS, &raw mut sregs);
    let mut regs = kvm_regs { rip: FLAT_ENTRY + SECOND as u64, ..*regs };
    call(vcpu, KVM_SET_REGS, &raw mut regs);
    let mut state = kvm_mp_state { mp_state: KVM_MP_STATE_RUNNABLE };
    call(vcpu, KVM_SET_MP_STATE, &raw mut state);
    vcpu
}
