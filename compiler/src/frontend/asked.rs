//! Checks that the rules of `--quant` are about products of the model.
use std::collections::BTreeSet;

use atomc_config::Modules;
use atomc_ir::{Diagnostic, Graph, Op, Value, nth_name};

use super::{Config, embedding};

/// Refuses rules that nothing in the model's graph follows.
pub fn check(config: &Config, graph: &Graph) -> Result<(), Diagnostic> {
    let Some(rules) = config.quantised.as_ref().filter(|_| config.made.is_some()) else { return Ok(()) };
    let (mut quantised, mut products, mut all) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for id in graph.ids() {
        match graph.op(id) {
            Op::Linear { .. } | Op::PerHead { .. } | Op::Grouped { .. } => {
                add_modules(graph, graph.operands(id)[1], &mut products);
            }
            Op::Encode { .. } => add_modules(graph, id.into(), &mut quantised),
            Op::Weight { .. } | Op::Weights { .. } => add_modules(graph, id.into(), &mut all),
            _ => {}
        }
    }
    // Which a tied head multiplies with.
    products.remove(module(&embedding(config)));
    let spelled = |modules: BTreeSet<String>| modules.iter().map(|module| config.spelled(module)).collect::<Vec<_>>();
    let (quantised, products, all) = (spelled(quantised), spelled(products), spelled(all));
    rules.check_use(&Modules { quantised: &quantised, products: &products, all: &all })
}

/// Adds the modules of the tensors that a value is made of.
fn add_modules(graph: &Graph, v: Value, modules: &mut BTreeSet<String>) {
    let mut open = vec![v];
    while let Some(v) = open.pop() {
        match graph.op(v.node) {
            Op::Weight { name } => drop(modules.insert(module(name).to_owned())),
            // Rules that have one expert have all.
            Op::Weights { name, .. } => drop(modules.insert(module(&nth_name(name, 0)).to_owned())),
            _ => open.extend(graph.operands(v.node)),
        }
    }
}

fn module(tensor: &str) -> &str {
    tensor.rsplit_once('.').map_or(tensor, |(module, _)| module)
}
