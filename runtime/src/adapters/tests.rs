use std::path::Path;

use safetensors::Dtype;
use serde_json::{Value, json};

use super::*;
use crate::checkpoint::tests::file;

/// An adapter of one module in a new folder.
fn folder(fields: Value, tensors: &[(&str, Dtype, &[usize])]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let mut config = json!({ "peft_type": "LORA", "r": 2, "lora_alpha": 6, "bias": "none", "lora_dropout": 0.1 });
    config.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    std::fs::write(dir.path().join("adapter_config.json"), config.to_string()).unwrap();
    file(&dir.path().join(WEIGHTS), tensors);
    dir
}

/// The matrices of one module.
const Q: [(&str, Dtype, &[usize]); 2] = [
    ("base_model.model.a.q_proj.lora_A.weight", Dtype::F32, &[2, 3]),
    ("base_model.model.a.q_proj.lora_B.weight", Dtype::F32, &[4, 2]),
];

fn message(dir: &Path, error: impl std::fmt::Display) -> String {
    error.to_string().replace(&dir.display().to_string(), "<dir>")
}

#[test]
fn what_is_no_plain_lora_is_refused_by_its_field() {
    for (fields, want) in [
        (json!({ "peft_type": "IA3" }), "`peft_type` is \"IA3\", and adapters are of LoRA"),
        (json!({ "bias": "all" }), "`bias` is \"all\", and that is not plain LoRA"),
        (json!({ "fan_in_fan_out": true }), "`fan_in_fan_out` is true, and that is not plain LoRA"),
        (json!({ "alora_invocation_tokens": [7] }), "`alora_invocation_tokens` is [7], and that is not plain LoRA"),
        (json!({ "a_new_idea": 0.5 }), "`a_new_idea` is 0.5, and that is not plain LoRA"),
        (json!({ "init_lora_weights": "pissa_niter_4" }), "`init_lora_weights` is \"pissa_niter_4\", and the weights"),
        (json!({ "alpha_pattern": { "(": 1 } }), "adapter_config.json: "),
    ] {
        let dir = folder(fields, &Q);
        let found = message(dir.path(), Adapter::open(dir.path()).unwrap_err());
        assert!(found.contains(want), "{found}");
    }
}

#[test]
fn tensors_that_are_no_adapter_are_refused_by_name() {
    let odd: (&str, Dtype, &[usize]) = ("base_model.model.a.q_proj.lora_C.weight", Dtype::F32, &[2, 2]);
    let other: (&str, Dtype, &[usize]) = ("a.q_proj.lora_A.weight", Dtype::F32, &[2, 2]);
    let narrow: (&str, Dtype, &[usize]) = (Q[1].0, Dtype::F32, &[4, 3]);
    for (tensors, want) in [
        (&[Q[0], Q[1], odd][..], "<dir>: `base_model.model.a.q_proj.lora_C.weight` is no tensor of a LoRA adapter"),
        (&[Q[0], Q[1], other], "<dir>: `a.q_proj.lora_A.weight` is no tensor of a LoRA adapter"),
        (&[Q[0]], "<dir>: `a.q_proj` has one matrix of its two, or of another kind"),
        (&[Q[0], narrow], "<dir>: `a.q_proj`: its matrices are of shapes [2, 3] and [4, 3]"),
    ] {
        let dir = folder(json!({}), tensors);
        assert_eq!(message(dir.path(), Adapter::open(dir.path()).unwrap_err()), want);
    }
    let dir = folder(json!({}), &Q);
    std::fs::rename(dir.path().join(WEIGHTS), dir.path().join(PICKLED)).unwrap();
    assert!(message(dir.path(), Adapter::open(dir.path()).unwrap_err()).contains("it is a program"));
}

#[test]
fn an_adapter_of_another_model_is_refused() {
    let dir = folder(json!({}), &Q);
    let adapter = Adapter::open(dir.path()).unwrap();
    for (tensor, want) in [
        (("b.q_proj.weight", Dtype::F32, &[4, 3][..]), "the checkpoint has no `a.q_proj.weight`"),
        (("a.q_proj.weight", Dtype::F32, &[4, 5]), "is for a weight of shape [4, 3], and the checkpoint's has [4, 5]"),
        (("a.q_proj.weight", Dtype::I8, &[4, 3]), "`a.q_proj.weight` is stored as i8 codes"),
    ] {
        let base = tempfile::tempdir().unwrap();
        file(&base.path().join("model.safetensors"), &[tensor]);
        let checkpoint = Checkpoint::open(base.path()).unwrap();
        let found = Merged::new(&checkpoint, &adapter).map(|_| ()).unwrap_err().to_string();
        assert!(found.contains(want), "{found}");
    }
}

#[test]
fn a_part_of_a_row_is_that_of_the_whole() {
    let dir = folder(json!({ "use_rslora": true }), &Q);
    let adapter = Adapter::open(dir.path()).unwrap();
    let change = &adapter.changes["a.q_proj"];
    assert_eq!((change.pair.sizes, change.pair.rank, adapter.rank()), ([4, 3], 2, 2));
    let mut row = [1.0; 3];
    change.pair.add(2, 0, &mut row);
    let mut part = [1.0; 2];
    change.pair.add(2, 1, &mut part);
    assert_eq!(part, row[1..]);
}
