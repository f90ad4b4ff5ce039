use super::*;
use crate::made::{Made as File, info, key, key_text, write};

const SIZES: [(&str, u32); 4] =
    [("block_count", 1), ("embedding_length", 32), ("attention.head_count", 2), ("attention.head_count_kv", 2)];

/// A model of an architecture with these tensors of floats, one after the other.
fn opened(architecture: &str, tensors: &[(&str, &[u64])]) -> Gguf {
    let mut file = File::new().key(key_text("general.architecture", architecture));
    for (name, size) in SIZES {
        file = file.key(key(&format!("{architecture}.{name}"), 4, &size.to_le_bytes()));
    }
    for (name, dims) in tensors {
        let bytes = dims.iter().product::<u64>() * 4;
        file.infos.push(info(name, dims, 0, file.data as u64));
        file.data += bytes.next_multiple_of(32) as usize;
    }
    let dir = tempfile::tempdir().unwrap();
    Gguf::open(write(dir.path(), "m.gguf", &file.bytes())).unwrap()
}

fn fault(architecture: &str, tensors: &[(&str, &[u64])]) -> String {
    origins(&opened(architecture, tensors)).unwrap_err().to_string()
}

#[test]
fn tensors_without_a_name_are_refused() {
    let unnamed = |name: &str| format!("tensor `{name}` is none of a model of `qwen2`");
    for name in ["blk.0.other.weight", "blk.x.attn_q.weight", "blk..attn_q.weight", "other.weight", "output.scale"] {
        assert_eq!(fault("qwen2", &[(name, &[4])]), unnamed(name));
    }
    for name in ["blk.0.ffn_other_exps.weight", "blk.0.ffn_other_shexp.weight", "blk.0.attn_sinks.weight"] {
        assert_eq!(fault("qwen2", &[(name, &[4, 4, 4])]), unnamed(name));
    }
    assert!(fault("other", &[]).starts_with("`general.architecture` is \"other\", which is not supported; "));
}

#[test]
fn tensors_of_one_name_are_refused() {
    let both: [(&str, &[u64]); 2] = [("blk.0.ffn_norm.weight", &[4]), ("blk.0.post_attention_norm.weight", &[4])];
    let name = "model.layers.0.post_attention_layernorm.weight";
    assert_eq!(fault("llama", &both), format!("two tensors of the file are `{name}` of the model"));
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    let want =
        |name: &str, found: &str, want: &str| format!("tensor `{name}` has shape {found}, but the model needs {want}");
    let name = "blk.0.attn_q.weight";
    assert_eq!(fault("llama", &[(name, &[4, 6])]), want(name, "[6, 4]", "rows of 2 heads"));
    assert_eq!(fault("llama", &[(name, &[])]), want(name, "[]", "rows of 2 heads"));
    let name = "blk.0.ffn_gate_exps.weight";
    assert_eq!(fault("qwen3moe", &[(name, &[4, 4])]), want(name, "[4, 4]", "three dimensions"));
    let (gate, up) = ("blk.0.ffn_gate_exps.weight", "blk.0.ffn_up_exps.weight");
    assert_eq!(fault("gpt-oss", &[(gate, &[4, 2, 2]), (up, &[4, 3, 2])]), want(up, "[2, 3, 4]", "[2, 2, 4]"));
    assert_eq!(fault("gpt-oss", &[(gate, &[4, 2, 2])]), format!("the file has no tensor `{up}`"));
    let (k, v) = ("blk.0.attn_k_b.weight", "blk.0.attn_v_b.weight");
    assert_eq!(fault("deepseek2", &[(k, &[2, 6, 4]), (v, &[6, 3, 5])]), want(v, "[5, 3, 6]", "[4, 3, 6]"));
    let (qkv, gate) = ("blk.0.attn_qkv.weight", "blk.0.attn_gate.weight");
    let found = fault("qwen3next", &[(qkv, &[4, 6]), (gate, &[4, 2])]);
    assert_eq!(found, "the file has no `qwen3next.ssm.group_count`");
}

#[test]
fn rows_go_from_pairs_to_halves() {
    let gguf = opened("llama", &[("blk.0.attn_k.weight", &[4, 16])]);
    let origin = origins(&gguf).unwrap().remove(0);
    let rows: Vec<usize> = (0..16).map(|row| origin.row(row).unwrap().1).collect();
    assert_eq!(rows, [0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15]);
}

#[test]
fn gates_may_be_in_one_tensor_with_what_they_multiply() {
    let gguf = opened("qwen3moe", &[("blk.0.ffn_gate_up_exps.weight", &[4, 6, 2])]);
    let found: Vec<_> = origins(&gguf)
        .unwrap()
        .into_iter()
        .map(|origin| {
            assert_eq!(origin.shape, [3, 4]);
            (origin.row(1).unwrap().1, origin.name)
        })
        .collect();
    let name = |expert, part| format!("model.layers.0.mlp.experts.{expert}.{part}_proj.weight");
    let want = [(1, name(0, "gate")), (4, name(0, "up")), (7, name(1, "gate")), (10, name(1, "up"))];
    assert_eq!(found, want);
    let tensor = "blk.0.ffn_gate_up_exps.weight";
    assert_eq!(fault("gpt-oss", &[(tensor, &[4, 6, 2])]), format!("tensor `{tensor}` is none of a model of `gpt-oss`"));
    let found = fault("qwen3moe", &[(tensor, &[4, 5, 2])]);
    assert_eq!(
        found,
        format!("tensor `{tensor}` has shape [2, 5, 4], but the model needs as many rows of gates as of others")
    );
}
