//! Rows of a profile that a trace has besides its samples.

use std::ops::ControlFlow;

use profile::Profile;
use profile::store::{QueryError, Value};

/// A thread as a query names it: its program, number of the instance, thread id and thread name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct ThreadName {
    pub comm: String,
    pub number: u32,
    pub tid: i32,
    pub name: String,
}

/// State of a thread from one scan to the next.
#[derive(Debug)]
pub(super) struct ScannedState {
    pub thread: ThreadName,
    pub from_ns: u64,
    /// Name of the state, with the reason of a wait; `None`: the thread has exited.
    pub state: Option<String>,
}

/// A number of a thread or vCPU, under a heading and a name.
#[derive(Debug)]
pub(super) struct NamedNumbers {
    pub name: String,
    pub numbers: Vec<(&'static str, u64)>,
}

/// Exact totals of a thread.
#[derive(Debug)]
pub(super) struct ThreadTotals {
    pub thread: ThreadName,
    pub from_ns: u64,
    pub to_ns: u64,
    pub states: Vec<NamedNumbers>,
    pub woken_by: Vec<NamedNumbers>,
}

/// Returns the rows of a query, each made by `row`.
pub(super) fn rows<T>(
    profile: &Profile,
    sql: &str,
    mut row: impl FnMut(&[Value]) -> T,
) -> Result<Vec<T>, QueryError> {
    let mut rows = Vec::new();
    profile.query_each(sql, |_, values| {
        rows.push(row(&values));
        ControlFlow::Continue(())
    })?;
    Ok(rows)
}

/// Returns a number of a row; 0 for one that is negative or not a number.
pub(super) fn number(row: &[Value], place: usize) -> u64 {
    match row.get(place) {
        Some(Value::Integer(number)) => u64::try_from(*number).unwrap_or(0),
        _ => 0,
    }
}

/// Returns a text of a row; an empty one for NULL.
pub(super) fn text(row: &[Value], place: usize) -> String {
    match row.get(place) {
        Some(Value::Text(text)) => text.clone(),
        _ => String::new(),
    }
}

/// Returns the thread in the first four columns.
pub(super) fn thread(row: &[Value]) -> ThreadName {
    let small = |place| u32::try_from(number(row, place)).unwrap_or(u32::MAX);
    ThreadName {
        comm: text(row, 0),
        number: small(1),
        tid: i32::try_from(number(row, 2)).unwrap_or(0),
        name: text(row, 3),
    }
}

/// Returns the name of a state with the reason of a wait.
fn state_name(state: &str, reason: &str) -> String {
    if reason.is_empty() { state.to_owned() } else { format!("{state}: {reason}") }
}

/// Reads the states that scans found, by thread and in the order of time.
pub(super) fn scanned_states(profile: &Profile) -> Result<Vec<ScannedState>, QueryError> {
    let sql = "SELECT i.comm, i.number, r.tid, coalesce(t.comm, i.comm), s.time_ns, r.state, r.wait_reason \
               FROM task_scan_state r JOIN task_scan s ON s.id = r.scan JOIN instance i ON i.id = r.instance \
               LEFT JOIN thread t ON t.instance = r.instance AND t.tid = r.tid \
               ORDER BY r.instance, r.tid, s.id";
    rows(profile, sql, |row| ScannedState {
        thread: thread(row),
        from_ns: number(row, 4),
        state: Some(text(row, 5))
            .filter(|state| state != "gone")
            .map(|state| state_name(&state, &text(row, 6))),
    })
}

/// Reads the exact totals of threads.
pub(super) fn thread_totals(profile: &Profile) -> Result<Vec<ThreadTotals>, QueryError> {
    let named = "i.comm, i.number, l.tid, coalesce(t.comm, i.comm)";
    let joined = "JOIN instance i ON i.id = l.instance \
                  LEFT JOIN thread t ON t.instance = l.instance AND t.tid = l.tid";
    let sql =
        format!("SELECT {named}, l.from_ns, l.to_ns FROM task_life l {joined} ORDER BY l.instance, l.tid");
    let mut totals = rows(profile, &sql, |row| ThreadTotals {
        thread: thread(row),
        from_ns: number(row, 4),
        to_ns: number(row, 5),
        states: Vec::new(),
        woken_by: Vec::new(),
    })?;
    let places: std::collections::HashMap<ThreadName, usize> =
        totals.iter().enumerate().map(|(place, totals)| (totals.thread.clone(), place)).collect();
    let mut add = |row: &[Value], name: String, numbers, add: fn(&mut ThreadTotals, NamedNumbers)| {
        if let Some(of) = places.get(&thread(row)).and_then(|place| totals.get_mut(*place)) {
            add(of, NamedNumbers { name, numbers });
        }
    };
    let sql = format!(
        "SELECT {named}, l.state, l.wait_reason, sum(l.ns), sum(l.count) FROM task_state l {joined} \
         GROUP BY l.instance, l.tid, l.state, l.wait_reason ORDER BY l.instance, l.tid, l.state, l.wait_reason"
    );
    rows(profile, &sql, |row| {
        let numbers = vec![("ns", number(row, 6)), ("count", number(row, 7))];
        add(row, state_name(&text(row, 4), &text(row, 5)), numbers, |of, state| of.states.push(state));
    })?;
    let sql = format!(
        "SELECT {named}, l.\"by\", w.comm, w.number, l.waker_tid, sum(l.count) \
         FROM (SELECT woken AS instance, woken_tid AS tid, * FROM wakeup) l {joined} \
         LEFT JOIN instance w ON w.id = l.waker \
         GROUP BY l.instance, l.tid, l.\"by\", l.waker, l.waker_tid ORDER BY l.instance, l.tid, sum(l.count) DESC"
    );
    rows(profile, &sql, |row| {
        let by = text(row, 4);
        let name = match (by.as_str(), text(row, 5)) {
            ("task", comm) if comm.is_empty() => "[idle]".to_owned(),
            ("task", comm) => format!("{comm}#{} {}", number(row, 6), number(row, 7)),
            (kind, _) => format!("[{kind} interrupts]"),
        };
        add(row, name, vec![("count", number(row, 8))], |of, waker| of.woken_by.push(waker));
    })?;
    Ok(totals)
}

/// Reads the exits of a vCPU to vprof.
pub(super) fn exits(profile: &Profile, vcpu: u16) -> Result<Vec<NamedNumbers>, QueryError> {
    let sql = format!(
        "SELECT reason, address, device, count, total_ns, max_ns, p50_ns, p99_ns FROM exit WHERE vcpu = {vcpu} \
         ORDER BY total_ns DESC, id"
    );
    rows(profile, &sql, |row| {
        let mut name = text(row, 0);
        if let Some(Value::Integer(address)) = row.get(1) {
            name.push_str(&format!(" {address:#x}"));
        }
        let device = text(row, 2);
        if !device.is_empty() {
            name.push_str(&format!(" ({device})"));
        }
        let names = ["count", "total_ns", "max_ns", "p50_ns", "p99_ns"];
        let numbers = names.iter().enumerate().map(|(place, name)| (*name, number(row, place + 3)));
        NamedNumbers { name, numbers: numbers.collect() }
    })
}

/// Reads the hard interrupts of a vCPU, which only exact mode counts.
pub(super) fn interrupts(profile: &Profile, vcpu: u16) -> Result<Vec<NamedNumbers>, QueryError> {
    let sql = format!(
        "SELECT n.name, s.vector, s.count, s.ns, s.max_ns FROM interrupt_source s \
         JOIN interrupt n ON n.id = s.interrupt WHERE s.vcpu = {vcpu} ORDER BY s.ns DESC, n.name, s.vector"
    );
    rows(profile, &sql, |row| {
        let vector = number(row, 1);
        let name = text(row, 0);
        let name = if vector > 0 { format!("{name} (vector {vector})") } else { name };
        let numbers =
            vec![("count", number(row, 2)), ("total_ns", number(row, 3)), ("max_ns", number(row, 4))];
        NamedNumbers { name, numbers }
    })
}
