//! Ends of a walk.

use serde::{Deserialize, Serialize};

/// End of a walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
pub enum UserEnd {
    /// At the outermost frame: the start of a program, of a thread, of a coroutine.
    #[error("complete")]
    Complete,
    /// Before it: callers are missing.
    #[error("{0}")]
    Broken(UserWalkError),
}

/// Reason why the callers of a frame are not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
pub enum UserWalkError {
    /// A page of the stack was not present when it was to be read.
    #[error("stack page not present")]
    StackNotPresent,
    /// The frame is outside of the copied part of the stack.
    #[error("stack beyond what was copied")]
    StackNotCopied,
    /// The file's unwind tables do not cover the address, and no frame pointer helps.
    #[error("no CFI for this code")]
    NoCfi,
    /// The mapping's file has not been read.
    #[error("no file for this mapping")]
    NoFile,
    /// Code made at run time, without frame pointers.
    #[error("code made at run time")]
    AnonymousCode,
    /// The address is in no executable mapping.
    #[error("no executable mapping here")]
    NotMapped,
    /// The unwind tables contradict themselves, or use what this machine has not.
    #[error("bad CFI")]
    BadCfi,
    /// The tables of this walk take more work than a sample may cost.
    #[error("CFI too costly")]
    TooCostly,
    /// A rule needs a register whose value was lost on the way.
    #[error("register not known")]
    RegisterUnknown,
    /// The caller's stack pointer would not be above the frame's own.
    #[error("CFA went backwards")]
    CfaBackwards,
    /// More signal stacks inside one another than are followed.
    #[error("too many signal stacks")]
    SignalStacks,
    /// More frames than asked for.
    #[error("too deep")]
    TooDeep,
}

impl From<UserWalkError> for UserEnd {
    fn from(why: UserWalkError) -> Self {
        Self::Broken(why)
    }
}
