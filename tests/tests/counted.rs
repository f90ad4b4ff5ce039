//! What the products of a layer of Qwen3-8B execute on AMD's chips, counted in the emulator.
//!
//! A work-group of each product's kernel runs on zeros, whole: staging of rows, main loop, and
//! epilogue. Counts are those of a wave for 256 columns of K. K is 4,096 or 12,288, so what happens
//! once a kernel is spread over 16 columns of 256 or more.
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

use atomc::driver::{self, Options};
use atomc::frontend::Config;
use atomc_emulator::{Access, CodeObject, Counts, Emulator, Grid, Memory};
use atomc_ir::{Arch, Family, Graph, Op, Type, Value};
use atomc_passes::BucketOptions;
use atomc_targets::tuning::Choice;
use atomc_targets::{Form, KernelSpec, compile, rows, text};

const CHIPS: [&str; 2] = ["gfx942", "gfx950"];

/// What `--quant` takes, or nothing for floats; and what checkpoints of MX weights and rows have.
const SCHEMES: [&str; 8] = ["", "fp8", "fp8-block", "int8", "int4-g128", "mxfp4", "mxfp4-rows", "mxfp8-rows"];

/// The `quantization_config` of a checkpoint with weights and rows quantised by MX, as the golden
/// models `q-mxfp4` (Quark) and `q-mxfp8` (compressed-tensors).
fn checkpoint(scheme: &str) -> Option<&'static str> {
    match scheme {
        "mxfp4-rows" => Some("q-mxfp4"),
        "mxfp8-rows" => Some("q-mxfp8"),
        _ => None,
    }
}

/// Tokens of decode steps.
const DECODE: [usize; 3] = [1, 8, 32];

/// Tokens of a prompt: those of a tile.
const PROMPT: usize = 128;

/// Columns that counts are of.
const COLUMNS: usize = 256;

/// What a wave executes for 256 of K.
#[derive(Clone, Copy, Default)]
struct PerWave {
    vector: f64,
    matrix: f64,
    conflicts: f64,
}

impl PerWave {
    /// The more of either.
    fn or_more(self, other: PerWave) -> PerWave {
        PerWave {
            vector: self.vector.max(other.vector),
            matrix: self.matrix.max(other.matrix),
            conflicts: self.conflicts.max(other.conflicts),
        }
    }
}

/// The model with one layer.
fn config(scheme: &str) -> Config {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("bench/qwen3-8b.json");
    let text = std::fs::read_to_string(path).expect("the configuration");
    let text = text.replace("\"num_hidden_layers\": 36", "\"num_hidden_layers\": 1");
    let mut json: serde_json::Value = serde_json::from_str(&text).expect("an object");
    if let Some(golden) = checkpoint(scheme) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(golden).join("config.json");
        let text = std::fs::read_to_string(path).expect("the configuration of a golden model");
        let of: serde_json::Value = serde_json::from_str(&text).expect("an object");
        json["quantization_config"] = of["quantization_config"].clone();
    }
    let mut config = Config::parse(&json.to_string(), None).expect("a model");
    if !scheme.is_empty() && checkpoint(scheme).is_none() {
        config.quantise(&[scheme.into()]).unwrap_or_else(|e| panic!("{e}"));
    }
    config
}

/// The product of a body, with its columns along K, if it has a layer's weight.
fn depth(body: &Graph) -> Option<usize> {
    let product = body.ids().find(|&id| matches!(body.op(id), Op::Linear { .. }))?;
    let weight = body.ty(body.operands(product)[1]).as_tensor()?;
    let sizes: Vec<usize> = weight.shape.0.iter().filter_map(|dim| dim.fixed()).collect();
    (sizes[0] < 100_000).then_some(sizes[1])
}

/// Zeros that a device could have.
struct Zeros {
    words: Vec<u128>,
    bytes: usize,
}

/// Bytes between addresses of buffers, and readable after them.
const ALIGN: usize = 256;

impl Zeros {
    fn new(bytes: usize) -> Zeros {
        Zeros { words: vec![0; (bytes + 2 * ALIGN).div_ceil(16)], bytes }
    }

    fn address(&self) -> u64 {
        (self.words.as_ptr() as u64).next_multiple_of(ALIGN as u64)
    }
}

fn bytes(graph: &Graph, v: Value, arch: &Arch, tokens: usize) -> usize {
    let Type::Tensor(t) = graph.ty(v) else { panic!("products have tensors") };
    let sizes: Vec<usize> = t.shape.0.iter().map(|dim| dim.at(tokens, tokens)).collect();
    let lead: usize = sizes[..sizes.len() - 1].iter().product();
    // Rows with padding, followed by scales.
    let row = arch.memory.result_stride(t).max(arch.memory.padded(sizes[sizes.len() - 1]));
    lead.next_multiple_of(arch.memory.rows).next_multiple_of(arch.memory.row) * row * t.dtype.bits().div_ceil(8)
}

/// Runs a work-group of the kernel.
fn count(spec: &KernelSpec, arch: &Arch) -> Counts {
    let spec = KernelSpec { symbol: "k".into(), ..spec.clone() };
    let object = compile(std::slice::from_ref(&spec), arch).unwrap_or_else(|e| panic!("{e}"));
    let code = CodeObject::load(&object.code).unwrap_or_else(|e| panic!("{e}"));
    let kernel = &object.kernels[0];
    let step = [spec.tokens as i64, spec.tokens as i64];
    let values = spec.body.inputs().into_iter().chain(spec.body.outputs().iter().copied());
    let mut buffers: Vec<Zeros> = values.map(|v| Zeros::new(bytes(spec.body, v, arch, spec.tokens))).collect();
    let mut pointers: Vec<u64> = buffers.iter().map(Zeros::address).collect();
    buffers.push(Zeros::new(kernel.workspace));
    pointers.extend([step.as_ptr() as u64, buffers.last().expect("the workspace").address()]);
    let mut memory = Memory::default();
    for zeros in &buffers {
        // SAFETY: the buffers live until this function returns, and have room after their ends.
        unsafe { memory.map_with_slack(zeros.address(), zeros.bytes as u64, ALIGN as u64, Access::ReadWrite) };
    }
    // SAFETY: as above.
    unsafe { memory.map(step.as_ptr() as u64, size_of_val(&step) as u64, Access::Read) };
    let arguments: Vec<u8> = pointers.iter().flat_map(|p| p.to_le_bytes()).collect();
    let grid = Grid::linear(1, kernel.threads as u32);
    let options = atomc_emulator::Options { conflicts: true, ..atomc_emulator::Options::fast() };
    let counts = Emulator.launch(&code, "k", grid, &arguments, &memory, &options);
    counts.unwrap_or_else(|e| panic!("{} {}: {e}", arch.name, spec.body.print()))
}

fn per_wave(spec: &KernelSpec, arch: &Arch) -> PerWave {
    let depth = depth(spec.body).expect("a product");
    let counts = count(spec, arch);
    let of = |n: u64| n as f64 / counts.waves as f64 / (depth as f64 / COLUMNS as f64);
    PerWave { vector: of(counts.valu), matrix: of(counts.matrix), conflicts: of(counts.lds_conflicts) }
}

/// The names of matrix instructions in a kernel.
fn matrix_instructions(spec: &KernelSpec, arch: &Arch) -> BTreeSet<String> {
    let assembly = text(std::slice::from_ref(spec), arch, Form::Asm).unwrap_or_else(|e| panic!("{e}"));
    let names = assembly.lines().filter_map(|line| line.split_whitespace().next());
    names.filter(|name| name.starts_with("v_mfma")).map(String::from).collect()
}

/// Parts of the names of the instructions that multiply, where these are asked for: e4m3 as it
/// lies, and codes of MX with their scales.
fn multiplied_by(scheme: &str, arch: &Arch) -> Option<&'static [&'static str]> {
    let is_scaled = arch.gpu().is_some_and(|gpu| gpu.simt.block_scaled.is_some());
    match scheme {
        "fp8-block" => Some(&["_fp8_fp8", "_f8f6f4"]),
        "mxfp4-rows" | "mxfp8-rows" if is_scaled => Some(&["v_mfma_scale_f32_"]),
        _ => None,
    }
}

/// The counts of a product: in decode steps by tokens, and in prompts at 0.
type Product = BTreeMap<usize, PerWave>;

/// The products of a layer by the modules that they are of. Where two plans have a kernel each, the
/// more of both.
fn products(scheme: &str, arch: &'static Arch) -> BTreeMap<String, Product> {
    let buckets = BucketOptions { decode: DECODE.to_vec(), each: 1, tokens: PROMPT, rows: 1 };
    let options = Options { targets: vec![arch.name.into()], buckets, ..Options::default() };
    let kernels = driver::kernels(&config(scheme), &options, arch).unwrap_or_else(|e| panic!("{e}"));
    let mut products: BTreeMap<String, Product> = BTreeMap::new();
    for spec in kernels.specs().into_iter().filter(|spec| depth(spec.body).is_some()) {
        // For a prompt, a tile along all of K, as long prompts have it. In steps `gemv` has its own
        // number of waves, so that a wave's instructions are comparable.
        let choice = Some(Choice::none("gemv"));
        let spec = &KernelSpec { invariant: spec.family == Family::Matmul, choice, ..spec };
        let tokens = match spec.family {
            Family::Matvec => spec.tokens,
            Family::Matmul => 0,
            _ => continue,
        };
        if let Some(wanted) = multiplied_by(scheme, arch) {
            let names = matrix_instructions(spec, arch);
            let is_wanted = |name: &String| wanted.iter().any(|wanted| name.contains(wanted));
            assert!(!names.is_empty() && names.iter().all(is_wanted), "{} {}: {names:?}", arch.name, spec.symbol);
        }
        let place = ["mlp_down_proj", "mlp", "self_attn_o_proj", "self_attn"].into_iter();
        let place = place.into_iter().find(|place| spec.symbol.ends_with(place)).expect("a layer's product");
        let wave = products.entry(place.into()).or_default().entry(tokens).or_default();
        *wave = wave.or_more(per_wave(spec, arch));
    }
    products
}

/// Vector instructions that a wave may run for 256 of K of a prompt, where the weight has 8 bits or
/// 4. A wave has 64 of the 128 rows and 64 of the 128 tokens of a tile: of both together a lane
/// brings 256 numbers, and half an instruction for each is 128.
fn most_of_prompt(chip: &str, scheme: &str) -> Option<f64> {
    match (chip, scheme) {
        (_, "fp8" | "fp8-block") => Some(128.0),
        ("gfx950", "mxfp4" | "mxfp4-rows" | "mxfp8-rows") => Some(128.0),
        _ => None,
    }
}

/// How many times the vector instructions of a step of one token a step of several may take, where
/// these are more than a few. One token with its row quantised in memory takes 5.3, and 32 tokens
/// 16.6.
const MOST_TIMES: f64 = 3.0;
const FEW: f64 = 17.0;

#[test]
fn products_of_a_layer() {
    let mut table = String::from(
        "                                        vector instructions      matrix       conflicts\n\
         chip   scheme     product               1     8    32  prompt    prompt     8  prompt\n",
    );
    let mut faults = vec![];
    for chip in CHIPS {
        let arch = rows().iter().find(|arch| arch.name == chip).expect("a row");
        for scheme in SCHEMES {
            for (place, of) in products(scheme, arch) {
                let name = if scheme.is_empty() { "bf16" } else { scheme };
                let [one, several @ .., last] = [1, 8, 32, 0].map(|tokens| of[&tokens]);
                for (wave, tokens) in several.iter().zip(&DECODE[1..]) {
                    if wave.vector > (MOST_TIMES * one.vector).max(FEW) {
                        faults.push(format!(
                            "{chip} {name} {place}: {:.1} at {tokens}, {:.1} at 1",
                            wave.vector, one.vector
                        ));
                    }
                }
                if most_of_prompt(chip, scheme).is_some_and(|most| last.vector > most) {
                    faults.push(format!("{chip} {name} {place}: {:.1} of a prompt", last.vector));
                }
                let ([few, many], waiting) = (several.map(|wave| wave.vector), several[0].conflicts);
                let PerWave { vector, matrix, conflicts } = last;
                writeln!(
                    table,
                    "{chip:6} {name:10} {place:16} {:6.1}{few:6.1}{many:6.1}{vector:8.1}{matrix:10.1}{waiting:6.1}{conflicts:8.1}",
                    one.vector
                )
                .expect("a string");
            }
        }
    }
    insta::assert_snapshot!(table);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
