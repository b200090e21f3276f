//! Networks for guests, apart from this machine's own.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::process::Command;

/// The host's address on the tap.
const HOST: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);
/// Gateway of the host's default route. No machine has the address; a guest that uses passt reaches the
/// host's own servers by it.
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 254);

/// A tap with an address in a separate network namespace, and a server on TCP port 7 that echoes.
#[derive(Debug)]
pub struct GuestNetwork {
    tap: &'static str,
}

impl GuestNetwork {
    /// Calls `test` on a thread in such a namespace; the thread's children are in the namespace too. `None`
    /// if this process may not make a namespace and the test may be skipped.
    ///
    /// # Panics
    /// The tap cannot be made, or `test` panics.
    pub fn apart<T: Send>(test: impl FnOnce(&Self) -> T + Send) -> Option<T> {
        let apart = || {
            if let Err(error) = nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET) {
                testkit::missing(&format!("a network namespace ({error}): run the tests as root"));
                return None;
            }
            let network = Self { tap: "tap-guest" };
            network.ip(&["tuntap", "add", "dev", network.tap, "mode", "tap"]);
            network.ip(&["address", "add", &format!("{HOST}/24"), "dev", network.tap]);
            network.ip(&["link", "set", network.tap, "up"]);
            network.ip(&["link", "set", "lo", "up"]);
            network.ip(&["route", "add", "default", "via", &GATEWAY.to_string()]);
            serve_echo();
            Some(test(&network))
        };
        // Failures and times of its guests are the test's, by the thread's name.
        let name = std::thread::current().name().unwrap_or("a test").to_owned();
        let thread = std::thread::Builder::new().name(name);
        std::thread::scope(|scope| thread.spawn_scoped(scope, apart).expect("a thread").join())
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Returns the guest's address and the host's, for a guest at the tap.
    pub fn by_tap(&self) -> [String; 2] {
        [Ipv4Addr::new(10, 99, 0, 2), HOST].map(|address| address.to_string())
    }

    /// Returns both addresses for a guest that uses passt and has the host's own address.
    pub fn by_passt(&self) -> [String; 2] {
        [HOST, GATEWAY].map(|address| address.to_string())
    }

    /// Returns the tap's name.
    pub fn tap(&self) -> &str {
        self.tap
    }

    /// Returns the output of `ip` in the namespace.
    ///
    /// # Panics
    /// `ip` fails.
    pub fn ip(&self, arguments: &[&str]) -> String {
        let output = Command::new("ip").args(arguments).output().expect("ip, of the package iproute2");
        assert!(output.status.success(), "ip {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

/// Starts the server; it ends with the process.
fn serve_echo() {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 7)).expect("the namespace has no other server");
    std::thread::spawn(move || {
        for mut connection in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut buffer = [0; 16 << 10];
                // Either fails when the guest is gone.
                while let Ok(count @ 1..) = connection.read(&mut buffer) {
                    if connection.write_all(&buffer[..count]).is_err() {
                        break;
                    }
                }
            });
        }
    });
}
