//! `cargo bench -p atomc-runtime`: the speed of packing weights, next to this machine's speed of
//! reading memory, and the cost of a launch that does nothing.
use atomc_runtime::checkpoint::{CheckpointError, Float, Source, Tensor};
use atomc_runtime::device::DeviceBuffer;
use atomc_runtime::manifest::{DType, Layout, TensorNames, Weight, WeightExpr};
use atomc_runtime::memory::Buffer;
use atomc_runtime::{Pool, Random, bandwidth, weights};
use rayon::prelude::*;
use std::hint::black_box;
use std::time::Instant;

const SHAPE: [usize; 2] = [16384, 8192];

/// One large tensor under any name.
struct One(Float, Vec<u8>);

impl Source for One {
    fn tensor(&self, _: &str, _: &[usize]) -> Result<Tensor<'_>, CheckpointError> {
        Ok(Tensor::Bytes { float: self.0, bytes: &self.1 })
    }

    fn names(&self) -> Vec<&str> {
        vec!["t"]
    }
}

/// The cost of launches of 16 short tasks: all in one region, a region each, and as fork-joins of
/// rayon. Empty tasks would measure which pool gives up sharing first, so each computes for about
/// half a microsecond; one thread shows how long that is.
fn launches(pool: &mut Pool) {
    const LAUNCHES: u32 = 2_000;
    const TASKS: usize = 16;
    let work = |_: usize| _ = black_box((0..600u32).fold(1u32, |x, i| black_box(x.wrapping_mul(i | 1))));
    let report = |how: &str, launch: &mut dyn FnMut()| {
        launch();
        let start = Instant::now();
        launch();
        println!("launch of {TASKS} tasks, {how}: {:.2} us", start.elapsed().as_secs_f64() * 1e6 / f64::from(LAUNCHES));
    };
    report("one thread", &mut || (0..LAUNCHES).for_each(|_| (0..TASKS).for_each(work)));
    report("all in one region", &mut || {
        pool.run(&|worker| (0..LAUNCHES).for_each(|_| worker.tasks(TASKS, |tasks| tasks.for_each(work))));
    });
    report("a region each", &mut || (0..LAUNCHES).for_each(|_| pool.for_each(TASKS, work)));
    let rayon = rayon::ThreadPoolBuilder::new().num_threads(pool.threads()).build().expect("threads");
    report("rayon", &mut || rayon.install(|| (0..LAUNCHES).for_each(|_| (0..TASKS).into_par_iter().for_each(work))));
}

fn main() {
    let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get());
    let mut pool = Pool::new(threads).expect("threads");
    let rate = bandwidth::measure(&mut pool, 1 << 30, 5).expect("memory");
    println!("{threads} threads; read bandwidth {:.1} GB/s", rate / 1e9);
    launches(&mut pool);
    let [rows, cols] = SHAPE;
    let panels = |width, group| Layout::Panels { width, group, rows, cols };
    let half = One(Float::BF16, vec![1; rows * cols * 2]);
    let single = One(Float::F32, vec![1; rows * cols * 4]);
    let cases: [(&str, &dyn Source, Layout); 6] = [
        ("bf16 to rows", &half, Layout::Rows { stride: cols }),
        ("bf16 to panels of 16 by 2", &half, panels(16, 2)),
        ("bf16 to panels of 32 by 2", &half, panels(32, 2)),
        ("f32 to bf16 rows", &single, Layout::Rows { stride: cols }),
        ("f32 to bf16 panels of 16 by 2", &single, panels(16, 2)),
        ("random to bf16 panels of 16 by 2", &Random { seed: 1 }, panels(16, 2)),
    ];
    for (name, source, layout) in cases {
        let expr = WeightExpr::Tensor { name: "t".into(), shape: SHAPE.to_vec() };
        let weight = [Weight {
            name: name.into(),
            dtype: DType::BF16,
            shape: SHAPE.to_vec(),
            layout,
            bytes: rows * cols * 2,
            expr,
            unsigned_zeros: false,
        }];
        let mut buffers = [DeviceBuffer::Host(Buffer::new(weight[0].bytes).expect("memory"))];
        let mut seconds = [0.0; 3];
        for seconds in &mut seconds {
            let start = Instant::now();
            let rank = weights::Rank::ONLY;
            let sink = weights::Sink { weights: &weight, rank, buffers: &mut buffers, pool: &mut pool };
            weights::load(sink, &TensorNames::default(), source, &|_, _| ()).expect("a sound plan");
            *seconds = start.elapsed().as_secs_f64();
        }
        let rate = |seconds: f64| weight[0].bytes as f64 / seconds / 1e9;
        println!("{name}: {:.2} GB/s first, {:.2} GB/s again", rate(seconds[0]), rate(seconds[1].min(seconds[2])));
    }
}
