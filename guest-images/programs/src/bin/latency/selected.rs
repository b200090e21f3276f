//! `select`: lmbench's `lat_select`. All descriptors are of one file, or of one connection.

use std::fs::File;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use guest_programs::{ProgramError, raise_loopback};
use nix::sys::select::{FdSet, select};
use nix::sys::time::TimeVal;

use crate::measure::{least_call, print};

/// Numbers of descriptors of the usual tables.
const COUNTS: [usize; 4] = [10, 100, 250, 500];

fn one(length: Duration, count: usize, of: &OwnedFd) -> Result<f64, ProgramError> {
    let copies: Vec<OwnedFd> = (0..count)
        .map(|_| of.try_clone().map_err(ProgramError::system("copy a descriptor")))
        .collect::<Result<_, _>>()?;
    let mut all = FdSet::new();
    for copy in &copies {
        all.insert(copy.as_fd());
    }
    let bound = copies.iter().map(|copy| copy.as_raw_fd() + 1).max();
    least_call(length, || {
        let mut set = all;
        let mut at_once = TimeVal::new(0, 0);
        select(bound, &mut set, None, None, &mut at_once).map(drop).map_err(ProgramError::system("select"))
    })
}

pub fn measure(length: Duration) -> Result<(), ProgramError> {
    let file: OwnedFd = File::open("/usr/bin/sh").map_err(ProgramError::system("open a file"))?.into();
    for count in COUNTS {
        print(&format!("select_file_{count}"), one(length, count, &file)?);
    }
    raise_loopback()?;
    let listener = TcpListener::bind("127.0.0.1:0").map_err(ProgramError::system("listen"))?;
    let address = listener.local_addr().map_err(ProgramError::system("ask for the port"))?;
    let connection: OwnedFd = TcpStream::connect(address).map_err(ProgramError::system("connect"))?.into();
    for count in COUNTS {
        print(&format!("select_tcp_{count}"), one(length, count, &connection)?);
    }
    Ok(())
}
