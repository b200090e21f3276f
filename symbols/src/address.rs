//! One type per kind of address, so that one is never taken for another.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Defines a kind of address.
macro_rules! address {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
        #[repr(transparent)]
        pub struct $name(pub u64);

        impl $name {
            /// Returns `self + bytes`, `None` on overflow.
            #[inline]
            pub fn checked_add(self, bytes: u64) -> Option<Self> {
                self.0.checked_add(bytes).map(Self)
            }

            /// Returns `self - bytes`, `None` below zero.
            #[inline]
            pub fn checked_sub(self, bytes: u64) -> Option<Self> {
                self.0.checked_sub(bytes).map(Self)
            }

            /// Returns the bytes from `base` to `self`, `None` if `self` is below.
            #[inline]
            pub fn offset_from(self, base: Self) -> Option<u64> {
                self.0.checked_sub(base.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }

        impl fmt::LowerHex for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::LowerHex::fmt(&self.0, f)
            }
        }
    };
}

address! {
    /// A virtual address of the guest, or of the process whose stack is walked.
    VirtAddr
}

address! {
    /// A physical address of the guest.
    PhysAddr
}

address! {
    /// An address inside of an ELF file, as its linker has assigned it: that of symbols, sections and tables.
    LinkAddr
}

address! {
    /// A position in a file, in bytes.
    FileOffset
}

impl VirtAddr {
    /// Returns the address inside of a file whose load bias is `bias`: virtual address minus address in the
    /// file, modulo 2^64.
    #[inline]
    pub fn linked(self, bias: u64) -> LinkAddr {
        LinkAddr(self.0.wrapping_sub(bias))
    }
}

impl VirtAddr {
    /// Returns the load bias of a file whose byte of the linked address `linked` is mapped here.
    #[inline]
    pub fn bias(self, linked: LinkAddr) -> u64 {
        self.0.wrapping_sub(linked.0)
    }
}

impl LinkAddr {
    /// Returns the virtual address in a process where the load bias of the file is `bias`.
    #[inline]
    pub fn loaded(self, bias: u64) -> VirtAddr {
        VirtAddr(self.0.wrapping_add(bias))
    }
}

/// Kinds of address that code has.
pub trait CodeSpace: Copy {
    /// Returns the address before this one, modulo 2^64.
    #[must_use]
    fn before(self) -> Self;
}

impl CodeSpace for VirtAddr {
    #[inline]
    fn before(self) -> Self {
        Self(self.0.wrapping_sub(1))
    }
}

impl CodeSpace for LinkAddr {
    #[inline]
    fn before(self) -> Self {
        Self(self.0.wrapping_sub(1))
    }
}

/// Meaning of the code address of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum AddressKind {
    /// The next instruction of code that was interrupted.
    Exact,
    /// Return address: the frame is in the call before it, which may belong to another line or function.
    Return,
}

/// Code address of a frame: of an instruction, or one that a call returns to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CodeAddr<A = VirtAddr> {
    /// Address of the instruction that runs next in the frame.
    pub address: A,
    /// Meaning of the address.
    pub kind: AddressKind,
}

impl<A: CodeSpace> CodeAddr<A> {
    /// Returns the address of an instruction.
    #[inline]
    pub fn exact(address: A) -> Self {
        Self { address, kind: AddressKind::Exact }
    }

    /// Returns a return address.
    #[inline]
    pub fn returning(address: A) -> Self {
        Self { address, kind: AddressKind::Return }
    }

    /// Returns a return address if `call` is true, else the address of an instruction.
    #[inline]
    pub fn new(address: A, call: bool) -> Self {
        if call { Self::returning(address) } else { Self::exact(address) }
    }

    /// Returns true for a return address.
    #[inline]
    pub fn is_return(self) -> bool {
        self.kind == AddressKind::Return
    }

    /// Returns an address inside of the instruction that the frame is in, which is what to look up: a call
    /// may be a function's last instruction.
    #[inline]
    pub fn lookup(self) -> A {
        match self.kind {
            AddressKind::Exact => self.address,
            AddressKind::Return => self.address.before(),
        }
    }
}

impl CodeAddr {
    /// Returns the address inside of a file with the load bias `bias`.
    #[inline]
    pub fn linked(self, bias: u64) -> CodeAddr<LinkAddr> {
        CodeAddr { address: self.address.linked(bias), kind: self.kind }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_return_address_is_looked_up_inside_of_its_call() {
        assert_eq!(CodeAddr::exact(VirtAddr(0x1000)).lookup(), VirtAddr(0x1000));
        assert_eq!(CodeAddr::returning(VirtAddr(0x1000)).lookup(), VirtAddr(0xfff));
        assert_eq!(CodeAddr::returning(LinkAddr(0)).lookup(), LinkAddr(u64::MAX));
    }

    #[test]
    fn addresses_do_not_wrap_and_print_in_hex() {
        assert_eq!(PhysAddr(u64::MAX).checked_add(1), None);
        assert_eq!(FileOffset(1).checked_sub(2), None);
        assert_eq!(VirtAddr(0x30).offset_from(VirtAddr(0x10)), Some(0x20));
        assert_eq!(VirtAddr(0x10).linked(0x30), LinkAddr(u64::MAX - 0x1f));
        assert_eq!(VirtAddr(0x1f).to_string(), "0x1f");
    }
}
