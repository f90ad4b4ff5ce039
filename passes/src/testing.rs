//! Tools of the passes' tests: a checker that compares meanings, a small dense model, random
//! graphs.
mod compare;
mod model;
mod random;

use atomc_ir::arch::{Cpu, Dot, Known, Machine, Memory, Renormed, Requantised, Vector};
use atomc_ir::{Arch, Graph, parse};

use crate::bucket::Bucket;
use crate::pass::{Cx, Pass};
use crate::pipeline::PASSES;
pub use compare::same_meaning;
pub use model::Dense;
pub use random::graphs;

pub const ARCH: Arch = Arch {
    name: "test",
    target: "test",
    source: "made up",
    triple: "",
    cpu: "",
    attributes: "",
    features: &[],
    machine: Machine::Cpu(Cpu { vector: Vector { lanes: 16, registers: 32 }, dot: Dot::Pairs }),
    sibling: None,
    executed: true,
    memory: Memory { row: 32, alias: 1024, rows: 1, panel: 4, group_bytes: 64, block_tokens: 16, align: 64 },
    requantised: Known::counted(Requantised { one: 48 << 10, several: 48 << 10, results: false }),
    normed: Known::counted(Renormed::ALL),
};

pub const DECODE: Cx = Cx { arch: &ARCH, bucket: Bucket::Decode { tokens: 1 }, invariant: false };
pub const WHOLE: Cx = Cx { bucket: Bucket::Whole { tokens: 512, rows: 64 }, ..DECODE };
pub const ANY: Cx = Cx { bucket: Bucket::Any { tokens: 512, rows: 64 }, ..DECODE };

/// The graph of a text, after the text's law was checked on it.
pub fn read(text: &str) -> Graph {
    let graph = parse(text).unwrap_or_else(|e| panic!("{e} in\n{text}"));
    graph.verify().unwrap_or_else(|e| panic!("{e}"));
    round_trip(&graph);
    graph
}

fn round_trip(graph: &Graph) {
    let once = graph.print();
    assert_eq!(parse(&once).unwrap_or_else(|e| panic!("{e} in\n{once}")).print(), once);
}

/// The text that a pass makes of a text, after checks that it is legal and means the same.
pub fn check(pass: &str, text: &str) -> String {
    check_in(&DECODE, pass, text)
}

pub fn check_in(cx: &Cx, pass: &str, text: &str) -> String {
    let before = read(text);
    let mut after = before.clone();
    let pass = PASSES.iter().find(|p| p.name == pass).expect("a pass of this name");
    apply(pass, &mut after, cx);
    same_meaning(&before, &after).unwrap_or_else(|e| panic!("{e}\n{}{}", before.print(), after.print()));
    after.print()
}

/// Runs a pass as the driver does, and checks the text's law on the result.
pub fn apply(pass: &Pass, graph: &mut Graph, cx: &Cx) {
    pass.apply(graph, cx).unwrap_or_else(|e| panic!("{}: {e}", pass.name));
    graph.verify_at(pass.stage).unwrap_or_else(|e| panic!("{}: {e}", pass.name));
    round_trip(graph);
}
