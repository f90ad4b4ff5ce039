use super::*;
use safetensors::tensor::TensorView;

/// Writes a safetensors file of tensors (name, type, shape), filled with their number.
pub(crate) fn file(path: &Path, tensors: &[(&str, Dtype, &[usize])]) {
    let bytes =
        |&(_, dtype, shape): &(&str, Dtype, &[usize])| vec![1u8; shape.iter().product::<usize>() * dtype.bitsize() / 8];
    let data: Vec<Vec<u8>> = tensors.iter().map(bytes).collect();
    let views = tensors
        .iter()
        .zip(&data)
        .map(|((name, dtype, shape), data)| (*name, TensorView::new(*dtype, shape.to_vec(), data).unwrap()));
    safetensors::serialize_to_file(views, None, path).unwrap();
}

fn index(dir: &Path, map: &[(&str, &str)]) {
    let map: BTreeMap<&str, &str> = map.iter().copied().collect();
    std::fs::write(dir.join(INDEX), serde_json::json!({ "metadata": {}, "weight_map": map }).to_string()).unwrap();
}

fn message(dir: &Path) -> String {
    let text = Checkpoint::open(dir).expect_err("must be refused").to_string();
    text.replace(&format!("{}/", dir.display()), "").replace(&dir.display().to_string(), "<dir>")
}

#[test]
fn reads_one_file() {
    let dir = tempfile::tempdir().unwrap();
    file(&dir.path().join(SINGLE), &[("b", Dtype::BF16, &[2, 3]), ("a", Dtype::F32, &[4])]);
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    assert_eq!(checkpoint.names(), ["a", "b"]);
    let read = |name, shape: &[usize]| match checkpoint.tensor(name, shape) {
        Ok(Tensor::Stored { float, numbers }) => (float, numbers.to_vec().unwrap()),
        other => panic!("{other:?}"),
    };
    assert_eq!(read("b", &[2, 3]), (Float::BF16, vec![1; 12]));
    assert_eq!(read("a", &[4]), (Float::F32, vec![1; 16]));
    checkpoint.check().unwrap();
}

#[test]
fn reads_shards() {
    let dir = tempfile::tempdir().unwrap();
    file(&dir.path().join("one.safetensors"), &[("a", Dtype::F16, &[4])]);
    file(&dir.path().join("two.safetensors"), &[("b", Dtype::F64, &[2]), ("c", Dtype::F32, &[1])]);
    index(dir.path(), &[("a", "one.safetensors"), ("b", "two.safetensors"), ("c", "two.safetensors")]);
    assert_eq!(Checkpoint::open(dir.path()).unwrap().names(), ["a", "b", "c"]);
}

#[test]
fn refuses_directories_that_are_none() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(
        message(dir.path()),
        "no checkpoint in <dir>: neither model.safetensors nor model.safetensors.index.json is there"
    );
    index(dir.path(), &[("a", "one.safetensors")]);
    assert!(message(dir.path()).starts_with("cannot read one.safetensors: "));
    index(dir.path(), &[("a", "../one.safetensors")]);
    assert_eq!(
        message(dir.path()),
        "model.safetensors.index.json: `../one.safetensors` is not the name of a file in the same directory"
    );
    file(&dir.path().join("one.safetensors"), &[("a", Dtype::F16, &[4])]);
    index(dir.path(), &[("a", "one.safetensors"), ("b", "one.safetensors")]);
    assert_eq!(message(dir.path()), "model.safetensors.index.json: tensor `b` is not in one.safetensors");
    file(&dir.path().join("two.safetensors"), &[("a", Dtype::F16, &[4]), ("b", Dtype::F16, &[4])]);
    index(dir.path(), &[("a", "one.safetensors"), ("b", "two.safetensors")]);
    assert_eq!(message(dir.path()), "tensor `a` is in both one.safetensors and two.safetensors");
    std::fs::write(dir.path().join(INDEX), "{").unwrap();
    assert!(message(dir.path()).starts_with("model.safetensors.index.json: EOF"));
}

#[test]
fn refuses_wrong_tensors() {
    let dir = tempfile::tempdir().unwrap();
    file(&dir.path().join(SINGLE), &[("a", Dtype::U16, &[4]), ("b", Dtype::F32, &[2, 3])]);
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let text = |name, shape: &[usize]| checkpoint.tensor(name, shape).unwrap_err().to_string();
    assert_eq!(
        text("a", &[4]),
        "tensor `a` is of type U16; weights may be BF16, F16, F32, F64, F8_E4M3, F8_E8M0, I8, U8, I32 or I64"
    );
    assert_eq!(text("b", &[3, 2]), "tensor `b` has shape [2, 3], but the model needs [3, 2]");
    assert_eq!(text("c", &[1]), "the checkpoint lacks a tensor that the model needs: c");
}

#[test]
fn refuses_every_truncation() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(SINGLE);
    file(&path, &[("a", Dtype::BF16, &[2, 3]), ("b", Dtype::F32, &[4])]);
    let good = std::fs::read(&path).unwrap();
    for len in 0..good.len() {
        std::fs::write(&path, &good[..len]).unwrap();
        assert!(message(dir.path()).starts_with("model.safetensors is not a sound safetensors file: "), "cut at {len}");
    }
    std::fs::write(&path, &good[..good.len() - 1]).unwrap();
    assert_eq!(
        message(dir.path()),
        "model.safetensors is not a sound safetensors file: its size is not what its header says: it is cut short, or more was appended"
    );
}

#[test]
fn refuses_shapes_that_lie() {
    let dir = tempfile::tempdir().unwrap();
    let with = |shape: &str, offsets: &str| {
        let header = format!(r#"{{"a":{{"dtype":"F32","shape":{shape},"data_offsets":{offsets}}}}}"#);
        let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 16]].concat();
        std::fs::write(dir.path().join(SINGLE), bytes).unwrap();
        message(dir.path()).replace("model.safetensors is not a sound safetensors file: ", "")
    };
    assert_eq!(with("[5]", "[0,16]"), "a tensor's shape does not agree with the number of its bytes");
    assert_eq!(with("[4]", "[0,15]"), "a tensor's shape does not agree with the number of its bytes");
    assert_eq!(with("[18446744073709551615,8]", "[0,16]"), "a tensor's shape is too large");
    assert_eq!(with("[4]", "[4,20]"), "the bytes of tensor `a` do not follow those before it");
    assert!(with("[-4]", "[0,16]").starts_with("its header does not parse: "));
}

#[test]
fn lists_a_few_of_many_names() {
    let names: Vec<String> = (0..11).map(|i| format!("t{i}")).collect();
    let text = CheckpointError::Unused { names }.to_string();
    assert_eq!(
        text,
        "the checkpoint has 11 tensors that the model does not use: t0, t1, t2, t3, t4, t5, t6, t7 and 3 more"
    );
}
