//! The kernel's list of its own memory.

use proptest::prelude::*;

use super::{STYLES, find, styled};
use crate::fixture::{Config, Style};
use crate::{Missing, PhysAddr};

#[test]
fn ranges_of_ram_are_told_and_nothing_else() {
    for style in STYLES {
        let (guest, kernel) = styled(style, |_| ());
        let end = guest.memory.0.len() as u64 - 1;
        assert_eq!(
            kernel.system_ram(&guest.memory),
            Ok(vec![(PhysAddr(0x1000), PhysAddr(0x9_fbff)), (PhysAddr(0x10_0000), PhysAddr(end))])
        );
    }
}

#[test]
fn a_list_that_does_not_end_is_no_list() {
    let mut guest = Config::new(Style::V6_12).build();
    let kernel = find(&guest).unwrap();
    let list = kernel.address_of("iomem_resource").unwrap();
    let second = kernel.address_space().translate(&guest.memory, list).unwrap().phys.0 + 0x100;
    // The second range's sibling is the second range; then what is not mapped.
    for next in [list.0 + 0x100, 0xdead_0000_0000_0000] {
        guest.put(PhysAddr(second + 48), &next.to_le_bytes());
        assert!(matches!(kernel.system_ram(&guest.memory), Err(Missing::Unreadable(_))));
    }
}

proptest! {
    /// Any bytes in the list's place: an answer of bounded size, or a reason.
    #[test]
    fn any_bytes_are_read_without_harm(bytes in prop::collection::vec(any::<u8>(), 0x280), at in 0_u64..0x280) {
        let mut guest = Config::new(Style::V6_12).build();
        let kernel = find(&guest).unwrap();
        let list = kernel.address_of("iomem_resource").unwrap();
        let phys = kernel.address_space().translate(&guest.memory, list).unwrap().phys;
        guest.put(PhysAddr(phys.0 + at), &bytes);
        if let Ok(ranges) = kernel.system_ram(&guest.memory) {
            prop_assert!(ranges.len() <= 4_096);
        }
    }
}
