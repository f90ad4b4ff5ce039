//! The kernel that makes weights on a device, in the emulator on every chip: from tensors in device
//! memory it makes, byte for byte, the weights that the host makes.
#![allow(clippy::unwrap_used, reason = "what tests call may unwrap as they do")]
use std::collections::BTreeMap;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use atomc_artifact::abi::Pack;
use atomc_artifact::manifest::{DType, Fact, Layout, Order, PACK, Plan, TensorNames, Tied, Weight, WeightExpr};
use atomc_emulator::{Access, CodeObject, Emulator, Grid, Memory as Ranges, Options};
use atomc_ir::Arch;
use atomc_runtime::checkpoint::{CheckpointError, Float, OnDevice, Source, Tensor};
use atomc_runtime::device::{
    Device, DeviceBuffer, DeviceError, DeviceMemory, Launches, Memory, Part, StepInputs, Stream,
};
use atomc_runtime::memory::Buffer;
use atomc_runtime::weights::{self, DeviceSink, Given, Loading, Numbers, Rank, Sink};
use atomc_runtime::{Error, Pool};
use atomc_targets::compile_hosted;

const CODES: [(Float, DType); 4] = [
    (Float::Code(DType::U8), DType::E8M0),
    (Float::Code(DType::I32), DType::I32),
    (Float::Code(DType::I8), DType::U8),
    (Float::Code(DType::E8M0), DType::F32),
];
const FLOATS: [Float; 4] = [Float::BF16, Float::F16, Float::F32, Float::F64];
const EMBEDDING: &str = "model.embed_tokens.weight";
const HEAD: &str = "lm_head.weight";

/// Bytes that kernels may read past a buffer.
const SLACK: u64 = 256;

/// A chip that packs, and does nothing else.
struct Chip {
    code: CodeObject,
    threads: usize,
    ranges: Arc<Mutex<Ranges>>,
    pool: Pool,
}

#[derive(Debug)]
struct OnChip(Buffer, Arc<Mutex<Ranges>>);

impl DeviceMemory for OnChip {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn address(&self) -> *mut u8 {
        self.0.address()
    }

    fn upload(&mut self, offset: usize, from: &[u8]) -> Result<(), DeviceError> {
        self.0.as_mut_slice()[offset..][..from.len()].copy_from_slice(from);
        Ok(())
    }

    fn download(&self, offset: usize, to: &mut [u8]) -> Result<(), DeviceError> {
        to.copy_from_slice(&self.0.as_slice()[offset..][..to.len()]);
        Ok(())
    }

    fn fill(&mut self, range: Range<usize>, value: u8) -> Result<(), DeviceError> {
        self.0.as_mut_slice()[range].fill(value);
        Ok(())
    }

    fn copy_within(&mut self, range: Range<usize>, to: usize) -> Result<(), DeviceError> {
        self.0.as_mut_slice().copy_within(range, to);
        Ok(())
    }
}

impl Drop for OnChip {
    fn drop(&mut self) {
        self.1.lock().unwrap().unmap(self.0.address() as u64);
    }
}

impl Chip {
    fn new(arch: &Arch) -> Chip {
        let (object, hosted) = compile_hosted(&[], 1, arch).unwrap_or_else(|e| panic!("{e}"));
        Chip {
            code: CodeObject::load(&object.code).unwrap_or_else(|e| panic!("{}: {e}", arch.name)),
            threads: hosted.expect("GPUs have it").pack.threads,
            ranges: Arc::default(),
            pool: Pool::new(1).unwrap(),
        }
    }

    /// Memory of the chip that is not zero.
    fn dirty(&mut self, bytes: usize) -> DeviceBuffer {
        let mut memory = self.allocate(bytes).unwrap();
        memory.fill(0..bytes, 0xa5).unwrap();
        memory
    }
}

impl Device for Chip {
    fn name(&self) -> &str {
        "chip"
    }

    fn pool(&mut self) -> &mut Pool {
        &mut self.pool
    }

    fn allocate(&mut self, bytes: usize) -> Result<DeviceBuffer, DeviceError> {
        let buffer = Buffer::new(bytes).unwrap();
        let range = (buffer.address() as u64, bytes as u64);
        // SAFETY: the range is unmapped before the buffer is freed, which has that slack.
        unsafe { self.ranges.lock().unwrap().map_with_slack(range.0, range.1, SLACK, Access::ReadWrite) };
        Ok(DeviceBuffer::Device(Box::new(OnChip(buffer, self.ranges.clone()))))
    }

    fn packs(&self) -> bool {
        true
    }

    unsafe fn pack(&mut self, pack: &Pack, _: Stream) -> Result<(), DeviceError> {
        let parameters: Vec<u8> = pack.parameters().into_iter().flat_map(u64::to_le_bytes).collect();
        let grid = Grid::linear(pack.groups() as u32, self.threads as u32);
        let ranges = self.ranges.lock().unwrap();
        let done = Emulator.launch(&self.code, PACK, grid, &parameters, &ranges, &Options::default());
        done.unwrap_or_else(|e| panic!("{pack:?}: {e}"));
        Ok(())
    }

    unsafe fn adopt(&mut self, _: NonNull<u8>, _: usize) -> DeviceBuffer {
        unreachable!("it only packs")
    }

    unsafe fn bind(&mut self, _: &[Plan], _: &Memory) -> Result<(), DeviceError> {
        unreachable!("it only packs")
    }

    unsafe fn run(&mut self, _: usize, _: StepInputs<'_>, _: Option<&mut Launches>) -> Result<(), DeviceError> {
        unreachable!("it only packs")
    }

    unsafe fn launch(&mut self, _: Part) -> Result<(), DeviceError> {
        unreachable!("it only packs")
    }
}

/// Numbers that look random.
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 ^ self.0 >> 33
    }

    fn below(&mut self, n: usize) -> usize {
        (self.bits() >> 32) as usize % n
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    /// A number of any kind: whatever bits spell, and often what is near the middle between two
    /// shorter ones, or not a number.
    fn number(&mut self, float: Float) -> Vec<u8> {
        let bits = self.bits();
        let value = f32::from_bits(self.of(&[bits as u32, bits as u32 & 0xffff_8000, 0x3f80_0000 | bits as u32 >> 9]));
        let value =
            self.of(&[value, value, value, value * 1e-30, 65504.0 + value, 1e-7 * value, f32::NAN, f32::INFINITY]);
        match float {
            Float::F32 => value.to_bits().to_le_bytes().to_vec(),
            Float::F64 if bits.is_multiple_of(3) => bits.to_le_bytes().to_vec(),
            Float::F64 => f64::from(value).to_bits().to_le_bytes().to_vec(),
            Float::BF16 | Float::F16 => (bits as u16).to_le_bytes().to_vec(),
            Float::Code(_) | Float::I64 => bits.to_le_bytes()[..float.size()].to_vec(),
        }
    }

    fn lie(&mut self) -> Lie {
        match self.below(6) {
            0 => Lie::Turned,
            1 => Lie::Host,
            2 | 3 => Lie::Rows { skip: 0, gap: 0 },
            _ => Lie::Rows { skip: self.below(20), gap: self.below(20) },
        }
    }

    fn layout(&mut self, dtype: DType, [rows, cols]: [usize; 2]) -> (Layout, usize) {
        let (rows_up, cols_up) = (rows.next_multiple_of(32), cols.next_multiple_of(32));
        match self.below(3) {
            0 => (Layout::Rows { stride: cols_up }, rows * cols_up),
            _ => {
                let group = 16 / dtype.size();
                (Layout::Panels { width: 16, group, rows: rows_up, cols: cols_up }, rows_up * cols_up)
            }
        }
    }

    /// An expression of a shape, with the tensors that it takes.
    fn expr(&mut self, shape: [usize; 2], ranks: usize, depth: usize, tensors: &mut Tensors) -> WeightExpr {
        let axis = self.below(2);
        let sized = |len: usize| if axis == 0 { [len, shape[1]] } else { [shape[0], len] };
        match if depth == 0 { 0 } else { self.below(8) } {
            1 | 2 if shape[axis] > 1 => {
                let first = 1 + self.below(shape[axis] - 1);
                let parts = [first, shape[axis] - first].map(|len| self.expr(sized(len), ranks, depth - 1, tensors));
                WeightExpr::Concat { axis, parts: parts.into() }
            }
            3 => {
                let (start, behind) = (self.below(9), self.below(9));
                let of = Box::new(self.expr(sized(shape[axis] + start + behind), ranks, depth - 1, tensors));
                WeightExpr::Slice { axis, start, len: shape[axis], of }
            }
            4 => {
                let of = Box::new(self.expr(sized(shape[axis] * ranks), ranks, depth - 1, tensors));
                WeightExpr::Shard { axis, parts: ranks, of }
            }
            5 => {
                let (step, behind) = (1 + self.below(3), self.below(9));
                let start = self.below(step);
                let all = start + (shape[axis] - 1) * step + 1 + behind % step;
                WeightExpr::Every { axis, step, start, of: Box::new(self.expr(sized(all), ranks, depth - 1, tensors)) }
            }
            // Codes have no offset.
            7 if tensors.1.is_none() => {
                let by = self.of(&[1.0, -0.375, 1e-3]);
                WeightExpr::Offset { by, of: Box::new(self.expr(shape, ranks, depth - 1, tensors)) }
            }
            6 => WeightExpr::Transpose { of: Box::new(self.expr([shape[1], shape[0]], ranks, depth - 1, tensors)) },
            _ => tensors.made(shape, self),
        }
    }
}

/// Tensors by name: type, shape, and bytes row by row. Those that are made up may all be of one
/// type.
#[derive(Default)]
struct Tensors(BTreeMap<String, (Float, Vec<usize>, Vec<u8>)>, Option<Float>);

impl Tensors {
    fn made(&mut self, shape: [usize; 2], random: &mut Random) -> WeightExpr {
        let (name, float) = (format!("t{}", self.0.len()), self.1.unwrap_or(random.of(&FLOATS)));
        self.add(&name, float, &shape, random);
        WeightExpr::Tensor { name, shape: shape.into() }
    }

    fn add(&mut self, name: &str, float: Float, shape: &[usize], random: &mut Random) {
        let bytes = (0..shape.iter().product()).flat_map(|_| random.number(float)).collect();
        self.0.insert(name.into(), (float, shape.into(), bytes));
    }
}

impl Source for Tensors {
    fn tensor(&self, name: &str, _: &[usize]) -> Result<Tensor<'_>, CheckpointError> {
        let (float, _, bytes) = &self.0[name];
        Ok(Tensor::Bytes { float: *float, bytes })
    }

    fn names(&self) -> Vec<&str> {
        self.0.keys().map(String::as_str).collect()
    }
}

/// How a tensor lies on a device.
#[derive(Clone, Copy, Debug)]
enum Lie {
    /// Row by row, `skip` elements from the start of the memory, with `gap` elements between rows.
    Rows {
        skip: usize,
        gap: usize,
    },
    Turned,
    /// In the memory of the host.
    Host,
}

/// A head that is tied to the embedding.
fn names() -> TensorNames {
    let tied = Some(Tied { embedding: EMBEDDING.into(), head: HEAD.into() });
    TensorNames { tied, ..TensorNames::default() }
}

/// A load of weights on a chip.
struct Load<'a> {
    chip: Chip,
    weights: &'a [Weight],
    rank: Rank,
    buffers: Vec<DeviceBuffer>,
    loading: Loading,
}

impl<'a> Load<'a> {
    fn new(mut chip: Chip, weights: &'a [Weight], rank: Rank) -> Load<'a> {
        let buffers = weights.iter().map(|weight| chip.dirty(weight.bytes)).collect();
        Load { chip, weights, rank, buffers, loading: Loading::new(weights, &names(), rank) }
    }

    fn feed(&mut self, name: &str, tensors: &Tensors, lie: Lie) -> Result<(), Error> {
        let (float, ref shape, ref bytes) = tensors.0[name];
        let (size, cols) = (float.size(), shape[shape.len() - 1]);
        let rows = shape.iter().product::<usize>() / cols;
        let (skip, row_stride, col_stride) = match lie {
            Lie::Rows { skip, gap } => (skip, cols + gap, 1),
            Lie::Turned => (0, 1, rows),
            Lie::Host => return self.give(name, float, shape, bytes.into()),
        };
        let len = skip + (rows - 1) * row_stride + (cols - 1) * col_stride + 1;
        let mut memory = self.chip.dirty(len * size);
        for (i, number) in bytes.chunks(size).enumerate() {
            memory.upload((skip + i / cols * row_stride + i % cols * col_stride) * size, number).unwrap();
        }
        let address = memory.address().wrapping_add(skip * size).cast_const();
        let [row_stride, col_stride] = [row_stride, col_stride].map(|stride| stride as isize);
        let fed = self.give(name, float, shape, Numbers::Device(OnDevice { address, row_stride, col_stride }));
        // The owner may do with it what it likes.
        memory.fill(0..len * size, 0x5a).unwrap();
        fed
    }

    fn give(&mut self, name: &str, float: Float, shape: &[usize], numbers: Numbers) -> Result<(), Error> {
        let Load { chip, weights, rank, buffers, loading } = self;
        let sink = DeviceSink { weights, rank: *rank, buffers, device: chip, stream: Stream(7) };
        // SAFETY: the numbers are there, and a launch is done when it returns.
        unsafe { loading.feed_on(name, Given { float, shape, numbers }, sink) }
    }

    fn bytes(&self, index: usize) -> Vec<u8> {
        let mut bytes = vec![0; self.weights[index].bytes];
        self.buffers[index].download(0, &mut bytes).unwrap();
        bytes
    }
}

fn emulated() -> impl Iterator<Item = &'static Arch> {
    atomc_tests::kernels::tried().filter(|arch| arch.gpu().is_some())
}

/// A weight as the host makes it.
fn host(weight: &Weight, rank: Rank, tensors: &Tensors) -> Vec<u8> {
    let (mut buffers, mut pool) = ([DeviceBuffer::Host(Buffer::new(weight.bytes).unwrap())], Pool::new(1).unwrap());
    let sink = Sink { weights: std::slice::from_ref(weight), rank, buffers: &mut buffers, pool: &mut pool };
    weights::load(sink, &names(), tensors, &|_, _| ()).unwrap();
    buffers[0].host_view().unwrap().to_vec()
}

fn check(arch: &Arch, shape: [usize; 2], random: &mut Random) {
    let ranks = 1 + random.below(3);
    let rank = Rank { number: random.below(ranks), of: ranks };
    let code = (random.below(4) == 0).then(|| random.of(&CODES));
    let mut tensors = Tensors(BTreeMap::new(), code.map(|(float, _)| float));
    let expr = random.expr(shape, ranks, 3, &mut tensors);
    let dtype = code.map_or(random.of(&[DType::F32, DType::BF16, DType::F16]), |(_, dtype)| dtype);
    let (layout, elements) = random.layout(dtype, shape);
    let weight = Weight {
        name: "w".into(),
        dtype,
        shape: shape.into(),
        layout,
        bytes: elements * dtype.size(),
        expr,
        unsigned_zeros: false,
    };
    let mut names: Vec<&String> = tensors.0.keys().collect();
    let mut lies = vec![];
    while !names.is_empty() {
        let name = names.swap_remove(random.below(names.len()));
        lies.push((name, random.lie()));
    }
    let mut load = Load::new(Chip::new(arch), std::slice::from_ref(&weight), rank);
    lies.iter().for_each(|(name, lie)| load.feed(name, &tensors, *lie).unwrap());
    assert_eq!((load.loading.missing().len(), load.loading.kept_bytes()), (0, 0));
    let (made, want) = (load.bytes(0), host(&weight, rank, &tensors));
    let differ = made.iter().zip(&want).position(|(a, b)| a != b);
    assert_eq!(differ, None, "{}: {weight:?} of {lies:?} for {rank:?}", arch.name);
}

#[test]
fn a_device_packs_as_the_host_does() {
    assert!(emulated().count() >= 5);
    for arch in emulated() {
        let mut random = Random(arch.name.len() as u64);
        for shape in [[1, 1], [1, 4096], [16, 32], [33, 1100], [129, 65]] {
            check(arch, shape, &mut random);
        }
        for _ in 0..20 {
            let shape = [1 + random.below(70), 1 + random.below(140)];
            check(arch, shape, &mut random);
        }
    }
}

/// A head that the embedding replaces may come before it, after it, and again, if it is the same.
#[test]
fn a_tied_head_on_a_device_is_the_embedding() {
    let arch = emulated().next().unwrap();
    let shape = [40, 70];
    let tensor = |name: &str| WeightExpr::Tensor { name: name.into(), shape: shape.into() };
    let (layout, dtype) = (Layout::Panels { width: 16, group: 8, rows: 64, cols: 96 }, DType::BF16);
    let whole = Weight {
        name: "e".into(),
        dtype,
        shape: shape.into(),
        layout,
        bytes: 64 * 96 * 2,
        expr: tensor(EMBEDDING),
        unsigned_zeros: false,
    };
    let both = WeightExpr::Concat { axis: 0, parts: vec![tensor(EMBEDDING), tensor("other")] };
    let layout = Layout::Rows { stride: 96 };
    let wide = Weight {
        name: "b".into(),
        dtype,
        shape: vec![80, 70],
        layout,
        bytes: 80 * 96 * 2,
        expr: both,
        unsigned_zeros: false,
    };
    let weights = [whole, wide];
    let [one, two, near] = [0, 1, 2].map(|which| {
        let mut tensors = Tensors::default();
        tensors.add(EMBEDDING, Float::BF16, &shape, &mut Random(1 + which % 2));
        let mut head = tensors.0[EMBEDDING].clone();
        // One number in the last row.
        head.2[2 * 39 * 70] ^= u8::from(which == 2);
        tensors.0.insert(HEAD.into(), head);
        tensors
    });
    let rows = Lie::Rows { skip: 0, gap: 0 };
    let fed = |order: &[(&str, &Tensors, Lie)]| {
        let mut load = Load::new(Chip::new(arch), &weights, Rank::ONLY);
        // What the host packs alone lands in memory that is zero from the start.
        load.buffers[0].fill(0..weights[0].bytes, 0).unwrap();
        order.iter().for_each(|(name, tensors, lie)| load.feed(name, tensors, *lie).unwrap());
        load.loading.check_heads().map(|()| load.bytes(0))
    };
    let same = host(&weights[0], Rank::ONLY, &one);
    assert_eq!(fed(&[(HEAD, &one, rows), (EMBEDDING, &one, rows)]).unwrap(), same);
    assert_eq!(fed(&[(EMBEDDING, &one, rows), (HEAD, &one, Lie::Turned)]).unwrap(), same);
    assert_eq!(fed(&[(EMBEDDING, &one, Lie::Host), (HEAD, &one, rows)]).unwrap(), same);
    assert_eq!(fed(&[(HEAD, &one, Lie::Host), (EMBEDDING, &one, rows)]).unwrap(), same);
    assert_eq!(fed(&[(EMBEDDING, &one, rows)]).unwrap(), same);
    let again = [(HEAD, &two, rows), (EMBEDDING, &two, rows), (EMBEDDING, &one, rows), (HEAD, &one, rows)];
    assert_eq!(fed(&again).unwrap(), same);
    for other in [&two, &near] {
        for order in [[(HEAD, other, rows), (EMBEDDING, &one, rows)], [(EMBEDDING, &one, rows), (HEAD, other, rows)]] {
            assert!(matches!(fed(&order), Err(Error::Checkpoint(CheckpointError::Untied))));
        }
    }
}

/// The matrices of a stack lie one after the other, each with its padding.
#[test]
fn stacks_of_matrices() {
    let arch = emulated().next().unwrap();
    let (mut tensors, mut random) = (Tensors::default(), Random(8));
    for (name, count) in [("a", 1), ("b", 3)] {
        tensors.add(name, Float::F32, &[count, 20, 70], &mut random);
    }
    let tensor = |name: &str| WeightExpr::Tensor { name: name.into(), shape: tensors.0[name].1.clone() };
    let part = WeightExpr::Slice { axis: 0, start: 1, len: 2, of: Box::new(tensor("b")) };
    let expr = WeightExpr::Concat { axis: 0, parts: vec![tensor("a"), part] };
    for (layout, rows) in
        [(Layout::Panels { width: 16, group: 8, rows: 32, cols: 96 }, 32), (Layout::Rows { stride: 96 }, 20)]
    {
        let (dtype, bytes) = (DType::BF16, 3 * rows * 96 * 2);
        let weight = Weight {
            name: "s".into(),
            dtype,
            shape: vec![3, 20, 70],
            layout,
            bytes,
            expr: expr.clone(),
            unsigned_zeros: false,
        };
        let mut load = Load::new(Chip::new(arch), std::slice::from_ref(&weight), Rank::ONLY);
        for name in ["b", "a"] {
            load.feed(name, &tensors, Lie::Rows { skip: 3, gap: 2 }).unwrap();
        }
        assert!(load.bytes(0) == host(&weight, Rank::ONLY, &tensors), "{layout:?}");
    }
}

/// What the kernel does not make is made on the host, wherever the tensors are: layouts with units
/// of another size, and codes that are unpacked and turned, with what tells how they are stored.
/// Other weights stay on the device.
#[test]
fn the_host_makes_what_the_kernel_does_not() {
    let arch = emulated().next().unwrap();
    let (mut tensors, mut random) = (Tensors::default(), Random(5));
    tensors.add("t", Float::BF16, &[4, 6], &mut random);
    tensors.add("q", Float::Code(DType::I32), &[5, 24], &mut random);
    tensors.add("s", Float::F16, &[3, 24], &mut random);
    let groups: Vec<u8> = (0..40).flat_map(|col| (col / 16i32).to_le_bytes()).collect();
    tensors.0.insert("g".into(), (Float::Code(DType::I32), vec![40], groups));
    let sizes: Vec<u8> = [24i64, 40].into_iter().flat_map(i64::to_le_bytes).collect();
    tensors.0.insert("n".into(), (Float::I64, vec![2], sizes));
    let tensor = |name: &str| WeightExpr::Tensor { name: name.into(), shape: tensors.0[name].1.clone() };
    let unpack = WeightExpr::Unpack {
        from: DType::I32,
        to: DType::U4,
        axis: 0,
        len: 40,
        order: Order::Plain,
        of: tensor("q").into(),
    };
    let codes = WeightExpr::Transpose { of: unpack.into() };
    let codes = WeightExpr::Expect { is: Fact::Groups(16), told: tensor("g").into(), of: codes.into() };
    let codes = WeightExpr::Expect { is: Fact::Are(vec![24, 40]), told: tensor("n").into(), of: codes.into() };
    let weight = |dtype: DType, shape: [usize; 2], group, expr| {
        let layout = Layout::Panels { width: 16, group, rows: 32, cols: 64 };
        Weight {
            name: "w".into(),
            dtype,
            shape: shape.into(),
            layout,
            bytes: dtype.bytes(32 * 64),
            expr,
            unsigned_zeros: false,
        }
    };
    let weights = [
        weight(DType::F32, [4, 6], 2, tensor("t")),
        weight(DType::U4, [24, 40], 32, codes),
        weight(DType::BF16, [24, 3], 8, WeightExpr::Transpose { of: tensor("s").into() }),
        weight(DType::BF16, [3, 24], 8, tensor("s")),
    ];
    for lie in [Lie::Rows { skip: 0, gap: 0 }, Lie::Host] {
        for order in [["t", "q", "s", "g", "n"], ["n", "g", "s", "q", "t"]] {
            let mut load = Load::new(Chip::new(arch), &weights, Rank::ONLY);
            order.iter().for_each(|name| load.feed(name, &tensors, lie).unwrap());
            assert_eq!((load.loading.missing().len(), load.loading.kept_bytes()), (0, 0));
            for (index, weight) in weights.iter().enumerate() {
                let own: Vec<_> = weight.expr.tensors().into_iter().map(|(name, _)| name).collect();
                let of = own.iter().map(|name| (name.to_string(), tensors.0[&**name].clone())).collect();
                assert!(load.bytes(index) == host(weight, Rank::ONLY, &Tensors(of, None)), "{index} {order:?} {lie:?}");
            }
        }
    }
}

/// A fault is reported before anything is done, and changes nothing.
#[test]
fn faults_change_nothing() {
    let arch = emulated().next().unwrap();
    let mut tensors = Tensors::default();
    let mut random = Random(3);
    let expr = tensors.made([4, 6], &mut random);
    let layout = Layout::Rows { stride: 32 };
    let weight = Weight {
        name: "w".into(),
        dtype: DType::F32,
        shape: vec![4, 6],
        layout,
        bytes: 4 * 32 * 4,
        expr,
        unsigned_zeros: false,
    };
    let mut load = Load::new(Chip::new(arch), std::slice::from_ref(&weight), Rank::ONLY);
    let nowhere = || Numbers::Device(OnDevice { address: std::ptr::null(), row_stride: 4, col_stride: 1 });
    let mut refused =
        |name: &str, shape: &[usize]| load.give(name, Float::BF16, shape, nowhere()).unwrap_err().to_string();
    assert_eq!(refused("t0", &[6, 4]), "tensor `t0` has shape [6, 4], but the model needs [4, 6]");
    assert_eq!(refused("x", &[4, 6]), "the checkpoint has a tensor that the model does not use: x");
    assert_eq!(load.bytes(0), vec![0xa5; weight.bytes]);
    // A host packs nothing that is not its own.
    let mut buffers = [DeviceBuffer::Host(Buffer::new(weight.bytes).unwrap())];
    let (weights, pool) = (std::slice::from_ref(&weight), &mut Pool::new(1).unwrap());
    let given = Given { float: Float::F32, shape: &[4, 6], numbers: nowhere() };
    let sink = Sink { weights, rank: Rank::ONLY, buffers: &mut buffers, pool };
    let message =
        Loading::new(weights, &TensorNames::default(), Rank::ONLY).feed("t0", given, sink).unwrap_err().to_string();
    assert_eq!(message, "tensor `t0` is in the memory of a device, from which nothing is packed here");
}
