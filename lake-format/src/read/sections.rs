//! Files of a bucket by their key ranges: sections that share no key, and in each as few sorted
//! runs as can be (paimon: `IntervalPartition`).

use std::cmp::Ordering;

use crate::datum::Datum;

/// Something with a range of keys, both ends inclusive.
#[derive(Debug)]
pub(super) struct Ranged<T> {
    pub(super) min: Vec<Datum>,
    pub(super) max: Vec<Datum>,
    pub(super) item: T,
}

/// The runs of one section, each with its items in the order of their keys.
pub(super) type Section<T> = Vec<Vec<T>>;

/// The sections in the order of their keys.
pub(super) fn sections<T>(mut files: Vec<Ranged<T>>) -> Vec<Section<T>> {
    files.sort_by(|a, b| key_order(&a.min, &b.min).then_with(|| key_order(&a.max, &b.max)));
    let mut sections = Vec::new();
    let mut section: Vec<Ranged<T>> = Vec::new();
    let mut last: Option<Vec<Datum>> = None;
    for file in files {
        if last
            .as_ref()
            .is_some_and(|last| key_order(&file.min, last).is_gt())
        {
            sections.push(runs(std::mem::take(&mut section)));
            last = None;
        }
        if last
            .as_ref()
            .is_none_or(|last| key_order(&file.max, last).is_gt())
        {
            last = Some(file.max.clone());
        }
        section.push(file);
    }
    if !section.is_empty() {
        sections.push(runs(section));
    }
    sections
}

/// A file goes behind the run that ends first, if that ends before it.
fn runs<T>(files: Vec<Ranged<T>>) -> Section<T> {
    let mut runs: Vec<(Vec<Datum>, Vec<T>)> = Vec::new();
    for file in files {
        let first_to_end = runs.iter_mut().min_by(|(a, _), (b, _)| key_order(a, b));
        match first_to_end {
            Some((last, run)) if key_order(&file.min, last).is_gt() => {
                *last = file.max;
                run.push(file.item);
            }
            _ => runs.push((file.max, vec![file.item])),
        }
    }
    runs.into_iter().map(|(_, run)| run).collect()
}

/// The order of two keys, column by column; null is the lowest.
fn key_order(a: &[Datum], b: &[Datum]) -> Ordering {
    let orders = a
        .iter()
        .zip(b)
        .map(|(a, b)| match (a.is_null(), b.is_null()) {
            (true, true) => Ordering::Equal,
            (true, false) => Ordering::Less,
            (false, true) => Ordering::Greater,
            (false, false) => a.compare(b).unwrap_or(Ordering::Equal),
        });
    orders.fold(Ordering::Equal, Ordering::then)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(ranges: &[(i32, i32)]) -> Vec<Ranged<(i32, i32)>> {
        let ranged = |(min, max): &(i32, i32)| Ranged {
            min: vec![Datum::Int(*min)],
            max: vec![Datum::Int(*max)],
            item: (*min, *max),
        };
        ranges.iter().map(ranged).collect()
    }

    #[test]
    fn files_that_share_no_key_are_in_sections_of_their_own() {
        let found = sections(ranges(&[
            (200, 600),
            (3, 4),
            (5, 190),
            (210, 700),
            (1, 2),
            (5, 180),
        ]));
        let expected: Vec<Section<(i32, i32)>> = vec![
            vec![vec![(1, 2)]],
            vec![vec![(3, 4)]],
            vec![vec![(5, 180)], vec![(5, 190)]],
            vec![vec![(200, 600)], vec![(210, 700)]],
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn files_that_touch_are_in_one_section_and_runs_take_what_comes_behind_them() {
        let found = sections(ranges(&[(1, 5), (5, 9), (6, 7), (10, 20), (9, 10)]));
        let expected: Vec<Section<(i32, i32)>> =
            vec![vec![vec![(1, 5), (6, 7), (9, 10)], vec![(5, 9), (10, 20)]]];
        assert_eq!(found, expected);
    }
}
