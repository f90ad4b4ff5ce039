//! Images as a tower takes them: decoded, made as large as transformers makes them, cut into
//! patches.
//!
//! What decodes them reads files that anybody may have sent: it is given limits, and all that can
//! be wrong is an error. The sizes, the filter and its roundings are those of transformers'
//! processor, which has torchvision resize images of bytes.
use std::io::Cursor;
use std::path::Path;

use atomc_artifact::files;
use atomc_runtime::manifest::{self, Tiling, Written};
use atomc_runtime::sight::{Grid, Marks};
use atomc_runtime::tower::Image;
use image::{DynamicImage, ImageDecoder, ImageFormat, ImageReader, Limits};
use serde_json::Value;

use crate::text::Text;

/// Most bytes of an image's file.
pub const MOST_BYTES: usize = 20 << 20;
/// Most pixels of an image before it is made smaller.
const MOST_PIXELS: u64 = 1 << 25;
/// Most bytes that a decoder may take in addition to the pixels.
const MOST_MEMORY: u64 = 256 << 20;
/// How many times as long as the other one a side may be.
const RATIO: f64 = 200.0;

/// What is wrong with an image, or with what says how images are made ready.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "a message says what its variant means, and shows the fields")]
pub enum ImageError {
    #[error("{file}: {why}")]
    File { file: String, why: String },
    #[error("an image of {bytes} bytes: {MOST_BYTES} are the most")]
    Bytes { bytes: usize },
    #[error("this is no PNG, JPEG or WebP file")]
    Format,
    #[error("an image of {width} by {height} pixels: {MOST_PIXELS} are the most")]
    Pixels { width: u32, height: u32 },
    #[error("an image of {width} by {height} pixels: no side may be more than {RATIO} times the other")]
    Ratio { width: u32, height: u32 },
    #[error("the image cannot be decoded: {0}")]
    Decode(String),
    #[error("{text:?} is no token of the tokenizer, and images of this model end with it")]
    Token { text: String },
    #[error("token {token}, which stands for images, has no text in the tokenizer")]
    NoToken { token: u32 },
}

/// What prompts have for images.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompting {
    marks: Marks,
    /// What templates write for an image.
    mark: String,
    /// What is put in its place, if it is more.
    written: Option<String>,
}

impl Prompting {
    /// That of a tower, in the words of its model's tokenizer.
    pub fn of(tower: &manifest::Tower, text: &Text) -> Result<Prompting, ImageError> {
        let token = |name: &String| text.token(name).ok_or_else(|| ImageError::Token { text: name.clone() });
        let lines = tower.lines.as_ref().map(|[end, last]| Ok([token(end)?, token(last)?])).transpose()?;
        let image = text.decode(&[tower.image_token], true).unwrap_or_default();
        if image.is_empty() {
            return Err(ImageError::NoToken { token: tower.image_token });
        }
        let marks = Marks { image: tower.image_token, lines };
        Ok(match &tower.written {
            None => Prompting { marks, mark: image, written: None },
            Some(Written { mark, around: [before, behind] }) => {
                Prompting { marks, mark: mark.clone(), written: Some(format!("{before}{image}{behind}")) }
            }
        })
    }

    /// What templates write for an image.
    pub fn mark(&self) -> &str {
        &self.mark
    }

    /// A prompt as the tokenizer takes it.
    pub fn written(&self, prompt: String) -> String {
        match &self.written {
            Some(written) => prompt.replace(&self.mark, written),
            None => prompt,
        }
    }

    /// The tokens of images.
    pub fn marks(&self) -> Marks {
        self.marks
    }
}

/// How the images of a model are made ready: its `preprocessor_config.json`, and its tower.
#[derive(Clone, Debug, PartialEq)]
pub struct Preparing {
    tiling: Tiling,
    sizes: Sizes,
    kernel: Kernel,
    /// Most patches that the tower takes.
    patches: usize,
    mean: [f32; 3],
    std: [f32; 3],
}

/// What pixels that become one are weighted by.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kernel {
    /// The nearer, the more.
    Linear,
    /// Keys' cubic with `a = -0.5`.
    Cubic,
}

/// How large an image is made.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Sizes {
    /// All alike: height and width.
    Same([usize; 2]),
    /// With as many pixels as it has, within these bounds.
    Between([usize; 2]),
    /// As large as it is, with no side longer than this.
    Within(usize),
}

impl Preparing {
    /// That of a model's folder, for a tower that takes so many patches at most.
    pub fn open(folder: &Path, tiling: Tiling, patches: usize) -> Result<Preparing, ImageError> {
        let file = folder.join(FILE);
        let fault = |why: String| ImageError::File { file: FILE.into(), why };
        let text = files::read_to_string(&file).map_err(|error| fault(error.to_string()))?;
        let config: Value = serde_json::from_str(&text).map_err(|error| fault(error.to_string()))?;
        Preparing::read(&config, tiling, patches).map_err(fault)
    }

    fn read(config: &Value, tiling: Tiling, patches: usize) -> Result<Preparing, String> {
        let same = [("patch_size", tiling.patch), ("merge_size", tiling.merge), ("temporal_patch_size", tiling.frames)];
        for (name, own) in same {
            let said = &config[name];
            let sides = [&said["height"], &said["width"]];
            let is_own = |said: &Value| said.as_u64() == Some(own as u64);
            if !said.is_null() && !is_own(said) && !sides.into_iter().all(is_own) {
                return Err(format!("{name} is {said}, but the tower has {own}"));
            }
        }
        if config["do_pan_and_scan"] == true {
            return Err("do_pan_and_scan is not supported: an image is seen as a whole".into());
        }
        if tiling.channels != 3 {
            return Err(format!("the tower takes {} numbers of a pixel, not 3", tiling.channels));
        }
        Ok(Preparing {
            tiling,
            sizes: Sizes::read(config, tiling, patches)?,
            kernel: Kernel::read(config)?,
            patches,
            mean: numbers(config, "image_mean")?,
            std: numbers(config, "image_std")?,
        })
    }

    /// An image of a file's bytes.
    pub fn image(&self, bytes: &[u8]) -> Result<Image, ImageError> {
        let pixels = decode(bytes)?;
        let size @ [height, width] = self.size(pixels.height, pixels.width)?;
        let pixels = pixels.resized(self.kernel, height, width);
        let Tiling { patch, .. } = self.tiling;
        let grid = Grid { rows: size[0] / patch, columns: size[1] / patch };
        Ok(Image { grid, numbers: self.patches(&pixels, grid) })
    }

    /// The size that an image gets: multiples of a merged patch, nearly as wide as high as it was.
    fn size(&self, height: usize, width: usize) -> Result<[usize; 2], ImageError> {
        let factor = self.tiling.patch * self.tiling.merge;
        let (h, w) = (height as f64, width as f64);
        if h.max(w) / h.min(w) > RATIO {
            return Err(ImageError::Ratio { width: width as u32, height: height as u32 });
        }
        match self.sizes {
            Sizes::Same(size) => Ok(size),
            Sizes::Between(bounds) => Ok(between(bounds, [h, w], factor as f64)),
            Sizes::Within(most) => {
                let patches = |size: &[usize; 2]| size[0] * size[1] / self.tiling.patch.pow(2);
                let mut bounds = (1..=most).rev().step_by(factor).map(|most| within(most, [height, width], factor));
                let size = bounds.find(|size| patches(size) <= self.patches);
                size.ok_or(ImageError::Ratio { width: width as u32, height: height as u32 })
            }
        }
    }

    /// The numbers of all patches: channel, frame, row, column.
    fn patches(&self, pixels: &Pixels, grid: Grid) -> Vec<f32> {
        let Tiling { frames, patch, .. } = self.tiling;
        let mut numbers = Vec::with_capacity(grid.patches() * self.tiling.numbers());
        for place in grid.in_order(self.tiling) {
            for (channel, (mean, std)) in self.mean.iter().zip(self.std).enumerate() {
                for _ in 0..frames {
                    let rows = (0..patch).flat_map(|row| (0..patch).map(move |column| (row, column)));
                    numbers.extend(rows.map(|(row, column)| {
                        let at = (place.row * patch + row) * pixels.width + place.column * patch + column;
                        (f32::from(pixels.bytes[3 * at + channel]) - mean * 255.0) / (std * 255.0)
                    }));
                }
            }
        }
        numbers
    }
}

impl Kernel {
    /// As PIL numbers them.
    fn read(config: &Value) -> Result<Kernel, String> {
        match &config["resample"] {
            Value::Null => Ok(Kernel::Cubic),
            said if said.as_u64() == Some(2) => Ok(Kernel::Linear),
            said if said.as_u64() == Some(3) => Ok(Kernel::Cubic),
            said => Err(format!("resample is {said}: 2, which is linear, and 3, which is cubic, are known")),
        }
    }

    /// How far from its middle it reaches.
    fn support(self) -> f64 {
        match self {
            Kernel::Linear => 1.0,
            Kernel::Cubic => 2.0,
        }
    }

    fn weight(self, x: f64) -> f64 {
        match self {
            Kernel::Linear => (1.0 - x.abs()).max(0.0),
            Kernel::Cubic => cubic(x),
        }
    }
}

impl Sizes {
    /// What a file says of sizes, for a tower that takes so many patches at most.
    fn read(config: &Value, tiling: Tiling, patches: usize) -> Result<Sizes, String> {
        let said =
            |edge: &str, older: &str| [&config["size"][edge], &config[older]].into_iter().find(|said| !said.is_null());
        if let Some(only) = tiling.only {
            let (side, size) = (only * tiling.patch, &config["size"]);
            let is_it = |edge: &str| size[edge].as_u64() == Some(side as u64);
            return match ["height", "width"].into_iter().all(is_it) {
                true if only * only <= patches => Ok(Sizes::Same([side; 2])),
                true => Err(format!("images have {} patches, and the tower takes {patches} at most", only * only)),
                false => Err(format!("size is {size}, but the tower's images are of {side} by {side} pixels")),
            };
        }
        let [least, most] = [("shortest_edge", "min_pixels"), ("longest_edge", "max_pixels")];
        let number = |(edge, older): (&str, &str)| {
            let number = said(edge, older).and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok());
            number.filter(|n| *n > 0).ok_or_else(|| format!("size.{edge} must be a number of pixels"))
        };
        if said(least.0, least.1).is_none() && said(most.0, most.1).is_some() {
            // No tower takes an image with a longer side.
            return Ok(Sizes::Within(number(most)?.min(patches * tiling.patch)));
        }
        let (least, most) = (number(least)?, number(most)?.min(patches * tiling.patch * tiling.patch));
        if least > most {
            return Err(format!("size.shortest_edge is {least} pixels, but the tower takes {most} at most"));
        }
        Ok(Sizes::Between([least, most]))
    }
}

/// Multiples of a factor with nearly as many pixels as an image, within bounds.
fn between(bounds: [usize; 2], [h, w]: [f64; 2], factor: f64) -> [usize; 2] {
    let [least, most] = bounds.map(|pixels| pixels as f64);
    let rounded = [h, w].map(|side| (side / factor).round_ties_even() * factor);
    let made = match rounded[0] * rounded[1] {
        size if size > most => {
            let by = (h * w / most).sqrt();
            [h, w].map(|side| ((side / by / factor).floor() * factor).max(factor))
        }
        size if size < least => {
            let by = (least / (h * w)).sqrt();
            [h, w].map(|side| (side * by / factor).ceil() * factor)
        }
        _ => rounded,
    };
    made.map(|side| side as usize)
}

/// Multiples of a factor that are not smaller than an image, which is made smaller if a side is
/// longer than this.
fn within(most: usize, size: [usize; 2], factor: usize) -> [usize; 2] {
    let ratio = size.into_iter().max().unwrap_or(1) as f64 / most as f64;
    let inside = |side: usize| if ratio > 1.0 { (side as f64 / ratio).floor() as usize } else { side };
    size.map(|side| inside(side).max(1).next_multiple_of(factor))
}

/// The file of a model that says how images are made ready.
const FILE: &str = "preprocessor_config.json";

fn numbers(config: &Value, name: &str) -> Result<[f32; 3], String> {
    let all = config[name].as_array().map(|all| all.iter().filter_map(Value::as_f64).collect::<Vec<f64>>());
    let three = all.and_then(|all| <[f64; 3]>::try_from(all).ok()).map(|all| all.map(|v| v as f32));
    three.filter(|all| all.iter().all(|v| v.is_finite())).ok_or_else(|| format!("{name} must have three numbers"))
}

/// Red, green and blue of each pixel, row after row.
#[derive(Clone, Debug, PartialEq)]
struct Pixels {
    height: usize,
    width: usize,
    bytes: Vec<u8>,
}

/// The pixels of a file's bytes, turned as it says that they were taken.
fn decode(bytes: &[u8]) -> Result<Pixels, ImageError> {
    if bytes.len() > MOST_BYTES {
        return Err(ImageError::Bytes { bytes: bytes.len() });
    }
    let failed = |error: image::ImageError| ImageError::Decode(error.to_string());
    let mut reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format().map_err(|_| ImageError::Format)?;
    let known = [ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::WebP];
    reader.format().filter(|format| known.contains(format)).ok_or(ImageError::Format)?;
    let mut limits = Limits::default();
    limits.max_alloc = Some(MOST_MEMORY);
    reader.limits(limits);
    let mut decoder = reader.into_decoder().map_err(failed)?;
    let (width, height) = decoder.dimensions();
    if u64::from(width) * u64::from(height) > MOST_PIXELS {
        return Err(ImageError::Pixels { width, height });
    }
    let [least, most] = [width.min(height), width.max(height)];
    if f64::from(most) > RATIO * f64::from(least) {
        return Err(ImageError::Ratio { width, height });
    }
    let orientation = decoder.orientation().map_err(failed)?;
    let mut image = DynamicImage::from_decoder(decoder).map_err(failed)?;
    image.apply_orientation(orientation);
    let image = image.into_rgb8();
    Ok(Pixels { height: image.height() as usize, width: image.width() as usize, bytes: image.into_raw() })
}

impl Pixels {
    /// The image in another size: first its rows, then its columns, with bytes in between.
    fn resized(self, kernel: Kernel, height: usize, width: usize) -> Pixels {
        let across = if width == self.width { self } else { self.across(kernel, width) };
        if height == across.height { across } else { across.down(kernel, height) }
    }

    fn across(&self, kernel: Kernel, width: usize) -> Pixels {
        let filter = Filter::new(kernel, self.width, width);
        let mut bytes = Vec::with_capacity(3 * width * self.height);
        for row in self.bytes.chunks_exact(3 * self.width) {
            for taps in &filter.taps {
                let from = &row[3 * taps.first..];
                bytes.extend((0..3).map(|channel| filter.sum(taps, |i| from[3 * i + channel])));
            }
        }
        Pixels { width, height: self.height, bytes }
    }

    fn down(&self, kernel: Kernel, height: usize) -> Pixels {
        let (filter, stride) = (Filter::new(kernel, self.height, height), 3 * self.width);
        let mut bytes = Vec::with_capacity(stride * height);
        for taps in &filter.taps {
            let from = &self.bytes[stride * taps.first..];
            bytes.extend((0..stride).map(|column| filter.sum(taps, |i| from[stride * i + column])));
        }
        Pixels { width: self.width, height, bytes }
    }
}

/// A filter that is as wide as the pixels that become one, with whole numbers as weights, as
/// torch has it for bytes.
struct Filter {
    taps: Vec<Taps>,
    /// Bits of weights behind the point.
    bits: u32,
}

/// The pixels that become one, from the first one on, and their weights.
struct Taps {
    first: usize,
    weights: Vec<i32>,
}

impl Filter {
    fn new(kernel: Kernel, from: usize, to: usize) -> Filter {
        let scale = from as f64 / to as f64;
        let support = kernel.support();
        let (support, inverse) = if scale >= 1.0 { (support * scale, 1.0 / scale) } else { (support, 1.0) };
        let mut most = 0.0f64;
        let weights = |i: usize| {
            let center = scale * (i as f64 + 0.5);
            let first = ((center - support + 0.5) as i64).max(0);
            let count = ((center + support + 0.5) as i64).min(from as i64) - first;
            let weight = |j: i64| kernel.weight(((j + first) as f64 - center + 0.5) * inverse);
            let weights: Vec<f64> = (0..count.max(0)).map(weight).collect();
            let sum: f64 = weights.iter().sum();
            (first as usize, weights.into_iter().map(|w| w / sum).collect::<Vec<f64>>())
        };
        let all: Vec<(usize, Vec<f64>)> = (0..to).map(weights).collect();
        all.iter().flat_map(|(_, weights)| weights).for_each(|&w| most = most.max(w));
        // As many as leave the largest weight in 16 bits.
        let bits = (0..22).find(|bits| (0.5 + most * f64::from(1u32 << (bits + 1))) as i64 >= 1 << 15).unwrap_or(22);
        let whole = |w: f64| {
            let w = w * f64::from(1u32 << bits);
            (if w < 0.0 { w - 0.5 } else { w + 0.5 }) as i32
        };
        let taps =
            all.into_iter().map(|(first, weights)| Taps { first, weights: weights.into_iter().map(whole).collect() });
        Filter { taps: taps.collect(), bits }
    }

    fn sum(&self, taps: &Taps, pixel: impl Fn(usize) -> u8) -> u8 {
        let half = 1 << (self.bits - 1);
        let products = taps.weights.iter().enumerate().map(|(i, weight)| i32::from(pixel(i)) * weight);
        ((products.sum::<i32>() + half) >> self.bits).clamp(0, 255) as u8
    }
}

/// Keys' cubic with `a = -0.5`.
fn cubic(x: f64) -> f64 {
    let (a, x) = (-0.5, x.abs());
    match x {
        x if x < 1.0 => ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0,
        x if x < 2.0 => ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a,
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests;
