//! Settings from a file and from `-o KEY=VALUE`; the command line wins.

use serde::de::DeserializeOwned;
use toml::{Table, Value};

use super::Common;
use super::exit::{Failure, Outcome};

/// All settings, by section.
#[derive(Debug, Default)]
pub struct Settings {
    table: Table,
}

impl Settings {
    /// Reads the file, if one is given, and lays the options over it.
    ///
    /// # Errors
    /// 2 if the file can't be read or parsed, or an option goes through a value that is no section.
    pub fn load(arguments: &Common) -> Outcome<Self> {
        let mut table = match &arguments.config {
            Some(path) => {
                let text = std::fs::read_to_string(path)
                    .map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
                text.parse::<Table>().map_err(|error| {
                    Failure::usage(format!("{}: {}", path.display(), one_line(&error)))
                })?
            }
            None => Table::new(),
        };
        for (key, value) in &arguments.options {
            set(&mut table, key, value)?;
        }
        Ok(Self { table })
    }

    /// Takes a section out, as a type of its own; a missing section is all defaults.
    ///
    /// # Errors
    /// 2 for an unknown key or a wrong value.
    pub fn take<T: DeserializeOwned>(&mut self, section: &str) -> Outcome<T> {
        let value = self
            .table
            .remove(section)
            .unwrap_or_else(|| Value::Table(Table::new()));
        value.try_into().map_err(|error| {
            Failure::usage(format!("settings of `{section}`: {}", one_line(&error)))
        })
    }

    /// What is left, as a type of its own.
    ///
    /// # Errors
    /// 2 for an unknown key or a wrong value.
    pub fn rest<T: DeserializeOwned>(self) -> Outcome<T> {
        Value::Table(self.table)
            .try_into()
            .map_err(|error| Failure::usage(format!("settings: {}", one_line(&error))))
    }

    /// Refuses what no part has taken.
    ///
    /// # Errors
    /// 2 that names the first key.
    pub fn refuse_rest(self) -> Outcome {
        match self.table.keys().next() {
            Some(key) => Err(Failure::usage(format!("unknown setting `{key}`"))),
            None => Ok(()),
        }
    }
}

/// A folder as an absolute one, for what is stored and shown must hold for every folder that a
/// command is called in; an address as it is.
///
/// # Errors
/// 1 if the working folder can't be known.
pub fn absolute_url(text: &str) -> Outcome<String> {
    if text.is_empty() || text.contains("://") {
        return Ok(text.to_owned());
    }
    let path = std::path::absolute(text).map_err(Failure::error)?;
    Ok(path.to_string_lossy().into_owned())
}

/// The parser's words, which it spreads over lines.
fn one_line(error: &toml::de::Error) -> String {
    let text = error.to_string();
    let lines: Vec<_> = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    lines.join(" ")
}

/// Sets a dotted key. A value that is no TOML value is text.
fn set(table: &mut Table, key: &str, value: &str) -> Outcome {
    let parsed = format!("value = {value}").parse::<Table>();
    let value = parsed
        .ok()
        .and_then(|mut table| table.remove("value"))
        .unwrap_or_else(|| Value::String(value.to_owned()));
    let mut sections: Vec<&str> = key.split('.').collect();
    let last = sections.pop().unwrap_or(key);
    let mut table = table;
    for section in sections {
        let entry = table
            .entry(section)
            .or_insert_with(|| Value::Table(Table::new()));
        table = entry
            .as_table_mut()
            .ok_or_else(|| Failure::usage(format!("setting `{key}`: `{section}` is no section")))?;
    }
    table.insert(last.to_owned(), value);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::DaemonConfig;

    fn settings(options: &[(&str, &str)]) -> Outcome<Settings> {
        Settings::load(&Common {
            config: None,
            options: options
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect(),
            http: String::new(),
        })
    }

    #[test]
    fn a_dotted_option_reaches_its_section() {
        let mut settings = settings(&[
            ("tiering.memory", "67108864"),
            ("tiering.round.max-rows", "5"),
        ])
        .unwrap();
        let config: DaemonConfig = settings.take("tiering").unwrap();
        assert_eq!((config.memory, config.round.max_rows), (64 << 20, 5));
        settings.refuse_rest().unwrap();
    }

    #[test]
    fn a_folder_becomes_absolute_and_an_address_stays() {
        assert_eq!(absolute_url("s3://b/lake").unwrap(), "s3://b/lake");
        assert_eq!(absolute_url("/lake").unwrap(), "/lake");
        let here = absolute_url("a/../lake").unwrap();
        assert!(
            here.starts_with('/') && here.ends_with("/a/../lake"),
            "{here}"
        );
    }

    #[test]
    fn unknown_keys_and_wrong_values_are_named() {
        let mut wrong = settings(&[("tiering.memroy", "1")]).unwrap();
        let error = wrong
            .take::<DaemonConfig>("tiering")
            .unwrap_err()
            .to_string();
        assert!(error.contains("memroy") && !error.contains('\n'), "{error}");
        let error = settings(&[("nonsense", "1")])
            .unwrap()
            .refuse_rest()
            .unwrap_err();
        assert_eq!(error.to_string(), "unknown setting `nonsense`");
        let error = settings(&[("a", "1"), ("a.b", "2")])
            .unwrap_err()
            .to_string();
        assert_eq!(error, "setting `a.b`: `a` is no section");
    }
}
