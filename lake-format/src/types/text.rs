//! The text of atomic types, as schema files spell it (`DECIMAL(10, 2) NOT NULL`).

use std::fmt;
use std::str::FromStr;

use super::{DataType, MAX_LENGTH, TypeKind};
use crate::error::{Error, Result};

impl fmt::Display for TypeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Boolean => f.write_str("BOOLEAN"),
            Self::TinyInt => f.write_str("TINYINT"),
            Self::SmallInt => f.write_str("SMALLINT"),
            Self::Int => f.write_str("INT"),
            Self::BigInt => f.write_str("BIGINT"),
            Self::Float => f.write_str("FLOAT"),
            Self::Double => f.write_str("DOUBLE"),
            Self::Decimal { precision, scale } => write!(f, "DECIMAL({precision}, {scale})"),
            Self::Char { length } => write!(f, "CHAR({length})"),
            Self::VarChar { length: MAX_LENGTH } => f.write_str("STRING"),
            Self::VarChar { length } => write!(f, "VARCHAR({length})"),
            Self::Binary { length } => write!(f, "BINARY({length})"),
            Self::VarBinary { length: MAX_LENGTH } => f.write_str("BYTES"),
            Self::VarBinary { length } => write!(f, "VARBINARY({length})"),
            Self::Date => f.write_str("DATE"),
            Self::Time { precision } => write!(f, "TIME({precision})"),
            Self::Timestamp { precision } => write!(f, "TIMESTAMP({precision})"),
            Self::TimestampLtz { precision } => {
                write!(f, "TIMESTAMP({precision}) WITH LOCAL TIME ZONE")
            }
            Self::Array(element) => write!(f, "ARRAY<{element}>"),
            Self::Multiset(element) => write!(f, "MULTISET<{element}>"),
            Self::Map(key, value) => write!(f, "MAP<{key}, {value}>"),
            Self::Row(fields) => {
                f.write_str("ROW<")?;
                for (index, field) in fields.iter().enumerate() {
                    let comma = if index == 0 { "" } else { ", " };
                    write!(
                        f,
                        "{comma}`{}` {}",
                        field.name.replace('`', "``"),
                        field.data_type
                    )?;
                }
                f.write_str(">")
            }
        }
    }
}

impl fmt::Display for DataType {
    /// The text of schema files; nested types are shown as SQL, which schema files spell as
    /// objects.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}{}",
            self.kind,
            if self.nullable { "" } else { " NOT NULL" }
        )
    }
}

impl FromStr for DataType {
    type Err = Error;

    /// Reads the text of an atomic type in any case and spacing. Nested types are JSON objects in
    /// schema files and are not read here.
    fn from_str(text: &str) -> Result<Self> {
        let bad = |reason: &str| Error::BadType {
            text: text.to_owned(),
            reason: reason.to_owned(),
        };
        let (words, numbers) = split_words(text).ok_or_else(|| bad("cannot be read"))?;
        let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
        let nullable = match words.as_slice() {
            [.., "NOT", "NULL"] => {
                words.truncate(words.len() - 2);
                false
            }
            [.., "NULL"] => {
                words.truncate(words.len() - 1);
                true
            }
            _ => true,
        };
        let kind = kind_of(&words, &numbers).map_err(bad)?;
        Ok(Self { kind, nullable })
    }
}

/// Upper-case words outside the parentheses, numbers inside the one pair of them.
fn split_words(text: &str) -> Option<(Vec<String>, Vec<u32>)> {
    let (head, numbers, tail) = match text.split_once('(') {
        None => (text, Vec::new(), ""),
        Some((head, rest)) => {
            let (inside, tail) = rest.split_once(')')?;
            let numbers = inside.split(',').map(|number| number.trim().parse().ok());
            (head, numbers.collect::<Option<Vec<u32>>>()?, tail)
        }
    };
    // A name, then numbers: nothing but suffix words may follow the parentheses.
    let words = head.split_whitespace().chain(tail.split_whitespace());
    Some((words.map(str::to_ascii_uppercase).collect(), numbers))
}

fn kind_of(words: &[&str], numbers: &[u32]) -> Result<TypeKind, &'static str> {
    let length = |fallback: u32| match *numbers {
        [] => Ok(fallback),
        [length @ 1..=MAX_LENGTH] => Ok(length),
        _ => Err("takes one length from 1"),
    };
    let precision = |fallback: u8| match *numbers {
        [] => Ok(fallback),
        [digits @ 0..=9] => u8::try_from(digits).map_err(|_| "takes one precision from 0 to 9"),
        _ => Err("takes one precision from 0 to 9"),
    };
    let plain = |kind: TypeKind| {
        if numbers.is_empty() {
            Ok(kind)
        } else {
            Err("takes no length")
        }
    };
    match words {
        ["BOOLEAN"] => plain(TypeKind::Boolean),
        ["TINYINT"] => plain(TypeKind::TinyInt),
        ["SMALLINT"] => plain(TypeKind::SmallInt),
        ["INT" | "INTEGER"] => plain(TypeKind::Int),
        ["BIGINT"] => plain(TypeKind::BigInt),
        ["FLOAT"] => plain(TypeKind::Float),
        ["DOUBLE"] | ["DOUBLE", "PRECISION"] => plain(TypeKind::Double),
        ["DECIMAL" | "DEC" | "NUMERIC"] => decimal(numbers),
        ["CHAR"] => length(1).map(|length| TypeKind::Char { length }),
        ["VARCHAR"] => length(1).map(|length| TypeKind::VarChar { length }),
        ["STRING"] => plain(TypeKind::string()),
        ["BINARY"] => length(1).map(|length| TypeKind::Binary { length }),
        ["VARBINARY"] => length(1).map(|length| TypeKind::VarBinary { length }),
        ["BYTES"] => plain(TypeKind::bytes()),
        ["DATE"] => plain(TypeKind::Date),
        ["TIME"] | ["TIME", "WITHOUT", "TIME", "ZONE"] => {
            precision(0).map(|precision| TypeKind::Time { precision })
        }
        ["TIMESTAMP"] | ["TIMESTAMP", "WITHOUT", "TIME", "ZONE"] => {
            precision(6).map(|precision| TypeKind::Timestamp { precision })
        }
        ["TIMESTAMP_LTZ"] | ["TIMESTAMP", "WITH", "LOCAL", "TIME", "ZONE"] => {
            precision(6).map(|precision| TypeKind::TimestampLtz { precision })
        }
        ["VARIANT" | "BLOB" | "VECTOR"] => Err("is not supported"),
        _ => Err("is no known type"),
    }
}

fn decimal(numbers: &[u32]) -> Result<TypeKind, &'static str> {
    let (precision, scale) = match *numbers {
        [] => (10, 0),
        [precision] => (precision, 0),
        [precision, scale] => (precision, scale),
        _ => return Err("takes a precision and a scale"),
    };
    match (u8::try_from(precision), u8::try_from(scale)) {
        (Ok(precision @ 1..=38), Ok(scale)) if scale <= precision => {
            Ok(TypeKind::Decimal { precision, scale })
        }
        _ => Err("takes a precision from 1 to 38 and a scale up to it"),
    }
}
