use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn at(offset: i64) -> LogOffset {
    LogOffset(offset)
}

fn key(number: u8) -> Bytes {
    Bytes::from(vec![number])
}

#[derive(Clone, Debug)]
enum Step {
    Put { key: u8, gap: i64 },
    Delete { key: u8, gap: i64 },
    Truncate { back: i64 },
    Flush { back: i64 },
    Complete,
    Abort,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..4u8, 0..3i64).prop_map(|(key, gap)| Step::Put { key, gap }),
        3 => (0..4u8, 0..3i64).prop_map(|(key, gap)| Step::Delete { key, gap }),
        2 => (0..8i64).prop_map(|back| Step::Truncate { back }),
        2 => (0..8i64).prop_map(|back| Step::Flush { back }),
        2 => Just(Step::Complete),
        1 => Just(Step::Abort),
    ];
    prop::collection::vec(step, 0..80)
}

/// All that ever happened and was not taken back: by offset, the key and what it got.
#[derive(Default)]
struct Model {
    history: BTreeMap<i64, (u8, Option<Bytes>)>,
    store: BTreeMap<u8, Bytes>,
    flushed: i64,
    flushing: Option<(i64, BTreeMap<u8, Bytes>)>,
    end: i64,
}

impl Model {
    fn newest(&self, key: u8) -> Option<Newest<'_>> {
        let unflushed = self.history.range(self.flushed..).rev();
        let mut of_key = unflushed.filter(|(_, (found, _))| *found == key);
        let (_, (_, value)) = of_key.next()?;
        Some(value.as_ref().map_or(Newest::Deleted, Newest::Put))
    }

    /// What a reader sees: buffer first, then store.
    fn seen(&self, key: u8) -> Option<&Bytes> {
        match self.newest(key) {
            Some(Newest::Put(value)) => Some(value),
            Some(Newest::Deleted) => None,
            None => self.store.get(&key),
        }
    }

    fn state_at(&self, end: i64) -> BTreeMap<u8, Bytes> {
        let mut state = BTreeMap::new();
        for (key, value) in self.history.range(..end).map(|(_, change)| change) {
            match value {
                Some(value) => state.insert(*key, value.clone()),
                None => state.remove(key),
            };
        }
        state
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn buffer_and_store_together_always_hold_the_newest_value(steps in steps()) {
        let mut buffer = PreWriteBuffer::new(at(0));
        let mut model = Model::default();
        for step in steps {
            match step {
                Step::Put { key: number, gap } => {
                    let offset = model.end + gap;
                    let value = Bytes::from(offset.to_be_bytes().to_vec());
                    let exists = model.seen(number).is_some();
                    let kind = if exists { PutKind::Update } else { PutKind::Insert };
                    buffer.put(key(number), value.clone(), at(offset), kind).unwrap();
                    model.history.insert(offset, (number, Some(value)));
                    model.end = offset + 1;
                }
                Step::Delete { key: number, gap } if model.seen(number).is_some() => {
                    let offset = model.end + gap;
                    buffer.delete(key(number), at(offset)).unwrap();
                    model.history.insert(offset, (number, None));
                    model.end = offset + 1;
                }
                Step::Delete { .. } => {}
                Step::Truncate { back } => {
                    let offset = (model.end - back).max(0);
                    let bound = model.flushing.as_ref().map_or(model.flushed, |(end, _)| *end);
                    let truncated = buffer.truncate_from(at(offset));
                    prop_assert_eq!(truncated.is_ok(), offset >= bound);
                    if truncated.is_ok() {
                        model.history.split_off(&offset);
                        model.end = offset;
                    }
                }
                Step::Flush { back } => {
                    let end = (model.end - back).max(0);
                    let flushed = buffer.flush_up_to(at(end));
                    let is_allowed = model.flushing.is_none() && end >= model.flushed;
                    prop_assert_eq!(flushed.is_ok(), is_allowed);
                    if let Ok(batch) = flushed {
                        let mut state = model.store.clone();
                        let before = i64::try_from(state.len()).unwrap();
                        for (key, value) in &batch.writes {
                            match value {
                                Some(value) => state.insert(key[0], value.clone()),
                                None => state.remove(&key[0]),
                            };
                        }
                        prop_assert_eq!(&state, &model.state_at(end));
                        let change = i64::try_from(state.len()).unwrap() - before;
                        prop_assert_eq!(batch.row_count, RowCountChange::By(change));
                        model.flushing = Some((end, state));
                    }
                }
                Step::Complete => {
                    buffer.complete_flush();
                    if let Some((end, state)) = model.flushing.take() {
                        model.flushed = end;
                        model.store = state;
                    }
                }
                Step::Abort => {
                    buffer.abort_flush();
                    model.flushing = None;
                }
            }
            for number in 0..4u8 {
                prop_assert_eq!(buffer.get(&key(number)), model.newest(number));
            }
            let unflushed: Vec<_> = model.history.range(model.flushed..).collect();
            let size: usize = unflushed
                .iter()
                .map(|(_, (_, value))| 1 + value.as_ref().map_or(0, Bytes::len))
                .sum();
            prop_assert_eq!(buffer.len(), unflushed.len());
            prop_assert_eq!(buffer.is_empty(), unflushed.is_empty());
            prop_assert_eq!(buffer.size_bytes(), size);
            prop_assert_eq!(buffer.flushed_offset(), at(model.flushed));
        }
    }
}

#[test]
fn a_failed_append_leaves_the_older_value_the_newest() {
    let mut buffer = PreWriteBuffer::new(at(10));
    buffer
        .put(key(1), Bytes::from_static(b"old"), at(10), PutKind::Insert)
        .unwrap();
    buffer
        .put(key(1), Bytes::from_static(b"new"), at(12), PutKind::Update)
        .unwrap();
    buffer.delete(key(1), at(13)).unwrap();
    assert_eq!(buffer.get(&key(1)), Some(Newest::Deleted));
    buffer.truncate_from(at(11)).unwrap();
    assert_eq!(
        buffer.get(&key(1)),
        Some(Newest::Put(&Bytes::from_static(b"old")))
    );
    buffer.truncate_from(at(10)).unwrap();
    assert_eq!(buffer.get(&key(1)), None);
    assert!(buffer.is_empty());
}

#[test]
fn offsets_only_rise() {
    let mut buffer = PreWriteBuffer::new(at(5));
    let value = Bytes::from_static(b"v");
    let put = |buffer: &mut PreWriteBuffer, offset| {
        buffer.put(key(1), value.clone(), at(offset), PutKind::Update)
    };
    let below = put(&mut buffer, 4);
    assert!(matches!(below, Err(Error::OffsetOrder { bound, .. }) if bound == at(5)));
    put(&mut buffer, 7).unwrap();
    let again = put(&mut buffer, 7);
    assert!(matches!(again, Err(Error::OffsetOrder { bound, .. }) if bound == at(7)));
    assert_eq!(buffer.len(), 1);
}

#[test]
fn a_blind_put_makes_the_number_of_keys_unknown() {
    let mut buffer = PreWriteBuffer::new(at(0));
    buffer
        .put(key(1), Bytes::new(), at(0), PutKind::Insert)
        .unwrap();
    buffer
        .put(key(2), Bytes::new(), at(1), PutKind::Blind)
        .unwrap();
    let batch = buffer.flush_up_to(at(1)).unwrap();
    assert_eq!(batch.row_count, RowCountChange::By(1));
    buffer.complete_flush();
    let batch = buffer.flush_up_to(at(2)).unwrap();
    assert_eq!(batch.row_count, RowCountChange::Unknown);
}

#[test]
fn a_key_changed_often_is_written_once() {
    let mut buffer = PreWriteBuffer::new(at(0));
    for offset in 0..5 {
        let value = Bytes::from(vec![u8::try_from(offset).unwrap()]);
        buffer
            .put(key(1), value, at(offset), PutKind::Update)
            .unwrap();
    }
    let batch = buffer.flush_up_to(at(3)).unwrap();
    assert_eq!(batch.writes, [(key(1), Some(Bytes::from_static(b"\x02")))]);
}
