//! Launches as files, to be replayed with other tools: code objects, one JSON file for each launch,
//! and memory before and after as safetensors.
use std::path::{Path, PathBuf};

use atomc_artifact::abi::{SPARE_TOKENS, TILE_TOKENS};
use atomc_artifact::manifest::{Arg, Input, Kernel, StateGroup, Target};
use atomc_ir::Type;
use atomc_ir::interp::{Real, Tensor, Val};
use atomc_ir::trial::Bound;
use atomc_runtime::Artifact;
use atomc_runtime::probe::{POISON, Probe};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};

use super::super::extract;
use super::super::failure::Failure;
use super::super::inspect;
use super::super::output;
use super::cases::Case;
use super::launch::{Bench, Ran};

pub struct Dump {
    dir: PathBuf,
    /// The file of each variant's kernels.
    code: Vec<Vec<String>>,
}

/// Named tensors of a file.
#[derive(Default)]
struct Entries(Vec<(String, Dtype, Vec<usize>, Vec<u8>)>);

impl Entries {
    fn bytes(&mut self, name: String, bytes: &[u8]) {
        self.0.push((name, Dtype::U8, vec![bytes.len()], bytes.to_vec()));
    }

    /// A list, padded with zeros to `room` entries and to the entries that kernels may read after
    /// the tokens of a step.
    fn ints(&mut self, name: String, values: &[i32], room: usize) {
        let entries = room.max(values.len()) + SPARE_TOKENS;
        let values = values.iter().chain(std::iter::repeat(&0)).take(entries);
        let bytes: Vec<u8> = values.flat_map(|v| v.to_le_bytes()).collect();
        self.0.push((name, Dtype::I32, vec![bytes.len() / size_of::<i32>()], bytes));
    }

    fn numbers(&mut self, name: String, shape: Vec<usize>, values: impl Iterator<Item = f64>) {
        self.0.push((name, Dtype::F64, shape, values.flat_map(|v| v.to_le_bytes()).collect()));
    }

    fn write(&self, path: &Path) -> Result<(), Failure> {
        let fault = |e| Failure::file("output", path, e);
        let mut views = Vec::with_capacity(self.0.len());
        for (name, dtype, shape, bytes) in &self.0 {
            views.push((name.clone(), TensorView::new(*dtype, shape.clone(), bytes).map_err(fault)?));
        }
        output::write_beside(path, &safetensors::serialize(views, None).map_err(fault)?)
    }
}

impl Dump {
    /// Makes the folder and writes the code of the device's target into it.
    pub fn new(dir: &Path, artifact: &Artifact, probe: &Probe) -> Result<Dump, Failure> {
        std::fs::create_dir_all(dir).map_err(|e| Failure::file("output", dir, e))?;
        let code = extract::target(dir, artifact, probe.target())?;
        Ok(Dump { dir: dir.to_owned(), code })
    }

    /// Writes launch `number` of a plan in one case.
    pub fn write(
        &self,
        probe: &mut Probe,
        bench: &Bench,
        ran: &Ran,
        (plan, launch, case_number): (usize, usize, usize),
        case: &Case,
    ) -> Result<(), Failure> {
        let name = format!("{}.plan{plan}.case{case_number}", bench.symbol);
        let (mut before, mut after) = (Entries::default(), Entries::default());
        let arguments = arguments(bench, ran, (case, probe.target()), &mut before, &mut after);
        let size = probe.size(plan, &ran.step).map_err(|e| Failure::new("device", e))?;
        let target = probe.target();
        let kernel = target.plans[plan].launches[launch].kernel;
        let variants = target.variants.iter().zip(&self.code).map(|(variant, files)| {
            let k = &variant.kernels[kernel];
            json!({
                "variant": variant.name,
                "code": files[kernel],
                "parameters": parameters(k),
                "grid": [size.tasks(k.tasks), 1, 1],
                "block": [k.threads.max(1), 1, 1],
                "shared": k.shared,
                "scratch": k.scratch,
                "workspace": k.workspace,
            })
        });
        let about = json!({
            "kernel": bench.symbol,
            "family": target.kernels[kernel].family,
            "body": target.kernels[kernel].body,
            "target": target.name,
            "device": probe.device_name(),
            "plan": inspect::name(&target.plans[plan]),
            "case": case.to_string(),
            "variants": variants.collect::<Vec<Value>>(),
            "arguments": arguments,
            "layout": target.layout,
            "step": { "tokens": size.step.tokens, "rows": size.step.rows },
            "before": format!("{name}.before.safetensors"),
            "after": format!("{name}.after.safetensors"),
            "right": ran.verdict.fault.is_none(),
        });
        before.write(&self.dir.join(format!("{name}.before.safetensors")))?;
        after.write(&self.dir.join(format!("{name}.after.safetensors")))?;
        output::write_beside(&self.dir.join(format!("{name}.json")), &serde_json::to_vec_pretty(&about)?)
    }
}

/// The parameters of a kernel, in order.
fn parameters(kernel: &Kernel) -> &'static [&'static str] {
    match kernel.threads {
        // Only the host has no work-items.
        0 => &["arguments", "step", "scratch", "first", "end"],
        _ => &["arguments", "step", "workspace"],
    }
}

/// The arguments in order, and their memory: K is a cache's pages, V an offset in them. The step
/// and, on GPUs, the workspace follow them.
fn arguments(
    bench: &Bench,
    ran: &Ran,
    (case, target): (&Case, &Target),
    before: &mut Entries,
    after: &mut Entries,
) -> Vec<Value> {
    let types = types(bench);
    let first = bench.first_result();
    let mut all = Vec::with_capacity(types.len());
    for (number, (arg, ty)) in bench.args().iter().zip(&types).enumerate() {
        let entry = number.to_string();
        let memory = &ran.before[number];
        all.push(match arg {
            Arg::Batch { .. } => batch(&entry, bench, ran, case, before),
            _ if number >= first => {
                after.bytes(entry.clone(), &ran.after[number]);
                json!({ "kind": "result", "type": ty.to_string(), "entry": entry, "bytes": ran.after[number].len() })
            }
            Arg::State { stream: 0, .. } => {
                before.bytes(entry.clone(), memory);
                after.bytes(entry.clone(), &ran.after[number]);
                json!({ "kind": "cache", "type": ty.to_string(), "entry": entry, "bytes": memory.len() })
            }
            Arg::State { state, stream } => {
                let pages = (number - stream).to_string();
                let offset = offset(target, *state, *stream);
                json!({ "kind": "values", "type": ty.to_string(), "entry": pages, "offset": offset })
            }
            _ => {
                let memory = operand(bench, *arg, ty, memory);
                before.bytes(entry.clone(), &memory);
                json!({ "kind": "operand", "type": ty.to_string(), "entry": entry, "bytes": memory.len() })
            }
        });
    }
    wanted(bench, ran, after);
    all
}

/// The offset of a stream in a page.
fn offset(target: &Target, state: usize, stream: usize) -> usize {
    match target.group(state) {
        StateGroup::Paged(pages) => pages.streams[stream].at.start,
        StateGroup::Slots(_) => 0,
    }
}

/// Type of each argument; both parts of a cache have the cache's.
fn types(bench: &Bench) -> Vec<&Type> {
    let body = bench.body();
    let operand = |v| std::iter::repeat_n(body.ty(v), if body.ty(v).as_cache().is_some() { 2 } else { 1 });
    let results = body.outputs().iter().map(|&v| body.ty(v)).filter(|t| matches!(t, Type::Tensor(_)));
    body.inputs().into_iter().flat_map(operand).chain(results).collect()
}

/// An operand's memory with all that kernels may read: they work on groups of tokens and read whole
/// ones.
fn operand(bench: &Bench, arg: Arg, ty: &Type, memory: &[u8]) -> Vec<u8> {
    let mut memory = memory.to_vec();
    match (arg, ty) {
        (Arg::Arena { .. } | Arg::Hidden | Arg::Drafted { .. }, Type::Tensor(t)) => {
            memory.resize(bench.bytes(t), POISON)
        }
        (Arg::Input { which: Input::Given | Input::Shares }, Type::Tensor(t)) => memory.resize(bench.bytes(t), 0),
        (Arg::Input { which: Input::Taps }, Type::Tensor(t)) => {
            memory.resize(t.choices() * (bench.room.tokens + SPARE_TOKENS) * size_of::<i32>(), 0);
        }
        (Arg::Input { which }, _) => {
            let room = if which == Input::Rows { bench.room.rows } else { bench.room.tokens };
            memory.resize((room + SPARE_TOKENS) * size_of::<i32>(), 0);
        }
        // Weights are whole.
        _ => {}
    }
    memory
}

/// The structure `Batch`: its arrays are entries of the dump. A replay has to set its pointers.
fn batch(entry: &str, bench: &Bench, ran: &Ran, case: &Case, before: &mut Entries) -> Value {
    let state = case.step.batch();
    let stride = ran.step.pieces.iter().map(|p| p.table.len()).max().unwrap_or(0) + 1;
    let table = |p: &atomc_runtime::probe::Piece| {
        p.table.iter().copied().chain(std::iter::repeat(0)).take(stride).collect::<Vec<_>>()
    };
    let tables: Vec<i32> = ran.step.pieces.iter().flat_map(table).collect();
    let (mut tiles, mut first) = (Vec::new(), 0);
    for run in &case.step.runs {
        let starts = (0..run.tokens).step_by(TILE_TOKENS);
        tiles.extend(starts.flat_map(|at| [(first + at) as i32, (run.tokens - at).min(TILE_TOKENS) as i32]));
        first += run.tokens;
    }
    let tokens = bench.room.tokens;
    let parts = [
        ("positions", &state.positions, tokens),
        ("sequences", &state.sequences, tokens),
        ("tables", &tables, 0),
        // Two numbers each.
        ("tiles", &tiles, 2 * tokens),
    ];
    let block_stride = ran.step.block_stride;
    let tile_count = tiles.len() / 2;
    let mut about = json!({
        "kind": "batch",
        "table_stride": stride,
        "tile_count": tile_count,
        "block_stride": block_stride,
    });
    for (name, values, room) in parts {
        before.ints(format!("{entry}.{name}"), values, room);
        about[name] = format!("{entry}.{name}").into();
    }
    about
}

/// The expected tensor results, and the budgets, as numbers without padding.
fn wanted(bench: &Bench, ran: &Ran, after: &mut Entries) {
    let exact = |v: &i32| Bound::of(f64::from(*v));
    let tensors = ran.want.iter().filter_map(|want| match want {
        Val::Float(tensor) => Some(tensor.clone()),
        Val::Int(indices) => Some(Tensor::new(vec![indices.len()], indices.iter().map(exact).collect())),
        Val::Cache(_) | Val::Slots(_) | Val::Batch(_) => None,
    });
    for (number, tensor) in (bench.first_result()..).zip(tensors) {
        after.numbers(format!("{number}.want"), tensor.shape.clone(), tensor.data.iter().map(|v| v.get()));
        after.numbers(format!("{number}.budget"), tensor.shape, tensor.data.iter().map(|v| v.budget()));
    }
}
