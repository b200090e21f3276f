//! Aligned columns that fit a line.

use unicode_width::UnicodeWidthStr;

/// Alignment of a cell's text in its column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColumnAlign {
    /// Names.
    Left,
    /// Numbers.
    Right,
}

/// Table of text: columns with headings, rows of cells.
#[derive(Debug)]
pub struct TextTable {
    columns: Vec<(String, ColumnAlign)>,
    rows: Vec<Vec<String>>,
    indent: usize,
    /// Column that is cut when the line is too long.
    flexible: Option<usize>,
}

impl TextTable {
    /// Makes a table with these columns.
    pub fn new(columns: &[(&str, ColumnAlign)]) -> Self {
        Self {
            columns: columns.iter().map(|(name, align)| ((*name).to_owned(), *align)).collect(),
            rows: Vec::new(),
            indent: 0,
            flexible: None,
        }
    }

    /// Sets the number of spaces before each line.
    pub fn indent(mut self, spaces: usize) -> Self {
        self.indent = spaces;
        self
    }

    /// Sets the column whose cells are cut, with `…`, where a line would be too long.
    pub fn flexible(mut self, column: usize) -> Self {
        self.flexible = Some(column);
        self
    }

    /// Adds a row; missing cells are empty.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Formats the table in lines of at most `width` columns, if the flexible column allows this.
    pub fn render(&self, width: usize) -> String {
        let mut widths: Vec<usize> = self.columns.iter().map(|(name, _)| name.width()).collect();
        for row in &self.rows {
            for (cell, width) in row.iter().zip(&mut widths) {
                *width = (*width).max(cell.width());
            }
        }
        if let Some(column) = self.flexible {
            let gaps = 2 * widths.len().saturating_sub(1) + self.indent;
            let excess = (widths.iter().sum::<usize>() + gaps).saturating_sub(width);
            let least = self.columns[column].0.width().max(8);
            widths[column] = widths[column].saturating_sub(excess).max(least.min(widths[column]));
        }
        let mut text = String::new();
        let headings: Vec<String> = self.columns.iter().map(|(name, _)| name.clone()).collect();
        if headings.iter().any(|h| !h.is_empty()) {
            self.line(&mut text, &headings, &widths);
        }
        for row in &self.rows {
            self.line(&mut text, row, &widths);
        }
        text
    }

    fn line(&self, text: &mut String, cells: &[String], widths: &[usize]) {
        let start = text.len();
        text.extend(std::iter::repeat_n(' ', self.indent));
        for (i, ((_, align), width)) in self.columns.iter().zip(widths).enumerate() {
            if i > 0 {
                text.push_str("  ");
            }
            let cell = cut(cells.get(i).map_or("", String::as_str), *width);
            let pad = width.saturating_sub(cell.width());
            match align {
                ColumnAlign::Left => {
                    text.push_str(&cell);
                    text.extend(std::iter::repeat_n(' ', pad));
                }
                ColumnAlign::Right => {
                    text.extend(std::iter::repeat_n(' ', pad));
                    text.push_str(&cell);
                }
            }
        }
        let end = text[start..].trim_end().len();
        text.truncate(start + end);
        text.push('\n');
    }
}

/// Cuts the text to at most `width` columns, with `…` for the rest.
pub fn cut(text: &str, width: usize) -> String {
    use unicode_width::UnicodeWidthChar;
    if text.width() <= width {
        return text.to_owned();
    }
    let mut kept = String::new();
    let mut used = 0;
    for c in text.chars() {
        let w = c.width().unwrap_or(0);
        if used + w + 1 > width {
            break;
        }
        used += w;
        kept.push(c);
    }
    kept.push('…');
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_lines_end_without_spaces() {
        let mut table = TextTable::new(&[("name", ColumnAlign::Left), ("n", ColumnAlign::Right)]).indent(2);
        table.row(vec!["a".into(), "1".into()]);
        table.row(vec!["größer".into(), "1,000".into()]);
        table.row(vec!["last".into()]);
        assert_eq!(table.render(80), "  name        n\n  a           1\n  größer  1,000\n  last\n");
    }

    #[test]
    fn a_flexible_column_gives_way() {
        let mut table =
            TextTable::new(&[("function", ColumnAlign::Left), ("share", ColumnAlign::Right)]).flexible(0);
        table.row(vec!["f".repeat(100), "1.0 %".into()]);
        let text = table.render(40);
        assert!(text.lines().all(|l| l.width() == 40), "{text}");
        assert!(text.contains('…'));
    }

    #[test]
    fn wide_characters_count_twice() {
        assert_eq!(cut("漢字漢字", 5), "漢字…");
        assert_eq!(cut("abc", 3), "abc");
    }
}
