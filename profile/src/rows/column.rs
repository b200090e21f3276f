//! Values of columns: each type of a row's field as SQLite stores it.

use rusqlite::types::{ToSqlOutput, Value, ValueRef};

use crate::rows::{
    CodeSource, FrameKind, MemoryKind, Mode, PageFaultKind, TaskState, ThreadPlace, VcpuState, WaitReason,
};

/// A field of a row, which is stored in one column.
pub(super) trait Column {
    /// Returns the value that is stored.
    fn column(&self) -> ToSqlOutput<'_>;
}

fn integer(value: i64) -> ToSqlOutput<'static> {
    ToSqlOutput::Owned(Value::Integer(value))
}

/// Types of numbers that SQLite's integers hold.
macro_rules! small_integers {
    ($($number:ty),*) => {$(
        impl Column for $number {
            fn column(&self) -> ToSqlOutput<'_> {
                integer(i64::from(*self))
            }
        }
    )*};
}

small_integers!(bool, u8, u32, i32, i64);

/// A time or a count. SQLite's integers end at 2^63 - 1, and so does what is stored.
impl Column for u64 {
    fn column(&self) -> ToSqlOutput<'_> {
        integer(i64::try_from(*self).unwrap_or(i64::MAX))
    }
}

/// An address, offset or inode number: all 64 bits are stored, as a signed number.
pub(super) struct Bits(pub u64);

impl Column for Bits {
    fn column(&self) -> ToSqlOutput<'_> {
        integer(self.0.cast_signed())
    }
}

impl Column for f64 {
    fn column(&self) -> ToSqlOutput<'_> {
        ToSqlOutput::Owned(Value::Real(*self))
    }
}

impl Column for String {
    fn column(&self) -> ToSqlOutput<'_> {
        ToSqlOutput::Borrowed(ValueRef::Text(self.as_bytes()))
    }
}

impl Column for Vec<u8> {
    fn column(&self) -> ToSqlOutput<'_> {
        ToSqlOutput::Borrowed(ValueRef::Blob(self))
    }
}

/// `NULL` for `None`.
impl<T: Column> Column for Option<T> {
    fn column(&self) -> ToSqlOutput<'_> {
        self.as_ref().map_or(ToSqlOutput::Owned(Value::Null), Column::column)
    }
}

/// Key of table `mode`.
impl Column for Mode {
    fn column(&self) -> ToSqlOutput<'_> {
        integer(i64::from(self.id()))
    }
}

/// Types that are stored by name.
macro_rules! names {
    ($($named:ty),*) => {$(
        impl Column for $named {
            fn column(&self) -> ToSqlOutput<'_> {
                ToSqlOutput::Borrowed(ValueRef::Text(self.name().as_bytes()))
            }
        }
    )*};
}

names!(CodeSource, FrameKind, MemoryKind, PageFaultKind, TaskState, ThreadPlace, VcpuState, WaitReason);

/// State of a task in a scan; `gone`: the task has exited.
pub(super) struct ScannedState(pub Option<TaskState>);

impl Column for ScannedState {
    fn column(&self) -> ToSqlOutput<'_> {
        let name = self.0.map_or(TaskState::GONE, TaskState::name);
        ToSqlOutput::Borrowed(ValueRef::Text(name.as_bytes()))
    }
}

/// A list of values with their names, stored as JSON.
pub(super) struct NameList<'a>(pub &'a [(i64, String)]);

impl Column for NameList<'_> {
    fn column(&self) -> ToSqlOutput<'_> {
        // Numbers and texts have a form in JSON.
        let text = serde_json::to_string(self.0).unwrap_or_else(|_| "[]".to_owned());
        ToSqlOutput::Owned(Value::Text(text))
    }
}

/// A list of pairs of numbers, stored as JSON.
pub(super) struct PairList<'a>(pub &'a [(u64, u64)]);

impl Column for PairList<'_> {
    fn column(&self) -> ToSqlOutput<'_> {
        let pairs: Vec<String> = self.0.iter().map(|(first, second)| format!("[{first},{second}]")).collect();
        ToSqlOutput::Owned(Value::Text(format!("[{}]", pairs.join(","))))
    }
}
