//! Finding the kernel and its symbols.

use super::{STYLES, booted, empty, find, styled};
use crate::fixture::{Config, Guest, KallsymsLayout, Style};
use crate::{Kernel, Missing, PhysAddr, VirtAddr};
use proptest::prelude::*;

#[test]
fn every_style_is_found_wherever_kaslr_put_it() {
    for style in STYLES {
        for five_level in [false, true] {
            for slide in [0, 0x20_0000, 0x3e00_0000 - 0x100_0000] {
                let (guest, kernel) = styled(style, |c| {
                    c.five_level = five_level;
                    c.slide = slide;
                });
                assert_eq!(kernel.missing(), []);
                assert_eq!(kernel.image().0, guest.text(0));
                assert_eq!(kernel.address_of("_text"), Some(guest.text(0)));
                let f = kernel.symbol_at(guest.text(0x1404)).expect("schedule");
                assert_eq!((f.name, f.module, f.offset), ("schedule", None, 4));
                assert_eq!(kernel.address_space().root(), PhysAddr(guest.cr3));
            }
        }
    }
}

#[test]
fn another_kernel_is_told_from_the_one_that_was_found() {
    for five_level in [false, true] {
        let (guest, kernel) = booted(|c| c.five_level = five_level);
        let reader = kernel.current_reader(&guest.memory).expect("per-CPU areas");
        let place = kernel.identity().expect("a banner");
        let is_there = |guest: &Guest, cr3| {
            place.is_mapped(&guest.memory, cr3, guest.five_level)
                && kernel.is_there(&guest.memory, Some(&reader))
        };
        assert!(is_there(&guest, guest.cr3));
        assert!(is_there(&guest, guest.cr3 | 0x1000), "a process's tables under PTI");
        assert!(!is_there(&guest, 0), "other page tables");
        // The same kernel elsewhere, another at the same place, and the same there with other per-CPU areas.
        let (moved, _) = booted(|c| (c.five_level, c.slide) = (five_level, c.slide + 0x40_0000));
        assert!(!is_there(&moved, moved.cr3));
        let (other, _) = styled(Style::V6_15, |c| c.five_level = five_level);
        assert!(!is_there(&other, other.cr3));
        let mut booting = booted(|c| c.five_level = five_level).0;
        let offsets = kernel.address_of("__per_cpu_offset").expect("a symbol");
        let at = kernel.address_space().translate(&booting.memory, offsets).expect("mapped").phys;
        booting.put(at, &[0; 64]);
        assert!(!is_there(&booting, booting.cr3));
        assert!(kernel.is_there(&booting.memory, None));
    }
}

#[test]
fn releases_are_read() {
    let releases = STYLES.map(|style| {
        let (_, kernel) = styled(style, |_| ());
        kernel.release().map(str::to_owned)
    });
    let expected = ["6.1.0-9-fixture", "6.12.1-fixture", "6.15.0-fixture"];
    assert_eq!(releases, expected.map(|r| Some(r.to_owned())));
}

#[test]
fn every_layout_of_kallsyms_is_read() {
    for (style, layout) in [
        (Style::V6_1, KallsymsLayout::OffsetsFirst),
        (Style::V6_1, KallsymsLayout::OffsetsFirstWithSeqs),
        (Style::V6_12, KallsymsLayout::OffsetsLast),
        (Style::V6_15, KallsymsLayout::Unsigned),
        (Style::V6_15, KallsymsLayout::PlaceRelative),
    ] {
        let (guest, kernel) = styled(style, |c| c.kallsyms = Some(layout));
        assert_eq!(kernel.missing(), [], "{layout:?}");
        let last = kernel.symbol_at(guest.text(0x2_0000 + 1499 * 16)).unwrap();
        assert_eq!((last.name, last.offset), ("filler_1499", 0), "{layout:?}");
        let long = kernel.symbol_at(guest.text(0x3_0001)).unwrap();
        assert_eq!((long.name.len(), long.offset), (160, 1));
        let per_cpu = kernel.address_of("x86_cpu_to_apicid").unwrap();
        let absolute = style != Style::V6_15;
        assert_eq!(per_cpu.0 == 0x300, absolute, "{layout:?}");
        assert_eq!(kernel.symbols().count(), kernel.symbol_count());
        for (name, at) in kernel.symbols().filter(|(name, _)| name.starts_with("filler_")) {
            assert_eq!(kernel.address_of(name), Some(at));
        }
    }
}

#[test]
fn data_and_the_outside_have_no_function() {
    let (guest, kernel) = booted(|_| ());
    let data = kernel.address_of("init_task").unwrap();
    assert_eq!(kernel.symbol_at(data), None);
    assert_eq!(kernel.symbol_at(guest.text(0x3_0010)), None);
    assert_eq!(kernel.symbol_at(VirtAddr(0)), None);
    assert_eq!(kernel.symbol_at(VirtAddr(u64::MAX)), None);
    assert_eq!(kernel.address_of("no_such_symbol"), None);
}

#[test]
fn a_process_table_under_pti_leads_to_the_kernel() {
    let config = Config::new(Style::V6_12);
    let mut guest = config.build();
    // PTI keeps both top tables in an aligned pair of pages: the kernel's, then the process's, which
    // maps nothing of the image here.
    let pair = 0x1f0_0000;
    let top = guest.memory.0[symbols::bytes::index(guest.cr3)..][..4096].to_vec();
    guest.put(PhysAddr(pair), &top);
    let user = pair + 0x1000;
    // PCID bits in the low twelve.
    let found = Kernel::find(&guest.memory, user | 0x806, true);
    assert!(found.is_ok(), "{found:?}");
}

#[test]
fn nothing_is_found_where_nothing_is() {
    for five_level in [false, true] {
        let found = Kernel::find(&empty(), 0x1000, five_level);
        assert_eq!(found.err(), Some(Missing::NoKernelImage));
        let beyond = Kernel::find(&empty(), 0x7fff_f000, five_level);
        assert_eq!(beyond.err(), Some(Missing::NoKernelImage));
    }
}

#[test]
fn a_kernel_without_btf_still_has_names() {
    let (guest, kernel) = booted(|c| c.btf = false);
    assert_eq!(kernel.missing(), [Missing::NoBtf]);
    assert_eq!(kernel.missing()[0].to_string(), "no BTF in this kernel: no process names");
    assert_eq!(kernel.symbol_at(guest.text(0x3001)).unwrap().name, "vfs_read");
    assert_eq!(kernel.current_reader(&guest.memory).err(), Some(Missing::NoBtf));
    assert_eq!(kernel.tasks(&guest.memory).err(), Some(Missing::NoBtf));
    assert!(!Missing::NoBtf.may_come());
}

#[test]
fn a_kernel_without_kallsyms_still_has_an_image_and_a_release() {
    let (guest, kernel) = booted(|c| c.kallsyms = None);
    assert_eq!(kernel.missing(), [Missing::NoKallsyms]);
    assert_eq!(kernel.image().0, guest.text(0));
    assert_eq!(kernel.release(), Some("6.12.1-fixture"));
    assert_eq!(kernel.symbol_count(), 0);
    assert_eq!(kernel.symbol_at(guest.text(0x1404)), None);
    assert_eq!(kernel.modules(&guest.memory).err(), Some(Missing::NoKallsyms));
}

#[test]
fn broken_btf_is_told() {
    let mut guest = Config::new(Style::V6_12).build();
    let kernel = find(&guest).unwrap();
    let btf = kernel.address_of("__start_BTF").unwrap();
    let at = kernel.address_space().translate(&guest.memory, btf).unwrap().phys;
    guest.put(at, &[0; 2]);
    assert_eq!(find(&guest).unwrap().missing(), [Missing::BadBtf]);
}

proptest! {
    #[test]
    fn any_functions_come_back_by_address(
        starts in prop::collection::btree_set(0u64..0x1000, 1..60),
        slide in 0u64..300,
        probe in 0u64..0x1000,
        style in prop::sample::select(STYLES.to_vec()),
    ) {
        let (guest, kernel) = styled(style, |c| {
            c.slide = slide << 21;
            c.functions = starts.iter().map(|&s| (0x1000 + s, 't', format!("f_{s}_\u{7e}"))).collect();
        });
        let expected = starts.range(..=probe).next_back();
        let found = kernel.symbol_at(guest.text(0x1000 + probe));
        prop_assert_eq!(
            found.map(|f| (f.name.to_owned(), f.offset)),
            expected.map(|s| (format!("f_{s}_~"), probe - s))
        );
    }
}
