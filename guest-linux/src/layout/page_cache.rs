//! Offsets on the way from a file to its bytes.

use crate::btf::layout::layout;
use crate::missing::Missing;
use crate::tree::XArrayLayout;

layout! {
    /// From a file to its bytes. `struct page` has the members of `struct folio` until 5.15.
    #[derive(Debug, Clone, Copy)]
    PageCacheLayout {
        pages: usize = "address_space.i_pages",
        xarray: XArrayLayout,
        /// Bytes of a `struct page`.
        page_size: u64 => |btf| {
            let size = btf.size_of("page").filter(|&size| size > 0);
            size.map(|size| size as u64).ok_or_else(|| Missing::NoField("page".into()))
        },
        flags: usize = "folio.flags" | "page.flags",
        mapping: usize = "folio.mapping" | "page.mapping",
        index: usize = "folio.index" | "page.index",
        /// `PG_uptodate`: the page's bytes have arrived.
        up_to_date: Option<u32> => |btf| {
            Ok(btf.enumerator("pageflags", "PG_uptodate").filter(|&bit| bit < u64::BITS))
        },
    }
}
