//! What the vendor's assembler says of the kernels for NVIDIA GPUs: it takes all of them, and
//! hardly anything spills.
use std::path::Path;

use atomc::driver::{self, Options};
use atomc::frontend::Config;
use atomc_passes::BucketOptions;

const MODELS: [&str; 3] = ["qwen3-8b", "llama-3.1-8b", "qwen3-0.6b"];
/// Chips, and the bytes that a thread may leave in memory: a few registers of kernels at the limit.
const CHIPS: [(&str, usize); 3] = [("sm_80", 40), ("sm_90a", 64), ("sm_100a", 64)];

#[test]
#[ignore = "needs ptxas: tests/ptxas.sh"]
fn takes_every_kernel() {
    let mut faults = vec![];
    for model in MODELS {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("bench/{model}.json"));
        let config = Config::parse(&std::fs::read_to_string(path).expect("the configuration"), None).expect("a model");
        let buckets = BucketOptions { decode: vec![1, 2, 4, 8, 16, 32, 64], each: 1, tokens: 2048, rows: 64 };
        let options = Options { targets: CHIPS.map(|(name, _)| name.into()).to_vec(), buckets, ..Options::default() };
        let compiled = driver::compile(&config, &options, &mut |_, _, _| ()).unwrap_or_else(|e| panic!("{e}"));
        for (target, (_, most)) in compiled.manifest.targets.into_iter().zip(CHIPS) {
            for (def, kernel) in target.kernels.iter().zip(&target.variants[0].kernels) {
                let r = kernel.resources.as_ref().unwrap_or_else(|| panic!("{}: no ptxas at hand", target.name));
                if r.scratch > most {
                    let (scratch, name) = (r.scratch, &def.symbol);
                    faults.push(format!("{model}, {}, {name}: {scratch} B of scratch", target.name));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
