//! How data lie: what kernels can be made for, and that the cache is laid out as the target's layout says.
use super::{Checked, MAX_BYTES, count, ensure, product};
use crate::manifest::*;

/// Largest unit of a layout, in elements, rows or bytes: some ten times what emitters take.
const MAX_UNIT: usize = 1024;
/// A page of the cache is smaller: kernels compute offsets in a page with 32 bits.
const MAX_PAGE: usize = 1 << 32;
/// Most tokens in a block: a page that is larger is mostly empty.
const MAX_BLOCK: usize = 1024;
/// Bytes of the largest element.
const LARGEST: usize = 4;
/// Bytes that an element of a cache has once kernels have widened it.
const WIDENED: usize = 2;

pub(super) fn data(layout: &DataLayout, at: &str) -> Checked {
    let DataLayout { row, alias, rows, panel, group_bytes, align } = *layout;
    for (field, value) in [("row", row), ("rows", rows), ("panel", panel), ("align", align)] {
        power_of_two(value, 1, MAX_UNIT, &format!("{at}.{field}"))?;
    }
    power_of_two(group_bytes, LARGEST, MAX_UNIT, &format!("{at}.group_bytes"))?;
    // As large as can be where no distance between rows is a bad one.
    power_of_two(alias, row, super::MAX_COUNT, &format!("{at}.alias"))
}

fn power_of_two(value: usize, least: usize, most: usize, at: &str) -> Checked {
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

pub(super) fn cache(cache: &CacheSpec, layout: &DataLayout, at: &str) -> Checked {
    let CacheSpec { block_tokens, block_bytes, v_offset, dtype, heads, head_dim, window, .. } = *cache;
    power_of_two(block_tokens, 1, MAX_BLOCK, &format!("{at}.block_tokens"))?;
    count(heads, at, "heads")?;
    count(head_dim, at, "head_dim")?;
    ensure(window <= super::MAX_COUNT, &format!("{at}.window"), || {
        format!("{window} keys are more than {}", super::MAX_COUNT)
    })?;
    let dim = padded(head_dim, layout).unwrap_or(MAX_BYTES);
    let group = layout.group_bytes / dtype.size().max(WIDENED);
    for (unit, what) in [(layout.panel, "panels of layout.panel"), (group, "groups of layout.group_bytes")] {
        ensure(block_tokens.is_multiple_of(unit), &format!("{at}.block_tokens"), || {
            format!("{block_tokens} tokens are not whole {what}, {unit}")
        })?;
        ensure(dim.is_multiple_of(unit), &format!("{at}.head_dim"), || {
            format!("{head_dim}, padded to {dim} by layout.row, is not whole {what}, {unit}")
        })?;
    }
    let block = product(&[block_tokens, heads, dim, dtype.size()]).filter(|&block| block < MAX_PAGE / 2);
    for (field, value, blocks) in [("v_offset", v_offset, 1), ("block_bytes", block_bytes, 2)] {
        ensure(block.is_some_and(|block| value == blocks * block), &format!("{at}.{field}"), || {
            let need = block.map_or(format!("more than {MAX_PAGE}"), |block| (blocks * block).to_string());
            format!("{value}, but {block_tokens} tokens of {heads} heads of {head_dim} take {need} bytes")
        })?;
    }
    Ok(())
}
