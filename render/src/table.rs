//! Aligned columns that fit a line.

use unicode_width::UnicodeWidthStr;

use super::TextStyle;

/// Columns that a flexible column keeps while other columns can be left out.
const ROOM: usize = 20;
/// Columns that a flexible column keeps in any case.
const LEAST: usize = 8;

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
    /// Columns that are left out where a line is too long, the first one first.
    spare: Vec<usize>,
    /// Style of the first cell of rows that have a share.
    style: TextStyle,
    /// Shares of rows.
    shares: Vec<Option<f64>>,
}

impl TextTable {
    /// Makes a table with these columns.
    pub fn new(columns: &[(&str, ColumnAlign)]) -> Self {
        Self {
            columns: columns.iter().map(|(name, align)| ((*name).to_owned(), *align)).collect(),
            rows: Vec::new(),
            indent: 0,
            flexible: None,
            spare: Vec::new(),
            style: TextStyle::Plain,
            shares: Vec::new(),
        }
    }

    /// Sets the number of spaces before each line.
    pub fn indent(mut self, spaces: usize) -> Self {
        self.indent = spaces;
        self
    }

    /// Sets the column whose cells are cut, with `…`, where a line would be too long. All but the first
    /// are spare, the last one first.
    pub fn flexible(mut self, column: usize) -> Self {
        self.flexible = Some(column);
        self.spare = (1..self.columns.len()).rev().filter(|spare| *spare != column).collect();
        self
    }

    /// Sets the columns that are left out where a line would be too long, the first one first.
    pub fn spare(mut self, columns: &[usize]) -> Self {
        self.spare = columns.to_vec();
        self
    }

    /// Sets the style in which rows with a share show how large it is.
    pub fn styled(mut self, style: TextStyle) -> Self {
        self.style = style;
        self
    }

    /// Adds a row; missing cells are empty.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
        self.shares.push(None);
    }

    /// Adds a row whose first cell is coloured by this share.
    pub fn hot_row(&mut self, share: f64, cells: Vec<String>) {
        self.rows.push(cells);
        self.shares.push(Some(share));
    }

    /// Formats the table in lines of at most `width` columns, if the spare columns and the flexible one allow
    /// this.
    pub fn render(&self, width: usize) -> String {
        let mut widths: Vec<usize> = self.columns.iter().map(|(name, _)| name.width()).collect();
        for row in &self.rows {
            for (cell, width) in row.iter().zip(&mut widths) {
                *width = (*width).max(cell.width());
            }
        }
        let mut shown = vec![true; widths.len()];
        for &column in &self.spare {
            let least = |(i, width): (usize, &usize)| match self.flexible == Some(i) {
                true => (*width).min(ROOM.max(self.columns[i].0.width())) + 2,
                false => width + 2,
            };
            let needed: usize = widths.iter().enumerate().filter(|(i, _)| shown[*i]).map(least).sum();
            if needed + self.indent <= width.saturating_add(2) {
                break;
            }
            shown[column] = false;
        }
        if let Some(column) = self.flexible {
            let kept = || widths.iter().zip(&shown).filter(|(_, shown)| **shown);
            let gaps = 2 * kept().count().saturating_sub(1) + self.indent;
            let excess = (kept().map(|(width, _)| width).sum::<usize>() + gaps).saturating_sub(width);
            let least = self.columns[column].0.width().max(LEAST).min(widths[column]);
            widths[column] = widths[column].saturating_sub(excess).max(least);
        }
        let mut text = String::new();
        let headings: Vec<String> = self.columns.iter().map(|(name, _)| name.clone()).collect();
        if headings.iter().any(|h| !h.is_empty()) {
            self.line(&mut text, &headings, (&widths, &shown), None);
        }
        for (row, share) in self.rows.iter().zip(&self.shares) {
            self.line(&mut text, row, (&widths, &shown), *share);
        }
        text
    }

    fn line(
        &self,
        text: &mut String,
        cells: &[String],
        (widths, shown): (&[usize], &[bool]),
        share: Option<f64>,
    ) {
        let start = text.len();
        text.extend(std::iter::repeat_n(' ', self.indent));
        let columns = self.columns.iter().zip(widths).enumerate().filter(|(i, _)| shown[*i]);
        for (place, (i, ((_, align), width))) in columns.enumerate() {
            if place > 0 {
                text.push_str("  ");
            }
            let cell = cut_name(cells.get(i).map_or("", String::as_str), *width);
            let pad = width.saturating_sub(cell.width());
            let cell = match share {
                Some(share) if i == 0 => self.style.hot(&cell, share),
                _ => cell,
            };
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

/// Cuts a name like [`cut`]. The module of `name [module]` stays, since it distinguishes functions of one
/// name.
fn cut_name(text: &str, width: usize) -> String {
    let module = text.rfind(" [").filter(|_| text.ends_with(']')).map(|at| text.split_at(at));
    match module {
        Some((name, module)) if text.width() > width && 2 * module.width() <= width => {
            cut(name, width - module.width()) + module
        }
        _ => cut(text, width),
    }
}

/// Cuts the text to at most `width` columns, with `…` for the rest; `~` where the locale has only ASCII.
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
    kept.push(if super::has_unicode() { '…' } else { '~' });
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
    fn spare_columns_are_left_out_in_their_order() {
        let columns = ["share", "time", "pid", "name"].map(|name| (name, ColumnAlign::Left));
        let mut table = TextTable::new(&columns).flexible(3).spare(&[2, 1]);
        table.row(vec!["50.0 %".into(), "1.00 s".into(), "4711".into(), "n".repeat(40)]);
        let headings = |width| table.render(width).lines().next().unwrap().to_owned();
        assert_eq!(headings(62), "share   time    pid   name");
        assert_eq!(headings(42), "share   time    pid   name");
        assert_eq!(headings(41), "share   time    name");
        assert_eq!(headings(35), "share   name");
        for width in [20, 35, 41, 42, 62] {
            assert!(table.render(width).lines().all(|line| line.width() <= width), "{width}");
        }
        assert!(table.render(35).contains(&format!("50.0 %  {}…", "n".repeat(26))));
    }

    #[test]
    fn a_cut_name_keeps_its_module() {
        assert_eq!(cut_name("guest_programs::work::burn [hog]", 20), "guest_program… [hog]");
        assert_eq!(cut_name("burn [hog]", 10), "burn [hog]");
        assert_eq!(cut_name("burn_burn [a_long_module]", 12), "burn_burn […");
        assert_eq!(cut_name("[kworker/0:1-events]", 12), "[kworker/0:…");
    }

    #[test]
    fn a_hot_row_is_coloured_on_a_terminal_only() {
        let columns = [("share", ColumnAlign::Right), ("name", ColumnAlign::Left)];
        let render = |style| {
            let mut table = TextTable::new(&columns).styled(style);
            table.hot_row(0.5, vec!["50.0 %".into(), "a".into()]);
            table.hot_row(0.001, vec!["0.1 %".into(), "b".into()]);
            table.render(80)
        };
        assert_eq!(render(TextStyle::Plain), " share  name\n50.0 %  a\n 0.1 %  b\n");
        assert_eq!(render(TextStyle::Terminal), " share  name\n\x1b[1;31m50.0 %\x1b[0m  a\n 0.1 %  b\n");
    }

    #[test]
    fn wide_characters_count_twice() {
        assert_eq!(cut("漢字漢字", 5), "漢字…");
        assert_eq!(cut("abc", 3), "abc");
    }
}
