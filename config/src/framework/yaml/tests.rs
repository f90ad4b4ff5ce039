use super::*;

/// As PyYAML's `safe_load` reads it.
#[test]
fn what_options_are_written_in() {
    let text = r#"
# of vLLM's documentation
---
model: meta/llama  # behind a blank
port: 12323
tensor-parallel-size: 1_0
rate: 0.5
enforce-eager: yes
enable-lora: Off
seed:
name: "a # b"
other: 'it''s'
compilation-config:
  pass_config:
    fuse: true
  sizes: [1, 2]
lora-modules:
- a=b
- '{"name": "c"}'
hf-overrides: {"rms_norm_eps": 1e-5}
version: 1.2.3
url: http://host:80/x#y
"#;
    let expected = json!({
        "model": "meta/llama", "port": 12323, "tensor-parallel-size": 10, "rate": 0.5, "enforce-eager": true,
        "enable-lora": false, "seed": null, "name": "a # b", "other": "it's",
        "compilation-config": { "pass_config": { "fuse": true }, "sizes": [1, 2] },
        "lora-modules": ["a=b", "{\"name\": \"c\"}"], "hf-overrides": { "rms_norm_eps": 1e-5 }, "version": "1.2.3",
        "url": "http://host:80/x#y",
    });
    assert_eq!(read(text).map(Value::Object), Ok(expected));
    assert_eq!(read("# nothing\n"), Ok(Map::new()));
}

#[test]
fn what_else_there_is_is_refused_with_its_line() {
    let texts = [
        "a: &x 1",
        "a: |\n  b",
        "a: {b: c}",
        "- a",
        "a: 0x10",
        "a: 1:30",
        "a:\n\tb: 1",
        "a: 1\n  b: 2",
        "a: 1\na: 2",
        "a: 'b",
        "a:\n  - b: c",
        "text",
    ];
    let faults = texts.map(|text| read(text).expect_err(text));
    insta::assert_snapshot!(faults.join("\n"), @"
    line 1: `&` is not understood here
    line 1: `|` is not understood here
    line 1: {b: c}: is no JSON on one line
    line 1: must be a key, a colon and a value
    line 1: 0x10: write the number with decimal digits, or the text in quotation marks
    line 1: 1:30: write the number with decimal digits, or the text in quotation marks
    line 2: a tab is no indentation
    line 2: its indentation is that of nothing before it
    line 2: a stands there twice
    line 1: a quotation mark is not closed on its line
    line 2: an item of a list must be one value, or JSON
    line 1: must be a key, a colon and a value
    ");
}
