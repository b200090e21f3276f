//! The unwinder of programs: `.eh_frame`, `.eh_frame_hdr`, `.debug_frame`, expressions; walks of a copied
//! stack.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{LazyLock, Mutex};

use arbitrary::Arbitrary;
use symbols::cfi::{CfiSection, CfiSections, CfiTable, CodeMapping, CodeMappings, ImageCode, UserUnwinder};
use symbols::fixture::cfi::{Builder, EH_FRAME, HEADER, cfa_offset, debug_frame, saved};
use symbols::{LinkAddr, VirtAddr};

use crate::input::stacks::{StackWord, StackWords, registers};
use crate::input::{self, decode};

/// Virtual address of the file.
const BIAS: u64 = 0x5555_0000_0000;
/// Virtual address of code made at run time.
const JIT: u64 = 0x7000_0000_0000;
/// Virtual address of the stack.
const STACK: u64 = 0x7fff_0000_1000;
/// Frames of a walk, at most.
const LIMIT: usize = 64;

#[derive(Debug, Arbitrary)]
struct UserStackInput {
    tables: UnwindTables,
    with_header: bool,
    code_kind: u8,
    starts: [u16; 2],
    words: Vec<StackWord>,
    code: Vec<u8>,
}

/// Source of the sections.
#[derive(Debug, Arbitrary)]
enum UnwindTables {
    /// Three functions with these rules, the last one a signal frame.
    Rules(Vec<u8>, Vec<u8>, Vec<u8>),
    /// An expression for the CFA and for a register.
    Expression(Vec<u8>),
    /// Sound sections with wrong bytes: place, byte; and so the header.
    Wrong(Vec<(u16, u8)>, Vec<(u8, u8)>),
    /// Anything: `.eh_frame`, `.eh_frame_hdr`, `.debug_frame`.
    Any(Vec<u8>, Vec<u8>, Vec<u8>),
}

struct MappedProcess<'a> {
    id: u32,
    code: ImageCode<'a>,
    bytes: &'a [u8],
}

impl CodeMappings for MappedProcess<'_> {
    fn find(&self, VirtAddr(address): VirtAddr) -> Option<CodeMapping<'_>> {
        match address {
            BIAS..0x5555_0001_0000 => Some(CodeMapping { id: self.id, bias: BIAS, code: self.code }),
            JIT..0x7000_0000_1000 => Some(CodeMapping { id: 0, bias: 0, code: ImageCode::Anonymous }),
            _ => None,
        }
    }

    fn code(&self, VirtAddr(address): VirtAddr, into: &mut [u8]) -> Option<()> {
        let start = usize::try_from(address & 0xfff).ok()?;
        into.copy_from_slice(self.bytes.get(start..start.checked_add(into.len())?)?);
        Some(())
    }
}

fn sound() -> Builder {
    Builder::new()
        .function(
            0x1000,
            &[&[0x41][..], &cfa_offset(32), &saved(6, 2), &[0x0a, 0x42, 0x0c, 6, 16, 0x42, 0x0b]].concat(),
        )
        .function(0x2000, &[0x0f, 6, 0x77, 0, 0x34, 0x38, 0x1e, 0x22, 0x10, 6, 2, 0x40, 0x1c])
        .signal_frame(0x3000, &[0x0f, 3, 0x77, 8, 0x06, 0x10, 7, 2, 0x77, 8, 0x10, 16, 2, 0x77, 24])
}

fn with_header(builder: &Builder) -> CfiSections {
    CfiSections { eh_frame_hdr: Some(builder.header()), ..builder.sections() }
}

fn section(bytes: &[u8], address: u64) -> Option<CfiSection> {
    Some(CfiSection { bytes: bytes.into(), address })
}

fn damage(section: &mut CfiSection, wrong: impl Iterator<Item = (usize, u8)>) {
    let mut bytes = section.bytes.to_vec();
    for (at, byte) in wrong {
        let at = at % bytes.len();
        bytes[at] = byte;
    }
    section.bytes = bytes.into();
}

impl UnwindTables {
    fn sections(&self) -> CfiSections {
        let short = |rules: &[u8]| rules[..rules.len().min(2000)].to_vec();
        match self {
            Self::Rules(a, b, c) => with_header(
                &Builder::new()
                    .function(0x1000, &short(a))
                    .function(0x2000, &short(b))
                    .signal_frame(0x3000, &short(c)),
            ),
            Self::Expression(expression) => {
                let expression = &expression[..expression.len().min(100)];
                let length = u8::try_from(expression.len()).unwrap_or(0);
                let rules = [&[0x0f, length][..], expression, &[0x16, 6, length], expression].concat();
                with_header(&Builder::new().function(0x1000, &rules).function(0x2000, &rules))
            }
            Self::Wrong(eh_frame, header) => {
                let mut sections = with_header(&sound());
                sections.debug_frame = Some(debug_frame(0x4000, 16));
                if let Some(section) = &mut sections.eh_frame {
                    damage(section, eh_frame.iter().map(|&(at, byte)| (usize::from(at), byte)));
                }
                if let Some(section) = &mut sections.eh_frame_hdr {
                    damage(section, header.iter().map(|&(at, byte)| (usize::from(at), byte)));
                }
                sections
            }
            Self::Any(eh, header, debug) => CfiSections {
                eh_frame_hdr: section(header, HEADER),
                eh_frame: section(eh, EH_FRAME),
                debug_frame: section(debug, 0),
                text: Some(0x1000),
                got: None,
                go: None,
            },
        }
    }
}

static UNWINDER: LazyLock<Mutex<UserUnwinder>> = LazyLock::new(|| Mutex::new(UserUnwinder::new()));
static NEXT: AtomicU32 = AtomicU32::new(1);

/// Runs the target on one input of the fuzzer.
pub fn test_one_input(bytes: &[u8]) {
    let Some(input) = decode::<UserStackInput>(bytes) else { return };
    let mut sections = input.tables.sections();
    if !input.with_header {
        sections.eh_frame_hdr = None;
    }
    let table = CfiTable::parse(sections).ok();
    if let Some(table) = &table {
        for address in [0, 0x1010, 0x2080, 0x3001, u64::from(input.starts[0]), u64::MAX] {
            let address = LinkAddr(address);
            if let Some((start, end)) = table.function_start(address) {
                assert!(start <= address && address < end);
            }
        }
    }
    let code = match (&table, input.code_kind) {
        (Some(table), 0..=223) => ImageCode::Cfi(table),
        (_, 224..=239) => ImageCode::NotRead,
        _ => ImageCode::NoCfi,
    };
    // No table gets the number of another one.
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    let process = MappedProcess { id, code, bytes: &input.code };
    let words: Vec<u64> = input.words.iter().map(|word| word.value(BIAS, STACK)).collect();
    let stack = StackWords { start: STACK, words: &words };
    // One for all inputs: its cache is large.
    let mut unwinder = UNWINDER.lock().expect("nobody else has it");
    // Twice: the second walk finds its rows in the cache.
    for start in [input.starts[0], 0x1010, input.starts[1], 0x3004, input.starts[0]] {
        let rip = if start == 0 { JIT } else { BIAS + u64::from(start) };
        let mut frames = 0;
        unwinder.walk(&registers(rip, STACK, STACK + 16, &words), &stack, &process, LIMIT, |_| frames += 1);
        assert!((1..=LIMIT).contains(&frames), "a walk has its first frame, and ends");
    }
}

/// Returns inputs to start from.
pub fn seeds() -> Vec<Vec<u8>> {
    input::decoded_seeds()
}
