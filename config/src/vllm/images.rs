//! The sizes of images that vLLM's processor makes, and those that an artifact's tower takes.
use std::path::Path;

use serde_json::{Map, Value, json};

use super::text_alone;
use crate::Config;
use crate::framework::Held;

/// Pixels of the largest image, and of the largest frame of a video, as the model's processors have
/// them: an option that [`processors`] or the plugin adds. What vLLM takes none of is absent.
const PROCESSORS: &str = "processors";

/// The kinds of images, each with the file of its processor and its part of
/// `--mm-processor-kwargs`.
const KINDS: [(&str, &str, &str); 2] = [
    ("image", "preprocessor_config.json", "images_kwargs"),
    ("video", "video_preprocessor_config.json", "videos_kwargs"),
];

/// Patches of a tower's largest image, if nobody asks for another number.
const PATCHES: usize = 4096;

/// Adds the sizes that a folder's processors have, as the plugin asks vLLM for them.
pub fn processors(folder: &Path, options: &mut Map<String, Value>) {
    let read = |file: &str| {
        let text = std::fs::read_to_string(folder.join(file)).unwrap_or_default();
        serde_json::from_str::<Value>(&text).unwrap_or_default()
    };
    let (whole, usual) = (read("processor_config.json"), read(KINDS[0].1));
    let limits = options.get("limit_mm_per_prompt").cloned().unwrap_or_default();
    let taken = |kind: &str| {
        let limit = &limits[kind];
        limit.as_u64().or(limit["count"].as_u64()) != Some(0)
    };
    let of = |(kind, file, _): (&str, &str, &str)| {
        let own = read(file);
        let nested = &whole[format!("{kind}_processor").as_str()];
        // Without a file of its own the processor of videos reads that of images.
        Some((kind.to_owned(), json!(most(&own).or(most(nested)).or(most(&usual))?)))
    };
    let all = KINDS.into_iter().filter(|(kind, ..)| taken(kind)).filter_map(of);
    options.insert(PROCESSORS.to_owned(), Value::Object(all.collect()));
}

/// The most pixels that a processor's facts, or arguments, allow.
fn most(facts: &Value) -> Option<u64> {
    facts["max_pixels"].as_u64().or(facts["size"]["longest_edge"].as_u64())
}

/// Pixels of the largest image or frame that vLLM makes, with `--mm-processor-kwargs`.
fn largest(given: &Value, options: &Map<String, Value>) -> Option<usize> {
    let processors = options.get(PROCESSORS)?;
    let of = |(kind, _, part): (&str, &str, &str)| {
        let usual = processors[kind].as_u64()?;
        Some(most(&given[part]).or(most(given)).unwrap_or(usual) as usize)
    };
    KINDS.into_iter().filter_map(of).max()
}

/// What an artifact's tower takes, if vLLM's processor makes more of an image.
pub fn too_large(given: &Value, options: &Map<String, Value>, held: &Held) -> Option<String> {
    let (takes, makes) = (held.pixels?, largest(given, options)?);
    let fits = text_alone(options) || makes <= takes;
    (!fits).then(|| {
        format!(
            "a tower for {takes} pixels of an image or frame, of which vLLM makes up to {makes}: \
             `--mm-processor-kwargs '{{\"max_pixels\": {takes}}}'` makes them smaller, \
             `atomc compile --patches` the tower larger"
        )
    })
}

/// The options of `atomc compile` that make a tower for all images that vLLM makes.
pub fn options(config: &Config, options: &Map<String, Value>, own: bool) -> Vec<String> {
    let ranks = options.get("tensor_parallel_size").and_then(Value::as_u64).unwrap_or(1);
    let guesses = options.get("speculative_config").is_some_and(|asked| !asked.is_null());
    let vision = crate::Vision::of(config).ok().filter(|vision| !vision.axes.is_empty());
    let vision = vision.filter(|_| own && ranks == 1 && !guesses && !text_alone(options));
    let Some(vision) = vision else { return vec![] };
    let given = options.get("mm_processor_kwargs").unwrap_or(&Value::Null);
    let patches = largest(given, options).unwrap_or(0) / (vision.patch * vision.patch);
    // Plans of a tower are of these sizes, and of a quarter of them.
    let patches = patches.next_multiple_of(4 * vision.merged());
    let mut made = vec!["--tower".to_owned()];
    if patches > PATCHES {
        made.extend(["--patches".to_owned(), patches.to_string()]);
    }
    made
}
