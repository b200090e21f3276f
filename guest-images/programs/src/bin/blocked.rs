//! `blocked`: many threads that wait and a few that work, the case for which S. Liang, *Thread-Aware CPU Time
//! Sampling* (1998), made a profiler: one that charges every thread at every tick charges mostly threads that
//! did not run.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use guest_programs::{
    ProgramArgs, ProgramError, burn_until_deadline, main_with, seconds, set_name, since_boot, thread_cpu,
};

const USAGE: &str = "blocked [--seconds N] [--waiting N] [--working N]
runs for N seconds (6) with N threads (16) that wait, half of them in one call and half waking every 250 ms to look
around, and N (2) that work; prints the CPU time of each thread";

/// Period in which half of the waiting threads wake up.
const POLL_PERIOD: Duration = Duration::from_millis(250);

/// End of the program, for threads that wait for it in one call.
#[derive(Default)]
struct EndSignal {
    over: Mutex<bool>,
    changed: Condvar,
}

impl EndSignal {
    fn wait(&self) {
        let over = self.over.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.changed.wait_while(over, |over| !*over).unwrap_or_else(PoisonError::into_inner));
    }

    fn announce(&self) {
        *self.over.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }
}

fn wait(index: usize, end: &EndSignal, over: &AtomicBool) -> Result<(String, Duration), ProgramError> {
    let name = format!("wait-{index}");
    set_name(&name)?;
    if index.is_multiple_of(2) {
        end.wait();
    } else {
        while !over.load(Ordering::Relaxed) {
            thread::sleep(POLL_PERIOD);
        }
    }
    Ok((name, thread_cpu()))
}

fn work(index: usize, deadline: Duration) -> Result<(String, Duration), ProgramError> {
    let name = format!("work-{index}");
    set_name(&name)?;
    burn_until_deadline(deadline);
    Ok((name, thread_cpu()))
}

fn run(args: &ProgramArgs) -> Result<(), ProgramError> {
    let count = |name, default| Ok(usize::from(args.number::<u8>(name)?.unwrap_or(default)));
    let (waiting, working) = (count("waiting", 16)?, count("working", 2)?);
    let deadline = since_boot() + seconds(args, 6.0)?;
    let (end, over) = (EndSignal::default(), AtomicBool::new(false));
    let used = thread::scope(|scope| {
        let (end, over) = (&end, &over);
        let waiting: Vec<_> = (0..waiting).map(|index| scope.spawn(move || wait(index, end, over))).collect();
        let working: Vec<_> = (0..working).map(|index| scope.spawn(move || work(index, deadline))).collect();
        thread::sleep(deadline.saturating_sub(since_boot()));
        over.store(true, Ordering::Relaxed);
        end.announce();
        working.into_iter().chain(waiting).filter_map(|thread| thread.join().ok()).collect::<Vec<_>>()
    });
    for thread in used {
        let (name, used) = thread?;
        println!("{name} used {:.6} s", used.as_secs_f64());
    }
    Ok(())
}

fn main() -> ExitCode {
    main_with(USAGE, &["seconds", "waiting", "working"], run)
}
