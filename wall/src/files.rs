//! Files that the process can still open, by Landlock.

use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetStatus, Scope,
};

use crate::WallError;

/// Rights that are known: those of Linux 6.12. A kernel that knows fewer denies fewer.
const KNOWN: ABI = ABI::V6;

/// Denies all files but the process's own in /proc, for reading, and those in `directory`; without a
/// directory all files. Also denies TCP, and signals and abstract sockets to processes outside. Returns false
/// on a kernel without Landlock.
pub(crate) fn restrict(directory: Option<&Path>) -> Result<bool, WallError> {
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(KNOWN))?
        .handle_access(AccessNet::from_all(KNOWN))?
        .scope(Scope::from_all(KNOWN))?
        .create()?;
    if let Some(directory) = directory {
        rules = rules
            // The link leads to the directory of this process: that is what stays open.
            .add_rule(PathBeneath::new(PathFd::new("/proc/self")?, AccessFs::from_read(KNOWN)))?
            .add_rule(PathBeneath::new(PathFd::new(directory)?, AccessFs::from_all(KNOWN)))?;
    }
    let status = rules.restrict_self()?;
    Ok(status.ruleset != RulesetStatus::NotEnforced)
}
