//! Answers a prompt through the crate `atomc-runtime`: `bash examples/07-from-rust.sh`.
use std::error::Error;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::Path;

use atomc_runtime::{Checkpoint, Engine, EngineOptions, Params, generate};
use tokenizers::Tokenizer;

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let [artifact, folder, question] = std::env::args()
        .skip(1)
        .collect::<Vec<_>>()
        .try_into()
        .map_err(|_| "usage: from-rust ARTIFACT FOLDER PROMPT")?;
    let tokenizer = Tokenizer::from_file(Path::new(&folder).join("tokenizer.json"))?;

    let mut engine = Engine::open(&artifact, &EngineOptions::default())?;
    engine.load_weights(&Checkpoint::open(&folder)?, &|_done, _total| ())?;

    let prompt = tokenizer.encode(question, true)?;
    let params = Params::for_model(engine.model(), 64);
    let (mut stream, mut written) = (tokenizer.decode_stream(true), Ok(()));
    let answer = generate::generate(&mut engine, prompt.get_ids(), &params, |token| {
        let text = stream.step(token).ok().flatten().unwrap_or_default();
        written = write!(std::io::stdout(), "{text}").and_then(|()| std::io::stdout().flush());
        if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    written?;
    println!("\n{} tokens, {:?}, on {}", answer.tokens.len(), answer.finish, engine.device_name());
    Ok(())
}
