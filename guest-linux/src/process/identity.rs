//! Identity of a process: parent, user, arguments, control group, and the work of a work queue's thread.

use display::clean::utf8;

use crate::layout::{ArgvLayout, CgroupLayout, ParentLayout, UidLayout, WorkerLayout};
use crate::memory::PhysicalMemory;
use crate::missing::Missing;
use crate::paging::AddressSpace;
use crate::task::list;
use crate::view::View;
use symbols::VirtAddr;
use symbols::bytes::index;

/// Bytes of arguments that are read, at most.
const MAX_ARGV_BYTES: u64 = 4096;
/// Arguments that are read, at most.
const MAX_ARGS: usize = 256;
/// Bytes that a read of a process's memory takes at a time, at most: a page.
const PAGE: u64 = 4096;
/// Control groups within each other, at most.
const MAX_GROUPS: usize = 64;
/// Bytes of the path of a control group, at most (`PATH_MAX`).
const MAX_CGROUP: usize = 4096;
/// Bytes of a control group's name with its NUL, at most (`NAME_MAX` and one).
const GROUP_NAME: usize = 256;
/// Hierarchies of control groups that are read, at most: there is one for each controller.
const MAX_HIERARCHIES: usize = 32;
/// `PF_WQ_WORKER` (include/linux/sched.h): a thread of a work queue.
const PF_WQ_WORKER: u32 = 0x20;

fn unreadable(what: &str) -> Missing {
    Missing::Unreadable(what.into())
}

/// Returns the pid of the parent process; 0 for a process that the kernel itself started.
pub(super) fn parent<M: PhysicalMemory>(
    view: &View<'_, M>,
    layout: &ParentLayout,
    task: u64,
) -> Result<i32, Missing> {
    view.u64(task, layout.parent)
        .and_then(|parent| view.u32(parent, layout.tgid))
        .map(u32::cast_signed)
        .ok_or_else(|| unreadable("the parent"))
}

/// Returns the real user id, as the guest's initial user namespace numbers it.
pub(super) fn uid<M: PhysicalMemory>(
    view: &View<'_, M>,
    layout: &UidLayout,
    task: u64,
) -> Result<u32, Missing> {
    view.u64(task, layout.cred)
        .and_then(|cred| view.u32(cred, layout.uid))
        .ok_or_else(|| unreadable("the user id"))
}

/// Returns the arguments, out of the process's own memory, which it may have written over.
pub(super) fn argv<M: PhysicalMemory>(
    view: &View<'_, M>,
    layout: &ArgvLayout,
    mm: u64,
    space: &AddressSpace,
) -> Result<Vec<String>, Missing> {
    let what = || unreadable("the arguments");
    let start = view.u64(mm, layout.start).ok_or_else(what)?;
    let end = view.u64(mm, layout.end).ok_or_else(what)?;
    // A wrong length costs no more than the bound.
    let end = end.min(start.saturating_add(MAX_ARGV_BYTES));
    let mut bytes = Vec::new();
    let mut at = start;
    while at < end {
        let count = (PAGE - (at & (PAGE - 1))).min(end - at);
        let mut page = vec![0; index(count)];
        // A page that is swapped out ends what can be read.
        if space.read(view.memory, VirtAddr(at), &mut page).is_none() {
            break;
        }
        bytes.extend(page);
        at += count;
    }
    if bytes.is_empty() && start < end {
        return Err(what());
    }
    let text = bytes.strip_suffix(&[0]).unwrap_or(&bytes);
    if text.is_empty() && bytes.is_empty() {
        return Ok(Vec::new());
    }
    Ok(text.split(|&b| b == 0).take(MAX_ARGS).map(utf8).collect())
}

/// Returns the path of the control group of version 2. Where the task is only in the root of that hierarchy,
/// returns the path in the first hierarchy of version 1 in which the task is in another group.
pub(super) fn cgroup<M: PhysicalMemory>(
    view: &View<'_, M>,
    layout: &CgroupLayout,
    task: u64,
) -> Result<String, Missing> {
    let what = || unreadable("the control group");
    let set = view.u64(task, layout.set).ok_or_else(what)?;
    let default = view.u64(set, layout.default).and_then(|group| group_path(view, layout, group));
    let default = default.ok_or_else(what)?;
    if default != "/" {
        return Ok(default);
    }
    let others = layout.links.and_then(|links| {
        let nodes = list(view, set.checked_add(links.head as u64)?, MAX_HIERARCHIES)?;
        nodes
            .filter_map(|node| view.u64(node.wrapping_sub(links.link as u64), links.group))
            .filter_map(|group| group_path(view, layout, group))
            .find(|path| path != "/")
    });
    Ok(others.unwrap_or(default))
}

/// Returns the names from a `struct cgroup` up to the root of its hierarchy, which has none.
pub(super) fn group_path<M: PhysicalMemory>(
    view: &View<'_, M>,
    layout: &CgroupLayout,
    group: u64,
) -> Option<String> {
    let mut node = view.u64(group, layout.node)?;
    let mut names: Vec<String> = Vec::new();
    let mut len = 0;
    for _ in 0..MAX_GROUPS {
        let parent = view.u64(node, layout.node_parent)?;
        if parent == 0 {
            if names.is_empty() {
                return Some("/".into());
            }
            return Some(names.iter().rev().flat_map(|name| ["/", name.as_str()]).collect());
        }
        let name = view.text::<GROUP_NAME>(view.u64(node, layout.node_name)?)?;
        len += name.len() + 1;
        if len >= MAX_CGROUP {
            return None;
        }
        names.push(name);
        node = parent;
    }
    None
}

/// Returns the function that a work queue's thread is running; `None` while it waits for work, and for other
/// tasks.
pub(super) fn work<M: PhysicalMemory>(
    view: &View<'_, M>,
    layout: &WorkerLayout,
    task: u64,
) -> Result<Option<VirtAddr>, Missing> {
    let what = || unreadable("the work of the thread");
    let flags = view.u32(task, layout.flags).ok_or_else(what)?;
    if flags & PF_WQ_WORKER == 0 {
        return Ok(None);
    }
    let function = view
        .u64(task, layout.kthread)
        .and_then(|kthread| view.u64(kthread, layout.worker))
        .and_then(|worker| view.u64(worker, layout.function))
        .ok_or_else(what)?;
    Ok((function != 0).then_some(VirtAddr(function)))
}
