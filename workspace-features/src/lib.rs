//! Turns on the features that a build of the whole workspace has, and holds no code.
