//! What a model sees images with: a tower that makes rows of embeddings of patches, and the
//! positions that tokens have where some are of images. It is read when somebody asks for it, so
//! that the language part runs whatever a tower is.
mod rows;

use serde_json::{Map, Value, json};

use crate::fields::{Facts, Fields, MAX_SIZE};
use crate::mlp::{self, Activation};
use crate::{Config, Diagnostic};

pub(crate) use rows::{GEMMA3, MISTRAL3, QWEN3_5, QWEN3_VL, Traits};
pub use rows::{Merger, Module, Prompt, Queries, Style, Turned};

/// What a configuration says of its tower, unread.
#[derive(Clone, Debug, PartialEq)]
pub struct Seeing {
    traits: Traits,
    config: Map<String, Value>,
    /// Fields of the whole model.
    outside: Map<String, Value>,
    rope: Map<String, Value>,
}

/// A tower, completely described.
#[derive(Clone, Debug, PartialEq)]
pub struct Vision {
    pub style: Style,
    pub prompt: Prompt,
    pub depth: usize,
    pub width: usize,
    pub heads: usize,
    pub intermediate: usize,
    pub activation: Activation,
    /// Numbers of a pixel.
    pub channels: usize,
    /// Pixels of a patch's side.
    pub patch: usize,
    /// Frames of a patch: a single image is repeated.
    pub frames: usize,
    /// Patches of the side of what becomes one token.
    pub merge: usize,
    /// The patches of a side of every image, if all images have as many.
    pub only: Option<usize>,
    /// Rows of the square table of positions, if there is one.
    pub side: Option<usize>,
    /// The blocks after which rows for layers of the language part are made: the first ones are
    /// added behind layer 0.
    pub deepstack: Vec<usize>,
    /// Of the rotary embedding, if there is one.
    pub theta: f64,
    pub eps: f64,
    /// The activation of what makes rows of patches.
    pub merging: Activation,
    /// Of the norm there, and what is added to its weights.
    pub merging_eps: f64,
    pub merging_offset: f64,
    /// The token that stands for a row of an image.
    pub image_token: u32,
    /// Which position each frequency of the language part takes: 0 for time, 1 for rows, 2 for
    /// columns. Without them tokens have one position, whatever they stand for.
    pub axes: Vec<usize>,
    /// What the fields were found to mean.
    pub facts: Facts,
}

impl Seeing {
    /// What a family's configuration has, if it has a tower.
    pub(crate) fn of(traits: Option<Traits>, [all, language]: [&Fields; 2]) -> Result<Option<Seeing>, Diagnostic> {
        let (Some(traits), Some(config)) = (traits, all.get("vision_config").and_then(Value::as_object)) else {
            return Ok(None);
        };
        let rope = ["rope_scaling", "rope_parameters"].iter().find_map(|name| language.get(name)?.as_object());
        let outside = rows::OUTSIDE.iter().filter_map(|&name| Some((name.to_owned(), all.get(name)?.clone())));
        let (config, rope) = (config.clone(), rope.cloned().unwrap_or_default());
        Ok(Some(Seeing { traits, config, outside: outside.collect(), rope }))
    }
}

impl Vision {
    /// The tower of a model.
    pub fn of(model: &Config) -> Result<Vision, Diagnostic> {
        let none = || {
            let message =
                format!("{} has no tower that is known here: there is no `vision_config`", model.architecture);
            Diagnostic::new("config::vision", message).at("--tower")
        };
        let Seeing { traits, config, outside, rope } = model.seeing.as_ref().ok_or_else(none)?;
        let f = &Fields::new("config.json: vision_config", config);
        let outside = &Fields::new("config.json", outside);
        let &Traits { style, prompt, fields: [depth, heads, channels], sizes, .. } = traits;
        let width = f.at_most("hidden_size", f.or("hidden_size", Fields::size, sizes[1])?, MAX_SIZE)?;
        let mut vision = Vision {
            style: *style,
            prompt,
            depth: f.at_most(depth, f.or(depth, Fields::size, sizes[0])?, 4096)?,
            width,
            heads: f.or(heads, Fields::size, sizes[2])?,
            intermediate: f.or("intermediate_size", Fields::size, traits.intermediate)?,
            activation: mlp::activation(f, ("hidden_act", traits.activation))?,
            channels: f.or(channels, Fields::size, 3)?,
            patch: f.or("patch_size", Fields::size, traits.patch)?,
            frames: traits.frames.map_or(Ok(1), |frames| f.or("temporal_patch_size", Fields::size, frames))?,
            merge: 1,
            only: None,
            side: None,
            deepstack: deepstack(f, *traits)?,
            theta: theta(f)?,
            eps: traits.eps.0.map_or(Ok(traits.eps.1), |name| f.or(name, Fields::positive, traits.eps.1))?,
            merging: Activation::Gelu,
            merging_eps: model.eps,
            merging_offset: model.norm_offset,
            image_token: image_token(outside, traits.image_token)?,
            axes: traits.sections.map_or(Ok(vec![]), |usual| axes(rope, usual, model))?,
            facts: f.facts(),
        };
        match style.merger {
            Merger::Beside => vision.beside(f)?,
            Merger::Unfolded => vision.unfolded(outside)?,
            Merger::Mean => vision.mean([f, outside])?,
        }
        vision.facts = f.facts();
        outside.facts().iter().for_each(|(name, fact)| vision.facts.set(name, fact.clone()));
        vision.check(f, model)?;
        Ok(vision)
    }

    /// Elements of a head.
    pub fn head_dim(&self) -> usize {
        self.width / self.heads
    }

    /// Numbers of a patch.
    pub fn numbers(&self) -> usize {
        self.channels * self.frames * self.patch * self.patch
    }

    /// Patches that become one row.
    pub fn merged(&self) -> usize {
        self.merge * self.merge
    }

    /// Rows of the language part that are made of one merged row, side by side: the embedding, and
    /// what is added behind layers.
    pub fn rows(&self) -> usize {
        1 + self.deepstack.len()
    }

    /// Every fact.
    pub fn echo(&self) -> Value {
        let mut echo: Map<String, Value> =
            self.facts.iter().map(|(name, value)| (name.to_owned(), value.clone())).collect();
        echo.insert("image_token_id".into(), json!(self.image_token));
        echo.insert("axes".into(), json!(self.axes));
        Value::Object(echo)
    }

    /// What fields say of patches that become a row side by side.
    fn beside(&mut self, f: &Fields) -> Result<(), Diagnostic> {
        self.merge = f.or("spatial_merge_size", Fields::size, 2)?;
        self.side = Some(side(f)?);
        Ok(())
    }

    /// What fields say where a convolution makes rows of patches.
    fn unfolded(&mut self, outside: &Fields) -> Result<(), Diagnostic> {
        let only = [("vision_feature_layer", json!(-1)), ("multimodal_projector_bias", json!(false))];
        for (name, known) in only {
            if outside.get(name).is_some_and(|said| *said != known) {
                return Err(outside.fault(
                    "config::unsupported",
                    name,
                    format!("is not supported: it must be {known}"),
                ));
            }
        }
        self.merge = outside.or("spatial_merge_size", Fields::size, 2)?;
        self.merging = mlp::activation(outside, ("projector_hidden_act", "gelu"))?;
        Ok(())
    }

    /// What fields say where rows are means of patches: all images are squares of one size.
    fn mean(&mut self, [f, outside]: [&Fields; 2]) -> Result<(), Diagnostic> {
        let size = f.at_most("image_size", f.or("image_size", Fields::size, 224)?, MAX_SIZE)?;
        let (name, side) = ("mm_tokens_per_image", size / self.patch);
        let tokens = outside.or(name, Fields::size, 256)?;
        let of_side = tokens.isqrt();
        if of_side * of_side != tokens || !side.is_multiple_of(of_side) || side == 0 {
            let message = format!("{tokens} is not the square of a divisor of {side}, the patches of a side");
            return Err(outside.fault("config::vision", name, message));
        }
        (self.merge, self.only, self.side) = (side / of_side, Some(side), Some(side));
        self.merging_eps = self.eps;
        Ok(())
    }

    fn check(&self, f: &Fields, model: &Config) -> Result<(), Diagnostic> {
        let Vision { width, heads, depth, .. } = *self;
        if !width.is_multiple_of(heads) || !self.head_dim().is_multiple_of(4) {
            let message = format!("{heads} heads of {width}: each must have a multiple of 4 elements");
            return Err(f.fault("config::vision", "hidden_size", message));
        }
        let told = [
            ("out_hidden_size", model.hidden, "hidden_size of the language part"),
            ("head_dim", self.head_dim(), "what a head of the rows has"),
        ];
        for (name, own, what) in told {
            if let Some(said) = f.size(name)?.filter(|&said| said != own) {
                return Err(f.fault("config::vision", name, format!("{said} is not {what}, {own}")));
            }
        }
        if let Some(block) = self.deepstack.iter().find(|&&block| block >= depth) {
            let message = format!("there is no block {block}: those of the tower are 0 to {}", depth - 1);
            return Err(f.fault("config::vision", "deepstack_visual_indexes", message));
        }
        if self.deepstack.len() > model.layers.len() {
            let message = format!("rows for {} layers of {}", self.deepstack.len(), model.layers.len());
            return Err(f.fault("config::vision", "deepstack_visual_indexes", message));
        }
        Ok(())
    }
}

/// The token of an image, by either name of its field.
fn image_token(outside: &Fields, usual: Option<u32>) -> Result<u32, Diagnostic> {
    let names = ["image_token_id", "image_token_index"];
    let said = names.into_iter().find_map(|name| Some((name, outside.get(name)?)));
    let read = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    let token = said.map_or(usual, |(_, value)| read(value));
    let name = said.map_or(names[0], |(name, _)| name);
    token.ok_or_else(|| outside.fault("config::vision", name, "must be the number of a token"))
}

/// Rows of the table of positions, which has as many columns.
fn side(f: &Fields) -> Result<usize, Diagnostic> {
    let name = "num_position_embeddings";
    let entries = f.or(name, Fields::size, 2304)?;
    let side = entries.isqrt();
    if side * side != entries {
        let message = format!("{entries} is no square: a table of positions has as many rows as columns");
        return Err(f.fault("config::vision", name, message));
    }
    Ok(side)
}

/// The base of the tower's rotary embedding.
fn theta(f: &Fields) -> Result<f64, Diagnostic> {
    let usual = f.given("rope_theta", Fields::positive, 10_000.0)?;
    let theta = match f.object("rope_parameters")? {
        Some(rope) => rope.given("rope_theta", Fields::positive, usual)?,
        None => usual,
    };
    f.note("rope_parameters", theta);
    Ok(theta)
}

fn deepstack(f: &Fields, traits: Traits) -> Result<Vec<usize>, Diagnostic> {
    let name = "deepstack_visual_indexes";
    let Some(usual) = traits.deepstack else { return Ok(vec![]) };
    let blocks = f.numbers(name)?.unwrap_or_else(|| usual.to_vec());
    f.note(name, blocks.clone());
    Ok(blocks)
}

/// Which axis each frequency takes, interleaved: of three that follow each other the second one
/// takes rows and the third one columns, as far as the sections go. All others take time.
fn axes(rope: &Map<String, Value>, usual: [usize; 3], model: &Config) -> Result<Vec<usize>, Diagnostic> {
    let f = Fields::new("config.json: rope_parameters", rope);
    let name = "mrope_section";
    let sections = f.numbers(name)?.unwrap_or_else(|| usual.to_vec());
    let &[_, rows, columns] = &sections[..] else {
        return Err(f.fault("config::vision", name, format!("{} sections, there must be 3", sections.len())));
    };
    if rope.get("mrope_interleaved").is_some_and(|value| *value != json!(true)) {
        return Err(f.fault("config::vision", "mrope_interleaved", "is not supported: it must be null or true"));
    }
    let [turned] = &model.ropes[..] else {
        return Err(f.fault("config::vision", name, "one rotary embedding for all layers is supported"));
    };
    let half = turned.freqs.dim / 2;
    let axis = |i: usize| match i % 3 {
        1 if i < 3 * rows => 1,
        2 if i < 3 * columns => 2,
        _ => 0,
    };
    Ok((0..half).map(axis).collect())
}
