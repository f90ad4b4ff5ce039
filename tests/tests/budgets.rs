//! The resources that the kernels of a real model (Qwen3-8B, bf16) take of each chip. The rules
//! hold for every kernel. The table is the budget: a change of it is a decision.
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use atomc::driver::{self, Options};
use atomc::frontend::Config;
use atomc_ir::Arch;
use atomc_ir::arch::Isa;
use atomc_passes::BucketOptions;
use atomc_runtime::manifest::{LoopReport, Resources, Target};
use atomc_targets::rows;

const CHIPS: [&str; 6] = ["gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201", "gfx1250"];

fn compile(model: &str) -> Vec<Target> {
    compile_for(model, Options { targets: CHIPS.map(String::from).to_vec(), ..Options::default() })
}

fn compile_for(model: &str, options: Options) -> Vec<Target> {
    compile_changed(model, &[], options)
}

/// With other numbers of some fields.
fn compile_changed(model: &str, changes: &[(&str, usize)], options: Options) -> Vec<Target> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("bench").join(model);
    let text = std::fs::read_to_string(path).expect("the configuration");
    let mut json: serde_json::Value = serde_json::from_str(&text).expect("an object");
    for &(field, number) in changes {
        json[field] = number.into();
    }
    let config = Config::parse(&json.to_string(), None).expect("a model");
    driver::compile(&config, &options, &mut |_, _, _| ()).unwrap_or_else(|e| panic!("{e}")).manifest.targets
}

/// The innermost loop with the most matrix instructions.
fn main_loop(r: &Resources) -> Option<&LoopReport> {
    r.loops.iter().max_by_key(|l| l.matrix).filter(|l| l.matrix > 0)
}

fn rules(kernel: &str, r: &Resources, faults: &mut Vec<String>) {
    let mut rule = |holds: bool, what: &str| {
        if !holds {
            faults.push(format!("{kernel}: {what}: {r:?}"));
        }
    };
    rule(r.scratch == 0, "no scratch memory");
    rule(r.vgpr_spills + r.sgpr_spills == 0, "no spills");
    rule(r.agprs == 0, "no accumulation registers");
    rule(r.occupancy >= 1.0, "a wave on every SIMD");
    for l in r.loops.iter().filter(|l| l.matrix > 0) {
        rule(l.loads == l.loads_x4, "16 bytes a load where the work is");
        rule(l.loads == 0 || l.overlap > 0, "loads in flight under the arithmetic");
    }
}

#[test]
fn qwen3_8b() {
    let mut faults = vec![];
    let mut worst: BTreeMap<(String, String), (Resources, f64)> = BTreeMap::new();
    for target in compile("qwen3-8b.json") {
        for (def, kernel) in target.kernels.iter().zip(&target.variants[0].kernels) {
            let r = kernel.resources.as_ref().expect("GPU kernels have a report");
            rules(&format!("{} {}", target.name, def.symbol), r, &mut faults);
            let density = main_loop(r).map_or(0.0, |l| l.instructions as f64 / l.matrix as f64);
            let entry = worst.entry((def.family.clone(), target.name.clone())).or_insert_with(|| (r.clone(), density));
            entry.0.vgprs = entry.0.vgprs.max(r.vgprs);
            entry.0.sgprs = entry.0.sgprs.max(r.sgprs);
            entry.0.lds = entry.0.lds.max(r.lds);
            entry.0.occupancy = entry.0.occupancy.min(r.occupancy);
            entry.0.code_bytes = entry.0.code_bytes.max(r.code_bytes);
            entry.1 = entry.1.max(density);
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    let mut table = String::from(
        "family      chip     VGPRs SGPRs    LDS waves/SIMD code bytes instructions a matrix instruction\n",
    );
    for ((family, chip), (r, density)) in &worst {
        let Resources { vgprs, sgprs, lds, occupancy, code_bytes, .. } = r;
        let density = if *density > 0.0 { format!("{density:.1}") } else { "-".into() };
        writeln!(table, "{family:11} {chip:8} {vgprs:5} {sgprs:5} {lds:6} {occupancy:10} {code_bytes:10} {density:>4}")
            .expect("a string");
    }
    insta::assert_snapshot!(table);
}

/// Bytes of scratch that prompts of GPT-OSS-120B still take on RDNA 3, whatever the scheduler.
const RDNA3_SCRATCH: usize = 36;

/// Prompts that attend with windows and sinks, or over latent rows: these hold most in registers.
#[test]
fn nothing_spills_but_prompts_of_gpt_oss_on_rdna3() {
    let is_amd = |arch: &&Arch| arch.isa() == Some(Isa::Amdgcn);
    let targets: Vec<String> = rows().iter().filter(is_amd).map(|arch| arch.target.to_string()).collect();
    let buckets = BucketOptions { decode: vec![1], each: 1, tokens: 512, rows: 64 };
    let mut faults = vec![];
    for (model, changes) in [
        ("gpt-oss-120b.json", &[("num_hidden_layers", 2)][..]),
        ("deepseek-v2-lite.json", &[("num_hidden_layers", 2), ("kv_lora_rank", 256), ("vocab_size", 512)]),
    ] {
        let options = Options { targets: targets.clone(), buckets: buckets.clone(), ..Options::default() };
        for target in compile_changed(model, changes, options) {
            for (def, kernel) in target.kernels.iter().zip(&target.variants[0].kernels) {
                let r = kernel.resources.as_ref().expect("GPU kernels have a report");
                let is_known = model.starts_with("gpt-oss") && target.name.starts_with("gfx11");
                if is_known && r.sgpr_spills == 0 && r.scratch <= RDNA3_SCRATCH {
                    continue;
                }
                if r.scratch + r.vgpr_spills + r.sgpr_spills > 0 {
                    let Resources { scratch, vgpr_spills, sgpr_spills, .. } = r;
                    let spilled = format!("{vgpr_spills} VGPRs, {sgpr_spills} SGPRs, {scratch} bytes of scratch");
                    faults.push(format!("{model}, {} {}: {spilled}", target.name, def.symbol));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// A prompt of 2,048 tokens on gfx950: all products of a layer have a tile of 256 by 256 for at
/// least half of the units, and use such tiles. Their sixteen waves share the registers of all
/// SIMDs.
#[test]
fn large_tiles() {
    let buckets = BucketOptions { decode: vec![1], each: 1, tokens: 2048, rows: 64 };
    let options = Options { targets: vec!["gfx950".into()], buckets, ..Options::default() };
    let target = &compile_for("qwen3-8b.json", options)[0];
    let mut large = vec![];
    for (def, kernel) in target.kernels.iter().zip(&target.variants[0].kernels) {
        let r = kernel.resources.as_ref().expect("GPU kernels have a report");
        let mut faults = vec![];
        rules(&def.symbol, r, &mut faults);
        assert!(faults.is_empty(), "{}", faults.join("\n"));
        if def.family == "matmul" && kernel.threads == 1024 {
            let Resources { vgprs, lds, occupancy, .. } = r;
            large.push(format!("{vgprs} VGPRs, {lds} bytes of LDS, {occupancy} waves on a SIMD"));
        }
    }
    let of = |vgprs: usize| format!("{vgprs} VGPRs, 131072 bytes of LDS, 4 waves on a SIMD");
    assert_eq!(large, [122, 122, 122, 120].map(of));
}

/// Waves on a SIMD are lost to whole granules of registers: no kernel loses one to two registers.
#[test]
fn no_kernel_of_a_70b_model_misses_a_wave_by_two_registers() {
    let mut faults = vec![];
    for target in compile("llama-3.1-70b.json") {
        let arch = &atomc_targets::variants(&target.name).expect("a target")[0];
        let (unit, wave) = (arch.gpu().unwrap().simt.unit, arch.gpu().unwrap().simt.wave);
        for (def, kernel) in target.kernels.iter().zip(&target.variants[0].kernels) {
            let r = kernel.resources.as_ref().expect("GPU kernels have a report");
            let waves = |vgprs| atomc_targets::report::occupancy(&unit, vgprs, r.lds, kernel.threads.div_ceil(wave));
            assert_eq!(waves(r.vgprs), r.occupancy, "{} {}", target.name, def.symbol);
            if waves(r.vgprs.saturating_sub(2)).floor() > r.occupancy {
                faults.push(format!("{} {}: {} registers", target.name, def.symbol, r.vgprs));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
