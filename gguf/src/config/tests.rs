use super::*;
use crate::made::{Made, info, key, key_list, key_text, write};

/// The keys of a small model, without those that begin with `but`.
fn small(but: &str) -> Made {
    let sizes = [
        ("block_count", 2u32),
        ("embedding_length", 8),
        ("context_length", 64),
        ("feed_forward_length", 16),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 1),
    ];
    let mut made = Made { data: 128, ..Made::new() }.key(key_text("general.architecture", "llama"));
    for (name, size) in sizes.into_iter().filter(|(name, _)| *name != but) {
        made = made.key(key(&format!("llama.{name}"), 4, &size.to_le_bytes()));
    }
    made.key(key("llama.attention.layer_norm_rms_epsilon", 6, &1e-6f32.to_le_bytes())).info(info(
        "token_embd.weight",
        &[8, 4],
        0,
        0,
    ))
}

fn read(made: &Made) -> Result<Json, GgufError> {
    let dir = tempfile::tempdir().unwrap();
    config(&Gguf::open(write(dir.path(), "m.gguf", &made.bytes())).unwrap())
}

fn fault(made: &Made) -> String {
    read(made).unwrap_err().to_string()
}

#[test]
fn what_a_file_does_not_say_has_a_default() {
    let found = read(&small("attention.head_count_kv")).unwrap();
    let want = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16", "vocab_size": 4,
        "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 4,
        "intermediate_size": 16, "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "hidden_act": "silu", "tie_word_embeddings": true, "attention_bias": false, "mlp_bias": false,
        "bos_token_id": null, "eos_token_id": null,
    });
    assert_eq!(found, want);
}

#[test]
fn needed_keys_are_named() {
    for name in ["block_count", "embedding_length", "context_length", "attention.head_count"] {
        assert_eq!(fault(&small(name)), format!("the file has no `llama.{name}`"));
    }
    assert_eq!(fault(&Made::new()), "the file has no `general.architecture`");
    let found = fault(&Made::new().key(key_text("general.architecture", "bert")));
    assert!(found.starts_with("`general.architecture` is \"bert\", which is not supported; supported are llama, "));
    let found = fault(&Made { infos: Vec::new(), ..small("") });
    assert_eq!(found, "the file has no tensor `token_embd.weight`");
}

#[test]
fn wrong_values_are_named() {
    let with =
        |name: &str, kind: u32, bytes: &[u8]| fault(&small(name).key(key(&format!("llama.{name}"), kind, bytes)));
    let found = with("block_count", 6, &2f32.to_le_bytes());
    assert_eq!(found, "`llama.block_count` must be a whole number that is not negative, not a number");
    let found = with("block_count", 5, &(-2i32).to_le_bytes());
    assert_eq!(found, "`llama.block_count` must be a whole number that is not negative, not a whole number");
    let found = with("attention.head_count", 4, &0u32.to_le_bytes());
    assert_eq!(found, "`llama.attention.head_count` is 0, and must be above 0");
    let found = with("nextn_predict_layers", 4, &2u32.to_le_bytes());
    assert_eq!(found, "`llama.nextn_predict_layers` is 2, and must be less than the 2 blocks");
    let found = with("rope.freq_base", 6, &f32::NAN.to_le_bytes());
    assert_eq!(found, "`llama.rope.freq_base` must be a finite number, not a number");
    let found = with("rope.dimension_count", 4, &6u32.to_le_bytes());
    assert_eq!(found, "`llama.rope.dimension_count` is 6, and must be at most the size of a head, 4");
    let found = with("attention.value_length", 4, &6u32.to_le_bytes());
    assert_eq!(found, "`llama.attention.value_length` is 6, and must be the size of a key, 4");
    let found = fault(&small("").key(key_text("llama.rope.scaling.type", "other")));
    assert!(found.starts_with("`llama.rope.scaling.type` is \"other\", which is not supported; "));
}

#[test]
fn a_size_of_each_layer_must_be_the_same() {
    let with = |sizes: [u32; 2]| {
        let bytes = [sizes[0].to_le_bytes(), sizes[1].to_le_bytes()].concat();
        read(&small("feed_forward_length").key(key_list("llama.feed_forward_length", 4, 2, &bytes)))
    };
    assert_eq!(with([24, 24]).unwrap()["intermediate_size"], json!(24));
    let found = with([24, 32]).unwrap_err().to_string();
    assert_eq!(found, "`llama.feed_forward_length` is 24 and 32, and must be the same for all layers");
}

#[test]
fn factors_of_frequencies_are_told_apart() {
    let tensor = |dims: u64| small("").info(info("rope_freqs.weight", &[dims], 0, 0x80));
    // The test's files are of ones in each byte.
    let found = read(&Made { data: 256, ..tensor(2) }).unwrap();
    let factor = f64::from(f32::from_bits(0x0101_0101));
    let scaling = &found["rope_scaling"];
    assert_eq!(scaling["rope_type"], json!("longrope"));
    assert_eq!(scaling["original_max_position_embeddings"], json!(64));
    assert!((scaling["long_factor"][1].as_f64().unwrap() / factor - 1.0).abs() < 1e-6);
    let found = fault(&Made { data: 256, ..tensor(3) });
    assert_eq!(found, "tensor `rope_freqs.weight` has shape [3], but the model needs [2]");
}
