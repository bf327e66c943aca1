//! Which fields an answer has. A released client may fail on an answer without an optional field that
//! the real server always sets, however empty; values cannot tell.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{Buf, Bytes};
use prost::encoding::{WireType, decode_key, decode_varint};

const PROTO: &str = include_str!("../../../server/protocol/proto/fluss.proto");

/// Number, name and type of each field of each message.
type Messages = BTreeMap<String, BTreeMap<u32, (String, String)>>;

fn messages() -> Messages {
    let mut messages = Messages::new();
    let mut message = String::new();
    for line in PROTO.lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        match words[..] {
            ["message", name, ..] => {
                message = name.to_owned();
                messages.entry(message.clone()).or_default();
            }
            [
                "required" | "optional" | "repeated",
                ty,
                name,
                "=",
                number,
                ..,
            ] => {
                let number = number.trim_end_matches(';').parse().unwrap();
                let field = (name.to_owned(), ty.to_owned());
                messages.get_mut(&message).unwrap().insert(number, field);
            }
            _ => {}
        }
    }
    messages
}

/// For each place of a message in the answer, such as `tables_resp.buckets_resp`, the fields that it
/// has wherever it stands there.
fn always_set(message: &str, body: Bytes) -> BTreeMap<String, BTreeSet<String>> {
    let mut found = BTreeMap::new();
    look(&messages(), message, "", body, &mut found);
    found
}

fn look(
    messages: &Messages,
    message: &str,
    place: &str,
    mut body: Bytes,
    found: &mut BTreeMap<String, BTreeSet<String>>,
) {
    let known = messages.get(message).expect("the message has this name");
    let mut here = BTreeSet::new();
    while body.has_remaining() {
        let (number, wire_type) = decode_key(&mut body).unwrap();
        let (name, ty) = known.get(&number).expect("the field is known");
        here.insert(name.clone());
        let length = match wire_type {
            WireType::Varint => {
                decode_varint(&mut body).unwrap();
                0
            }
            WireType::SixtyFourBit => 8,
            WireType::ThirtyTwoBit => 4,
            WireType::LengthDelimited => {
                usize::try_from(decode_varint(&mut body).unwrap()).unwrap()
            }
            other => panic!("{message}.{name} is a {other:?}"),
        };
        let value = body.split_to(length);
        if messages.contains_key(ty) {
            look(messages, ty, &format!("{place}{name}."), value, found);
        }
    }
    let place = place.to_owned();
    let common = match found.get(&place) {
        Some(other) => other.intersection(&here).cloned().collect(),
        None => here,
    };
    found.insert(place, common);
}

/// The fields that the expected answer always has in a place and the found one lacks in some.
pub(super) fn missing(message: &str, expected: Bytes, found: Bytes) -> Vec<String> {
    let found = always_set(message, found);
    let mut missing = Vec::new();
    for (place, fields) in always_set(message, expected) {
        let Some(ours) = found.get(&place) else {
            continue;
        };
        let lacking = fields.difference(ours);
        missing.extend(lacking.map(|field| format!("{message} without {place}{field}")));
    }
    missing
}
