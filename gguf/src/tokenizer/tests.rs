use serde_json::{Value as Json, json};
use tokenizers::Tokenizer;

use super::*;
use crate::made::{Made, fixture, key, key_list, key_text, text, write};

fn fixtures() -> Json {
    serde_json::from_str(&std::fs::read_to_string(fixture("tokenizers.json")).unwrap()).unwrap()
}

/// The vocabulary of a file, with another way to cut texts.
fn opened(name: &str, cuts: &str) -> Gguf {
    let mut gguf = Gguf::open(fixture(name)).unwrap();
    gguf.set("tokenizer.ggml.pre", cuts);
    gguf
}

fn made(gguf: &Gguf) -> Tokenizer {
    tokenizer(gguf).unwrap().to_string().parse().unwrap()
}

/// The hashes of ids, as the script that wrote the fixtures makes them.
fn hashed(ids: &[u32]) -> String {
    let step = |value: u32, byte| (value ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    format!("{:08x}", ids.iter().flat_map(|id| id.to_le_bytes()).fold(0x811c_9dc5, step))
}

/// Checks the ids of all texts.
fn check(tokenizer: &Tokenizer, texts: &Json, want: &Json, name: &str) {
    let want = want.as_str().unwrap().as_bytes().chunks(8);
    let texts = texts.as_array().unwrap();
    assert_eq!(texts.len(), 200);
    for (text, want) in texts.iter().zip(want) {
        let text = text.as_str().unwrap();
        let found = tokenizer.encode(text, false).unwrap();
        assert_eq!(hashed(found.get_ids()).as_bytes(), want, "{name}: {text:?} is {:?}", found.get_tokens());
    }
}

#[test]
fn byte_pairs_are_those_of_the_original() {
    let fixtures = fixtures();
    for (name, want) in fixtures["bpe"].as_object().unwrap() {
        check(&made(&opened("bpe.gguf", name)), &fixtures["texts"], want, name);
    }
}

#[test]
fn pieces_are_those_of_the_original() {
    let fixtures = fixtures();
    let tokenizer = made(&Gguf::open(fixture("spm.gguf")).unwrap());
    check(&tokenizer, &fixtures["plain_texts"], &fixtures["spm"], "spm");
    for text in fixtures["plain_texts"].as_array().unwrap() {
        let text = text.as_str().unwrap();
        let ids = tokenizer.encode(text, true).unwrap().get_ids().to_vec();
        assert_eq!(ids[0], 1);
        assert_eq!(tokenizer.decode(&ids, true).unwrap(), text);
    }
}

#[test]
fn every_way_to_cut_texts_is_sound() {
    let fixtures = fixtures();
    let names = cuts::names();
    for name in names {
        let tokenizer = made(&opened("bpe.gguf", name));
        for text in fixtures["plain_texts"].as_array().unwrap() {
            let text = text.as_str().unwrap();
            let ids = tokenizer.encode(text, false).unwrap().get_ids().to_vec();
            let is_same = tokenizer.decode(&ids, true).unwrap() == text;
            assert!(is_same || text.contains('\u{301}'), "{name}: {text:?}");
        }
    }
}

#[test]
fn texts_begin_with_a_token_where_the_file_says_so() {
    let gguf = opened("bpe.gguf", "qwen2");
    let ids = made(&gguf).encode("Hello", true).unwrap().get_ids().to_vec();
    let begin = gguf.metadata().size("tokenizer.ggml.bos_token_id").unwrap().unwrap();
    assert_eq!(u64::from(ids[0]), begin);
    let config = tokenizer_config(&gguf).unwrap();
    assert_eq!(config["bos_token"], json!("<|begin|>"));
    assert_eq!(config["eos_token"], json!("<|end|>"));
    assert_eq!(config["add_bos_token"], json!(true));
    assert_eq!(config["chat_template"], json!("{{ messages[0].content }}"));
}

#[test]
fn tokens_of_phi_3_take_the_spaces_after_them() {
    let ids = |architecture: &str, text: &str| {
        let mut gguf = Gguf::open(fixture("spm.gguf")).unwrap();
        gguf.set("general.architecture", architecture);
        made(&gguf).encode(text, false).unwrap().get_ids().to_vec()
    };
    assert_eq!(ids("phi3", "</s>\n x"), ids("phi3", "</s>x"));
    assert_ne!(ids("llama", "</s>\n x"), ids("llama", "</s>x"));
    assert_ne!(ids("phi3", "<s>\n x"), ids("phi3", "<s>x"));
}

/// What is wrong with a vocabulary of three tokens and some more keys.
fn fault(keys: Vec<Vec<u8>>) -> String {
    let dir = tempfile::tempdir().unwrap();
    let tokens = key_list("tokenizer.ggml.tokens", 8, 3, &[text("a"), text("b"), text("ab")].concat());
    let made = Made { keys: [vec![tokens], keys].concat(), ..Made::new() };
    let gguf = Gguf::open(write(dir.path(), "m.gguf", &made.bytes())).unwrap();
    tokenizer(&gguf).unwrap_err().to_string()
}

#[test]
fn refuses_vocabularies_that_lie() {
    let model = |name: &str| key_text("tokenizer.ggml.model", name);
    assert_eq!(fault(vec![]), "the file has no `tokenizer.ggml.model`");
    assert!(fault(vec![model("bert")]).starts_with("`tokenizer.ggml.model` is \"bert\", which is not supported"));
    assert_eq!(fault(vec![model("gpt2")]), "the file has no `tokenizer.ggml.merges`");
    assert_eq!(fault(vec![model("llama")]), "the file has no `tokenizer.ggml.scores`");
    let cut = key_text("tokenizer.ggml.pre", "other");
    assert!(fault(vec![model("gpt2"), cut]).starts_with("`tokenizer.ggml.pre` is \"other\", which is not supported"));
    let scores = key_list("tokenizer.ggml.scores", 6, 1, &[0; 4]);
    let found = fault(vec![model("llama"), scores]);
    assert_eq!(found, "`tokenizer.ggml.scores` has 1 elements, and must have 3");
    let types = key_list("tokenizer.ggml.token_type", 5, 4, &[0; 16]);
    let found = fault(vec![model("gpt2"), types]);
    assert_eq!(found, "`tokenizer.ggml.token_type` has 4 elements, and must have 3");
    let merges = key_list("tokenizer.ggml.merges", 8, 2, &[text("a b"), text("ab")].concat());
    let found = fault(vec![model("gpt2"), merges]);
    assert_eq!(found, "the tokenizer's merge 1 is no pair of tokens with a space between them");
    let begin = key("tokenizer.ggml.bos_token_id", 4, &3u32.to_le_bytes());
    let adds = key("tokenizer.ggml.add_bos_token", 7, &[1]);
    let found = fault(vec![model("gpt2"), begin, adds]);
    assert_eq!(found, "`tokenizer.ggml.bos_token_id` is 3, and must be below 3");
}
