//! Names of functions and roots in exports.

use profile::report::{Owner, RecordedFunction, RecordedVcpu, Recording};

use crate::Root;

/// Replacement of an empty name.
const UNKNOWN: &str = "[unknown]";

/// Returns the name of a function; never empty.
pub fn symbol(function: &RecordedFunction) -> &str {
    if function.symbol.is_empty() { UNKNOWN } else { &function.symbol }
}

/// Returns the names above the outermost frame of an owner's stacks on a vCPU: none, one or two.
pub fn roots(recording: &Recording, owner: &Owner, vcpu: u16, root: Root) -> Vec<String> {
    let process = recording.process_of(owner);
    let mut names = match (root, process) {
        (Root::None, _) => Vec::new(),
        (Root::Vcpu, process) => {
            let name = process.map_or(&owner.name, |process| &process.comm);
            let vcpu = recording.vcpu(vcpu).map_or_else(|| format!("vCPU {vcpu}"), RecordedVcpu::name);
            vec![vcpu, name.clone()]
        }
        (_, None) => vec![owner.name.clone()],
        (Root::Process, Some(process)) => vec![process.comm.clone()],
        (Root::Thread, Some(process)) => {
            let tid = owner.tid.map_or_else(String::new, |tid| format!("/{tid}"));
            vec![process.instance(), format!("{}{tid}", owner.name)]
        }
    };
    names.iter_mut().filter(|name| name.is_empty()).for_each(|name| UNKNOWN.clone_into(name));
    names
}
