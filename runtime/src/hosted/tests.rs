use super::*;
use crate::checkpoint::{CheckpointError, Float};
use crate::memory::Buffer;
use crate::sample::greedy;
use crate::toy::{self, BLOCK, MAX_POSITIONS, VOCAB};
use crate::weights::Given;
use std::ptr::NonNull;

const STRIDE: usize = 512;
const PAGES: usize = 80;
const NO_STEP: &str = "run: no step is under way; begin one, and again after weights were loaded or unloaded";

/// A framework that schedules by itself: pages with gaps between them, tables of its own, steps
/// with padding.
struct Framework {
    hosted: Hosted,
    /// Keeps the memory of the pages.
    _pages: Buffer,
    free: Vec<i32>,
    sequences: Vec<Sequence>,
}

#[derive(Default)]
struct Sequence {
    tokens: Vec<u32>,
    table: Vec<i32>,
}

fn options() -> HostedOptions {
    HostedOptions {
        device: DeviceChoice::default(),
        threads: 2,
        rank: 0,
        attention: Attention::Own,
        draft: false,
        images: Default::default(),
        stream: Stream::default(),
    }
}

fn open() -> Hosted {
    Hosted::open(Arc::new(Artifact::open(toy::path()).unwrap()), &options(), None).unwrap()
}

/// The pages of the first states, which have one table.
fn given(pages: &[&Buffer], block_stride: usize, blocks: usize) -> Pages {
    let states = pages.iter().map(|pages| NonNull::new(pages.address()).unwrap()).enumerate().collect();
    Pages { states, block_stride, blocks }
}

fn bias(values: &[(usize, f32)]) -> Vec<u8> {
    let value = |i| values.iter().find(|(at, _)| *at == i).map_or(0.0, |(_, value)| *value);
    (0..VOCAB).flat_map(|i| f32::to_le_bytes(value(i))).collect()
}

fn load(hosted: &mut Hosted, values: &[(usize, f32)]) {
    hosted.begin_loading();
    let given = Given { float: Float::F32, shape: &[VOCAB], numbers: bias(values).into() };
    hosted.feed("head.bias", given).unwrap();
    hosted.finish_loading().unwrap();
}

impl Framework {
    fn new(sequences: usize) -> Framework {
        let mut hosted = open();
        load(&mut hosted, &[]);
        let mut pages = Buffer::new(PAGES * STRIDE).unwrap();
        // Values of an earlier owner.
        pages.as_mut_slice().fill(0x7f);
        // SAFETY: the buffer is that long and lives as long as the model.
        unsafe { hosted.bind_cache(&[given(&[&pages], STRIDE, PAGES)]) }.unwrap();
        let sequences = (0..sequences).map(|_| Sequence::default()).collect();
        Framework { hosted, _pages: pages, free: (1..PAGES as i32).collect(), sequences }
    }

    /// Gives sequences new tokens, in a step that is padded, and returns the likeliest token after
    /// each.
    fn step(&mut self, new: &[(usize, Vec<u32>)], padding: usize, decode: bool) -> Result<Vec<u32>, HostedError> {
        let (mut ids, mut positions, mut starts, mut lengths) = (vec![], vec![], vec![0], vec![]);
        let stride = MAX_POSITIONS / BLOCK;
        let mut tables = vec![];
        for (sequence, tokens) in new {
            let Sequence { tokens: all, table } = &mut self.sequences[*sequence];
            positions.extend((all.len()..).take(tokens.len()).map(|position| position as i64));
            ids.extend(tokens.iter().map(|&id| id as i32));
            all.extend(tokens);
            table.extend((table.len()..all.len().div_ceil(BLOCK)).map(|_| self.free.pop().unwrap()));
            starts.push(ids.len() as i32);
            lengths.push(all.len() as i32);
            tables.extend(table.iter().copied().chain(std::iter::repeat(0)).take(stride));
        }
        let last: Vec<usize> = starts[1..].iter().map(|&end| end as usize - 1).collect();
        // Padded tokens belong to no sequence, and padded sequences have no tokens.
        ids.extend(vec![-1; padding]);
        positions.extend(vec![-1; padding]);
        starts.extend(vec![starts[new.len()]; padding]);
        lengths.extend(vec![-1; padding]);
        tables.extend(vec![-1; padding * stride]);
        let batch = Batch {
            ids: ids.as_ptr(),
            positions: positions.as_ptr(),
            starts: starts.as_ptr(),
            lengths: lengths.as_ptr(),
            tables: &[Table { pages: tables.as_ptr(), stride }],
            sequences: lengths.len(),
            tokens: ids.len(),
            each: usize::from(decode),
            draft: false,
            embedded: false,
        };
        let hosted = &mut self.hosted;
        // SAFETY: the tensors have those sizes and outlive the step; rows are copied within their
        // buffers.
        unsafe {
            hosted.begin(&batch, Stream::default())?;
            assert!(hosted.run()?.is_none());
            let (from, to) = (hosted.hidden(), hosted.head_input());
            assert!(from.rows >= ids.len());
            let bytes = from.stride * from.dtype.size();
            let mut picks = vec![];
            for part in last.chunks(to.rows) {
                for (row, &token) in part.iter().enumerate() {
                    std::ptr::copy_nonoverlapping(from.address.add(token * bytes), to.address.add(row * bytes), bytes);
                }
                let logits = hosted.head(part.len(), Stream::default())?;
                let row = |row: usize| logits.address.cast::<f32>().add(row * logits.stride);
                picks.extend((0..part.len()).map(|r| greedy(std::slice::from_raw_parts(row(r), logits.width))));
            }
            Ok(picks)
        }
    }

    fn expected(&self, new: &[(usize, Vec<u32>)]) -> Vec<u32> {
        new.iter().map(|(sequence, _)| toy::next(&self.sequences[*sequence].tokens)).collect()
    }

    fn drop_sequence(&mut self, sequence: usize) {
        self.free.extend(std::mem::take(&mut self.sequences[sequence]).table);
    }
}

#[test]
fn steps_of_any_mixture() {
    let mut framework = Framework::new(4);
    let mut state = 3u64;
    let mut random = |below: usize| {
        state = crate::checkpoint::mix(state.wrapping_add(0x9e37_79b9_7f4a_7c15));
        state as usize % below
    };
    for turn in 0..300 {
        let decode = random(2) == 0;
        let mut new = vec![];
        let mut left = 38;
        for sequence in 0..4 {
            let room = MAX_POSITIONS - framework.sequences[sequence].tokens.len();
            if room == 0 {
                framework.drop_sequence(sequence);
            } else if random(3) > 0 {
                let count = if decode { 1 } else { 1 + random(room.min(left)) };
                left = left.saturating_sub(count).max(1);
                new.push((sequence, (0..count).map(|_| random(VOCAB) as u32).collect()));
            }
        }
        let tokens: usize = new.iter().map(|(_, tokens): &(usize, Vec<u32>)| tokens.len()).sum();
        if tokens > 38 {
            continue;
        }
        let picks = framework.step(&new, random(3), decode).unwrap();
        assert_eq!(picks, framework.expected(&new), "turn {turn}");
    }
}

#[test]
fn weights_are_loaded_again_in_place() {
    let mut framework = Framework::new(1);
    let address = framework.hosted.session.memory.weights[0].address();
    for token in [3, 50, 7] {
        load(&mut framework.hosted, &[(token, 1000.0)]);
        assert_eq!(framework.step(&[(0, vec![9])], 0, true).unwrap(), [token as u32]);
    }
    assert_eq!(framework.hosted.session.memory.weights[0].address(), address);
    let hosted = &mut framework.hosted;
    hosted.begin_loading();
    let wrong = Given { float: Float::F32, shape: &[1], numbers: vec![0; 4].into() };
    assert!(matches!(hosted.feed("head.bias", wrong), Err(Error::Checkpoint(CheckpointError::Shape { .. }))));
    let error = hosted.finish_loading().unwrap_err().to_string();
    assert_eq!(error, "the checkpoint lacks a tensor that the model needs: head.bias");
    let error = framework.step(&[(0, vec![9])], 0, true).unwrap_err().to_string();
    assert_eq!(error, "the weights are not loaded");
}

#[test]
fn weights_are_updated_without_an_end() {
    let mut framework = Framework::new(1);
    for token in [3, 50] {
        let values = bias(&[(token, 1000.0)]);
        framework.hosted.begin_update();
        framework
            .hosted
            .feed("head.bias", Given { float: Float::F32, shape: &[VOCAB], numbers: values.into() })
            .unwrap();
        assert_eq!(framework.step(&[(0, vec![9])], 0, true).unwrap(), [token as u32]);
    }
}

/// Trainers give a sleeping model its tensors one by one, each in an update of its own.
#[test]
fn weights_come_back_one_by_one() {
    let mut framework = Framework::new(1);
    load(&mut framework.hosted, &[]);
    framework.hosted.unload();
    for _ in 0..2 {
        framework.hosted.begin_update();
        framework.hosted.end_update().unwrap();
        let error = framework.step(&[(0, vec![9])], 0, true).unwrap_err().to_string();
        assert_eq!(error, "the weights are not loaded yet: a tensor to come: head.bias");
    }
    framework.hosted.begin_update();
    let wrong = Given { float: Float::F32, shape: &[1], numbers: vec![0; 4].into() };
    assert!(framework.hosted.feed("head.bias", wrong).is_err());
    framework.hosted.abandon_update();
    framework.hosted.begin_update();
    let values = bias(&[(7, 1000.0)]);
    framework.hosted.feed("head.bias", Given { float: Float::F32, shape: &[VOCAB], numbers: values.into() }).unwrap();
    framework.hosted.end_update().unwrap();
    assert_eq!(framework.step(&[(0, vec![9])], 0, true).unwrap(), [7]);

    // A tensor that was never loaded has to be given whole.
    let mut hosted = open();
    hosted.begin_update();
    let error = hosted.end_update().unwrap_err().to_string();
    assert_eq!(error, "the checkpoint lacks a tensor that the model needs: head.bias");
}

/// An update that fails when weights are new already leaves none; one that has changed nothing
/// leaves the old ones.
#[test]
fn failed_updates_leave_no_mixture() {
    let mut framework = Framework::new(1);
    load(&mut framework.hosted, &[(3, 1000.0)]);
    let wrong = || Given { float: Float::F32, shape: &[1], numbers: vec![0; 4].into() };
    let hosted = &mut framework.hosted;
    hosted.begin_update();
    assert!(hosted.feed("head.bias", wrong()).is_err());
    hosted.abandon_update();
    assert_eq!(framework.step(&[(0, vec![9])], 0, true).unwrap(), [3]);

    framework.hosted.forget_mixed();
    framework.drop_sequence(0);
    let error = framework.step(&[(0, vec![9])], 0, true).unwrap_err().to_string();
    let mixed =
        "an update of the weights failed when some were new: all have to come again; a tensor to come: head.bias";
    assert_eq!(error, mixed);
    framework.hosted.begin_update();
    let all = Given { float: Float::F32, shape: &[VOCAB], numbers: bias(&[(7, 1000.0)]).into() };
    framework.hosted.feed("head.bias", all).unwrap();
    framework.hosted.end_update().unwrap();
    framework.drop_sequence(0);
    assert_eq!(framework.step(&[(0, vec![9])], 0, true).unwrap(), [7]);
}

#[test]
fn steps_end_with_their_weights() {
    let mut framework = Framework::new(1);
    let feed = |hosted: &mut Hosted| {
        hosted.feed("head.bias", Given { float: Float::F32, shape: &[VOCAB], numbers: bias(&[]).into() }).unwrap();
    };
    let changes: [&dyn Fn(&mut Hosted); 4] = [
        &Hosted::unload,
        &Hosted::begin_loading,
        &|hosted| {
            hosted.begin_update();
            feed(hosted);
        },
        &|hosted| hosted.load(&toy::Bias(bias(&[])), &|_, _| ()).unwrap(),
    ];
    let (ids, positions, starts, lengths, tables) = ([1], [0], [0, 1], [1], [0; MAX_POSITIONS / BLOCK]);
    let batch = Batch {
        ids: ids.as_ptr(),
        positions: positions.as_ptr(),
        starts: starts.as_ptr(),
        lengths: lengths.as_ptr(),
        tables: &[Table { pages: tables.as_ptr(), stride: tables.len() }],
        sequences: 1,
        tokens: 1,
        each: 1,
        draft: false,
        embedded: false,
    };
    for (number, change) in changes.into_iter().enumerate() {
        load(&mut framework.hosted, &[]);
        // SAFETY: the arrays have those sizes and outlive the step.
        unsafe { framework.hosted.begin(&batch, Stream::default()) }.unwrap();
        change(&mut framework.hosted);
        // SAFETY: as above.
        let error = unsafe { framework.hosted.run() }.unwrap_err().to_string();
        assert_eq!(error, NO_STEP, "change {number}");
    }
    framework.hosted.unload();
    // SAFETY: a call that is refused uses none of its arguments.
    let ends = unsafe { [framework.hosted.head(1, Stream::default()), framework.hosted.embed(1, Stream::default())] };
    assert!(ends.iter().all(|end| matches!(end, Err(HostedError::NoWeights))));
}

#[test]
fn refuses_what_cannot_be() {
    let mut hosted = open();
    let pages = Buffer::new(PAGES * STRIDE).unwrap();
    // SAFETY: a call that is refused uses none of its arguments.
    let mut bound = |tables: &[Pages]| unsafe { hosted.bind_cache(tables).unwrap_err().to_string() };
    let one = |stride, blocks| given(&[&pages], stride, blocks);
    assert_eq!(
        bound(&[given(&[], STRIDE, 4)]),
        "states: pages of [], but the model keeps 1, which want pages once each"
    );
    let twice = "states: pages of [0, 0], but the model keeps 1, which want pages once each";
    assert_eq!(bound(&[one(STRIDE, 4), one(STRIDE, 4)]), twice);
    assert_eq!(bound(&[one(STRIDE, 4), given(&[], STRIDE, 4)]), "states: a table of none");
    assert_eq!(bound(&[one(31, 4)]), "block_stride: 31 is not a multiple of 256 below 4 GiB, and at least a page, 32");
    assert_eq!(bound(&[one(256, 0)]), "blocks: 0 pages of 256 bytes");
    // SAFETY: there is no step.
    assert_eq!(unsafe { hosted.run() }.unwrap_err().to_string(), NO_STEP);

    let mut framework = Framework::new(2);
    let mut refused = |new: &[(usize, Vec<u32>)], decode| {
        let error = framework.step(new, 0, decode).unwrap_err().to_string();
        framework.drop_sequence(0);
        error
    };
    assert_eq!(refused(&[(0, vec![1; 41])], false), "tokens: 41 in a step, but no plan takes more than 40");
    assert_eq!(refused(&[(0, vec![1, 97])], false), "sequence 0: ids: 97, but the vocabulary ends at 96");
    assert_eq!(
        refused(&[(1, vec![1]), (0, vec![1, 2])], true),
        "sequence 1: each: 2 tokens in a step of at most 1 of a sequence"
    );
    framework.sequences[0].table = vec![80];
    let error = framework.step(&[(0, vec![1])], 0, true).unwrap_err().to_string();
    assert_eq!(error, "sequence 0: tables: page 80 of 80");
    // SAFETY: a call that is refused uses none of its arguments.
    let error = unsafe { framework.hosted.head(4, Stream::default()) }.map(|rows| rows.rows);
    assert_eq!(error.unwrap(), 4);
    // SAFETY: as above.
    let error = unsafe { framework.hosted.head(5, Stream::default()) }.unwrap_err().to_string();
    assert_eq!(error, "rows: 5 at once, but no plan takes more than 4");
    let input = framework.hosted.embed_input();
    assert_eq!((input.rows, input.width, input.dtype), (40, 1, DType::I32));
    let mut embedded = |tokens, id| {
        // SAFETY: the input has room for more tokens, and a call that is refused uses none of its
        // arguments.
        unsafe {
            input.address.cast::<i32>().add(1).write(id);
            framework.hosted.embed(tokens, Stream::default()).unwrap_err().to_string()
        }
    };
    assert_eq!(embedded(2, 97), "ids: 97, but the vocabulary ends at 96");
    assert_eq!(embedded(2, -1), "ids: -1, but the vocabulary ends at 96");
    assert_eq!(embedded(41, 3), "tokens: 41 in a step, but no plan takes more than 40");
    assert_eq!(embedded(2, 3), "the artifact has no place for embeddings");
}

#[test]
fn memory_is_the_callers() {
    let mut given: Vec<Buffer> = vec![];
    let mut give = |bytes| {
        given.push(Buffer::new(bytes).unwrap());
        Ok(NonNull::new(given[given.len() - 1].address()).unwrap())
    };
    let artifact = Arc::new(Artifact::open(toy::path()).unwrap());
    let mut hosted = Hosted::open(artifact.clone(), &options(), Some(&mut give)).unwrap();
    load(&mut hosted, &[(2, 5.0)]);
    // One weight, the arena, and rows before and in the head.
    assert_eq!(given.len(), 4);
    assert_eq!(given[0].as_slice()[..VOCAB * 4], bias(&[(2, 5.0)])[..]);
    assert_eq!(hosted.hidden().address, given[2].address());
    let mut refuse = |bytes| Err(format!("no {bytes} bytes left"));
    let error = Hosted::open(artifact.clone(), &options(), Some(&mut refuse)).unwrap_err().to_string();
    assert_eq!(error, "allocate: no 644 bytes left");
    let rank = HostedOptions { rank: 1, ..options() };
    let error = Hosted::open(artifact.clone(), &rank, None).unwrap_err().to_string();
    assert_eq!(error, "rank: 1, but the artifact is for 1, which count from 0");
    let caller = HostedOptions { attention: Attention::Caller, ..options() };
    let error = Hosted::open(artifact, &caller, None).unwrap_err().to_string();
    assert_eq!(
        error,
        "attention: target `host` has no plans that leave it to `caller`; compile with --attention caller"
    );
}
