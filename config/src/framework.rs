//! The parts that all frameworks have in common: judged options, the facts of an artifact, and the
//! words by which one does not fit the other.
pub(crate) mod arguments;
pub(crate) mod speculation;
mod yaml;

use std::path::Path;

use serde_json::{Map, Value};

use crate::compare::told;
use crate::{Attention, Config, Diagnostic, FAMILIES, differences, quantised};
pub use speculation::Guesses;

/// Types of caches by the frameworks' names, if they differ from those of an artifact's pages.
const CACHES: [(&str, &str); 3] = [("fp8", "float8_e4m3fn"), ("fp8_e4m3", "float8_e4m3fn"), ("bf16", "bfloat16")];

/// Types of tensors by short names.
const DTYPES: [(&str, &str); 2] = [("half", "float16"), ("float", "float32")];

/// Letters of a value in a message. The reason names the part of a long value that matters.
const LONGEST_VALUE: usize = 80;

/// The effect of an option on a model that an artifact runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// A rule compares it with the artifact.
    Compared,
    /// Whatever switches something on is refused.
    Refused,
    /// The framework obeys it.
    Acts,
    /// It is about a part that such a model does not have.
    CannotMatter,
}

/// An option that a rule looks at.
pub struct Judged {
    /// As the framework's arguments call it.
    pub name: &'static str,
    pub fate: Fate,
    /// Its place in the resolved configuration, if that is not its name; `|` separates the places
    /// of different releases.
    pub at: &'static str,
    /// Values that switch nothing on, in addition to `null`, `false`, 0 and empty ones.
    pub harmless: &'static [&'static str],
    /// The value that it has to have, or the reason why it is refused.
    pub why: &'static str,
}

pub(crate) const fn compared(name: &'static str, at: &'static str, why: &'static str) -> Judged {
    Judged { name, fate: Fate::Compared, at, harmless: &[], why }
}

pub(crate) const fn refused(
    name: &'static str,
    at: &'static str,
    harmless: &'static [&'static str],
    why: &'static str,
) -> Judged {
    Judged { name, fate: Fate::Refused, at, harmless, why }
}

impl Judged {
    /// Whether a value switches nothing on.
    pub fn is_harmless(&self, value: &Value) -> bool {
        match value {
            Value::Null => true,
            Value::Bool(on) => !on,
            Value::Number(n) => n.as_f64() == Some(0.0) || self.harmless.contains(&n.to_string().as_str()),
            Value::String(text) => text.is_empty() || self.harmless.contains(&text.as_str()),
            Value::Array(list) => list.is_empty(),
            Value::Object(map) => map.is_empty(),
        }
    }

    /// The fault of a value that switches something on.
    pub(crate) fn refused(&self, value: &Value) -> Option<String> {
        (!self.is_harmless(value)).then(|| format!("none: {}", self.why))
    }
}

/// The properties of an artifact's target. Types have torch's names.
#[derive(Clone, Debug)]
pub struct Held<'a> {
    /// The facts of its model, as [`Config::echo`] gave them.
    pub model: &'a Value,
    pub dtype: &'a str,
    pub cache_dtype: &'a str,
    pub ranks: usize,
    /// Ranks among which experts are shared out whole; 1 if each has a share of every one.
    pub experts: usize,
    /// Most tokens of a sequence, and of a step.
    pub positions: usize,
    pub step: usize,
    /// Tokens in a page.
    pub page: usize,
    /// Whether the artifact attends, and not the framework's layer.
    pub own: bool,
    /// Whether the bits of a row do not depend on the other rows of its step.
    pub invariant: bool,
    /// Whether layers keep a state of each sequence, in addition to pages.
    pub slots: bool,
    /// What serves guesses.
    pub guesses: Guesses,
    /// Pixels of the largest image that its tower takes, if it has one.
    pub pixels: Option<usize>,
}

/// The configuration and options of a framework.
pub(crate) struct Asked<'a> {
    pub config: &'a Config,
    pub options: &'a Map<String, Value>,
}

/// Compares the value of an option with the artifact. If they differ, returns the artifact's
/// property in words.
pub(crate) type Rule = fn(&Judged, &Value, &Asked, &Held) -> Option<String>;

/// Options by the names of a framework.
pub type Options = Map<String, Value>;

/// The functions of a framework for the plugin and `atomc check`.
pub struct Rules {
    /// As it calls itself.
    pub name: &'static str,
    /// Options of a command line, by the framework's names.
    pub read: fn(&[String]) -> Result<Options, String>,
    /// The artifact that an option names.
    pub artifact: fn(&Options) -> Result<Option<String>, String>,
    /// The configuration of a folder under options, to which those are added that it implies.
    pub resolve: fn(&Path, &mut Options) -> Result<Config, Diagnostic>,
    /// Everything about which a configuration and its options do not fit an artifact.
    pub refusals: fn(&Config, &Options, &Held) -> Vec<String>,
    /// The options of `atomc compile` that make a fitting artifact. The last parameter says whether
    /// the artifact attends.
    pub compile_options: fn(&Config, &Options, bool) -> Vec<String>,
    /// Whether options say that requests are text alone.
    pub text_alone: fn(&Options) -> bool,
    /// How a command line says so.
    pub text_option: &'static str,
    /// Whether artifacts with a tower see images.
    pub sees: bool,
}

impl Rules {
    /// The rules of a framework that artifacts run in.
    pub fn of(name: &str) -> Option<&'static Rules> {
        [&crate::vllm::RULES, &crate::sglang::RULES].into_iter().find(|rules| rules.name.eq_ignore_ascii_case(name))
    }

    /// The option without which the framework's own class runs models of an architecture: artifacts
    /// without a tower are of their language part, and requests may want the others.
    pub fn lacks(&self, architecture: &str, tower: bool, options: &Options) -> Option<&'static str> {
        let sees = tower && self.sees(architecture);
        (is_part(architecture) && !sees && !(self.text_alone)(options)).then_some(self.text_option)
    }

    fn sees(&self, architecture: &str) -> bool {
        self.sees && FAMILIES.iter().any(|family| family.architecture == architecture && family.sees())
    }

    /// What to say of an artifact with a tower that gets no images.
    pub(crate) fn unseen(&self, config: &Config, held: &Held) -> Option<String> {
        let unseen = held.pixels.is_some() && !self.sees(config.architecture);
        unseen.then(|| {
            format!(
                "images: {} gives {} none, and the artifact was compiled with --tower: `atomc run` and `atomc serve` run it",
                self.name, config.architecture
            )
        })
    }
}

/// A framework, with the options of its that are judged.
pub(crate) struct Framework {
    /// As it calls itself.
    pub name: &'static str,
    pub judged: &'static [Judged],
    pub unfit: Rule,
}

impl Framework {
    /// Everything about which a configuration and its options do not fit an artifact, one line
    /// each, the telling ones first.
    pub fn refusals(&self, config: &Config, options: &Map<String, Value>, held: &Held) -> Vec<String> {
        let mut found: Vec<String> =
            differences(config, held.model).iter().map(|fact| fact.between(self.name)).collect();
        found.extend(lacking(config).map(|(field, what)| {
            format!("config.json: {field}: {} has no {what}: `atomc run` and `atomc serve` run the model", self.name)
        }));
        for judged in self.judged {
            let value = options.get(judged.name).unwrap_or(&Value::Null);
            let fault = (self.unfit)(judged, value, &Asked { config, options }, held);
            let line =
                |fault| format!("{}: {} has {}, the artifact {fault}", flag(judged.name), self.name, short(value));
            found.extend(fault.map(line));
        }
        found
    }
}

/// What of a model no framework makes for artifacts, by the field that asks for it.
fn lacking(config: &Config) -> Option<(&'static str, &'static str)> {
    let attention = || config.layers.iter().filter_map(|layer| layer.half::<Attention>());
    let dim = attention().next().map(|first| first.head_dim);
    let all = [
        (config.pools_blocks(), "layer_types", "pages for rows of blocks of tokens"),
        (
            attention().any(|own| Some(own.head_dim) != dim),
            "global_head_dim",
            "pages of an artifact's for heads of two sizes",
        ),
        (attention().any(|own| own.shared.is_some()), "num_kv_shared_layers", "place for layers that see others' keys"),
        (config.own_rows.is_some(), "hidden_size_per_layer_input", "place for rows of layers' own"),
    ];
    all.into_iter().find(|(is, ..)| *is).map(|(_, field, what)| (field, what))
}

/// The properties of an artifact that a framework's options ask for.
pub(crate) struct Fit<'a> {
    pub dtype: &'a str,
    pub cache: &'a str,
    pub ranks: usize,
    /// Whether ranks are to have whole experts.
    pub spread: bool,
    /// The longest sequence, if one is asked for.
    pub context: Option<usize>,
}

impl Fit<'_> {
    /// The options of `atomc compile` that make such an artifact of a model.
    pub fn options(&self, config: &Config) -> Vec<String> {
        let mut options = vec![];
        let mut option = |name: &str, value: &str| options.extend([name.to_owned(), value.to_owned()]);
        let dtype = self.dtype.trim_start_matches("torch.");
        if dtype != "auto" {
            option("--dtype", named(dtype, &DTYPES));
        }
        if self.ranks > 1 {
            option("--tp", &self.ranks.to_string());
        }
        if self.ranks > 1 && self.spread && config.has_experts() {
            option("--ep", &self.ranks.to_string());
        }
        if named(self.cache, &CACHES) == "float8_e4m3fn" {
            option("--cache-dtype", "fp8");
        }
        if let Some(context) = self.context.filter(|context| *context > config.context) {
            option("--context", &context.to_string());
        }
        options
    }
}

/// An option as the command line spells it.
pub fn flag(name: &str) -> String {
    format!("--{}", name.replace('_', "-"))
}

/// The table of a document: the value that each option must have, or the reason why it is refused.
pub(crate) fn rows(judged: &[Judged]) -> String {
    let mut text = String::from("| option | | |\n|---|---|---|\n");
    for Judged { name, fate, why, harmless, .. } in judged {
        let what = if *fate == Fate::Compared { "must be" } else { "refused" };
        let except = match harmless.is_empty() {
            true => String::new(),
            false => format!(" but for {}", harmless.iter().map(|v| format!("`{v}`")).collect::<Vec<_>>().join(", ")),
        };
        text += &format!("| `{}` | {what}{except} | {why} |\n", flag(name));
    }
    text
}

/// The rest of such a table: the fate of many options, and why.
pub(crate) fn list(others: &[(Fate, &str, &str)]) -> String {
    let row = |(fate, why, names): &(Fate, &str, &str)| {
        let what = if *fate == Fate::Acts { "acts" } else { "cannot matter" };
        let names: Vec<String> = names.split(' ').map(|name| format!("`{}`", flag(name))).collect();
        format!("| {} | {what} | {why} |\n", names.join(" "))
    };
    others.iter().map(row).collect()
}

/// The artifact's type, if tensors are to have another.
pub(crate) fn dtype(asked: &str, held: &Held) -> Option<String> {
    let given = named(asked.trim_start_matches("torch."), &DTYPES);
    (given != held.dtype && given != "auto").then(|| held.dtype.to_owned())
}

/// The type of the artifact's pages, if the cache is to have another.
pub(crate) fn cache(asked: &str, held: &Held) -> Option<String> {
    (asked != "auto" && named(asked, &CACHES) != held.cache_dtype).then(|| held.cache_dtype.to_owned())
}

/// The method of the artifact's checkpoint, if options ask for another.
pub(crate) fn method(asked: &str, held: &Held) -> Option<String> {
    let method = held.model["quantization_config"]["quant_method"].as_str();
    (method != Some(quantised::canonical(asked))).then(|| method.unwrap_or("none").to_owned())
}

/// Whether an architecture's models have other parts than the one that artifacts are made of.
pub(crate) fn is_part(architecture: &str) -> bool {
    FAMILIES.iter().any(|family| family.architecture == architecture && family.text_config.is_some())
}

fn named<'a>(name: &'a str, names: &[(&str, &'a str)]) -> &'a str {
    names.iter().find(|(other, _)| *other == name).map_or(name, |(_, name)| name)
}

fn short(value: &Value) -> String {
    let text = told(value);
    match text.char_indices().nth(LONGEST_VALUE) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub const MODEL: &str = r#"{
        "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1,
        "num_attention_heads": 4, "vocab_size": 128, "max_position_embeddings": 512, "dtype": "bfloat16"
    }"#;

    /// A configuration with experts.
    pub fn with_experts() -> String {
        let experts = r#""num_experts": 4, "moe_intermediate_size": 32, "num_experts_per_tok": 2, "head_dim": 16, "#;
        MODEL.replace("LlamaFor", "Qwen3MoeFor").replace(r#""vocab_size""#, &format!(r#"{experts}"vocab_size""#))
    }

    /// An artifact of such a model, on one rank.
    pub fn artifact_of(model: &Value) -> Held<'_> {
        let dtype = "bfloat16";
        Held {
            model,
            dtype,
            cache_dtype: dtype,
            ranks: 1,
            experts: 1,
            positions: 512,
            step: 256,
            page: 32,
            own: true,
            invariant: false,
            slots: false,
            guesses: Guesses::default(),
            pixels: None,
        }
    }
}
