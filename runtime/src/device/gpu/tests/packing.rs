//! Weights made on a device of tensors in its memory: the calls of the driver, and the results.
use super::*;
use crate::checkpoint::{CheckpointError, Float, OnDevice, Source, Tensor};
use crate::error::Error;
use crate::weights::{self, DeviceSink, Given, Loading, Numbers, Rank, Sink};
use atomc_artifact::manifest::{DType, Layout, TensorNames, Weight, WeightExpr};
use std::collections::BTreeMap;

const STREAM: usize = 0x52;
const COLS: usize = 40;

/// Matrices of bf16 by name, each with its own number of rows.
struct Matrices(BTreeMap<&'static str, Vec<u8>>);

impl Matrices {
    fn new(seed: usize) -> Matrices {
        let bytes = |rows: usize| (0..rows * COLS * 2).map(|i| (i * 7 + seed) as u8).collect();
        Matrices([("q", 20), ("k", 10), ("v", 10), ("w", 3)].map(|(name, rows)| (name, bytes(rows))).into())
    }

    fn shape(&self, name: &str) -> [usize; 2] {
        [self.0[name].len() / 2 / COLS, COLS]
    }

    fn weights(&self) -> [Weight; 2] {
        let tensor = |name: &&str| WeightExpr::Tensor { name: name.to_string(), shape: self.shape(name).into() };
        let qkv = WeightExpr::Concat { axis: 0, parts: ["q", "k", "v"].iter().map(tensor).collect() };
        let weight = |layout, shape: [usize; 2], elements: usize, expr| Weight {
            name: "w".into(),
            dtype: DType::BF16,
            shape: shape.into(),
            layout,
            bytes: 2 * elements,
            expr,
            unsigned_zeros: false,
        };
        let panels = Layout::Panels { width: 16, group: 8, rows: 64, cols: 64 };
        [weight(panels, [40, COLS], 64 * 64, qkv), weight(Layout::Rows { stride: 64 }, [3, COLS], 3 * 64, tensor(&"w"))]
    }
}

impl Source for Matrices {
    fn tensor(&self, name: &str, _: &[usize]) -> Result<Tensor<'_>, CheckpointError> {
        Ok(Tensor::Bytes { float: Float::BF16, bytes: &self.0[name] })
    }

    fn names(&self) -> Vec<&str> {
        self.0.keys().copied().collect()
    }
}

/// A load on a stand-in device. All tensors are in one place, and each overwrites the one before.
struct Load<'a> {
    device: Gpu,
    tensors: Tensors<'a>,
    place: *mut c_void,
    buffers: Vec<DeviceBuffer>,
    loading: Loading,
}

impl<'a> Load<'a> {
    fn new(fake: &Fake, driver: &'a dyn Driver, weights: &[Weight]) -> Load<'a> {
        let (artifact, stream) = (fake.artifact(), std::ptr::without_provenance_mut(STREAM));
        let target = &artifact.manifest().targets[0];
        let mut device = Gpu::with_driver(fake.driver().unwrap(), &artifact, target, 0, Some(stream), 1).unwrap();
        let tensors = Tensors { driver, stream };
        let buffers = weights.iter().map(|weight| device.allocate(weight.bytes).unwrap()).collect();
        Load {
            device,
            place: tensors.zeroed(1 << 16),
            tensors,
            buffers,
            loading: Loading::new(weights, &TensorNames::default(), Rank::ONLY),
        }
    }

    fn feed(&mut self, name: &str, matrices: &Matrices, weights: &[Weight], stream: Stream) -> Result<(), Error> {
        self.tensors.set(self.place, &matrices.0[name]);
        let numbers = OnDevice { address: self.place.cast(), row_stride: COLS as isize, col_stride: 1 };
        self.give(name, matrices, weights, stream, Numbers::Device(numbers))
    }

    fn give(
        &mut self,
        name: &str,
        matrices: &Matrices,
        weights: &[Weight],
        stream: Stream,
        numbers: Numbers,
    ) -> Result<(), Error> {
        let Load { device, buffers, loading, .. } = self;
        let given = Given { float: Float::BF16, shape: &matrices.shape(name), numbers };
        // SAFETY: the tensor is valid, and the stand-in's streams run at once.
        unsafe { loading.feed_on(name, given, DeviceSink { weights, rank: Rank::ONLY, buffers, device, stream }) }
    }
}

/// The weights as the host packs them.
fn wanted(weights: &[Weight], matrices: &Matrices) -> Vec<Vec<u8>> {
    let host = |weight: &Weight| DeviceBuffer::Host(Buffer::new(weight.bytes).unwrap());
    let mut buffers: Vec<DeviceBuffer> = weights.iter().map(host).collect();
    let pool = &mut Pool::new(1).unwrap();
    weights::load(
        Sink { weights, rank: Rank::ONLY, buffers: &mut buffers, pool },
        &TensorNames::default(),
        matrices,
        &|_, _| (),
    )
    .unwrap();
    buffers.iter().map(|buffer| buffer.host_view().unwrap().to_vec()).collect()
}

fn found(load: &Load) -> Vec<Vec<u8>> {
    let bytes = |buffer: &DeviceBuffer| {
        let mut bytes = vec![0; buffer.len()];
        buffer.download(0, &mut bytes).unwrap();
        bytes
    };
    load.buffers.iter().map(bytes).collect()
}

/// Tensors that wait for others are copied, as their owner may overwrite them; the memory goes back
/// when the weight is made.
pub(super) fn tensors_of_a_device_stay_there(vendor: Vendor) {
    let fake = Fake::new(vendor);
    let driver = fake.driver().unwrap();
    let (stream, weights) = (Stream(STREAM), Matrices::new(0).weights());
    let mut load = Load::new(&fake, &*driver, &weights);
    fake.log();
    for (seed, order) in [(0, ["q", "w", "k", "v"]), (1, ["v", "k", "q", "w"])] {
        let matrices = Matrices::new(seed);
        for name in order {
            load.feed(name, &matrices, &weights, stream).unwrap();
        }
        let log = fake.log();
        let calls: Vec<&str> = log.split("; ").map(|call| call.split(" x").next().unwrap()).collect();
        let launches = calls.iter().filter(|call| call.starts_with("launch atomc_pack")).count();
        let count = |call: &str| calls.iter().filter(|&&found| found == call).count();
        // Two copies, and four pieces of weights. The test itself copies the tensors in.
        assert_eq!((launches, count("borrow on 52"), count("return on 52")), (6, 2, 2), "{log}");
        assert_eq!((count("copy in"), calls.len()), (4, 14), "{log}");
        assert!(found(&load) == wanted(&weights, &matrices));
        assert_eq!(load.loading.kept_bytes(), 0);
        fake.log();
    }
}

/// A weight of tensors of both memories is made on the device. A stream waits for the pieces that
/// another one has begun.
pub(super) fn tensors_come_from_anywhere(vendor: Vendor) {
    let fake = Fake::new(vendor);
    let driver = fake.driver().unwrap();
    let (matrices, weights) = (Matrices::new(5), Matrices::new(5).weights());
    let mut load = Load::new(&fake, &*driver, &weights);
    let host = |name: &str| Numbers::from(matrices.0[name].clone());
    load.give("q", &matrices, &weights, Stream(STREAM), host("q")).unwrap();
    load.feed("k", &matrices, &weights, Stream(STREAM)).unwrap();
    fake.log();
    load.give("v", &matrices, &weights, Stream(0x53), host("v")).unwrap();
    assert!(fake.log().starts_with("synchronise; borrow on 53; copy in; synchronise; launch atomc_pack"));
    load.give("w", &matrices, &weights, Stream(0x53), host("w")).unwrap();
    assert!(!fake.log().contains("launch"), "what the host has the host packs");
    assert!(found(&load) == wanted(&weights, &matrices));
}

/// Norms that are stored as the difference from one are raised in device memory, and no call waits.
pub(super) fn raised_weights_stay_there(vendor: Vendor) {
    let fake = Fake::new(vendor);
    let driver = fake.driver().unwrap();
    let (matrices, mut weights) = (Matrices::new(9), Matrices::new(9).weights());
    weights.iter_mut().for_each(|w| w.expr = WeightExpr::Offset { by: 1.0, of: Box::new(w.expr.clone()) });
    let mut load = Load::new(&fake, &*driver, &weights);
    for name in ["q", "k", "v", "w"] {
        fake.log();
        load.feed(name, &matrices, &weights, Stream(STREAM)).unwrap();
        let log = fake.log();
        assert!(
            log.contains("launch atomc_pack") && !log.contains("synchronise") && !log.contains("copy out"),
            "{log}"
        );
    }
    assert!(found(&load) == wanted(&weights, &matrices));
}

/// An update in a framework: the next head on the stream has the new weights, and no call waited.
pub(super) fn an_update_waits_for_nothing(vendor: Vendor) {
    let fake = Fake::new(vendor);
    let artifact = Arc::new(fake.artifact());
    let target = &artifact.manifest().targets[0];
    let (driver, stream) = (fake.driver().unwrap(), std::ptr::without_provenance_mut(STREAM));
    let device = Gpu::with_driver(fake.driver().unwrap(), &artifact, target, 0, Some(stream), 1).unwrap();
    let tensors = Tensors { driver: &*driver, stream };
    let (device_choice, attention) = (crate::DeviceChoice::default(), manifest::Attention::Own);
    let options = HostedOptions {
        device: device_choice,
        threads: 1,
        rank: 0,
        attention,
        draft: false,
        images: Default::default(),
        stream: Stream(STREAM),
    };
    let mut hosted = Hosted::with_device(artifact.clone(), fake.target(), Box::new(device), &options, None).unwrap();
    hosted.load(&toy::Bias(vec![0; VOCAB * 4]), &|_, _| ()).unwrap();
    let place = tensors.zeroed(VOCAB * 4);
    tensors.set(place.wrapping_byte_add(3 * 4), &[1000f32]);
    fake.log();
    let numbers = OnDevice { address: place.cast(), row_stride: 0, col_stride: 1 };
    let given = Given { float: Float::F32, shape: &[VOCAB], numbers: Numbers::Device(numbers) };
    hosted.begin_update();
    // SAFETY: the tensor is there and stays.
    unsafe { hosted.feed_on("head.bias", given.clone(), Stream(STREAM)) }.unwrap();
    hosted.end_update().unwrap();
    let log = fake.log();
    assert!(log.starts_with("launch atomc_pack") && !log.contains("; "), "{log}");
    // SAFETY: there are no rows that are not zero.
    let logits = unsafe { hosted.head(1, Stream(STREAM)) }.unwrap();
    let bytes = tensors.get(logits.address, VOCAB * 4);
    let values: Vec<f32> = bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    assert_eq!(crate::sample::greedy(&values), 3);
    let message = hosted.feed("head.bias", given).unwrap_err().to_string();
    assert_eq!(message, "tensor `head.bias` is in the memory of a device, from which nothing is packed here");
}
