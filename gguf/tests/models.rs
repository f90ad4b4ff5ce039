//! Models that llama.cpp's converter made (`fixtures/write_models.py`): their configurations mean
//! what those on Hugging Face mean, and their tensors are the same.
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use atomc_config::Config;
use atomc_gguf::{Gguf, Origin, config, origins};
use serde_json::{Value, json};

/// All models.
const CASES: [&str; 15] = [
    "llama",
    "llama3",
    "mixtral",
    "qwen2",
    "qwen3",
    "qwen2moe",
    "qwen3moe",
    "gemma3",
    "gpt-oss",
    "deepseek2",
    "deepseek2-v2",
    "glm4moe",
    "qwen3next",
    "phi3",
    "granite",
];

fn fixture(name: &str, end: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(format!("{name}.{end}"))
}

fn opened(name: &str) -> (Gguf, Value) {
    let text = std::fs::read_to_string(fixture(name, "json")).expect("a fixture");
    (Gguf::open(fixture(name, "gguf")).expect("a model"), serde_json::from_str(&text).expect("JSON"))
}

/// The numbers that the script gave a tensor.
fn wanted(origin: &Origin) -> Vec<f32> {
    let table: Vec<u32> = (0..256u32)
        .map(|byte| (0..8).fold(byte, |sum, _| sum >> 1 ^ if sum & 1 == 1 { 0xedb8_8320 } else { 0 }))
        .collect();
    let step = |sum: u32, byte| sum >> 8 ^ table[usize::from(sum as u8 ^ byte)];
    let sum = u64::from(!origin.name.bytes().fold(u32::MAX, step));
    let count: usize = origin.shape.iter().product();
    (0..count as u64).map(|at| ((sum + 7 * at) % 61) as f32 - 30.0).collect()
}

#[test]
fn tensors_are_those_of_hugging_face() {
    for case in CASES {
        let (gguf, want) = opened(case);
        let origins = origins(&gguf).unwrap();
        let found: BTreeMap<_, _> = origins.iter().map(|origin| (origin.name.clone(), json!(origin.shape))).collect();
        let shapes: BTreeMap<String, Value> = serde_json::from_value(want["tensors"].clone()).unwrap();
        assert_eq!(found, shapes, "{case}");
        for origin in &origins {
            let (found, want) = (origin.floats(&gguf).unwrap(), wanted(origin));
            // The file has powers, which are rounded.
            let is_close = |(found, want): (&f32, &f32)| (found - want).abs() < 1e-5;
            let is_same = found == want || origin.name.ends_with("A_log") && found.iter().zip(&want).all(is_close);
            assert!(is_same, "{case}: {} is {found:?} and not {want:?}", origin.name);
        }
    }
}

#[test]
fn rows_lie_where_they_are_said_to() {
    let mut found = 0;
    for case in CASES {
        let gguf = opened(case).0;
        for origin in origins(&gguf).unwrap() {
            let row = *origin.shape.last().unwrap();
            let floats = origin.floats(&gguf).unwrap();
            for (at, want) in floats.chunks_exact(row).enumerate() {
                let Some((tensor, from)) = origin.row(at) else { continue };
                let stored = gguf.tensor(tensor).unwrap().floats().unwrap();
                assert_eq!(&stored[from * row..][..row], want, "{case}: row {at} of {}", origin.name);
                found += 1;
            }
        }
    }
    assert!(found > 1000);
}

#[test]
fn parts_are_those_of_the_whole() {
    for case in CASES {
        let gguf = opened(case).0;
        for origin in origins(&gguf).unwrap() {
            let whole = origin.floats(&gguf).unwrap();
            for (part, want) in whole.chunks(origin.part()).enumerate() {
                assert_eq!(origin.floats_of(&gguf, part).unwrap(), want, "{case}: part {part} of {}", origin.name);
            }
        }
    }
}

#[test]
fn configurations_mean_the_same() {
    for case in CASES {
        let (gguf, want) = opened(case);
        let found = config(&gguf).unwrap();
        // What a configuration has that its tensors show, and what has two names.
        let apart = ["pad_token_id", "hidden_act", "head_dim", "scoring_func", "rope_theta", "q_lora_rank"];
        for (name, value) in want["config"].as_object().unwrap() {
            let is_absent = value.is_null() || *value == json!(false) || apart.contains(&name.as_str());
            if found.get(name).is_some() || !is_absent {
                assert_eq!(found.get(name), Some(value), "{case}: {name}");
            }
        }
        if case != "qwen2moe" {
            let meaning = |config: &Value| Config::parse(&config.to_string(), None).unwrap_or_else(|e| panic!("{e:?}"));
            assert_eq!(meaning(&found).echo(), meaning(&want["config"]).echo(), "{case}");
        }
    }
}
