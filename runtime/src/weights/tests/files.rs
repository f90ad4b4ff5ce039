//! Checkpoints in files.
use super::*;

/// A checkpoint of one tensor, `t`, which was written long ago.
fn stored(dir: &std::path::Path, dtype: safetensors::Dtype, shape: &[usize]) -> (std::path::PathBuf, Checkpoint) {
    let path = dir.join("model.safetensors");
    crate::checkpoint::tests::file(&path, &[("t", dtype, shape)]);
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    (path, Checkpoint::open(dir).unwrap())
}

#[test]
fn reads_of_files_what_a_rank_needs() {
    let dir = tempfile::tempdir().unwrap();
    let shape = [48, 36];
    let path = dir.path().join("model.safetensors");
    for float in [Float::BF16, Float::F32, Float::F64] {
        let map = Map::default().with("t", float, &shape, -7.0);
        let dtype = match float {
            Float::BF16 => safetensors::Dtype::BF16,
            Float::F32 => safetensors::Dtype::F32,
            _ => safetensors::Dtype::F64,
        };
        let view = safetensors::tensor::TensorView::new(dtype, shape.to_vec(), &map.0["t"].2).unwrap();
        safetensors::serialize_to_file([("t", view)], None, &path).unwrap();
        let file = Checkpoint::open(dir.path()).unwrap();
        let whole = tensor("t", &shape);
        let parts = concat(0, vec![slice(0, 30, 18, whole.clone()), slice(0, 0, 30, whole.clone())]);
        let turned = concat(1, vec![slice(1, 20, 16, whole.clone()), slice(1, 0, 20, whole.clone())]);
        for expr in [whole.clone(), parts, turned] {
            for layout in [Layout::Rows { stride: 40 }, panels(16, 2, &shape)] {
                let weight = weight(DType::BF16, &shape, layout, expr.clone());
                assert!(load_part(&weight, Rank::ONLY, &file) == load_part(&weight, Rank::ONLY, &map));
            }
        }
        for (axis, part) in [(0, [24, 36]), (1, [48, 18])] {
            let weight = weight(DType::F32, &part, panels(16, 1, &part), shard(axis, 2, whole.clone()));
            for number in 0..2 {
                let rank = Rank { number, of: 2 };
                assert!(load_part(&weight, rank, &file) == load_part(&weight, rank, &map));
            }
        }
    }
}

#[test]
fn a_file_that_changes_under_way_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let shape = [1000, 1024];
    let weights = [weight(DType::BF16, &shape, Layout::Rows { stride: 1024 }, tensor("t", &shape))];
    let load_while = |change: &(dyn Fn(&std::path::Path) + Sync), buffer: DeviceBuffer| {
        let (path, file) = stored(dir.path(), safetensors::Dtype::F32, &shape);
        let (mut pool, mut buffers) = (Pool::new(2).unwrap(), [buffer]);
        let sink = Sink { weights: &weights, rank: Rank::ONLY, buffers: &mut buffers, pool: &mut pool };
        // The first report comes before the first number is read.
        let done = load(sink, &names(), &file, &|done, _| {
            if done == 0 {
                change(&path)
            }
        });
        let said = done.as_ref().map_err(|error| error.to_string().replace(path.to_str().unwrap(), "<file>"));
        (said.map(drop), are_loaded(true, &done))
    };
    let host = || DeviceBuffer::Host(Buffer::new(1000 * 1024 * 2).unwrap());
    let shrink = |path: &std::path::Path| {
        std::fs::File::options().write(true).open(path).unwrap().set_len(2_000_000).unwrap();
    };
    let bytes = std::fs::metadata(stored(dir.path(), safetensors::Dtype::F32, &shape).0).unwrap().len();
    let shrunk = format!("<file> changed while it was read: it has 2000000 bytes, and had {bytes}");
    let overwrite = |path: &std::path::Path| {
        let file = std::fs::File::options().write(true).open(path).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[7; 100], 500_000).unwrap();
    };
    let overwritten = "<file> changed while it was read: it was written to".to_owned();
    for buffer in [host, || apart::memory(1000 * 1024 * 2)] as [fn() -> DeviceBuffer; 2] {
        assert_eq!(load_while(&shrink, buffer()), (Err(shrunk.clone()), false));
        assert_eq!(load_while(&overwrite, buffer()), (Err(overwritten.clone()), false));
        // Another file of the same name is another file.
        let replace = |path: &std::path::Path| {
            std::fs::remove_file(path).unwrap();
            std::fs::write(path, "short").unwrap();
        };
        assert_eq!(load_while(&replace, buffer()), (Ok(()), true));
    }
}
