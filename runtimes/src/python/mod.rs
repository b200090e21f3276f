//! CPython 3.9 to 3.14 with the global interpreter lock.
//!
//! ```text
//! _PyRuntime ─ interpreters.head ─▶ PyInterpreterState ─ threads.head ─▶ PyThreadState (thread_id: FS base)
//!
//!  3.9         frame ─▶ PyFrameObject ─ f_back ─▶ ...        each runs in its own _PyEval_EvalFrameDefault
//!  3.10        the same; cframe ─▶ CFrame ─ previous ─▶ ...  on the native stack, one for each
//!  3.11        cframe ─▶ _PyCFrame ─ current_frame ─▶ _PyInterpreterFrame ─ previous ─▶ ...
//!              a frame with is_entry is the last one of its _PyCFrame, which is on the native stack
//!  3.12        the same, but the last frame is a shim on the native stack, with owner FRAME_OWNED_BY_CSTACK
//!  3.13, 3.14  current_frame ─▶ _PyInterpreterFrame ─ previous ─▶ ... with such shims
//! ```
//!
//! From 3.11 a call from Python to Python stays in one `_PyEval_EvalFrameDefault`. What is on its native
//! stack, a shim or a `_PyCFrame`, shows where its frames belong among the native ones.
//!
//! Since 3.13, `_PyRuntime` begins with the offsets of its version (`_Py_DebugOffsets`); the offsets of
//! earlier versions are in a table ([`layout`]).

mod binary;
mod copies;
pub mod layout;
mod lines;
mod names;
mod threads;
mod walk;

pub use binary::{PythonBinary, may_be_python};
pub use names::PythonNames;
pub use walk::PythonPlan;
