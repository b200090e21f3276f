//! Offsets of HotSpot's structures, for the version at hand.
//!
//! Names of members differ by version; which one a version has decides its layout:
//!
//! | | JDK 11 to 22 | 23, 24 | 25 |
//! |---|---|---|---|
//! | start of a blob's code | `_code_begin`, an address | `_code_offset` | the same |
//! | a blob is a compiled method | by its name | by `_kind` | the same |
//! | scopes | `_scopes_data_begin` in `CompiledMethod` | `_scopes_data_offset` from `_immutable_data` | the same |
//! | metadata | `_metadata_offset` from the header | from `_data_offset` | after the relocations in `_mutable_data` |

use symbols::VirtAddr;

use super::Member;
use super::recognise::TableSymbols;
use super::tables::VmTables;
use crate::ProcessMemory;

/// Oldest and newest version that was compared with the runtime itself.
const VERSIONS: std::ops::RangeInclusive<u64> = 11..=25;
/// First version whose compressed numbers have no zero bytes (src/hotspot/share/utilities/unsigned5.hpp,
/// JDK 20).
const NO_ZERO_BYTES: u64 = 20;

/// Reason why a process has no layout.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HotspotError {
    /// The version is not supported.
    #[error("Java {0} is not supported")]
    Version(u64),
    /// The runtime has not started yet.
    #[error("the runtime has not started")]
    NotReady,
    /// Memory of the tables was not present.
    #[error("memory of the runtime's tables is not present")]
    NotPresent,
    /// The tables contradict themselves.
    #[error("the runtime's tables are invalid")]
    Invalid,
    /// The tables lack a member.
    #[error("the runtime's tables lack {0}")]
    Missing(String),
}

/// Code heaps: `CodeCache`, `CodeHeap`, `VirtualSpace`, `HeapBlock`.
#[derive(Debug, Clone, Copy)]
pub(super) struct HeapLayout {
    /// Address of `CodeCache::_heaps`.
    pub heaps: VirtAddr,
    /// `GrowableArray`: number of elements, and address of the first.
    pub length: Member,
    pub data: Member,
    /// Offsets in `CodeHeap` of the two `VirtualSpace`s, and the member for the size of a segment.
    pub memory: u16,
    pub segments: u16,
    pub log2_segment: Member,
    /// Start and end of the reserved part of a `VirtualSpace`.
    pub low: Member,
    pub end: Member,
    /// Header of a block.
    pub block_used: Member,
    pub block_length: Member,
    pub block_size: u16,
}

/// Start of a blob's code.
#[derive(Debug, Clone, Copy)]
pub(super) enum CodeStart {
    Address(Member),
    Offset(Member),
}

/// Mark of compiled methods among blobs.
#[derive(Debug, Clone, Copy)]
pub(super) enum NmethodMark {
    /// The name ends with `nmethod`.
    Name,
    /// `CodeBlob::_kind` and its value.
    Kind(Member, u64),
}

/// `CodeBlob`.
#[derive(Debug, Clone, Copy)]
pub(super) struct BlobLayout {
    pub name: Member,
    pub size: Member,
    pub frame_complete: Member,
    pub frame_size: Member,
    pub data_offset: Member,
    pub code: CodeStart,
    pub mark: NmethodMark,
}

/// Position of the metadata of a compiled method.
#[derive(Debug, Clone, Copy)]
pub(super) enum MetadataPosition {
    /// Offset from the blob.
    Header(Member),
    /// Offset from the blob's data.
    Data(Member),
    /// `_mutable_data`, its size, and the bytes of the relocations that precede the metadata.
    Mutable { data: Member, size: Member, relocation: Member },
}

/// Position of the scopes of a compiled method.
#[derive(Debug, Clone, Copy)]
pub(super) enum ScopesPosition {
    /// Offsets of descriptors and of their end, from the blob, and the address of the scopes.
    Blob { pcs: Member, pcs_end: Member, scopes: Member },
    /// Data outside of the code cache and its size; offsets of descriptors and scopes in it.
    Immutable { data: Member, size: Member, pcs: Member, scopes: Member },
}

/// `nmethod`.
#[derive(Debug, Clone, Copy)]
pub(super) struct NmethodLayout {
    pub method: Member,
    pub compile_id: Member,
    pub orig_pc: Member,
    /// The deoptimization handlers, which replace the return address of frames: addresses or offsets.
    pub deopt: [Option<Member>; 2],
    pub metadata: MetadataPosition,
    pub scopes: ScopesPosition,
    /// Bytes of a `PcDesc`, and its members.
    pub pc_size: u16,
    pub pc_offset: Member,
    pub scope_offset: Member,
}

/// `Method`, `ConstMethod`, `ConstantPool`, `InstanceKlass`, `Symbol`.
#[derive(Debug, Clone, Copy)]
pub(super) struct MethodLayout {
    pub const_method: Member,
    pub access_flags: Member,
    pub constants: Member,
    pub flags: Member,
    /// Bit of `flags`.
    pub has_lines: u64,
    pub code_size: Member,
    pub name_index: Member,
    pub signature_index: Member,
    /// Bytes of a `ConstMethod`, which the bytecode follows.
    pub const_method_size: u16,
    pub pool_holder: Member,
    pub pool_length: Member,
    /// Bytes of a `ConstantPool`, which its entries follow.
    pub pool_size: u16,
    /// Index of the source file, in the pool or (JDK 11) in the class.
    pub pool_source: Option<Member>,
    pub class_source: Option<Member>,
    pub class_constants: Member,
    pub class_name: Member,
    pub symbol_length: Member,
    pub symbol_body: u16,
}

/// The interpreter and its frames.
#[derive(Debug, Clone, Copy)]
pub(super) struct InterpreterLayout {
    /// Address of `AbstractInterpreter::_code`.
    pub code: VirtAddr,
    pub buffer: Member,
    pub limit: Member,
    /// Address that the last frame of Java returns to.
    pub call_stub_return: VirtAddr,
    /// Slots of a frame, bytes from RBP.
    pub sender_sp: i64,
    pub method: i64,
    pub bytecode: i64,
}

/// All that walks need of one process.
#[derive(Debug, Clone, Copy)]
pub(super) struct HotspotLayout {
    pub heap: HeapLayout,
    pub blob: BlobLayout,
    pub nmethod: NmethodLayout,
    pub method: MethodLayout,
    pub interpreter: InterpreterLayout,
    /// Compressed numbers have no zero bytes.
    pub no_zero_bytes: bool,
}

impl HotspotLayout {
    /// Reads the layout of a process that has mapped the library at `bias`.
    pub(super) fn read(
        memory: &impl ProcessMemory,
        symbols: &TableSymbols,
        bias: u64,
    ) -> Result<Self, HotspotError> {
        let tables = VmTables::read(memory, symbols, bias)?;
        let version = tables.address("Abstract_VM_Version", "_vm_major_version")?;
        let version = Member { offset: 0, width: 4 }.read(memory, version).ok_or(HotspotError::NotPresent)?;
        if !VERSIONS.contains(&version) {
            return Err(HotspotError::Version(version));
        }
        let layout = Self {
            heap: heap(&tables)?,
            blob: blob(&tables)?,
            nmethod: nmethod(&tables)?,
            method: method(&tables)?,
            interpreter: interpreter(&tables, memory)?,
            no_zero_bytes: version >= NO_ZERO_BYTES,
        };
        Ok(layout)
    }
}

fn heap(tables: &VmTables) -> Result<HeapLayout, HotspotError> {
    let array = ["GrowableArrayBase", "GenericGrowableArray"];
    let length = array.iter().find_map(|owner| tables.find(owner, "_len"));
    Ok(HeapLayout {
        heaps: tables.address("CodeCache", "_heaps")?,
        length: length.ok_or_else(|| HotspotError::Missing("GrowableArrayBase._len".to_owned()))?,
        // Arrays of pointers have the same members as those of numbers.
        data: tables.member("GrowableArray<int>", "_data")?,
        memory: tables.offset("CodeHeap", "_memory")?,
        segments: tables.offset("CodeHeap", "_segmap")?,
        log2_segment: tables.member("CodeHeap", "_log2_segment_size")?,
        low: tables.member("VirtualSpace", "_low")?,
        end: tables.member("VirtualSpace", "_high_boundary")?,
        block_used: tables.member("HeapBlock::Header", "_used")?,
        block_length: tables.member("HeapBlock::Header", "_length")?,
        block_size: tables.size("HeapBlock")?,
    })
}

fn blob(tables: &VmTables) -> Result<BlobLayout, HotspotError> {
    let code = match tables.find("CodeBlob", "_code_begin") {
        Some(address) => CodeStart::Address(address),
        None => CodeStart::Offset(tables.member("CodeBlob", "_code_offset")?),
    };
    let mark = match tables.find("CodeBlob", "_kind") {
        Some(kind) => {
            let value = tables.int("CodeBlobKind::Nmethod")?;
            NmethodMark::Kind(kind, u64::try_from(value).map_err(|_| HotspotError::Invalid)?)
        }
        None => NmethodMark::Name,
    };
    Ok(BlobLayout {
        name: tables.member("CodeBlob", "_name")?,
        size: tables.member("CodeBlob", "_size")?,
        frame_complete: tables.member("CodeBlob", "_frame_complete_offset")?,
        frame_size: tables.member("CodeBlob", "_frame_size")?,
        data_offset: tables.member("CodeBlob", "_data_offset")?,
        code,
        mark,
    })
}

fn nmethod(tables: &VmTables) -> Result<NmethodLayout, HotspotError> {
    // A class of its own up to JDK 22.
    let either = |name: &str| tables.find("nmethod", name).or_else(|| tables.find("CompiledMethod", name));
    let needed = |name: &str| either(name).ok_or_else(|| HotspotError::Missing(format!("nmethod.{name}")));
    let scopes = match either("_immutable_data") {
        Some(data) => ScopesPosition::Immutable {
            data,
            size: needed("_immutable_data_size")?,
            pcs: needed("_scopes_pcs_offset")?,
            scopes: needed("_scopes_data_offset")?,
        },
        None => ScopesPosition::Blob {
            pcs: needed("_scopes_pcs_offset")?,
            pcs_end: needed("_dependencies_offset")?,
            scopes: needed("_scopes_data_begin")?,
        },
    };
    let metadata = match (either("_metadata_offset"), scopes) {
        (Some(offset), ScopesPosition::Blob { .. }) => MetadataPosition::Header(offset),
        (Some(offset), ScopesPosition::Immutable { .. }) => MetadataPosition::Data(offset),
        (None, _) => MetadataPosition::Mutable {
            data: tables.member("CodeBlob", "_mutable_data")?,
            size: tables.member("CodeBlob", "_mutable_data_size")?,
            relocation: tables.member("CodeBlob", "_relocation_size")?,
        },
    };
    let handler =
        |name: &str| either(&format!("_{name}_begin")).or_else(|| either(&format!("_{name}_offset")));
    Ok(NmethodLayout {
        method: needed("_method")?,
        compile_id: needed("_compile_id")?,
        orig_pc: needed("_orig_pc_offset")?,
        deopt: [handler("deopt_handler"), handler("deopt_mh_handler")],
        metadata,
        scopes,
        pc_size: tables.size("PcDesc")?,
        pc_offset: tables.member("PcDesc", "_pc_offset")?,
        scope_offset: tables.member("PcDesc", "_scope_decode_offset")?,
    })
}

fn method(tables: &VmTables) -> Result<MethodLayout, HotspotError> {
    let flags = tables.find("ConstMethod", "_flags._flags");
    let has_lines = tables
        .int("ConstMethodFlags::_misc_has_linenumber_table")
        .or_else(|_| tables.int("ConstMethod::_has_linenumber_table"))?;
    let pool_source = tables.find("ConstantPool", "_source_file_name_index");
    let class_source = tables.find("InstanceKlass", "_source_file_name_index");
    Ok(MethodLayout {
        const_method: tables.member("Method", "_constMethod")?,
        access_flags: tables.member("Method", "_access_flags")?,
        constants: tables.member("ConstMethod", "_constants")?,
        flags: flags.map_or_else(|| tables.member("ConstMethod", "_flags"), Ok)?,
        has_lines: u64::try_from(has_lines).map_err(|_| HotspotError::Invalid)?,
        code_size: tables.member("ConstMethod", "_code_size")?,
        name_index: tables.member("ConstMethod", "_name_index")?,
        signature_index: tables.member("ConstMethod", "_signature_index")?,
        const_method_size: tables.size("ConstMethod")?,
        pool_holder: tables.member("ConstantPool", "_pool_holder")?,
        pool_length: tables.member("ConstantPool", "_length")?,
        pool_size: tables.size("ConstantPool")?,
        pool_source,
        class_source,
        class_constants: tables.member("InstanceKlass", "_constants")?,
        class_name: tables.member("Klass", "_name")?,
        symbol_length: tables.member("Symbol", "_length")?,
        symbol_body: tables.offset("Symbol", "_body")?,
    })
}

fn interpreter(tables: &VmTables, memory: &impl ProcessMemory) -> Result<InterpreterLayout, HotspotError> {
    let slot = |name: &str| tables.int(name).map(|words| i64::from(words) * 8);
    let last_sp = slot("frame::interpreter_frame_last_sp_offset")?;
    let call_stub = tables.address("StubRoutines", "_call_stub_return_address")?;
    let call_stub_return = memory.read_u64(call_stub).ok_or(HotspotError::NotPresent)?;
    let layout = InterpreterLayout {
        code: tables.address("AbstractInterpreter", "_code")?,
        buffer: tables.member("StubQueue", "_stub_buffer")?,
        limit: tables.member("StubQueue", "_buffer_limit")?,
        call_stub_return: VirtAddr(call_stub_return),
        sender_sp: slot("frame::interpreter_frame_sender_sp_offset")?,
        // The tables lack these slots: last_sp, method, mirror, mdp, cache, locals, bcp
        // (src/hotspot/cpu/x86/frame_x86.hpp, JDK 11 to 25).
        method: last_sp - 8,
        bytecode: last_sp - 6 * 8,
    };
    // Set after the library's constructors and the code cache.
    let started = memory.read_u64(layout.code).ok_or(HotspotError::NotPresent)?;
    if started == 0 || call_stub_return == 0 { Err(HotspotError::NotReady) } else { Ok(layout) }
}
