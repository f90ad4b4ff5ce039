use super::*;
use crate::error::Fault;
use crate::made::{Made, fixture, info, key, key_list, key_text, text, write};
use crate::value::Value;

fn opened(bytes: &[u8]) -> Result<Gguf, GgufError> {
    let dir = tempfile::tempdir().unwrap();
    Gguf::open(write(dir.path(), "m.gguf", bytes))
}

fn fault(made: &Made) -> Fault {
    match opened(&made.bytes()) {
        Err(GgufError::Malformed { fault, .. }) => fault,
        other => panic!("{other:?}"),
    }
}

#[test]
fn reads_tensors_and_metadata() {
    for version in [2, 3] {
        let gguf = opened(&Made { version, ..Made::sound() }.bytes()).unwrap();
        assert_eq!(gguf.names().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(gguf.metadata().text("general.architecture").unwrap(), Some("llama"));
        assert_eq!(gguf.metadata().size("llama.block_count").unwrap(), Some(1));
        let (a, b) = (gguf.tensor("a").unwrap(), gguf.tensor("b").unwrap());
        assert_eq!((a.kind(), a.shape(), a.len()), (Type::F32, &[2, 3][..], 24));
        assert_eq!(a.floats().unwrap(), [f32::from_bits(0x0101_0101); 6]);
        assert_eq!((b.kind(), b.shape(), b.len()), (Type::Q8_0, &[32][..], 34));
        assert!(gguf.tensor("c").is_err());
        gguf.check().unwrap();
    }
}

#[test]
fn blocks_become_the_floats_of_the_reference() {
    let gguf = Gguf::open(fixture("blocks.gguf")).unwrap();
    for &kind in Type::ALL {
        let blocks = gguf.tensor(kind.name()).unwrap();
        let want = gguf.tensor(&format!("{}.f32", kind.name())).unwrap();
        assert_eq!((blocks.kind(), blocks.shape()), (kind, want.shape()));
        let bits = |floats: Vec<f32>| floats.into_iter().map(f32::to_bits).collect::<Vec<_>>();
        let (found, want) = (bits(blocks.floats().unwrap()), bits(want.floats().unwrap()));
        let first = found.iter().zip(&want).position(|(found, want)| found != want);
        assert_eq!(first, None, "{} has an element of other bits", kind.name());
    }
}

#[test]
fn reads_values_of_every_type() {
    let made = Made::new()
        .key(key("u8", 0, &[200]))
        .key(key("i8", 1, &[200]))
        .key(key("u16", 2, &60_000u16.to_le_bytes()))
        .key(key("i16", 3, &(-6i16).to_le_bytes()))
        .key(key("i32", 5, &(-7i32).to_le_bytes()))
        .key(key("f32", 6, &1e-6f32.to_le_bytes()))
        .key(key("flag", 7, &[1]))
        .key(key("u64", 10, &u64::MAX.to_le_bytes()))
        .key(key("i64", 11, &i64::MIN.to_le_bytes()))
        .key(key("f64", 12, &0.1f64.to_le_bytes()))
        .key(key_list("flags", 7, 2, &[0, 1]))
        .key(key_list("floats", 6, 1, &0.1f32.to_le_bytes()))
        .key(key_list("texts", 8, 3, &[text("a"), text(""), text("bc")].concat()));
    let gguf = opened(&made.bytes()).unwrap();
    let metadata = gguf.metadata();
    let whole = |key: &str| metadata.get(key).cloned();
    assert_eq!(whole("u8"), Some(Value::Whole(200)));
    assert_eq!(whole("i8"), Some(Value::Whole(-56)));
    assert_eq!(whole("u16"), Some(Value::Whole(60_000)));
    assert_eq!(whole("i16"), Some(Value::Whole(-6)));
    assert_eq!(whole("i32"), Some(Value::Whole(-7)));
    assert_eq!(whole("f32"), Some(Value::Real(1e-6)));
    assert_eq!(whole("flag"), Some(Value::Flag(true)));
    assert_eq!(whole("u64"), Some(Value::Whole(u64::MAX.into())));
    assert_eq!(whole("i64"), Some(Value::Whole(i64::MIN.into())));
    assert_eq!(whole("f64"), Some(Value::Real(0.1)));
    assert_eq!(metadata.sizes("flags").unwrap(), Some(vec![0, 1]));
    assert_eq!(metadata.reals("floats").unwrap(), Some(vec![0.1]));
    assert_eq!(metadata.texts("texts").unwrap(), Some(vec!["a", "", "bc"]));
    assert_eq!(metadata.size("i16").unwrap_err().to_string(), MESSAGE);
}

const MESSAGE: &str = "`i16` must be a whole number that is not negative, not a whole number";

#[test]
fn refuses_every_truncation() {
    let good = Made::sound().bytes();
    for len in 0..good.len() {
        match opened(&good[..len]) {
            Err(GgufError::Malformed { fault, .. }) => {
                let is_short = matches!(fault, Fault::CutShort | Fault::Length { .. } | Fault::Outside { .. });
                assert!(is_short, "cut at {len}: {fault}");
            }
            other => panic!("cut at {len}: {other:?}"),
        }
    }
}

#[test]
fn refuses_other_files_and_versions() {
    let with = |at: usize, bytes: &[u8]| {
        let mut file = Made::sound().bytes();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        opened(&file).unwrap_err().to_string().split_once(": ").unwrap().1.to_owned()
    };
    assert_eq!(with(0, b"GGML"), "it does not begin with `GGUF`");
    assert_eq!(with(4, &3u32.to_be_bytes()), "its numbers are big-endian, which is not supported");
    for found in [0u32, 1, 4, 77] {
        let want = format!("it is of version {found}; versions 2 and 3 are supported");
        assert_eq!(with(4, &found.to_le_bytes()), want);
    }
}

#[test]
fn refuses_counts_and_lengths_that_lie() {
    let most = u64::MAX;
    assert_eq!(fault(&Made { tensors: Some(most), ..Made::sound() }), Fault::Count { what: "tensors", count: most });
    let more = fault(&Made { tensors: Some(3), data: 0, ..Made::sound() });
    assert!(matches!(more, Fault::CutShort | Fault::Length { .. }), "{more}");
    let mut keys = Made::sound().bytes();
    keys[16..24].copy_from_slice(&most.to_le_bytes());
    assert!(matches!(opened(&keys), Err(GgufError::Malformed { fault: Fault::Count { what: "keys", .. }, .. })));
    let length = |made: Made, named: &str| match fault(&made) {
        Fault::Length { what, .. } => assert_eq!(what, named),
        other => panic!("{other}"),
    };
    length(Made::new().key(most.to_le_bytes().to_vec()), "a key");
    length(Made::new().key(key("a", 8, &(1u64 << 62).to_le_bytes())), "`a`");
    length(Made::new().info(most.to_le_bytes().to_vec()), "the name of a tensor");
    for kind in [0, 4, 6, 7, 8, 12] {
        length(Made::new().key(key_list("a", kind, most, &[])), "`a`");
        length(Made::new().key(key_list("a", kind, 1 << 61, &[])), "`a`");
    }
    length(Made::new().key(key_list("a", 8, 1, &1000u64.to_le_bytes())), "`a`[0]");
}

#[test]
fn refuses_values_that_are_none() {
    let key_of = |id| fault(&Made::new().key(key("a", id, &[0; 8])));
    assert_eq!(key_of(13), Fault::ValueType { key: "a".into(), id: 13 });
    assert_eq!(key_of(u32::MAX), Fault::ValueType { key: "a".into(), id: u32::MAX });
    let list = |id| fault(&Made::new().key(key_list("a", id, 0, &[])));
    assert_eq!(list(14), Fault::ValueType { key: "a".into(), id: 14 });
    assert_eq!(list(9), Fault::Nested { key: "a".into() });
    assert_eq!(fault(&Made::new().key(key("a", 7, &[2]))), Fault::Flag { key: "a".into(), found: 2 });
    let flags = Made::new().key(key_list("a", 7, 3, &[0, 1, 255]));
    assert_eq!(fault(&flags), Fault::Flag { key: "a".into(), found: 255 });
    assert_eq!(
        fault(&Made::sound().key(key_text("general.architecture", "x"))),
        Fault::TwiceKey { key: "general.architecture".into() }
    );
}

#[test]
fn refuses_texts_that_are_not_utf8() {
    let bad = [&2u64.to_le_bytes()[..], &[0xc3, 0x28]].concat();
    let utf8 = |what: &str| Fault::Utf8 { what: what.into() };
    assert_eq!(fault(&Made::new().key(bad.clone())), utf8("a key"));
    assert_eq!(fault(&Made::new().key(key("a", 8, &bad))), utf8("`a`"));
    assert_eq!(fault(&Made::new().key(key_list("a", 8, 2, &[text("x"), bad.clone()].concat()))), utf8("`a`[1]"));
    assert_eq!(fault(&Made::new().info(bad)), utf8("the name of a tensor"));
}

#[test]
fn refuses_alignments_that_are_none() {
    let with = |value: u32| Made::sound().key(key("general.alignment", 4, &value.to_le_bytes()));
    for found in [0u32, 3, 33] {
        assert_eq!(fault(&with(found)), Fault::Alignment { found: found.to_string() });
    }
    let of_64 = fault(&with(64));
    assert_eq!(of_64, Fault::Misaligned { name: "b".into(), found: 32, alignment: 64 });
    let name = "a".to_owned();
    assert_eq!(fault(&with(1 << 31)), Fault::Outside { name });
    let text = Made::sound().key(key_text("general.alignment", "32"));
    assert_eq!(fault(&text), Fault::Alignment { found: "Text(\"32\")".into() });
}

#[test]
fn refuses_tensors_that_lie() {
    let with = |dims: &[u64], kind: u32, offset: u64| {
        fault(&Made { data: 128, ..Made::sound() }.info(info("c", dims, kind, offset)))
    };
    let name = || "c".to_owned();
    assert_eq!(with(&[1; 5], 0, 0), Fault::Dimensions { name: name(), found: 5 });
    for dims in [[u64::MAX, 2], [1 << 32, 1 << 32], [1 << 62, 1]] {
        assert_eq!(with(&dims, 0, 96), Fault::TooLarge { name: name(), found: dims.to_vec() });
    }
    assert_eq!(with(&[0, u64::MAX], 0, 96), Fault::Empty { name: name() });
    assert_eq!(with(&[4], 16, 96), Fault::Type { name: name(), found: "IQ2_XXS".into() });
    assert_eq!(with(&[4], 99, 96), Fault::Type { name: name(), found: "number 99".into() });
    assert_eq!(with(&[33], 8, 96), Fault::Row { name: name(), found: 33, block: 32 });
    assert_eq!(with(&[128], 12, 96), Fault::Row { name: name(), found: 128, block: 256 });
    assert_eq!(with(&[1], 0, 33), Fault::Misaligned { name: name(), found: 33, alignment: 32 });
    assert_eq!(with(&[9], 0, 96), Fault::Outside { name: name() });
    assert_eq!(with(&[1], 0, u64::MAX - 31), Fault::Outside { name: name() });
    assert_eq!(with(&[1], 0, 32), Fault::Overlap { first: "b".into(), second: "c".into() });
    assert_eq!(with(&[1], 0, 64), Fault::Overlap { first: "b".into(), second: "c".into() });
    assert_eq!(fault(&Made::sound().info(info("a", &[1], 0, 0))), Fault::TwiceTensor { name: "a".into() });
}

/// A part of a model of two files, with these tensors.
fn half(number: u16, count: u16, tensors: i32, name: &str) -> Made {
    Made::new()
        .key(key("split.no", 2, &number.to_le_bytes()))
        .key(key("split.count", 2, &count.to_le_bytes()))
        .key(key("split.tensors.count", 5, &tensors.to_le_bytes()))
        .key(key("own", 2, &number.to_le_bytes()))
        .info(info(name, &[4], 0, 0))
}

#[test]
fn reads_several_files_from_any_of_them() {
    let dir = tempfile::tempdir().unwrap();
    let one = Made { data: 16, ..half(0, 2, 2, "a") }.write(&dir, "m-x-00001-of-00002.gguf");
    let two = Made { data: 16, ..half(1, 2, 2, "b") }.write(&dir, "m-x-00002-of-00002.gguf");
    for path in [one, two] {
        let gguf = Gguf::open(path).unwrap();
        assert_eq!(gguf.names().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(gguf.metadata().size("own").unwrap(), Some(0));
        assert_eq!(gguf.tensor("b").unwrap().floats().unwrap().len(), 4);
    }
}

#[test]
fn refuses_parts_that_do_not_belong_together() {
    let with = |name: &str, files: &[(&str, Made)]| {
        let dir = tempfile::tempdir().unwrap();
        files.iter().for_each(|(name, made)| _ = Made { data: 16, ..made.clone() }.write(&dir, name));
        Gguf::open(dir.path().join(name)).unwrap_err().to_string().replace(&format!("{}/", dir.path().display()), "")
    };
    let (one, two) = ("m-00001-of-00002.gguf", "m-00002-of-00002.gguf");
    let first = || (one, half(0, 2, 2, "a"));
    let none = with("m.gguf", &[("m.gguf", half(0, 2, 2, "a"))]);
    assert_eq!(
        none,
        "m.gguf is not a sound part of a model: it is one of 2 files, and its name does not end in \
         `-00001-of-00002.gguf` or such"
    );
    assert!(with(one, &[first()]).starts_with("cannot read m-00002-of-00002.gguf: "));
    let wrong = |second: Made| with(one, &[first(), (two, second)]);
    let found = wrong(half(0, 2, 2, "b"));
    assert!(found.ends_with("its name says file 2, and `split.no` 0 from zero on"), "{found}");
    let found = wrong(half(1, 3, 2, "b"));
    assert!(found.ends_with("its name says 2 files, and `split.count` 3"), "{found}");
    assert_eq!(wrong(half(1, 2, 2, "a")), format!("tensor `a` is in both {one} and {two}"));
    let found = with(one, &[(one, half(0, 2, 3, "a")), (two, half(1, 2, 3, "b"))]);
    assert!(found.ends_with("all files have 2 tensors, and `split.tensors.count` is 3"), "{found}");
    let found = with(one, &[(one, half(0, 9, 2, "a"))]);
    assert!(found.ends_with("its name says 2 files, and `split.count` 9"), "{found}");
}

#[test]
fn says_that_a_file_changed() {
    let dir = tempfile::tempdir().unwrap();
    let path = Made::sound().write(&dir, "m.gguf");
    let gguf = Gguf::open(&path).unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(100).unwrap();
    assert!(matches!(gguf.check(), Err(GgufError::Changed { .. })));
    assert!(matches!(gguf.tensor("b").unwrap().to_vec(), Err(GgufError::Changed { .. })));
}
