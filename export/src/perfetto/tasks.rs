//! Processes and threads of a trace.
//!
//! A trace identifies them by their ids, a profile by instances, of which several may have had an id one
//! after the other. The first one keeps it.

use std::collections::{HashMap, HashSet};

use display::clean::escaped;
use profile::report::Recording;

use super::proto::{PacketData, ProcessDescriptor, ThreadDescriptor, TrackDescriptor};
use super::uuid;

/// First id that stands for something without an id: the kernel gives none from here on
/// (include/linux/threads.h, `PID_MAX_LIMIT`).
const FIRST_MADE_UP: i32 = 4 * 1024 * 1024 + 1;

/// Name of the process that the vCPUs' threads in the host are shown in.
const HOST: &str = "[host]";

/// A process or a thread: index of the process and thread id, the name of what is neither, or a vCPU's thread
/// in the host.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum TaskKey {
    Thread(u32, i32),
    Name(String),
    Vcpu(u16),
}

/// Ids of a thread in the trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TaskIds {
    pub pid: i32,
    pub tid: i32,
    pub track: u64,
}

/// The processes and threads that packets have described.
#[derive(Debug)]
pub(super) struct Tasks<'a> {
    recording: &'a Recording,
    /// By index of the process.
    pids: HashMap<u32, i32>,
    known: HashMap<TaskKey, TaskIds>,
    used_pids: HashSet<i32>,
    used_tids: HashSet<i32>,
    next: i32,
    /// Id of the process [`HOST`].
    host: Option<i32>,
}

impl<'a> Tasks<'a> {
    pub(super) fn new(recording: &'a Recording) -> Self {
        Self {
            recording,
            pids: HashMap::new(),
            known: HashMap::new(),
            used_pids: HashSet::new(),
            used_tids: HashSet::new(),
            next: FIRST_MADE_UP,
            host: None,
        }
    }

    /// Returns the ids of an owner of samples.
    pub(super) fn owner(&mut self, place: u32, new: &mut Vec<PacketData>) -> TaskIds {
        let owner = self.recording.owners.get(place as usize);
        match owner.and_then(|owner| Some((owner, owner.process?, self.recording.process_of(owner)?))) {
            Some((owner, process, of)) => self.thread(process, owner.tid.unwrap_or(of.pid), &owner.name, new),
            None => {
                let name = owner.map_or("[unknown]", |owner| owner.name.as_str());
                let key = TaskKey::Name(name.to_owned());
                if let Some(&known) = self.known.get(&key) {
                    return known;
                }
                let id = self.made_up();
                new.push(process_track(id, name, Vec::new()));
                self.add(key, id, id, name, new)
            }
        }
    }

    /// Returns the ids of the thread of a vCPU in the host.
    pub(super) fn host_thread(&mut self, vcpu: u16, new: &mut Vec<PacketData>) -> TaskIds {
        let key = TaskKey::Vcpu(vcpu);
        if let Some(&known) = self.known.get(&key) {
            return known;
        }
        let pid = self.host.unwrap_or_else(|| {
            let pid = self.made_up();
            new.push(process_track(pid, HOST, Vec::new()));
            pid
        });
        self.host = Some(pid);
        let tid = self.made_up();
        self.add(key, pid, tid, &format!("vCPU {vcpu}"), new)
    }

    /// Returns the ids of a thread of a process.
    pub(super) fn thread(
        &mut self,
        process: u32,
        tid: i32,
        name: &str,
        new: &mut Vec<PacketData>,
    ) -> TaskIds {
        let key = TaskKey::Thread(process, tid);
        if let Some(&known) = self.known.get(&key) {
            return known;
        }
        let pid = self.process(process, new);
        // The first thread of a process has its id; another process's thread may have had this one's.
        let is_first = self.recording.processes.get(process as usize).is_some_and(|of| of.pid == tid);
        let tid = match is_first {
            true => pid,
            false if tid > 0 && self.used_tids.insert(tid) => tid,
            false => self.made_up(),
        };
        self.add(key, pid, tid, name, new)
    }

    fn process(&mut self, place: u32, new: &mut Vec<PacketData>) -> i32 {
        if let Some(&known) = self.pids.get(&place) {
            return known;
        }
        let process = self.recording.processes.get(place as usize);
        let own = process.map_or(0, |process| process.pid);
        let is_free = own > 0 && !self.used_tids.contains(&own) && self.used_pids.insert(own);
        let pid = if is_free { own } else { self.made_up() };
        self.used_tids.insert(pid);
        self.pids.insert(place, pid);
        let name = process.map_or("[unknown]", |process| process.comm.as_str());
        let command = process.and_then(|process| process.command.as_deref());
        let words = command.into_iter().map(|text| escaped(text).into_owned()).collect();
        new.push(process_track(pid, name, words));
        pid
    }

    fn made_up(&mut self) -> i32 {
        let id = self.next;
        self.next = self.next.saturating_add(1);
        id
    }

    fn add(&mut self, key: TaskKey, pid: i32, tid: i32, name: &str, new: &mut Vec<PacketData>) -> TaskIds {
        let track = uuid::THREADS + u64::from(tid.unsigned_abs());
        let thread_name = escaped(name).into_owned();
        new.push(PacketData::TrackDescriptor(TrackDescriptor {
            uuid: track,
            thread: Some(ThreadDescriptor { pid: Some(pid), tid: Some(tid.into()), thread_name }),
            ..TrackDescriptor::default()
        }));
        let ids = TaskIds { pid, tid, track };
        self.known.insert(key, ids);
        ids
    }
}

fn process_track(pid: i32, name: &str, cmdline: Vec<String>) -> PacketData {
    PacketData::TrackDescriptor(TrackDescriptor {
        uuid: uuid::PROCESSES + u64::from(pid.unsigned_abs()),
        process: Some(ProcessDescriptor {
            pid: Some(pid),
            cmdline,
            process_name: escaped(name).into_owned(),
        }),
        ..TrackDescriptor::default()
    })
}
