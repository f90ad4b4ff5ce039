//! Images in a framework: it has the artifact's tower make rows, and writes rows and positions
//! where steps read them. Against transformers in float64 (`golden/images.py`).
use std::ptr::NonNull;
use std::sync::Arc;

use atomc::driver::{self, Options};
use atomc::emulated::Emulated;
use atomc_config::Vision;
use atomc_ir::DType;
use atomc_passes::BucketOptions;
use atomc_runtime::checkpoint::{Source, Tensor};
use atomc_runtime::device::{Device, DeviceBuffer, Stream};
use atomc_runtime::hosted::{Batch, HostedError, Images, Pages, Rows, Table};
use atomc_runtime::manifest::Attention;
use atomc_runtime::memory::Buffer;
use atomc_runtime::states::Unit;
use atomc_runtime::tower::Image;
use atomc_runtime::weights::Given;
use atomc_runtime::{Artifact, Checkpoint, DeviceChoice, Hosted, HostedOptions};
use atomc_tests::images::{Seen, cases};

/// Most tokens of a step.
const TOKENS: usize = 32;
/// Pages of a sequence; a slot is the first of them.
const PAGES: usize = 8;
/// Largest error of rows, relative to the largest, and of logits in f32.
const F32: f64 = 1e-4;

fn artifact(case: &Seen, target: &str) -> Arc<Artifact> {
    let mut config = case.case.config.clone();
    config.dtype = DType::F32;
    let tower = Some(Vision::of(&config).expect("a tower"));
    let buckets = BucketOptions { decode: vec![1], each: 1, tokens: TOKENS, rows: TOKENS };
    let options = Options { targets: vec![target.into()], buckets, tower, patches: 64, ..Options::default() };
    let compiled = driver::compile(&config, &options, &mut |_, _, _| ()).unwrap_or_else(|e| panic!("{e}"));
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join("m.atomc");
    compiled.write(&path).expect("an artifact");
    Arc::new(Artifact::open(&path).expect("a whole artifact"))
}

fn options(images: Images) -> HostedOptions {
    HostedOptions {
        device: DeviceChoice::default(),
        threads: 2,
        rank: 0,
        attention: Attention::Own,
        draft: false,
        images,
        stream: Stream::default(),
    }
}

/// A framework with one sequence.
struct Framework {
    hosted: Hosted,
    /// Memory of the device for a step's tensors, where it has one of its own.
    tensors: Vec<DeviceBuffer>,
    _pages: Vec<Buffer>,
}

impl Framework {
    /// Of a model whose weights come tensor by tensor.
    fn new(case: &Seen, mut hosted: Hosted, tensors: Vec<DeviceBuffer>) -> Framework {
        let checkpoint = Checkpoint::open(&case.case.dir).expect("a checkpoint");
        hosted.begin_update();
        for name in checkpoint.names() {
            let shape = checkpoint.shape(name).expect("a tensor").to_vec();
            let Ok(Tensor::Stored { float, numbers }) = checkpoint.tensor(name, &shape) else { panic!("no {name}") };
            let bytes = numbers.to_vec().expect("a whole file");
            hosted.feed(name, Given { float, shape: &shape, numbers: bytes.into() }).expect("a tensor of the model");
        }
        hosted.end_update().expect("all tensors");
        let units = Unit::all(hosted.target());
        let (mut pages, mut tables) = (vec![], vec![]);
        for (number, state) in hosted.states().iter().enumerate() {
            let block_stride = units[state.group].bytes.next_multiple_of(256);
            let memory = Buffer::new(PAGES * block_stride).expect("memory");
            let start = NonNull::new(memory.address()).expect("an address");
            tables.push(Pages { states: vec![(number, start)], block_stride, blocks: PAGES });
            pages.push(memory);
        }
        // SAFETY: the pages live as long as the model.
        unsafe { hosted.bind_cache(&tables) }.expect("pages that fit");
        Framework { hosted, tensors, _pages: pages }
    }

    /// Where the device finds a step's tensor.
    fn tensor<T: Copy>(&mut self, number: usize, values: &[T]) -> *const T {
        let Some(memory) = self.tensors.get_mut(number) else { return values.as_ptr() };
        // SAFETY: numbers have no padding.
        let bytes = unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) };
        memory.upload(0, bytes).expect("room");
        memory.address().cast_const().cast()
    }

    /// Logits of a prompt's tokens from one on, in a step.
    fn step(&mut self, case: &Seen, (prompt, from, count): (usize, usize, usize)) -> Result<Vec<f32>, HostedError> {
        let ids: Vec<i32> = case.case.tokens(prompt)[from..][..count].iter().map(|&id| id as i32).collect();
        let places: Vec<i64> = (from..from + count).map(|token| token as i64).collect();
        let all: Vec<i32> = (0..PAGES as i32).collect();
        let (starts, lengths) = ([0, count as i32], [(from + count) as i32]);
        let table = Table { pages: self.tensor(4, &all), stride: PAGES };
        let tables = vec![table; self.hosted.tables().len()];
        let batch = Batch {
            ids: self.tensor(0, &ids),
            positions: self.tensor(1, &places),
            starts: self.tensor(2, &starts),
            lengths: self.tensor(3, &lengths),
            tables: &tables,
            sequences: 1,
            tokens: count,
            each: usize::from(count == 1),
            draft: false,
            embedded: false,
        };
        let (sight, sources) = (case.sight(prompt), case.sources(prompt));
        let [axes, taken] = [self.hosted.axes(), self.hosted.sources()].map(|rows| rows.expect("an input"));
        // SAFETY: the tensors have those sizes and outlive the step; rows are written within
        // theirs.
        unsafe {
            self.hosted.begin(&batch, Stream::default())?;
            for token in 0..count {
                let positions = sight.position(from + token);
                positions.into_iter().enumerate().for_each(|(axis, position)| set(&axes, axis, token, position));
                set(&taken, token, 0, sources[from + token]);
            }
            assert!(self.hosted.run()?.is_none());
            let (hidden, head) = (self.hosted.hidden(), self.hosted.head_input());
            let bytes = count * hidden.stride * hidden.dtype.size();
            std::ptr::copy_nonoverlapping(hidden.address, head.address, bytes);
            let logits = self.hosted.head(count, Stream::default())?;
            let row = |row: usize| std::slice::from_raw_parts(row_of::<f32>(&logits, row), logits.width);
            Ok((0..count).flat_map(|number| row(number).to_vec()).collect())
        }
    }

    /// Writes rows where steps take them.
    fn give(&mut self, numbers: &[f32]) {
        let given = self.hosted.given().expect("an input");
        assert_eq!(given.dtype, DType::F32);
        for (row, own) in numbers.chunks(given.width).enumerate() {
            // SAFETY: there are more rows than tokens in a prompt.
            own.iter().enumerate().for_each(|(column, &number)| unsafe { set(&given, row, column, number) });
        }
    }

    /// Logits of all prompts with rows that were made of their images, in pieces that end within
    /// images and then token by token.
    fn check(&mut self, case: &Seen, what: &str, rows: impl Fn(&mut Hosted, usize) -> Vec<f32>) {
        for prompt in 0..case.prompts() {
            let made = rows(&mut self.hosted, prompt);
            self.give(&made);
            let (tokens, mut logits) = (case.case.tokens(prompt).len(), vec![]);
            let mut from = 0;
            for piece in [7, 5].into_iter().chain(std::iter::repeat(1)) {
                let count = piece.min(tokens - from);
                if count == 0 {
                    break;
                }
                logits.extend(self.step(case, (prompt, from, count)).expect("a step"));
                from += count;
            }
            near(&format!("{what}, logits of {prompt}"), &logits, &case.numbers("prefill", prompt), 1.0);
        }
    }
}

fn row_of<T>(rows: &Rows, row: usize) -> *mut T {
    rows.address.cast::<T>().wrapping_add(row * rows.stride)
}

/// # Safety
/// The rows are of a live model, and of such numbers.
unsafe fn set<T>(rows: &Rows, row: usize, column: usize, value: T) {
    // SAFETY: passed on to the caller.
    unsafe { row_of::<T>(rows, row).add(column).write(value) }
}

fn near(what: &str, made: &[f32], reference: &[f64], size: f64) {
    assert_eq!(made.len(), reference.len(), "{what}");
    let error = made.iter().zip(reference).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max);
    assert!(error < F32 * size, "{what}: off by {error:e}");
}

/// The rows that a tower makes of a prompt's images.
fn look(case: &Seen, hosted: &mut Hosted, prompt: usize) -> Vec<f32> {
    let numbers = hosted.tiling().expect("a tower").numbers();
    let (pixels, mut next) = (case.numbers("pixels", prompt), 0);
    let image = |grid: atomc_runtime::sight::Grid| {
        let own = &pixels[next..][..grid.patches() * numbers];
        next += own.len();
        Image { grid, numbers: own.iter().map(|&v| v as f32).collect() }
    };
    let images: Vec<Image> = case.grids(prompt).into_iter().map(image).collect();
    let rows = hosted.look(&images.iter().collect::<Vec<_>>()).expect("rows");
    let made: Vec<f32> = rows.iter().flat_map(|rows| rows.numbers.iter().copied()).collect();
    let reference = case.numbers("rows", prompt);
    let size = reference.iter().fold(1.0f64, |size, v| size.max(v.abs()));
    near(&format!("{}, rows of {prompt}", case.case.name), &made, &reference, size);
    made
}

#[test]
fn images_on_the_host() {
    for case in cases() {
        let opened = Hosted::open(artifact(&case, "host"), &options(Images::Seen), None);
        if ["gemma3", "mistral3"].contains(&&case.case.name[..]) {
            let refused = opened.expect_err("tokens have one position").to_string();
            assert!(refused.starts_with("target `host` was compiled with --tower"), "{refused}");
            continue;
        }
        let hosted = opened.expect("it opens");
        let mut framework = Framework::new(&case, hosted, vec![]);
        framework.check(&case, &case.case.name, |hosted, prompt| look(&case, hosted, prompt));
    }
}

/// A device that makes the inputs itself leaves rows and positions as the framework wrote them.
#[test]
fn rows_on_emulated_gfx942() {
    let chip = "gfx942";
    for case in cases().iter().filter(|case| ["qwen3vl", "3.5"].contains(&&case.case.name[..])) {
        let artifact = artifact(case, chip);
        let mut device = Emulated::open(&artifact, chip, 1, Default::default()).expect("a chip");
        let sizes = [TOKENS * 4, TOKENS * 8, 8, 4, PAGES * 4];
        let tensors = sizes.map(|bytes| device.allocate(bytes).expect("memory")).into();
        let opened = Hosted::with_device(artifact, chip, Box::new(device), &options(Images::Absent), None);
        let mut framework = Framework::new(case, opened.expect("it opens"), tensors);
        let rows = |_: &mut Hosted, prompt| case.numbers("rows", prompt).iter().map(|&v| v as f32).collect();
        framework.check(case, &format!("{} on {chip}", case.case.name), rows);
    }
}

#[test]
fn what_is_not_there_is_refused() {
    let case = &cases()[0];
    let hosted = Hosted::open(artifact(case, "host"), &options(Images::Absent), None).expect("it opens");
    let mut framework = Framework::new(case, hosted, vec![]);
    assert!(matches!(framework.hosted.look(&[]), Err(HostedError::NoTower)));
    framework.step(case, (0, 0, 5)).expect("text");
    let taken = framework.hosted.sources().expect("an input");
    let (ids, places, starts, lengths, pages) = ([1], [0], [0, 1], [1], [0; PAGES]);
    let table = Table { pages: pages.as_ptr(), stride: PAGES };
    let tables = vec![table; framework.hosted.tables().len()];
    let batch = Batch {
        ids: ids.as_ptr(),
        positions: places.as_ptr(),
        starts: starts.as_ptr(),
        lengths: lengths.as_ptr(),
        tables: &tables,
        sequences: 1,
        tokens: 1,
        each: 1,
        draft: false,
        embedded: false,
    };
    // SAFETY: the tensors have those sizes; a step that is refused follows nothing.
    let refused = unsafe {
        framework.hosted.begin(&batch, Stream::default()).expect("a step");
        set(&taken, 0, 0, 1 << 20);
        framework.hosted.run().expect_err("no such row")
    };
    let rows = framework.hosted.given().expect("an input").rows;
    assert_eq!(refused.to_string(), format!("sources: row 1048576 of {rows}"));
}
