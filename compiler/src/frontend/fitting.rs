//! Which weights a scheme of `--quant` for all products leaves as they are, and why.
//!
//! A scheme that a rule gives to modules by name is followed, or refused with the same reason.
use std::collections::BTreeMap;
use std::fmt;

use atomc_config::{Blocks, Quantisation, Scheme, Stored, starred};
use atomc_ir::{Diagnostic, Graph, Op, Value, nth_name};

use super::{Config, embedding};

/// How a product takes the weight of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// As the file has it: rows of outputs.
    Rows,
    /// A matrix for each head.
    Heads,
    /// Columns of all experts.
    Columns,
}

/// Why a weight stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unfit {
    Heads,
    Columns,
    /// Columns of a group, and of the weight.
    Groups(usize, usize),
    /// No scheme is for it.
    Plain,
    /// The family's releases have floats.
    Release,
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unfit::Heads => f.write_str("multiplied head by head, for which no codes are made"),
            Unfit::Columns => f.write_str("stored as columns, of which no codes are made"),
            Unfit::Groups(group, cols) => write!(f, "groups of {group} columns do not divide rows of {cols}"),
            Unfit::Plain => f.write_str("no scheme is for routers, gates and weights of streams"),
            Unfit::Release => f.write_str("floats in releases of the family; a rule may name it"),
        }
    }
}

/// What codes that are made while loading do not fit in a weight with rows of so many columns.
fn unfit(scheme: &Scheme, taken: Taken, cols: usize) -> Option<Unfit> {
    match (taken, scheme.blocks) {
        (Taken::Heads, _) => Some(Unfit::Heads),
        (Taken::Columns, _) => Some(Unfit::Columns),
        (Taken::Rows, Blocks::Group(group)) if !cols.is_multiple_of(group) => Some(Unfit::Groups(group, cols)),
        (Taken::Rows, _) => None,
    }
}

/// The scheme of a module's weight, if it has one that fits. The path has the number of an expert.
pub fn scheme<'a>(config: &'a Config, path: &str, taken: Taken, cols: usize) -> Result<Option<&'a Scheme>, Diagnostic> {
    let Some(scheme) = config.scheme(path) else { return Ok(None) };
    // Matrices of heads, and columns, are no rows of codes: the file has their floats, too.
    if matches!(scheme.stored, Stored::Typed { .. }) && taken != Taken::Rows {
        return Ok(None);
    }
    let why = if scheme.stored == Stored::Floats { unfit(scheme, taken, cols) } else { None };
    match why {
        None => Ok(Some(scheme)),
        Some(_) if !config.names(path) => Ok(None),
        Some(why) => {
            let fault = Diagnostic::new("config::quant", why.to_string()).at(path);
            Err(fault.help(format!("--quant {}=none leaves it as it is.", starred(path))))
        }
    }
}

/// What a scheme for all products left of a model's as it is: modules with stars in place of
/// numbers, and why.
pub fn left(config: &Config, graph: &Graph) -> BTreeMap<String, Unfit> {
    let mut left = BTreeMap::new();
    if !config.quantised.as_ref().is_some_and(Quantisation::has_rest) {
        return left;
    }
    for id in graph.ids() {
        let taken = match graph.op(id) {
            Op::Linear { .. } | Op::Grouped { .. } => Taken::Rows,
            Op::PerHead { .. } => Taken::Heads,
            _ => continue,
        };
        if let Some((module, why)) = left_of(config, graph, graph.operands(id)[1], taken) {
            left.insert(starred(&module), why);
        }
    }
    left
}

/// The module whose floats a product multiplies, and why, unless nothing asks for its codes.
fn left_of(config: &Config, graph: &Graph, mut v: Value, mut taken: Taken) -> Option<(String, Unfit)> {
    loop {
        let name = match graph.op(v.node) {
            Op::Weight { name } => name.clone(),
            Op::Weights { name, .. } => nth_name(name, 0),
            Op::Encode { .. } => return None,
            Op::Transpose {} if taken == Taken::Rows => {
                taken = Taken::Columns;
                v = graph.operands(v.node)[0];
                continue;
            }
            _ => {
                v = *graph.operands(v.node).first()?;
                continue;
            }
        };
        if name == embedding(config) {
            return None;
        }
        let module = name.rsplit_once('.').map_or(name.as_str(), |(module, _)| module);
        let cols = graph.ty(v).as_tensor().and_then(|t| t.shape.last())?;
        let why = match config.scheme(module) {
            Some(scheme) => unfit(scheme, taken, cols).unwrap_or(Unfit::Plain),
            None if config.floats.iter().any(|end| module.ends_with(end)) && !config.names(module) => Unfit::Release,
            None => return None,
        };
        // What is no module's weight goes by its own name.
        let is_module = name.ends_with(".weight") || why == Unfit::Columns;
        let shown = if is_module { module } else { &name };
        return Some((shown.to_owned(), why));
    }
}
