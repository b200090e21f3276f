//! `split`: two processes that share one CPU in an exact, known ratio.
//!
//! The processes take turns by passing a token through pipes, so only one of them can run at any time. In its
//! n-th turn a process works until it has used n times its slice of CPU time since its start, by the
//! scheduler's clock. The next turn makes up for one that was too long, and everything that a process does is
//! counted from its first instruction on. The ratio holds after every full round, independent of the guest's
//! other work.
//!
//! That clock also runs while the host uses the CPU for itself. Turns of a fixed number of rounds of work
//! keep their ratio on a busy host, too, except for the small cost of passing the token.

use std::io::{self, PipeReader, PipeWriter, Read, Write, pipe};
use std::process::ExitCode;
use std::time::Duration;

use guest_programs::{
    ProgramArgs, ProgramError, burn, burn_until_cpu, fork_child, main_with, pin, process_cpu,
};
use guest_programs::{seconds, set_name, since_boot, wait_for};

const USAGE: &str = "split [--seconds N] [--ratio A:B] [--names NAME,NAME] [--slice-millis N | --slice-rounds N] [--cpu N]
two processes (alpha,beta) use CPU N (0) for N seconds (10) in the ratio A:B (3:1), taking turns of A and B times
N ms (4), or N rounds of work; prints what each of them used";

/// Length of one turn.
#[derive(Clone, Copy)]
enum TurnLength {
    /// CPU time.
    Time(Duration),
    /// Rounds of [`burn`].
    Rounds(u32),
}

impl TurnLength {
    fn times(self, part: u32) -> Self {
        match self {
            Self::Time(time) => Self::Time(time * part),
            Self::Rounds(rounds) => Self::Rounds(rounds.saturating_mul(part)),
        }
    }

    /// Works for one more turn; `target` is the CPU time of all turns.
    fn work(self, target: &mut Duration) {
        match self {
            Self::Time(time) => {
                *target += time;
                burn_until_cpu(*target);
            }
            Self::Rounds(rounds) => {
                std::hint::black_box(burn(rounds, 1));
            }
        }
    }
}

/// State of one of the two processes.
struct SharingProcess {
    name: String,
    /// Length of one turn.
    slice: TurnLength,
    /// Pipe on which the token arrives; its end of file ends the process.
    turn: PipeReader,
    /// Pipe on which the token is passed on.
    pass: PipeWriter,
}

impl SharingProcess {
    /// Takes turns until the other process stops, or until `deadline` when this process decides.
    fn play(mut self, deadline: Option<Duration>) -> Result<(), ProgramError> {
        set_name(&self.name)?;
        let mut target = Duration::ZERO;
        let mut token = [0];
        loop {
            match self.turn.read(&mut token) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(ProgramError::system("take the token")(error)),
            }
            if deadline.is_some_and(|deadline| since_boot() >= deadline) {
                break;
            }
            self.slice.work(&mut target);
            match self.pass.write_all(&token) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
                Err(error) => return Err(ProgramError::system("pass the token")(error)),
            }
        }
        println!("{} used {:.6} s", self.name, process_cpu().as_secs_f64());
        Ok(())
    }
}

fn pair<'a>(text: &'a str, separator: char, option: &str) -> Result<(&'a str, &'a str), ProgramError> {
    text.split_once(separator).ok_or_else(|| {
        ProgramError::Usage(format!("--{option} {text} are not two with a {separator} between"))
    })
}

fn run(args: &ProgramArgs) -> Result<(), ProgramError> {
    let (first, second) = pair(args.text("names").unwrap_or("alpha,beta"), ',', "names")?;
    let ratio = args.text("ratio").unwrap_or("3:1");
    let (a, b) = pair(ratio, ':', "ratio")?;
    let part = |text: &str| match text.parse::<u32>() {
        Ok(part) if (1..=1000).contains(&part) => Ok(part),
        _ => Err(ProgramError::Usage(format!("--ratio {ratio}: each part is 1 to 1000"))),
    };
    let unit = match args.number::<u32>("slice-rounds")? {
        Some(rounds) => TurnLength::Rounds(rounds.max(1)),
        None => TurnLength::Time(Duration::from_millis(
            args.number::<u16>("slice-millis")?.unwrap_or(4).max(1).into(),
        )),
    };
    let (a, b) = (unit.times(part(a)?), unit.times(part(b)?));
    pin(args.number("cpu")?.unwrap_or(0))?;
    let deadline = since_boot() + seconds(args, 10.0)?;

    let (turn_a, mut pass_to_a) = pipe().map_err(ProgramError::system("make a pipe"))?;
    let (turn_b, pass_to_b) = pipe().map_err(ProgramError::system("make a pipe"))?;
    pass_to_a.write_all(b"t").map_err(ProgramError::system("start the token"))?;
    let leader = SharingProcess { name: first.into(), slice: a, turn: turn_a, pass: pass_to_b };
    let mut follower = Some(SharingProcess { name: second.into(), slice: b, turn: turn_b, pass: pass_to_a });
    // Each process must hold its own ends only, or the end of one would not reach the other.
    let leading = fork_child(|| {
        drop(follower.take());
        leader.play(Some(deadline))
    })?;
    let following = follower.map(|share| fork_child(move || share.play(None))).transpose()?;
    for child in [Some(leading), following].into_iter().flatten() {
        wait_for(child)?;
    }
    Ok(())
}

fn main() -> ExitCode {
    main_with(USAGE, &["seconds", "ratio", "names", "slice-millis", "slice-rounds", "cpu"], run)
}
