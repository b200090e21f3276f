//! One GET over plain HTTP/1.1: a status, a few headers, a body to a file.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Bytes of the status line and all headers, at most.
const MAX_HEAD: u64 = 64 << 10;
/// Redirections that are followed.
const MAX_HOPS: usize = 3;
/// Bytes that must come within one timeout, as debuginfod's own client asks for.
const LEAST: u64 = 100 << 10;

/// Reason why a GET failed.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// Not a URL that starts with http://.
    #[error("{0}: only http:// is supported")]
    Scheme(String),
    /// The connection failed.
    #[error("{url}: {error}")]
    Io {
        /// The URL.
        url: String,
        /// The reason.
        error: io::Error,
    },
    /// The answer is not HTTP.
    #[error("{0}: the answer is not HTTP")]
    NotHttp(String),
    /// Neither 200 nor 404.
    #[error("{url}: the server answered {status}")]
    Status {
        /// The URL.
        url: String,
        /// The status.
        status: u16,
    },
    /// The body is larger than the bound.
    #[error("{url}: more than {most} bytes")]
    TooLarge {
        /// The URL.
        url: String,
        /// The bound.
        most: u64,
    },
}

/// Limits of a GET: time and size.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// No answer, or less than 100 KiB of it, within this time ends the GET.
    pub timeout: Duration,
    /// Bytes of the body, at most.
    pub most: u64,
}

/// Writes the body at `url` to `out` and returns true; false when the server does not have it (404).
pub fn get(url: &str, limits: Limits, out: &mut dyn Write) -> Result<bool, HttpError> {
    let mut url = url.to_owned();
    for _ in 0..=MAX_HOPS {
        let io = |error| HttpError::Io { url: url.clone(), error };
        let (host, path) = split(&url).ok_or_else(|| HttpError::Scheme(url.clone()))?;
        let mut stream = Paced::new(connect(host, limits.timeout).map_err(io)?, limits.timeout);
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: vprof/{}\r\nAccept: */*\r\n\
             Accept-Encoding: identity\r\nConnection: close\r\n\r\n",
            env!("CARGO_PKG_VERSION")
        );
        stream.inner.write_all(request.as_bytes()).map_err(io)?;
        let mut reader = BufReader::new(stream);
        let head = Head::read(&mut reader).map_err(io)?.ok_or_else(|| HttpError::NotHttp(url.clone()))?;
        match (head.status, head.location) {
            (200, _) => {
                let length = head.length;
                let mut body: Box<dyn Read> = match head.is_chunked {
                    true => Box::new(Chunked { inner: reader, left: 0, is_first: true, is_done: false }),
                    false => Box::new(reader.take(length.unwrap_or(u64::MAX))),
                };
                let size = io::copy(&mut (&mut body).take(limits.most.saturating_add(1)), out).map_err(io)?;
                if size > limits.most {
                    return Err(HttpError::TooLarge { url, most: limits.most });
                }
                if length.is_some_and(|length| !head.is_chunked && length != size) {
                    return Err(io(io::ErrorKind::UnexpectedEof.into()));
                }
                return Ok(true);
            }
            (404, _) => return Ok(false),
            (301 | 302 | 303 | 307 | 308, Some(location)) => {
                url = if location.starts_with('/') { format!("http://{host}{location}") } else { location };
            }
            (status, _) => return Err(HttpError::Status { url, status }),
        }
    }
    Err(HttpError::Status { url, status: 310 })
}

/// Host with port, and path.
fn split(url: &str) -> Option<(&str, &str)> {
    let rest = url.strip_prefix("http://")?;
    let (host, path) = rest.find('/').map_or((rest, "/"), |at| rest.split_at(at));
    let is_clean = url.bytes().all(|b| b.is_ascii_graphic());
    (!host.is_empty() && is_clean).then_some((host, path))
}

fn connect(host: &str, timeout: Duration) -> io::Result<TcpStream> {
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    let addresses = if has_port { host.to_socket_addrs()? } else { (host, 80).to_socket_addrs()? };
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for address in addresses.take(4) {
        match TcpStream::connect_timeout(&address, timeout) {
            Ok(stream) => {
                stream.set_write_timeout(Some(timeout))?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// A stream that must bring [`LEAST`] bytes, or its end, within each timeout.
struct Paced {
    inner: TcpStream,
    timeout: Duration,
    since: Instant,
    bytes: u64,
}

impl Paced {
    fn new(inner: TcpStream, timeout: Duration) -> Self {
        Self { inner, timeout, since: Instant::now(), bytes: 0 }
    }
}

impl Read for Paced {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.bytes >= LEAST {
            (self.since, self.bytes) = (Instant::now(), 0);
        }
        let left = self.timeout.saturating_sub(self.since.elapsed());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.inner.set_read_timeout(Some(left))?;
        let size = self.inner.read(into).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
            _ => error,
        })?;
        self.bytes += size as u64;
        Ok(size)
    }
}

/// The used fields of an answer's head.
struct Head {
    status: u16,
    length: Option<u64>,
    is_chunked: bool,
    location: Option<String>,
}

impl Head {
    /// Reads the head; `None` when it is not HTTP.
    fn read(reader: &mut impl BufRead) -> io::Result<Option<Self>> {
        let mut head = Self { status: 0, length: None, is_chunked: false, location: None };
        let mut lines = reader.take(MAX_HEAD);
        loop {
            let mut line = Vec::new();
            lines.read_until(b'\n', &mut line)?;
            let Ok(line) = String::from_utf8(line) else { return Ok(None) };
            let Some(line) = line.strip_suffix('\n').map(str::trim_end) else { return Ok(None) };
            if head.status == 0 {
                let words: Vec<&str> = line.split(' ').collect();
                let [version, status, ..] = words[..] else { return Ok(None) };
                let Ok(status) = status.parse() else { return Ok(None) };
                if !version.starts_with("HTTP/1.") || status == 0 {
                    return Ok(None);
                }
                head.status = status;
            } else if line.is_empty() {
                return Ok(Some(head));
            } else if let Some((name, value)) = line.split_once(':') {
                let value = value.trim();
                match name.to_ascii_lowercase().as_str() {
                    "content-length" => head.length = value.parse().ok(),
                    "transfer-encoding" => head.is_chunked = value.eq_ignore_ascii_case("chunked"),
                    "location" => head.location = Some(value.to_owned()),
                    _ => {}
                }
            }
        }
    }
}

/// A body in chunks (RFC 9112, section 7.1).
struct Chunked<R> {
    inner: R,
    left: u64,
    is_first: bool,
    is_done: bool,
}

impl<R: BufRead> Read for Chunked<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.left == 0 && !self.is_done {
            // A line end closes the chunk before.
            for _ in 0..if self.is_first { 1 } else { 2 } {
                let mut line = String::new();
                (&mut self.inner).take(1024).read_line(&mut line)?;
                let size = line.trim_end().split(';').next().unwrap_or_default();
                if size.is_empty() && line.ends_with('\n') {
                    continue;
                }
                self.left =
                    u64::from_str_radix(size, 16).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
                self.is_done = self.left == 0;
                break;
            }
            self.is_first = false;
        }
        if self.is_done {
            return Ok(0);
        }
        let most = usize::try_from(self.left).map_or(into.len(), |left| left.min(into.len()));
        let size = self.inner.read(&mut into[..most])?;
        if size == 0 && most > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= size as u64;
        Ok(size)
    }
}
