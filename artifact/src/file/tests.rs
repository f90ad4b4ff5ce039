use super::header::{ENTRY, HASH, TABLE_START, size as header_bytes, u32_at};
use super::*;
use crate::fingerprint::NoFingerprint;
use crate::manifest::*;

/// A small sound manifest for a file of three sections.
pub(crate) fn sample() -> Manifest {
    let tensor = |name: &str, shape: &[usize]| WeightExpr::Tensor { name: name.into(), shape: shape.to_vec() };
    let weight = |name: &str, shape: &[usize], layout, bytes, expr| Weight {
        name: name.into(),
        dtype: DType::BF16,
        shape: shape.to_vec(),
        layout,
        bytes,
        expr,
        unsigned_zeros: false,
    };
    let halves = WeightExpr::Concat { axis: 0, parts: vec![tensor("a.weight", &[4, 4]), tensor("b.weight", &[4, 4])] };
    let panels = Layout::Panels { width: 16, group: 2, rows: 16, cols: 16 };
    Manifest {
        producer: "atomc 0.1.0".into(),
        config: serde_json::json!({ "hidden_size": 4 }),
        model: Model {
            architecture: "LlamaForCausalLM".into(),
            layers: 1,
            hidden: 4,
            vocab: 8,
            max_positions: 64,
            stop: vec![2],
            bos: Some(1),
        },
        tensors: TensorNames::default(),
        tensor_parallel: 1,
        expert_parallel: 1,
        pipeline_parallel: 1,
        adapters: None,
        tower: None,
        targets: vec![Target {
            name: "host".into(),
            invariant: false,
            layout: DataLayout {
                row: 16,
                alias: 1024,
                rows: 1,
                panel: 16,
                group_bytes: 4,
                block_tokens: 16,
                align: 64,
            },
            weights: vec![
                weight("w.weight", &[4, 4], panels, 512, tensor("w.weight", &[4, 4])),
                weight("concat(a.weight, b.weight)", &[8, 4], Layout::Rows { stride: 16 }, 256, halves),
                weight("const", &[2], Layout::Rows { stride: 16 }, 32, WeightExpr::Const { values: vec![0.1, 1e-30] }),
            ],
            states: vec![State { layer: 0, group: 0 }, State { layer: 0, group: 1 }],
            groups: vec![StateGroup::Paged(pages()), StateGroup::Slots(Slots { bytes: 96, each: 1 })],
            hidden: Hidden { dtype: DType::BF16, width: 4, stride: 6, bytes: 512 },

            draft: None,
            given: None,
            kernels: vec![def("k0"), def("k1")],
            variants: vec![variant("x86-64-v4", 1), variant("x86-64-v3", 2)],
            plans: vec![plan(PlanKind::Decode, 4), plan(PlanKind::Any, 32), plan(PlanKind::Whole, 32)],
        }],
    }
}

/// K, V, and the first number of each key.
fn pages() -> Paged {
    let stream = |name: &str, start, width, layout| PageStream {
        name: name.into(),
        at: Extent { start, bytes: 512 },
        dtype: DType::BF16,
        heads: 1,
        width,
        layout,
    };
    let (k, v) = (stream("k", 0, 2, StreamLayout::Tokens), stream("v", 512, 2, StreamLayout::Numbers));
    Paged {
        block_bytes: 1024,
        streams: vec![k, v, stream("first", 0, 1, StreamLayout::Prefix { of: 0 })],
        window: 0,
        every: 1,
    }
}

fn def(symbol: &str) -> KernelDef {
    let body = "graph @k(%a0: bf16[T, 4], %a1: f32[2], %a2: cache<bf16, 1, 2>, %a3: i32[T]) {
  %0 = kv_write %a2, %a0, %a0, %a3 : cache<bf16, 1, 2>
  return %0
}
";
    KernelDef { symbol: symbol.into(), family: "rows".into(), body: body.into(), tokens: 32, each: None }
}

fn variant(name: &str, section: usize) -> Variant {
    let loops = vec![LoopReport {
        instructions: 9,
        matrix: 1,
        valu: 2,
        salu: 1,
        lds: 1,
        loads: 2,
        loads_x4: 2,
        partial_waits: 1,
        overlap: 8,
        waits: 1,
        barriers: 1,
    }];
    let resources = Resources {
        vgprs: 64,
        agprs: 0,
        sgprs: 32,
        lds: 1024,
        scratch: 0,
        vgpr_spills: 0,
        sgpr_spills: 0,
        occupancy: 0.1,
        code_bytes: 400,
        instructions: 100,
        matrix: 16,
        loops,
    };
    let kernel = |tasks, resources| Kernel {
        schedule: "rowwise".into(),
        tasks,
        scratch: 256,
        threads: 64,
        workspace: 16,
        shared: 0,
        rate: 1,
        overlaps: false,
        together: 1,
        module: None,
        resources,
    };
    Variant {
        name: name.into(),
        features: vec!["avx2".into()],
        chip: None,
        executed: true,
        section,
        kernels: vec![kernel(Tasks::Tokens { per: 1, times: 2 }, Some(resources)), kernel(Tasks::Fixed(3), None)],
        prepare: None,
        pack: None,
        exchange: None,
    }
}

fn plan(kind: PlanKind, tokens: usize) -> Plan {
    let args = vec![
        Arg::Arena { offset: 64 },
        Arg::Weight { index: 2 },
        Arg::State { state: 0, stream: 0 },
        Arg::State { state: 0, stream: 1 },
        Arg::Input { which: Input::Ids },
    ];
    let location = "model.layers.0.mlp".to_owned();
    Plan {
        kind,
        draft: false,
        tokens,
        rows: 4,
        arena_bytes: 4096,
        attention: Attention::Own,
        body: 1,
        calls: vec![],
        launches: vec![Launch { kernel: 1, args, segment: 0, location, bytes: 10, flops: 20, chosen: None }],
        hidden: vec![],
        logits: Logits { offset: 0, width: 8, stride: 8 },
        picks: Some(Picks { offset: 128, stride: 1 }),
    }
}

fn code() -> Vec<Vec<u8>> {
    vec![b"first code object".to_vec(), vec![7; 130]]
}

fn decode(file: &[u8]) -> Result<Artifact, Error> {
    Artifact::decode(Header::parse(file, file.len() as u64)?, file.to_vec())
}

/// Puts a hash of the present header in place, as a forger would.
fn seal(file: &mut [u8]) {
    let end = header_bytes(u32_at(file, 12) as usize);
    let hash = blake3::hash(&file[..end - HASH]);
    file[end - HASH..end].copy_from_slice(hash.as_bytes());
}

#[test]
fn writes_what_it_reads() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.atomc");
    write(&path, &sample(), &code()).unwrap();
    let artifact = Artifact::open(&path).unwrap();
    assert_eq!(*artifact.manifest(), sample());
    assert_eq!(artifact.sections().len(), 3);
    assert_eq!([1, 2].map(|i| artifact.section(i).unwrap()), [&code()[0][..], &code()[1][..]]);
    assert_eq!(std::fs::read(&path).unwrap(), encode(&sample(), &code()).unwrap());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file may stay");
}

#[test]
fn replaces_a_file_only_when_whole() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.atomc");
    std::fs::write(&path, "old").unwrap();
    let mut broken = sample();
    broken.targets[0].variants[0].section = 9;
    write(&path, &broken, &code()).unwrap_err();
    assert_eq!(std::fs::read(&path).unwrap(), b"old");
    write(&path, &sample(), &code()).unwrap();
    Artifact::open(&path).unwrap();
    write(dir.path().join("none/m.atomc"), &sample(), &code()).unwrap_err();
}

#[test]
fn refuses_every_flipped_bit() {
    let good = encode(&sample(), &code()).unwrap();
    decode(&good).unwrap();
    let mut file = good.clone();
    for index in 0..file.len() {
        for flip in [1, 0x80, 0xff] {
            file[index] ^= flip;
            assert!(decode(&file).is_err(), "byte {index} of {} may be changed by {flip}", file.len());
            file[index] ^= flip;
        }
    }
    assert_eq!(file, good);
}

#[test]
fn refuses_every_truncation_and_extension() {
    let good = encode(&sample(), &code()).unwrap();
    for len in 0..good.len() {
        decode(&good[..len]).expect_err("a cut file");
    }
    let longer = [&good[..], &[0]].concat();
    assert!(matches!(decode(&longer), Err(Error::TrailingBytes { .. })));
}

#[test]
fn refuses_forged_headers_too() {
    let good = encode(&sample(), &code()).unwrap();
    let forge = |at: usize, value: u64| {
        let mut file = good.clone();
        file[at..at + 8].copy_from_slice(&value.to_le_bytes());
        seal(&mut file);
        decode(&file).and_then(|artifact| artifact.section(1).map(drop)).unwrap_err()
    };
    for value in [0, 1, 12, 1 << 20, 1 << 40, u64::MAX - 7, u64::MAX] {
        for field in [TABLE_START, TABLE_START + 8, TABLE_START + ENTRY, TABLE_START + ENTRY + 8] {
            forge(field, value);
        }
    }
    assert!(matches!(forge(TABLE_START, 1 << 20), Error::Truncated { part: Part::Manifest, .. }));
    for length in [0, 16, 18, 1 << 20] {
        assert!(matches!(forge(TABLE_START + ENTRY + 8, length), Error::Packed { part: Part::Code(1) }));
    }
}

#[test]
fn sections_are_packed_and_lie_where_drivers_want_them() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.atomc");
    let code = vec![b"add.s32 %r1, %r2, %r3;\n".repeat(5000), vec![]];
    let manifest = sample();
    let size = encode(&manifest, &code).unwrap().len();
    assert!(size < code[0].len() / 20, "{size} bytes");
    write(&path, &manifest, &code).unwrap();
    let artifact = Artifact::open(&path).unwrap();
    assert_eq!(artifact.bytes(), size);
    assert_eq!(artifact.sections().iter().map(|section| section.packed).sum::<usize>() + header_bytes(3), size);
    assert_eq!([1, 2].map(|i| artifact.section(i).unwrap()), [&code[0][..], &[]]);
    assert!((0..3).all(|i| artifact.section(i).unwrap().as_ptr().align_offset(ALIGN) == 0));
}

/// The memory follows from the header. Its bounds do not depend on the ratio by which deflate
/// shrinks zeros.
#[test]
fn what_would_take_much_memory_is_refused_by_the_header() {
    let good = encode(&sample(), &code()).unwrap();
    let declared = |section: usize, length: usize| {
        let (mut file, at) = (good.clone(), TABLE_START + section * ENTRY + 8);
        file[at..at + 8].copy_from_slice(&(length as u64).to_le_bytes());
        seal(&mut file);
        Header::parse(&file, file.len() as u64).map(drop)
    };
    let rest = code()[1].len();
    declared(0, MAX_MANIFEST).unwrap();
    declared(1, MAX_CODE - rest).unwrap();
    let said = declared(0, MAX_MANIFEST + 1).unwrap_err().to_string();
    assert_eq!(
        said,
        "artifact is too large: section 0 (manifest) would bring it to 67108865 unpacked bytes, and 67108864 are the most"
    );
    // Sections count together, and no sum overflows.
    for length in [MAX_CODE - rest + 1, 1 << 40, usize::MAX] {
        assert!(matches!(declared(1, length), Err(Error::Unpacked { part: Part::Code(1 | 2), .. })), "{length}");
    }
}

#[test]
fn a_section_that_nothing_names() {
    let mut code = code();
    code.push(vec![0; 1 << 20]);
    let json = serde_json::to_vec(&sample()).unwrap();
    let sections: Vec<&[u8]> = std::iter::once(&json[..]).chain(code.iter().map(Vec::as_slice)).collect();
    for error in [decode(&lay_out(&sections)).unwrap_err(), encode(&sample(), &code).unwrap_err()] {
        assert_eq!(error.to_string(), "artifact manifest: targets: no variant names section 3 of the file");
    }
}

#[test]
fn code_is_unpacked_when_it_is_asked_for() {
    let artifact = decode(&encode(&sample(), &code()).unwrap()).unwrap();
    let held = || artifact.sections.iter().map(|section| section.bytes.get().is_some()).collect::<Vec<_>>();
    assert_eq!(held(), [false; 3]);
    let first = artifact.section(1).unwrap().as_ptr();
    assert_eq!((held(), artifact.section(1).unwrap().as_ptr()), (vec![false, true, false], first));
}

/// A file that is damaged after its header has the fingerprint of the whole one.
#[test]
fn a_fingerprint_needs_the_header_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.atomc");
    let written = write(&path, &sample(), &code()).unwrap();
    assert_eq!(super::fingerprint(&path).unwrap(), written);
    let mut file = std::fs::read(&path).unwrap();
    file[header_bytes(3)..].fill(0);
    std::fs::write(&path, &file).unwrap();
    assert_eq!(super::fingerprint(&path).unwrap(), written);
    Artifact::open(&path).unwrap_err();
    std::fs::write(&path, &file[..file.len() - 1]).unwrap();
    assert!(matches!(super::fingerprint(&path), Err(Error::Truncated { .. })));
}

#[test]
fn fingerprints_tell_contents_apart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.atomc");
    let written = write(&path, &sample(), &code()).unwrap();
    assert_eq!(Artifact::open(&path).unwrap().fingerprint(), written);
    assert_eq!(written.to_string().parse(), Ok(written));
    assert_eq!("00".repeat(31).parse::<Fingerprint>(), Err(NoFingerprint));
    let mut seen = std::collections::BTreeSet::from([written]);
    // A forger changes one byte of code and makes all checksums right again.
    for index in 0..3 {
        let mut changed = code();
        changed[1][40 * index] ^= 1;
        let json = serde_json::to_vec(&sample()).unwrap();
        std::fs::write(&path, lay_out(&[&json, &changed[0], &changed[1]])).unwrap();
        assert!(seen.insert(Artifact::open(&path).unwrap().fingerprint()), "byte {index}");
    }
    let mut other = sample();
    other.producer.push('!');
    assert!(seen.insert(write(&path, &other, &code()).unwrap()));
}

#[test]
fn says_what_is_wrong() {
    let good = encode(&sample(), &code()).unwrap();
    let mut newer = good.clone();
    newer[8] = 15;
    let mut damaged = good.clone();
    *damaged.last_mut().unwrap() ^= 1;
    let texts = [
        (
            decode(b"PK\x03\x04").unwrap_err(),
            "not an atomc artifact: the file does not begin with the artifact signature",
        ),
        (
            decode(&newer).unwrap_err(),
            "artifact format version 15, but this atomc reads version 14: compile the model again",
        ),
        (decode(&damaged).unwrap_err(), "artifact is damaged: the checksum of section 2 (code) does not match"),
        (decode(&good[..20]).unwrap_err(), "artifact is cut short: the header needs 192 bytes and the file has 20"),
    ];
    for (error, text) in texts {
        assert_eq!(error.to_string(), text);
    }
    assert!(matches!(Artifact::open("/no/such/file.atomc"), Err(Error::Io { action: "open", .. })));
    assert!(Artifact::open(std::env::temp_dir()).is_err());
}

#[test]
fn names_the_field_that_does_not_parse() {
    let json = serde_json::to_string(&sample()).unwrap();
    let field = |from: &str, to: &str| parse(json.replacen(from, to, 1).as_bytes()).unwrap_err().to_string();
    let at = |text: String| text.split(": ").nth(1).unwrap().to_owned();
    assert_eq!(at(field("\"kind\":\"decode\"", "\"kind\":\"draft\"")), "targets[0].plans[0].kind");
    assert_eq!(at(field("\"vocab\":8", "\"vocab\":-8")), "model.vocab");
    assert_eq!(at(field("\"heads\":1", "\"heads\":1,\"tails\":1")), "targets[0].groups[0].paged.streams[0].tails");
    assert_eq!(at(field("{", "")), "manifest");
    let said = field("\"heads\":1", "\"heads\":1,\"\\u001b[2J\\u009b\\n\":1");
    assert!(said.contains(r"`\u{1b}[2J\u{9b}\n`") && !said.contains(char::is_control), "{}", said.escape_debug());
}

#[test]
fn refuses_to_write_numbers_that_json_lacks() {
    let mut manifest = sample();
    manifest.targets[0].weights[2].expr = WeightExpr::Const { values: vec![f32::NAN, 1.0] };
    assert!(matches!(encode(&manifest, &code()), Err(Error::Manifest { .. })));
}

#[test]
fn numbers_come_back_to_the_last_bit() {
    let mut manifest = sample();
    let values: Vec<f32> = (0u32..5000).map(|i| f32::from_bits(i.wrapping_mul(0x9e37_79b9) & 0x7f7f_ffff)).collect();
    let doubles: Vec<f64> =
        (0u64..5000).map(|i| f64::from_bits(i.wrapping_mul(0x9e37_79b9_7f4a_7c15) & 0x7fdf_ffff_ffff_ffff)).collect();
    manifest.targets[0].weights[2] = weight_of(values);
    manifest.config = serde_json::json!({ "doubles": doubles });
    encode(&manifest, &code()).unwrap();
}

fn weight_of(values: Vec<f32>) -> Weight {
    let stride = values.len().next_multiple_of(16);
    Weight {
        name: "const".into(),
        dtype: DType::F32,
        shape: vec![values.len()],
        layout: Layout::Rows { stride },
        bytes: stride * 4,
        expr: WeightExpr::Const { values },
        unsigned_zeros: false,
    }
}
