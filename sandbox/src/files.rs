//! Files that the process can still open, by Landlock.

use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetStatus, Scope,
};

use crate::SandboxError;

/// Rights that are known: those of Linux 6.12. A kernel that knows fewer denies fewer.
const KNOWN: ABI = ABI::V6;

/// Denies all files but those below `readable`, for reading and execution, and those in `directory`; paths
/// that do not exist are left out. Also denies TCP, and signals and abstract sockets to processes outside.
/// There is no descriptor in the result on a kernel without Landlock.
pub(crate) fn rules(readable: &[&Path], directory: Option<&Path>) -> Result<RulesetCreated, SandboxError> {
    rules_with(readable, directory.as_slice(), AccessNet::from_all(KNOWN))
}

/// Denies as [`rules`], with several directories, and only these uses of TCP.
fn rules_with(
    readable: &[&Path],
    directories: &[&Path],
    denied: BitFlags<AccessNet>,
) -> Result<RulesetCreated, SandboxError> {
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(KNOWN))?
        .handle_access(denied)?
        .scope(Scope::from_all(KNOWN))?
        .create()?;
    for path in readable.iter().filter(|path| path.exists()) {
        let allowed = if path.is_dir() { AccessFs::from_read(KNOWN) } else { AccessFs::ReadFile.into() };
        rules = rules.add_rule(PathBeneath::new(PathFd::new(path)?, allowed))?;
    }
    for directory in directories {
        rules = rules.add_rule(PathBeneath::new(PathFd::new(directory)?, AccessFs::from_all(KNOWN)))?;
    }
    Ok(rules)
}

/// Restricts the calling thread to the process's own files in /proc, for reading, and to those in
/// `directory`; without a directory to no file at all. Returns false on a kernel without Landlock.
pub(crate) fn restrict(directory: Option<&Path>) -> Result<bool, SandboxError> {
    // The link leads to the directory of this process: that is what stays open.
    let own: &[&Path] = if directory.is_some() { &[Path::new("/proc/self")] } else { &[] };
    let status = rules(own, directory)?.restrict_self()?;
    Ok(status.ruleset != RulesetStatus::NotEnforced)
}

/// Restricts the calling thread to files below `readable`, for reading, and those in `directories`. It may
/// begin connections of TCP if it `connects`, and accept none. Returns false on a kernel without Landlock.
pub(crate) fn restrict_to(
    readable: &[&Path],
    directories: &[&Path],
    connects: bool,
) -> Result<bool, SandboxError> {
    let denied = if connects { AccessNet::BindTcp.into() } else { AccessNet::from_all(KNOWN) };
    let status = rules_with(readable, directories, denied)?.restrict_self()?;
    Ok(status.ruleset != RulesetStatus::NotEnforced)
}
