//! Names of databases, tables and partition values.

/// Longest name, in characters.
pub const MAX_NAME_CHARS: usize = 200;
/// Names that start like this belong to the system.
pub const SYSTEM_PREFIX: &str = "__";

/// Checks a name that is used: 1 to 200 characters of `[A-Za-z0-9_-]`. (The reference's
/// `detectInvalidName`.)
///
/// # Errors
/// What is wrong with it, for the end of a sentence.
pub fn check(name: &str) -> Result<(), String> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    match name {
        "" => Err("the name is empty".to_owned()),
        "." | ".." => Err(format!("`{name}` is not allowed")),
        _ if name.len() > MAX_NAME_CHARS => Err(format!(
            "the name has {} characters, at most {MAX_NAME_CHARS}",
            name.len()
        )),
        _ if name.bytes().all(allowed) => Ok(()),
        _ => Err(format!(
            "`{name}` has a character other than a-z A-Z 0-9 _ -"
        )),
    }
}

/// Checks a name that is to be created: as [`check`], and not one of the system's.
///
/// # Errors
/// What is wrong with it, for the end of a sentence.
pub fn check_new(name: &str) -> Result<(), String> {
    check(name)?;
    if name.starts_with(SYSTEM_PREFIX) {
        return Err(format!(
            "`{name}` starts with `{SYSTEM_PREFIX}`, which is the system's"
        ));
    }
    Ok(())
}
