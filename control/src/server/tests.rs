use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream as StdStream;

use profile::{Batch, Sink, SinkError};
use tempfile::TempDir;
use tokio::runtime::Builder;

use super::*;
use crate::client::Client as Blocking;
use crate::place::Found;

struct Nowhere;

impl Sink for Nowhere {
    fn write(&mut self, _: &Batch) -> Result<(), SinkError> {
        Ok(())
    }
}

/// A server whose run is played by the test.
struct Stage {
    _place: TempDir,
    socket: PathBuf,
    tables: live::SharedTables,
    control: mpsc::Receiver<SessionChange>,
    stop: watch::Receiver<bool>,
    _phase: watch::Sender<Phase>,
    server: Option<Server>,
    /// Ends the run's runtime.
    _end: oneshot::Sender<()>,
}

impl Stage {
    fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        let socket = place.path().join("run.sock");
        let (control_sender, control) = mpsc::channel(4);
        let (stop_sender, stop) = watch::channel(false);
        let status = profile::session::SessionStatus {
            samples: 7,
            sampling: true,
            wanted_hz: 99.0,
            ..Default::default()
        };
        let (phase, phase_receiver) = watch::channel(Phase::Running(status));
        let tables = live::SharedTables::default();
        let run = Run {
            image: "guest.img".to_owned(),
            profile: PathBuf::from("/tmp/x.vprof"),
            tables: tables.clone(),
            phase: phase_receiver,
            control: control_sender,
            stop: stop_sender,
        };
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let server = {
            let _inside = runtime.enter();
            Some(Server::start(Some(&socket), run).unwrap())
        };
        let (end, ended) = oneshot::channel();
        std::thread::spawn(move || runtime.block_on(ended));
        Self { _place: place, socket, tables, control, stop, _phase: phase, server, _end: end }
    }

    fn connect(&self) -> StdStream {
        StdStream::connect(&self.socket).unwrap()
    }

    fn client(&self) -> Blocking {
        Blocking::new(Found { socket: self.socket.clone(), stream: self.connect() }).unwrap()
    }

    /// A batch of the run, at this time.
    fn batch(&self, ms: u64) {
        let meta = vec![("duration_ns".to_owned(), (ms * 1_000_000).to_string())];
        let mut sink = live::LiveSink::new(Box::new(Nowhere), self.tables.clone());
        sink.write(&Batch { meta, ..Batch::default() }).unwrap();
    }
}

/// Answers to one line.
fn reply_to(stream: &StdStream, line: &str) -> Value {
    (&*stream).write_all(format!("{line}\n").as_bytes()).unwrap();
    let mut reply = String::new();
    BufReader::new(stream).read_line(&mut reply).unwrap();
    serde_json::from_str(&reply).unwrap()
}

#[test]
fn a_run_is_looked_at_and_steered() {
    let mut stage = Stage::new();
    let mut client = stage.client();
    let about = client.about().unwrap();
    assert_eq!(
        (about.samples, about.pid, about.sampling, about.rate_hz),
        (7, std::process::id(), true, 99.0)
    );
    client.ask(&Request::Stop { when: None, then: None }).unwrap();
    client.ask(&Request::Rate { hz: 250.0 }).unwrap();
    client.ask(&Request::Mark { text: "here".to_owned() }).unwrap();
    let steered: Vec<_> = std::iter::from_fn(|| stage.control.try_recv().ok()).collect();
    assert_eq!(
        steered,
        [SessionChange::Sampling(false), SessionChange::Rate(250.0), SessionChange::Mark("here".to_owned())]
    );
    stage.batch(1_500);
    assert_eq!(client.tables(View::default()).unwrap().time_s, 1.5);
    client.ask(&Request::End).unwrap();
    assert!(*stage.stop.borrow());
    // The socket goes with the run.
    drop(stage.server.take());
    assert!(!stage.socket.exists() && client.about().is_err());
}

#[test]
fn writing_is_answered_by_what_came_after() {
    let stage = Stage::new();
    let mut client = stage.client();
    let waiting = std::thread::spawn(move || client.ask(&Request::Write).unwrap());
    let mut ms = 0;
    testkit::eventually("an answer", Duration::from_secs(20), || {
        ms += 1;
        stage.batch(ms);
        waiting.is_finished().then_some(())
    });
    assert_eq!(waiting.join().unwrap()["profile"], "/tmp/x.vprof");
}

#[test]
fn what_is_not_understood_is_told() {
    let mut stage = Stage::new();
    let stream = stage.connect();
    let reply = reply_to(&stream, r#"{"id":"a","do":"strat"}"#);
    assert!(reply["id"] == "a" && reply["error"].as_str().unwrap().contains("one of status"), "{reply}");
    assert!(reply_to(&stream, "nonsense")["error"].is_string());
    // Five where four wait: the fifth is refused, and the connection lives on.
    for n in 0..5 {
        assert_eq!(reply_to(&stream, r#"{"do":"start"}"#)["ok"].is_object(), n < 4);
    }
    stage.control.close();
    assert_eq!(reply_to(&stream, r#"{"do":"start"}"#)["error"], "the run has ended");
    let long = format!("{{\"do\":\"mark\",\"text\":\"{}\"}}", "x".repeat(LONGEST_LINE));
    assert!(reply_to(&stream, &long)["error"].as_str().unwrap().contains("longer than"));
}

#[test]
fn only_the_first_snapshot_of_a_watch_has_the_history() {
    let stage = Stage::new();
    let states = profile::rows::Microstates { guest: 500_000_000, ..Default::default() };
    let vcpus = vec![profile::rows::VcpuRow { states, ..Default::default() }];
    let microstates = vec![profile::rows::MicrostateRow { vcpu: 0, time_ns: 500_000_000, states }];
    stage.tables.lock().add(&Batch { vcpus, microstates, ..Batch::default() });
    stage.batch(500);
    let stream = stage.connect();
    (&stream).write_all(b"{\"do\":\"watch\",\"view\":{\"history_s\":0.5},\"every_ms\":100}\n").unwrap();
    let mut lines = BufReader::new(&stream).lines().map(|line| serde_json::from_str::<Value>(&line.unwrap()));
    assert!(lines.next().unwrap().unwrap()["ok"].is_object());
    let mut history = || lines.next().unwrap().unwrap()["snapshot"]["vcpus"][0]["history"].clone();
    assert_eq!((history(), history()), (json!([[1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]]), Value::Null));
}

#[test]
fn a_hundred_clients_are_held_and_a_slow_one_is_alone_in_it() {
    let stage = Stage::new();
    stage.batch(1);
    let watching: Vec<_> = (0..100)
        .map(|_| {
            let stream = stage.connect();
            assert!(reply_to(&stream, r#"{"do":"watch","every_ms":100}"#)["ok"].is_object());
            stream
        })
        .collect();
    // Nobody reads what they asked for; one more is served all the same.
    let mut client = stage.client();
    for ms in 2..40 {
        stage.batch(ms);
        assert_eq!(client.tables(View::default()).unwrap().time_s, ms as f64 / 1e3);
    }
    drop(watching);
    let crowd: Vec<_> = (0..200).map(|_| stage.connect()).collect();
    crowd.iter().for_each(|stream| stream.set_nonblocking(true).unwrap());
    let mut answers = vec![String::new(); crowd.len()];
    testkit::eventually("refusals", Duration::from_secs(60), || {
        for (stream, answer) in crowd.iter().zip(&mut answers) {
            // A client that is held has nothing to read yet.
            let _ = { stream }.read_to_string(answer);
        }
        let refused = answers.iter().filter(|answer| answer.contains("too many"));
        (refused.count() >= 200 - CLIENTS).then_some(())
    });
}
