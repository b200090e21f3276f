//! Search for the processes of this machine that listen at an address.

use std::collections::HashSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// State of an established connection (include/net/tcp_states.h).
const ESTABLISHED: u64 = 0x01;
/// State of a listening socket.
const LISTEN: u64 = 0x0a;
/// Maximum number of lines of the table that are read.
const LINES: usize = 1 << 20;

/// Line of /proc/net/tcp (proc_pid_net(5)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Socket {
    local: SocketAddr,
    state: u64,
    inode: u64,
}

/// Listeners at an address of this machine.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct PortListeners {
    /// Inodes of the sockets that listen there.
    inodes: HashSet<u64>,
    /// A client is connected.
    pub(crate) taken: bool,
}

impl PortListeners {
    /// Reads the tables of this machine; empty if the address is another machine's.
    pub(crate) fn find(at: &SocketAddr) -> Self {
        let mut found = Self::default();
        for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
            found.take(&fs::read_to_string(table).unwrap_or_default(), at);
        }
        found
    }

    fn take(&mut self, table: &str, at: &SocketAddr) {
        for socket in
            table.lines().take(LINES).filter_map(parse).filter(|socket| socket.local.port() == at.port())
        {
            let (here, wanted) = (socket.local.ip().to_canonical(), at.ip().to_canonical());
            match socket.state {
                LISTEN if here == wanted || here.is_unspecified() => {
                    self.inodes.insert(socket.inode);
                }
                // A connection that waits to be accepted has no inode yet.
                ESTABLISHED if here == wanted && socket.inode != 0 => self.taken = true,
                _ => {}
            }
        }
    }

    /// Returns the processes that have one of the sockets, as far as they are visible.
    pub(crate) fn processes(&self) -> Vec<i32> {
        if self.inodes.is_empty() {
            return Vec::new();
        }
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let mut found: Vec<i32> = entries
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter(|pid| self.is_held_by(*pid))
            .collect();
        found.sort_unstable();
        found
    }

    fn is_held_by(&self, pid: i32) -> bool {
        let links = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        links.filter_map(|entry| fs::read_link(entry.path()).ok()).any(|link| {
            let inode = link.to_str().and_then(|link| link.strip_prefix("socket:[")?.strip_suffix(']'));
            inode.and_then(|inode| inode.parse().ok()).is_some_and(|inode: u64| self.inodes.contains(&inode))
        })
    }
}

fn parse(client_handle: &str) -> Option<Socket> {
    let mut words = client_handle.split_ascii_whitespace();
    let local = address(words.nth(1)?)?;
    let state = u64::from_str_radix(words.nth(1)?, 16).ok()?;
    let inode = words.nth(5)?.parse().ok()?;
    Some(Socket { local, state, inode })
}

/// Parses an address: `0100007F:1F90`, the words of the address as they are in memory, and the port.
fn address(text: &str) -> Option<SocketAddr> {
    let (host, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| u32::from_str_radix(host.get(at..at + 8)?, 16).ok().map(u32::to_ne_bytes);
    let host = match host.len() {
        8 => IpAddr::from(Ipv4Addr::from(word(0)?)),
        32 => {
            let mut bytes = [0; 16];
            for (part, at) in bytes.chunks_mut(4).zip([0, 8, 16, 24]) {
                part.copy_from_slice(&word(at)?);
            }
            IpAddr::from(Ipv6Addr::from(bytes))
        }
        _ => return None,
    };
    Some(SocketAddr::new(host, port))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn the_listener_is_found_among_the_sockets() {
        let table = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:5B73 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0000 100 0 0 10 0
   1: 00000000:5B73 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4712 1 0000 100 0 0 10 0
   2: 0200007F:5B73 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4713 1 0000 100 0 0 10 0
   3: 0100007F:9999 0100007F:5B73 01 00000000:00000000 00:00000000 00000000     0        0 4714 1 0000 100 0 0 10 0
";
        let at = "127.0.0.1:23411".parse().unwrap();
        let mut found = PortListeners::default();
        found.take(table, &at);
        assert_eq!((found.inodes.clone(), found.taken), (HashSet::from([4711, 4712]), false));
        let six = "   0: 00000000000000000000000001000000:5B73 0:0 01 0:0 00:0 0 0 0 88 1\n";
        found.take(six, &"[::1]:23411".parse().unwrap());
        assert!(found.taken);
        let mapped = "   0: 0000000000000000FFFF00000100007F:5B73 0:0 0A 0:0 00:0 0 0 0 99 1\nnonsense\n";
        found.take(mapped, &at);
        assert!(found.inodes.contains(&99));
    }

    #[test]
    fn this_process_is_found_by_its_socket() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        let found = PortListeners::find(&at);
        assert_eq!((found.processes(), found.taken), (vec![own], false));
        let _client = TcpStream::connect(at).unwrap();
        let _served = listener.accept().unwrap();
        assert!(PortListeners::find(&at).taken);
        drop(listener);
        assert_eq!(PortListeners::find(&at).processes(), Vec::<i32>::new());
    }
}
