//! The tables that everything else depends on, as bytes: kallsyms in an image, and BTF with all look-ups in
//! it.

use guest_linux::fixture::{KallsymsLayout, KallsymsSymbol, parsers, write_kallsyms};
use guest_linux::{PhysAddr, PhysicalMemory};

use crate::input::guests;

/// Virtual address of the image.
const TEXT: u64 = 0xffff_ffff_8100_0000;
/// Bytes before the arrays.
const BEFORE: usize = 64;
/// Bytes of a seed's image, at least: symbols are 16 bytes apart on average, as in no kernel.
const END: usize = 0x2680;
/// Symbols of a seed: enough for three markers.
const SYMBOLS: u64 = 600;

/// The first byte selects the meaning of the others.
const BTF: u8 = b'B';
const KALLSYMS: u8 = b'K';

fn btf(which: u8) -> Vec<u8> {
    let (start, len) = guests::BTF;
    let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
    guests::sound(which).guest.memory.read(PhysAddr(start), &mut bytes).expect("inside of RAM");
    let end = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 2);
    bytes.truncate(end);
    assert!(parsers::layouts(&bytes));
    [&[BTF][..], &bytes].concat()
}

fn kallsyms(layout: KallsymsLayout) -> Vec<u8> {
    let mut symbols: Vec<KallsymsSymbol> = (0..SYMBOLS)
        .map(|i| KallsymsSymbol { address: TEXT + i * 16, kind: 't', name: format!("init_{i}") })
        .collect();
    symbols.push(KallsymsSymbol { address: TEXT, kind: 'T', name: "_text".into() });
    symbols.push(KallsymsSymbol { address: TEXT + END as u64 - 0x80, kind: 'T', name: "_etext".into() });
    let arrays = write_kallsyms(&mut symbols, layout, TEXT + BEFORE as u64, TEXT);
    let mut image = [&[0xcc; BEFORE][..], &arrays].concat();
    image.resize(image.len().max(END), 0xcc);
    assert_eq!(parsers::kallsyms(&image, TEXT), symbols.len(), "{layout:?}");
    [&[KALLSYMS][..], &image].concat()
}

/// Returns inputs to start from.
pub fn seeds() -> Vec<Vec<u8>> {
    let layouts = [
        KallsymsLayout::OffsetsFirst,
        KallsymsLayout::OffsetsFirstWithSeqs,
        KallsymsLayout::OffsetsLast,
        KallsymsLayout::Unsigned,
        KallsymsLayout::PlaceRelative,
    ];
    layouts.map(kallsyms).into_iter().chain([0, 1, 2, 4].map(btf)).collect()
}

/// Runs the target on one input of the fuzzer.
pub fn test_one_input(bytes: &[u8]) {
    match bytes {
        [BTF, btf @ ..] => {
            let _ = parsers::layouts(btf);
        }
        [KALLSYMS, image @ ..] => {
            let _ = parsers::kallsyms(image, TEXT);
        }
        _ => {}
    }
}
