//! The kernel by which ranks sum rows, on emulated chips that see each other's memory.
use std::ptr::null_mut;

use atomc::driver::{self, Options};
use atomc::emulated::Emulated;
use atomc_passes::BucketOptions;
use atomc_runtime::Artifact;
use atomc_runtime::device::{Device, InputAddresses, Memory, StepInputs, StepSize};
use atomc_runtime::manifest::{Attention, Call, DType, Logits, Place, Plan, PlanKind, Work};
use atomc_runtime::weights::Rank;
use atomc_tests::cases;
use half::bf16;

/// Numbers of a row, one for each lane and more for padding.
const WIDTH: usize = 1000;
const STRIDE: usize = 1024;

/// What ranks sum: rows of bf16, with rows that are added behind them in the arena if they are.
#[derive(Clone, Copy)]
struct Sum {
    ranks: usize,
    rows: usize,
    added: bool,
}

impl Sum {
    fn bytes(self) -> usize {
        self.rows * STRIDE * size_of::<bf16>()
    }

    /// Numbers whose sum depends on the order: of a rank, or those that are added.
    fn numbers(self, rank: usize) -> Vec<bf16> {
        let number = |i: usize| ((i * 31 + rank * 17) % 251) as f32 * [1.0, -1.0, 256.0][rank % 3] / 7.0;
        (0..self.rows * STRIDE).map(|i| bf16::from_f32(number(i))).collect()
    }

    /// The sums in the order of the ranks.
    fn wanted(self) -> Vec<bf16> {
        let parts: Vec<Vec<bf16>> = (0..=self.ranks).map(|rank| self.numbers(rank)).collect();
        let sum = |i: usize| {
            let sum = bf16::from_f32(parts[..self.ranks].iter().fold(0.0, |sum, part| sum + part[i].to_f32()));
            if self.added { bf16::from_f32(sum.to_f32() + parts[self.ranks][i].to_f32()) } else { sum }
        };
        (0..self.rows * STRIDE).map(sum).collect()
    }

    fn plan(self) -> Plan {
        let place = |offset| Place { offset, width: WIDTH, stride: STRIDE, dtype: DType::BF16 };
        let work = Work::AllReduce { value: place(0), added: self.added.then(|| place(self.bytes())) };
        Plan {
            kind: PlanKind::Any,
            tokens: self.rows,
            rows: 1,
            arena_bytes: 2 * self.bytes(),
            attention: Attention::Own,
            draft: false,
            launches: vec![],
            body: 0,
            calls: vec![Call { before: 0, work }],
            hidden: vec![],
            logits: Logits { offset: 0, width: 1, stride: 1 },
            picks: None,
        }
    }

    /// A rank's memory, with its numbers.
    fn memory(self, device: &mut Emulated, rank: usize) -> Memory {
        let mut buffer = |bytes| device.allocate(bytes).expect("memory");
        let (mut arena, block) = (buffer(2 * self.bytes()), buffer(4096));
        let bytes = |numbers: Vec<bf16>| numbers.into_iter().flat_map(bf16::to_le_bytes).collect::<Vec<u8>>();
        arena.upload(0, &bytes(self.numbers(rank))).expect("room");
        arena.upload(self.bytes(), &bytes(self.numbers(self.ranks))).expect("room");
        let (step, none) = (block.address(), null_mut());
        let inputs = InputAddresses {
            block: step,
            step,
            ids: none,
            positions: none,
            lengths: none,
            rows: none,
            sources: none,
            adapters: none,
            times: none,
            heights: none,
            widths: none,
            ends: none,
            taps: none,
            shares: none,
            given: none,
            batches: none,
        };
        let (hidden, workspace) = (buffer(256), buffer(256));
        Memory { weights: vec![block], states: vec![], arena, hidden, head_input: None, workspace, inputs }
    }
}

/// An artifact with the kernel, for a number of ranks.
fn artifact(chip: &str) -> Artifact {
    let case = cases().into_iter().find(|case| case.name == "llama2").expect("a golden model");
    let buckets = BucketOptions { decode: vec![1], each: 1, tokens: 8, rows: 8 };
    let options = Options { targets: vec![chip.into()], buckets, ranks: 2, ..Options::default() };
    let compiled = driver::compile(&case.config, &options, &mut |_, _, _| ()).expect("a model for two ranks");
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join("m.atomc");
    compiled.write(&path).expect("an artifact");
    Artifact::open(&path).expect("a whole artifact")
}

/// Every rank's rows after some sums of the same numbers.
fn summed(chip: &str, sum: Sum, times: usize) -> Vec<Vec<bf16>> {
    let (artifact, plans) = (artifact(chip), [sum.plan()]);
    let open = |_| Emulated::open(&artifact, chip, 1, Default::default()).expect("a device");
    let mut devices: Vec<Emulated> = (0..sum.ranks).map(open).collect();
    let offers: Vec<_> =
        devices.iter_mut().map(|device| device.offer(sum.ranks, &plans).expect("memory").expect("a kernel")).collect();
    for (number, device) in devices.iter_mut().enumerate() {
        assert!(offers.iter().all(|offer| device.reach(offer).expect("an answer")));
        device.join(Rank { number, of: sum.ranks }, Some(&offers)).expect("memory");
    }
    let run = |(rank, device): (usize, &mut Emulated)| {
        let mut memory = sum.memory(device, rank);
        // SAFETY: the memory is the device's, and stays until the end of this function; the kernel
        // takes all its parameters from the plan.
        unsafe { device.bind(&plans, &memory) }.expect("a plan");
        let size = StepSize::largest(&plans[0]);
        let step: Vec<u8> = [size.step.tokens, size.step.rows].into_iter().flat_map(i64::to_le_bytes).collect();
        let numbers: Vec<u8> = sum.numbers(rank).into_iter().flat_map(bf16::to_le_bytes).collect();
        for _ in 0..times {
            memory.arena.upload(0, &numbers).expect("room");
            // SAFETY: bound above; the step fits the plan.
            unsafe { device.run(0, StepInputs { size, bytes: &step }, None) }.expect("a sum");
        }
        let mut bytes = vec![0; sum.bytes()];
        memory.arena.download(0, &mut bytes).expect("room");
        bytes.as_chunks().0.iter().map(|&number| bf16::from_le_bytes(number)).collect()
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = devices.iter_mut().enumerate().map(|rank| scope.spawn(|| run(rank))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank")).collect()
    })
}

fn checked(chip: &str, sum: Sum, times: usize) {
    let want = sum.wanted();
    for (rank, got) in summed(chip, sum, times).iter().enumerate() {
        let Sum { ranks, rows, .. } = sum;
        let wrong = got.iter().zip(&want).position(|(got, want)| got.to_bits() != want.to_bits());
        assert!(wrong.is_none(), "{chip}, rank {rank} of {ranks}, {rows} rows: number {wrong:?} is wrong");
    }
}

/// Few rows in one step, with signals among them, three times over both halves of the slots.
#[test]
fn few_rows() {
    for chip in ["gfx90a", "gfx942", "gfx1100", "gfx1201"] {
        checked(chip, Sum { ranks: 2, rows: 3, added: true }, 3);
    }
    checked("gfx942", Sum { ranks: 3, rows: 2, added: false }, 3);
}

/// Many rows in two steps: more than a work-group takes at once, and a number that ranks do not
/// divide.
#[test]
fn many_rows() {
    checked("gfx942", Sum { ranks: 2, rows: 515, added: true }, 2);
    checked("gfx942", Sum { ranks: 2, rows: 4200, added: false }, 1);
    checked("gfx1201", Sum { ranks: 3, rows: 270, added: false }, 3);
}
