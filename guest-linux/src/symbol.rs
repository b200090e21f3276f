//! A symbol that covers an address.

/// A symbol that covers an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SymbolAt<'a> {
    /// The symbol's name; empty for a place in a module that no symbol covers.
    pub name: &'a str,
    /// Module, `None` for the kernel image.
    pub module: Option<&'a str>,
    /// Bytes from the symbol's start to the address.
    pub offset: u64,
}
