//! Columns as text: `NAME TYPE [NOT NULL]`, with the type names of Fluss.

use weir_protocol::schema::{Column, LogicalType, RowField, TypeKind};

/// Parses a column.
///
/// # Errors
/// A sentence that quotes the text.
pub fn parse(text: &str) -> Result<Column, String> {
    let (name, rest) = text
        .trim()
        .split_once(char::is_whitespace)
        .ok_or_else(|| format!("`{text}` is no column: write NAME TYPE"))?;
    let mut parser = Parser {
        text: rest,
        whole: text,
    };
    let ty = parser.logical_type()?;
    match parser.text.trim() {
        "" => Ok(Column::new(name, ty)),
        left => Err(format!("column `{text}`: `{left}` is not understood")),
    }
}

/// A type as [`parse`] reads it.
pub fn type_text(ty: &LogicalType) -> String {
    let null = if ty.nullable { "" } else { " NOT NULL" };
    format!("{}{null}", kind_text(&ty.kind))
}

fn kind_text(kind: &TypeKind) -> String {
    match kind {
        TypeKind::Boolean => "BOOLEAN".to_owned(),
        TypeKind::TinyInt => "TINYINT".to_owned(),
        TypeKind::SmallInt => "SMALLINT".to_owned(),
        TypeKind::Int => "INT".to_owned(),
        TypeKind::BigInt => "BIGINT".to_owned(),
        TypeKind::Float => "FLOAT".to_owned(),
        TypeKind::Double => "DOUBLE".to_owned(),
        TypeKind::Decimal { precision, scale } => format!("DECIMAL({precision}, {scale})"),
        TypeKind::Char { length } => format!("CHAR({length})"),
        TypeKind::String => "STRING".to_owned(),
        TypeKind::Binary { length } => format!("BINARY({length})"),
        TypeKind::Bytes => "BYTES".to_owned(),
        TypeKind::Date => "DATE".to_owned(),
        TypeKind::Time { precision } => format!("TIME({precision})"),
        TypeKind::Timestamp { precision } => format!("TIMESTAMP({precision})"),
        TypeKind::TimestampLtz { precision } => format!("TIMESTAMP_LTZ({precision})"),
        TypeKind::Array(element) => format!("ARRAY<{}>", type_text(element)),
        TypeKind::Map(key, value) => format!("MAP<{}, {}>", kind_text(&key.kind), type_text(value)),
        TypeKind::Row(fields) => {
            let fields: Vec<_> = fields
                .iter()
                .map(|field| format!("{} {}", field.name, type_text(&field.ty)))
                .collect();
            format!("ROW<{}>", fields.join(", "))
        }
    }
}

struct Parser<'a> {
    text: &'a str,
    whole: &'a str,
}

impl<'a> Parser<'a> {
    fn error(&self, what: &str) -> String {
        format!("column `{}`: {what}", self.whole)
    }

    fn word(&mut self) -> &'a str {
        self.text = self.text.trim_start();
        let end = self
            .text
            .find(|c: char| !c.is_alphanumeric() && c != '_')
            .unwrap_or(self.text.len());
        let (word, rest) = self.text.split_at(end);
        self.text = rest;
        word
    }

    fn accept(&mut self, token: &str) -> bool {
        match self.text.trim_start().strip_prefix(token) {
            Some(rest) => {
                self.text = rest;
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, token: &str) -> Result<(), String> {
        if self.accept(token) {
            Ok(())
        } else {
            Err(self.error(&format!("`{token}` is missing")))
        }
    }

    /// Numbers in parentheses; those of `defaults` where there are none.
    fn numbers<const N: usize>(&mut self, defaults: [i32; N]) -> Result<[i32; N], String> {
        let mut numbers = defaults;
        if !self.accept("(") {
            return Ok(numbers);
        }
        for (index, number) in numbers.iter_mut().enumerate() {
            if index > 0 && !self.accept(",") {
                break;
            }
            let word = self.word();
            *number = word
                .parse()
                .map_err(|_| self.error(&format!("`{word}` is no number")))?;
        }
        self.expect(")")?;
        Ok(numbers)
    }

    fn digits(&mut self, default: i32) -> Result<u8, String> {
        let [digits] = self.numbers([default])?;
        u8::try_from(digits).map_err(|_| self.error(&format!("precision {digits} is out of range")))
    }

    fn logical_type(&mut self) -> Result<LogicalType, String> {
        let kind = self.kind()?;
        let rest = self.text;
        if self.word().eq_ignore_ascii_case("NOT") && self.word().eq_ignore_ascii_case("NULL") {
            return Ok(LogicalType::not_null(kind));
        }
        self.text = rest;
        Ok(LogicalType::nullable(kind))
    }

    fn kind(&mut self) -> Result<TypeKind, String> {
        let word = self.word().to_ascii_uppercase();
        Ok(match word.as_str() {
            "BOOLEAN" => TypeKind::Boolean,
            "TINYINT" => TypeKind::TinyInt,
            "SMALLINT" => TypeKind::SmallInt,
            "INT" | "INTEGER" => TypeKind::Int,
            "BIGINT" => TypeKind::BigInt,
            "FLOAT" => TypeKind::Float,
            "DOUBLE" => TypeKind::Double,
            "DECIMAL" => {
                let [precision, scale] = self.numbers([10, 0])?;
                let digits = |value| u8::try_from(value).map_err(|_| format!("{value} digits"));
                TypeKind::Decimal {
                    precision: digits(precision)?,
                    scale: digits(scale)?,
                }
            }
            "CHAR" => TypeKind::Char {
                length: self.numbers([1]).map(|[length]| length)?,
            },
            "STRING" => TypeKind::String,
            "BINARY" => TypeKind::Binary {
                length: self.numbers([1]).map(|[length]| length)?,
            },
            "BYTES" => TypeKind::Bytes,
            "DATE" => TypeKind::Date,
            "TIME" => TypeKind::Time {
                precision: self.digits(0)?,
            },
            "TIMESTAMP" => TypeKind::Timestamp {
                precision: self.digits(6)?,
            },
            "TIMESTAMP_LTZ" => TypeKind::TimestampLtz {
                precision: self.digits(6)?,
            },
            "ARRAY" => {
                self.expect("<")?;
                let element = self.logical_type()?;
                self.expect(">")?;
                TypeKind::Array(Box::new(element))
            }
            "MAP" => {
                self.expect("<")?;
                let key = LogicalType::not_null(self.logical_type()?.kind);
                self.expect(",")?;
                let value = self.logical_type()?;
                self.expect(">")?;
                TypeKind::Map(Box::new(key), Box::new(value))
            }
            "ROW" => self.row()?,
            _ => return Err(self.error(&format!("`{word}` is no type"))),
        })
    }

    fn row(&mut self) -> Result<TypeKind, String> {
        self.expect("<")?;
        let mut fields = Vec::new();
        loop {
            let name = self.word();
            fields.push(RowField::new(name, self.logical_type()?));
            if !self.accept(",") {
                break;
            }
        }
        self.expect(">")?;
        Ok(TypeKind::Row(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_reads_back_as_it_was_written() {
        for text in [
            "id BIGINT NOT NULL",
            "price DECIMAL(12, 2)",
            "at TIMESTAMP_LTZ(3) NOT NULL",
            "tags ARRAY<STRING NOT NULL>",
            "by MAP<STRING, ARRAY<INT>>",
            "r ROW<a INT NOT NULL, b ROW<c BYTES>> NOT NULL",
        ] {
            let column = parse(text).unwrap();
            assert_eq!(format!("{} {}", column.name, type_text(&column.ty)), text);
        }
    }

    #[test]
    fn a_text_that_is_no_column_is_quoted() {
        assert_eq!(
            parse("id").unwrap_err(),
            "`id` is no column: write NAME TYPE"
        );
        assert_eq!(
            parse("id NUMBER").unwrap_err(),
            "column `id NUMBER`: `NUMBER` is no type"
        );
        assert_eq!(
            parse("a INT KEY").unwrap_err(),
            "column `a INT KEY`: `KEY` is not understood"
        );
        assert_eq!(
            parse("a ARRAY<INT").unwrap_err(),
            "column `a ARRAY<INT`: `>` is missing"
        );
    }
}
