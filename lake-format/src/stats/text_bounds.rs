//! Lowest and highest text of an array in one pass.

use arrow::array::{Array, StringArray};

/// The lowest and highest text by unsigned bytes; `None` if there is none.
///
/// Most rows are settled by their first 8 bytes as one number.
pub(super) fn text_bounds(array: &StringArray) -> Option<(&str, &str)> {
    let first = (0..array.len()).find(|row| array.is_valid(*row))?;
    let (mut low, mut high) = (Text::of(array, first)?, Text::of(array, first)?);
    let nulls = array.nulls().filter(|nulls| nulls.null_count() > 0);
    for row in first + 1..array.len() {
        if nulls.is_some_and(|nulls| nulls.is_null(row)) {
            continue;
        }
        let text = Text::of(array, row)?;
        if text.is_below(&low) {
            low = text;
        } else if high.is_below(&text) {
            high = text;
        }
    }
    Some((
        std::str::from_utf8(low.bytes).ok()?,
        std::str::from_utf8(high.bytes).ok()?,
    ))
}

#[derive(Clone, Copy)]
struct Text<'a> {
    /// The first 8 bytes as a big-endian number, zeros behind a shorter text.
    prefix: u64,
    bytes: &'a [u8],
}

impl<'a> Text<'a> {
    fn of(array: &'a StringArray, row: usize) -> Option<Self> {
        let [start, end] = *array.value_offsets().get(row..)?.first_chunk::<2>()?;
        let (start, end) = (usize::try_from(start).ok()?, usize::try_from(end).ok()?);
        let bytes = array.value_data().get(start..end)?;
        // What follows in the buffer belongs to other rows and is masked away.
        let prefix = match array
            .value_data()
            .get(start..)
            .and_then(|rest| rest.first_chunk::<8>())
        {
            Some(chunk) if bytes.len() >= 8 => u64::from_be_bytes(*chunk),
            Some(chunk) => u64::from_be_bytes(*chunk) & !(u64::MAX >> (bytes.len() * 8)),
            None => bytes
                .iter()
                .take(8)
                .enumerate()
                .fold(0, |prefix, (at, byte)| {
                    prefix | (u64::from(*byte) << (56 - at * 8))
                }),
        };
        Some(Self { prefix, bytes })
    }

    fn is_below(&self, other: &Self) -> bool {
        if self.prefix != other.prefix {
            return self.prefix < other.prefix;
        }
        if self.bytes.len() <= 8 && other.bytes.len() <= 8 {
            // All bytes are equal but zeros that one of the two may have more.
            return self.bytes.len() < other.bytes.len();
        }
        self.bytes < other.bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn bounds_are_those_of_sorting(
            texts in prop::collection::vec(prop::option::of("[a\u{0}\u{7f}\u{80}é]{0,12}"), 0..20),
            skipped in 0usize..4,
        ) {
            let array = StringArray::from(texts);
            let array = array.slice(skipped.min(array.len()), array.len().saturating_sub(skipped));
            let mut sorted: Vec<&str> = array.iter().flatten().collect();
            sorted.sort_unstable();
            let expected = sorted.first().zip(sorted.last()).map(|(low, high)| (*low, *high));
            prop_assert_eq!(text_bounds(&array), expected);
        }
    }
}
