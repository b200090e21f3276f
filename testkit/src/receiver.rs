//! A server of HTTP/1.1 that takes requests and answers as a test says.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// A request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HttpRequest {
    /// Method and path, like `PUT /a`.
    pub target: String,
    /// Headers by their names in lower case.
    pub headers: BTreeMap<String, String>,
    /// Body.
    pub body: Vec<u8>,
}

/// An answer to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HttpAnswer {
    /// Status, further headers as lines, and body.
    Status(u16, &'static str, Vec<u8>),
    /// None: the connection stays open.
    Silence,
}

/// A server in threads that end with the process.
#[derive(Debug)]
pub struct HttpReceiver {
    /// Its address, on the loopback interface.
    pub address: SocketAddr,
    requests: Arc<Mutex<Vec<HttpRequest>>>,
}

impl HttpReceiver {
    /// Starts a server. `answer` gets the number of requests before, and the request.
    ///
    /// # Panics
    /// There is no free port.
    pub fn new(answer: impl Fn(usize, &HttpRequest) -> HttpAnswer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (all, answer) = (Arc::clone(&requests), Arc::new(answer));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (all, answer) = (Arc::clone(&all), Arc::clone(&answer));
                // A client that goes away ends its connection.
                thread::spawn(move || drop(serve(stream, &all, &*answer)));
            }
        });
        Self { address, requests }
    }

    /// Returns all requests so far.
    pub fn requests(&self) -> Vec<HttpRequest> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn serve(
    mut stream: TcpStream,
    requests: &Mutex<Vec<HttpRequest>>,
    answer: &dyn Fn(usize, &HttpRequest) -> HttpAnswer,
) -> io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    loop {
        let Some(request) = read(&mut reader)? else { return Ok(()) };
        let number = {
            let mut requests = requests.lock().unwrap_or_else(PoisonError::into_inner);
            requests.push(request.clone());
            requests.len() - 1
        };
        let HttpAnswer::Status(status, headers, body) = answer(number, &request) else {
            // Waits for the client's end of the connection.
            return reader.read_to_end(&mut Vec::new()).map(drop);
        };
        let length = body.len();
        write!(stream, "HTTP/1.1 {status} Answer\r\n{headers}Content-Length: {length}\r\n\r\n")?;
        stream.write_all(&body)?;
    }
}

/// Reads a request whose body has a length; `None` at the end of the connection.
fn read(reader: &mut impl BufRead) -> io::Result<Option<HttpRequest>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let target = line.rsplit_once(' ').map_or("", |(target, _)| target).to_owned();
    let mut request = HttpRequest { target, ..HttpRequest::default() };
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.split_once(':') else { break };
        request.headers.insert(name.to_lowercase(), value.trim().to_owned());
    }
    let length = request.headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    request.body = vec![0; length];
    reader.read_exact(&mut request.body)?;
    Ok(Some(request))
}
