//! The inputs of one step, in one block at fixed addresses: sizes, token ids, positions, lengths,
//! rows, and the batch, which assigns tokens to sequences. If kernels cannot read the host's
//! memory, the block is filled here and copied to one of the device before each step. Pointers
//! inside it are the device's.
use crate::device::{Device, DeviceBuffer, DeviceError, InputAddresses, StepInputs, StepSize};
use crate::memory::Buffer;
use crate::sight::Patch;
use atomc_artifact::abi::{Batch, Prepare, SPARE_TOKENS, Step, TILE_TOKENS};
use atomc_artifact::manifest::{DType, Given, Input, Taps};

/// Every part of the block begins at a cache line.
const ALIGN: usize = 64;
const INT: usize = size_of::<i32>();

/// The inputs of a step. Entries beyond its tokens are zero: a token, position, row and sequence
/// that exist.
#[derive(Debug)]
pub struct Inputs {
    block: Buffer,
    /// Where kernels find the block, if it is not here.
    device: Option<DeviceBuffer>,
    parts: Parts,
    /// Rows that steps are given, if they are, and their buffer.
    given: Option<(Given, DeviceBuffer)>,
    /// Room for them on their way there.
    narrowed: Vec<u8>,
    /// At least one.
    tables: Vec<TableRoom>,
    /// Entries of the last step, which the next one replaces or clears.
    used: Counts,
}

/// The largest steps that inputs have room for.
#[derive(Clone, Debug)]
pub struct Room {
    /// Most tokens of a step. The lists for kernels have room for more.
    pub tokens: usize,
    /// Most rows of logits.
    pub rows: usize,
    /// The tables of each sequence.
    pub tables: Vec<TableRoom>,
    /// Rows that steps are given, if they are.
    pub given: Option<Given>,
}

/// A table of a sequence's pages.
#[derive(Clone, Copy, Debug, Default)]
pub struct TableRoom {
    /// Pages of the longest sequence.
    pub blocks: usize,
    /// Bytes from one page to the next.
    pub block_stride: usize,
}

/// The size of a step so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Tokens of all sequences together.
    pub tokens: usize,
    /// Rows of logits that are wanted.
    pub rows: usize,
    /// Entries of [`atomc_artifact::abi::Batch::tiles`].
    pub tiles: usize,
    sequences: usize,
}

/// What a token has where some are of images.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// Its positions of time, row and column.
    pub positions: [i32; 3],
    /// The row that it is given, if it is.
    pub row: Option<usize>,
    /// How many positions of its sequence it sees.
    pub end: usize,
}

/// Offsets in the block. Tables are last, those of a sequence side by side: a step uses only the
/// first of them.
#[derive(Clone, Copy, Debug)]
struct Parts {
    step: usize,
    /// One for each table.
    batches: usize,
    ids: usize,
    positions: usize,
    lengths: usize,
    sequences: usize,
    rows: usize,
    sources: usize,
    adapters: usize,
    /// Where tokens have three positions: those of time, of rows, of columns.
    axes: [usize; 3],
    /// How many positions tokens see, where these may come after their own.
    ends: usize,
    /// Where tokens have shares of the rows of a table: these rows, and the shares.
    taps: usize,
    shares: usize,
    /// First token and count of each.
    tiles: usize,
    tile_room: usize,
    tables: usize,
    end: usize,
    /// Blocks in all tables of a sequence.
    stride: usize,
}

impl Parts {
    fn new(tokens: usize, rows: usize, tables: &[TableRoom], given: Option<&Given>) -> Parts {
        let mut end = 0;
        let mut part = |bytes: usize| {
            let start = end;
            end = (start + bytes).next_multiple_of(ALIGN);
            start
        };
        let (padded, blocks) = (tokens + SPARE_TOKENS, tables.iter().map(|table| table.blocks).sum());
        let [step, batches] = [size_of::<Step>(), tables.len() * size_of::<Batch>()].map(&mut part);
        let [ids, positions, lengths, sequences, sources, adapters] = [padded * INT; 6].map(&mut part);
        let [rows, tiles] = [(rows + SPARE_TOKENS) * INT, padded * 2 * INT].map(&mut part);
        let of_axes = if given.is_some() { padded * INT } else { 0 };
        let axes = [of_axes; 3].map(&mut part);
        let ends = part(of_axes);
        let Taps { count, stride } = given.and_then(|given| given.taps).unwrap_or(Taps { count: 0, stride: 0 });
        let [taps, shares] = [padded * count * INT, padded * stride * size_of::<f32>()].map(&mut part);
        // Zeroed by the system page by page, so tables that are never used cost the host nothing.
        let tables = part(padded * blocks * INT);
        let tile_room = padded;
        Parts {
            step,
            batches,
            ids,
            positions,
            lengths,
            sequences,
            rows,
            sources,
            adapters,
            axes,
            ends,
            taps,
            shares,
            tiles,
            tile_room,
            tables,
            end,
            stride: blocks,
        }
    }
}

impl Inputs {
    /// On a device.
    pub fn new(device: &mut dyn Device, mut room: Room) -> Result<Inputs, DeviceError> {
        room.tables.resize(room.tables.len().max(1), TableRoom::default());
        room.tables.iter_mut().for_each(|table| table.blocks = table.blocks.max(1));
        let Room { tokens, rows, tables, given } = room;
        let parts = Parts::new(tokens, rows, &tables, given.as_ref());
        let buffer = |given: Given| {
            let bytes = given.dtype.bytes(given.rows * given.stride);
            Ok::<_, DeviceError>((given, device.allocate(bytes)?))
        };
        let given = given.map(buffer).transpose()?;
        let (block, device) = match device.allocate(parts.end)? {
            DeviceBuffer::Host(block) => (block, None),
            memory => (device.stage(parts.end)?, Some(memory)),
        };
        let mut inputs = Inputs { block, device, parts, given, narrowed: vec![], tables, used: Counts::default() };
        inputs.begin(0);
        Ok(inputs)
    }

    /// Where kernels find the inputs, the same for the life of this value.
    pub fn addresses(&self) -> InputAddresses {
        let block = self.device.as_ref().map_or(self.block.address(), DeviceBuffer::address);
        let at = |offset| block.wrapping_add(offset);
        let Parts { step, batches, ids, positions, lengths, rows, sources, axes, ends, taps, shares, adapters, .. } =
            self.parts;
        let [times, heights, widths] = axes.map(at);
        InputAddresses {
            times,
            heights,
            widths,
            ends: at(ends),
            taps: at(taps),
            shares: at(shares),
            given: self.given.as_ref().map_or(std::ptr::null_mut(), |(_, rows)| rows.address()),
            block,
            step: at(step),
            ids: at(ids),
            positions: at(positions),
            lengths: at(lengths),
            rows: at(rows),
            sources: at(sources),
            adapters: at(adapters),
            batches: at(batches),
        }
    }

    /// Whether kernels read the inputs in the memory in which they are filled.
    pub fn in_place(&self) -> bool {
        self.device.is_none()
    }

    /// Most tiles in a step.
    pub fn tile_room(&self) -> usize {
        self.parts.tile_room
    }

    /// The distance of a table's pages.
    pub fn block_stride(&self, table: usize) -> usize {
        self.tables[table].block_stride
    }

    /// Takes other pages, for the steps that begin from now on.
    pub fn set_block_stride(&mut self, table: usize, bytes: usize) {
        self.tables[table].block_stride = bytes;
    }

    /// Begins a step: nothing is in it.
    pub fn clear(&mut self) {
        let Counts { tokens, rows, tiles, .. } = std::mem::take(&mut self.used);
        let Parts { ids, positions, lengths, sequences, sources, adapters, .. } = self.parts;
        for part in [ids, positions, lengths, sequences, sources, adapters] {
            self.ints(part, 0, tokens).fill(0);
        }
        self.ints(self.parts.rows, 0, rows).fill(0);
        self.ints(self.parts.tiles, 0, 2 * tiles).fill(0);
        if let Some((Given { taps, .. }, _)) = self.given {
            let Parts { axes: [times, heights, widths], ends, .. } = self.parts;
            [times, heights, widths, ends].into_iter().for_each(|part| self.ints(part, 0, tokens).fill(0));
            let Taps { count, stride } = taps.unwrap_or(Taps { count: 0, stride: 0 });
            self.ints(self.parts.taps, 0, tokens * count).fill(0);
            self.ints(self.parts.shares, 0, tokens * stride).fill(0);
        }
    }

    /// Takes the step of other inputs, which have the same room.
    pub fn take_from(&mut self, other: &Inputs) {
        let Parts { ids, tables, stride, .. } = self.parts;
        let end = tables + self.used.sequences.max(other.used.sequences) * stride * INT;
        self.block.as_mut_slice()[ids..end].copy_from_slice(&other.block.as_slice()[ids..end]);
        self.used = other.used;
    }

    /// Adds consecutive tokens of one sequence, the first one at a position. `length` is the
    /// sequence's after the whole step, which may continue in another plan. The sequence has its
    /// blocks for that in each table.
    pub fn push<'a>(
        &mut self,
        tokens: &[u32],
        position: usize,
        length: usize,
        tables: impl IntoIterator<Item = &'a [i32]>,
    ) {
        let Counts { tokens: first, sequences: sequence, .. } = self.used;
        let (count, end) = (tokens.len(), first + tokens.len());
        let Parts { ids, positions, lengths, sequences, adapters, .. } = self.parts;
        self.ints(adapters, first, count).fill(-1);
        self.ints(ids, first, count).iter_mut().zip(tokens).for_each(|(id, &token)| *id = token as i32);
        let numbers = self.ints(positions, first, count).iter_mut().zip(position..);
        numbers.for_each(|(entry, position)| *entry = position as i32);
        self.ints(lengths, first, count).fill(length as i32);
        self.ints(sequences, first, count).fill(sequence as i32);
        tables.into_iter().enumerate().for_each(|(number, table)| self.set_table(sequence, number, table));
        for start in (first..end).step_by(TILE_TOKENS) {
            let tile = [start as i32, (end - start).min(TILE_TOKENS) as i32];
            self.ints(self.parts.tiles, 2 * self.used.tiles, 2).copy_from_slice(&tile);
            self.used.tiles += 1;
        }
        self.used.tokens = end;
        self.used.sequences += 1;
    }

    /// Says which adapter the last `count` tokens have.
    pub fn adapt(&mut self, count: usize, slot: usize) {
        let first = self.used.tokens - count;
        self.ints(self.parts.adapters, first, count).fill(slot as i32);
    }

    /// Where tokens may be of images: what the last ones have.
    pub fn see(&mut self, tokens: impl ExactSizeIterator<Item = Look>) {
        let first = self.used.tokens - tokens.len();
        let Parts { axes, ends, sources, .. } = self.parts;
        for (token, Look { positions, row, end }) in (first..).zip(tokens) {
            for (part, position) in axes.into_iter().zip(positions) {
                self.ints(part, token, 1)[0] = position;
            }
            self.ints(sources, token, 1)[0] = row.map_or(-1, |row| row as i32);
            self.ints(ends, token, 1)[0] = end as i32;
        }
    }

    /// The places of the last tokens, which are patches.
    pub fn lay_out(&mut self, patches: &[Patch]) {
        let first = self.used.tokens - patches.len();
        let taps = self.given.as_ref().and_then(|(given, _)| given.taps);
        let Taps { count, stride } = taps.unwrap_or(Taps { count: 0, stride: 0 });
        let [_, heights, widths] = self.parts.axes;
        for (token, patch) in (first..).zip(patches) {
            self.ints(heights, token, 1)[0] = patch.row as i32;
            self.ints(widths, token, 1)[0] = patch.column as i32;
            let (of, taps) = (self.parts.taps, patch.taps.iter().take(count));
            self.ints(of, token * count, taps.len()).iter_mut().zip(taps).for_each(|(entry, tap)| *entry = *tap);
            let (of, shares) = (self.parts.shares, patch.shares.iter().take(count));
            let entries = self.ints(of, token * stride, shares.len()).iter_mut();
            entries.zip(shares).for_each(|(entry, share)| *entry = share.to_bits() as i32);
        }
    }

    /// Gives the first rows, of numbers side by side.
    pub fn give(&mut self, numbers: &[f32]) -> Result<(), DeviceError> {
        let Some((Given { dtype, width, stride, .. }, buffer)) = &mut self.given else { return Ok(()) };
        // Fresh memory of some megabytes costs more than what is done with it.
        self.narrowed.clear();
        self.narrowed.resize(dtype.bytes(numbers.len() / *width * *stride), 0);
        for (row, to) in numbers.chunks(*width).zip(self.narrowed.chunks_mut(dtype.bytes(*stride))) {
            narrow(row, *dtype, to);
        }
        buffer.upload(0, &self.narrowed)
    }

    /// Gives an input as it lies in memory, in place of what the last tokens have: rows that are
    /// wanted, or what they are given beside their numbers.
    pub fn fill(&mut self, which: Input, bytes: &[u8]) -> Result<(), DeviceError> {
        let [times, heights, widths] = self.parts.axes;
        let part = match which {
            Input::Given => {
                let Some((_, buffer)) = &mut self.given else { return Ok(()) };
                let room = bytes.len().min(buffer.len());
                return buffer.upload(0, &bytes[..room]);
            }
            Input::Rows => self.parts.rows,
            Input::Sources => self.parts.sources,
            Input::Times => times,
            Input::Heights => heights,
            Input::Widths => widths,
            Input::Ends => self.parts.ends,
            Input::Taps => self.parts.taps,
            Input::Shares => self.parts.shares,
            Input::Ids | Input::Positions | Input::Lengths | Input::Adapters => return Ok(()),
        };
        let room = bytes.len().min(self.parts.tables - part);
        self.block.as_mut_slice()[part..][..room].copy_from_slice(&bytes[..room]);
        Ok(())
    }

    /// Wants rows that begin at each of the last `count` tokens that is a multiple of so many.
    pub fn want_groups(&mut self, count: usize, of: usize) {
        let first = self.used.tokens - count;
        let groups = count / of;
        let entries = self.ints(self.parts.rows, self.used.rows, groups).iter_mut();
        entries.enumerate().for_each(|(group, entry)| *entry = (first + group * of) as i32);
        self.used.rows += groups;
    }

    /// Says which rows the last tokens take, in a step of a draft.
    pub fn take_rows(&mut self, rows: &[usize]) {
        let first = self.used.tokens - rows.len();
        let entries = self.ints(self.parts.sources, first, rows.len()).iter_mut().zip(rows);
        entries.for_each(|(entry, &row)| *entry = row as i32);
    }

    /// The rows that the first tokens take.
    pub fn sources(&self, tokens: usize) -> &[i32] {
        let bytes = &self.block.as_slice()[self.parts.sources..][..tokens * INT];
        // SAFETY: in bounds as just checked, aligned, as parts are, and every pattern of bits is an
        // `i32`.
        unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), tokens) }
    }

    /// Assigns consecutive rows to tokens, in all following steps of a draft until the next call. A
    /// step with fewer tokens leaves the entries as they are.
    pub fn take_rows_from(&mut self, row: usize, tokens: usize) {
        let entries = self.ints(self.parts.sources, 0, tokens).iter_mut().zip(row..);
        entries.for_each(|(entry, row)| *entry = row as i32);
    }

    fn set_table(&mut self, sequence: usize, number: usize, table: &[i32]) {
        let (first, room) = (sequence * self.parts.stride + self.before(number), self.tables[number].blocks);
        let (blocks, unused) = self.ints(self.parts.tables, first, room).split_at_mut(table.len());
        blocks.copy_from_slice(table);
        // Entries of an earlier step are valid blocks as well. One more zero keeps a reader one
        // block ahead sound.
        if let Some(next) = unused.first_mut() {
            *next = 0;
        }
    }

    /// Blocks in a sequence's tables before this one.
    fn before(&self, number: usize) -> usize {
        self.tables[..number].iter().map(|table| table.blocks).sum()
    }

    /// Wants logits for the last `count` tokens that were pushed.
    pub fn want(&mut self, count: usize) {
        let last = self.used.tokens - count..self.used.tokens;
        let rows = self.ints(self.parts.rows, self.used.rows, count).iter_mut().zip(last);
        rows.for_each(|(row, token)| *row = token as i32);
        self.used.rows += count;
    }

    /// Wants logits for the first `count` rows, whatever they are.
    pub fn want_first(&mut self, count: usize) {
        self.ints(self.parts.rows, 0, count).iter_mut().zip(0..).for_each(|(row, index)| *row = index);
        self.used.rows = count;
    }

    /// The first tokens, which somebody else has put there. The next step clears them.
    pub fn take_ids(&mut self, count: usize) -> &[i32] {
        self.used.tokens = self.used.tokens.max(count);
        self.ints(self.parts.ids, 0, count)
    }

    /// Copies what was pushed to the device, unless kernels read the inputs in place.
    pub fn upload(&mut self) -> Result<(), DeviceError> {
        let end = self.step().bytes.len();
        match &mut self.device {
            Some(memory) => memory.upload(0, &self.block.as_slice()[..end]),
            None => Ok(()),
        }
    }

    /// The parameters with which the kernel that makes inputs makes these, of nothing yet, with a
    /// table.
    pub fn prepare(&self, table: usize) -> Prepare {
        let addresses = self.addresses();
        let (InputAddresses { step, ids, lengths, .. }, batch) = (addresses, addresses.batch(table));
        Prepare {
            ids: std::ptr::null(),
            positions: std::ptr::null(),
            starts: std::ptr::null(),
            lengths: std::ptr::null(),
            tables: std::ptr::null(),
            step: step.cast(),
            batch: batch.cast(),
            to_ids: ids.cast(),
            to_lengths: lengths.cast(),
            pages: std::ptr::null(),
            table_stride: 0,
            sequences: 0,
            tokens: 0,
            values: 0,
            value_bytes: 0,
            layers: 0,
        }
    }

    /// Counts of what was pushed since the step began.
    pub fn counts(&self) -> Counts {
        self.used
    }

    /// The step, made of what was pushed.
    pub fn step(&mut self) -> StepInputs<'_> {
        let Counts { tokens, rows, tiles, sequences } = self.used;
        self.begin(tiles);
        let step = Step { tokens: tokens as i64, rows: rows as i64 };
        self.write(self.parts.step, step);
        let Parts { tables, stride, .. } = self.parts;
        let bytes = &self.block.as_slice()[..tables + sequences * stride * INT];
        StepInputs { size: StepSize { step, tiles }, bytes }
    }

    /// The batches of a step with `tiles` tiles. Their pointers are those that kernels follow.
    fn begin(&mut self, tiles: usize) {
        let block = self.addresses().block;
        let at = |offset| block.wrapping_add(offset).cast_const().cast();
        let Parts { batches, positions, sequences, tables, stride, tiles: tile_list, .. } = self.parts;
        for number in 0..self.tables.len() {
            let batch = Batch {
                positions: at(positions),
                sequences: at(sequences),
                tables: at(tables + self.before(number) * INT),
                table_stride: stride as i64,
                tiles: at(tile_list),
                tile_count: tiles as i64,
                block_stride: self.tables[number].block_stride as i64,
            };
            self.write(batches + number * size_of::<Batch>(), batch);
        }
    }

    fn write<T: Copy>(&mut self, part: usize, value: T) {
        let bytes = &mut self.block.as_mut_slice()[part..][..size_of::<T>()];
        // SAFETY: in bounds as just checked, and aligned, as parts and the batches in theirs are.
        unsafe { bytes.as_mut_ptr().cast::<T>().write(value) };
    }

    /// `count` entries of a part.
    fn ints(&mut self, part: usize, first: usize, count: usize) -> &mut [i32] {
        let bytes = &mut self.block.as_mut_slice()[part + first * INT..][..count * INT];
        // SAFETY: in bounds as just checked, aligned, as parts are, and every pattern of bits is an
        // `i32`.
        unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), count) }
    }
}

/// Numbers in a type of floats.
fn narrow(numbers: &[f32], dtype: DType, to: &mut [u8]) {
    fn each<const BYTES: usize>(numbers: &[f32], to: &mut [u8], bytes: impl Fn(f32) -> [u8; BYTES]) {
        let (words, _) = to.as_chunks_mut::<BYTES>();
        words.iter_mut().zip(numbers).for_each(|(to, &v)| *to = bytes(v));
    }
    match dtype {
        DType::BF16 => each(numbers, to, |v| half::bf16::from_f32(v).to_le_bytes()),
        DType::F16 => each(numbers, to, |v| half::f16::from_f32(v).to_le_bytes()),
        _ => each(numbers, to, f32::to_le_bytes),
    }
}

#[cfg(test)]
mod tests;
