//! Tables of the document.

/// A Markdown table.
#[derive(Debug)]
pub struct MarkdownTable {
    text: String,
    columns: usize,
}

impl MarkdownTable {
    /// Creates a table with these headings.
    pub fn new(headings: &[&str]) -> Self {
        let mut table = Self { text: String::new(), columns: headings.len() };
        table.row(headings.iter().map(ToString::to_string));
        table.text.push_str(&"|---".repeat(headings.len()));
        table.text.push_str("|\n");
        table
    }

    /// Adds a row.
    ///
    /// # Panics
    /// Panics if the row has another number of cells than the headings.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells: Vec<String> = cells.into_iter().collect();
        assert_eq!(cells.len(), self.columns, "{cells:?}");
        self.text.push_str(&format!("| {} |\n", cells.join(" | ")));
    }

    /// Returns the text, with a newline after each line.
    pub fn markdown(self) -> String {
        self.text
    }
}

/// Returns the middle of the values; the mean of the two middle ones of an even number; `None` without a
/// value.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[middle]),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
}

/// Returns the standard deviation of values, as a part of their mean; `None` of fewer than two.
pub fn deviation(values: &[f64]) -> Option<f64> {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (values.len() > 1 && mean > 0.0).then(|| (squares / (count - 1.0)).sqrt() / mean)
}

/// Describes the largest distance between values of the same thing, as a sentence.
pub fn scatter<'a>(groups: impl IntoIterator<Item = &'a Vec<f64>>) -> String {
    let apart = |values: &Vec<f64>| {
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = values.iter().copied().fold(0.0, f64::max);
        (values.len() > 1 && least > 0.0).then(|| most / least - 1.0)
    };
    match groups.into_iter().filter_map(apart).reduce(f64::max) {
        Some(apart) => {
            format!("Repeated measurements of the same value differed by up to {:.0} %.", apart * 100.0)
        }
        None => "One run cannot show how such times scatter.".to_owned(),
    }
}

/// Formats nanoseconds as seconds, with two digits.
pub fn seconds(ns: u64) -> String {
    format!("{:.2} s", ns as f64 / 1e9)
}

/// Formats the excess of `value` over `base`, in percent.
pub fn more(value: f64, base: f64) -> String {
    format!("{:+.1} %", (value / base - 1.0) * 100.0)
}

/// Formats the number of runs: "one run", "medians of 5 runs".
pub fn count_of_runs(runs: usize) -> String {
    if runs == 1 { "one run".to_owned() } else { format!("medians of {runs} runs") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_markdown() {
        let mut table = MarkdownTable::new(&["what", "how much"]);
        table.row([String::from("a"), seconds(1_234_000_000)]);
        assert_eq!(table.markdown(), "| what | how much |\n|---|---|\n| a | 1.23 s |\n");
    }

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0]), Some(2.5));
    }

    #[test]
    fn deviations_are_parts_of_the_mean() {
        assert_eq!(deviation(&[3.0]), None);
        assert_eq!(deviation(&[9.0, 10.0, 11.0]), Some(0.1));
    }

    #[test]
    fn scatter_is_that_of_the_worst_group() {
        let groups = [vec![1.0, 1.1], vec![4.0, 2.0, 3.0]];
        assert_eq!(scatter(&groups), "Repeated measurements of the same value differed by up to 100 %.");
        assert_eq!(scatter(&[vec![1.0]]), scatter(&[]));
        assert!(scatter(&[]).contains("cannot show"));
    }

    #[test]
    fn differences_have_a_sign() {
        assert_eq!(more(1.1, 1.0), "+10.0 %");
        assert_eq!(more(0.5, 1.0), "-50.0 %");
    }
}
