//! Communication between two processes of one machine: lmbench's `lat_pipe`, `lat_unix`, `lat_udp`,
//! `lat_tcp`, `lat_connect`, `bw_pipe`, `bw_unix` and `bw_tcp`.

use std::io::{Read, Write, pipe};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use guest_programs::{ProgramError, fork_child, raise_loopback, wait_for};

use crate::measure::{least, print, print_rate};

/// Bytes of one write and one read of a stream whose rate is measured, and bytes of one round.
const PIECE: usize = 64 << 10;
const ROUND: usize = 1 << 20;

fn reading<T>(result: std::io::Result<T>) -> Result<T, ProgramError> {
    result.map_err(ProgramError::system("read"))
}

fn writing<T>(result: std::io::Result<T>) -> Result<T, ProgramError> {
    result.map_err(ProgramError::system("write"))
}

/// Sends back each byte that comes, up to the end.
fn echo(mut from: impl Read, mut to: impl Write) -> Result<(), ProgramError> {
    let mut byte = [0];
    while reading(from.read(&mut byte))? == 1 {
        writing(to.write_all(&byte))?;
    }
    Ok(())
}

/// Measures the round trip of a byte to another process.
fn there_and_back(length: Duration, mut to: impl Write, mut from: impl Read) -> Result<f64, ProgramError> {
    let mut byte = [0];
    least(length, || {
        writing(to.write_all(&byte))?;
        reading(from.read_exact(&mut byte))
    })
}

/// Writes until the reader is gone.
fn pour(mut to: impl Write) {
    let piece = vec![1; PIECE];
    while to.write_all(&piece).is_ok() {}
}

/// Measures the time for a megabyte from another process.
fn take(length: Duration, mut from: impl Read) -> Result<f64, ProgramError> {
    let mut piece = vec![0; PIECE];
    least(length, || {
        let mut left = ROUND;
        while left > 0 {
            let most = left.min(PIECE);
            left -= match reading(from.read(piece.get_mut(..most).unwrap_or_default()))? {
                0 => return Err(ProgramError::Usage("the other process has ended".into())),
                count => count,
            };
        }
        Ok(())
    })
}

fn over_pipes(length: Duration) -> Result<(), ProgramError> {
    let make = || pipe().map_err(ProgramError::system("make a pipe"));
    let ((there, to), (from, back)) = (make()?, make()?);
    // The child has copies of all four ends. It closes those of the parent, which would keep it from seeing
    // the end.
    let child = fork_child(|| {
        // SAFETY: both are open in this process, and the parent's values are never dropped here: the child
        // exits.
        let closed = unsafe { [libc::close(raw(&to)), libc::close(raw(&from))] };
        if closed != [0, 0] {
            return Err(ProgramError::system("close a pipe")(std::io::Error::last_os_error()));
        }
        echo(&there, &back)
    })?;
    print("pipe", there_and_back(length, &to, &from)?);
    drop((to, from, there, back));
    wait_for(child)?;

    let (from, to) = make()?;
    let child = fork_child(|| {
        // SAFETY: as above.
        if unsafe { libc::close(raw(&from)) } != 0 {
            return Err(ProgramError::system("close a pipe")(std::io::Error::last_os_error()));
        }
        pour(&to);
        Ok(())
    })?;
    drop(to);
    print_rate("pipe_rate", ROUND, take(length, &from)?);
    drop(from);
    wait_for(child)
}

fn raw(end: &impl std::os::fd::AsRawFd) -> std::os::fd::RawFd {
    end.as_raw_fd()
}

fn over_unix(length: Duration) -> Result<(), ProgramError> {
    let make = || UnixStream::pair().map_err(ProgramError::system("make a pair of sockets"));
    let (here, there) = make()?;
    let child = fork_child(|| echo(&there, &there))?;
    print("unix", there_and_back(length, &here, &here)?);
    // The child has a copy of this end, which closing alone would leave open.
    here.shutdown(Shutdown::Both).map_err(ProgramError::system("end a connection"))?;
    wait_for(child)?;

    let (here, there) = make()?;
    let child = fork_child(|| {
        pour(&there);
        Ok(())
    })?;
    print_rate("unix_rate", ROUND, take(length, &here)?);
    here.shutdown(Shutdown::Both).map_err(ProgramError::system("end a connection"))?;
    wait_for(child)
}

fn over_udp(length: Duration) -> Result<(), ProgramError> {
    let make = || UdpSocket::bind("127.0.0.1:0").map_err(ProgramError::system("make a socket"));
    let (here, there) = (make()?, make()?);
    let address = |socket: &UdpSocket| socket.local_addr().map_err(ProgramError::system("ask for the port"));
    here.connect(address(&there)?).map_err(ProgramError::system("connect"))?;
    there.connect(address(&here)?).map_err(ProgramError::system("connect"))?;
    let child = fork_child(|| {
        let mut message = [0; 4];
        // An empty message is the end.
        while reading(there.recv(&mut message))? > 0 {
            writing(there.send(&message))?;
        }
        Ok(())
    })?;
    let mut message = [0; 4];
    let time = least(length, || {
        writing(here.send(&message))?;
        reading(here.recv(&mut message)).map(drop)
    })?;
    print("udp", time);
    writing(here.send(&[]))?;
    wait_for(child)
}

fn over_tcp(length: Duration) -> Result<(), ProgramError> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(ProgramError::system("listen"))?;
    let address = listener.local_addr().map_err(ProgramError::system("ask for the port"))?;
    let accept = || listener.accept().map(|(stream, _)| stream).map_err(ProgramError::system("accept"));
    let connect = || TcpStream::connect(address).map_err(ProgramError::system("connect"));
    let child = fork_child(|| {
        let stream = accept()?;
        stream.set_nodelay(true).map_err(ProgramError::system("send at once"))?;
        echo(&stream, &stream)
    })?;
    let stream = connect()?;
    stream.set_nodelay(true).map_err(ProgramError::system("send at once"))?;
    print("tcp", there_and_back(length, &stream, &stream)?);
    drop(stream);
    wait_for(child)?;

    // A byte on a connection marks the last one.
    let child = fork_child(|| {
        let mut byte = [0];
        while reading(accept()?.read(&mut byte))? == 0 {}
        Ok(())
    })?;
    print("tcp_connect", least(length, || connect().map(drop))?);
    writing(connect()?.write_all(&[1]))?;
    wait_for(child)?;

    let child = fork_child(|| {
        pour(accept()?);
        Ok(())
    })?;
    let stream = connect()?;
    print_rate("tcp_rate", ROUND, take(length, &stream)?);
    drop(stream);
    wait_for(child)
}

pub fn measure(length: Duration) -> Result<(), ProgramError> {
    over_pipes(length)?;
    over_unix(length)?;
    raise_loopback()?;
    over_udp(length)?;
    over_tcp(length)
}
