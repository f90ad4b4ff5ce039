//! What a model sees images with: a tower that makes rows of embeddings of patches, and the
//! positions that tokens have where some are of images. It is read when somebody asks for it, so
//! that the language part runs whatever a tower is.
use serde_json::{Map, Value, json};

use crate::fields::{Facts, Fields, MAX_SIZE};
use crate::mlp::{self, Activation};
use crate::{Config, Diagnostic};

/// What a family's towers have in common.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Traits {
    /// Blocks after which rows for layers of the language part are made, by default; without them
    /// there are none.
    pub deepstack: Option<&'static [usize]>,
    /// How many frequencies take each axis by default: time, rows, columns.
    pub sections: [usize; 3],
}

/// For Qwen3-VL.
pub(crate) const QWEN3_VL: Traits = Traits { deepstack: Some(&[8, 16, 24]), sections: [24, 20, 20] };
/// For Qwen3.5.
pub(crate) const QWEN3_5: Traits = Traits { deepstack: None, sections: [11, 11, 10] };

/// What a configuration says of its tower, unread.
#[derive(Clone, Debug, PartialEq)]
pub struct Seeing {
    traits: Traits,
    config: Map<String, Value>,
    rope: Map<String, Value>,
    image_token: Option<Value>,
}

/// A tower, completely described.
#[derive(Clone, Debug, PartialEq)]
pub struct Vision {
    /// What names of its tensors begin with.
    pub path: &'static str,
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
    /// Rows of the square table of positions.
    pub side: usize,
    /// The blocks after which rows for layers of the language part are made: the first ones are
    /// added behind layer 0.
    pub deepstack: Vec<usize>,
    pub theta: f64,
    pub eps: f64,
    /// The token that stands for a row of an image.
    pub image_token: u32,
    /// Which position each frequency of the language part takes: 0 for time, 1 for rows, 2 for
    /// columns.
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
        let image_token = all.get("image_token_id").cloned();
        Ok(Some(Seeing { traits, config: config.clone(), rope: rope.cloned().unwrap_or_default(), image_token }))
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
        let Seeing { traits, config, rope, image_token } = model.seeing.as_ref().ok_or_else(none)?;
        let f = &Fields::new("config.json: vision_config", config);
        let width = f.at_most("hidden_size", f.or("hidden_size", Fields::size, 1152)?, MAX_SIZE)?;
        let heads = f.or("num_heads", Fields::size, 16)?;
        let entries = f.or("num_position_embeddings", Fields::size, 2304)?;
        let out = f.or("out_hidden_size", Fields::size, 3584)?;
        let image_token = image_token.as_ref().and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok());
        let vision = Vision {
            path: "model.visual",
            depth: f.at_most("depth", f.or("depth", Fields::size, 27)?, 4096)?,
            width,
            heads,
            intermediate: f.or("intermediate_size", Fields::size, 4304)?,
            activation: mlp::activation(f, ("hidden_act", "gelu_pytorch_tanh"))?,
            channels: f.or("in_channels", Fields::size, 3)?,
            patch: f.or("patch_size", Fields::size, 16)?,
            frames: f.or("temporal_patch_size", Fields::size, 2)?,
            merge: f.or("spatial_merge_size", Fields::size, 2)?,
            side: entries.isqrt(),
            deepstack: deepstack(f, *traits)?,
            theta: theta(f)?,
            eps: 1e-6,
            image_token: image_token.ok_or_else(|| {
                Diagnostic::new("config::vision", "must be the number of a token").at("config.json: image_token_id")
            })?,
            axes: axes(rope, traits.sections, model)?,
            facts: f.facts(),
        };
        vision.check(f, (model, entries, out))?;
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

    fn check(&self, f: &Fields, (model, entries, out): (&Config, usize, usize)) -> Result<(), Diagnostic> {
        let Vision { width, heads, depth, .. } = *self;
        if !width.is_multiple_of(heads) || !self.head_dim().is_multiple_of(4) {
            let message = format!("{heads} heads of {width}: each must have a multiple of 4 elements");
            return Err(f.fault("config::vision", "num_heads", message));
        }
        if self.side * self.side != entries {
            let message = format!("{entries} is no square: a table of positions has as many rows as columns");
            return Err(f.fault("config::vision", "num_position_embeddings", message));
        }
        if out != model.hidden {
            let message = format!("{out} is not hidden_size of the language part, {}", model.hidden);
            return Err(f.fault("config::vision", "out_hidden_size", message));
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

/// The base of the tower's rotary embedding.
fn theta(f: &Fields) -> Result<f64, Diagnostic> {
    let theta = match f.object("rope_parameters")? {
        Some(rope) => rope.given("rope_theta", Fields::positive, 10_000.0)?,
        None => 10_000.0,
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
