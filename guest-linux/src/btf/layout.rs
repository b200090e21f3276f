//! Tables of offsets: structures whose fields are looked up by name in BTF.
//!
//! ```text
//! layout! {
//!     #[derive(...)]
//!     ExampleLayout {
//!         parent: usize = "kernfs_node.__parent" | "kernfs_node.parent",   first name that the kernel has
//!         delayed: Option<usize> = "task_struct.se.sched_delayed",         not in every kernel
//!         inode: InodeLayout,                                              another table
//!         size: usize => |btf| ...,                                        computed
//!     }
//! }
//! ```

use super::Btf;
use crate::missing::Missing;

/// A value that BTF holds: an offset, a table of offsets, or either of them where a kernel may lack it.
pub(crate) trait FromBtf: Sized {
    /// Reads the value of the first member in `paths` (`"structure.member"`) that the kernel has. A table of
    /// offsets has its own paths and gets none.
    ///
    /// # Errors
    /// [`Missing::NoField`] with the first path.
    fn from_btf(btf: &Btf<'_>, paths: &[&str]) -> Result<Self, Missing>;
}

/// The offset of a member, bytes from the start of its structure.
impl FromBtf for usize {
    fn from_btf(btf: &Btf<'_>, paths: &[&str]) -> Result<Self, Missing> {
        offset(btf, paths)
    }
}

/// A value that not every kernel has.
impl<T: FromBtf> FromBtf for Option<T> {
    fn from_btf(btf: &Btf<'_>, paths: &[&str]) -> Result<Self, Missing> {
        Ok(T::from_btf(btf, paths).ok())
    }
}

/// A value whose absence is reported when it is needed: a missing member spoils one question only.
impl<T: FromBtf> FromBtf for Result<T, Missing> {
    fn from_btf(btf: &Btf<'_>, paths: &[&str]) -> Result<Self, Missing> {
        Ok(T::from_btf(btf, paths))
    }
}

/// A member that is a small number, whose size is not the same in all kernels.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NumberLayout {
    pub(crate) offset: usize,
    /// 1, 2 or 4 bytes.
    pub(crate) bytes: usize,
}

impl FromBtf for NumberLayout {
    fn from_btf(btf: &Btf<'_>, paths: &[&str]) -> Result<Self, Missing> {
        let offset = offset(btf, paths)?;
        let member = paths.iter().find_map(|path| btf.member_by_path(path));
        let size = member.and_then(|member| btf.number_size(member));
        Ok(Self { offset, bytes: size.filter(|size| [1, 2].contains(size)).unwrap_or(4) })
    }
}

/// Returns the offset of the first of several members (`"structure.member"`) that the kernel has.
///
/// # Errors
/// [`Missing::NoField`] with the first path.
pub(crate) fn offset(btf: &Btf<'_>, paths: &[&str]) -> Result<usize, Missing> {
    let member = paths.iter().find_map(|path| btf.member_by_path(path));
    member.map(|m| m.offset).ok_or_else(|| Missing::NoField((*paths.first().unwrap_or(&"")).to_owned()))
}

/// Calls `compute`, whose argument's type is thereby known to the compiler.
pub(crate) fn computed<T>(
    btf: &Btf<'_>,
    compute: impl FnOnce(&Btf<'_>) -> Result<T, Missing>,
) -> Result<T, Missing> {
    compute(btf)
}

/// Defines tables of offsets with their lookup in BTF; see the module's documentation.
macro_rules! layout {
    (@field $btf:ident, $type:ty, [] $value:expr) => {
        $crate::btf::layout::computed::<$type>($btf, $value)?
    };
    (@field $btf:ident, $type:ty, [$($path:literal),*]) => {
        <$type as $crate::btf::layout::FromBtf>::from_btf($btf, &[$($path),*])?
    };
    ($(
        $(#[$meta:meta])*
        $name:ident {
            $(
                $(#[$field_meta:meta])*
                $field:ident: $type:ty $(= $($path:literal)|+)? $(=> $value:expr)?
            ),+ $(,)?
        }
    )+) => { $(
        $(#[$meta])*
        pub(crate) struct $name {
            $( $(#[$field_meta])* pub(crate) $field: $type, )+
        }

        impl $name {
            /// Looks up the offsets.
            ///
            /// # Errors
            /// [`crate::Missing::NoField`]: the first member that the kernel lacks.
            pub(crate) fn new(btf: &$crate::btf::Btf<'_>) -> Result<Self, $crate::missing::Missing> {
                Ok(Self { $( $field: layout!(@field btf, $type, [$($($path),+)?] $($value)?), )+ })
            }
        }

        impl $crate::btf::layout::FromBtf for $name {
            fn from_btf(btf: &$crate::btf::Btf<'_>, _: &[&str]) -> Result<Self, $crate::missing::Missing> {
                Self::new(btf)
            }
        }
    )+ };
}
pub(crate) use layout;
