//! A server on the loopback, with TLS or without, that answers as a test wants.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use testkit::tool;

/// A certificate that is signed by itself, and its key, as PEM files.
pub struct TestCertificate {
    pub certificate: PathBuf,
    key: PathBuf,
}

impl TestCertificate {
    /// Makes a certificate for a subject like `IP:127.0.0.1` in a directory. `None` if openssl is missing.
    pub fn new(directory: &Path, subject: &str) -> Option<Self> {
        let name = subject.replace(['.', ':'], "-");
        let at = |suffix: &str| directory.join(format!("{name}.{suffix}"));
        let (config, certificate, key) = (at("cnf"), at("pem"), at("key"));
        let text = format!(
            "[req]\ndistinguished_name = dn\nx509_extensions = ext\nprompt = no\n\
             [dn]\nCN = {name}\n\
             [ext]\nsubjectAltName = {subject}\nbasicConstraints = critical, CA:FALSE\n"
        );
        fs::write(&config, text).unwrap();
        let made = tool("openssl")?
            .args([
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:P-256",
                "-nodes",
                "-days",
                "2",
            ])
            .args(["-config".as_ref(), config.as_os_str(), "-out".as_ref(), certificate.as_os_str()])
            .args(["-keyout".as_ref(), key.as_os_str()])
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        Some(Self { certificate, key })
    }

    fn config(&self) -> Arc<ServerConfig> {
        let certificate = CertificateDer::from_pem_file(&self.certificate).unwrap();
        let key = PrivateKeyDer::from_pem_file(&self.key).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config =
            ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        Arc::new(config.with_no_client_auth().with_single_cert(vec![certificate], key).unwrap())
    }
}

/// Pieces of an answer, each with the pause before it.
pub type Answer = Vec<(Duration, Vec<u8>)>;

/// Makes an answer of one piece.
pub fn answer(bytes: impl Into<Vec<u8>>) -> Answer {
    vec![(Duration::ZERO, bytes.into())]
}

/// Serves each connection with the next answer, then closes it. Returns the server's URL.
pub fn serve(answers: Vec<Answer>) -> String {
    let (url, listener) = listen("http");
    thread::spawn(move || {
        for (answer, stream) in answers.into_iter().zip(listener.incoming()) {
            respond(stream.unwrap(), answer);
        }
    });
    url
}

/// As [`serve`], over TLS. With `cut`, the connection is closed without the end of TLS, as an attacker would.
pub fn serve_tls(certificate: &TestCertificate, answers: Vec<Answer>, cut: bool) -> String {
    let (url, listener) = listen("https");
    let config = certificate.config();
    thread::spawn(move || {
        for (answer, stream) in answers.into_iter().zip(listener.incoming()) {
            let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
            let mut stream = respond(StreamOwned::new(connection, stream.unwrap()), answer);
            if !cut {
                stream.conn.send_close_notify();
                // The client may have left.
                let _ = stream.flush();
            }
        }
    });
    url
}

fn listen(scheme: &str) -> (String, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    (format!("{scheme}://{}", listener.local_addr().unwrap()), listener)
}

/// Reads a request and writes the answer; a client that leaves ends it.
fn respond<S: Read + Write>(mut stream: S, answer: Answer) -> S {
    let (mut request, mut part) = (Vec::new(), [0; 4096]);
    // All of it: a connection that is closed with bytes that nobody has read is reset, also for the client.
    while !request.ends_with(b"\r\n\r\n") {
        // A client that refuses the certificate sends no request.
        let Ok(size) = stream.read(&mut part) else { return stream };
        if size == 0 {
            break;
        }
        request.extend_from_slice(&part[..size]);
    }
    assert!(request.is_empty() || request.starts_with(b"GET /buildid/0011"));
    for (pause, bytes) in answer {
        thread::sleep(pause);
        if stream.write_all(&bytes).and_then(|()| stream.flush()).is_err() {
            break;
        }
    }
    stream
}
