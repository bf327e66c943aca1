//! A binary heap of indexes whose order lies elsewhere.

/// Adds an index.
pub(super) fn push(heap: &mut Vec<usize>, index: usize, is_before: impl Fn(usize, usize) -> bool) {
    heap.push(index);
    let mut at = heap.len() - 1;
    while at > 0 {
        let parent = (at - 1) / 2;
        if !are_in_order(heap, at, parent, &is_before) {
            break;
        }
        heap.swap(at, parent);
        at = parent;
    }
}

/// Takes the first index away.
pub(super) fn pop(heap: &mut Vec<usize>, is_before: impl Fn(usize, usize) -> bool) {
    if !heap.is_empty() {
        heap.swap_remove(0);
        sink(heap, is_before);
    }
}

/// Puts the first index, whose order has changed, where it belongs.
pub(super) fn sink(heap: &mut [usize], is_before: impl Fn(usize, usize) -> bool) {
    let mut at = 0;
    loop {
        let left = 2 * at + 1;
        let right = left + 1;
        let child = if are_in_order(heap, right, left, &is_before) {
            right
        } else {
            left
        };
        if !are_in_order(heap, child, at, &is_before) {
            return;
        }
        heap.swap(at, child);
        at = child;
    }
}

/// Whether the index at one place comes before that at another; no if either place is empty.
fn are_in_order(
    heap: &[usize],
    first: usize,
    second: usize,
    is_before: &impl Fn(usize, usize) -> bool,
) -> bool {
    let pair = heap.get(first).zip(heap.get(second));
    pair.is_some_and(|(first, second)| is_before(*first, *second))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_come_in_the_order_of_their_values() {
        let values = [5, 3, 9, 3, 1, 7, 2];
        let is_before = |a: usize, b: usize| (values[a], a) < (values[b], b);
        let mut heap = Vec::new();
        (0..values.len()).for_each(|index| push(&mut heap, index, is_before));
        let mut found = Vec::new();
        while let Some(first) = heap.first() {
            found.push(values[*first]);
            pop(&mut heap, is_before);
        }
        assert_eq!(found, [1, 2, 3, 3, 5, 7, 9]);
    }
}
