use serde_json::{Value, json};

use super::{Around, Blocks, HEAD, Quantisation, USUAL};
use crate::fields::Fields;
use crate::{DType, Diagnostic};

const Q: &str = "model.layers.0.self_attn.q_proj";

fn read(config: Value) -> Result<Quantisation, Diagnostic> {
    let config = json!({ "quantization_config": config });
    let fields = Fields::new("config.json", config.as_object().expect("an object"));
    let around = Around { model: &fields, dtype: DType::BF16, release: USUAL };
    Quantisation::read(&around).map(|found| found.expect("it is quantised"))
}

/// The schemes of a product and of the head.
fn schemes(config: Value) -> String {
    let found = read(config).unwrap_or_else(|e| panic!("{e}"));
    [Q, HEAD].map(|name| found.scheme(&[name]).map_or("none".into(), ToString::to_string)).join("; ")
}

fn fault(config: Value) -> String {
    read(config).expect_err("it is refused").to_string()
}

/// A compressed-tensors file with one group, in which these fields are other ones.
fn group(format: &str, weights: Value, inputs: Value) -> Value {
    let spec = |patch: Value| {
        let mut spec = json!({ "num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": true, "dynamic": false,
            "group_size": null, "block_structure": null, "actorder": null });
        spec.as_object_mut().expect("an object").extend(patch.as_object().expect("an object").clone());
        spec
    };
    let inputs = if inputs.is_null() { inputs } else { spec(inputs) };
    json!({
        "quant_method": "compressed-tensors", "format": format, "ignore": ["lm_head"], "quantization_status": "compressed",
        "sparsity_config": {}, "transform_config": {}, "kv_cache_scheme": null,
        "config_groups": { "group_0": { "targets": ["Linear"], "weights": spec(weights), "input_activations": inputs,
            "output_activations": null } },
    })
}

/// A file of Quark's with one spec for weights and one for their inputs.
fn quark(weight: Value, input: Value) -> Value {
    json!({ "quant_method": "quark", "exclude": ["lm_head"], "export": { "weight_format": "real_quantized" },
        "global_quant_config": { "weight": weight, "input_tensors": input, "output_tensors": null, "bias": null } })
}

#[test]
fn fp8() {
    let block = json!({ "quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128] });
    let mut powers = block.clone();
    powers["scale_fmt"] = json!("ue8m0");
    insta::assert_snapshot!(schemes(block), @r#"f8e4m3 with scales of f32 for blocks of 128 by 128, stored as codes with weight_scale_inv, a number for each block, rows as f8e4m3 with scales for groups of 128 columns; none"#);
    insta::assert_snapshot!(schemes(json!({ "quant_method": "fp8", "activation_scheme": "static" })), @r#"f8e4m3 with scales of f32 for the tensor, stored as codes with weight_scale, one number, rows as f8e4m3 with input_scale; none"#);
    insta::assert_snapshot!(schemes(powers), @r#"f8e4m3 with scales of f32 for blocks of 128 by 128, stored as codes with weight_scale_inv, a number for each block, rows as f8e4m3 with scales rounded up to powers of two for groups of 128 columns; none"#);
    let excluded = json!({ "quant_method": "fp8", "modules_to_not_convert": ["model.layers.0.self_attn"] });
    assert_eq!(schemes(excluded), "none; none");
    let both = json!({ "quant_method": "fp8", "activation_scheme": "static", "weight_block_size": [128, 128] });
    insta::assert_snapshot!(fault(both), @r#"config.json: quantization_config.activation_scheme: "static" does not go with weight_block_size"#);
    insta::assert_snapshot!(fault(json!({ "quant_method": "fp8", "scale_fmt": "ue8m0" })), @r#"config.json: quantization_config.scale_fmt: "ue8m0" goes with blocks alone"#);
    insta::assert_snapshot!(fault(json!({ "quant_method": "fp8", "weight_block_size": [128, 0] })), @"config.json: quantization_config.weight_block_size: must be a list of whole numbers above 0, not [128,0]");
}

#[test]
fn compressed_tensors() {
    let dynamic = json!({ "strategy": "token", "dynamic": true });
    insta::assert_snapshot!(schemes(group("float-quantized", json!({ "strategy": "channel" }), dynamic.clone())), @r#"f8e4m3 with scales of f32 for each row, stored as codes with weight_scale, a number for each block, rows as f8e4m3 with a scale for each row; none"#);
    insta::assert_snapshot!(schemes(group("float-quantized", json!({}), json!({}))), @r#"f8e4m3 with scales of f32 for the tensor, stored as codes with weight_scale, one number, rows as f8e4m3 with input_scale; none"#);
    let int8 = json!({ "type": "int", "strategy": "channel" });
    let rows = json!({ "type": "int", "strategy": "token", "dynamic": true });
    insta::assert_snapshot!(schemes(group("int-quantized", int8, rows)), @r#"i8 with scales of f32 for each row, stored as codes with weight_scale, a number for each block, rows as i8 with a scale for each row; none"#);
    let int4 = json!({ "type": "int", "num_bits": 4, "strategy": "group", "group_size": 32 });
    insta::assert_snapshot!(schemes(group("pack-quantized", int4.clone(), Value::Null)), @"i4 with scales of bf16 for groups of 32 columns, stored as words along rows; none");
    let mut asymmetric = int4.clone();
    asymmetric["symmetric"] = json!(false);
    insta::assert_snapshot!(schemes(group("pack-quantized", asymmetric, Value::Null)), @"u4 with scales of bf16 for groups of 32 columns, zero points, stored as words along rows; none");
    let mx = json!({ "strategy": "group", "group_size": 32 });
    let inputs = json!({ "strategy": "group", "group_size": 32, "dynamic": true });
    insta::assert_snapshot!(schemes(group("mxfp8-quantized", mx, inputs)), @r#"f8e4m3 with scales of e8m0 for groups of 32 columns, stored as codes with weight_scale, a number for each block, rows as f8e4m3 with powers of two for groups of 32 columns; none"#);

    let mut ordered = int4.clone();
    ordered["actorder"] = json!("group");
    insta::assert_snapshot!(schemes(group("pack-quantized", ordered.clone(), Value::Null)), @"i4 with scales of bf16 for groups of 32 columns, stored as words along rows, columns by weight_g_idx; none");
    insta::assert_snapshot!(fault(group("int-quantized", ordered, Value::Null)), @r#"config.json: quantization_config.config_groups.group_0.weights.actorder: columns in another order (act-order) go with "pack-quantized" and rows of floats alone"#);
    let mut rotated = group("pack-quantized", int4.clone(), Value::Null);
    rotated["transform_config"] = json!({ "config_groups": {} });
    insta::assert_snapshot!(fault(rotated), @"config.json: quantization_config.transform_config: is not supported");
    let mut sparse = group("pack-quantized", int4.clone(), Value::Null);
    sparse["sparsity_config"] = json!({ "format": "sparse-24-bitmask" });
    insta::assert_snapshot!(fault(sparse), @"config.json: quantization_config.sparsity_config: is not supported");
    // As llm-compressor writes it: `dynamic` is a word there.
    let nvfp4 = json!({ "type": "float", "num_bits": 4, "strategy": "tensor_group", "group_size": 16 });
    let local =
        json!({ "type": "float", "num_bits": 4, "strategy": "tensor_group", "group_size": 16, "dynamic": "local" });
    insta::assert_snapshot!(schemes(group("nvfp4-pack-quantized", nvfp4.clone(), Value::Null)), @"f4e2m1 with scales of f32 for groups of 16 columns, stored as pairs of codes in weight_packed with weight_scale over weight_global_scale; none");
    insta::assert_snapshot!(schemes(group("nvfp4-pack-quantized", nvfp4.clone(), local.clone())), @"f4e2m1 with scales of f32 for groups of 16 columns, stored as pairs of codes in weight_packed with weight_scale over weight_global_scale, input_global_scale unused; none");
    insta::assert_snapshot!(fault(group("nvfp4-pack-quantized", local, Value::Null)), @"config.json: quantization_config.config_groups.group_0.weights.dynamic: must be true or false for weights");
    let mut wide = nvfp4.clone();
    wide["group_size"] = json!(32);
    insta::assert_snapshot!(fault(group("nvfp4-pack-quantized", wide, Value::Null)), @"config.json: quantization_config.config_groups.group_0.weights.group_size: 32 is not supported, only [16]");
    insta::assert_snapshot!(fault(group("nvfp4-pack-quantized", nvfp4, json!({}))), @"config.json: quantization_config.config_groups.group_0.input_activations.strategy: symmetric floats of 8 bits with a scale for each tensor are not supported");
    insta::assert_snapshot!(fault(group("marlin-24", int4, Value::Null)), @r#"config.json: quantization_config.config_groups.group_0.format: "marlin-24" is not supported"#);
    let five = json!({ "type": "int", "num_bits": 5, "strategy": "group", "group_size": 32 });
    insta::assert_snapshot!(fault(group("pack-quantized", five, Value::Null)), @r#"config.json: quantization_config.config_groups.group_0.format: "pack-quantized" is not supported for this kind of numbers"#);
}

#[test]
fn names_go_before_classes() {
    let int4 = json!({ "type": "int", "num_bits": 4, "strategy": "channel" });
    let mut config = group("pack-quantized", int4, Value::Null);
    let other = json!({ "targets": ["re:.*q_proj"], "format": "int-quantized",
        "weights": { "num_bits": 8, "type": "int", "strategy": "channel" } });
    config["config_groups"].as_object_mut().expect("an object").insert("group_1".into(), other);
    let found = read(config).unwrap();
    assert_eq!(found.scheme(&[Q]).unwrap().codes, DType::I8);
    assert_eq!(found.scheme(&["model.layers.0.mlp.up_proj"]).unwrap().codes, DType::I4);
}

#[test]
fn caches() {
    let mut config = group("float-quantized", json!({}), json!({}));
    config["kv_cache_scheme"] = json!({ "num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": false });
    assert_eq!(read(config.clone()).unwrap().cache.unwrap().keys, "k_scale");
    config["kv_cache_scheme"]["strategy"] = json!("attn_head");
    insta::assert_snapshot!(fault(config), @"config.json: quantization_config.kv_cache_scheme.strategy: symmetric floats of 8 bits with a scale for each attn_head are not supported");
}

#[test]
fn quark_files() {
    let rows = json!({ "dtype": "fp8_e4m3", "qscheme": "per_channel", "is_dynamic": false });
    let tokens = json!({ "dtype": "fp8_e4m3", "qscheme": "per_channel", "is_dynamic": true });
    insta::assert_snapshot!(schemes(quark(rows, tokens)), @r#"f8e4m3 with scales of f32 for each row, stored as codes with weight_scale, a number for each row, rows as f8e4m3 with a scale for each row; none"#);
    let mx = |dynamic| json!({ "dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0", "is_dynamic": dynamic });
    insta::assert_snapshot!(schemes(quark(mx(false), mx(true))), @r#"f4e2m1 with scales of e8m0 for groups of 32 columns, stored as pairs of codes in weight with weight_scale, rows as f4e2m1 with powers of two for groups of 32 columns; none"#);
    insta::assert_snapshot!(schemes(quark(json!([mx(false)]), Value::Null)), @r#"f4e2m1 with scales of e8m0 for groups of 32 columns, stored as pairs of codes in weight with weight_scale; none"#);
    insta::assert_snapshot!(fault(quark(json!([mx(false), mx(false)]), Value::Null)), @"config.json: quantization_config.global_quant_config.weight: several forms, one after the other, are not supported");
    insta::assert_snapshot!(fault(quark(json!({ "dtype": "mx6", "qscheme": "per_group" }), Value::Null)), @r#"config.json: quantization_config.global_quant_config.weight.dtype: "mx6" with scales of "float" "per_group" is not supported"#);
    let mut fake = quark(mx(false), Value::Null);
    fake["export"]["weight_format"] = json!("fake_quantized");
    insta::assert_snapshot!(fault(fake), @r#"config.json: quantization_config.export.weight_format: must be "real_quantized", not "fake_quantized""#);
}

#[test]
fn awq_and_gptq() {
    let awq = json!({ "quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": true, "version": "gemm" });
    insta::assert_snapshot!(schemes(awq.clone()), @"u4 with scales of f16 for groups of 128 columns, zero points, stored as AWQ's words across columns; none");
    let mut other = awq;
    other["version"] = json!("gemv");
    insta::assert_snapshot!(fault(other), @r#"config.json: quantization_config.version: unknown value "gemv""#);
    let gptq = json!({ "quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": false, "sym": true });
    insta::assert_snapshot!(schemes(gptq.clone()), @"i4 with scales of f16 for groups of 64 columns, stored as GPTQ's words down columns, 1 off zero points; none");
    let patched = |name: &str, value: Value| {
        let mut config = gptq.clone();
        config[name] = value;
        config
    };
    insta::assert_snapshot!(schemes(patched("sym", json!(false))), @"u4 with scales of f16 for groups of 64 columns, zero points, stored as GPTQ's words down columns, 1 off zero points; none");
    insta::assert_snapshot!(schemes(patched("lm_head", json!(true))), @"i4 with scales of f16 for groups of 64 columns, stored as GPTQ's words down columns, 1 off zero points; i4 with scales of f16 for groups of 64 columns, stored as GPTQ's words down columns, 1 off zero points");
    assert_eq!(schemes(patched("dynamic", json!({ "-:.*q_proj": {} }))), "none; none");
    insta::assert_snapshot!(fault(patched("dynamic", json!({ "+:.*q_proj": { "bits": 8 } }))), @"config.json: quantization_config.dynamic.+:.*q_proj: only patterns that exclude modules are supported, which begin with -:");
    insta::assert_snapshot!(schemes(patched("desc_act", json!(true))), @"i4 with scales of f16 for groups of 64 columns, stored as GPTQ's words down columns, 1 off zero points, columns by g_idx; none");
    insta::assert_snapshot!(schemes(patched("bits", json!(3))), @"u4 with scales of f16 for groups of 64 columns, zero points, stored as GPTQ's words down columns, 1 off zero points, 3 bits; none");
    insta::assert_snapshot!(fault(patched("bits", json!(5))), @"config.json: quantization_config.bits: 5 is not supported, only [2, 3, 4, 8]");
    insta::assert_snapshot!(fault(patched("group_size", Value::Null)), @"config.json: quantization_config.group_size: is null, where the model needs a value");
}

#[test]
fn bitsandbytes_of_four_and_of_eight_bits() {
    let fours = json!({ "quant_method": "bitsandbytes", "load_in_4bit": true, "load_in_8bit": false, "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": true, "bnb_4bit_quant_storage": "uint8", "llm_int8_skip_modules": null });
    let patched = |name: &str, value: Value| {
        let mut config = fours.clone();
        config[name] = value;
        config
    };
    insta::assert_snapshot!(schemes(fours.clone()), @"u4 with scales of f32 for the tensor, stored as codes by weight.quant_state.bitsandbytes__nf4 that become floats by scales that are codes; none");
    insta::assert_snapshot!(schemes(patched("llm_int8_skip_modules", json!(["lm_head", "q_proj"]))), @"none; none");
    insta::assert_snapshot!(fault(patched("bnb_4bit_quant_storage", json!("bfloat16"))), @r#"config.json: quantization_config.bnb_4bit_quant_storage: unknown value "bfloat16""#);
    insta::assert_snapshot!(fault(patched("load_in_8bit", json!(true))), @"config.json: quantization_config.load_in_4bit: or load_in_8bit must be true, and not both");
    let mut eights = patched("load_in_8bit", json!(true));
    eights["load_in_4bit"] = json!(false);
    insta::assert_snapshot!(schemes(eights.clone()), @"i8 with scales of f32 for each row, stored as codes in weight with SCB; none");
    eights["llm_int8_has_fp16_weight"] = json!(true);
    insta::assert_snapshot!(fault(eights), @"config.json: quantization_config.llm_int8_has_fp16_weight: is not supported");
}

#[test]
fn torchao_by_its_configurations() {
    let of = |name: &str, data: Value| {
        json!({ "quant_method": "torchao", "modules_to_not_convert": null,
        "quant_type": { "default": { "_type": name, "_version": 2, "_data": data } } })
    };
    let rows = json!({ "_type": "PerRow", "_version": 1, "_data": { "dim": -1 } });
    let tensor = json!({ "_type": "PerTensor", "_version": 1, "_data": {} });
    let plain = json!({ "granularity": rows, "set_inductor_config": true, "group_size": null });
    insta::assert_snapshot!(schemes(of("Int8WeightOnlyConfig", plain.clone())), @"i8 with scales of f32 for each row, stored as codes in _weight_qdata with _weight_scale; none");
    let both = json!({ "granularity": [rows, rows], "activation_dtype": { "_type": "torch.dtype", "_data": "float8_e4m3fn" } });
    insta::assert_snapshot!(schemes(of("Float8DynamicActivationFloat8WeightConfig", both)), @"f8e4m3 with scales of f32 for each row, stored as codes in _weight_qdata with _weight_scale, rows as f8e4m3 with a scale for each row; none");
    insta::assert_snapshot!(schemes(of("Float8WeightOnlyConfig", json!({ "granularity": tensor }))), @"f8e4m3 with scales of f32 for the tensor, stored as codes in _weight_qdata with _weight_scale; none");
    let wrong = |name, data| fault(of(name, data));
    insta::assert_snapshot!(wrong("Float8DynamicActivationFloat8WeightConfig", json!({ "granularity": [rows, tensor] })), @"config.json: quantization_config.quant_type.default._data.granularity: must be PerRow or PerTensor, the same for rows and weight");
    insta::assert_snapshot!(wrong("Int8WeightOnlyConfig", json!({ "group_size": 32 })), @"config.json: quantization_config.quant_type.default._data.group_size: is not supported");
    insta::assert_snapshot!(wrong("Int4WeightOnlyConfig", plain.clone()), @r#"config.json: quantization_config.quant_type.default._type: "Int4WeightOnlyConfig" is not supported"#);
    insta::assert_snapshot!(wrong("Float8WeightOnlyConfig", json!({ "weight_dtype": { "_type": "torch.dtype", "_data": "float8_e5m2" } })), @r#"config.json: quantization_config.quant_type.default._data.weight_dtype._data: unknown value "float8_e5m2""#);
    let mut first = of("Int8WeightOnlyConfig", plain);
    first["quant_type"]["default"]["_version"] = json!(1);
    insta::assert_snapshot!(fault(first), @"config.json: quantization_config.quant_type.default._version: only version 2 is supported");
    insta::assert_snapshot!(fault(json!({ "quant_method": "torchao", "quant_type": "int8_weight_only" })), @"config.json: quantization_config.quant_type: is a name, as older versions wrote it into files of pickled tensors");
}

#[test]
fn modelopt() {
    let of = |algo: &str| json!({ "quant_method": "modelopt", "quant_algo": algo, "ignore": ["lm_head"] });
    insta::assert_snapshot!(schemes(of("FP8")), @"f8e4m3 with scales of f32 for the tensor, stored as codes with weight_scale, one number, rows as f8e4m3 with input_scale; none");
    insta::assert_snapshot!(schemes(of("FP8_PER_CHANNEL_PER_TOKEN")), @"f8e4m3 with scales of f32 for each row, stored as codes with weight_scale, a number for each row, rows as f8e4m3 with a scale for each row; none");
    insta::assert_snapshot!(schemes(of("MXFP8")), @"f8e4m3 with scales of e8m0 for groups of 32 columns, stored as codes with weight_scale, a number for each block, rows as f8e4m3 with powers of two for groups of 32 columns; none");
    insta::assert_snapshot!(schemes(of("NVFP4")), @"f4e2m1 with scales of f32 for groups of 16 columns, stored as pairs of codes in weight with weight_scale times weight_scale_2, input_scale unused; none");
    insta::assert_snapshot!(schemes(of("W4A16_NVFP4")), @"f4e2m1 with scales of f32 for groups of 16 columns, stored as pairs of codes in weight with weight_scale times weight_scale_2; none");
    // As `hf_quant_config.json` has it.
    let own = |of: Value| json!({ "quant_method": "modelopt", "quantization": of });
    let excluded =
        json!({ "quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head", "model.layers.0*"] });
    assert_eq!(schemes(own(excluded.clone())), "none; none");
    assert_eq!(read(own(excluded)).unwrap().cache.unwrap().keys, "k_proj.k_scale");
    let mut cached = of("FP8");
    cached["kv_cache_scheme"] = json!({ "dynamic": false, "num_bits": 8, "type": "float" });
    assert_eq!(read(cached.clone()).unwrap().cache.unwrap().values, "v_proj.v_scale");
    cached["kv_cache_scheme"]["num_bits"] = json!(4);
    insta::assert_snapshot!(fault(cached), @"config.json: quantization_config.kv_cache_scheme: is not supported: it must be FP8, or absent");
    let mixed = json!({ "quant_algo": "MIXED_PRECISION", "quantized_layers": { Q: { "quant_algo": "W4A16_NVFP4", "group_size": 16 },
        "model.layers.0.mlp.up_proj": { "quant_algo": "FP8" } } });
    let found = read(own(mixed)).unwrap();
    let codes = |module: &str| found.scheme(&[module]).map(|scheme| scheme.codes);
    assert_eq!(
        ["model.layers.0.mlp.up_proj", Q, "model.layers.0.mlp.down_proj"].map(codes),
        [Some(DType::F8E4M3), Some(DType::F4E2M1), None]
    );
    insta::assert_snapshot!(fault(of("NVFP4_AWQ")), @r#"config.json: quantization_config.quant_algo: "NVFP4_AWQ" is not supported"#);
    insta::assert_snapshot!(fault(own(json!({ "quant_algo": "NVFP4", "group_size": 32 }))), @"config.json: quantization_config.quantization.group_size: 32 is not supported, only [16]");
    insta::assert_snapshot!(fault(own(json!({}))), @"config.json: quantization_config.quantization.quant_algo: is missing");
}

#[test]
fn auto_round() {
    let config = json!({ "quant_method": "auto-round", "packing_format": "auto_round:auto_gptq", "bits": 4, "group_size": 128,
        "sym": true, "data_type": "int", "block_name_to_quantize": "model.layers" });
    let patched = |name: &str, value: Value| {
        let mut config = config.clone();
        config[name] = value;
        config
    };
    insta::assert_snapshot!(schemes(config.clone()), @"i4 with scales of f16 for groups of 128 columns, stored as GPTQ's words down columns, 1 off zero points; none");
    insta::assert_snapshot!(schemes(patched("packing_format", json!("auto_round:auto_awq"))), @"u4 with scales of f16 for groups of 128 columns, zero points, stored as AWQ's words across columns; none");
    let mut raw = patched("packing_format", json!("auto_round"));
    raw["sym"] = json!(false);
    insta::assert_snapshot!(schemes(raw), @"u4 with scales of f16 for groups of 128 columns, zero points, stored as GPTQ's words down columns, 0 off zero points; none");
    let extra = json!({ Q: { "bits": 8, "group_size": 32 }, ".*mlp.*": { "bits": 16 }, "lm_head": { "bits": 8 } });
    let found = read(patched("extra_config", extra)).unwrap();
    let codes = |module: &str| found.scheme(&[module]).map(|scheme| (scheme.codes, scheme.blocks));
    assert_eq!(codes(Q), Some((DType::I8, Blocks::Group(32))));
    assert_eq!(codes("lm_head"), Some((DType::I8, Blocks::Group(128))));
    assert_eq!(codes("model.layers.0.mlp.up_proj"), None);
    assert_eq!(codes("model.layers.0.self_attn.k_proj"), Some((DType::I4, Blocks::Group(128))));
    insta::assert_snapshot!(fault(patched("bits", json!(3))), @"config.json: quantization_config.bits: 3 is not supported, only [4, 8]");
    insta::assert_snapshot!(fault(patched("act_bits", json!(8))), @"config.json: quantization_config.act_bits: 8 is not supported, only 16");
    insta::assert_snapshot!(fault(patched("data_type", json!("mx_fp"))), @r#"config.json: quantization_config.data_type: unknown value "mx_fp""#);
    insta::assert_snapshot!(fault(patched("packing_format", json!("auto_round:mlx"))), @r#"config.json: quantization_config.packing_format: unknown value "auto_round:mlx""#);
    let fewer = json!({ Q: { "bits": 2 } });
    insta::assert_snapshot!(fault(patched("extra_config", fewer)), @"config.json: quantization_config.extra_config.model.layers.0.self_attn.q_proj.bits: 2 is not supported, only [4, 8]");
}

#[test]
fn methods() {
    insta::assert_snapshot!(fault(json!({ "quant_method": "aqlm" })), @r#"config.json: quantization_config.quant_method: unknown method "aqlm""#);
    insta::assert_snapshot!(fault(json!({})), @"config.json: quantization_config.quant_method: is missing");
}
