//! `threads`: one process with three named threads that share a CPU in the ratio 3:2:1.
//!
//! The threads take turns by a shared variable with the index of the current one, and sleep in the turns of
//! the others. The ratio holds after every round.

use std::process::ExitCode;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use guest_programs::{ProgramArgs, ProgramError, WorkTurns, main_with, pin, seconds, set_name, since_boot};

const USAGE: &str = "threads [--seconds N] [--slice-millis N] [--cpu N]
the threads three, two and one use CPU N (0) for N seconds (10) in the ratio 3:2:1, taking turns of 3, 2 and 1 times
N ms (4); prints what each of them used";

/// Name and share of each thread.
const THREADS: [(&str, u32); 3] = [("three", 3), ("two", 2), ("one", 1)];

/// Current turn.
#[derive(Default)]
struct CurrentTurn {
    /// Index of the thread in [`THREADS`]; `None` after the end.
    whose: Mutex<Option<usize>>,
    changed: Condvar,
}

impl CurrentTurn {
    /// Waits for the turn of thread `index`; `false` after the last turn.
    fn wait(&self, index: usize) -> bool {
        let whose = self.whose.lock().unwrap_or_else(PoisonError::into_inner);
        let others = |whose: &mut Option<usize>| whose.is_some_and(|whose| whose != index);
        let whose = self.changed.wait_while(whose, others).unwrap_or_else(PoisonError::into_inner);
        whose.is_some()
    }

    fn pass(&self, next: Option<usize>) {
        *self.whose.lock().unwrap_or_else(PoisonError::into_inner) = next;
        self.changed.notify_all();
    }
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn thread_work(turns: &mut WorkTurns) {
    turns.take();
    std::hint::black_box("thread_work");
}

fn play(
    index: usize,
    slice: Duration,
    turn: &CurrentTurn,
    deadline: Duration,
) -> Result<Duration, ProgramError> {
    let (name, share) = THREADS[index];
    set_name(name)?;
    let mut turns = WorkTurns::new(slice * share);
    while turn.wait(index) {
        thread_work(&mut turns);
        let next = (index + 1) % THREADS.len();
        // The program ends only at the end of a round.
        turn.pass((next != 0 || since_boot() < deadline).then_some(next));
    }
    Ok(turns.used)
}

fn run(args: &ProgramArgs) -> Result<(), ProgramError> {
    pin(args.number("cpu")?.unwrap_or(0))?;
    let slice = Duration::from_millis(args.number::<u16>("slice-millis")?.unwrap_or(4).max(1).into());
    let deadline = since_boot() + seconds(args, 10.0)?;
    let turn = CurrentTurn { whose: Mutex::new(Some(0)), changed: Condvar::new() };
    let used = std::thread::scope(|scope| {
        let turn = &turn;
        let running: Vec<_> =
            (0..THREADS.len()).map(|index| scope.spawn(move || play(index, slice, turn, deadline))).collect();
        running.into_iter().map(|thread| thread.join().unwrap_or(Ok(Duration::ZERO))).collect::<Vec<_>>()
    });
    for ((name, _), used) in THREADS.into_iter().zip(used) {
        println!("{name} used {:.6} s", used?.as_secs_f64());
    }
    Ok(())
}

fn main() -> ExitCode {
    main_with(USAGE, &["seconds", "slice-millis", "cpu"], run)
}
