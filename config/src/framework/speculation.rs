//! Speculative decoding in a framework: the draft of an artifact, and the options that fit it.
use serde_json::{Map, Value};

use super::{Asked, Held, Judged};
use crate::compare::plain;

/// An artifact's means to serve guesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Guesses {
    /// Most guesses that a step verifies.
    pub most: usize,
    /// The kind of the draft, if the artifact has one.
    pub draft: Option<Drafts>,
}

impl Guesses {
    /// The guesses of steps that verify `most` tokens, and of a draft, with its weights in the
    /// model's checkpoint or in one of its own.
    pub fn of(most: usize, apart: Option<bool>) -> Guesses {
        Guesses { most, draft: apart.map(|apart| if apart { Drafts::Eagle3 } else { Drafts::Mtp }) }
    }
}

/// Kinds of drafts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drafts {
    /// A layer of the model's own checkpoint.
    Mtp,
    /// A head in a checkpoint of its own.
    Eagle3,
}

/// Fields of vLLM's `--speculative-config` that switch on a feature that drafts of artifacts lack.
const FIELDS: [Judged; 9] = [
    field("parallel_drafting", &[], "a draft guesses one token after the other"),
    field("use_heterogeneous_vocab", &[], "the draft's tokens are the model's"),
    field("use_local_argmax_reduction", &[], "logits of the draft are of all its tokens"),
    field("draft_lm_head_quantization", &[], "the draft's weights are the artifact's"),
    field("quantization", &[], "the draft's weights are the artifact's"),
    field("attention_backend", &["auto"], "the draft attends itself"),
    field("kv_cache_dtype", &["auto"], "the draft's pages are of the model's type"),
    field("moe_backend", &["auto"], "kernels are the artifact's"),
    field("enable_adaptive_verification", &[], "the draft tells no confidence"),
];

const fn field(name: &'static str, harmless: &'static [&'static str], why: &'static str) -> Judged {
    super::refused(name, name, harmless, why)
}

/// The artifact's property that vLLM's `--speculative-config` does not fit, if there is one.
pub fn vllm(config: &Value, artifact: &Held) -> Option<String> {
    let Some(config) = config.as_object().filter(|config| !config.is_empty()) else { return alone(artifact) };
    let text = |names: [&str; 2]| names.iter().find_map(|name| config.get(*name)).filter(|v| !v.is_null()).map(plain);
    let method = text(["method", "spec_method"]);
    if let Some(fault) = method.as_deref().and_then(|method| guessing(method, artifact)) {
        return Some(fault);
    }
    let count = text(["num_speculative_tokens", "spec_tokens"]).and_then(|count| count.parse::<usize>().ok());
    if let Some(fault) = count.and_then(|count| most(count, artifact.guesses)) {
        return Some(fault);
    }
    // vLLM resolves none to the model's.
    let parts = text(["draft_tensor_parallel_size"; 2]).filter(|parts| *parts != artifact.ranks.to_string());
    if let Some(parts) = parts {
        return Some(format!("a draft on {} ranks, not `draft_tensor_parallel_size` {parts}", artifact.ranks));
    }
    FIELDS.iter().find_map(|judged| {
        let fault = judged.refused(config.get(judged.name)?)?;
        Some(format!("{fault} (`{}`)", judged.name))
    })
}

/// The options of `atomc compile` that make the draft that vLLM asks for.
pub fn options(config: &Map<String, Value>) -> Vec<String> {
    let text = |name: &str| config.get(name).and_then(Value::as_str);
    let without = |method: &str| WITHOUT_DRAFT.contains(&method);
    let draft = match text("method") {
        Some("eagle3") => text("model"),
        Some(method) if is_mtp(method) => Some("mtp"),
        _ => None,
    };
    if draft.is_none() && !text("method").is_some_and(without) {
        return vec![];
    }
    let count = config.get("num_speculative_tokens").and_then(Value::as_u64);
    let count = count.into_iter().flat_map(|count| ["--speculate".to_owned(), count.to_string()]);
    let draft = draft.into_iter().flat_map(|draft| ["--draft".to_owned(), draft.to_owned()]);
    draft.chain(count).collect()
}

/// Why an artifact does not run without guesses: each step of its model makes rows for an EAGLE-3
/// head, with weights of the head's checkpoint.
pub fn alone(artifact: &Held) -> Option<String> {
    let has_head = artifact.guesses.draft == Some(Drafts::Eagle3);
    has_head.then(|| "an EAGLE-3 head, which wants its checkpoint; without guesses take one without".to_owned())
}

/// Ways to guess that need the model alone.
const WITHOUT_DRAFT: [&str; 3] = ["ngram", "[ngram]", "suffix"];

/// Why an artifact does not serve a way to guess.
fn guessing(method: &str, artifact: &Held) -> Option<String> {
    if WITHOUT_DRAFT.contains(&method) {
        return alone(artifact);
    }
    match drafting(artifact) {
        Err(fault) => Some(fault),
        Ok(Drafts::Mtp) => (!is_mtp(method)).then(|| format!("a draft for `mtp`, not `{method}`")),
        Ok(Drafts::Eagle3) => (method != "eagle3").then(|| format!("a draft for `eagle3`, not `{method}`")),
    }
}

/// The artifact's draft, or the reason why it has none.
fn drafting(artifact: &Held) -> Result<Drafts, String> {
    let draft = artifact.guesses.draft.ok_or("no draft: `atomc compile --draft` gives it one")?;
    if artifact.own { Ok(draft) } else { Err("no draft where the framework's layer attends".to_owned()) }
}

fn is_mtp(method: &str) -> bool {
    method == "mtp" || method.ends_with("_mtp")
}

fn most(count: usize, held: Guesses) -> Option<String> {
    let more = || format!("steps of at most {} guesses; `atomc compile --speculate {count}` makes such", held.most);
    (count > held.most).then(more)
}

/// SGLang's names of the algorithms that a draft of the kind serves; SGLang itself turns them into
/// the first one.
const fn algorithms(draft: Drafts) -> &'static [&'static str] {
    match draft {
        Drafts::Mtp => &["EAGLE", "NEXTN"],
        Drafts::Eagle3 => &["EAGLE3"],
    }
}

/// Guesses of a step if SGLang's options give no number.
const STEPS: usize = 3;

/// SGLang's algorithm for guesses, if options name one.
fn algorithm(options: &Map<String, Value>) -> Option<&str> {
    options.get("speculative_algorithm").and_then(Value::as_str).filter(|name| !name.is_empty())
}

/// Guesses of a step of SGLang's.
fn steps(options: &Map<String, Value>) -> usize {
    options.get("speculative_num_steps").and_then(Value::as_u64).map_or(STEPS, |steps| steps as usize)
}

/// The artifact's property that an option of SGLang's about guesses does not fit, if there is one.
pub fn sglang(name: &str, value: &Value, asked: &Asked, artifact: &Held) -> Option<String> {
    let Some(wanted) = algorithm(asked.options) else {
        return (name == "speculative_algorithm").then(|| alone(artifact)).flatten();
    };
    let draft = match drafting(artifact) {
        Ok(draft) => draft,
        Err(fault) => return (name == "speculative_algorithm").then_some(fault),
    };
    match name {
        "speculative_algorithm" => {
            let known = algorithms(draft);
            let serves = known.iter().any(|name| name.eq_ignore_ascii_case(wanted));
            if !serves { Some(format!("a draft for {}", known.join(" or "))) } else { attending(asked, artifact) }
        }
        "speculative_num_steps" => most(steps(asked.options), artifact.guesses),
        // The rows that layers leave for a head are in the place of hidden ones.
        "enable_return_hidden_states" | "return_hidden_states_mode" => {
            let on = !(value.is_null() || value == false) && draft == Drafts::Eagle3;
            on.then(|| "rows for its head alone".to_owned())
        }
        "speculative_draft_model_path" => {
            let model = asked.options.get("model_path");
            let other = draft == Drafts::Mtp && !value.is_null() && model.is_some_and(|model| model != value);
            other.then(|| "a draft of the model's own checkpoint".to_owned())
        }
        other => unreachable!("{other} has no rule"),
    }
}

/// Why a model with recurrent states does not guess: SGLang tells the backend for attention which
/// guesses it has accepted, and each backend goes back in its own way.
fn attending(asked: &Asked, artifact: &Held) -> Option<String> {
    let own = asked.options.get("attention_backend").is_some_and(|backend| backend == "atomc");
    let fault = || "recurrent states, which go back behind wrong guesses with `--attention-backend atomc`".to_owned();
    (artifact.slots && !own).then(fault)
}

/// Positions after the longest sequence at which SGLang's steps verify guesses: it runs one step
/// more than it needs.
pub fn room(options: &Map<String, Value>) -> usize {
    algorithm(options).map_or(0, |_| 2 * (steps(options) + 1))
}

/// The options of `atomc compile` that make the draft that SGLang asks for.
pub fn sglang_options(options: &Map<String, Value>) -> Vec<String> {
    let is = |draft| algorithm(options).is_some_and(|wanted| algorithms(draft).contains(&&*wanted.to_uppercase()));
    let head = options.get("speculative_draft_model_path").and_then(Value::as_str);
    let draft = if is(Drafts::Mtp) { Some("mtp") } else { head.filter(|_| is(Drafts::Eagle3)) };
    let Some(draft) = draft else { return vec![] };
    ["--draft", draft, "--speculate", &steps(options).to_string()].map(str::to_owned).to_vec()
}
