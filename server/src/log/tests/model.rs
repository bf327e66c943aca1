//! Any sequence of calls and crashes against a list of batches.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Op {
    Append { writer: Option<u8>, sizes: Vec<u16> },
    Flush,
    Read { from: u16, max_bytes: u16 },
    Crash(Crash),
    Reopen,
    Truncate(u16),
    Retain(u16),
    Continue(u8),
}

fn op() -> impl Strategy<Value = Op> {
    let sizes = proptest::collection::vec(0_u16..700, 1..4);
    prop_oneof![
        8 => (proptest::option::of(0_u8..3), sizes)
            .prop_map(|(writer, sizes)| Op::Append { writer, sizes }),
        3 => Just(Op::Flush),
        3 => (any::<u16>(), 0_u16..3_000).prop_map(|(from, max_bytes)| Op::Read { from, max_bytes }),
        2 => any::<u64>().prop_map(|seed| Op::Crash(Crash::Torn(seed))),
        1 => Just(Op::Crash(Crash::ForgetAll)),
        1 => Just(Op::Crash(Crash::ProcessOnly)),
        1 => Just(Op::Reopen),
        1 => any::<u16>().prop_map(Op::Truncate),
        1 => any::<u16>().prop_map(Op::Retain),
        1 => (0_u8..40).prop_map(Op::Continue),
    ]
}

struct World {
    disk: MemoryDisk,
    log: Arc<Log>,
    /// (base offset, next offset, bytes as stored), without those that retention took.
    batches: Vec<(i64, i64, Vec<u8>)>,
    start: i64,
    end: i64,
    flushed: i64,
    /// The next sequence of each writer, and its last batch.
    sequences: [(i32, Option<Vec<u8>>); 3],
    clock_ms: i64,
}

impl World {
    fn new() -> Self {
        let disk = MemoryDisk::new();
        let log = open(&disk);
        let sequences = [(0, None), (0, None), (0, None)];
        let batches = Vec::new();
        Self {
            disk,
            log,
            batches,
            start: 0,
            end: 0,
            flushed: 0,
            sequences,
            clock_ms: 1_000,
        }
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Append { writer, sizes } => self.append(*writer, sizes),
            Op::Flush => {
                assert_eq!(self.log.flush().unwrap().0, self.end);
                self.flushed = self.end;
            }
            Op::Read { from, max_bytes } => self.read(*from, usize::from(*max_bytes)),
            Op::Crash(crash) => self.crash(*crash),
            Op::Reopen => {
                self.log.close().unwrap();
                self.log = open(&self.disk);
                self.flushed = self.end;
                let report = self.log.recovery_report();
                assert_eq!((report.scanned_bytes, report.truncated_bytes), (0, 0));
            }
            Op::Truncate(at) => self.truncate(*at),
            Op::Retain(at) => self.retain(*at),
            Op::Continue(by) => {
                let lake_end = self.end + i64::from(*by);
                if self.log.continue_at(LogOffset(lake_end)).unwrap().is_some() {
                    if self.batches.is_empty() {
                        self.start = lake_end;
                    }
                    self.end = lake_end;
                    self.flushed = lake_end;
                }
            }
        }
        self.check();
    }

    fn append(&mut self, writer: Option<u8>, sizes: &[u16]) {
        self.clock_ms += 7;
        let mut request = Vec::new();
        let mut end = self.end;
        let mut stored = Vec::new();
        for size in sizes {
            let records = i32::from(size % 4) + 1;
            let body = vec![u8::try_from(size % 256).unwrap(); usize::from(*size)];
            let mut bytes = match writer {
                None => batch(-1, -1, records, &body),
                Some(writer) => {
                    let (sequence, last) = &mut self.sequences[usize::from(writer)];
                    let bytes = batch(i64::from(writer), *sequence, records, &body);
                    *sequence += 1;
                    *last = Some(bytes.clone());
                    bytes
                }
            };
            request.extend_from_slice(&bytes);
            stamp(&mut bytes, LogOffset(end), self.clock_ms);
            stored.push((end, end + i64::from(records), bytes));
            end += i64::from(records);
        }
        let appended = self.log.append(&checked(request), self.clock_ms).unwrap();
        assert_eq!(
            (appended.base_offset.0, appended.log_end.0),
            (self.end, end)
        );
        self.batches.extend(stored);
        self.end = end;
    }

    fn read(&self, from: u16, max_bytes: usize) {
        let from = self.start + i64::from(from) % (self.end - self.start + 1);
        let read = self
            .log
            .read(LogOffset(from), max_bytes, LogOffset(self.end))
            .unwrap();
        let first = self.batches.iter().position(|(_, next, _)| *next > from);
        let Some(first) = first else {
            assert!(read.batches.is_empty());
            return;
        };
        let mut rest: &[u8] = &read.batches;
        let mut at = first;
        while !rest.is_empty() {
            let (_, next, bytes) = &self.batches[at];
            assert!(rest.starts_with(bytes));
            rest = &rest[bytes.len()..];
            at += 1;
            assert!(at == first + 1 || read.batches.len() <= max_bytes);
            assert!(!rest.is_empty() || read.next_offset.0 == *next);
        }
        assert!(at > first, "at least one batch");
    }

    fn crash(&mut self, crash: Crash) {
        self.disk.crash(crash);
        self.log = open(&self.disk);
        let found = self.log.log_end().0;
        assert!(
            found >= self.flushed,
            "{crash:?}: ends at {found}, {} were durable",
            self.flushed
        );
        if crash == Crash::ProcessOnly {
            assert_eq!(found, self.end);
        }
        self.forget_from(found);
        self.flushed = found;
    }

    fn truncate(&mut self, at: u16) {
        let at = self.start + i64::from(at) % (self.end - self.start + 1);
        let end = self.log.truncate_to(LogOffset(at)).unwrap().0;
        let inside = self
            .batches
            .iter()
            .find(|(base, next, _)| *base < at && at < *next);
        let in_gap = !self
            .batches
            .iter()
            .any(|(base, next, _)| *base <= at && at <= *next);
        if !in_gap && at < self.end {
            assert_eq!(end, inside.map_or(at, |(base, _, _)| *base));
        }
        self.forget_from(end);
        self.flushed = self.flushed.min(end);
        assert!(end <= at, "truncated to {end}, above {at}");
        // Truncation opens the log again: what is left is durable.
        if self.log.flushed_end().0 == end {
            self.flushed = end;
        }
    }

    /// The batches at and above an offset are gone, and what their writers sent with them.
    fn forget_from(&mut self, end: i64) {
        self.batches.retain(|(_, next, _)| *next <= end);
        self.end = end;
        for index in 0..self.sequences.len() {
            let writer = i64::try_from(index).unwrap();
            let last = self.batches.iter().rev().find(|(_, _, bytes)| {
                BatchHeader::parse(bytes).unwrap().writer == Some(WriterId(writer))
            });
            self.sequences[index] = match last {
                Some((_, _, bytes)) => {
                    let header = BatchHeader::parse(bytes).unwrap();
                    (header.sequence + 1, Some(bytes.clone()))
                }
                // Retention may have taken its batches while the log remembers it: ask.
                None if self.start > 0 => (self.expected(writer), None),
                None => (0, None),
            };
        }
    }

    fn expected(&self, writer: i64) -> i32 {
        match self
            .log
            .append(&checked(batch(writer, i32::MAX, 1, b"")), self.clock_ms)
        {
            Err(Error::OutOfOrderSequence { expected, .. }) => expected,
            other => panic!("{other:?}"),
        }
    }

    fn retain(&mut self, at: u16) {
        let at = self.start + i64::from(at) % (self.end - self.start + 1);
        let start = self.log.delete_segments_below(LogOffset(at)).unwrap().0;
        let kept = self
            .batches
            .iter()
            .find(|(_, next, _)| *next > at)
            .map(|(base, _, _)| *base);
        assert!(start <= kept.unwrap_or(self.end), "{start} {at}");
        self.start = start;
        self.batches.retain(|(base, _, _)| *base >= start);
        self.flushed = self.log.flushed_end().0;
    }

    fn check(&mut self) {
        let log = &self.log;
        assert_eq!((log.log_start().0, log.log_end().0), (self.start, self.end));
        assert!(log.flushed_end().0 >= self.flushed && log.flushed_end().0 <= self.end);
        let found = read_all(log).unwrap();
        let expected: Vec<(i64, Vec<u8>)> = self
            .batches
            .iter()
            .map(|(base, _, bytes)| (*base, bytes.clone()))
            .collect();
        assert_eq!(found, expected);
        for (_, last) in &self.sequences {
            if let Some(last) = last {
                let again = log.append(&checked(last.clone()), self.clock_ms).unwrap();
                assert!(again.duplicate);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, max_shrink_iters: 4_000, ..Default::default() })]

    #[test]
    fn a_log_is_always_a_valid_prefix_with_all_that_was_flushed(
        ops in proptest::collection::vec(op(), 1..60)
    ) {
        let mut world = World::new();
        for op in &ops {
            world.apply(op);
        }
    }
}
