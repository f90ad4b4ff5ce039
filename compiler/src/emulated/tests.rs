use super::*;
use atomc_artifact::manifest::*;
use atomc_emulator::isa::Isa;
use atomc_runtime::checkpoint::{CheckpointError, Float, Source, Tensor};
use atomc_runtime::{Engine, EngineOptions, Request, Want};
use tempfile::TempDir;

const VOCAB: usize = 32;

/// `logits[row][lane] = bias[lane] + token id of the row`, and what a test adds.
fn kernel(extra: &str) -> String {
    format!(
        "
define amdgpu_kernel void @head(ptr addrspace(1) %ids, ptr addrspace(1) %rows, ptr addrspace(1) %bias,
                                ptr addrspace(1) %logits, ptr addrspace(1) %step, ptr addrspace(1) %workspace) {{
  %group32 = call i32 @llvm.amdgcn.workgroup.id.x()
  %lane32 = call i32 @llvm.amdgcn.workitem.id.x()
  %group = zext i32 %group32 to i64
  %lane = zext i32 %lane32 to i64
  %count.at = getelementptr i64, ptr addrspace(1) %step, i64 1
  %count = load i64, ptr addrspace(1) %count.at
  %row.exists = icmp slt i64 %group, %count
  %lane.exists = icmp slt i64 %lane, {VOCAB}
  %works = and i1 %row.exists, %lane.exists
  br i1 %works, label %work, label %end
work:
  %row.at = getelementptr i32, ptr addrspace(1) %rows, i64 %group
  %row = load i32, ptr addrspace(1) %row.at
  %id.at = getelementptr i32, ptr addrspace(1) %ids, i32 %row
  %id = load i32, ptr addrspace(1) %id.at
  %value = sitofp i32 %id to float
  %bias.at = getelementptr float, ptr addrspace(1) %bias, i64 %lane
  %b = load float, ptr addrspace(1) %bias.at
  %sum = fadd float %value, %b
  %first = mul i64 %group, {VOCAB}
  %place = add i64 %first, %lane
  %logit.at = getelementptr float, ptr addrspace(1) %logits, i64 %place
  store float %sum, ptr addrspace(1) %logit.at
  {extra}
  br label %end
end:
  ret void
}}
declare i32 @llvm.amdgcn.workgroup.id.x()
declare i32 @llvm.amdgcn.workitem.id.x()
"
    )
}

fn plan(kind: PlanKind, tokens: usize, rows: usize) -> Plan {
    let input = |which| Arg::Input { which };
    let args = vec![input(Input::Ids), input(Input::Rows), Arg::Weight { index: 0 }, Arg::Arena { offset: 64 }];
    let launch = atomc_artifact::manifest::Launch {
        kernel: 0,
        args,
        segment: 0,
        location: "head".into(),
        bytes: 128,
        flops: 32,
        chosen: None,
    };
    let (logits, arena_bytes) = (Logits { offset: 64, width: VOCAB, stride: VOCAB }, 64 + rows * VOCAB * 4);
    let (attention, calls, hidden) = (Attention::Own, vec![], vec![]);
    let body = usize::from(kind == PlanKind::Whole);
    Plan {
        kind,
        draft: false,
        tokens,
        rows,
        arena_bytes,
        attention,
        launches: vec![launch],
        body,
        calls,
        hidden,
        logits,
        picks: None,
    }
}

fn manifest(chip: &str) -> Manifest {
    let bias = WeightExpr::Tensor { name: "bias".into(), shape: vec![VOCAB] };
    let weight = Weight {
        name: "bias".into(),
        dtype: DType::F32,
        shape: vec![VOCAB],
        layout: Layout::Rows { stride: VOCAB },
        bytes: VOCAB * 4,
        expr: bias,
        unsigned_zeros: false,
    };
    let block = 8 * 8 * 2;
    let stream = |name: &str, start, layout| PageStream {
        name: name.into(),
        at: Extent { start, bytes: block },
        dtype: DType::BF16,
        heads: 1,
        width: 1,
        layout,
    };
    let streams = vec![stream("k", 0, StreamLayout::Tokens), stream("v", block, StreamLayout::Numbers)];
    let tasks = Tasks::Rows { per: 1, times: 1 };
    let target = Target {
        name: chip.into(),
        invariant: false,
        layout: DataLayout { row: 8, alias: 1024, rows: 1, panel: 8, group_bytes: 16, block_tokens: 8, align: 256 },
        weights: vec![weight],
        states: vec![State { layer: 0, group: 0 }],
        groups: vec![StateGroup::Paged(Paged { block_bytes: 2 * block, streams, window: 0, every: 1 })],
        hidden: Hidden { dtype: DType::BF16, width: 1, stride: 1, bytes: 64 },

        draft: None,
        given: None,
        kernels: vec![KernelDef {
            symbol: "head".into(),
            family: "rows".into(),
            body: "graph @k(%a0: i32[T], %a1: i32[R], %a2: f32[32]) {\n  %0 = head : f32[R, 32]\n  return %0\n}\n"
                .into(),
            tokens: 8,
            each: None,
        }],
        variants: vec![Variant {
            name: chip.into(),
            features: vec![chip.into()],
            chip: None,
            executed: true,
            section: 1,
            kernels: vec![Kernel {
                schedule: "rowwise".into(),
                tasks,
                scratch: 0,
                threads: 64,
                workspace: 64,
                shared: 0,
                rate: 1,
                overlaps: false,
                together: 1,
                module: None,
                resources: None,
            }],
            prepare: None,
            pack: None,
            exchange: None,
        }],
        plans: vec![plan(PlanKind::Decode, 4, 4), plan(PlanKind::Any, 8, 2), plan(PlanKind::Whole, 8, 2)],
    };
    let model = Model {
        architecture: "Toy".into(),
        layers: 1,
        hidden: 1,
        vocab: VOCAB,
        max_positions: 32,
        stop: vec![],
        bos: None,
    };
    let (producer, config) = ("test".into(), serde_json::json!({}));
    Manifest {
        producer,
        config,
        model,
        tensors: TensorNames::default(),
        tensor_parallel: 1,
        expert_parallel: 1,
        pipeline_parallel: 1,
        adapters: None,
        tower: None,
        targets: vec![target],
    }
}

struct Bias(Vec<u8>);

impl Source for Bias {
    fn tensor(&self, _: &str, _: &[usize]) -> Result<Tensor<'_>, CheckpointError> {
        Ok(Tensor::Bytes { float: Float::F32, bytes: &self.0 })
    }

    fn names(&self) -> Vec<&str> {
        vec!["bias"]
    }
}

fn artifact(dir: &TempDir, chip: &str, extra: &str) -> Artifact {
    let isa = Isa::find(chip).expect("a known chip");
    let code = atomc_emulator::testing::compile(&kernel(extra), isa);
    let path = dir.path().join("toy.atomc");
    atomc_artifact::write(&path, &manifest(chip), &[code]).expect("a sound manifest");
    Artifact::open(path).expect("an artifact")
}

/// An engine with the weights 0, 1/32, 2/32, …
fn engine(chip: &str, extra: &str) -> (Engine, Tally) {
    let dir = TempDir::new().expect("a folder");
    let artifact = artifact(&dir, chip, extra);
    let device = Emulated::open(&artifact, chip, 2, Options::default()).expect("a device");
    let tally = device.tally();
    let mut engine =
        Engine::with_device(artifact, chip, Box::new(device), &EngineOptions::default()).expect("an engine");
    let bias = (0..VOCAB).flat_map(|i| (i as f32 / 32.0).to_le_bytes()).collect();
    engine.load_weights(&Bias(bias), &|_, _| ()).expect("weights");
    (engine, tally)
}

#[test]
fn steps_run_on_several_chips() {
    for chip in ["gfx942", "gfx1201"] {
        let (mut engine, tally) = engine(chip, "");
        assert_eq!(engine.device_name(), format!("emu:{chip}"));
        let sequence = engine.add_sequence();
        // Three rows are one step of two and one of one.
        for (tokens, groups) in [(&[5, 6, 7][..], 2 + 4), (&[9], 4)] {
            tally.reset();
            let logits = engine.step(&[Request { sequence, tokens, logits: Want::All }]).expect("a step");
            for (row, &token) in logits.of(0).zip(tokens) {
                let wanted: Vec<f32> = (0..VOCAB).map(|i| token as f32 + i as f32 / 32.0).collect();
                assert_eq!(row, wanted, "{chip}");
            }
            let counts = tally.counts().into_iter().flatten().reduce(|mut sum, counts| {
                sum += counts;
                sum
            });
            let counts = counts.expect("plans");
            assert_eq!(counts.bytes_stored, (tokens.len() * VOCAB * 4) as u64);
            assert!(counts.waves >= groups, "{chip}: decode plans run at their largest grid");
        }
    }
}

#[test]
fn faults_name_the_kernel_and_the_place() {
    let fault = |extra: &str| {
        let (mut engine, _) = engine("gfx942", extra);
        let sequence = engine.add_sequence();
        let error = engine.step(&[Request { sequence, tokens: &[1], logits: Want::Last }]).expect_err("a fault");
        error.to_string()
    };
    let weight = fault("store float %sum, ptr addrspace(1) %bias.at");
    assert!(weight.starts_with("emu:gfx942: kernel `head`, group (0, 0, 0) wave 0"), "{weight}");
    assert!(weight.contains("write of 4 bytes"), "{weight}");
    let beyond = fault(
        "%far.at = getelementptr float, ptr addrspace(1) %logits, i64 100000
         store float %sum, ptr addrspace(1) %far.at",
    );
    assert!(beyond.contains("outside all mapped ranges"), "{beyond}");
}

#[test]
fn chips_that_are_not_there() {
    let dir = TempDir::new().expect("a folder");
    let artifact = artifact(&dir, "gfx942", "");
    let error = Emulated::open(&artifact, "gfx950", 1, Options::fast()).err().expect("an error").to_string();
    assert_eq!(error, "the artifact has no code for target `gfx950`; it has: gfx942");
}

/// Of the work-groups that share a token's keys some are recorded, followed by the one that adds up
/// the sums of the others, which has most to do.
#[test]
fn the_part_that_adds_up_is_recorded() {
    use atomc_artifact::abi::Step;
    use atomc_emulator::timing::trace::Event;

    let trace = |events: usize| Trace { waves: vec![vec![Event::default(); events]], ..Trace::default() };
    let events = |traces: Vec<Trace>| traces.iter().map(|trace| trace.waves[0].len()).collect::<Vec<_>>();
    assert_eq!(events(longest_last([3, 5, 1, 4].map(trace).into())), [3, 1, 4, 5]);
    let many = events(longest_last((0..100).map(|i| trace(if i == 50 { 9 } else { 2 })).collect()));
    assert_eq!((many.len(), many[0], many[12]), (13, 2, 9));
    let size = StepSize { step: Step { tokens: 3, rows: 3 }, tiles: 0 };
    let tasks = Tasks::Tokens { per: 1, times: 38 };
    assert_eq!(["attend_one", "recur"].map(|family| shared(family, tasks, size)), [38, 1]);
}
