//! Models that ranks share out, and attention that the caller does: the parts, put together as a
//! framework would, against whole models and against transformers.
use std::collections::{BTreeMap, HashMap};

use atomc::driver::{self, Options};
use atomc::emulated::Emulated;
use atomc::frontend::{self, Config, InputScales, Part};
use atomc_artifact::manifest::{Attention, DType, Logits, Place, Plan, PlanKind, Target, Work};
use atomc_config::Kind;
use atomc_ir::interp::{self, BatchState, CacheState, Cx, SlotState, Tensor, Val};
use atomc_ir::{Elementwise, Graph, Op, Type, Value};
use atomc_passes::BucketOptions;
use atomc_runtime::batch::{Inputs, Room, TableRoom};
use atomc_runtime::device::{Device, Memory};
use atomc_runtime::states::Unit;
use atomc_runtime::weights::{self, Rank, Sink};
use atomc_runtime::{Artifact, Checkpoint, DeviceChoice, Engine, EngineOptions, Error};
use atomc_tests::{CONTEXT, Case, Mode, cases, cases_of_experts, cases_with_states};
use half::{bf16, f16};

/// How a case can be shared out among more than one rank, but for whole experts.
fn parts(config: &Config) -> Vec<Part> {
    let parts = (2..=4).map(|ranks| Part { ranks, ..Part::default() });
    parts.filter(|part| part.of(config).is_ok()).collect()
}

/// How ranks can hold experts of a case: all else is shared out too, or not.
fn parts_with_experts(config: &Config) -> Vec<Part> {
    let parts =
        (2..=4).flat_map(|expert_ranks| [1, expert_ranks].map(|ranks| Part { ranks, expert_ranks, ..Part::default() }));
    parts.filter(|part| part.of(config).is_ok()).collect()
}

mod meaning {
    use super::*;

    fn is_state(ty: &Type) -> bool {
        matches!(ty, Type::Cache(_) | Type::Slots(_))
    }

    /// All ranks in one graph: each with its shards as slices of the weights and with states of its
    /// own, and with sums in place of calls.
    fn joined(graph: &Graph, ranks: usize, vocab: usize) -> Graph {
        let mut all = Graph::new("joined");
        let mut made: HashMap<(Value, usize), Value> = HashMap::new();
        for id in graph.order() {
            let (op, location) = (graph.op(id), graph.location(id));
            let operands = |made: &HashMap<(Value, usize), Value>, rank| -> Vec<Value> {
                graph.operands(id).into_iter().map(|v| made[&(v, rank)]).collect()
            };
            if let Op::AllReduce {} = op {
                let parts: Vec<Value> = (0..ranks).map(|rank| operands(&made, rank)[0]).collect();
                let mut add = |a: Value, b: &Value| {
                    all.push(Op::Map(Elementwise::Add), &[a, *b], location).expect("parts of one shape").into()
                };
                let sum = parts[1..].iter().fold(parts[0], &mut add);
                let sum = operands(&made, 0).get(1).map_or(sum, |added| add(sum, added));
                made.extend((0..ranks).map(|rank| ((id.into(), rank), sum)));
                continue;
            }
            if let Op::AllGather { ranks: parts } = op {
                let parts: Vec<Value> = (0..*parts).map(|rank| operands(&made, rank)[0]).collect();
                let whole = all.push(Op::Concat { axis: 1 }, &parts, location).expect("parts of one shape").into();
                made.extend((0..ranks).map(|rank| ((id.into(), rank), whole)));
                continue;
            }
            for rank in 0..ranks {
                let copy = match op {
                    Op::Input { name } if is_state(graph.ty(id.into())) => {
                        all.input(format!("{name}.{rank}"), graph.ty(id.into()).clone())
                    }
                    Op::Input { .. } if rank > 0 => made[&(id.into(), 0)],
                    Op::Input { name } => all.input(name.clone(), graph.ty(id.into()).clone()),
                    &Op::Shard { axis, parts } => {
                        let shape = graph.ty(id.into()).as_tensor().and_then(|t| t.shape.sizes()).expect("a weight");
                        let (len, start) = (shape[axis], rank * parts / ranks * shape[axis]);
                        let slice = Op::Slice { axis, start, len };
                        all.push(slice, &operands(&made, rank), location).expect("a part").into()
                    }
                    op => all.add(op.clone(), &operands(&made, rank), graph.types(id).to_vec(), location).into(),
                };
                for out in 0..graph.types(id).len() {
                    made.insert((Value { node: id, out }, rank), Value { node: copy.node, out });
                }
            }
        }
        let states = graph.outputs().iter().filter(|v| is_state(graph.ty(**v)));
        let logits = graph.outputs()[0];
        let parts = graph.ty(logits).as_tensor().and_then(|t| t.shape.last()).map_or(1, |width| vocab / width);
        let logits: Vec<Value> = (0..parts).map(|rank| made[&(logits, rank)]).collect();
        let logits = match logits[..] {
            [all] => all,
            _ => all.push(Op::Concat { axis: 1 }, &logits, "").expect("parts of one shape").into(),
        };
        let outputs = std::iter::once(logits)
            .chain(states.flat_map(|&v| (0..ranks).map(move |rank| (v, rank))).map(|place| made[&place]));
        all.set_outputs(outputs.collect());
        all.verify().unwrap_or_else(|e| panic!("{e}"));
        all
    }

    /// Logits of a sequence that begins with the first tokens, and continues with the others if the
    /// graph has caches.
    fn run(graph: &Graph, case: &Case, pieces: &[&[u32]]) -> Vec<f64> {
        let weights: HashMap<String, Tensor<f64>> =
            case.weights_of(graph).into_iter().map(|(name, t)| (name, Tensor::new(t.shape, t.data))).collect();
        let (mut names, mut states) = (vec![], vec![]);
        for v in graph.inputs() {
            let state = match graph.ty(v) {
                Type::Cache(_) => Val::Cache(CacheState::default()),
                Type::Slots(ty) => Val::Slots(SlotState::new(ty)),
                _ => continue,
            };
            let Op::Input { name } = graph.op(v.node) else { unreachable!("inputs are inputs") };
            names.push(name.clone());
            states.push(state);
        }
        let (mut logits, mut from) = (vec![], 0);
        for piece in pieces {
            let n = piece.len();
            let positions: Vec<i32> = (from..from + n).map(|p| p as i32).collect();
            let batch = BatchState { sequences: vec![0; n], positions: positions.clone() };
            let mut params: BTreeMap<String, Val<f64>> = BTreeMap::from([
                ("ids".into(), Val::Int(piece.iter().map(|&t| t as i32).collect())),
                ("positions".into(), Val::Int(positions)),
                ("lengths".into(), Val::Int(vec![(from + n) as i32; n])),
                ("rows".into(), Val::Int((0..n as i32).collect())),
                ("batch".into(), Val::Batch(batch)),
            ]);
            params.extend(names.iter().cloned().zip(states.drain(..)));
            let out = interp::run(graph, Cx::of(n, n), &params, &|name| weights.get(name).cloned())
                .unwrap_or_else(|e| panic!("{}: {e}", case.name));
            logits.extend(&out[0].float().expect("logits").data);
            states.extend_from_slice(&out[1..=names.len()]);
            from += n;
        }
        logits
    }

    #[track_caller]
    fn same(case: &Case, what: &str, got: &[f64], want: &[f64]) {
        let size = want.iter().fold(0.0, |m: f64, v| m.max(v.abs()));
        let off = got.iter().zip(want).fold(0.0, |m: f64, (a, b)| m.max((a - b).abs()));
        assert!(got.len() == want.len() && off <= 1e-9 * size, "{}, {what}: {off:e} of {size}", case.name);
    }

    /// Whether ranks make scales of parts of rows that the whole model makes of whole ones.
    fn has_scales_of_its_own(case: &Case, part: Part) -> bool {
        let path = format!("{}.layers.0.mlp.down_proj", case.config.path);
        let Some(inputs) = case.config.scheme(&path).and_then(|scheme| scheme.inputs) else { return false };
        let group = match inputs.scales {
            InputScales::Static => return false,
            InputScales::Row => return true,
            InputScales::Group(columns) | InputScales::Power(columns) | InputScales::Mx(columns) => columns,
        };
        let own = part.of(&case.config).expect("a share");
        let mut cut = own.layers.iter().flat_map(|layer| match (&layer.halves[0].kind, &layer.halves[1].kind) {
            (Kind::Attention(all), Kind::Gated(mlp)) => [all.heads * all.head_dim, mlp.intermediate],
            (Kind::Delta(all), Kind::Gated(mlp)) => [all.value_rows(), mlp.intermediate],
            // No case of these has rows that become codes in groups which its ranks leave whole.
            _ => [1; 2],
        });
        !cut.all(|columns| columns.is_multiple_of(group))
    }

    #[test]
    fn ranks_together_are_the_model() {
        let mut shared = 0;
        let all = cases().into_iter().chain(cases_of_experts()).chain(cases_with_states());
        for case in all {
            let tokens = case.tokens(0);
            let pieces = [&tokens[..5], &tokens[5..6], &tokens[6..9]];
            let want = run(&frontend::graph(&case.config).expect("a graph"), &case, &pieces);
            for part in parts(&case.config).into_iter().filter(|part| !has_scales_of_its_own(&case, *part)) {
                let graph = frontend::graph_of(&case.config, part).expect("a graph");
                let graph = joined(&graph, part.all(), case.config.vocab);
                same(&case, &format!("{part:?}"), &run(&graph, &case, &pieces), &want);
                shared += 1;
            }
        }
        assert!(shared >= 60, "{shared}");
    }

    /// 5, 6 and 7 experts on 2 to 4 ranks, of every family and encoding.
    #[test]
    fn ranks_that_hold_experts_are_the_model() {
        let mut shared = 0;
        let with_states = cases_with_states().into_iter().filter(Case::has_experts);
        for case in cases_of_experts().into_iter().chain(with_states) {
            let tokens = case.tokens(0);
            let pieces = [&tokens[..5], &tokens[5..6], &tokens[6..9]];
            let want = run(&frontend::graph(&case.config).expect("a graph"), &case, &pieces);
            for part in parts_with_experts(&case.config) {
                let graph = frontend::graph_of(&case.config, part).expect("a graph");
                let graph = joined(&graph, part.all(), case.config.vocab);
                same(&case, &format!("{part:?}"), &run(&graph, &case, &pieces), &want);
                shared += 1;
            }
        }
        assert!(shared >= 60, "{shared}");
    }

    #[test]
    fn the_callers_attention_is_the_same() {
        // The owner of a cache applies its scales, and sinks, and lets layers see others' keys.
        let is_own = |of: &atomc_config::Attention| of.sinks.is_some() || of.shared.is_some();
        let attends_alone = |case: &Case| {
            let of_heads = |layer: &atomc_config::Layer| layer.half::<atomc_config::Attention>().map(is_own);
            case.config.layers.iter().filter_map(of_heads).any(|own| own)
        };
        let own = |case: &Case| case.config.cache_scales().is_some() || attends_alone(case);
        for case in cases().into_iter().filter(|case| !own(case)) {
            let tokens = case.tokens(1);
            let want = run(&frontend::graph(&case.config).expect("a graph"), &case, &[&tokens[..5]]);
            let part = Part { attention: Attention::Caller, ..Part::default() };
            let graph = frontend::graph_of(&case.config, part).expect("a graph");
            same(&case, "caller", &run(&graph, &case, &[&tokens[..5]]), &want);
        }
    }
}

/// A rank on the host. Each plan is bound in pieces, from call to call.
struct Worker {
    device: Box<dyn Device>,
    memory: Memory,
    inputs: Inputs,
    /// Keys and values of a sequence by layer, where this test attends.
    seen: Vec<Vec<(Vec<f32>, Vec<f32>)>>,
}

/// Ranks in lockstep.
struct Ranks {
    workers: Vec<Worker>,
    target: Target,
    /// For each plan the number of its first piece.
    first: Vec<usize>,
    vocab: usize,
}

fn pieces(plan: &Plan) -> Vec<Plan> {
    let ends = plan.calls.iter().map(|call| call.before).chain([plan.launches.len()]);
    let starts = std::iter::once(0).chain(plan.calls.iter().map(|call| call.before));
    starts.zip(ends).map(|(start, end)| Plan { launches: plan.launches[start..end].to_vec(), ..plan.clone() }).collect()
}

impl Ranks {
    /// On the host, or on a chip that is emulated.
    fn open(case: &Case, part: Part, attention: &[Attention], chip: &str) -> Ranks {
        let config = &case.config;
        let buckets = BucketOptions { decode: vec![1], each: 1, tokens: CONTEXT, rows: CONTEXT };
        let Part { ranks, expert_ranks, .. } = part;
        let (targets, attention) = (vec![chip.into()], attention.to_vec());
        let options = Options { targets, buckets, ranks, expert_ranks, attention, ..Options::default() };
        let compiled =
            driver::compile(config, &options, &mut |_, _, _| ()).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join("m.atomc");
        compiled.write(&path).expect("an artifact");
        let target = compiled.manifest.targets[0].clone();
        let all: Vec<Vec<Plan>> = target.plans.iter().map(pieces).collect();
        let first = all.iter().scan(0, |next, pieces| Some(std::mem::replace(next, *next + pieces.len()))).collect();
        let checkpoint = Checkpoint::open(&case.dir).expect("a checkpoint");
        let worker = |number| {
            let artifact = Artifact::open(&path).expect("a whole artifact");
            let device = match chip {
                "host" => DeviceChoice::default().open(&artifact, 1).expect("a device"),
                chip => Box::new(Emulated::open(&artifact, chip, 1, Default::default()).expect("a device")),
            };
            Worker::open((&artifact, device), &target, &all.concat(), &checkpoint, Rank { number, of: part.all() })
        };
        if chip == "host" {
            let alone = Engine::open(&path, &EngineOptions::default());
            let refused = matches!(alone, Err(Error::Ranks { ranks, devices: 1 }) if ranks == part.all());
            assert_eq!(refused, part.all() > 1);
        }
        Ranks { workers: (0..part.all()).map(worker).collect(), first, target, vocab: config.vocab }
    }

    /// Logits of each of the next tokens of the only sequence.
    fn step(&mut self, attention: Attention, tokens: &[u32], position: usize) -> Vec<f32> {
        let kind = if tokens.len() == 1 { PlanKind::Decode } else { PlanKind::Any };
        let fits = |plan: &Plan| plan.kind == kind && plan.attention == attention;
        let number = self.target.plans.iter().position(fits).expect("a plan");
        let plan = self.target.plans[number].clone();
        let length = position + tokens.len();
        let table: Vec<i32> = (0..length.div_ceil(self.target.layout.block_tokens) as i32).collect();
        let units = Unit::all(&self.target);
        let tables = units.iter().map(|unit| if unit.kept.is_slots() { &table[..1] } else { &table[..] });
        for worker in &mut self.workers {
            worker.inputs.clear();
            worker.inputs.push(tokens, position, length, tables.clone());
            worker.inputs.want(tokens.len());
        }
        for piece in 0..=plan.calls.len() {
            for worker in &mut self.workers {
                // SAFETY: bound to memory of the target's sizes, which the worker owns; the inputs
                // fit the plan.
                unsafe { worker.device.run(self.first[number] + piece, worker.inputs.step(), None) }.expect("a step");
            }
            match plan.calls.get(piece).map(|call| call.work) {
                Some(Work::AllReduce { value, added }) => self.sum(value, added, tokens.len()),
                Some(Work::Attention { layer, heads, q, k, v, out, scale, window }) => {
                    let attend = |worker: &mut Worker| {
                        worker.attend((layer, heads), [q, k, v, out], scale, window, tokens.len())
                    };
                    self.workers.iter_mut().for_each(attend);
                }
                Some(Work::Embedding { .. } | Work::AllGather { .. } | Work::HandOn { .. }) | None => {}
            }
        }
        let Logits { offset, width, stride } = plan.logits;
        let place = Place { offset, width, stride, dtype: DType::F32 };
        let parts: Vec<Vec<Vec<f32>>> = self.workers.iter().map(|worker| worker.rows(place, tokens.len())).collect();
        let parts = &parts[..self.vocab / width];
        (0..tokens.len()).flat_map(|row| parts.iter().flat_map(move |part| part[row].clone())).collect()
    }

    fn sum(&mut self, place: Place, added: Option<Place>, tokens: usize) {
        let mut sum = self.workers[0].rows(place, tokens);
        for worker in &self.workers[1..] {
            for (row, part) in sum.iter_mut().zip(worker.rows(place, tokens)) {
                row.iter_mut().zip(part).for_each(|(a, b)| *a += b);
            }
        }
        if let Some(added) = added {
            for (row, added) in sum.iter_mut().zip(self.workers[0].rows(added, tokens)) {
                row.iter_mut().zip(added).for_each(|(a, b)| *a = rounded(*a, place.dtype) + b);
            }
        }
        self.workers.iter_mut().for_each(|worker| worker.put(place, &sum));
    }
}

/// A number as a value of this type holds it.
fn rounded(x: f32, dtype: DType) -> f32 {
    match dtype {
        DType::BF16 => bf16::from_f32(x).to_f32(),
        DType::F16 => f16::from_f32(x).to_f32(),
        _ => x,
    }
}

impl Worker {
    fn open(
        (artifact, mut device): (&Artifact, Box<dyn Device>),
        target: &Target,
        plans: &[Plan],
        checkpoint: &Checkpoint,
        rank: Rank,
    ) -> Worker {
        let units = Unit::all(target);
        let pages = CONTEXT.div_ceil(target.layout.block_tokens);
        let room = |unit: &Unit| TableRoom { blocks: pages + 1, block_stride: unit.bytes };
        let tables = units.iter().map(room).collect();
        let inputs =
            Inputs::new(&mut *device, Room { tokens: CONTEXT, rows: CONTEXT, tables, given: None }).expect("inputs");
        let mut new = |bytes: usize| device.allocate(bytes).expect("memory");
        let states = target.states.iter().map(|state| {
            let unit = &units[state.group];
            unit.memory(new(unit.count(pages, 1) * unit.bytes), state.group)
        });
        let mut memory = Memory {
            states: states.collect(),
            weights: target.weights.iter().map(|weight| new(weight.bytes)).collect(),
            arena: new(target.plans.iter().map(|plan| plan.arena_bytes).max().unwrap_or(0)),
            hidden: new(target.hidden.bytes),
            head_input: None,
            workspace: new(target.workspace()),
            inputs: inputs.addresses(),
        };
        let sink = Sink { weights: &target.weights, rank, buffers: &mut memory.weights, pool: device.pool() };
        weights::load(sink, &artifact.manifest().tensors, checkpoint, &|_, _| ()).expect("weights");
        // SAFETY: the plans are pieces of the artifact's, the memory has the sizes of the manifest
        // and stays with the device.
        unsafe { device.bind(plans, &memory) }.expect("plans");
        Worker { device, memory, inputs, seen: vec![vec![]; artifact.manifest().model.layers] }
    }

    fn rows(&self, place: Place, tokens: usize) -> Vec<Vec<f32>> {
        let size = place.dtype.size();
        let mut arena = vec![0; tokens * place.stride * size];
        self.memory.arena.download(place.offset, &mut arena).expect("rows of the arena");
        let number = |at: usize| match (&arena[at..][..size], place.dtype) {
            (b, DType::BF16) => bf16::from_le_bytes([b[0], b[1]]).to_f32(),
            (b, DType::F16) => f16::from_le_bytes([b[0], b[1]]).to_f32(),
            (b, _) => f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
        };
        let row = |t: usize| (0..place.width).map(|i| number((t * place.stride + i) * size)).collect();
        (0..tokens).map(row).collect()
    }

    fn put(&mut self, place: Place, rows: &[Vec<f32>]) {
        let size = place.dtype.size();
        let mut arena = vec![0; rows.len() * place.stride * size];
        self.memory.arena.download(place.offset, &mut arena).expect("rows of the arena");
        for (t, row) in rows.iter().enumerate() {
            for (i, &value) in row.iter().enumerate() {
                let at = &mut arena[(t * place.stride + i) * size..][..size];
                match place.dtype {
                    DType::BF16 => at.copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
                    DType::F16 => at.copy_from_slice(&f16::from_f32(value).to_le_bytes()),
                    _ => at.copy_from_slice(&value.to_le_bytes()),
                }
            }
        }
        self.memory.arena.upload(place.offset, &arena).expect("rows of the arena");
    }

    /// What a framework's attention does, the slow and obvious way.
    fn attend(
        &mut self,
        (layer, heads): (usize, usize),
        [q, k, v, out]: [Place; 4],
        scale: f64,
        window: usize,
        tokens: usize,
    ) {
        let [queries, keys, values] = [q, k, v].map(|place| self.rows(place, tokens));
        let dim = k.width / heads;
        let group = q.width / k.width;
        let mut all = vec![];
        for ((query, key), value) in queries.into_iter().zip(keys).zip(values) {
            self.seen[layer].push((key, value));
            let seen = &self.seen[layer];
            let seen = &seen[if window == 0 { 0 } else { seen.len().saturating_sub(window) }..];
            let mut row = vec![];
            for (head, query) in query.chunks(dim).enumerate() {
                let at = head / group * dim;
                let dot = |k: &[f32]| query.iter().zip(&k[at..]).map(|(a, b)| a * b).sum::<f32>() * scale as f32;
                let scores: Vec<f32> = seen.iter().map(|(k, _)| dot(k)).collect();
                let top = scores.iter().fold(f32::MIN, |a, &b| a.max(b));
                let weights: Vec<f32> = scores.iter().map(|s| (s - top).exp()).collect();
                let sum: f32 = weights.iter().sum();
                row.extend(
                    (0..dim).map(|i| weights.iter().zip(seen).map(|(w, (_, v))| w / sum * v[at + i]).sum::<f32>()),
                );
            }
            all.push(row);
        }
        // Rows are padded with zeros.
        let bytes = out.stride * out.dtype.size();
        self.memory.arena.fill(out.offset..out.offset + tokens * bytes, 0).expect("memory of the host");
        self.put(out, &all);
    }
}

#[test]
fn an_engine_does_not_leave_attention_to_nobody() {
    let case = cases().into_iter().find(|case| case.name == "llama2").expect("the case is there");
    let buckets = BucketOptions { decode: vec![1], each: 1, tokens: 32, rows: 8 };
    let options = Options { buckets, attention: vec![Attention::Caller], ..Options::default() };
    let compiled = driver::compile(&case.config, &options, &mut |_, _, _| ()).expect("it compiles");
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join("m.atomc");
    compiled.write(&path).expect("an artifact");
    let refused = Engine::open(&path, &EngineOptions::default()).expect_err("nobody attends");
    assert!(matches!(&refused, Error::CallerAttends { target } if target == "host"), "{refused}");
}

/// What the logits of one of the case's sequences are off, as a part of PyTorch's error.
fn share_of_error(case: &Case, all: &mut Ranks, attention: Attention, (mode, sequence): (Mode, usize)) -> f64 {
    let tokens = case.tokens(sequence);
    all.workers.iter_mut().for_each(|worker| worker.seen.iter_mut().for_each(Vec::clear));
    let (mut logits, mut from) = (vec![], 0);
    for size in mode.pieces(tokens.len()) {
        logits.extend(all.step(attention, &tokens[from..][..size], from));
        from += size;
    }
    case.error(mode, sequence, logits.iter().map(|&v| f64::from(v))) / case.torch_error(mode, sequence)
}

#[test]
fn compiled_ranks_together_are_as_good_as_pytorch() {
    // One of each family, with biases everywhere, keys of fewer heads than ranks, heads of a size
    // of their own, odd sizes, norms over the heads of all ranks.
    let chosen = [
        "llama-bias",
        "llama-gqa-tied",
        "llama-headdim",
        "llama-odd",
        "llama-f16",
        "mistral",
        "olmo2",
        "qwen2",
        "qwen3-bias",
    ];
    for case in cases().into_iter().filter(|case| chosen.contains(&case.name.as_str())) {
        for part in [Part::default()].into_iter().chain(parts(&case.config)) {
            let both = [Attention::Own, Attention::Caller];
            let mut all = Ranks::open(&case, part, &both, "host");
            for attention in both {
                for mode in [Mode::Prefill, Mode::Decode] {
                    let share = share_of_error(&case, &mut all, attention, (mode, 1));
                    println!("{} {part:?} {attention:?} {mode:?}: {share:.2}", case.name);
                    assert!(share <= Case::SHARE, "{}, {part:?}, {attention:?}, {mode:?}: {share:.2}", case.name);
                }
            }
        }
    }
}

/// In f32, where no rounding chooses another expert.
fn compiled_in_f32(chip: &str, chosen: &[(&str, [usize; 2])], sequence: usize) {
    for mut case in cases_of_experts().into_iter().chain(cases_with_states()) {
        case.config.dtype = atomc_ir::DType::F32;
        let of_case = chosen.iter().filter(|(name, _)| *name == case.name);
        for &(_, [ranks, expert_ranks]) in of_case {
            let part = Part { ranks, expert_ranks, ..Part::default() };
            let mut all = Ranks::open(&case, part, &[Attention::Own], chip);
            for mode in [Mode::Prefill, Mode::Decode] {
                let share = share_of_error(&case, &mut all, Attention::Own, (mode, sequence));
                println!("{} on {chip}, {part:?}, {mode:?}: {share:.4}", case.name);
                assert!(share <= 0.02, "{} on {chip}, {part:?}, {mode:?}: {share:.3}", case.name);
            }
        }
    }
}

/// Experts that are odd to share out; biases of experts and codes in groups; a shared expert;
/// heads over latent rows that all ranks have; norms over the heads of all ranks, of which two have
/// the same keys.
#[test]
fn compiled_ranks_that_hold_experts() {
    let chosen = [
        ("moe-qwen3", [1, 2]),
        ("moe-gpt-oss-mxfp4", [2, 2]),
        ("moe-gpt-oss", [1, 3]),
        ("moe-glm", [1, 2]),
        ("mla-kimi", [2, 1]),
        ("mla-v3", [1, 2]),
        ("family-minimaxm2", [2, 1]),
        ("family-minimaxm2", [4, 4]),
    ];
    compiled_in_f32("host", &chosen, 1);
}

#[test]
fn compiled_ranks_that_hold_experts_on_gfx942() {
    let chosen = [("moe-qwen3", [1, 2]), ("moe-gpt-oss-mxfp4", [2, 2]), ("mla-kimi", [2, 1])];
    compiled_in_f32("gfx942", &chosen, 1);
}

/// Heads of keys with two or three of values each, as either family stores them, and gates of the
/// attention between; experts by their width, whole, and whole where all else is on each rank.
#[test]
fn compiled_ranks_with_recurrent_states() {
    let chosen = [
        ("hybrid-next", [1, 2]),
        ("hybrid-next-dense", [2, 1]),
        ("hybrid-3.5-moe", [2, 1]),
        ("hybrid-3.5-moe", [2, 2]),
        ("hybrid-3.5-moe", [1, 2]),
    ];
    compiled_in_f32("host", &chosen, 2);
}

#[test]
fn compiled_ranks_with_recurrent_states_on_gfx942() {
    compiled_in_f32("gfx942", &[("hybrid-next-dense", [2, 1]), ("hybrid-3.5-moe", [2, 2])], 1);
}

/// Dense models in the checkpoint's type, plain and quantised in blocks, compared with one rank.
#[test]
fn compiled_ranks_with_recurrent_states_are_as_good_as_pytorch() {
    let mut shared = 0;
    for case in cases_with_states().into_iter().filter(|case| !case.has_experts()) {
        let parts = parts(&case.config);
        if parts.is_empty() {
            continue;
        }
        shared += parts.len();
        for part in [Part::default()].into_iter().chain(parts) {
            let mut all = Ranks::open(&case, part, &[Attention::Own], "host");
            for mode in [Mode::Prefill, Mode::Decode] {
                let share = share_of_error(&case, &mut all, Attention::Own, (mode, 2));
                println!("{} {part:?} {mode:?}: {share:.2}", case.name);
                assert!(share <= Case::SHARE, "{}, {part:?}, {mode:?}: {share:.2}", case.name);
            }
        }
    }
    assert!(shared >= 5, "{shared}");
}

/// Values go where the head of keys is that they share.
#[test]
fn heads_of_keys_that_do_not_divide_are_refused() {
    let case =
        cases_with_states().into_iter().find(|case| case.name == "hybrid-next-dense").expect("the case is there");
    let refused = Part { ranks: 4, ..Part::default() }.of(&case.config).expect_err("two heads of keys");
    let says = "--tp: 2 heads of keys of a layer with a recurrent state cannot be shared out among 4 ranks";
    assert_eq!(refused.to_string(), says);
}
