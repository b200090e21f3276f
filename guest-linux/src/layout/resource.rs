//! Offsets of the kernel's list of physical memory.

use crate::btf::layout::layout;

layout! {
    /// `struct resource` (include/linux/ioport.h).
    #[derive(Debug, Clone, Copy)]
    ResourceLayout {
        start: usize = "resource.start",
        end: usize = "resource.end",
        name: usize = "resource.name",
        sibling: usize = "resource.sibling",
        child: usize = "resource.child",
    }
}
