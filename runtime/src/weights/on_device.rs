//! Weights made on a device that packs, from tensors that arrive one by one. Tensors in its memory
//! are packed in place, in the order of a stream, and no call waits. Tensors of the host are packed
//! by the host, unless a weight takes both.
//!
//! The kernel that packs copies, adds a constant and rounds, from wherever numbers lie at even
//! distances. A weight that is made in other ways, of words, or of which a tensor only tells
//! something, is the host's: its tensors are brought there, which waits for the stream.
//!
//! A head that the embedding stands for is compared with the weight by the kernel that packs, which
//! leaves a mark where they differ. The mark is looked at when the load ends, if there was a head.
use super::loading::{self, AtHand, Given, Kept, Loading, Numbers};
use super::pack::{Piece, power};
use super::parts::Name;
use super::told::check_numbers;
use super::{Rank, Sink, resolve};
use crate::checkpoint::{CheckpointError, Float, OnDevice, Tensor};
use crate::device::{Device, DeviceBuffer, DeviceError, Stream};
use crate::error::Error;
use crate::memory::Buffer;
use atomc_artifact::abi::{Number, PACK_UNIT, Pack};
use atomc_artifact::manifest::{DType, Layout, Weight, WeightExpr};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::ptr::null_mut;

/// The weights that are made, a buffer for each, and the device that makes them on a stream.
pub struct DeviceSink<'a> {
    /// What is to be made: those of the target.
    pub weights: &'a [Weight],
    /// The rank with the shards that are loaded.
    pub rank: Rank,
    /// In the order of the weights, on this device.
    pub buffers: &'a mut [DeviceBuffer],
    /// The device that packs; [`Device::packs`] says whether it can.
    pub device: &'a mut dyn Device,
    /// What is packed is there when this has come so far.
    pub stream: Stream,
}

/// What a load has left to do on a device.
#[derive(Debug, Default)]
pub(super) struct OnStream {
    /// The stream that was given work last.
    stream: Option<Stream>,
    twins: Twins,
}

/// Embedding and head of a model that has the one in the place of the other. Either is compared
/// with the other when that comes.
#[derive(Debug, Default)]
struct Twins {
    /// Whether the weight is of an embedding that no head was compared with yet.
    embedding: bool,
    /// A head that no embedding was compared with yet.
    head: Option<Kept>,
    /// Not zero once a head was found to be another matrix.
    differs: Option<DeviceBuffer>,
}

impl Loading {
    /// Takes a tensor like [`Loading::feed`], for a device that packs. Stray heads come to light at
    /// the end of the load.
    ///
    /// # Safety
    /// Numbers on a device are in this one's memory, of the tensor's shape and type, and stay until
    /// the stream has come so far. The stream is one of the device's and stays until the load is
    /// dropped.
    pub unsafe fn feed_on(&mut self, name: &str, tensor: Given, mut sink: DeviceSink) -> Result<(), Error> {
        if !self.wants(name, tensor.shape)? {
            return Ok(());
        }
        let name = &*self.names.name(name).into_owned();
        tensor.check_size(name)?;
        self.enter(&mut sink)?;
        let is_embedding = self.names.is_tied_embedding(name);
        if self.names.is_tied_head(name) {
            return self.take_head(tensor, &mut sink);
        }
        if !self.tensors.contains_key(name) {
            return Ok(());
        }
        self.check_types(name, tensor.tensor(), sink.weights)?;
        let any =
            |is: &dyn Fn(&Weight) -> bool| self.tensors[name].weights.iter().any(|&index| is(&sink.weights[index]));
        let widens = tensor.float == Float::Code(DType::E8M0) && any(&|weight| weight.dtype == DType::F32);
        let of_host = any(&|weight| !sink.packs(weight));
        let tensor = if of_host || widens { sink.brought(name, tensor)? } else { tensor };
        let tensor = if widens { tensor.powers() } else { tensor };
        if let Numbers::Host(bytes) = &tensor.numbers {
            check_numbers(name, tensor.float, bytes)?;
        }
        self.note_form(name)?;
        let all = self.place(name, tensor.tensor(), |index, source, stage| sink.make(index, source, stage))?;
        if !all {
            let kept = sink.keep(tensor)?;
            self.kept.insert(name.to_owned(), kept);
        }
        self.drop_kept(name);
        if is_embedding { self.note_embedding(&mut sink) } else { Ok(()) }
    }

    /// Makes work on this stream follow earlier work on another.
    fn enter(&mut self, sink: &mut DeviceSink) -> Result<(), DeviceError> {
        match self.on_device.stream.replace(sink.stream) {
            // SAFETY: an earlier call's stream, which stays.
            Some(other) if other != sink.stream => unsafe { sink.device.wait(other) },
            _ => Ok(()),
        }
    }

    fn take_head(&mut self, head: Given, sink: &mut DeviceSink) -> Result<(), Error> {
        if !std::mem::take(&mut self.on_device.twins.embedding) {
            self.on_device.twins.head = Some(sink.keep(head)?);
            return Ok(());
        }
        self.compare(head.tensor(), sink)
    }

    fn note_embedding(&mut self, sink: &mut DeviceSink) -> Result<(), Error> {
        match self.on_device.twins.head.take() {
            Some(head) => self.compare(head.tensor(), sink),
            None => {
                self.on_device.twins.embedding = true;
                Ok(())
            }
        }
    }

    /// Marks whether a head is another matrix than the weights that were made of the embedding
    /// alone.
    fn compare(&mut self, head: Tensor, sink: &mut DeviceSink) -> Result<(), Error> {
        let differs = match &mut self.on_device.twins.differs {
            Some(differs) => differs,
            none => none.insert(sink.mark()?),
        };
        let differs = differs.address().cast();
        let none = BTreeMap::new();
        let Some((embedding, wanted)) = self.embedding() else { return Ok(()) };
        let source = AtHand::new(&none, Some((embedding, head)));
        let alone = |&&index: &&usize| self.weights[index].is_of(embedding);
        let mut weights = wanted.weights.iter().filter(alone);
        weights.try_for_each(|&index| sink.compare(index, &source, differs))
    }

    /// Whether every head was its embedding, as far as both have come. Waits for the stream, if
    /// there was a head.
    pub fn check_heads(&mut self) -> Result<(), Error> {
        let mut differs = [0; size_of::<u32>()];
        if let Some(mark) = self.on_device.twins.differs.take() {
            mark.download(0, &mut differs)?;
        }
        if differs == [0; size_of::<u32>()] { Ok(()) } else { Err(CheckpointError::Untied.into()) }
    }
}

impl<'a> Given<'a> {
    /// Powers of two that the host has as bytes, as floats.
    fn powers(self) -> Given<'a> {
        let Numbers::Host(bytes) = &self.numbers else { return self };
        let floats: Vec<u8> = bytes.iter().flat_map(|&exponent| power(exponent).to_le_bytes()).collect();
        Given { float: Float::F32, numbers: floats.into(), ..self }
    }

    fn tensor(&self) -> Tensor<'_> {
        let float = self.float;
        match &self.numbers {
            Numbers::Host(bytes) => Tensor::Bytes { float, bytes },
            &Numbers::Device(numbers) => Tensor::Device { float, numbers },
        }
    }
}

impl DeviceSink<'_> {
    /// Whether the kernel makes a weight, which it does of numbers as they lie in tensors, in the
    /// layouts that it knows.
    fn packs(&self, weight: &Weight) -> bool {
        let fits = number(weight.dtype).is_some_and(|number| match weight.layout {
            Layout::Rows { stride } => {
                weight.matrices()[..2] == [1, 1] || (stride * number.size()).is_multiple_of(PACK_UNIT)
            }
            Layout::Panels { group, .. } => group * number.size() == PACK_UNIT,
        });
        let packs = |expr: &WeightExpr| expr.step().is_none_or(|step| step.is_packed_by_devices());
        fits && weight.expr.fold(&mut |expr, of: Vec<bool>| packs(expr) && of.into_iter().all(|packs| packs))
    }

    /// A tensor in the memory of the host, as it is. Waits for the stream.
    fn brought<'g>(&mut self, name: &str, tensor: Given<'g>) -> Result<Given<'g>, Error> {
        let Numbers::Device(numbers) = tensor.numbers else { return Ok(tensor) };
        // Numbers of eight bytes are copied as two of four.
        let (copy, parts) = match tensor.float {
            Float::F64 | Float::I64 => (Float::F32, 2),
            float => (float, 1),
        };
        let cols = tensor.shape.last().copied().unwrap_or(1);
        if parts > 1 && cols > 1 && numbers.col_stride != 1 {
            return Err(CheckpointError::Place { name: name.to_owned() }.into());
        }
        let (rows, cols) = (tensor.shape.iter().rev().skip(1).product(), cols * parts);
        let from = OnDevice { row_stride: numbers.row_stride * parts as isize, ..numbers };
        let stride = cols.next_multiple_of(PACK_UNIT / copy.size());
        // SAFETY: the caller's stream.
        let memory = unsafe { self.device.scratch(rows * stride * copy.size(), self.stream) }?;
        let (layout, to) = (Layout::Rows { stride }, memory.address());
        let data = Tensor::Device { float: copy, numbers: from };
        let piece = whole(data, rows, cols);
        self.pack(&piece, &Place { number: copy.into(), rows, cols, layout, to, differs: null_mut() })?;
        // SAFETY: the caller's stream.
        unsafe { self.device.wait(self.stream) }?;
        let mut bytes = vec![0; rows * stride * copy.size()];
        memory.download(0, &mut bytes)?;
        let row = cols * copy.size();
        let bytes: Vec<u8> =
            bytes.chunks_exact(stride * copy.size()).flat_map(|padded| &padded[..row]).copied().collect();
        Ok(Given { numbers: bytes.into(), ..tensor })
    }

    /// Makes a weight: on the host if all that it is made of is there.
    fn make(&mut self, index: usize, source: &AtHand, stage: &mut Option<Buffer>) -> Result<(), Error> {
        let pieces = resolve(&self.weights[index..=index], self.rank, source)?;
        if pieces.iter().flatten().any(|piece| matches!(piece.data, Tensor::Device { .. })) {
            return self.put(index, &pieces, null_mut());
        }
        // The host's copies go by a stream of their own.
        // SAFETY: the caller's stream.
        unsafe { self.device.wait(self.stream) }?;
        let DeviceSink { weights, rank, buffers, .. } = self;
        let mut sink = Sink { weights, rank: *rank, buffers, pool: self.device.pool() };
        loading::put(index, &pieces, &mut sink, stage)
    }

    /// Compares a weight with what it would be made of.
    fn compare(&mut self, index: usize, source: &AtHand, differs: *mut u32) -> Result<(), Error> {
        let pieces = resolve(&self.weights[index..=index], self.rank, source)?;
        self.put(index, &pieces, differs)
    }

    /// Packs a weight on the device, or compares it.
    fn put(&mut self, index: usize, pieces: &[Vec<Piece>], differs: *mut u32) -> Result<(), Error> {
        let weight = &self.weights[index];
        let ([_, rows, cols], to) = (weight.matrices(), self.buffers[index].address());
        let number = number(weight.dtype).unwrap_or(Number::F32);
        let place = Place { number, rows, cols, layout: weight.layout, to, differs };
        Ok(pieces.iter().flatten().try_for_each(|piece| self.pack(piece, &place))?)
    }

    fn pack(&mut self, piece: &Piece, place: &Place) -> Result<(), DeviceError> {
        let (float, numbers, _memory) = self.numbers(piece)?;
        let mut packs = place.packs(piece, float, numbers).into_iter();
        // SAFETY: the piece lies in its tensor, and its place in the buffer, as the artifact was
        // checked; the rest is passed on to the caller.
        packs.try_for_each(|pack| unsafe { self.device.pack(&pack, self.stream) })
    }

    /// Where on the device a piece begins, and the memory that keeps it there if it has to be
    /// brought.
    fn numbers(&mut self, piece: &Piece) -> Result<(Float, OnDevice, Option<DeviceBuffer>), DeviceError> {
        let (first, down, beside) = piece.places();
        let width = piece.width;
        let (float, bytes): (_, Cow<[u8]>) = match piece.data {
            Tensor::Device { float, numbers } => {
                // The distance to the number `places` further in the tensor, which may have gaps
                // between its rows.
                let apart = |places: usize| {
                    let [rows, cols] = [places / width, places % width].map(|places| places as isize);
                    rows * numbers.row_stride + cols * numbers.col_stride
                };
                let address = numbers.address.wrapping_offset(apart(first) * float.size() as isize);
                let numbers = OnDevice { address, row_stride: apart(down), col_stride: apart(beside) };
                return Ok((float, numbers, None));
            }
            Tensor::Bytes { float, bytes } => (float, bytes.into()),
            Tensor::Values(values) => (Float::F32, values.iter().flat_map(|value| value.to_le_bytes()).collect()),
            Tensor::Stored { .. } | Tensor::Random(_) => unreachable!("tensors are given as numbers"),
        };
        let last = first + (piece.rows.len() - 1) * down + (piece.cols.len() - 1) * beside;
        let bytes = &bytes[first * float.size()..(last + 1) * float.size()];
        // SAFETY: the caller's stream.
        let mut memory = unsafe { self.device.scratch(bytes.len(), self.stream) }?;
        memory.upload(0, bytes)?;
        let address = memory.address().cast_const();
        Ok((float, OnDevice { address, row_stride: down as isize, col_stride: beside as isize }, Some(memory)))
    }

    /// A copy of a tensor, where it is. Numbers of 64 bits become ones of 32, as they do in any
    /// weight.
    fn keep(&mut self, tensor: Given) -> Result<Kept, DeviceError> {
        if let Numbers::Host(bytes) = tensor.numbers {
            return Ok(Kept::Host { float: tensor.float, bytes: bytes.into_owned() });
        }
        let cols = tensor.shape.last().copied().unwrap_or(1);
        let rows = tensor.shape.iter().rev().skip(1).product();
        let float = if tensor.float == Float::F64 { Float::F32 } else { tensor.float };
        let stride = cols.next_multiple_of(PACK_UNIT / float.size());
        // SAFETY: the caller's stream.
        let memory = unsafe { self.device.scratch(rows * stride * float.size(), self.stream) }?;
        let (layout, to) = (Layout::Rows { stride }, memory.address());
        let piece = whole(tensor.tensor(), rows, cols);
        self.pack(&piece, &Place { number: float.into(), rows, cols, layout, to, differs: null_mut() })?;
        let numbers = OnDevice { address: to, row_stride: stride as isize, col_stride: 1 };
        Ok(Kept::Device { float, numbers, memory })
    }

    /// A number that is zero.
    fn mark(&mut self) -> Result<DeviceBuffer, DeviceError> {
        let zero = 0u32.to_le_bytes();
        // SAFETY: the caller's stream.
        let mut mark = unsafe { self.device.scratch(zero.len(), self.stream) }?;
        mark.upload(0, &zero)?;
        Ok(mark)
    }
}

/// All of a tensor.
fn whole(data: Tensor<'_>, rows: usize, cols: usize) -> Piece<'_> {
    let (name, form, width, stride) = (Name::Of(""), None, cols, cols);
    Piece {
        name,
        data,
        offset: 0.0,
        form,
        made: None,
        scales: None,
        width,
        stride,
        rows: 0..rows,
        cols: 0..cols,
        at: (0, 0),
    }
}

/// Where numbers go on a device: one matrix after the other, each with its padding.
struct Place {
    number: Number,
    /// Of a matrix.
    rows: usize,
    cols: usize,
    layout: Layout,
    to: *mut u8,
    /// Null, or where to mark that they are there already or not.
    differs: *mut u32,
}

impl Place {
    /// What packs a piece that begins at some numbers: of each matrix its rows.
    fn packs(&self, piece: &Piece, float: Float, from: OnDevice) -> Vec<Pack> {
        let (first, end) = (piece.at.0, piece.at.0 + piece.rows.len());
        let pack = |matrix: usize| {
            let rows = first.max(matrix * self.rows)..end.min((matrix + 1) * self.rows);
            let skipped = (rows.start - first) as isize * from.row_stride * float.size() as isize;
            let from = OnDevice { address: from.address.wrapping_offset(skipped), ..from };
            self.pack(matrix, rows, piece, (float, from))
        };
        (first / self.rows..end.div_ceil(self.rows)).map(pack).collect()
    }

    /// The same for one matrix. The last rows and columns include the padding after them.
    fn pack(&self, matrix: usize, rows: Range<usize>, piece: &Piece, (float, from): (Float, OnDevice)) -> Pack {
        let (width, padded_rows, padded_cols) = match self.layout {
            Layout::Rows { stride } => (1, self.rows, stride),
            Layout::Panels { width, rows, cols, .. } => (width, rows, cols),
        };
        // Nothing is known of padding that a load of the host has left out.
        let reach = |first: usize, len: usize, all: usize, padded: usize| {
            let brings = first + len == all && self.differs.is_null();
            (if brings { padded - first } else { len }) as i64
        };
        let row_bytes = padded_cols * self.number.size();
        let (row, col, cols) = (rows.start - matrix * self.rows, piece.at.1, piece.cols.len());
        Pack {
            from: from.address,
            to: self.to.wrapping_add(matrix * padded_rows * row_bytes),
            differs: self.differs,
            conversion: Pack::conversion(float.into(), self.number).expect("the types were checked"),
            row_stride: from.row_stride as i64,
            col_stride: from.col_stride as i64,
            rows: rows.len() as i64,
            cols: cols as i64,
            padded_rows: reach(row, rows.len(), self.rows, padded_rows),
            padded_cols: reach(col, cols, self.cols, padded_cols),
            row: row as i64,
            col: col as i64,
            width: width as i64,
            panel_bytes: (width * row_bytes) as i64,
            // Of either zero numbers stay what they are.
            offset: if piece.offset == 0.0 { 0 } else { i64::from(piece.offset.to_bits()) },
        }
    }
}

impl From<Float> for Number {
    fn from(float: Float) -> Number {
        match float {
            Float::BF16 => Number::BF16,
            Float::F16 => Number::F16,
            Float::F32 => Number::F32,
            // What is compared with nothing, and packed nowhere.
            Float::F64 | Float::I64 => Number::F64,
            // Codes are copied.
            Float::Code(dtype) if dtype.bits() == 8 => Number::Byte,
            Float::Code(_) => Number::F32,
        }
    }
}

/// What a weight's numbers are, if it may have such.
fn number(dtype: DType) -> Option<Number> {
    match dtype {
        DType::F32 => Some(Number::F32),
        DType::BF16 => Some(Number::BF16),
        DType::F16 => Some(Number::F16),
        code => match code.bits() {
            8 => Some(Number::Byte),
            32 => Some(Number::F32),
            _ => None,
        },
    }
}
