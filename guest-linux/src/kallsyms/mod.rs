//! The kernel's own symbol table (kallsyms), read from the image.
//!
//! `scripts/kallsyms.c` of the kernel writes these arrays into `.rodata`, each aligned to 8 bytes:
//!
//! ```text
//! until 6.4                         since 6.5
//!   offsets        i32[n]             num_syms       u32
//!   relative_base  u64                names          { length, token... } * n
//!   num_syms       u32                markers        u32[(n + 255) / 256]
//!   names                             token_table
//!   markers                           token_index
//!   [seqs_of_names u8[3 * n], 6.2]    offsets
//!   token_table    256 strings        relative_base
//!   token_index    u16[256]           seqs_of_names
//! ```
//!
//! A name is a length (one byte, or two when bit 7 is set: since 6.1) and that many tokens; the
//! expanded string starts with the type letter that `nm` shows. `markers[i]` is the offset in
//! `names` of symbol `256 * i`. None of it depends on where KASLR put the kernel, but
//! `relative_base`, which is relocated.
//!
//! [`locate`] finds the arrays and checks them against each other, [`decode`] expands the names,
//! [`table`] answers questions.

pub(crate) mod decode;
pub(crate) mod functions;
pub(crate) mod locate;
pub(crate) mod table;

/// Symbols of one kernel, at most: the largest distribution kernels have 250,000.
pub(crate) const MAX_SYMBOLS: usize = 1 << 20;
/// Bytes of `names`, at most: those kernels have 3 MiB.
pub(crate) const MAX_NAMES: u64 = 8 << 20;
/// Characters of a name, at most (`KSYM_NAME_LEN`, include/linux/kallsyms.h, 6.12).
pub(crate) const MAX_NAME: usize = 512;
