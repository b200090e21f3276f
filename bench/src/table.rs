//! The table that a benchmark prints.

/// One line: the measurement, the figure, the budget, and the figure's parts.
#[derive(Debug)]
pub struct TableRow {
    what: String,
    figure: String,
    budget: String,
    detail: String,
}

impl TableRow {
    /// Creates a row with a ratio of two measurements of the same run.
    pub fn ratio(what: &str, ratio: f64, budget: &str) -> Self {
        Self::text(what, format!("{ratio:.2} x"), budget)
    }

    /// Creates a row with any figure, with its unit.
    pub fn text(what: &str, figure: String, budget: &str) -> Self {
        Self { what: what.to_owned(), figure, budget: budget.to_owned(), detail: String::new() }
    }

    /// Sets the parts of the figure.
    pub fn detail(mut self, detail: String) -> Self {
        self.detail = detail;
        self
    }

    /// Formats the row as a line of a Markdown table.
    pub fn markdown(&self) -> String {
        format!("| {} | {} | {} | {} |", self.what, self.figure, self.budget, self.detail)
    }
}

/// The header of the table.
pub const HEADER: &str = "| what | measured | budget | made of |\n|---|---|---|---|";

/// Returns the middle of the values; the mean of the two middle ones of an even number.
///
/// # Panics
/// Panics without a value.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
}
