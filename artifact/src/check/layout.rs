//! How data lie: what kernels can be made for.
use super::{Checked, ensure};
use crate::manifest::*;

/// Largest unit of a layout, in elements, rows or bytes: some ten times what emitters take.
const MAX_UNIT: usize = 1024;
/// Most tokens in a block: a page that is larger is mostly empty.
const MAX_BLOCK: usize = 1024;
/// Bytes of the largest element.
const LARGEST: usize = 4;

pub(super) fn data(layout: &DataLayout, at: &str) -> Checked {
    let DataLayout { row, alias, rows, panel, group_bytes, block_tokens, align } = *layout;
    for (field, value) in [("row", row), ("rows", rows), ("panel", panel), ("align", align)] {
        power_of_two(value, 1, MAX_UNIT, &format!("{at}.{field}"))?;
    }
    power_of_two(group_bytes, LARGEST, MAX_UNIT, &format!("{at}.group_bytes"))?;
    power_of_two(block_tokens, 1, MAX_BLOCK, &format!("{at}.block_tokens"))?;
    // As large as can be where no distance between rows is a bad one.
    power_of_two(alias, row, super::MAX_COUNT, &format!("{at}.alias"))
}

pub(super) fn power_of_two(value: usize, least: usize, most: usize, at: &str) -> Checked {
    ensure(value.is_power_of_two() && (least..=most).contains(&value), at, || {
        format!("{value} is not a power of two between {least} and {most}")
    })
}

/// Elements of a row with its padding.
pub(super) fn padded(width: usize, layout: &DataLayout) -> Option<usize> {
    width.checked_next_multiple_of(layout.row)
}

/// Elements from one row to the next.
pub(super) fn stride(width: usize, layout: &DataLayout) -> Option<usize> {
    let padded = padded(width, layout)?;
    if padded.is_multiple_of(layout.alias) { padded.checked_add(layout.row) } else { Some(padded) }
}
