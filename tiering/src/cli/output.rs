//! Tables and JSON on standard output.

use std::io::{self, Write};

use serde::Serialize;

use super::exit::{Failure, Outcome};

/// How a column is aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// Rows under headings, padded so that columns line up.
#[derive(Debug)]
pub struct Columns {
    headings: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

impl Columns {
    /// An empty table.
    pub fn new(headings: &[(&'static str, Align)]) -> Self {
        Self {
            headings: headings.to_vec(),
            rows: Vec::new(),
        }
    }

    /// Adds a row; missing cells are empty.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The text, one line a row, without trailing blanks.
    pub fn text(&self) -> String {
        let width = |index: usize, heading: &str| {
            let cells = self.rows.iter().filter_map(|row| row.get(index));
            cells
                .map(|cell| cell.chars().count())
                .chain([heading.chars().count()])
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<_> = self
            .headings
            .iter()
            .enumerate()
            .map(|(index, (heading, _))| width(index, heading))
            .collect();
        let heads: Vec<_> = self
            .headings
            .iter()
            .map(|(heading, _)| (*heading).to_owned())
            .collect();
        let mut text = String::new();
        for row in std::iter::once(&heads).chain(&self.rows) {
            let mut line = String::new();
            for (index, ((_, align), width)) in self.headings.iter().zip(&widths).enumerate() {
                let cell = row.get(index).map_or("", String::as_str);
                let blanks = " ".repeat(width.saturating_sub(cell.chars().count()));
                let gap = if index == 0 { "" } else { "  " };
                line += &match align {
                    Align::Left => format!("{gap}{cell}{blanks}"),
                    Align::Right => format!("{gap}{blanks}{cell}"),
                };
            }
            text += line.trim_end();
            text.push('\n');
        }
        text
    }

    /// Prints the text.
    ///
    /// # Errors
    /// If standard output can't be written.
    pub fn print(&self) -> Outcome {
        print(&self.text())
    }
}

/// Prints text to standard output. A reader that has gone away is no error.
///
/// # Errors
/// If standard output can't be written.
pub fn print(text: &str) -> Outcome {
    print_on(text).map(drop)
}

/// As [`print()`]; says whether someone still reads, for commands that have much more to print.
///
/// # Errors
/// If standard output can't be written.
pub fn print_on(text: &str) -> Outcome<bool> {
    let mut out = io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::failed(format!(
            "can't write to standard output: {error}"
        ))),
    }
}

/// Prints a value as JSON.
///
/// # Errors
/// If standard output can't be written.
pub fn print_json(value: &impl Serialize) -> Outcome {
    let text = serde_json::to_string_pretty(value).map_err(Failure::error)?;
    print(&(text + "\n"))
}

/// Standard error that may be closed: what can't be written there is lost, and nothing else.
#[derive(Clone, Copy, Debug, Default)]
pub struct QuietStderr;

impl Write for QuietStderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(io::stderr().write(bytes).unwrap_or(bytes.len()))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A count with separators: `1,234,567`.
pub fn count(value: impl Into<i128>) -> String {
    let value: i128 = value.into();
    let digits = value.unsigned_abs().to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0 { format!("-{text}") } else { text }
}

/// A size in binary units: `12.3 MiB`.
#[allow(
    clippy::cast_precision_loss,
    reason = "a size is shown with three digits"
)]
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = UNITS[0];
    for next in UNITS.iter().skip(1) {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    if unit == "B" {
        format!("{bytes} B")
    } else {
        format!("{value:.1} {unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_whatever_the_script() {
        let mut columns = Columns::new(&[("table", Align::Left), ("rows", Align::Right)]);
        columns.row(["é".to_owned(), "1".to_owned()]);
        columns.row(["longer".to_owned(), "12,345".to_owned()]);
        assert_eq!(
            columns.text(),
            "table     rows\né            1\nlonger  12,345\n"
        );
    }

    #[test]
    fn counts_and_sizes_read_well() {
        assert_eq!(
            [count(0), count(999), count(1_000), count(-1_234_567)],
            ["0", "999", "1,000", "-1,234,567"]
        );
        assert_eq!(
            [size(0), size(1023), size(1536), size(5 << 30)],
            ["0 B", "1023 B", "1.5 KiB", "5.0 GiB"]
        );
    }
}
