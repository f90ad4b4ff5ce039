//! The graph of a draft's step. A row of the target, or one that the draft has made itself, is
//! combined with the embedding of the next token into one row, which goes through the draft's
//! layers.
//!
//! Ranks share its layers out as they do the target's; each makes everything before them in full.
use atomc_config::draft::{Beside, Eagle3};
use atomc_config::{Draft, Fusion, Head};
use atomc_ir::results::{DRAFTED, HIDDEN, LOGITS};
use atomc_ir::{Builder, DType, Diagnostic, Dim, Graph, Op, Shape, Type, Value};

use super::layer::{Carried, LayerBuilder, Made, Tokens, norm};
use super::model::{Around, caches, growth, head, index, picked_tokens, ropes, through};
use super::product::Factor;
use super::{Config, Part};

/// One step of the draft of a target, over T tokens, with logits for R of them.
///
/// Inputs: `ids`, `positions`, `lengths`, `rows`, `sources`, the row of `drafted` that each token
/// takes, `drafted`, `batch`, then the states of each layer, numbered after those of the target.
/// Results: `logits` over the draft's vocabulary, the states, `picks`, unless ranks share the model
/// out, then `hidden`, the rows that a next step goes on from, of all tokens, and `drafted`, those
/// of the R tokens.
pub fn graph(config: &Config, draft: &Draft, part: Part) -> Result<Graph, Diagnostic> {
    let model = &draft.model;
    let (own, first) = (part.of(model)?, config.layers.len());
    let mut b = Builder::new(model.architecture);
    let [ids, positions, lengths] = ["ids", "positions", "lengths"].map(|name| index(&mut b, name, Dim::Tokens));
    let (rows, sources) = (index(&mut b, "rows", Dim::Rows), index(&mut b, "sources", Dim::Tokens));
    let shape = Shape(vec![Dim::Tokens, Dim::Fixed(config.hidden)]);
    let drafted = b.input(DRAFTED, Type::tensor(config.dtype, shape));
    let batch = b.input("batch", Type::Batch);
    let caches = caches(&mut b, &own, part.attention, (first, 1));

    let hidden = b.at(DRAFTED).gather(drafted, sources)?;
    let module = draft.embedding.trim_end_matches(".weight");
    let embedding = b.at(module).weight(&draft.embedding, config.dtype, &[config.vocab, config.hidden]);
    let embedded = b.gather(embedding, ids)?;
    let ropes = ropes(&mut b, model, (positions, lengths), None)?;
    let growth = growth(&mut b, model, positions)?;

    let (mut x, mut states) = (hidden, vec![]);
    for (number, layer) in model.layers.iter().enumerate() {
        let path = model.layer_path(number);
        let index = first + number;
        let mut builder =
            LayerBuilder { b: &mut b, config: model, part, index, path, carried: &mut Carried::default() };
        let entering = match &draft.fusion {
            Fusion::Eagle3(eagle) if number == 0 => beside(&mut builder, eagle, embedded, hidden)?,
            Fusion::Mtp(fusion) if number == 0 => (fused(builder.b, model, fusion, [embedded, hidden])?, None),
            _ => (x, None),
        };
        let tokens = Tokens { ids, positions, lengths };
        let given = Around { states: &caches[number], ropes: &ropes, growth, own_rows: None, batch, tokens };
        let (out, made) = through(&mut builder, layer, entering, given)?;
        states.extend(made);
        x = out;
    }

    // Some EAGLE-3 heads continue with rows that are not normed.
    let left_raw = matches!(&draft.fusion, Fusion::Eagle3(eagle) if !eagle.norm_output);
    let left = if left_raw { x } else { norm(&mut b, model, x, &draft.norm, model.hidden)? };
    let picked = b.at(&draft.norm).gather(left, rows)?;
    let normed = if left_raw { norm(&mut b, model, picked, &draft.norm, model.hidden)? } else { picked };
    let logits = match draft.head {
        Head::Embedding => b.at(module).linear(normed, embedding, DType::F32)?,
        Head::Target(module) => head(&mut b, config, part, normed, module)?,
        Head::Own(module) => head(&mut b, model, part, normed, module)?,
    };
    let logits = b.scale(logits, model.scales.logits)?;
    let mut results = vec![(LOGITS.to_string(), logits)];
    results.extend(states);
    let vocab = if let Head::Own(_) = draft.head { model.vocab } else { config.vocab };
    results.extend(picked_tokens(&mut b, logits, vocab)?);
    results.extend([(HIDDEN.to_string(), left), (DRAFTED.to_string(), picked)]);
    b.finish(results)
}

/// The projection of the embedding and the row, both normed.
fn fused(b: &mut Builder, model: &Config, fusion: &Beside, [embedded, hidden]: [Value; 2]) -> Made {
    let embedded = norm(b, model, embedded, &fusion.embedding_norm, model.hidden)?;
    let hidden = norm(b, model, hidden, &fusion.hidden_norm, model.hidden)?;
    b.at(&fusion.projection);
    let both = b.push(Op::Beside {}, &[embedded, hidden])?;
    let weight = Factor::read(b, model, &fusion.projection, [model.hidden, 2 * model.hidden])?;
    weight.multiply(b, both, model.dtype)
}

/// What goes through the layer, and what its attention sees: the embedding and the row, both
/// normed.
fn beside(
    builder: &mut LayerBuilder,
    eagle: &Eagle3,
    embedded: Value,
    hidden: Value,
) -> Result<(Value, Option<Value>), Diagnostic> {
    let width = builder.config.hidden;
    let embedded = builder.norm(embedded, eagle.embedding_norm, width)?;
    let normed = builder.norm(hidden, eagle.hidden_norm, width)?;
    builder.b.at(&builder.path);
    let both = builder.b.push(Op::Beside {}, &[embedded, normed])?;
    Ok((if eagle.norm_before_residual { normed } else { hidden }, Some(both)))
}

/// The projection of rows of a target's layers to one.
pub fn projected(b: &mut Builder, model: &Config, eagle: &Eagle3, rows: &[Value]) -> Made {
    let (count, width) = (rows.len(), model.hidden);
    let mut rows = rows.to_vec();
    for (row, path) in rows.iter_mut().zip(eagle.layer_norms.iter().flatten()) {
        *row = norm(b, model, *row, path, width)?;
    }
    b.at(&eagle.projection);
    let mut x = rows[0];
    for &row in &rows[1..] {
        x = b.push(Op::Beside {}, &[x, row])?;
    }
    if let Some(path) = &eagle.all_norm {
        x = norm(b, model, x, path, count * width)?;
    }
    let weight = Factor::read(b, model, &eagle.projection, [width, count * width])?;
    weight.multiply(b, x, model.dtype)
}
