//! A command in a guest that was not made for it: any Linux whose init is systemd.
//!
//! systemd makes a unit of `systemd.run=` on the kernel's command line (systemd-run-generator(8)) and starts
//! it right after sysinit.target. That word's value is one line of a shell that fetches the rest over the
//! second serial port:
//!
//! ```text
//! guest  ttyS1 <── COM2 ──> vprof
//!   opens it, "ready\n" ──────>
//!         <────── script, so many bytes
//!   starts the system's own default target
//!         ── mark ──────────────────>       the command begins
//!         ── mark, exit status, times ───>  the run's exit code; how long it took
//! ```
//!
//! The command writes to two ports (`output`), and what it has written there is with the host before
//! the last mark. Without such ports, as in a kernel without their driver, its output is between the marks,
//! both streams in one.
//!
//! Nothing of it reaches the guest's disks: the script is in /run. Quoting is easy, since all of the command
//! line is known here, and the words of the command are quoted for a shell and for nothing else.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::output::PORT_NAMES;

/// Request of the guest for the script.
const READY: &[u8] = b"ready\n";
/// More is never said before that, bytes: a guest that probes its serial ports may send something.
const MAX_NOISE: usize = 4096;
/// Bytes after the last mark, at most: a status, and two numbers of 64 bits, each after a blank.
const MAX_LAST: usize = 3 + 2 * (1 + 20);

/// Message on the console if the default target is never reached, so that no command runs: a regular
/// expression (`systemd-sulogin-shell`, src/sulogin-shell/sulogin-shell.c, systemd 252 and 257).
pub const NO_COMMAND: &str = "^You are in (emergency|rescue) mode\\.";

/// A command for a guest with systemd.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestCommand {
    /// Script of the guest's shell.
    script: Vec<u8>,
    /// Mark before messages of the guest's shell about the command, and in no output that was not made to
    /// contain it.
    mark: Vec<u8>,
    /// The guest shuts down by itself when the command has ended, since its disks are written; else the run
    /// ends there.
    pub shuts_down: bool,
}

impl GuestCommand {
    /// For these words; `seed` makes the mark one that no other run has.
    pub fn new(words: &[OsString], seed: u64, shuts_down: bool) -> Self {
        let mark = format!("\u{1b}_vprof-{seed:016x}:").into_bytes();
        Self { script: script(words, seed, shuts_down), mark, shuts_down }
    }

    /// Words for the kernel's command line.
    pub fn cmdline(&self) -> String {
        // No word of this begins like one that an initrd's own shell looks for, and none is a pattern: that
        // shell splits the line at blanks, quotes or not. The parentheses make a child of which the port is
        // not the terminal.
        format!(
            "systemd.run=\"/bin/sh -c '(exec 3<>/dev/ttyS1 && stty raw -echo <&3 && echo ready >&3 && \
             head -c {} <&3 >/run/vprof-command && exec /bin/sh /run/vprof-command)'\" \
             systemd.run_success_action=none systemd.run_failure_action=poweroff",
            self.script.len()
        )
    }

    /// Returns the script for a guest that is ready.
    pub fn script(&self) -> &[u8] {
        &self.script
    }
}

/// The script. Its descriptor 3 is the serial port; 4 and 5 are the command's output, or the serial port.
fn script(words: &[OsString], seed: u64, shuts_down: bool) -> Vec<u8> {
    let mut script = b"\
for target in /etc/systemd/system /run/systemd/system /usr/lib/systemd/system /lib/systemd/system; do
    target=$target/default.target
    test -e $target && break
done
systemctl start \"$(basename \"$(readlink -f $target)\")\" 3>&- >/dev/null 2>&1
export HOME=/root USER=root LOGNAME=root SHELL=/bin/sh TERM=dumb LANG=C.UTF-8
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
cd /root || cd /
exec 4>&3 5>&3
modprobe -q virtio_console 2>/dev/null
port() {
    for name in /sys/class/virtio-ports/*/name; do
        read -r x <\"$name\" && test \"$x\" = \"$1\" && name=${name%/name} && echo \"/dev/${name##*/}\" && return
    done 2>/dev/null
}
"
    .to_vec();
    // The driver has a device before the device has its ports. A test that opens a port shows that a program
    // can, since a shell whose `exec` fails has ended.
    let [output, errors] = PORT_NAMES;
    script.extend(
        format!(
            "tries=0\n\
             while test $tries -lt 100; do\n\
             set -- /sys/bus/virtio/drivers/virtio_console/virtio*\n\
             test -e \"$1\" || break\n\
             output=$(port {output}) errors=$(port {errors})\n\
             if test -n \"$output\" && test -n \"$errors\"; then\n\
             (exec 4>\"$output\" 5>\"$errors\") 2>/dev/null && exec 4>\"$output\" 5>\"$errors\"\n\
             break\n\
             fi\n\
             sleep 0.1\n\
             tries=$((tries + 1))\n\
             done\n"
        )
        .into_bytes(),
    );
    // The third line of timer_list is "now at ... nsecs", CLOCK_MONOTONIC (kernel/time/timer_list.c). All of
    // it is the shell's own: no process is made between the two readings but the command.
    script.extend(
        format!(
            "now() {{ now=; {{ read -r x; read -r x; read -r x x now x; }} </proc/timer_list; }} 2>/dev/null\n\
             printf '\\033_vprof-{seed:016x}:' >&3\n\
             now\n\
             begun=$now\n\
             (exec"
        )
        .into_bytes(),
    );
    for word in words {
        script.push(b' ');
        script.extend(quoted(word.as_bytes()));
    }
    let end = if shuts_down { "systemctl poweroff" } else { "sync" };
    // The status of stty does not matter: it waits until all is sent.
    script.extend(
        format!(
            ") </dev/null >&4 2>&5 3>&- 4>&- 5>&-\n\
             status=$?\n\
             now\n\
             stty raw -echo <&3\n\
             printf '\\033_vprof-{seed:016x}:%s;' \"$status $begun $now\" >&3\n\
             stty raw -echo <&3\n\
             {end}\n\
             exit 0\n"
        )
        .into_bytes(),
    );
    script
}

/// A word as a POSIX shell reads it back, whatever is in it.
fn quoted(word: &[u8]) -> Vec<u8> {
    let mut out = vec![b'\''];
    for byte in word {
        match byte {
            b'\'' => out.extend(b"'\\''"),
            byte => out.push(*byte),
        }
    }
    out.push(b'\'');
    out
}

/// State of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// The guest has not asked for it yet.
    Booting,
    /// The guest takes the script, and comes up.
    Taken,
    /// It runs.
    Running,
    /// It has ended.
    Ended(Ended),
}

/// End of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// Its exit status.
    pub status: u8,
    /// Its start by the guest's CLOCK_MONOTONIC, ns, and its duration, if the guest has reported them.
    pub ran: Option<(u64, Duration)>,
}

impl Ended {
    /// Reads "status begun ended", decimal, ns; the times may be missing.
    fn parse(text: &[u8]) -> Self {
        let mut words = std::str::from_utf8(text).unwrap_or_default().split_ascii_whitespace();
        let status = words.next().and_then(|word| word.parse().ok()).unwrap_or(u8::MAX);
        let mut ns = || words.next()?.parse::<u64>().ok();
        let ran = ns()
            .zip(ns())
            .and_then(|(begun, ended)| Some((begun, Duration::from_nanos(ended.checked_sub(begun)?))));
        Self { status, ran }
    }
}

/// The port's other end: takes what the guest sends, gives on what is the command's.
#[derive(Debug)]
pub struct Receiver<W> {
    output: W,
    mark: Vec<u8>,
    progress: watch::Sender<Progress>,
    /// Bytes that may be the start of something other than output.
    held: Vec<u8>,
}

impl<W: Write> Receiver<W> {
    /// Gives the command's output to `output`.
    pub fn new(command: &GuestCommand, output: W) -> (Self, watch::Receiver<Progress>) {
        let (progress, seen) = watch::channel(Progress::Booting);
        (Self { output, mark: command.mark.clone(), progress, held: Vec::new() }, seen)
    }

    /// Looks for a sign, and drops what comes before it.
    fn await_sign(&mut self, sign: &[u8], then: Progress) {
        if let Some(at) = find(&self.held, sign) {
            self.held.drain(..at + sign.len());
            self.progress.send_replace(then);
        } else if self.held.len() > MAX_NOISE {
            let dropped = self.held.len() - sign.len();
            self.held.drain(..dropped);
        }
    }

    fn during(&mut self) {
        if let Some(at) = find(&self.held, &self.mark) {
            let after = &self.held[at + self.mark.len()..];
            let end = after.iter().take(MAX_LAST + 1).position(|byte| *byte == b';');
            let ended = match end {
                Some(end) => Some(Ended::parse(&after[..end])),
                None if after.len() > MAX_LAST => Some(Ended::parse(b"")),
                None => None,
            };
            self.give(at);
            if let Some(ended) = ended {
                self.progress.send_replace(Progress::Ended(ended));
            }
            return;
        }
        // What could be the beginning of the mark waits for the rest.
        let longest = self.mark.len().saturating_sub(1).min(self.held.len());
        let begun = (1..=longest).rev().find(|length| self.held.ends_with(&self.mark[..*length]));
        self.give(self.held.len() - begun.unwrap_or(0));
    }

    /// Gives so many bytes on.
    fn give(&mut self, count: usize) {
        // Never fails: it has no place to fail at.
        let _ = self.output.write_all(&self.held[..count]);
        self.held.drain(..count);
    }
}

impl<W: Write> Write for Receiver<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let at = |receiver: &Self| *receiver.progress.borrow();
        if let Progress::Ended(_) = at(self) {
            return Ok(bytes.len());
        }
        self.held.extend_from_slice(bytes);
        if at(self) == Progress::Booting {
            self.await_sign(READY, Progress::Taken);
        }
        if at(self) == Progress::Taken {
            let mark = self.mark.clone();
            self.await_sign(&mark, Progress::Running);
        }
        if at(self) == Progress::Running {
            self.during();
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn find(bytes: &[u8], sign: &[u8]) -> Option<usize> {
    bytes.windows(sign.len()).position(|window| window == sign)
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::{Arc, Mutex};

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn command(words: &[&str]) -> GuestCommand {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        GuestCommand::new(&words, 7, false)
    }

    /// Feeds the stream in pieces of this size; returns the output and the state.
    fn receive(stream: &[u8], piece: usize) -> (Vec<u8>, Progress) {
        let sink = Sink::default();
        let (mut receiver, seen) = Receiver::new(&command(&["true"]), sink.clone());
        for piece in stream.chunks(piece) {
            receiver.write_all(piece).unwrap();
        }
        let output = sink.0.lock().unwrap().clone();
        (output, *seen.borrow())
    }

    #[test]
    fn output_and_status_are_told_apart_however_they_arrive() {
        let stream =
            b"\0noise ready\nx\x1b_vprof-0000000000000007:hello \x1b_vprof\n\x1b_vprof-0000000000000007:42 17000 18500;later";
        for piece in [1, 2, 3, 7, stream.len()] {
            assert_eq!(
                receive(stream, piece),
                (
                    b"hello \x1b_vprof\n".to_vec(),
                    Progress::Ended(Ended { status: 42, ran: Some((17_000, Duration::from_nanos(1_500))) })
                ),
                "{piece}"
            );
        }
    }

    #[test]
    fn nothing_is_output_before_the_guest_is_ready() {
        let (output, progress) = receive(&vec![b'x'; 20_000], 1000);
        assert_eq!((output, progress), (Vec::new(), Progress::Booting));
    }

    #[test]
    fn a_status_that_is_none_is_a_failure() {
        let no_semicolon = [b'9'; MAX_LAST + 1];
        for last in [b"999 1 2;".as_slice(), &no_semicolon] {
            let marks = b"ready\n\x1b_vprof-0000000000000007:\x1b_vprof-0000000000000007:".as_slice();
            let (_, progress) = receive(&[marks, last].concat(), 5);
            assert!(matches!(progress, Progress::Ended(Ended { status: 255, .. })), "{progress:?}");
        }
    }

    #[test]
    fn a_guest_that_cannot_tell_the_time_has_none() {
        for last in [b"0  ".as_slice(), b"0 5", b"0 7 5", b"0 x 5"] {
            assert_eq!(Ended::parse(last), Ended { status: 0, ran: None });
        }
    }

    /// Returns the script's words as a shell reads them, without the guest around it.
    fn spoken(words: &[OsString]) -> Vec<u8> {
        let mut script = b"printf '%s\\0'".to_vec();
        for word in words {
            script.push(b' ');
            script.extend(quoted(word.as_bytes()));
        }
        let script = <std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(&script).to_owned();
        Command::new("sh").arg("-c").arg(script).output().unwrap().stdout
    }

    #[test]
    fn words_survive_a_shell() {
        let words: Vec<OsString> =
            ["a b", "it's", "$HOME `id` \\n %s", "\"x\"", "two\nlines", "größer ✓", "", "*"]
                .map(OsString::from)
                .into();
        assert_eq!(
            spoken(&words),
            words.join(std::ffi::OsStr::new("\0")).as_bytes().iter().copied().chain([0]).collect::<Vec<_>>()
        );
    }

    #[test]
    fn the_kernels_words_have_one_quoted_value_without_patterns() {
        let words = command(&["sh", "-c", "echo \"$HOME\" * %"]).cmdline();
        assert!(words.starts_with("systemd.run=\"/bin/sh -c '("));
        assert_eq!(words.matches('"').count(), 2);
        assert!(!words.contains(['$', '%', '*', '?', '[', '\\', '\n']), "{words}");
        assert!(words.len() < 512, "{}", words.len());
    }

    proptest! {
        #[test]
        fn any_stream_is_borne(stream in proptest::collection::vec(any::<u8>(), 0..3000), piece in 1_usize..700) {
            let (output, _) = receive(&[b"ready\n\x1b_vprof-0000000000000007:".as_slice(), &stream].concat(), piece);
            prop_assert!(stream.starts_with(&output));
            prop_assert!(output.len() + 40 > stream.len() || output.len() + 40 > stream.iter().position(|b| *b == 0x1b).unwrap_or(0));
        }

        #[test]
        fn any_words_survive_a_shell(words in proptest::collection::vec("[^\0]{0,12}", 1..4)) {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            let expected: Vec<u8> = words.iter().flat_map(|w| w.as_bytes().iter().copied().chain([0])).collect();
            prop_assert_eq!(spoken(&words), expected);
        }
    }
}
