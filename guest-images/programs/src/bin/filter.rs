//! `filter`: a process that sends itself datagrams through a BPF program, which takes most of its time.
//!
//! ```text
//! sendto -> unix_dgram_sendmsg -> sk_filter_trim_cap -> the program
//! ```

use std::ffi::c_void;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::process::ExitCode;

use guest_programs::{ProgramArgs, ProgramError, main_with, seconds, since_boot};

const USAGE: &str = "filter [--seconds N] [--classic]
sends itself datagrams for N seconds (10) on a socket with a filter that runs thousands of instructions: a BPF program
of the name filter, or with --classic one of the old instruction set; prints how many";

/// Rounds of the loop in the BPF program.
const ROUNDS: i32 = 5000;
/// Computing instructions of a program in the old set, which has no loops. By default the options of a socket
/// are limited to 20 KiB (net.core.optmem_max), and each instruction has 8 bytes.
const WORK: u16 = 2000;
/// `BPF_PROG_LOAD` and `BPF_PROG_TYPE_SOCKET_FILTER` (include/uapi/linux/bpf.h).
const PROG_LOAD: libc::c_int = 5;
const SOCKET_FILTER: u32 = 1;

/// `struct bpf_insn` (include/uapi/linux/bpf.h).
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct BpfInstruction {
    code: u8,
    /// Destination in the lower half, source in the upper.
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// Part of `union bpf_attr` for `BPF_PROG_LOAD`, up to the program's name.
#[repr(C)]
#[derive(Debug)]
struct ProgLoadAttributes {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
}

/// Opcodes: `mov`, `mul` and `add` of a 64-bit constant; a load of 32 bits; a jump if less than a constant;
/// `exit`.
const MOV: u8 = 0xb7;
const MUL: u8 = 0x27;
const ADD: u8 = 0x07;
const LOAD: u8 = 0x61;
const JUMP_LESS: u8 = 0xa5;
const EXIT: u8 = 0x95;
/// Opcodes of the old set: the same for the accumulator, a load of the length, and `ret` of a constant.
const CLASSIC_LEN: u16 = 0x80;
const CLASSIC_ADD: u16 = 0x04;
const CLASSIC_MUL: u16 = 0x24;
const CLASSIC_RET: u16 = 0x06;
/// Bytes of a datagram that the filter accepts.
const KEEP: i32 = 0x7fff;

/// Loads the program and attaches it.
fn attach(socket: &UnixDatagram) -> Result<(), ProgramError> {
    let op = |code, registers, immediate| BpfInstruction { code, registers, offset: 0, immediate };
    let program = [
        // R1 is the context, whose first member is the datagram's length.
        op(LOAD, 0x12, 0),
        op(MOV, 3, 0),
        op(MUL, 2, 3),
        op(ADD, 2, 1),
        op(ADD, 3, 1),
        BpfInstruction { offset: -4, ..op(JUMP_LESS, 3, ROUNDS) },
        op(MOV, 0, KEEP),
        op(EXIT, 0, 0),
    ];
    let load = ProgLoadAttributes {
        kind: SOCKET_FILTER,
        count: u32::try_from(program.len()).unwrap_or(0),
        instructions: program.as_ptr().addr() as u64,
        license: c"GPL".as_ptr().addr() as u64,
        log_level: 0,
        log_size: 0,
        log: 0,
        kernel_version: 0,
        flags: 0,
        name: *b"filter\0\0\0\0\0\0\0\0\0\0",
    };
    // SAFETY: the structure, the instructions and the license that it points to outlive the call, which
    // copies them.
    let program =
        unsafe { libc::syscall(libc::SYS_bpf, PROG_LOAD, &raw const load, size_of::<ProgLoadAttributes>()) };
    if program < 0 {
        return Err(last_error("load a BPF program"));
    }
    set_option(socket, libc::SO_ATTACH_BPF, &libc::c_int::try_from(program).unwrap_or(-1))
}

/// Attaches a program of the old instruction set.
fn attach_classic(socket: &UnixDatagram) -> Result<(), ProgramError> {
    let op = |code, k| libc::sock_filter { code, jt: 0, jf: 0, k };
    let mut program = vec![op(CLASSIC_LEN, 0)];
    program.extend((0..WORK).map(|i| if i % 2 == 0 { op(CLASSIC_MUL, 3) } else { op(CLASSIC_ADD, 1) }));
    program.push(op(CLASSIC_RET, KEEP.unsigned_abs()));
    set_option(
        socket,
        libc::SO_ATTACH_FILTER,
        &libc::sock_fprog { len: WORK + 2, filter: program.as_mut_ptr() },
    )
}

fn set_option<T>(socket: &UnixDatagram, option: libc::c_int, value: &T) -> Result<(), ProgramError> {
    let size = libc::socklen_t::try_from(size_of::<T>()).unwrap_or(0);
    let value = (&raw const *value).cast::<c_void>();
    // SAFETY: `value` is valid for `size` bytes, and what it points to outlives the call, which copies it.
    let done = unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, value, size) };
    if done == 0 { Ok(()) } else { Err(last_error("attach a filter")) }
}

fn last_error(what: &'static str) -> ProgramError {
    ProgramError::system(what)(std::io::Error::last_os_error())
}

fn run(args: &ProgramArgs) -> Result<(), ProgramError> {
    let (from, to) = UnixDatagram::pair().map_err(ProgramError::system("make sockets"))?;
    if args.flag("classic") {
        attach_classic(&to)?
    } else {
        attach(&to)?
    }
    let deadline = since_boot() + seconds(args, 10.0)?;
    let (mut sent, mut bytes) = (0u64, [0; 8]);
    while since_boot() < deadline {
        from.send(&sent.to_le_bytes()).map_err(ProgramError::system("send a datagram"))?;
        to.recv(&mut bytes).map_err(ProgramError::system("receive a datagram"))?;
        sent += 1;
    }
    println!("filter sent {sent} datagrams");
    Ok(())
}

fn main() -> ExitCode {
    main_with(USAGE, &["seconds", "classic!"], run)
}
