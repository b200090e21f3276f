//! Walks this process's own stack, through the C library's CFI, and compares with libgcc's unwinder.
#![cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]

mod mappings;

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::fs::File;
use std::mem::MaybeUninit;
use std::os::unix::fs::FileExt;

use mappings::Mappings;
use symbols::cfi::{CodeMapping, CodeMappings, ImageCode, UserEnd, UserFrame, UserUnwinder, UserWalkError};
use symbols::{LinkAddr, Registers, StackMemory, VirtAddr};

unsafe extern "C" {
    /// Itanium C++ ABI, exception handling, section 1.6: calls `visit` for each frame.
    fn _Unwind_Backtrace(
        visit: extern "C" fn(*mut c_void, *mut c_void) -> c_int,
        argument: *mut c_void,
    ) -> c_int;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
}

/// This process's memory.
struct Own(File);

impl StackMemory for Own {
    fn read_u64(&self, at: u64) -> Option<u64> {
        let mut word = [0; 8];
        self.0.read_exact_at(&mut word, at).ok()?;
        Some(u64::from_le_bytes(word))
    }
}

/// No more than `size` bytes from RSP on.
struct Part<'a>(&'a Own, std::ops::Range<u64>);

impl StackMemory for Part<'_> {
    fn read_u64(&self, at: u64) -> Option<u64> {
        (self.1.contains(&at)).then(|| self.0.read_u64(at))?
    }
}

/// One stack, by both unwinders.
struct Stack {
    frames: Vec<UserFrame>,
    end: UserEnd,
    libgcc: Vec<u64>,
    /// Frames and end from the first 256 bytes of the stack.
    part: (Vec<u64>, UserEnd),
    mappings: Mappings,
}

thread_local! {
    static STACK: RefCell<Option<Stack>> = const { RefCell::new(None) };
}

extern "C" fn visit(context: *mut c_void, list: *mut c_void) -> c_int {
    // SAFETY: `capture` passes its own vector, which nothing else uses meanwhile; the context is libgcc's.
    unsafe { (*list.cast::<Vec<u64>>()).push(_Unwind_GetIP(context) as u64) };
    0
}

/// Registers right after the call of `getcontext`.
#[inline(always)]
fn registers() -> Registers {
    use libc::{
        REG_R8, REG_RAX, REG_RBP, REG_RBX, REG_RCX, REG_RDI, REG_RDX, REG_RIP, REG_RSI, REG_RSP, getcontext,
    };
    let mut context = MaybeUninit::zeroed();
    // SAFETY: getcontext fills the context that it is given; all zeros are valid in what it leaves out.
    let context: libc::ucontext_t = unsafe {
        assert_eq!(getcontext(context.as_mut_ptr()), 0);
        context.assume_init()
    };
    let value =
        |register: c_int| context.uc_mcontext.gregs[usize::try_from(register).unwrap()].cast_unsigned();
    let mut registers = Registers { rip: value(REG_RIP), ..Registers::default() };
    let named = [REG_RAX, REG_RDX, REG_RCX, REG_RBX, REG_RSI, REG_RDI, REG_RBP, REG_RSP];
    for (column, register) in named.into_iter().chain(REG_R8..REG_R8 + 8).enumerate() {
        registers.gpr[column] = value(register);
    }
    registers
}

/// Walks the stack from here.
#[inline(never)]
fn capture() {
    let registers = registers();
    let mappings = Mappings::own();
    let own = Own(File::open("/proc/self/mem").unwrap());
    let mut frames = Vec::new();
    let mut unwinder = UserUnwinder::new();
    let end = unwinder.walk(&registers, &own, &mappings, 100, |frame| frames.push(frame));
    let mut part = Vec::new();
    let copied = Part(&own, registers.rsp()..registers.rsp() + 256);
    let part_end = unwinder.walk(&registers, &copied, &mappings, 100, |frame| part.push(frame.at.address.0));
    let mut libgcc: Vec<u64> = Vec::new();
    // SAFETY: `visit` takes the argument for what it is.
    unsafe { _Unwind_Backtrace(visit, (&raw mut libgcc).cast()) };
    let stack = Stack { frames, end, libgcc, part: (part, part_end), mappings };
    STACK.with(|place| place.borrow_mut().replace(stack));
}

fn taken() -> Stack {
    STACK.with(|place| place.borrow_mut().take()).expect("the stack was walked")
}

/// Returns the start of the function in which `address` is, as a virtual address.
fn function(mappings: &Mappings, address: VirtAddr) -> Option<u64> {
    let CodeMapping { bias, code: ImageCode::Cfi(table), .. } = mappings.find(address)? else { return None };
    let (LinkAddr(start), _) = table.function_start(address.linked(bias))?;
    Some(start.wrapping_add(bias))
}

/// Positions in the stack of the functions that start at these addresses.
fn positions(stack: &Stack, starts: &[usize]) -> Vec<usize> {
    let functions: Vec<_> =
        stack.frames.iter().map(|frame| function(&stack.mappings, frame.at.lookup())).collect();
    let position = |&start: &usize| functions.iter().position(|&f| f == Some(start as u64));
    starts.iter().map(|start| position(start).expect("the function is on the stack")).collect()
}

fn check_against_libgcc(stack: &Stack) {
    let addresses: Vec<u64> = stack.frames.iter().map(|frame| frame.at.address.0).collect();
    // The innermost frame is one function at two places; libgcc may add a 0 for the end.
    let libgcc: Vec<u64> = stack.libgcc.iter().copied().filter(|&address| address != 0).collect();
    assert_eq!(addresses[1..], libgcc[1..]);
    assert_eq!(
        function(&stack.mappings, VirtAddr(addresses[0])),
        function(&stack.mappings, VirtAddr(libgcc[0] - 1))
    );
    assert_eq!(stack.end, UserEnd::Complete);
    assert!(stack.frames.iter().all(|frame| frame.doubt.is_none()));
    // A part of the stack gives a part of the frames, and says why.
    let (part, end) = &stack.part;
    assert_eq!(*end, UserEnd::Broken(UserWalkError::StackNotCopied));
    assert!(part.len() < addresses.len());
    assert_eq!(*part, addresses[..part.len()]);
}

extern "C" fn compare(_: *const c_void, _: *const c_void) -> c_int {
    capture();
    std::hint::black_box(0)
}

#[inline(never)]
fn sort() {
    let mut numbers = std::hint::black_box([2_u64, 1]);
    // SAFETY: the array has two elements of 8 bytes.
    unsafe { libc::qsort(numbers.as_mut_ptr().cast(), 2, 8, Some(compare)) };
    std::hint::black_box(numbers);
}

#[test]
fn a_callback_of_the_c_library() {
    sort();
    let stack = taken();
    check_against_libgcc(&stack);
    let order = positions(
        &stack,
        &[capture as *const () as usize, compare as *const () as usize, sort as *const () as usize],
    );
    assert_eq!(order[..2], [0, 1]);
    assert!(order[2] > 2, "the C library's sort is between the callback and its user: {order:?}");
}

extern "C" fn on_signal(_: c_int) {
    capture();
    std::hint::black_box(());
}

#[inline(never)]
fn interrupt() {
    // SAFETY: the handler takes a signal's number; what it does is allowed here, as the signal is raised by
    // this very thread outside of any lock or allocation.
    unsafe {
        libc::signal(libc::SIGUSR1, on_signal as *const () as usize);
        assert_eq!(libc::raise(libc::SIGUSR1), 0);
    }
    std::hint::black_box(());
}

#[test]
fn a_signal_handler() {
    interrupt();
    let stack = taken();
    check_against_libgcc(&stack);
    let order = positions(
        &stack,
        &[capture as *const () as usize, on_signal as *const () as usize, interrupt as *const () as usize],
    );
    assert_eq!(order[..2], [0, 1]);
    assert!(
        order[2] > 3,
        "the signal frame and raise are between handler and interrupted function: {order:?}"
    );
}
