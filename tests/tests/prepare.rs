//! The kernel that makes a step's inputs of a framework's tensors, in the emulator on every chip,
//! against what its parameters are said to mean.
use atomc::driver::{self, Options as Compile};
use atomc_artifact::abi::{Batch, PREPARE_GROUPS, Prepare, SPARE_TOKENS, Step, TILE_TOKENS};
use atomc_artifact::manifest::{PREPARE, Variant};
use atomc_emulator::{Access, CodeObject, Emulator, Grid, Memory, Options};
use atomc_ir::Arch;
use atomc_passes::BucketOptions;
use atomc_targets::{Tasks, compile_hosted};

/// A framework's step, padded: tokens after the last sequence's, and sequences without any.
struct Framework {
    ids: Vec<i32>,
    positions: Vec<i64>,
    starts: Vec<i32>,
    lengths: Vec<i32>,
    tables: Vec<i32>,
    stride: usize,
}

/// Numbers that look random.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

impl Framework {
    /// `counts` tokens in each sequence, then padding of `sequences` sequences and `tokens` tokens.
    fn new(counts: &[usize], sequences: usize, tokens: usize, numbers: &mut Numbers) -> Framework {
        let (mut positions, mut starts, mut lengths) = (vec![], vec![0], vec![]);
        for &count in counts {
            let before = numbers.below(300);
            positions.extend((before..before + count).map(|p| p as i64));
            lengths.push((before + count) as i32);
            starts.push(positions.len() as i32);
        }
        let total = positions.len();
        // The contents of padding do not matter, except for the starts.
        positions.resize(total + tokens, -7);
        lengths.resize(counts.len() + sequences, 1);
        starts.resize(counts.len() + sequences + 1, total as i32);
        let ids = (0..positions.len()).map(|_| numbers.below(100_000) as i32).collect();
        let longest = lengths.iter().max().map_or(1, |&length| length as usize);
        let stride = longest.div_ceil(a_gpu().memory.block_tokens) + numbers.below(9);
        // Every page is somebody's.
        let tables = (0..lengths.len() * stride).rev().map(|page| page as i32).collect();
        Framework { ids, positions, starts, lengths, tables, stride }
    }

    /// A layer's pages after the step.
    fn cleared(&self, before: &[u8]) -> Vec<u8> {
        let (block, mut layer) = (a_gpu().memory.block_tokens, before.to_vec());
        for (sequence, &length) in self.lengths.iter().enumerate() {
            let (length, tokens) = (length as usize, self.starts[sequence + 1] - self.starts[sequence]);
            let first = length / block * block;
            if first < length && first >= length - tokens as usize {
                let page = self.tables[sequence * self.stride + first / block] as usize * (PAGE + GAP);
                layer[page + VALUES..page + PAGE].fill(0);
            }
        }
        layer
    }

    fn total(&self) -> usize {
        self.starts[self.lengths.len()] as usize
    }

    /// Ids, positions, sequences and lengths of all tokens and the spare ones, then the tiles.
    fn want(&self) -> [Vec<i32>; 5] {
        let (total, sequences) = (self.total(), self.lengths.len());
        let mut lists = [0; 4].map(|_| vec![0; self.ids.len() + SPARE_TOKENS]);
        let mut tiles = vec![0; 2 * Prepare::tiles(self.ids.len(), sequences)];
        for sequence in 0..sequences {
            let (start, end) = (self.starts[sequence] as usize, self.starts[sequence + 1] as usize);
            for token in start..end {
                let made = [self.ids[token], self.positions[token] as i32, sequence as i32, self.lengths[sequence]];
                lists.iter_mut().zip(made).for_each(|(list, value)| list[token] = value);
            }
            for (j, from) in (start..end).step_by(TILE_TOKENS).enumerate() {
                let place = start / TILE_TOKENS + sequence + j;
                assert_eq!(tiles[2 * place + 1], 0, "a place of its own");
                tiles[2 * place] = from as i32;
                tiles[2 * place + 1] = (end - from).min(TILE_TOKENS) as i32;
            }
        }
        assert_eq!(tiles.iter().skip(1).step_by(2).sum::<i32>(), total as i32);
        let [ids, positions, sequence, lengths] = lists;
        [ids, positions, sequence, lengths, tiles]
    }
}

/// Layers with pages, bytes of a page and of the gap after it, and the place of its values.
const LAYERS: usize = 2;
const PAGE: usize = 512;
const GAP: usize = 256;
const VALUES: usize = 192;
/// What an earlier sequence left.
const LEFT: u8 = 0x7f;

fn check(code: &CodeObject, threads: usize, framework: &Framework, name: &str) {
    let Framework { ids, positions, starts, lengths, tables, stride } = framework;
    let want = framework.want();
    // Leftovers of an earlier step.
    let mut made = want.each_ref().map(|list| vec![0x5a5a_5a5a; list.len()]);
    let mut step = [Step { tokens: -1, rows: 3 }];
    let mut batch = [Batch {
        positions: made[1].as_ptr(),
        sequences: made[2].as_ptr(),
        tables: std::ptr::null(),
        table_stride: 0,
        tiles: made[4].as_ptr(),
        tile_count: -1,
        block_stride: (PAGE + GAP) as i64,
    }];
    let mut pages = vec![vec![LEFT; tables.len() * (PAGE + GAP)]; LAYERS];
    let cleared = framework.cleared(&pages[0]);
    let starts_of_pages: Vec<u64> = pages.iter_mut().map(|layer| layer.as_mut_ptr() as u64).collect();
    let prepare = Prepare {
        ids: ids.as_ptr(),
        positions: positions.as_ptr(),
        starts: starts.as_ptr(),
        lengths: lengths.as_ptr(),
        tables: tables.as_ptr(),
        step: step.as_mut_ptr(),
        batch: batch.as_mut_ptr(),
        to_ids: made[0].as_mut_ptr(),
        to_lengths: made[3].as_mut_ptr(),
        pages: starts_of_pages.as_ptr(),
        table_stride: *stride as i64,
        sequences: lengths.len() as i64,
        tokens: ids.len() as i64,
        values: VALUES as i64,
        value_bytes: (PAGE - VALUES) as i64,
        layers: LAYERS as i64,
    };
    let mut memory = Memory::default();
    let mut map = |address: u64, bytes: usize, access| {
        // SAFETY: the lists live until the launch is over.
        unsafe { memory.map_with_slack(address, bytes as u64, 0, access) };
    };
    for list in [ids, starts, lengths] {
        map(list.as_ptr() as u64, 4 * list.len(), Access::Read);
    }
    map(positions.as_ptr() as u64, 8 * positions.len(), Access::Read);
    for list in &mut made {
        map(list.as_mut_ptr() as u64, 4 * list.len(), Access::ReadWrite);
    }
    map(step.as_mut_ptr() as u64, size_of::<Step>(), Access::ReadWrite);
    map(batch.as_mut_ptr() as u64, size_of::<Batch>(), Access::ReadWrite);
    let arguments: Vec<u8> = prepare.parameters().into_iter().flat_map(u64::to_le_bytes).collect();
    map(tables.as_ptr() as u64, 4 * tables.len(), Access::Read);
    map(starts_of_pages.as_ptr() as u64, 8 * LAYERS, Access::Read);
    for layer in &mut pages {
        map(layer.as_mut_ptr() as u64, layer.len(), Access::ReadWrite);
    }
    let grid = Grid::linear(prepare.groups() as u32, threads as u32);
    let done = Emulator.launch(code, PREPARE, grid, &arguments, &memory, &Options::default());
    done.unwrap_or_else(|e| panic!("{name}: {e}"));
    for (what, (made, want)) in ["ids", "positions", "sequences", "lengths", "tiles"].iter().zip(made.iter().zip(&want))
    {
        assert_eq!(made, want, "{name}: {what} of {starts:?}");
    }
    for layer in &pages {
        assert!(*layer == cleared, "{name}: pages of {starts:?}, {lengths:?}");
    }
    let [Step { tokens, rows }] = step;
    assert_eq!((tokens, rows), (framework.total() as i64, 3), "{name}");
    let [batch] = batch;
    assert_eq!((batch.tables, batch.table_stride), (tables.as_ptr(), *stride as i64), "{name}");
    assert_eq!((batch.tile_count as usize, batch.block_stride), (want[4].len() / 2, (PAGE + GAP) as i64), "{name}");
}

/// GPUs lay pages out alike.
fn a_gpu() -> &'static Arch {
    emulated().next().expect("a chip that is emulated")
}

fn emulated() -> impl Iterator<Item = &'static Arch> {
    atomc_tests::kernels::tried().filter(|arch| arch.gpu().is_some())
}

#[test]
fn inputs_of_a_frameworks_step() {
    assert!(emulated().count() >= 5);
    for arch in emulated() {
        let (object, hosted) = compile_hosted(&[], 1, arch).unwrap_or_else(|e| panic!("{e}"));
        let info = hosted.expect("GPUs have one").prepare;
        assert_eq!(info.tasks, Tasks::Fixed(PREPARE_GROUPS));
        let code = CodeObject::load(&object.code).unwrap_or_else(|e| panic!("{}: {e}", arch.name));
        let mut numbers = Numbers(1);
        let mut check = |counts: &[usize], sequences, tokens| {
            let framework = Framework::new(counts, sequences, tokens, &mut numbers);
            check(&code, info.threads, &framework, arch.name);
        };
        check(&[1], 0, 0);
        check(&[1; 8], 0, 0);
        check(&[1; 5], 3, 3);
        check(&[], 4, 4);
        check(&[64], 0, 0);
        check(&[33, 1, 31, 32, 200, 1, 1], 2, 11);
        // More than the threads of a launch.
        check(&[1500, 3, 900], 1, 60);
        let mut random = Numbers(arch.name.len() as u64);
        for _ in 0..12 {
            let all = 1 + random.below(40);
            let counts: Vec<usize> = (0..all)
                .map(|_| match random.below(4) {
                    0 => 0,
                    1 => 1,
                    2 => 1 + random.below(40),
                    _ => random.below(130),
                })
                .collect();
            check(&counts, random.below(5), random.below(70));
        }
    }
}

#[test]
fn artifacts_have_what_frameworks_need_for_gpus() {
    let case = atomc_tests::cases().into_iter().find(|case| case.name == "llama2").expect("the case is there");
    let buckets = BucketOptions { decode: vec![1], each: 1, tokens: 32, rows: 8 };
    let targets = ["host", "gfx942", "sm_80"].map(String::from).to_vec();
    let options = Compile { buckets, targets, ..Compile::default() };
    let compiled = driver::compile(&case.config, &options, &mut |_, _, _| ()).expect("it compiles");
    let [host, amd, nvidia] = &compiled.manifest.targets[..] else { panic!("three targets") };
    let kernels = |variant: &Variant| [variant.prepare.clone(), variant.pack.clone()];
    assert!(host.variants.iter().flat_map(kernels).all(|kernel| kernel.is_none()));
    for kernel in kernels(&amd.variants[0]) {
        assert!(kernel.is_some_and(|kernel| kernel.resources.is_some() && !kernel.overlaps));
    }
    for kernel in kernels(&nvidia.variants[0]) {
        assert!(kernel.is_some_and(|kernel| kernel.module.is_some() && !kernel.overlaps));
    }
}
