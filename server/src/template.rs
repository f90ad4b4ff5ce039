//! Chat templates, as Hugging Face's folders have them: Jinja with a few functions more.
mod guard;
mod json;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use atomc_artifact::files;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, Value as Item, ValueKind};
use minijinja::{Environment, Error, ErrorKind, context};
use serde_json::{Map, Value};

/// Why a conversation cannot be made a prompt.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "a message says what its variant means, and shows the fields")]
pub enum TemplateError {
    #[error("the model has no chat template: there is none in tokenizer_config.json, and no chat_template.jinja")]
    None,
    #[error("{file}: {why}")]
    File { file: String, why: String },
    #[error("the chat template refuses this: {0}")]
    Raised(String),
    #[error("the chat template: {0}")]
    Jinja(String),
}

/// A conversation.
#[derive(Clone, Debug, Default)]
pub struct Conversation {
    /// Its messages.
    pub messages: Vec<Value>,
    /// The tools that the model may call.
    pub tools: Vec<Value>,
    /// Whether the prompt ends with the beginning of an answer.
    pub generate: bool,
    /// Further names for the template.
    pub more: Map<String, Value>,
}

/// The templates of a model.
pub struct Templates {
    environment: Environment<'static>,
    /// Special tokens by the names that templates have for them.
    special: Map<String, Value>,
    /// Whether the last conversation took long.
    is_slow: AtomicBool,
}

const DEFAULT: &str = "default";
/// The template for conversations with tools, if there is one of its own.
const TOOLS: &str = "tool_use";

impl Templates {
    /// The templates in the folder of a model.
    pub fn open(folder: &Path) -> Result<Templates, TemplateError> {
        let config = read(folder, "tokenizer_config.json")?;
        let config: Value = match &config {
            Some(text) => serde_json::from_str(text).map_err(|e| fault("tokenizer_config.json", e))?,
            None => Value::Null,
        };
        let file = read(folder, "chat_template.jinja")?;
        Templates::new(file, &config)
    }

    /// A template, or those in a `tokenizer_config.json`.
    pub fn new(file: Option<String>, config: &Value) -> Result<Templates, TemplateError> {
        let mut environment = environment();
        let named = match (file, &config["chat_template"]) {
            (Some(file), _) => vec![(DEFAULT.to_owned(), file)],
            (None, Value::String(text)) => vec![(DEFAULT.to_owned(), text.clone())],
            (None, Value::Array(all)) => all.iter().filter_map(named).collect(),
            (None, _) => vec![],
        };
        for (name, text) in named {
            let text = guard::guarded(&plain(&text)).map_err(|why| fault("chat_template", why))?;
            let add = || environment.add_template_owned(name, text).map_err(|error| error.to_string());
            guard::apart(add).and_then(|added| added).map_err(|why| fault("chat_template", why))?;
        }
        let names = ["bos_token", "eos_token", "unk_token", "pad_token"];
        let token = |name: &str| {
            let token = &config[name];
            Some((name.to_owned(), token.as_str().or(token["content"].as_str())?.into()))
        };
        let special = names.iter().filter_map(|name| token(name)).collect();
        Ok(Templates { environment, special, is_slow: AtomicBool::new(false) })
    }

    /// The prompt that a conversation is.
    pub fn render(&self, talk: &Conversation) -> Result<String, TemplateError> {
        let with_tools = (!talk.tools.is_empty()).then_some(TOOLS);
        let found = with_tools.into_iter().chain([DEFAULT]).find_map(|name| self.environment.get_template(name).ok());
        let template = found.ok_or(TemplateError::None)?;
        // Templates test whether there are tools: none is no list.
        let tools = (!talk.tools.is_empty()).then_some(&talk.tools);
        let given = context! {
            messages => Item::from(Serde(&talk.messages)),
            tools => Item::from(Serde(tools)),
            add_generation_prompt => talk.generate,
        };
        let (more, special) = (Item::from(Serde(&talk.more)), Item::from(Serde(&self.special)));
        let all = context! { ..more, ..given, ..special };
        let began = Instant::now();
        let rendered = guard::apart(move || template.render(all).map_err(refused)).map_err(TemplateError::Jinja);
        self.is_slow.store(began.elapsed() > SLOW, Relaxed);
        rendered?
    }

    /// Whether conversations take long: a server then reads one of them at once.
    pub fn is_slow(&self) -> bool {
        self.is_slow.load(Relaxed)
    }
}

/// The error that a template raised, or the template's own fault.
fn refused(error: Error) -> TemplateError {
    match (error.kind(), error.detail().and_then(|detail| detail.strip_prefix(RAISED))) {
        (ErrorKind::InvalidOperation, Some(raised)) => TemplateError::Raised(raised.to_owned()),
        (ErrorKind::OutOfFuel, _) => TemplateError::Jinja(format!("takes more than {FUEL} steps")),
        _ => TemplateError::Jinja(error.to_string()),
    }
}

fn fault(file: &str, why: impl std::fmt::Display) -> TemplateError {
    TemplateError::File { file: file.to_owned(), why: why.to_string() }
}

fn read(folder: &Path, name: &str) -> Result<Option<String>, TemplateError> {
    match files::read_to_string(&folder.join(name)) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(fault(name, error)),
    }
}

/// A template of a list of them.
fn named(entry: &Value) -> Option<(String, String)> {
    Some((entry["name"].as_str()?.to_owned(), entry["template"].as_str()?.to_owned()))
}

/// A template without the tags that mark a model's training text, which mean nothing here.
fn plain(text: &str) -> String {
    let mut rest = text;
    let mut made = String::with_capacity(text.len());
    while let Some(start) = rest.find("{%") {
        let Some(end) = rest[start..].find("%}").map(|end| start + end + 2) else { break };
        let tag = rest[start + 2..end - 2].trim_matches('-').trim();
        let is_mark = tag == "generation" || tag == "endgeneration";
        made.push_str(&rest[..start]);
        // A comment in its place: blanks around it go as they would.
        let (left, right) = (mark(&rest[start + 2..]), mark_before(&rest[..end - 2]));
        match is_mark {
            true => made.push_str(&format!("{{#{left} {right}#}}")),
            false => made.push_str(&rest[start..end]),
        }
        rest = &rest[end..];
    }
    made.push_str(rest);
    made
}

fn mark(text: &str) -> &'static str {
    if text.starts_with('-') { "-" } else { "" }
}

fn mark_before(text: &str) -> &'static str {
    if text.ends_with('-') { "-" } else { "" }
}

/// Time from which on a conversation takes long.
const SLOW: Duration = Duration::from_millis(50);
/// The prefix of an error's detail if a template has raised it.
const RAISED: &str = "raised: ";
/// Steps of a template, for one that never ends. Of the texts that it makes 64 bytes are a step, so
/// all of them have at most 192 MB.
const FUEL: u64 = 3_000_000;

/// Jinja as transformers sets it up.
fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.expect("no marks are changed"));
    environment.set_fuel(Some(FUEL));
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_filter("tojson", json::tojson);
    environment.add_filter(guard::PLAIN, guard::plain);
    environment.add_function("raise_exception", raise);
    environment.add_function("strftime_now", strftime_now);
    environment
}

fn raise(message: String) -> Result<String, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, format!("{RAISED}{message}")))
}

/// The time as C's `strftime` writes it, here.
fn strftime_now(format: String) -> Result<String, Error> {
    let wrong = |why: &'static str| Error::new(ErrorKind::InvalidOperation, why);
    let text = std::ffi::CString::new(format).map_err(|_| wrong("strftime_now: a format has no zero byte"))?;
    let mut out = vec![0_u8; 1024];
    // SAFETY: the time is written to a place of its type and read from there; the format ends with
    // a zero byte; no more is written than there is room for.
    let written = unsafe {
        let now = libc::time(std::ptr::null_mut());
        let mut parts: libc::tm = std::mem::zeroed();
        libc::localtime_r(&now, &mut parts);
        libc::strftime(out.as_mut_ptr().cast(), out.len(), text.as_ptr(), &parts)
    };
    out.truncate(written);
    String::from_utf8(out).map_err(|_| wrong("strftime_now: the system's text is not UTF-8"))
}

/// Options of a filter, which Python's function has under the same names.
fn option<T: TryFrom<Item>>(options: &Kwargs, name: &str, or: T) -> Result<T, Error> {
    match options.get::<Option<Item>>(name)? {
        Some(item) if item.kind() != ValueKind::None => {
            T::try_from(item).map_err(|_| Error::new(ErrorKind::InvalidOperation, format!("tojson: {name} is odd")))
        }
        _ => Ok(or),
    }
}

#[cfg(test)]
mod tests;
