//! Disassembled code of a function with its samples: the lines of `vprof annotate` and of the page.

use std::collections::BTreeMap;

use display::clean::{cut, escaped};
use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Formatter, GasFormatter, Instruction, IntelFormatter, Mnemonic,
    SymbolResolver, SymbolResult,
};
use serde::{Serialize, Serializer};
use statistics::part;

use super::{Annotation, Estimate, Hit, MOST_CODE};

/// Longest name of a call's target in an instruction, characters.
const LONGEST_NAME: usize = 120;

/// Machine code of a function, instruction by instruction, with its samples.
#[derive(Debug, Serialize)]
pub struct FunctionListing {
    /// The function.
    pub symbol: String,
    /// Kernel module, or file name of user code.
    pub module: Option<String>,
    /// `user` or `kernel`.
    pub kind: String,
    /// Origin of the code: `guest memory` or `file`; absent where the profile has no code.
    pub read: Option<String>,
    /// Samples in the function itself.
    #[serde(rename = "self")]
    pub own: Estimate,
    /// Samples in the function and its callees.
    pub total: Estimate,
    /// Sentences about missing parts.
    pub notes: Vec<String>,
    /// Lines in the order of addresses.
    pub lines: Vec<CodeLine>,
}

/// An instruction with its samples.
#[derive(Debug, Serialize)]
pub struct CodeLine {
    /// Address of the instruction.
    #[serde(flatten)]
    pub place: CodeAddress,
    /// Bytes in hexadecimal; empty where they are not known.
    pub bytes: String,
    /// Disassembly; empty where the bytes are not known.
    pub text: String,
    /// Samples at the instruction.
    #[serde(rename = "self")]
    pub own: u64,
    /// Part of the function's own samples.
    pub self_part: f64,
    /// Samples in the code that the instruction called, and in what has interrupted it.
    pub called: u64,
    /// Part of all samples with the function on their stack.
    pub called_part: f64,
    /// Source file and line, where known and sampled.
    pub source: Option<String>,
}

/// Address of an instruction in its function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CodeAddress {
    /// Virtual address, or the address in the ELF file.
    pub address: u64,
    /// Address of the function's first byte.
    pub start: u64,
}

impl Serialize for CodeAddress {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut place = serializer.serialize_struct("CodeAddress", 2)?;
        place.serialize_field("address", &format!("{:#x}", self.address))?;
        place.serialize_field("offset", &self.address.wrapping_sub(self.start))?;
        place.end()
    }
}

impl FunctionListing {
    /// Disassembles the code in the syntax of AT&T or Intel, and assigns samples to the instructions.
    pub fn new(annotation: &Annotation, intel: bool) -> Self {
        let mut listing = Self {
            symbol: annotation.symbol.clone(),
            module: annotation.module.clone(),
            kind: annotation.kind.clone(),
            read: annotation.read.clone(),
            own: annotation.own,
            total: annotation.total,
            notes: Vec::new(),
            lines: Vec::new(),
        };
        let mut hits = annotation.hits.clone();
        match &annotation.code {
            Some(code) => {
                if code.len() >= MOST_CODE as usize {
                    listing.notes.push("Only its first 256 KiB are shown.".to_owned());
                }
                listing.lines = disassembled(annotation, code, intel);
                for line in &mut listing.lines {
                    let size = line.bytes.len() as u64 / 2;
                    take(line, size, &mut hits);
                }
            }
            None => listing.notes.push(
                    "The profile has no machine code of this function: vprof keeps code only of the most sampled \
                                 functions. Only the sampled addresses are shown."
                                    .to_owned(),
            ),
        }
        if !hits.is_empty() && annotation.code.is_some() {
            listing.notes.push("Some samples are past the end of the code in the profile.".to_owned());
        }
        listing.lines.extend(hits.into_iter().map(|(address, hit)| {
            let mut line = CodeLine::new(address, annotation.start, String::new(), String::new());
            line.add(&hit);
            line
        }));
        listing.lines.sort_by_key(|line| line.place.address.wrapping_sub(annotation.start));
        for line in &mut listing.lines {
            line.self_part = part(line.own, annotation.own.samples);
            line.called_part = part(line.called, annotation.total.samples);
        }
        listing
    }

    /// Returns the lines without the bytes that fill the space up to the next function.
    pub fn without_padding(&self) -> &[CodeLine] {
        let is_code = |line: &CodeLine| line.own + line.called > 0 || !is_padding(&line.bytes);
        let end = self.lines.iter().rposition(is_code).map_or(0, |last| last + 1);
        &self.lines[..end]
    }
}

impl CodeLine {
    /// Creates a line without samples; `bytes` are hexadecimal.
    pub fn new(address: u64, start: u64, bytes: String, text: String) -> Self {
        let place = CodeAddress { address, start };
        Self { place, bytes, text, own: 0, self_part: 0.0, called: 0, called_part: 0.0, source: None }
    }

    fn add(&mut self, hit: &Hit) {
        self.own += hit.own;
        self.called += hit.called + hit.interrupted;
        if self.source.is_none() {
            self.source.clone_from(&hit.source);
        }
    }
}

/// Moves the samples of an instruction of `size` bytes to its line: samples that hit it or what has
/// interrupted it, and samples in callees that return to the next instruction.
fn take(line: &mut CodeLine, size: u64, hits: &mut BTreeMap<u64, Hit>) {
    let (start, end) = (line.place.address, line.place.address.wrapping_add(size));
    if end < start {
        return;
    }
    let inside: Vec<u64> = hits.range(start..=end).map(|(&address, _)| address).collect();
    for address in inside {
        let Some(hit) = hits.get_mut(&address) else { continue };
        let mut mine = Hit { source: hit.source.clone(), ..Hit::default() };
        if address < end {
            mine.own = std::mem::take(&mut hit.own);
            mine.interrupted = std::mem::take(&mut hit.interrupted);
        } else {
            // The source at this address belongs to the next instruction.
            mine.source = None;
        }
        if address > start {
            mine.called = std::mem::take(&mut hit.called);
        }
        line.add(&mine);
        if hit.own + hit.interrupted + hit.called == 0 {
            hits.remove(&address);
        }
    }
}

/// True for an instruction that fills space, from its bytes in hexadecimal.
fn is_padding(bytes: &str) -> bool {
    let bytes: Option<Vec<u8>> = (0..bytes.len())
        .step_by(2)
        .map(|at| bytes.get(at..at + 2).and_then(|digits| u8::from_str_radix(digits, 16).ok()))
        .collect();
    let bytes = bytes.unwrap_or_default();
    let mnemonic = Decoder::new(64, &bytes, DecoderOptions::NONE).decode().mnemonic();
    matches!(mnemonic, Mnemonic::Int3 | Mnemonic::Nop)
}

/// Lines before and after a line that is shown for its samples.
const CONTEXT: usize = 3;

/// Choice of lines of a listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShownLines {
    /// All.
    All,
    /// Those with samples, and the lines around them.
    Sampled,
    /// This many with most samples, and the lines around them.
    Hottest(usize),
}

impl ShownLines {
    /// Returns for each line whether it is shown.
    pub fn choose(self, lines: &[CodeLine]) -> Vec<bool> {
        let samples = |place: &usize| lines[*place].own + lines[*place].called;
        let mut hot: Vec<usize> = (0..lines.len()).filter(|place| samples(place) > 0).collect();
        match self {
            ShownLines::All => return vec![true; lines.len()],
            // The samples of what an instruction calls are those of other functions.
            ShownLines::Hottest(rows) => {
                hot.sort_by_key(|place| std::cmp::Reverse((lines[*place].own, lines[*place].called)));
                hot.truncate(rows);
            }
            ShownLines::Sampled => {}
        }
        let mut chosen = vec![false; lines.len()];
        for place in hot {
            let end = (place + CONTEXT + 1).min(lines.len());
            chosen[place.saturating_sub(CONTEXT)..end].fill(true);
        }
        // A mark takes as much room as one line.
        for place in 1..lines.len().saturating_sub(1) {
            chosen[place] |= chosen[place - 1] && chosen[place + 1];
        }
        chosen
    }
}

/// Names of call targets. They come from the guest: they are escaped and cut.
struct CallTargetNames(BTreeMap<u64, String>);

impl SymbolResolver for CallTargetNames {
    fn symbol(
        &mut self,
        instruction: &Instruction,
        _: u32,
        _: Option<u32>,
        address: u64,
        _: u32,
    ) -> Option<SymbolResult<'_>> {
        // The operands of other instructions are not code addresses.
        if instruction.flow_control() == FlowControl::Next {
            return None;
        }
        let name = cut(&escaped(self.0.get(&address)?), LONGEST_NAME);
        Some(SymbolResult::with_string(address, name))
    }
}

fn disassembled(annotation: &Annotation, code: &[u8], intel: bool) -> Vec<CodeLine> {
    let names: Box<dyn SymbolResolver> = Box::new(CallTargetNames(annotation.names.clone()));
    let mut formatter: Box<dyn Formatter> = if intel {
        Box::new(IntelFormatter::with_options(Some(names), None))
    } else {
        Box::new(GasFormatter::with_options(Some(names), None))
    };
    let options = formatter.options_mut();
    options.set_branch_leading_zeros(false);
    options.set_space_after_operand_separator(true);
    options.set_rip_relative_addresses(false);
    options.set_uppercase_hex(false);
    options.set_hex_prefix("0x");
    options.set_hex_suffix("");
    let mut decoder = Decoder::with_ip(64, code, annotation.start, DecoderOptions::NONE);
    let mut lines = Vec::new();
    let mut instruction = Instruction::default();
    while decoder.can_decode() {
        let at = decoder.position();
        decoder.decode_out(&mut instruction);
        let bytes = &code[at..decoder.position()];
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut text = String::new();
        if instruction.is_invalid() {
            text.push_str("(bad)");
        } else {
            formatter.format(&instruction, &mut text);
        }
        lines.push(CodeLine::new(instruction.ip(), annotation.start, hex, text));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn annotation(code: Option<&[u8]>, hits: &[(u64, u64, u64)]) -> Annotation {
        let hit = |&(address, own, called): &(u64, u64, u64)| {
            (address, Hit { own, called, interrupted: 0, source: Some(format!("a.c:{address}")) })
        };
        Annotation {
            symbol: "f".to_owned(),
            module: None,
            kind: "kernel".to_owned(),
            nameless: false,
            emulated: false,
            start: 0x1000,
            code: code.map(<[u8]>::to_vec),
            read: None,
            own: Estimate { samples: 10, share: 0.1, ..Estimate::default() },
            total: Estimate { samples: 20, share: 0.2, ..Estimate::default() },
            hits: hits.iter().map(hit).collect(),
            names: [(0x2000, "callee\x1b[2J".to_owned())].into(),
        }
    }

    /// push %rbp; call 0x2000; nopw; ret
    const CODE: &[u8] = &[0x55, 0xe8, 0xfa, 0x0f, 0x00, 0x00, 0x66, 0x90, 0xc3];

    fn lines(listing: &FunctionListing) -> Vec<(u64, &str, u64, u64)> {
        listing.lines.iter().map(|l| (l.place.address, l.text.as_str(), l.own, l.called)).collect()
    }

    #[test]
    fn samples_go_to_instructions_and_calls() {
        // A return address is the next instruction's: the call gets the samples of its callee, the
        // next its own hits.
        let hits = [(0x1000, 4, 0), (0x1006, 5, 10), (0x1007, 1, 0)];
        let listing = FunctionListing::new(&annotation(Some(CODE), &hits), false);
        assert_eq!(
            lines(&listing),
            [
                (0x1000, "push %rbp", 4, 0),
                (0x1001, "call callee\\x1b[2J", 0, 10),
                (0x1006, "xchg %ax, %ax", 6, 0),
                (0x1008, "ret", 0, 0),
            ]
        );
        assert!(listing.notes.is_empty());
        assert_eq!((listing.lines[0].self_part, listing.lines[1].called_part), (0.4, 0.5));
        assert_eq!(listing.lines[2].source.as_deref(), Some("a.c:4102"));
        let intel = FunctionListing::new(&annotation(Some(CODE), &hits), true);
        assert_eq!(intel.lines[0].text, "push rbp");
        let elsewhere = Annotation { names: BTreeMap::new(), ..annotation(Some(CODE), &hits) };
        assert_eq!(FunctionListing::new(&elsewhere, true).lines[1].text, "call 0x2000");
    }

    #[test]
    fn what_interrupts_an_instruction_is_shown_at_it() {
        let mut annotation = annotation(Some(CODE), &[(0x1006, 0, 7)]);
        for address in [0x1000, 0x1006] {
            annotation.hits.entry(address).or_default().interrupted = 3;
        }
        let listing = FunctionListing::new(&annotation, false);
        let called: Vec<_> =
            lines(&listing).into_iter().map(|(address, _, _, called)| (address, called)).collect();
        assert_eq!(called, [(0x1000, 3), (0x1001, 7), (0x1006, 3), (0x1008, 0)]);
        assert!(listing.notes.is_empty());
    }

    #[test]
    fn no_sample_is_lost_whatever_the_bytes() {
        let hits = [(0x0ff0, 1, 1), (0x1000, 1, 1), (0x1003, 1, 1), (0x1100, 1, 1), (u64::MAX, 1, 1)];
        for code in [None, Some(&[][..]), Some(CODE), Some(&[0x06, 0xff, 0xff, 0x0f][..]), Some(&[0xe8][..])]
        {
            for start in [0, 0x1000, u64::MAX - 2] {
                let annotation = Annotation { start, ..annotation(code, &hits) };
                let listing = FunctionListing::new(&annotation, false);
                let sum = |of: fn(&CodeLine) -> u64| listing.lines.iter().map(of).sum::<u64>();
                assert_eq!((sum(|l| l.own), sum(|l| l.called)), (5, 5), "{code:?} {start:#x}");
            }
        }
    }

    #[test]
    fn without_code_the_addresses_are_left() {
        let listing = FunctionListing::new(&annotation(None, &[(0x1004, 10, 0)]), false);
        assert_eq!(lines(&listing), [(0x1004, "", 10, 0)]);
        assert!(listing.notes[0].contains("no machine code"));
        let json = serde_json::to_value(&listing).unwrap();
        assert_eq!(
            (&json["lines"][0]["address"], &json["lines"][0]["offset"]),
            (&"0x1004".into(), &4.into())
        );
    }
}
