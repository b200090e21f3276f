//! Counters of an agent for Prometheus, in its text format (version 0.0.4).

use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::sink::SinkCounters;
use crate::errors::FleetError;

/// Longest request that is read, bytes.
const LONGEST: usize = 8 << 10;
/// Time limit of a read and of a write: one client at a time is served.
const LIMIT: Duration = Duration::from_secs(1);

/// Counters of an agent.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AgentCounters {
    /// Virtual machines that run.
    pub vms: u64,
    /// Those that are recorded.
    pub recorded: u64,
    /// Samples in written windows.
    pub samples: u64,
    /// Samples that were lost in them.
    pub lost: u64,
    /// Windows that were written.
    pub written: u64,
    /// Windows that could not be written, each attempt.
    pub failed: u64,
    /// Windows that were dropped.
    pub dropped: u64,
    /// Recorders that have failed.
    pub recorders_failed: u64,
    /// Own CPU time, with that of all processes of the agent, ns.
    pub cpu_ns: u64,
    /// The same as a part of all CPUs of the host, over the last half minute.
    pub cpu_share: f64,
    /// Size of the spool, bytes.
    pub spool_bytes: u64,
    /// Ticks per second and vCPU that the budget of the host allows.
    pub rate_hz: f64,
    /// Of each sink.
    pub sinks: Vec<SinkCounters>,
}

/// Kind of a counter in the text format.
const COUNTER: &str = "counter";
const GAUGE: &str = "gauge";

impl AgentCounters {
    /// Returns the counters in the text format.
    pub fn text(&self) -> String {
        let seconds = self.cpu_ns as f64 / 1e9;
        let rows: [(&str, &str, &str, f64); 12] = [
            ("vms", GAUGE, "Virtual machines that run on KVM.", self.vms as f64),
            ("recorded_vms", GAUGE, "Virtual machines that are recorded now.", self.recorded as f64),
            ("samples_total", COUNTER, "Samples in written windows.", self.samples as f64),
            ("lost_samples_total", COUNTER, "Samples that were lost in them.", self.lost as f64),
            ("windows_written_total", COUNTER, "Windows that were written.", self.written as f64),
            ("windows_failed_total", COUNTER, "Failed attempts to write a window.", self.failed as f64),
            ("windows_dropped_total", COUNTER, "Windows that were dropped.", self.dropped as f64),
            ("recorders_failed_total", COUNTER, "Recorders that have failed.", self.recorders_failed as f64),
            ("cpu_seconds_total", COUNTER, "CPU time of all processes of the agent.", seconds),
            ("cpu_share", GAUGE, "The same as a part of all CPUs of the host.", self.cpu_share),
            ("spool_bytes", GAUGE, "Size of recordings that are not written yet.", self.spool_bytes as f64),
            ("rate_hz", GAUGE, "Samples per second and vCPU that --budget allows.", self.rate_hz),
        ];
        let mut text = String::new();
        for (name, kind, help, value) in rows {
            // Writing to a string cannot fail.
            let _ = write!(
                text,
                "# HELP vprof_agent_{name} {help}\n# TYPE vprof_agent_{name} {kind}\nvprof_agent_{name} {value}\n"
            );
        }
        text + &self.sink_text()
    }

    fn sink_text(&self) -> String {
        type Column = fn(&SinkCounters) -> Option<u64>;
        let rows: [(&str, &str, &str, Column); 7] = [
            ("windows_total", COUNTER, "Windows that the sink has as a whole.", |sink| Some(sink.windows)),
            ("sent_total", COUNTER, "Objects or requests that the sink has taken.", |sink| Some(sink.sent)),
            ("sent_bytes_total", COUNTER, "Their size.", |sink| Some(sink.bytes)),
            ("failures_total", COUNTER, "Failed attempts to send a window.", |sink| Some(sink.failed)),
            ("refused_total", COUNTER, "Requests that the sink has refused.", |sink| Some(sink.refused)),
            ("dropped_windows_total", COUNTER, "Windows dropped before the sink had them.", |sink| {
                Some(sink.dropped)
            }),
            ("oldest_window_timestamp_seconds", GAUGE, "Start of the oldest window that waits.", |sink| {
                sink.oldest_unix_s
            }),
        ];
        let mut text = String::new();
        for (name, kind, help, value) in rows {
            // Writing to a string cannot fail.
            let _ = write!(
                text,
                "# HELP vprof_agent_sink_{name} {help}\n# TYPE vprof_agent_sink_{name} {kind}\n"
            );
            for sink in &self.sinks {
                let Some(value) = value(sink) else { continue };
                let address = sink.address.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
                let _ = writeln!(text, "vprof_agent_sink_{name}{{sink=\"{address}\"}} {value}");
            }
        }
        text
    }
}

/// Counters that a thread serves.
pub type SharedCounters = Arc<Mutex<AgentCounters>>;

/// Serves the counters at an address, in a thread that ends with the process.
///
/// # Errors
/// The address cannot be used.
pub fn serve(address: SocketAddr, counters: SharedCounters) -> Result<SocketAddr, FleetError> {
    let failed = |source| FleetError::Metrics { address, source };
    let listener = TcpListener::bind(address).map_err(failed)?;
    let own = listener.local_addr().map_err(failed)?;
    let thread = thread::Builder::new().name("metrics".to_owned());
    thread.spawn(move || serve_all(&listener, &counters)).map_err(failed)?;
    Ok(own)
}

fn serve_all(listener: &TcpListener, counters: &SharedCounters) {
    // It reads what strangers send, and needs no right of the agent.
    if attach::capabilities::drop_all().is_err() {
        return;
    }
    for stream in listener.incoming() {
        let counters = counters.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // A client that has gone needs no answer; without a descriptor there is none either.
        match stream {
            Ok(stream) => drop(answer(stream, &counters)),
            Err(_) => thread::sleep(LIMIT),
        }
    }
}

/// Answers one request (RFC 9112), and closes the connection.
fn answer(mut stream: TcpStream, counters: &AgentCounters) -> io::Result<()> {
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    let (mut request, mut part) = (Vec::new(), [0; 1024]);
    while !request.windows(4).any(|end| end == b"\r\n\r\n") && request.len() < LONGEST {
        match stream.read(&mut part)? {
            0 => break,
            count => request.extend_from_slice(part.get(..count).unwrap_or_default()),
        }
    }
    let (status, body) = match target(&request) {
        Some("/metrics" | "/") => ("200 OK", counters.text()),
        Some(_) => ("404 Not Found", "the counters are at /metrics\n".to_owned()),
        None => ("400 Bad Request", "not a GET request\n".to_owned()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}

/// Returns the path of a GET request.
fn target(request: &[u8]) -> Option<&str> {
    let line = request.split(|byte| *byte == b'\r').next()?;
    let mut words = str::from_utf8(line).ok()?.split(' ');
    if words.next()? != "GET" {
        return None;
    }
    words.next()?.split('?').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(address: SocketAddr, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        let mut answer = String::new();
        // The server may have answered and closed before the end of a request, and what it has not read then
        // resets the connection.
        let _sent = stream.write_all(request).and_then(|()| stream.shutdown(std::net::Shutdown::Write));
        let _read = stream.read_to_string(&mut answer);
        answer
    }

    #[test]
    fn counters_are_served_and_other_requests_are_refused() {
        let counters = SharedCounters::default();
        counters.lock().unwrap().samples = 1_234;
        counters.lock().unwrap().cpu_ns = 1_500_000_000;
        let sink = |address: &str, sent| SinkCounters {
            address: address.to_owned(),
            sent,
            ..SinkCounters::default()
        };
        let waiting = SinkCounters { oldest_unix_s: Some(77), ..sink("s3://b", 8) };
        counters.lock().unwrap().sinks = vec![sink("/a\"b\\c", 7), waiting];
        let address = serve("127.0.0.1:0".parse().unwrap(), Arc::clone(&counters)).unwrap();
        let answer = ask(address, b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.contains("\nvprof_agent_samples_total 1234\n"), "{answer}");
        assert!(answer.contains("\nvprof_agent_cpu_seconds_total 1.5\n"), "{answer}");
        assert!(answer.contains("\nvprof_agent_sink_sent_total{sink=\"/a\\\"b\\\\c\"} 7\n"), "{answer}");
        assert!(answer.contains("\nvprof_agent_sink_sent_total{sink=\"s3://b\"} 8\n"), "{answer}");
        let oldest = "vprof_agent_sink_oldest_window_timestamp_seconds{";
        let lines: Vec<&str> = answer.lines().filter(|line| line.starts_with(oldest)).collect();
        assert_eq!(lines, [format!("{oldest}sink=\"s3://b\"}} 77")], "of one that waits");
        let body = answer.split("\r\n\r\n").nth(1).unwrap();
        assert!(answer.contains(&format!("Content-Length: {}\r\n", body.len())));
        for line in body.lines().filter(|line| !line.starts_with('#')) {
            let (name, value) = line.split_once(' ').unwrap();
            assert!(name.starts_with("vprof_agent_") && value.parse::<f64>().is_ok(), "{line}");
        }
        assert!(ask(address, b"GET /other HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
        assert!(ask(address, b"POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 400"));
        assert!(ask(address, b"\xff\xfe\r\n\r\n").starts_with("HTTP/1.1 400"));
        let _long = ask(address, &vec![b'x'; 1 << 16]);
        assert!(ask(address, b"GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200"), "it serves on");
    }
}
