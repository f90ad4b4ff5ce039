use super::*;
use serde_json::json;

const TILING: Tiling = Tiling { channels: 3, frames: 2, patch: 4, merge: 2, only: None, side: Some(4) };

fn preparing() -> Preparing {
    let config = json!({
        "size": { "shortest_edge": 1024, "longest_edge": 4096 }, "patch_size": 4, "merge_size": 2,
        "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
    });
    Preparing::read(&config, TILING, 4096).expect("a configuration")
}

fn file(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/images");
    std::fs::read(folder.join(name)).expect("a file")
}

/// `preprocess.py` asked transformers.
fn compare(preparing: &Preparing, folder: &str) {
    let grids = file(&format!("{folder}grids.json"));
    let grids: serde_json::Map<String, Value> = serde_json::from_slice(&grids).expect("JSON");
    assert_eq!(grids.len(), 9);
    for (name, grid) in grids {
        let image = preparing.image(&file(&name)).expect("an image");
        assert_eq!(json!([1, image.grid.rows, image.grid.columns]), grid, "{name}");
        let reference = file(&format!("{folder}{name}.bin"));
        assert_eq!(reference.len(), image.numbers.len(), "{name}");
        let apart = |(made, byte): (&f32, &u8)| (made - (f32::from(*byte) - 127.5) / 127.5).abs();
        let most = image.numbers.iter().zip(&reference).map(apart).fold(0.0, f32::max);
        // Decoders of JPEG differ in their last bits; what follows is the same.
        let bound = if name.ends_with("jpg") { 3.5 / 127.5 } else { 1e-3 };
        assert!(most < bound, "{name}: off by {most}");
    }
}

#[test]
fn images_are_those_of_transformers() {
    compare(&preparing(), "");
}

const WITHIN: Tiling = Tiling { frames: 1, side: None, ..TILING };

/// As Mistral's files say.
fn preparing_within(edge: usize, patches: usize) -> Preparing {
    let config = json!({
        "size": { "longest_edge": edge }, "patch_size": { "height": 4, "width": 4 }, "resample": 3,
        "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
    });
    Preparing::read(&config, WITHIN, patches).expect("a configuration")
}

#[test]
fn images_within_a_square_are_those_of_transformers() {
    compare(&preparing_within(64, 4096), "within/");
}

const SAME: Tiling = Tiling { only: Some(8), side: Some(8), ..WITHIN };

/// As Gemma's files say.
fn config_of_same() -> Value {
    json!({
        "size": { "height": 32, "width": 32 }, "resample": 2, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
    })
}

#[test]
fn images_of_one_size_are_those_of_transformers() {
    compare(&Preparing::read(&config_of_same(), SAME, 64).expect("a configuration"), "same/");
}

#[test]
fn images_of_one_size_have_that_of_the_tower() {
    let read = |change: &dyn Fn(&mut Value), patches| {
        let mut config = config_of_same();
        change(&mut config);
        Preparing::read(&config, SAME, patches).expect_err("another size")
    };
    assert_eq!(read(&|_| (), 63), "images have 64 patches, and the tower takes 63 at most");
    let size = |c: &mut Value| c["size"]["width"] = json!(28);
    let told = r#"size is {"height":32,"width":28}, but the tower's images are of 32 by 32 pixels"#;
    assert_eq!(read(&size, 64), told);
    let told = "resample is 1: 2, which is linear, and 3, which is cubic, are known";
    assert_eq!(read(&|c| c["resample"] = json!(1), 64), told);
    let told = "do_pan_and_scan is not supported: an image is seen as a whole";
    assert_eq!(read(&|c| c["do_pan_and_scan"] = json!(true), 64), told);
}

#[test]
fn sizes_are_multiples_that_hold_an_image() {
    let size = |height, width| preparing_within(64, 4096).size(height, width).expect("a size");
    assert_eq!([size(1, 1), size(8, 9), size(64, 64)], [[8, 8], [8, 16], [64, 64]]);
    assert_eq!([size(8000, 8000), size(65, 2), size(40, 8000)], [[64, 64], [64, 8], [8, 64]]);
    // A tower that takes fewer patches has images made smaller.
    let size = |height, width| preparing_within(1540, 64).size(height, width).expect("a size");
    assert_eq!([size(8000, 8000), size(90, 30), size(8, 120)], [[32, 32], [48, 16], [8, 120]]);
}

#[test]
fn sizes_are_multiples_within_bounds() {
    let size = |height, width| preparing().size(height, width).expect("a size");
    assert_eq!(size(40, 56), [40, 56]);
    // Halves go to the even multiple.
    assert_eq!([size(44, 44), size(36, 60)], [[48, 48], [32, 64]]);
    assert_eq!(size(1, 1), [32, 32]);
    assert_eq!(size(8000, 8000), [64, 64]);
    assert!(matches!(preparing().size(1, 201), Err(ImageError::Ratio { .. })));
}

/// A PNG of this size without pixels, as its header says.
fn png(width: u32, height: u32) -> Vec<u8> {
    let mut bytes = vec![];
    let black = image::RgbImage::new(1, 1);
    black.write_with_encoder(image::codecs::png::PngEncoder::new(&mut bytes)).expect("a PNG");
    bytes[16..20].copy_from_slice(&width.to_be_bytes());
    bytes[20..24].copy_from_slice(&height.to_be_bytes());
    let sum = crc(&bytes[12..29]);
    bytes[29..33].copy_from_slice(&sum.to_be_bytes());
    bytes
}

/// The checksum of PNG's chunks.
fn crc(bytes: &[u8]) -> u32 {
    let step = |sum: u32| if sum & 1 == 1 { 0xedb8_8320 ^ (sum >> 1) } else { sum >> 1 };
    !bytes.iter().fold(!0, |sum, &byte| (0..8).fold(sum ^ u32::from(byte), |sum, _| step(sum)))
}

#[test]
fn what_anybody_may_send_is_refused_by_name() {
    let wrong = |bytes: &[u8]| preparing().image(bytes).unwrap_err().to_string();
    assert_eq!(wrong(b""), "this is no PNG, JPEG or WebP file");
    assert_eq!(wrong(b"GIF89a\x01\0\x01\0\0\0\0;"), "this is no PNG, JPEG or WebP file");
    assert_eq!(wrong(b"<svg xmlns='http://www.w3.org/2000/svg'/>"), "this is no PNG, JPEG or WebP file");
    assert_eq!(wrong(&png(60_000, 60_000)), "an image of 60000 by 60000 pixels: 33554432 are the most");
    assert_eq!(wrong(&png(30_000, 1)), "an image of 30000 by 1 pixels: no side may be more than 200 times the other");
    // The header says more than there is.
    assert!(wrong(&png(500, 400)).starts_with("the image cannot be decoded: "));
    for name in ["larger.png", "photo.jpg", "lossless.webp"] {
        let whole = file(name);
        for part in [whole.len() / 2, 40, 12] {
            let made = preparing().image(&whole[..part]);
            // Decoders of JPEG may fill what is missing.
            assert!(made.is_err() || name == "photo.jpg", "{name}, {part} bytes");
        }
    }
    let large = vec![0; MOST_BYTES + 1];
    assert_eq!(wrong(&large), format!("an image of {} bytes: 20971520 are the most", MOST_BYTES + 1));
    assert_eq!(preparing().image(&png(1, 1)).expect("one pixel").grid, Grid { rows: 8, columns: 8 });
}

#[test]
fn configurations_fit_the_tower() {
    let base = json!({
        "size": { "shortest_edge": 65536, "longest_edge": 16_777_216 },
        "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
    });
    let read = |change: &dyn Fn(&mut Value), patches| {
        let mut config = base.clone();
        change(&mut config);
        Preparing::read(&config, Tiling { patch: 16, ..TILING }, patches)
    };
    // A tower that takes fewer has images made smaller.
    assert_eq!(read(&|_| (), 4096).expect("it fits").sizes, Sizes::Between([65536, 4096 * 256]));
    assert_eq!(read(&|_| (), 64).unwrap_err(), "size.shortest_edge is 65536 pixels, but the tower takes 16384 at most");
    assert_eq!(read(&|c| c["patch_size"] = json!(14), 4096).unwrap_err(), "patch_size is 14, but the tower has 16");
    assert_eq!(read(&|c| c["image_std"] = json!([1, 2]), 4096).unwrap_err(), "image_std must have three numbers");
    let older = |c: &mut Value| {
        *c = json!({ "min_pixels": 4096, "max_pixels": 8192, "image_mean": [0, 0, 0], "image_std": [1, 1, 1] })
    };
    assert_eq!(read(&older, 4096).expect("as before").sizes, Sizes::Between([4096, 8192]));
}
