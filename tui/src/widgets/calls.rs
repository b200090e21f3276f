//! The table of callers or callees of a function, whose names are indented by their depth.

use crate::table::{CellValue, TableColumn, column};

/// Columns of a tree of calls.
pub const CALLS: [TableColumn; 4] =
    [column("of all", 7, 0), column("of it", 7, 1), column("samples", 9, 3), column("function", 0, 0)];
/// Smallest width of the functions in a tree of calls.
pub const CALLS_LAST: u16 = 24;
/// Levels of a tree of calls that are indented: deeper ones keep room for names.
const INDENTED: u32 = 20;

/// Returns the cells of a function in a tree of calls; `parts`: of all samples, and of the tree's.
pub fn call_cells(depth: u32, name: &str, parts: (f64, f64), samples: u64) -> Vec<CellValue> {
    let indent = "  ".repeat(usize::try_from(depth.min(INDENTED)).unwrap_or(0));
    let (of_all, of_it) = (CellValue::Share(parts.0), CellValue::Share(parts.1));
    vec![of_all, of_it, CellValue::Count(samples), CellValue::Text(format!("{indent}{name}"))]
}
