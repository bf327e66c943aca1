//! Counting what a body holds before it is decoded.

/// How many messages, texts and byte strings a body holds: its own, and those of messages in it, down to
/// `depth` below its own. What is no message counts as one. Stops where the bytes are no fields any more.
///
/// Costs a few passes over the bytes and no memory.
pub fn count_parts(body: &[u8], depth: u32) -> usize {
    let mut count = 0;
    for field in (Fields { rest: body }) {
        let Ok(Field::Part(part)) = field else {
            continue;
        };
        count += 1;
        if depth > 0 && is_message(part) {
            count += count_parts(part, depth - 1);
        }
    }
    count
}

fn is_message(bytes: &[u8]) -> bool {
    Fields { rest: bytes }.all(|field| field.is_ok())
}

enum Field<'a> {
    /// It has a length: a message, a text, bytes.
    Part(&'a [u8]),
    Number,
}

/// The fields of a message.
struct Fields<'a> {
    rest: &'a [u8],
}

/// The bytes are no field.
struct NoField;

impl<'a> Iterator for Fields<'a> {
    type Item = Result<Field<'a>, NoField>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field().ok_or(NoField);
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

impl<'a> Fields<'a> {
    fn field(&mut self) -> Option<Field<'a>> {
        match self.varint()? & 7 {
            0 => self.varint().map(|_| Field::Number),
            1 => self.take(8).map(|_| Field::Number),
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                self.take(length).map(Field::Part)
            }
            5 => self.take(4).map(|_| Field::Number),
            _ => None,
        }
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = *self.take(1)?.first()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use crate::proto::{FetchLogRequest, PbFetchLogReqForBucket, PbFetchLogReqForTable};

    #[test]
    fn messages_in_messages_are_counted_down_to_a_depth() {
        let table = PbFetchLogReqForTable {
            buckets_req: vec![PbFetchLogReqForBucket::default(); 3],
            ..Default::default()
        };
        let fetch = FetchLogRequest {
            tables_req: vec![table; 2],
            ..Default::default()
        };
        let body = fetch.encode_to_vec();
        assert_eq!(count_parts(&body, 0), 2);
        assert_eq!(count_parts(&body, 1), 8);
        assert_eq!(count_parts(&body, 9), 8);
    }

    #[test]
    fn empty_messages_count_and_bytes_that_are_no_message_are_one() {
        assert_eq!(count_parts(&[0x22, 0, 0x22, 0, 0x08, 1, 0x22, 0], 4), 3);
        assert_eq!(count_parts(&[0x22, 3, 0xff, 0xff, 0xff], 4), 1);
        assert_eq!(count_parts(&[0x22, 200], 4), 0, "it is cut off");
        assert_eq!(count_parts(&[], 4), 0);
        // A varint without an end.
        assert_eq!(count_parts(&[0xff; 30], 4), 0);
    }
}
