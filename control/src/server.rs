//! The run's end of the socket: a thread that the first client starts, so that no client can delay the run,
//! and recorders, of which a host may have many, have none.

use std::collections::VecDeque;
use std::io;
use std::os::unix::net::{UnixListener as StdUnixListener, UnixStream as StdUnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use display::message::Reason;
use profile::conditions::{BadCondition, Condition, RunTrigger};
use profile::live;
use profile::live::View;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::task::AbortHandle;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::message::{About, LONGEST_LINE, Reply, Request, RequestError, Then, read_request};
use crate::{Phase, SessionChange, place};

/// Clients at once, at most.
const CLIENTS: usize = 128;
/// A client that does not take what it asked for in this time is let go.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time limit of `write` for the recorded rows.
const WRITE_LIMIT: Duration = Duration::from_secs(5);
/// Snapshots that are kept, for clients with the same view.
const CACHED: usize = 16;

/// The run as the server sees it.
#[derive(Debug)]
pub struct Run {
    /// The image.
    pub image: String,
    /// The profile.
    pub profile: PathBuf,
    /// Its tables.
    pub tables: live::SharedTables,
    /// Its phase.
    pub phase: watch::Receiver<Phase>,
    /// Steers it.
    pub control: mpsc::Sender<SessionChange>,
    /// Ends it.
    pub stop: watch::Sender<bool>,
}

/// A server that runs. Dropping it ends it and removes the socket.
#[derive(Debug)]
pub struct Server {
    socket: PathBuf,
    waiting: AbortHandle,
    thread: Arc<Mutex<Option<ServerThread>>>,
}

/// The thread of a server that has had a client.
#[derive(Debug)]
struct ServerThread {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl Server {
    /// Listens at `socket`, or where clients search for the runs of this user. The present runtime waits for
    /// the first client.
    ///
    /// # Errors
    /// The socket cannot be made, or is another run's.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub fn start(socket: Option<&Path>, run: Run) -> io::Result<Self> {
        let socket = match socket {
            Some(path) => path.to_owned(),
            None => {
                place::make_directory(&place::directory())?;
                place::socket(std::process::id())
            }
        };
        let listener = crate::socket::listen(&socket)?;
        let listener = listener.set_nonblocking(true).and_then(|()| UnixListener::from_std(listener));
        let listener = listener.inspect_err(|_| drop(std::fs::remove_file(&socket)))?;
        let thread = Arc::<Mutex<_>>::default();
        let place = Arc::clone(&thread);
        let waiting = tokio::spawn(async move {
            let first = next(&listener).await;
            let started = listener
                .into_std()
                .and_then(|listener| ServerThread::start(listener, first.into_std()?, Served::new(run)));
            match started {
                Ok(started) => *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(started),
                // The client sees that the connection is closed.
                Err(error) => {
                    display::stderr_line!("vprof: the control socket has failed: {}", Reason(&error))
                }
            }
        });
        Ok(Self { socket, waiting: waiting.abort_handle(), thread })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.waiting.abort();
        let started = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(ServerThread { stop, thread }) = started {
            drop(stop);
            // A panic in it was reported when it happened.
            drop(thread.join());
        }
        // Removed already, at worst.
        drop(std::fs::remove_file(&self.socket));
    }
}

impl ServerThread {
    /// Starts the thread, with its first client.
    fn start(listener: StdUnixListener, first: StdUnixStream, served: Served) -> io::Result<Self> {
        let runtime = crate::runtime()?;
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new().name("vprof-control".to_owned()).spawn(move || {
            runtime.block_on(async {
                let opened = UnixListener::from_std(listener)
                    .and_then(|listener| Ok((listener, UnixStream::from_std(first)?)));
                let Ok((listener, first)) = opened else { return };
                tokio::select! {
                    () = accept(listener, first, Arc::new(served)) => {}
                    // Dropped or sent: the run has ended.
                    _ = stopped => {}
                }
            });
        })?;
        Ok(Self { stop, thread })
    }
}

/// Waits for the next client.
async fn next(listener: &UnixListener) -> UnixStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            // Out of descriptors, most likely: some client will leave.
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

async fn accept(listener: UnixListener, first: UnixStream, served: Arc<Served>) {
    let places = Arc::new(Semaphore::new(CLIENTS));
    let mut stream = first;
    loop {
        let own = nix::unistd::geteuid().as_raw();
        let allowed = stream.peer_cred().is_ok_and(|peer| peer.uid() == own || peer.uid() == 0);
        let (served, place) = (Arc::clone(&served), Arc::clone(&places).try_acquire_owned());
        tokio::spawn(async move {
            let refusal = match (&place, allowed) {
                (_, false) => Refusal::Stranger,
                (Err(_), _) => Refusal::TooMany,
                _ => return Client::new(stream, served).serve().await,
            };
            let (_, mut writer) = stream.into_split();
            // It may be gone already.
            drop(send(&mut writer, &refused(None, &refusal)).await);
        });
        stream = next(&listener).await;
    }
}

/// Why a request is not answered.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("only the user who started the run may talk to it")]
    Stranger,
    #[error("too many clients talk to this run")]
    TooMany,
    #[error("a line is longer than {LONGEST_LINE} bytes")]
    LongLine,
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error(transparent)]
    Condition(#[from] BadCondition),
    #[error(transparent)]
    Answer(#[from] serde_json::Error),
    #[error("the run is busy: try again")]
    Busy,
    #[error("the run has ended")]
    Ended,
    #[error("nothing was written: the guest does not run yet, or not any more")]
    NotWritten,
}

fn refused(id: Option<Value>, why: &Refusal) -> Reply {
    Reply { id, error: Some(why.to_string()), ..Reply::default() }
}

async fn send(writer: &mut OwnedWriteHalf, reply: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(reply)?;
    line.push(b'\n');
    send_line(writer, &line).await
}

async fn send_line(writer: &mut OwnedWriteHalf, line: &[u8]) -> io::Result<()> {
    match timeout(PATIENCE, writer.write_all(line)).await {
        Ok(written) => written,
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// Snapshot as JSON, for all clients with this view.
#[derive(Debug)]
struct CachedTables {
    view: View,
    time_ns: u64,
    json: Arc<str>,
}

/// State that all clients share.
#[derive(Debug)]
struct Served {
    run: Run,
    cached: Mutex<VecDeque<CachedTables>>,
}

impl Served {
    fn new(run: Run) -> Self {
        Self { run, cached: Mutex::default() }
    }

    /// The tables as JSON. They change with each batch, and are made again only then.
    fn tables(&self, view: &View) -> Arc<str> {
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        let tables = self.run.tables.lock();
        let time_ns = tables.time_ns();
        if let Some(known) = cached.iter().find(|tables| tables.time_ns == time_ns && tables.view == *view) {
            return Arc::clone(&known.json);
        }
        let snapshot = tables.snapshot(view);
        drop(tables);
        let json: Arc<str> = serde_json::to_string(&snapshot).unwrap_or_else(|_| "null".to_owned()).into();
        cached.truncate(CACHED - 1);
        cached.push_front(CachedTables { view: view.clone(), time_ns, json: Arc::clone(&json) });
        json
    }

    fn about(&self) -> About {
        let phase = self.run.phase.borrow().clone();
        let (preparing, status) = match phase {
            Phase::Preparing(what) => (Some(what), profile::session::SessionStatus::default()),
            Phase::Running(status) => (None, status),
        };
        About {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            image: self.run.image.clone(),
            profile: self.run.profile.clone(),
            preparing,
            time_s: status.elapsed.as_secs_f64(),
            sampling: status.sampling,
            rate_hz: status.wanted_hz,
            samples: status.samples,
            lost: status.lost,
            kernel: status.kernel,
            standing: status.stopped,
        }
    }

    fn steer(&self, change: SessionChange) -> Result<Value, Refusal> {
        match self.run.control.try_send(change) {
            Ok(()) => Ok(json!({})),
            Err(mpsc::error::TrySendError::Full(_)) => Err(Refusal::Busy),
            Err(mpsc::error::TrySendError::Closed(_)) => Err(Refusal::Ended),
        }
    }

    /// Answers a request that is not for tables.
    async fn serve(&self, request: Request) -> Result<Value, Refusal> {
        match request {
            Request::Status => Ok(serde_json::to_value(self.about())?),
            // Both have an answer of another form.
            Request::Tables { .. } | Request::Watch { .. } => Ok(json!({})),
            Request::Start { when: None } => self.steer(SessionChange::Sampling(true)),
            Request::Stop { when: None, .. } => self.steer(SessionChange::Sampling(false)),
            Request::Start { when: Some(when) } => {
                self.steer(SessionChange::Wait(RunTrigger::Start(when.parse::<Condition>()?)))
            }
            Request::Stop { when: Some(when), then } => {
                let end = then == Some(Then::End);
                self.steer(SessionChange::Wait(RunTrigger::Stop { when: when.parse()?, end }))
            }
            Request::Rate { hz } => self.steer(SessionChange::Rate(hz)),
            Request::Mark { text } => self.steer(SessionChange::Mark(text)),
            Request::Write => self.written().await,
            Request::End => {
                self.run.stop.send_replace(true);
                Ok(json!({}))
            }
        }
    }

    /// Waits until a batch has come that began after now.
    async fn written(&self) -> Result<Value, Refusal> {
        let from = self.run.tables.lock().time_ns();
        self.steer(SessionChange::Write)?;
        let begun = tokio::time::Instant::now();
        // The batch that was being written shows nothing; the next one does.
        let mut seen = from;
        let mut batches = 0;
        while begun.elapsed() < WRITE_LIMIT {
            tokio::time::sleep(Duration::from_millis(5)).await;
            let now = self.run.tables.lock().time_ns();
            batches += u32::from(now != seen);
            seen = now;
            if batches >= 2 {
                return Ok(json!({ "profile": self.run.profile, "time_s": now as f64 / 1e9 }));
            }
        }
        Err(Refusal::NotWritten)
    }
}

/// One client.
struct Client {
    reader: BufReader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
    served: Arc<Served>,
}

/// Request for one snapshot after the other.
struct Watching {
    id: Option<Value>,
    view: View,
    ticks: tokio::time::Interval,
}

impl Client {
    fn new(stream: UnixStream, served: Arc<Served>) -> Self {
        let (reader, writer) = stream.into_split();
        Self { reader: BufReader::new(reader), writer, served }
    }

    /// Answers until the client is gone, or too slow.
    async fn serve(mut self) {
        let mut line = Vec::new();
        let mut watching: Option<Watching> = None;
        loop {
            let answered = tokio::select! {
                read = read_line(&mut self.reader, &mut line) => match read {
                    Ok(true) => {
                        let answered = self.answer(&line, &mut watching).await;
                        line.clear();
                        answered
                    }
                    Ok(false) => return,
                    Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                        // It is let go in any case.
                        drop(send(&mut self.writer, &refused(None, &Refusal::LongLine)).await);
                        return;
                    }
                    Err(_) => return,
                },
                () = next_tick(&mut watching) => self.send_tables(watching.as_mut()).await,
            };
            if answered.is_err() {
                return;
            }
        }
    }

    async fn send_tables(&mut self, watching: Option<&mut Watching>) -> io::Result<()> {
        let Some(watching) = watching else { return Ok(()) };
        let tables = self.served.tables(&watching.view);
        // From the first snapshot on, the client knows it.
        watching.view.history_s = None;
        let id = watching.id.as_ref().map_or_else(String::new, |id| format!("\"id\":{id},"));
        send_line(&mut self.writer, format!("{{{id}\"snapshot\":{tables}}}\n").as_bytes()).await
    }

    async fn answer(&mut self, line: &[u8], watching: &mut Option<Watching>) -> io::Result<()> {
        let (id, request) = read_request(line);
        let result = match request {
            Ok(Request::Tables { view }) => {
                let tables = self.served.tables(&view);
                let id = id.as_ref().map_or_else(String::new, |id| format!("\"id\":{id},"));
                return send_line(&mut self.writer, format!("{{{id}\"ok\":{tables}}}\n").as_bytes()).await;
            }
            Ok(Request::Watch { view, every_ms }) => {
                let mut ticks = interval(Duration::from_millis(every_ms));
                ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
                *watching = Some(Watching { id: id.clone(), view, ticks });
                Ok(json!({}))
            }
            Ok(request) => self.served.serve(request).await,
            Err(error) => Err(error.into()),
        };
        let reply = match result {
            Ok(ok) => Reply { id, ok: Some(ok), ..Reply::default() },
            Err(why) => refused(id, &why),
        };
        send(&mut self.writer, &reply).await
    }
}

/// Waits for the next view; for ever where nobody watches.
async fn next_tick(watching: &mut Option<Watching>) {
    match watching {
        Some(watching) => drop(watching.ticks.tick().await),
        None => std::future::pending().await,
    }
}

/// Adds to `line` up to its end; may be dropped and called again. False at the end of the stream.
async fn read_line(reader: &mut BufReader<OwnedReadHalf>, line: &mut Vec<u8>) -> io::Result<bool> {
    loop {
        let room = (LONGEST_LINE + 1).saturating_sub(line.len()) as u64;
        let count = reader.take(room).read_until(b'\n', line).await?;
        match line.last() {
            Some(b'\n') => return Ok(true),
            _ if line.len() > LONGEST_LINE => return Err(io::ErrorKind::InvalidData.into()),
            _ if count == 0 => return Ok(false),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
