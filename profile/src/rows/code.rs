//! What ran: files, mappings, frames, stacks, machine code.

use serde::{Deserialize, Serialize};

/// A row of table `file`: a file of the guest that code was mapped from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRow {
    /// Row id; 1 and up. A row with a known id replaces the earlier (it was read).
    pub id: u32,
    /// Path in the guest; `[vdso]` for the kernel's own.
    pub path: String,
    /// Device number, as `major << 20 | minor` (include/linux/kdev_t.h).
    pub device: u32,
    /// Inode number.
    pub inode: u64,
    /// Type of the file system, like `ext4`.
    pub filesystem: String,
    /// No name leads to it any more.
    pub deleted: bool,
    /// GNU build-id, hexadecimal.
    pub build_id: Option<String>,
    /// Where its bytes were read from, like `image` or `page cache`; or why they could not be read.
    pub read_from: Option<String>,
    /// What names its functions, like `.symtab` or a debug file's path.
    pub named_by: Option<String>,
}

/// A row of table `mapping`: executable memory of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MappingRow {
    /// Instance row id.
    pub instance: u32,
    /// First address.
    pub start: u64,
    /// Address behind the last.
    pub end: u64,
    /// File row id; `None` for memory without a file.
    pub file: Option<u32>,
    /// Bytes from the file's start to the mapping's.
    pub file_offset: u64,
}

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum FrameKind {
    /// Code of the kernel.
    #[default]
    Kernel,
    /// Code of a process.
    User,
    /// No code: the symbol says why the frames beyond are not known.
    Reason,
}

impl FrameKind {
    /// As in table `frame`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::User => "user",
            Self::Reason => "reason",
        }
    }
}

/// A row of table `frame`: one interned code address, or a reason in place of frames.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameRow {
    /// Row id; 1 and up. A row with a known id replaces the earlier (it got its name).
    pub id: u32,
    /// Instruction address: virtual for the kernel and for memory without a file, else the ELF file's own.
    pub address: u64,
    /// A return address: the call lies right before it.
    pub call: bool,
    /// What it is.
    pub kind: FrameKind,
    /// Instance whose address space it is in, for user code without a file.
    pub instance: Option<u32>,
    /// File row id, for user code of a file.
    pub file: Option<u32>,
    /// Symbol's name, once known.
    pub symbol: Option<String>,
    /// Kernel module; for user code the file name, `anonymous`, or `[jit]` where the program names code of its own making;
    /// `None` for the kernel image.
    pub module: Option<String>,
    /// Bytes from the symbol's start.
    pub offset: u64,
    /// Source file, where the binary tells it.
    pub source: Option<String>,
    /// Line in the source file, from 1.
    pub line: Option<u32>,
}

/// The address to look a name up by: a call may be the last instruction of its function, so a return address may belong to
/// another one.
pub fn lookup(address: u64, call: bool) -> u64 {
    if call { address.wrapping_sub(1) } else { address }
}

impl FrameRow {
    /// The address to look its name up by.
    pub fn lookup(&self) -> u64 {
        lookup(self.address, self.call)
    }
}

/// A row of table `inlined`: a function that the compiler has copied into a frame's function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InlinedRow {
    /// Frame row id.
    pub frame: u32,
    /// 0 for the innermost.
    pub depth: u32,
    /// Function.
    pub symbol: String,
    /// Source file of the instruction (innermost) or of the inlined call.
    pub source: Option<String>,
    /// Line in the source file, from 1.
    pub line: Option<u32>,
}

/// A row of table `stack`: a frame with the stack of its callers, so that equal beginnings are stored once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackRow {
    /// Row id; 1 and up.
    pub id: u32,
    /// The caller's row; `None` for the outermost frame.
    pub parent: Option<u32>,
    /// Frame row id.
    pub frame: u32,
}

/// Where machine code was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CodeSource {
    /// As it stood in the guest's memory, patches included.
    Memory,
    /// In a file.
    File,
}

impl CodeSource {
    /// As in table `code`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "guest memory",
            Self::File => "file",
        }
    }
}

/// A row of table `code`: the machine code of one function. A row with a known file, module and start replaces the
/// earlier.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CodeRow {
    /// Address of the first byte, counted as in [`FrameRow::address`].
    pub start: u64,
    /// File row id, for user code.
    pub file: Option<u32>,
    /// Kernel module; `None` for the kernel image and for user code.
    pub module: Option<String>,
    /// Up to the function's end.
    pub bytes: Vec<u8>,
    /// Where they were read.
    pub read: CodeSource,
}
