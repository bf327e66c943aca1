//! Values of options that have a form of their own.

/// `HOST:PORT`; `[HOST]:PORT` for IPv6.
pub(super) fn address(text: &str) -> Result<String, String> {
    let parts = text.rsplit_once(':').filter(|(host, port)| {
        let bracketed = host.starts_with('[') && host.ends_with(']');
        let plain = !host.is_empty() && !host.contains([':', '/']);
        (bracketed || plain) && port.parse::<u16>().is_ok()
    });
    match parts {
        Some(_) => Ok(text.to_owned()),
        None => Err(format!("`{text}` is no address: write HOST:PORT")),
    }
}

/// `HOST:PORT` with or without the scheme that browsers put before it.
pub(super) fn http_address(text: &str) -> Result<String, String> {
    let bare = text.strip_prefix("http://").unwrap_or(text);
    address(bare.strip_suffix('/').unwrap_or(bare))
}

/// `TABLE/BUCKET` or `TABLE/PARTITION/BUCKET`, all numbers.
pub(super) fn bucket_name(text: &str) -> Result<String, String> {
    let parts: Vec<&str> = text.split('/').collect();
    let is_number = |part: &&str| part.parse::<u64>().is_ok();
    if matches!(parts.len(), 2 | 3) && parts.iter().all(is_number) {
        return Ok(text.to_owned());
    }
    Err(format!(
        "`{text}` is no bucket: write TABLE/BUCKET or TABLE/PARTITION/BUCKET, all by id, as \
         `weir log check` shows them"
    ))
}

/// `KEY=VALUE`.
pub(super) fn setting(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("`{text}` is no setting: write KEY=VALUE")),
    }
}
