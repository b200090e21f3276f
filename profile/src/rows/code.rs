//! Code: files, mappings, frames, stacks, machine code.

use serde::{Deserialize, Serialize};
use symbols::{CodeAddr, VirtAddr};

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
    /// The file has been removed: it has no name.
    pub deleted: bool,
    /// GNU build-id, hexadecimal.
    pub build_id: Option<String>,
    /// Source of its bytes, like `image` or `page cache`; or the reason why they could not be read.
    pub read_from: Option<String>,
    /// Source of its functions' names, like `.symtab` or a debug file's path.
    pub named_by: Option<String>,
}

/// A row of table `mapping`: executable memory of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MappingRow {
    /// Instance row id.
    pub instance: u32,
    /// First address.
    pub start: u64,
    /// Address after the last.
    pub end: u64,
    /// File row id; `None` for memory without a file.
    pub file: Option<u32>,
    /// Bytes from the file's start to the mapping's.
    pub file_offset: u64,
}

/// Kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum FrameKind {
    /// Code of the kernel.
    #[default]
    Kernel,
    /// Code of a process.
    User,
    /// A function of a managed language, in the frames that its runtime keeps.
    Managed,
    /// Not code: the symbol gives the reason why the frames beyond are missing.
    Reason,
}

impl FrameKind {
    /// Returns the name in table `frame`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::User => "user",
            Self::Managed => "managed",
            Self::Reason => "reason",
        }
    }
}

/// Module of the reason below the only frame of a flat sample: no stack was taken, which says nothing of the
/// guest's code.
pub const FLAT: &str = "flat";

/// A row of table `frame`: one interned code address, or a reason instead of frames.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameRow {
    /// Row id; 1 and up. A row with a known id replaces the earlier (it got its name).
    pub id: u32,
    /// Instruction address: virtual for the kernel and for memory without a file, else the ELF file's own.
    /// For a managed language, that of bytecode.
    pub address: u64,
    /// A return address: the call is right before it.
    pub call: bool,
    /// Kind of the frame.
    pub kind: FrameKind,
    /// Instance whose address space it is in, for user and managed code without a file.
    pub instance: Option<u32>,
    /// File row id, for user code of a file.
    pub file: Option<u32>,
    /// Symbol's name, once known.
    pub symbol: Option<String>,
    /// Kernel module; for user code the file name, `anonymous`, or `[jit]` if the program names code that it
    /// has generated; the language, like `python`; `None` for the kernel image.
    pub module: Option<String>,
    /// Bytes from the symbol's start.
    pub offset: u64,
    /// Source file, if the binary has it.
    pub source: Option<String>,
    /// Line in the source file, from 1.
    pub line: Option<u32>,
}

impl FrameRow {
    /// Returns the address to look its name up by.
    pub fn lookup(&self) -> u64 {
        // In a file it is a linked address, elsewhere a virtual one; the way is the same.
        CodeAddr::new(VirtAddr(self.address), self.call).lookup().0
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

/// Source of machine code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CodeSource {
    /// The guest's memory, patches included.
    Memory,
    /// A file.
    File,
}

impl CodeSource {
    /// Returns the name in table `code`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "guest memory",
            Self::File => "file",
        }
    }
}

/// A row of table `code`: the machine code of one function. A row with a known file, module and start
/// replaces the earlier.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CodeRow {
    /// Address of the first byte, counted as in [`FrameRow::address`].
    pub start: u64,
    /// File row id, for user code.
    pub file: Option<u32>,
    /// Kernel module; `None` for the kernel image and for user code.
    pub module: Option<String>,
    /// Machine code up to the function's end.
    pub bytes: Vec<u8>,
    /// Source of the bytes.
    pub read: CodeSource,
}
