//! Errors as people read them.

/// The error and what it came from, in one line, without saying the same twice.
pub(crate) fn sentence(error: &dyn std::error::Error) -> String {
    let mut text = without_generic(&error.to_string());
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = without_generic(&cause.to_string());
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

/// Leaves out `Generic STORE error`, the object store's word for "some error", which says nothing.
fn without_generic(text: &str) -> String {
    let says_something = |part: &&str| {
        let store = part.strip_prefix("Generic ");
        let store = store.and_then(|rest| rest.strip_suffix(" error"));
        store.is_none_or(|store| store.contains(' '))
    };
    let parts: Vec<&str> = text.split(": ").filter(says_something).collect();
    parts.join(": ")
}
