//! Offsets of the function tracer's records.

use crate::btf::Btf;
use crate::btf::layout::{layout, offset};
use crate::missing::Missing;

/// Bytes of a record, at most.
const MAX_RECORD: usize = 64;

layout! {
    /// Offsets of the function tracer's records.
    #[derive(Debug, Clone, Copy)]
    TraceLayout {
        next: usize = "ftrace_page.next",
        records: usize = "ftrace_page.records",
        /// Number of the records.
        count: usize = "ftrace_page.index",
        /// Bytes of a record.
        record: usize => record,
        ip: usize = "dyn_ftrace.ip",
        flags: usize = "dyn_ftrace.flags",
    }
}

fn record(btf: &Btf<'_>) -> Result<usize, Missing> {
    let (ip, flags) = (offset(btf, &["dyn_ftrace.ip"])?, offset(btf, &["dyn_ftrace.flags"])?);
    let size = btf.size_of("dyn_ftrace").filter(|size| (ip.max(flags) + 8..=MAX_RECORD).contains(size));
    size.ok_or_else(|| Missing::NoField("dyn_ftrace".to_owned()))
}
