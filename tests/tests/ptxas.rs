//! What the vendor's assembler says of the kernels for NVIDIA GPUs: it takes all of them, and nothing spills.
use std::path::Path;

use atomc::driver::{self, Options};
use atomc::frontend::Config;
use atomc_passes::BucketOptions;

/// Types of the model, and chips.
const MODELS: [&str; 3] = ["qwen3-8b", "llama-3.1-8b", "qwen3-0.6b"];
const CHIPS: [&str; 3] = ["sm_80", "sm_90a", "sm_100a"];

#[test]
#[ignore = "needs ptxas: tests/ptxas.sh"]
fn takes_every_kernel_and_spills_nothing() {
    let mut faults = vec![];
    for model in MODELS {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("bench/{model}.json"));
        let config = Config::parse(&std::fs::read_to_string(path).expect("the configuration"), None).expect("a model");
        let buckets = BucketOptions { decode: vec![1, 2, 4, 8, 16, 32, 64], tokens: 2048, rows: 64 };
        let options = Options { targets: CHIPS.map(String::from).to_vec(), buckets, ..Options::default() };
        let compiled = driver::compile(&config, &options, &mut |_, _, _| ()).unwrap_or_else(|e| panic!("{e}"));
        for target in compiled.manifest.targets {
            for (def, kernel) in target.kernels.iter().zip(&target.variants[0].kernels) {
                let r = kernel.resources.as_ref().unwrap_or_else(|| panic!("{}: no ptxas at hand", target.name));
                if r.vgpr_spills > 0 || r.scratch > 0 {
                    let (spills, scratch, name) = (r.vgpr_spills, r.scratch, &def.symbol);
                    faults.push(format!("{model}, {}, {name}: {spills} spills, {scratch} B of scratch", target.name));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
