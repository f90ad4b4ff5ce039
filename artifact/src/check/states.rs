//! What is kept between steps: each state is of a layer and a group, and pages are laid out as the
//! target's layout says.
use super::{Checked, MAX_BYTES, MAX_COUNT, MAX_LAYERS, below, bytes, count, ensure, name, product};
use crate::manifest::*;
use std::ops::Range;

/// Most states of a target: a few for each layer.
const MAX_STATES: usize = 4 * MAX_LAYERS;
/// Most streams of a page, some of which are parts of others.
const MAX_STREAMS: usize = 8;
/// A page is smaller: kernels compute offsets in a page with 32 bits.
const MAX_PAGE: usize = 1 << 32;
/// Most tokens behind each of which a step keeps a state: as many as it verifies.
const MAX_EACH: usize = 8;
/// Most tokens that have an entry together.
const MAX_EVERY: usize = 1024;
/// Bytes that an element of a stream has once kernels have widened it.
const WIDENED: usize = 2;

/// The groups of a target.
pub(super) fn groups(target: &Target, at: &str) -> Checked {
    for (index, group) in target.groups.iter().enumerate() {
        let at = format!("{at}.groups[{index}]");
        ensure(target.states.iter().any(|state| state.group == index), &at, || "no state is of this group".to_owned())?;
        match group {
            StateGroup::Paged(pages) => paged(pages, &target.layout, &format!("{at}.paged"))?,
            StateGroup::Slots(slots) => {
                let (each, at) = (slots.each, format!("{at}.slots"));
                bytes(slots.bytes, &at, "bytes")?;
                let least = target.most_guesses() + 1;
                ensure((least..=MAX_EACH).contains(&each), &format!("{at}.each"), || {
                    format!(
                        "states behind {each} tokens are kept, but a step verifies {least}, and {MAX_EACH} are most"
                    )
                })?;
            }
        }
    }
    Ok(())
}

/// That each state is of a layer and of a group.
pub(super) fn states(target: &Target, layers: usize, at: &str) -> Checked {
    let many = target.states.len();
    ensure(many <= MAX_STATES, &format!("{at}.states"), || format!("{many} are more than {MAX_STATES}"))?;
    for (index, state) in target.states.iter().enumerate() {
        let at = format!("{at}.states[{index}]");
        // The numbers of a draft's layers follow the model's.
        let layers = if target.draft.is_some() { MAX_LAYERS } else { layers };
        below(state.layer, layers, &at, "layer")?;
        below(state.group, target.groups.len(), &at, "group")?;
    }
    Ok(())
}

fn paged(pages: &Paged, layout: &DataLayout, at: &str) -> Checked {
    let Paged { block_bytes, ref streams, window, every } = *pages;
    super::layout::power_of_two(every, 1, MAX_EVERY, &format!("{at}.every"))?;
    ensure(every == 1 || window == 0, at, || format!("a window of {window} keys, but an entry is of {every} tokens"))?;
    ensure(window <= MAX_COUNT, &format!("{at}.window"), || format!("{window} keys are more than {MAX_COUNT}"))?;
    ensure((1..=MAX_STREAMS).contains(&streams.len()), &format!("{at}.streams"), || {
        format!("{} are not between 1 and {MAX_STREAMS}", streams.len())
    })?;
    let mut end = 0;
    for index in 0..streams.len() {
        let at = format!("{at}.streams[{index}]");
        end = match streams[index].layout {
            StreamLayout::Prefix { of } => prefix(streams, index, of, &at).map(|()| end)?,
            StreamLayout::Tokens | StreamLayout::Numbers => stream(&streams[index], end, layout, &at)?.end,
        };
    }
    ensure(block_bytes == end, &format!("{at}.block_bytes"), || format!("{block_bytes}, but the streams take {end}"))
}

/// A stream that begins where those before it end; where it lies.
fn stream(stream: &PageStream, start: usize, layout: &DataLayout, at: &str) -> Result<Range<usize>, crate::Error> {
    let PageStream { dtype, heads, width, ref name, .. } = *stream;
    super::name(name, at, "name")?;
    count(heads, at, "heads")?;
    count(width, at, "width")?;
    let dim = super::layout::padded(width, layout).unwrap_or(MAX_BYTES);
    let group = layout.group_bytes / dtype.size().max(WIDENED);
    for (unit, what) in [(layout.panel, "panels of layout.panel"), (group, "groups of layout.group_bytes")] {
        ensure(layout.block_tokens.is_multiple_of(unit), at, || {
            format!("pages of {} tokens are not whole {what}, {unit}", layout.block_tokens)
        })?;
        ensure(dim.is_multiple_of(unit), &format!("{at}.width"), || {
            format!("{width}, padded to {dim} by layout.row, is not whole {what}, {unit}")
        })?;
    }
    let size = product(&[layout.block_tokens, heads, dim, dtype.size()]);
    let size = size.filter(|size| size.checked_add(start).is_some_and(|end| end < MAX_PAGE));
    ensure(size == Some(stream.at.bytes), &format!("{at}.at.bytes"), || {
        let need = size.map_or(format!("more than a page may, {MAX_PAGE},"), |size| format!("{size} bytes"));
        let tokens = layout.block_tokens;
        format!("{}, but {tokens} tokens of {heads} heads of {width} take {need}", stream.at.bytes)
    })?;
    ensure(stream.at.start == start, &format!("{at}.at.start"), || {
        format!("{}, but the streams before it end at {start}", stream.at.start)
    })?;
    Ok(start..start + stream.at.bytes)
}

/// A stream that is a part of another.
fn prefix(streams: &[PageStream], index: usize, of: usize, at: &str) -> Checked {
    let stream = &streams[index];
    name(&stream.name, at, "name")?;
    count(stream.width, at, "width")?;
    below(of, index, &format!("{at}.layout.prefix"), "of")?;
    let whole = &streams[of];
    let is_part = whole.layout == StreamLayout::Tokens
        && (stream.at, stream.dtype, stream.heads) == (whole.at, whole.dtype, whole.heads)
        && stream.width <= whole.width;
    ensure(is_part, at, || {
        format!("is no part of the rows of `{}`: same place, type and heads, at most {}", whole.name, whole.width)
    })
}
