//! Errors as people read them.

/// An error and its causes in one line, each said once: what a part of the line says again, shorter
/// or word for word, is left out.
pub fn sentence(error: &dyn std::error::Error) -> String {
    let mut parts = Vec::new();
    let mut cause = Some(error);
    while let Some(error) = cause {
        let text = error.to_string();
        // The object store's word for "some error", which says nothing.
        let said = text.split(": ").filter(|part| !is_generic(part));
        parts.extend(said.map(str::to_owned));
        cause = error.source();
    }
    let again = |(index, part): (usize, &String)| {
        let says = |(other, text): (usize, &String)| {
            other != index && text.contains(part.as_str()) && (text != part || other < index)
        };
        part.is_empty() || (part.len() >= WORTHWHILE && parts.iter().enumerate().any(says))
    };
    let kept = parts.iter().enumerate().filter(|part| !again(*part));
    let kept: Vec<&str> = kept.map(|(_, part)| part.as_str()).collect();
    kept.join(": ")
}

/// Shorter parts of an error's text (`0`, `id`) may stand in another by chance.
const WORTHWHILE: usize = 6;

fn is_generic(part: &str) -> bool {
    part.strip_prefix("Generic ")
        .and_then(|rest| rest.strip_suffix(" error"))
        .is_some_and(|store| !store.contains(' '))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Said {
        text: &'static str,
        source: Option<Box<Said>>,
    }

    fn chain(texts: &[&'static str]) -> String {
        let cause = |source, text: &&'static str| Some(Box::new(Said { text, source }));
        sentence(&*texts.iter().rev().fold(None, cause).unwrap())
    }

    #[test]
    fn a_cause_that_was_said_is_not_said_again() {
        let inner = "Generic DurableLocal error: Unable to create file /lake/d.db/t/bucket-0/a.parquet: \
             No space left on device (os error 28)";
        let outer = "d.db/t/bucket-0/a.parquet: the object store failed: Generic DurableLocal error: \
             Generic DurableLocal error: Unable to create file /lake/d.db/t/bucket-0/a.parquet: \
             No space left on device (os error 28)";
        let device = "No space left on device (os error 28)";
        assert_eq!(
            chain(&["lake table d.t", outer, inner, device]),
            "lake table d.t: the object store failed: \
             Unable to create file /lake/d.db/t/bucket-0/a.parquet: \
             No space left on device (os error 28)"
        );
    }

    #[test]
    fn different_causes_are_all_said_in_order_and_short_ones_are_kept() {
        assert_eq!(chain(&["a: 0", "id 10", "0"]), "a: 0: id 10: 0");
        assert_eq!(
            chain(&["read failed", "bucket 12 is gone", "bucket 1 is gone"]),
            "read failed: bucket 12 is gone: bucket 1 is gone"
        );
    }

    #[test]
    fn what_an_object_store_says_of_itself_is_left_out() {
        let wrapped = object_store::Error::Generic {
            store: "DurableLocal",
            source: Box::new(std::io::Error::from_raw_os_error(28)),
        };
        let error = weir_lake_format::Error::store(&"t/f".into(), wrapped);
        let said = "t/f: the object store failed: No space left on device (os error 28)";
        assert_eq!(sentence(&error), said);
    }
}
