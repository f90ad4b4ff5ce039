//! The states that a model keeps between steps, as its graph has them: each input that is a cache,
//! or slots, is a state. The number at the end of its name, `kv3`, is its layer. States of one type
//! form a group if their tokens see equally many keys; so do slots of one size.
use std::collections::HashMap;

use atomc_artifact::manifest::{Extent, PageStream, Paged, Slots, State, StateGroup, StreamLayout};
use atomc_ir::layout::CacheLayout;
use atomc_ir::{Arch, CacheType, Diagnostic, Graph, Op, Type, Value};

/// The states of a graph, by number, and their groups.
#[derive(Debug, Default)]
pub struct States {
    names: Vec<String>,
    pub list: Vec<State>,
    groups: Vec<Group>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Group {
    Paged {
        ty: CacheType,
        /// Keys that a token sees, 0 for all.
        window: usize,
        /// Tokens that have an entry together.
        every: usize,
    },
    Slots(Slots),
}

impl States {
    /// The states of graphs before the passes, in the order of their inputs.
    pub fn of<'a>(graphs: impl IntoIterator<Item = &'a Graph>) -> Result<States, Diagnostic> {
        let mut states = States::default();
        graphs.into_iter().try_for_each(|graph| states.add(graph))?;
        Ok(states)
    }

    fn add(&mut self, graph: &Graph) -> Result<(), Diagnostic> {
        for (v, name) in inputs(graph) {
            let group = match graph.ty(v) {
                Type::Cache(ty) => {
                    let (window, every) = reach(graph, v, name)?;
                    Group::Paged { ty: *ty, window, every }
                }
                Type::Slots(ty) => Group::Slots(Slots { bytes: ty.bytes(), each: ty.each }),
                Type::Tensor(_) | Type::Batch => continue,
            };
            let found = self.groups.iter().position(|other| *other == group);
            let group = found.unwrap_or_else(|| {
                self.groups.push(group);
                self.groups.len() - 1
            });
            self.list.push(State { layer: layer(name)?, group });
            self.names.push(name.to_owned());
        }
        Ok(())
    }

    /// The number of each input of a graph that is a state.
    pub fn inputs(&self, graph: &Graph) -> HashMap<Value, usize> {
        let number = |name: &str| self.names.iter().position(|other| other == name);
        inputs(graph).filter_map(|(v, name)| Some((v, number(name)?))).collect()
    }

    /// The groups, as an arch lays them out.
    pub fn groups(&self, arch: &Arch) -> Vec<StateGroup> {
        let group = |group: &Group| match *group {
            Group::Paged { ty, window, every } => StateGroup::Paged(paged(ty, (window, every), arch)),
            Group::Slots(slots) => StateGroup::Slots(slots),
        };
        self.groups.iter().map(group).collect()
    }
}

/// The states among the inputs.
fn inputs(graph: &Graph) -> impl Iterator<Item = (Value, &str)> {
    graph.inputs().into_iter().filter_map(|v| match graph.op(v.node) {
        Op::Input { name } if graph.ty(v).is_state() => Some((v, name.as_str())),
        _ => None,
    })
}

/// The number that ends the name of a state.
fn layer(name: &str) -> Result<usize, Diagnostic> {
    name.trim_start_matches(|c: char| !c.is_ascii_digit()).parse().map_err(|_| {
        Diagnostic::new("driver::state", format!("the state `%{name}` does not say of which layer it is"))
            .help("A state is named by its kind and its layer: `kv3`.")
    })
}

/// The keys that any attention over a state sees, 0 for all, and the tokens that have an entry
/// together.
fn reach(graph: &Graph, state: Value, name: &str) -> Result<(usize, usize), Diagnostic> {
    let (mut windows, mut every, mut rest) = (vec![], 1, vec![state]);
    while let Some(v) = rest.pop() {
        for (user, slot) in graph.users(v) {
            match *graph.op(user) {
                Op::Attention { window, .. } | Op::AttendUpTo { window, .. } | Op::AttendPart { window, .. } => {
                    windows.push(window);
                }
                Op::AttendListed { .. } => windows.push(0),
                Op::Choose { .. } | Op::ChooseBlocks { .. } => windows.push(0),
                // A row of two blocks is made by the last token of the second one.
                Op::Pool { every, overlap } => windows.push(if overlap { 2 * every } else { every }),
                Op::KvWrite {} | Op::KeyWrite { .. } if slot == 0 => rest.push(user.into()),
                _ => {}
            }
            if let Op::KeyWrite { every: Some(tokens), .. } = *graph.op(user) {
                every = tokens;
            }
        }
    }
    let widest = if windows.contains(&0) { Some(0) } else { windows.into_iter().max() };
    let read = widest.map(|widest| (widest, every));
    read.ok_or_else(|| Diagnostic::new("driver::state", format!("no attention reads the state `%{name}`")))
}

/// Pages of K, then V, which may be a part of K.
fn paged(ty: CacheType, (window, every): (usize, usize), arch: &Arch) -> Paged {
    let layout = CacheLayout::of(ty, &arch.memory);
    let stream = |name: &str, (start, head): (usize, usize), width, layout| PageStream {
        name: name.into(),
        at: Extent { start, bytes: ty.heads * head },
        dtype: ty.dtype,
        heads: ty.heads,
        width,
        layout,
    };
    let k = stream("k", (0, layout.head_bytes), ty.head_dim, StreamLayout::Tokens);
    let of_values = if ty.is_prefix { StreamLayout::Prefix { of: 0 } } else { StreamLayout::Numbers };
    let v = stream("v", (layout.v_offset, layout.value_bytes), ty.value_dim, of_values);
    Paged { block_bytes: layout.block_bytes, streams: vec![k, v], window, every }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A layer of attention over each state; the second is written, and read with two windows.
    const TEXT: &str =
        "graph @step(%q: bf16[T, 2, 32], %k: bf16[T, 1, 32], %batch: batch, %kv0: cache<bf16, 1, 32>, %kv1: \
                        cache<bf16, 1, 32>, %kv2: cache<bf16, 1, 32>, %kv3: cache<f8e4m3, 1, 32>) {
  %0 = attention %q, %kv0, %batch {scale = 0.5, window = 0} : bf16[T, 2, 32]
  %1 = kv_write %kv1, %k, %k, %batch : cache<bf16, 1, 32>
  %2 = attention %q, %1, %batch {scale = 0.5, window = 3} : bf16[T, 2, 32]
  %3 = attention %q, %1, %batch {scale = 0.5, window = 8} : bf16[T, 2, 32]
  %4 = attention %q, %kv2, %batch {scale = 0.5, window = 0} : bf16[T, 2, 32]
  %5 = attention %q, %kv3, %batch {scale = 0.5, window = 0} : bf16[T, 2, 32]
  return %0, %2, %3, %4, %5
}
";

    fn states(text: &str) -> Result<States, Diagnostic> {
        let graph = atomc_ir::parse(text).expect("a graph");
        graph.verify().expect("a sound graph");
        States::of([&graph])
    }

    #[test]
    fn states_that_are_alike_are_a_group() {
        let states = states(TEXT).unwrap();
        let found: Vec<(usize, usize)> = states.list.iter().map(|state| (state.layer, state.group)).collect();
        assert_eq!(found, [(0, 0), (1, 1), (2, 0), (3, 2)]);
        let window = |group: &Group| if let Group::Paged { window, .. } = group { *window } else { usize::MAX };
        assert_eq!(states.groups.iter().map(window).collect::<Vec<_>>(), [0, 8, 0]);
    }

    /// What tokens give to rows lies in pages with a window of two blocks, and a page of rows has
    /// one for each block.
    #[test]
    fn rows_of_blocks_are_groups_of_their_own() {
        let text =
            "graph @step(%q: f32[T, 2, 32], %k: f32[T, 1, 64], %bias: f32[4, 64], %r: f32[T, 1, 32], %batch: batch, \
                    %parts0: cache<f32, 1, 64>, %rows0: cache<f32, 1, 32, prefix 32>) {
  %0 = kv_write %parts0, %k, %k, %batch : cache<f32, 1, 64>
  %1 = pool %0, %bias, %batch {every = 4, overlap = true} : f32[T, 32]
  %2 = key_write %rows0, %r, %batch {values = 32, every = 4} : cache<f32, 1, 32, prefix 32>
  %3, %4 = attend_part %q, %2, %batch {scale = 0.5, window = 0, every = 4} : f32[T, 2, 32], f32[T, 4]
  return %1, %3, %4, %0, %2
}
";
        let states = states(text).unwrap();
        let of =
            |group: &Group| if let Group::Paged { window, every, .. } = group { [*window, *every] } else { [0; 2] };
        assert_eq!(states.groups.iter().map(of).collect::<Vec<_>>(), [[8, 1], [0, 4]]);
    }

    #[test]
    fn states_that_cannot_be() {
        let fault = |from: &str, to: &str| states(&TEXT.replace(from, to)).unwrap_err().to_string();
        assert_eq!(fault("%kv2", "%kept"), "the state `%kept` does not say of which layer it is");
        assert_eq!(fault("attention %q, %kv2", "attention %q, %kv0"), "no attention reads the state `%kv2`");
    }
}
