//! An interface of this host as a wire: every frame that it gets is the guest's, and the guest's frames leave
//! by it (packet(7)).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::{Backend, passing, received, request};

/// `ETHTOOL_SGRO` of linux/ethtool.h: whether received frames are joined to longer ones.
const SET_JOINING: u32 = 0x2c;
/// `AF_PACKET`, `ETH_P_ALL` and `PACKET_MR_PROMISC` as wide as the structures have them.
const FAMILY: u16 = 17;
const ALL_PROTOCOLS: u16 = 3;
const PROMISCUOUS: u16 = 1;

/// Interface of this host whose network the card joins.
#[derive(Debug)]
pub struct Interface {
    socket: OwnedFd,
}

impl Interface {
    /// Switches the interface on and takes all of its frames. Needs `CAP_NET_RAW` and `CAP_NET_ADMIN`.
    ///
    /// # Errors
    /// There is no such interface, or this process may not.
    pub fn open(name: &str) -> io::Result<Self> {
        if !request::is_name(name) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // Without a protocol nothing arrives before it is bound.
        // SAFETY: socket takes three numbers.
        let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else's.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        let mut index = request::about(name, 0);
        request::make(socket.as_fd(), libc::SIOCGIFINDEX, &mut index)?;
        // SAFETY: the request has just filled this member.
        let index = unsafe { index.ifr_ifru.ifru_ifindex };
        // What this host itself sends is not the guest's.
        option(&socket, libc::PACKET_IGNORE_OUTGOING, &1)?;
        // SAFETY: all-zero bytes are a valid address, which is plain data.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = FAMILY;
        address.sll_protocol = ALL_PROTOCOLS.to_be();
        address.sll_ifindex = index;
        let length = length_of(&address)?;
        // SAFETY: the pointer is valid for reads of that many bytes.
        let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
        if bound != 0 {
            return Err(io::Error::last_os_error());
        }
        let promiscuous =
            libc::packet_mreq { mr_ifindex: index, mr_type: PROMISCUOUS, mr_alen: 0, mr_address: [0; 8] };
        option(&socket, libc::PACKET_ADD_MEMBERSHIP, &promiscuous)?;
        request::add_flags(socket.as_fd(), name, libc::IFF_UP | libc::IFF_NOARP)?;
        keep_apart(socket.as_fd(), name)?;
        Ok(Self { socket })
    }
}

impl Interface {
    /// Duplicates the interface's descriptor, for a process that moves its frames instead of this one.
    ///
    /// # Errors
    /// The host has no descriptor left.
    pub fn try_clone_fd(&self) -> io::Result<OwnedFd> {
        self.socket.try_clone()
    }
}

impl From<OwnedFd> for Interface {
    /// Takes the descriptor of an interface that another process has opened ([`Interface::try_clone_fd`]).
    fn from(socket: OwnedFd) -> Self {
        Self { socket }
    }
}

/// Makes the kernel deliver received frames as they came: joined frames do not fit into the guest's buffers.
fn keep_apart(socket: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    // struct ethtool_value: command, data.
    let mut value = [SET_JOINING, 0];
    let mut request = request::about(name, 0);
    request.ifr_ifru.ifru_data = value.as_mut_ptr().cast();
    match request::make(socket, libc::SIOCETHTOOL, &mut request) {
        // An interface whose kind is unknown does not join any.
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(()),
        other => other,
    }
}

fn length_of<T>(_: &T) -> io::Result<libc::socklen_t> {
    libc::socklen_t::try_from(size_of::<T>()).map_err(io::Error::other)
}

fn option<T>(socket: &OwnedFd, name: libc::c_int, value: &T) -> io::Result<()> {
    let length = length_of(value)?;
    // SAFETY: the pointer is valid for reads of that many bytes.
    let done = unsafe {
        let value = std::ptr::from_ref(value).cast();
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_PACKET, name, value, length)
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

impl Backend for Interface {
    fn receive(&mut self, into: &mut [u8]) -> io::Result<Option<usize>> {
        // SAFETY: the pointer is valid for writes of that many bytes.
        received(unsafe { libc::read(self.socket.as_raw_fd(), into.as_mut_ptr().cast(), into.len()) })
    }

    fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        // SAFETY: the pointer is valid for reads of that many bytes.
        match unsafe { libc::write(self.socket.as_raw_fd(), frame.as_ptr().cast(), frame.len()) } {
            0.. => Ok(()),
            _ => match io::Error::last_os_error() {
                // Shorter than an Ethernet header, or longer than the interface takes.
                error if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EMSGSIZE)) => Ok(()),
                error => passing(error),
            },
        }
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
