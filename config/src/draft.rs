//! Models that guess tokens for a target to check: the MTP layer in the target's own checkpoint,
//! and an EAGLE-3 head in a checkpoint of its own, as their configurations describe them.
//!
//! For each token a draft takes a row of the target and the embedding of the next token, and
//! guesses the token after that. Then it continues with the rows that it makes itself.
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::fields::{self, Fields};
use crate::others::{DRAFT, OtherPart};
use crate::{Config, Diagnostic, FAMILIES, Family, Layer};

/// The prefix that the names of the tensors of an EAGLE-3 head have here.
pub const EAGLE3: &str = "draft";

/// How its own files spell them: SafeAILab's name of the layer, that of others, and all the rest.
const EAGLE3_SPELLINGS: &[(&str, &str)] =
    &[("midlayer.", "draft.layers.0."), ("model.midlayer.", "draft.layers.0."), ("model.", "draft."), ("", "draft.")];

const HEAD: &str = "lm_head";
const COPY: &str = "copy of the target's";
const MAP: &str = "map of the vocabulary";

/// A model that guesses the tokens of another one.
#[derive(Clone, Debug, PartialEq)]
pub struct Draft {
    /// The draft's own layers, sizes and names: `vocab` is the number of tokens that it guesses
    /// among, `spellings` those of its own checkpoint, `others` the tensors there that no step
    /// needs.
    pub model: Config,
    pub fusion: Fusion,
    /// The module of the norm after its layers.
    pub norm: String,
    /// The tensor of the embedding, of all the target's tokens.
    pub embedding: String,
    pub head: Head,
    /// The tensor with the distance from each of the draft's token ids to the target's, if the
    /// draft has fewer tokens.
    pub map: Option<String>,
}

/// The first layer's input, made of a row of the target and the embedding of a token. If both are
/// side by side the embedding is first.
#[derive(Clone, Debug, PartialEq)]
pub enum Fusion {
    Mtp(Beside),
    Eagle3(Eagle3),
}

/// Both are normalised and projected to one row. The target's rows are taken after its last norm,
/// and so are the draft's own.
#[derive(Clone, Debug, PartialEq)]
pub struct Beside {
    /// Modules of the norms and of the projection.
    pub embedding_norm: String,
    pub hidden_norm: String,
    pub projection: String,
}

/// Queries, keys and values of the first layer are made of both, normed, while the row alone goes
/// through.
#[derive(Clone, Debug, PartialEq)]
pub struct Eagle3 {
    /// The target's row is a projection of the inputs of these layers, in their order. The number
    /// of its layers means the output of the last one.
    pub layers: Vec<usize>,
    /// The norm of all that is projected.
    pub all_norm: Option<String>,
    /// The norm of each layer's input.
    pub layer_norms: Option<Vec<String>>,
    /// The module of the projection.
    pub projection: String,
    /// Modules of the norms, relative to the path of the layer.
    pub embedding_norm: &'static str,
    pub hidden_norm: &'static str,
    /// Whether the row that goes through is the normed one.
    pub norm_before_residual: bool,
    /// Whether the draft goes on from rows after its last norm.
    pub norm_output: bool,
}

/// The weight that makes logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// The embedding.
    Embedding,
    /// The target's head, of this module.
    Target(&'static str),
    /// The draft's own head, of this module.
    Own(&'static str),
}

/// How the checkpoints of a family have layers that draft.
#[derive(Debug, PartialEq)]
pub(crate) struct Drafting {
    /// The field with the number of layers, and the default; without a field there is one.
    count: Option<(&'static str, usize)>,
    /// The field that says whether they have an embedding of their own.
    dedicated: Option<&'static str>,
    /// The beginning of their names; without it they are numbered after the model's layers.
    path: Option<&'static str>,
    /// Modules relative to that path, or to the path of the layer.
    embedding_norm: &'static str,
    hidden_norm: &'static str,
    projection: &'static str,
    norm: &'static str,
    /// Modules that are the target's once more.
    copies: &'static [&'static str],
}

/// For DeepSeek V3 and GLM.
pub(crate) const BEHIND: Drafting = Drafting {
    count: Some(("num_nextn_predict_layers", 1)),
    dedicated: None,
    path: None,
    embedding_norm: "enorm",
    hidden_norm: "hnorm",
    projection: "eh_proj",
    norm: "shared_head.norm",
    copies: &["embed_tokens", "shared_head.head"],
};

/// For Qwen3-Next.
pub(crate) const APART: Drafting = Drafting {
    count: None,
    dedicated: None,
    path: Some("mtp"),
    embedding_norm: "pre_fc_norm_embedding",
    hidden_norm: "pre_fc_norm_hidden",
    projection: "fc",
    norm: "norm",
    copies: &[],
};

/// For Qwen3.5.
pub(crate) const APART_COUNTED: Drafting =
    Drafting { count: Some(("mtp_num_hidden_layers", 1)), dedicated: Some("mtp_use_dedicated_embeddings"), ..APART };

/// The layers of a model's checkpoint that draft.
#[derive(Clone, Debug, PartialEq)]
pub struct Mtp {
    drafting: &'static Drafting,
    count: usize,
    dedicated: bool,
    /// Layers before the first one, if they are numbered together.
    before: usize,
    layer: Layer,
}

impl Mtp {
    /// Reads the drafting layers, if the family has some. There are `before` other layers, and
    /// `layer` is the form of each.
    pub(crate) fn read(
        f: &Fields,
        drafting: Option<&'static Drafting>,
        before: usize,
        layer: Layer,
    ) -> Result<Option<Mtp>, Diagnostic> {
        let Some(drafting) = drafting else { return Ok(None) };
        let count = match drafting.count {
            // Null is as good as nothing.
            Some((field, default)) => {
                let count = f.number(field)?.unwrap_or(default);
                f.note(field, count);
                count
            }
            None => 1,
        };
        let dedicated = drafting.dedicated.map_or(Ok(false), |field| f.or(field, Fields::flag, false))?;
        Ok((count > 0).then_some(Mtp { drafting, count, dedicated, before, layer }))
    }
}

impl Draft {
    /// The name that users give it.
    pub fn kind(&self) -> &'static str {
        match self.fusion {
            Fusion::Mtp(_) => "mtp",
            Fusion::Eagle3(_) => "eagle3",
        }
    }

    /// The parts of the target's checkpoint, and of the draft's own, that no step of either needs.
    pub fn others(&self, target: &Config) -> Vec<OtherPart> {
        let mut others = target.others.clone();
        if matches!(self.fusion, Fusion::Mtp(_)) {
            others.retain(|other| other.part != DRAFT);
        }
        others.extend(self.model.others.iter().cloned());
        others
    }

    /// Every fact of it that is not the target's, for the artifact's record of the facts that
    /// shaped it.
    pub fn echo(&self) -> Value {
        let facts = match self.fusion {
            // All is in the target's.
            Fusion::Mtp(_) => Map::new(),
            Fusion::Eagle3(_) => self.model.facts.iter().map(|(name, fact)| (name.to_owned(), fact.clone())).collect(),
        };
        json!({ "kind": self.kind(), "facts": facts })
    }
}

impl Config {
    /// The draft in the model's own checkpoint, if it has one. It takes its facts from this model,
    /// including all that a user has changed.
    pub fn draft(&self) -> Result<Option<Draft>, Diagnostic> {
        let Some(Mtp { drafting, count, dedicated, before, layer }) = &self.mtp else { return Ok(None) };
        let fault = |field: &str, message: String| {
            Err(Diagnostic::new("config::draft", message).at(format!("config.json: {field}")))
        };
        if let Some((field, _)) = drafting.count.filter(|_| *count > 1) {
            return fault(field, format!("{count} layers draft: one that all drafts go through is supported"));
        }
        if let Some(field) = drafting.dedicated.filter(|_| *dedicated) {
            return fault(field, "is not supported: it must be null or false".into());
        }
        let (path, first) = drafting.path.map_or((self.path, *before), |path| (path, 0));
        let layers = vec![layer.clone()];
        let mut model = Config { path, first, layers, others: vec![], mtp: None, adapters: None, ..self.clone() };
        let at = drafting.path.map_or_else(|| model.layer_path(0), str::to_owned);
        let module = |name: &str| format!("{at}.{name}");
        let copy = |name: &&str| OtherPart { part: COPY, begins: format!("{}.", module(name)) };
        model.others = drafting.copies.iter().map(copy).collect();
        if let Some([one, other]) = model.uneven_experts() {
            return fault("quantization_config", format!("{one} and {other} are quantised in different forms"));
        }
        Ok(Some(Draft {
            model,
            fusion: Fusion::Mtp(Beside {
                embedding_norm: module(drafting.embedding_norm),
                hidden_norm: module(drafting.hidden_norm),
                projection: module(drafting.projection),
            }),
            norm: module(drafting.norm),
            embedding: self.embedding(),
            head: if self.tied { Head::Embedding } else { Head::Target(HEAD) },
            map: None,
        }))
    }
}

/// Architectures of EAGLE-3 heads, with the family that has the same layer: those of SGLang, of
/// vLLM, of the authors, and of `speculators`.
const ARCHITECTURES: [(&str, &str); 6] = [
    ("LlamaForCausalLMEagle3", "LlamaForCausalLM"),
    ("Eagle3LlamaForCausalLM", "LlamaForCausalLM"),
    ("LlamaForCausalLM", "LlamaForCausalLM"),
    ("Eagle3Qwen3ForCausalLM", "Qwen3ForCausalLM"),
    ("Eagle3Speculator", "LlamaForCausalLM"),
    ("Eagle3DraftModel", "LlamaForCausalLM"),
];

/// The field with the layer of a head that `speculators` wrote.
const LAYER: &str = "transformer_layer_config";

/// Fields that every head must have at these values.
const FIXED: [(&str, bool); 5] = [
    ("use_aux_hidden_state", true),
    ("use_input_layernorm_in_first_layer", true),
    ("use_last_layernorm", true),
    ("use_mtp_layernorm", false),
    ("bias", false),
];

/// Reads the EAGLE-3 head for this target from its folder or its `config.json`.
pub fn read(path: &Path, target: &Config) -> Result<Draft, Diagnostic> {
    eagle3(&crate::text(&crate::file(path))?, target)
}

/// The EAGLE-3 head that the text of its `config.json` describes, for this target, from which it
/// has its type, that of the cache, and the longest sequence.
pub fn eagle3(text: &str, target: &Config) -> Result<Draft, Diagnostic> {
    let map = fields::parse("the draft's config.json", text)?;
    let f = Fields::new("the draft's config.json", &map);
    let own = f.object(LAYER)?;
    let layer = own.as_ref().unwrap_or(&f);
    let family = family(&f, layer, own.is_some())?;
    let mut model = Config::of(family, [&f, layer], target.dtype, None)?;
    let eagle = f.object("eagle_config")?;
    check_sizes(&model, [&f, layer], target)?;
    for (name, must) in FIXED {
        let holder = eagle.as_ref().filter(|eagle| eagle.get(name).is_some()).unwrap_or(&f);
        if holder.flag(name)?.is_some_and(|is| is != must) {
            return Err(holder.fault("config::unsupported", name, format!("is not supported: it must be {must}")));
        }
    }
    let fusion = fusion(&f, eagle.as_ref(), own.is_some(), target)?;
    let vocab = vocab(&f, &model, target)?;
    let head = match (model.tied, vocab) {
        (true, _) => Head::Embedding,
        (false, Some(_)) => Head::Own("draft.lm_head"),
        (false, None) if target.tied => Head::Embedding,
        (false, None) => Head::Target(HEAD),
    };
    // Frozen while a head is trained, unless it is said that it was not.
    let is_own = f.flag("embed_requires_grad")?.unwrap_or(false);
    let embedding = if is_own { format!("{EAGLE3}.embed_tokens.weight") } else { target.embedding() };
    let ignored = |part, name: &str| OtherPart { part, begins: format!("{EAGLE3}.{name}") };
    // The map to the target's tokens is read separately from the weights.
    let mut others = vec![ignored(MAP, "t2d"), ignored(MAP, "d2t")];
    others.extend((!is_own).then(|| ignored(COPY, "embed_tokens.")));
    others.extend((!matches!(head, Head::Own(_))).then(|| ignored(COPY, "lm_head.")));
    let map = vocab.filter(|&vocab| vocab < target.vocab).map(|_| format!("{EAGLE3}.d2t"));
    model.facts = f.facts();
    let model = Config {
        path: EAGLE3,
        spellings: EAGLE3_SPELLINGS,
        others,
        vocab: vocab.unwrap_or(target.vocab),
        tied: head == Head::Embedding,
        cache: target.cache,
        adapters: None,
        context: target.context,
        stop: target.stop.clone(),
        bos: target.bos,
        ..model
    };
    Ok(Draft { model, fusion: Fusion::Eagle3(fusion), norm: format!("{EAGLE3}.norm"), embedding, head, map })
}

/// The family that has the same layer as a head.
fn family(f: &Fields, layer: &Fields, of_speculators: bool) -> Result<&'static Family, Diagnostic> {
    let name = "architectures";
    let names = f.texts(name)?.unwrap_or_default();
    let first = names.first().ok_or_else(|| f.missing(name))?;
    f.note(name, *first);
    let known = || format!("Known: {}.", ARCHITECTURES.map(|(name, _)| name).join(", "));
    let found = ARCHITECTURES.iter().find(|(name, _)| name == first).ok_or_else(|| {
        let message = format!("unknown architecture of a draft, {first:?}");
        f.fault("config::unknown-architecture", name, message).help(known())
    })?;
    // A head of `speculators` says it by the type of its layer.
    let kinds = [("llama", "LlamaForCausalLM"), ("qwen3", "Qwen3ForCausalLM")];
    let kind = layer.one_of("model_type", kinds.iter().find(|k| k.1 == found.1).map_or("llama", |k| k.0), &kinds)?;
    let wanted = if of_speculators { kind } else { found.1 };
    let family = FAMILIES.iter().find(|family| family.architecture == wanted);
    family.ok_or_else(|| f.fault("config::unknown-architecture", name, format!("no family {wanted:?}")))
}

/// Checks that the head has a layer, rows as wide as the target's, and its tokens.
fn check_sizes(model: &Config, [f, layer]: [&Fields; 2], target: &Config) -> Result<(), Diagnostic> {
    let wrong = |f: &Fields, name: &str, message: String| Err(f.fault("config::draft", name, message));
    if model.layers.len() != 1 {
        let message = format!("{} layers: a head of one is supported", model.layers.len());
        return wrong(layer, "num_hidden_layers", message);
    }
    if model.hidden != target.hidden {
        return wrong(layer, "hidden_size", format!("{} is not the target's, {}", model.hidden, target.hidden));
    }
    if let Some(width) = f.size("target_hidden_size")?.filter(|&width| width != target.hidden) {
        return wrong(f, "target_hidden_size", format!("{width} is not the target's hidden_size, {}", target.hidden));
    }
    if model.vocab != target.vocab {
        return wrong(layer, "vocab_size", format!("{} is not the target's, {}", model.vocab, target.vocab));
    }
    Ok(())
}

/// The tokens that a head guesses among, if it has a head for them.
fn vocab(f: &Fields, model: &Config, target: &Config) -> Result<Option<usize>, Diagnostic> {
    let name = "draft_vocab_size";
    let vocab = f.size(name)?;
    f.note(name, vocab);
    let wrong = |message: String| Err(f.fault("config::draft", name, message));
    match vocab {
        Some(vocab) if vocab > target.vocab => {
            wrong(format!("{vocab} is more than the target's vocab_size, {}", target.vocab))
        }
        Some(vocab) if model.tied && vocab != target.vocab => {
            wrong(format!("{vocab} of {} tokens have no head of their own: tie_word_embeddings", target.vocab))
        }
        _ => Ok(vocab),
    }
}

/// How a head takes the target's rows.
fn fusion(f: &Fields, eagle: Option<&Fields>, of_speculators: bool, target: &Config) -> Result<Eagle3, Diagnostic> {
    let flag = |name: &'static str, default: bool| {
        let given = eagle.map_or(Ok(None), |eagle| eagle.flag(name))?;
        let is = given.map_or_else(|| f.given(name, Fields::flag, default), Ok)?;
        f.note(name, is);
        Ok(is)
    };
    let layers = layers(f, eagle, target.layers.len())?;
    let all_norm = flag("norm_before_fc", false)?.then(|| format!("{EAGLE3}.input_norm"));
    let each = flag("fc_norm", false)? || flag("use_aux_norm", false)?;
    if each && all_norm.is_some() {
        return Err(f.fault("config::unsupported", "fc_norm", "is not supported together with norm_before_fc"));
    }
    let layer_norms = each.then(|| (0..layers.len()).map(|number| format!("{EAGLE3}.fc_norm.{number}")).collect());
    Ok(Eagle3 {
        layers,
        all_norm,
        layer_norms,
        projection: format!("{EAGLE3}.fc"),
        embedding_norm: "input_layernorm",
        hidden_norm: "hidden_norm",
        norm_before_residual: flag("norm_before_residual", of_speculators)?,
        norm_output: flag("norm_output", false)?,
    })
}

/// The target's layers that a head takes the input of. `eagle_config` names layers by their output
/// instead, as SGLang and the programs that train heads for it do.
fn layers(f: &Fields, eagle: Option<&Fields>, count: usize) -> Result<Vec<usize>, Diagnostic> {
    let name = "eagle_aux_hidden_state_layer_ids";
    let wrong = |f: &Fields, message: String| Err(f.fault("config::draft", name, message));
    let left = eagle.map_or(Ok(None), |eagle| eagle.numbers(name))?;
    let entered = f.numbers(name)?;
    let (holder, layers) = match (entered, left, eagle) {
        (Some(layers), _, _) => (f, layers),
        (None, Some(layers), Some(eagle)) => (eagle, layers.into_iter().map(|layer| layer + 1).collect()),
        // The choice of EAGLE-3's authors, which all others kept.
        _ if count < 7 => {
            let message = format!("is missing, and a target of {count} layers has no usual ones");
            return Err(f.fault("config::missing", name, message));
        }
        _ => (f, vec![2, count / 2, count - 3]),
    };
    let mut sorted: Vec<usize> = layers.clone();
    sorted.sort_unstable();
    sorted.dedup();
    if sorted.len() != layers.len() || layers.is_empty() {
        return wrong(holder, "must name layers, each once".into());
    }
    if let Some(layer) = sorted.last().filter(|&&layer| layer > count) {
        return wrong(holder, format!("names what enters layer {layer} of a target of {count} layers"));
    }
    if let Some(wanted) = f.size("num_aux_hidden_states")?.filter(|&wanted| wanted != layers.len()) {
        return wrong(holder, format!("names {} layers, num_aux_hidden_states is {wanted}", layers.len()));
    }
    f.note(name, Value::from(sorted.clone()));
    Ok(sorted)
}

#[cfg(test)]
mod tests;
