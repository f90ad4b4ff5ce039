//! Two hundred images that nobody should send, made by rules: each is refused by name or made
//! ready, and neither takes more memory than the limits leave.
use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Cursor;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use atomc_runtime::manifest::Tiling;
use atomc_server::eyes::bytes;
use atomc_server::images::Preparing;
use image::{ColorType, DynamicImage, ImageFormat};

/// Counts the bytes that this process holds.
struct Counted;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static COUNTED: Counted = Counted;

// SAFETY: all is the system's; only numbers are added up beside it.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        PEAK.fetch_max(LIVE.fetch_add(layout.size(), Relaxed) + layout.size(), Relaxed);
        // SAFETY: as the caller says.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as the caller says.
        unsafe { System.dealloc(at, layout) }
    }
}

/// Most bytes that an image may take while it is made ready: the decoder's limit, and the pixels
/// that it leaves, twice.
const MOST: usize = (256 << 20) + 2 * (3 << 25);
/// Patches that the tower takes.
const PATCHES: usize = 1024;

const SEEDS: [&str; 6] = ["larger.png", "alpha.png", "grey.png", "palette.png", "photo.jpg", "lossless.webp"];

fn seed(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/images").join(name)).expect("a file")
}

/// What somebody sends: a name for the report, and the bytes of a file or an address.
enum Sent {
    Bytes(String, Vec<u8>),
    Address(String),
}

fn named(name: impl Into<String>, bytes: Vec<u8>) -> Sent {
    Sent::Bytes(name.into(), bytes)
}

/// Files that end too early, at ten places each.
fn truncated() -> Vec<Sent> {
    let part = |name: &str, i: usize| {
        let whole = seed(name);
        named(format!("{name}, {i} tenths"), whole[..whole.len() * i / 10].to_vec())
    };
    SEEDS.iter().flat_map(|name| (0..10).map(move |i| part(name, i))).collect()
}

/// Files with bytes that were changed, at places that follow from a number.
fn flipped() -> Vec<Sent> {
    let flip = |name: &str, i: usize| {
        let mut bytes = seed(name);
        let mut state = i as u64 + 1;
        for _ in 0..1 << (i % 6) {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let at = (state >> 33) as usize % bytes.len();
            bytes[at] ^= (state >> 25) as u8 | 1;
        }
        // The checksums of what was changed are right, so that more than these is read.
        if name.ends_with("png") && i.is_multiple_of(2) {
            mend(&mut bytes);
        }
        named(format!("{name}, flipped {i}"), bytes)
    };
    SEEDS.iter().flat_map(|name| (0..10).map(move |i| flip(name, i))).collect()
}

/// The checksum of PNG's chunks.
fn crc(bytes: &[u8]) -> u32 {
    let step = |sum: u32| if sum & 1 == 1 { 0xedb8_8320 ^ (sum >> 1) } else { sum >> 1 };
    !bytes.iter().fold(!0, |sum, &byte| (0..8).fold(sum ^ u32::from(byte), |sum, _| step(sum)))
}

/// Sets the checksums of all chunks whose lengths lie in the file.
fn mend(bytes: &mut [u8]) {
    let mut at = 8;
    while let Some(length) = bytes.get(at..at + 4).map(|word| u32::from_be_bytes(word.try_into().expect("four"))) {
        let end = at.saturating_add(8).saturating_add(length as usize);
        let Some(sum) = bytes.get(at + 4..end).map(crc) else { return };
        let Some(place) = bytes.get_mut(end..end + 4) else { return };
        place.copy_from_slice(&sum.to_be_bytes());
        at = end + 4;
    }
}

/// An image of one color in a format.
fn blank(width: u32, height: u32, color: ColorType, format: ImageFormat) -> Vec<u8> {
    let mut bytes = Cursor::new(vec![]);
    DynamicImage::new(width, height, color).write_to(&mut bytes, format).expect("it is written");
    bytes.into_inner()
}

/// A chunk of PNG put behind the header.
fn with_chunk(png: &[u8], kind: &[u8; 4], data: &[u8]) -> Vec<u8> {
    let inside = [kind, data].concat();
    let chunk = [&(data.len() as u32).to_be_bytes()[..], &inside, &crc(&inside).to_be_bytes()].concat();
    [&png[..33], &chunk, &png[33..]].concat()
}

/// Headers that promise more than there is, and little data that become much.
fn bombs() -> Vec<Sent> {
    let mut all = vec![];
    let sizes = [(60_000, 60_000), (u32::MAX, u32::MAX), (i32::MAX as u32, 1 << 20), (0, 0), (0, 9), (5_793, 5_793)];
    for (width, height) in sizes.into_iter().chain([(5_792, 5_792), (1 << 16, 512)]) {
        let mut png = seed("smaller.png");
        png[16..20].copy_from_slice(&width.to_be_bytes());
        png[20..24].copy_from_slice(&height.to_be_bytes());
        mend(&mut png);
        all.push(named(format!("a PNG that says {width} by {height}"), png));
        let mut jpeg = seed("photo.jpg");
        let frame = jpeg.windows(2).position(|pair| pair == [0xff, 0xc0]).expect("a frame");
        let side = |size: u32| (size.min(0xffff) as u16).to_be_bytes();
        jpeg[frame + 5..frame + 7].copy_from_slice(&side(height));
        jpeg[frame + 7..frame + 9].copy_from_slice(&side(width));
        all.push(named(format!("a JPEG that says {width} by {height}"), jpeg));
        // 14 bits of each side less one, behind a byte of its signature.
        let mut webp = seed("lossless.webp");
        let bits = (width.wrapping_sub(1) & 0x3fff) | (height.wrapping_sub(1) & 0x3fff) << 14;
        let rest = u32::from_le_bytes(webp[21..25].try_into().expect("four")) & !0xfff_ffff;
        webp[21..25].copy_from_slice(&(rest | bits).to_le_bytes());
        all.push(named(format!("a WebP that says {width} by {height}"), webp));
    }
    let plain = blank(5_000, 6_000, ColorType::Rgb8, ImageFormat::Png);
    let start = plain.windows(4).position(|kind| kind == b"IDAT").expect("data");
    let length = u32::from_be_bytes(plain[start - 4..start].try_into().expect("four")) as usize;
    let packed = plain[start + 4..start + 4 + length].to_vec();
    let small = seed("smaller.png");
    let text = [&b"Comment\0\0"[..], &packed].concat();
    let profile = [&b"icc\0\0"[..], &packed].concat();
    all.push(named("a PNG with a text of many zeros", with_chunk(&small, b"zTXt", &text)));
    all.push(named("a PNG with a profile of many zeros", with_chunk(&small, b"iCCP", &profile)));
    all.push(named("a PNG of thirty million pixels of one color", plain));
    all
}

/// Sides that are as small, or as unlike each other, as can be.
fn narrow() -> Vec<Sent> {
    let formats = [ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::WebP];
    let sizes = [(1, 1), (1, 200), (200, 1), (201, 1), (2, 16_000), (30_000, 1), (1, 16_383)];
    let all = sizes.iter().flat_map(|size| formats.iter().map(move |format| (size, format)));
    let fits = all.filter(|((width, _), format)| **format != ImageFormat::WebP || *width < 1 << 14);
    fits.map(|(&(width, height), &format)| {
        named(format!("{width} by {height} as {format:?}"), blank(width, height, ColorType::Rgb8, format))
    })
    .collect()
}

/// All types of pixels, and what says how a photograph was taken.
fn types() -> Vec<Sent> {
    use ColorType::{L8, L16, La8, La16, Rgb8, Rgb16, Rgba8, Rgba16};
    let of = |color| named(format!("{color:?}"), blank(40, 30, color, ImageFormat::Png));
    let mut all: Vec<Sent> = [L8, L16, La8, La16, Rgb8, Rgb16, Rgba8, Rgba16].into_iter().map(of).collect();
    let photo = seed("photo.jpg");
    for turned in [0u16, 1, 2, 3, 4, 5, 6, 7, 8, 9, 255, 0xffff] {
        // One entry of a directory in the order of bytes of Motorola.
        let entry = [&[0, 1, 0x01, 0x12, 0, 3, 0, 0, 0, 1][..], &turned.to_be_bytes(), &[0; 6]].concat();
        let exif = [&b"Exif\0\0MM\0*\0\0\0\x08"[..], &entry].concat();
        let segment = [&[0xff, 0xe1][..], &(exif.len() as u16 + 2).to_be_bytes(), &exif].concat();
        all.push(named(format!("turned as {turned} says"), [&photo[..2], &segment, &photo[2..]].concat()));
    }
    all
}

/// Files of other formats, and of none.
fn others() -> Vec<Sent> {
    let all: [(&str, &[u8]); 12] = [
        ("nothing", b""),
        ("a byte", b"\x89"),
        ("text", b"no image"),
        ("GIF", b"GIF89a\x01\0\x01\0\0\0\0;"),
        ("BMP", b"BM\x3a\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0\x01\0\0\0\x01\0\0\0\x01\0\x18\0"),
        ("TIFF", b"II*\0\x08\0\0\0\0\0"),
        ("SVG", b"<svg xmlns='http://www.w3.org/2000/svg'><image href='file:///etc/passwd'/></svg>"),
        ("ICO", b"\0\0\x01\0\x01\0\x01\x01\0\0\x01\0\x18\0\x30\0\0\0\x16\0\0\0"),
        ("AVIF", b"\0\0\0\x20ftypavif\0\0\0\0avifmif1miafMA1A"),
        ("PDF", b"%PDF-1.7\n1 0 obj<<>>endobj"),
        ("the signature of PNG", b"\x89PNG\r\n\x1a\n"),
        ("the signature of WebP", b"RIFF\xff\xff\xff\xffWEBPVP8X"),
    ];
    all.into_iter().map(|(name, bytes)| named(name, bytes.to_vec())).collect()
}

/// Addresses that name no image.
fn addresses() -> Vec<Sent> {
    let all = [
        "",
        "data:",
        "data:,",
        "data:image/png",
        "data:image/png;base64",
        "data:image/png,iVBORw0KGgo=",
        "data:text/html;base64,aGVsbG8=",
        "data:image/gif;base64,R0lGODlhAQABAAAAADs=",
        "data:image/svg+xml;base64,PHN2Zy8+",
        "data:IMAGE/PNG;base64,iVBORw0KGgo=",
        "data:image/png;charset=utf-8;base64,iVBORw0KGgo=",
        "data:image/png;base64,***",
        "data:image/png;base64,iVBORw0KGgo",
        "data:image/png;base64,iVBORw0KGgo==",
        "data:image/png;base64,iVBO Rw0KGgo=",
        "data:image/png;base64,iVBORw0KGgo=\n",
        "data:image/png;base64,_-_-",
        "data:image/png;base64,\u{e9}\u{e9}\u{e9}\u{e9}",
        "data:image/jpeg;base64,iVBORw0KGgo=",
        "http://localhost/a.png",
        "https://example.org/a.png",
        "ftp://example.org/a.png",
        "//example.org/a.png",
        "/etc/passwd",
        "file:///etc/passwd",
        "file://../../../etc/passwd",
        "file://",
        "javascript:alert(1)",
    ];
    all.into_iter().map(|address| Sent::Address(address.to_owned())).collect()
}

/// How Qwen's images are made ready, Mistral's and Gemma's.
fn preparing() -> Vec<(Preparing, usize)> {
    let sizes = [
        r#"{ "shortest_edge": 1024, "longest_edge": 16384 }"#,
        r#"{ "longest_edge": 128 }"#,
        r#"{ "height": 128, "width": 128 }, "resample": 2"#,
    ];
    let tilings = [(2, None, Some(4)), (1, None, None), (1, Some(32), Some(32))];
    let tilings = tilings.map(|(frames, only, side)| Tiling { channels: 3, frames, patch: 4, merge: 2, only, side });
    let all = sizes.into_iter().zip(tilings).map(|(size, tiling)| {
        let dir = tempfile::tempdir().expect("a folder");
        let text = format!(r#"{{ "size": {size}, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5] }}"#);
        std::fs::write(dir.path().join("preprocessor_config.json"), text).expect("a file");
        (Preparing::open(dir.path(), tiling, PATCHES).expect("a configuration"), tiling.numbers())
    });
    all.collect()
}

/// Whether an image is made ready. What says why it is not is a text of its error.
fn is_ready(sent: &Sent, (preparing, numbers): &(Preparing, usize)) -> bool {
    let made = match sent {
        Sent::Bytes(_, bytes) => preparing.image(bytes).map_err(|error| error.to_string()),
        Sent::Address(address) => bytes(address, None)
            .map_err(|error| error.to_string())
            .and_then(|bytes| preparing.image(&bytes).map_err(|error| error.to_string())),
    };
    match made {
        Ok(image) => {
            let patches = image.grid.patches();
            assert!(patches > 0 && patches <= PATCHES && image.numbers.len() == patches * numbers);
            assert!(image.numbers.iter().all(|v| v.is_finite()));
            true
        }
        Err(why) => {
            assert!(!why.is_empty());
            false
        }
    }
}

#[test]
fn two_hundred_hostile_images() {
    let sent = [truncated(), flipped(), bombs(), narrow(), types(), others(), addresses()];
    let sent: Vec<Sent> = sent.into_iter().flatten().collect();
    assert!(sent.len() >= 200, "{}", sent.len());
    let (ways, mut ready, mut most) = (preparing(), [0; 3], (0, String::new()));
    for sent in &sent {
        let name = match sent {
            Sent::Bytes(name, _) => name,
            Sent::Address(address) => address,
        };
        for (way, ready) in ways.iter().zip(&mut ready) {
            let before = LIVE.load(Relaxed);
            PEAK.store(before, Relaxed);
            *ready += usize::from(is_ready(sent, way));
            let (peak, left) = (PEAK.load(Relaxed) - before, LIVE.load(Relaxed).saturating_sub(before));
            assert!(peak <= MOST, "{name}: {peak} bytes");
            assert!(left <= 1 << 16, "{name}: {left} bytes are left");
            most = most.max((peak, name.clone()));
        }
    }
    println!("{} images, {ready:?} of them made ready, at most {} bytes at once: {}", sent.len(), most.0, most.1);
    // Nothing that is an address alone, no file of another format, and no half of a PNG is.
    assert!(ready.iter().all(|ready| (40..150).contains(ready)), "{ready:?}");
}
