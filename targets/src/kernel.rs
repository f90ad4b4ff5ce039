//! The beginning of every family's kernels: the parameters, found in the argument array.
use atomc_ir::{Diagnostic, Dim, Op, Shape, Type, Value};
use inkwell::values::FloatValue;

use crate::cache::{Batch, Cache};
use crate::code::{Code, Int, Ptr};
use crate::row::{At, Col, Operand, Rows, unsupported};
use crate::{KernelSpec, Tasks};

/// A kernel's body with its operands, results, cache and batch.
///
/// Arguments come in the order of the operands (a tensor one pointer, a cache its K and its V,
/// slots one, the batch one), then one pointer for each tensor result.
pub struct Kernel<'a, 'c> {
    pub code: &'a Code<'c>,
    pub rows: Rows<'a, 'c>,
    /// Tensor results in memory.
    pub outputs: Vec<(Value, Operand<'c>)>,
    /// Writes into caches that the body makes.
    pub caches: Vec<Cache<'c>>,
    /// The addresses of the slots of each state that has some.
    pub slots: Vec<(Value, Ptr<'c>)>,
    /// Which sequences the step's tokens are of, if the body reads that.
    pub batch: Option<Batch<'c>>,
    /// Whether the step's rows, not its tokens, lead the results.
    pub by_rows: bool,
    /// Rows of the results for each of them.
    pub choices: usize,
}

impl<'a, 'c> Kernel<'a, 'c> {
    /// The kernel of a body; `argument` gives each pointer by its number.
    pub fn new(
        code: &'a Code<'c>,
        spec: &KernelSpec<'a>,
        argument: impl Fn(usize) -> Ptr<'c>,
    ) -> Result<Kernel<'a, 'c>, Diagnostic> {
        let graph = spec.body;
        let mut rows = Rows::new(code, graph);
        let mut next = 0..;
        let mut pointer = || argument(next.next().expect("numbers do not end"));
        let (mut states, mut slots, mut batch) = (Vec::new(), Vec::new(), None);
        for v in graph.inputs() {
            match graph.ty(v) {
                Type::Tensor(t) => rows.set_memory(v, pointer(), t),
                Type::Cache(c) => states.push((v, *c, pointer(), pointer())),
                Type::Slots(_) => slots.push((v, pointer())),
                Type::Batch => batch = Some(Batch::load(code, pointer())),
            }
        }
        let mut outputs = Vec::new();
        for &v in graph.outputs() {
            if let Type::Tensor(t) = graph.ty(v) {
                let stride = code.arch.memory.result_stride(t);
                outputs.push((v, Operand { ptr: pointer(), ty: t.clone(), stride }));
            }
        }
        let by_rows = outputs.iter().any(|(_, o)| o.ty.shape.0[0] == Dim::Rows);
        let choices = outputs.first().map_or(1, |(_, o)| o.ty.choices());
        let caches = states
            .into_iter()
            .map(|(v, ty, k, vals): (Value, _, Ptr<'c>, Ptr<'c>)| Cache::new(code, graph, v, ty, (k, vals), batch))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Kernel { code, rows, outputs, caches, slots, batch, by_rows, choices })
    }

    /// `body` for each task, until one fails to emit.
    pub fn each(
        &self,
        first: Int<'c>,
        end: Int<'c>,
        body: impl FnOnce(Int<'c>) -> Result<(), Diagnostic>,
    ) -> Result<(), Diagnostic> {
        self.code.repeat(first, end, 1, body)
    }

    /// `times` tasks for each `per` rows of the results.
    pub fn row_tasks(&self, per: usize, times: usize) -> Tasks {
        match (self.by_rows, self.choices) {
            (true, _) => Tasks::Rows { per, times },
            (false, 1) => Tasks::Tokens { per, times },
            (false, choices) => Tasks::Choices { choices, per, times },
        }
    }

    /// The only result, for a family that has one.
    pub fn output(&self) -> Result<(Value, &Operand<'c>), Diagnostic> {
        match &self.outputs[..] {
            [(v, o)] => Ok((*v, o)),
            all => Err(unsupported(format!("{} results where the family makes one", all.len()))),
        }
    }

    /// The only node of a kind.
    pub fn the(&self, what: &str, is: impl Fn(&Op) -> bool) -> Result<Value, Diagnostic> {
        let graph = self.rows.graph;
        let found: Vec<Value> = graph.order().into_iter().filter(|&id| is(graph.op(id))).map(Value::from).collect();
        match found[..] {
            [v] => Ok(v),
            _ => Err(unsupported(format!("{} nodes `{what}` where the family wants one", found.len()))),
        }
    }
}

/// The attention of a body: what it attends with, and to which keys.
pub struct Attending<'k, 'c> {
    pub node: Value,
    pub query: Value,
    pub scale: f64,
    /// A number for each query head, if heads have sinks.
    pub sinks: Option<&'k Operand<'c>>,
    pub seen: Seen<'c>,
}

/// Which keys a token sees.
#[derive(Clone, Copy)]
pub struct Seen<'c> {
    /// The number of keys that a token sees, 0 for all.
    pub window: usize,
    /// Tokens of a row of the cache.
    pub every: usize,
    /// The positions that each token attends to, if not all up to its own.
    pub lists: Option<Lists<'c>>,
    /// Whether it is a part of attention.
    pub is_part: bool,
    /// How many positions of its sequence each token sees, if these are not those up to its own.
    pub ends: Option<Ptr<'c>>,
}

/// The highest score of no key, as the op has it.
const NO_KEY: f64 = -1e30;

/// The results of attention: its own, and of a part the highest scores and the sums.
#[derive(Clone, Copy)]
pub struct Results<'k, 'c> {
    pub out: &'k Operand<'c>,
    pub stats: Option<&'k Operand<'c>>,
}

/// Lists of the positions that tokens attend to.
#[derive(Clone, Copy)]
pub struct Lists<'c> {
    pub ptr: Ptr<'c>,
    /// Entries that a list has room for.
    pub most: usize,
    /// Positions of an entry, if entries are blocks, and how many lists a token has then: one for
    /// each head of the cache.
    block: Option<(usize, usize)>,
}

/// The positions that a token, or a head of the cache, attends to.
#[derive(Clone, Copy)]
pub struct List<'c> {
    from: From<'c>,
    /// How many there are.
    pub count: Int<'c>,
}

/// Where positions are from.
#[derive(Clone, Copy)]
enum From<'c> {
    /// A list in memory, and the positions of an entry of it.
    Memory(Ptr<'c>, usize),
    /// The first of consecutive ones.
    First(Int<'c>),
}

impl<'c> Results<'_, 'c> {
    /// Stores the highest score of a token's head and the sum of its weights, if the result is of a
    /// part of attention. Without a key, which `sum` says, the score is below every real one.
    pub fn store_stats(
        &self,
        rows: &Rows<'_, 'c>,
        (token, head): (Int<'c>, Int<'c>),
        [score, sum]: [FloatValue<'c>; 2],
    ) {
        let (c, Some(stats)) = (rows.code, self.stats) else { return };
        let heads = stats.ty.shape.row().unwrap_or(0) / 2;
        let has_keys = c.float(c.number(0.0)).less(sum);
        let score = c.pick(has_keys, score, c.number(NO_KEY)).into_float_value();
        for (col, v) in [(head, score), (head + heads, sum)] {
            c.store(rows.address(stats, At { row: token, head: None, col: Col::Var(col) }), v, 4);
        }
    }
}

impl<'c> Seen<'c> {
    /// Whether keys are gathered by their positions.
    pub fn gathers(&self) -> bool {
        self.lists.is_some() || self.is_part
    }

    /// The position that a token sees up to: one that comes so many behind the first of consecutive
    /// ones of a sequence, whose own position this is.
    pub fn reach(&self, c: &Code<'c>, (token, position): (Int<'c>, Int<'c>), behind: Int<'c>) -> Int<'c> {
        match self.ends {
            Some(ends) => c.load_index(ends, token + behind) - 1,
            None => position + behind,
        }
    }

    /// The position that the first of them sees up to.
    pub fn first(&self, c: &Code<'c>, (token, position): (Int<'c>, Int<'c>)) -> Int<'c> {
        self.ends.map_or(position, |ends| c.load_index(ends, token) - 1)
    }

    /// The last row that a token at a position sees, or -1: the last one that is complete.
    pub fn last(&self, position: Int<'c>) -> Int<'c> {
        if self.every == 1 { position } else { (position + 1) / self.every - 1 }
    }

    /// What a token at a position sees, by its number and that of the head of the cache.
    pub fn of(&self, c: &Code<'c>, position: Int<'c>, place: (Int<'c>, Int<'c>)) -> List<'c> {
        let last = self.last(position);
        if let Some(lists) = self.lists {
            return lists.of(c, last, place);
        }
        let first = if self.window == 0 { c.int(0) } else { c.larger(last + 1 - self.window, 0) };
        List { from: From::First(first), count: last + 1 - first }
    }
}

impl<'c> Lists<'c> {
    /// The list of a token at a position. Of the last block the token sees what is up to its own
    /// position.
    pub fn of(&self, c: &Code<'c>, position: Int<'c>, (token, head): (Int<'c>, Int<'c>)) -> List<'c> {
        let Some((size, heads)) = self.block else {
            let ptr = c.at(self.ptr, token * (4 * self.most));
            return List { from: From::Memory(ptr, 1), count: c.smaller(position + 1, self.most) };
        };
        let ptr = c.at(self.ptr, (token * heads + head) * (4 * self.most));
        let own = position / size;
        let before = c.smaller(own, self.most - 1);
        let is_earlier = c.less(c.load_made_index(ptr, before), own);
        let last = c.pick_int(is_earlier, size, position % size + 1);
        List { from: From::Memory(ptr, size), count: before * size + last }
    }
}

impl<'c> List<'c> {
    /// A position of the list, by its number.
    pub fn position(&self, c: &Code<'c>, number: Int<'c>) -> Int<'c> {
        match self.from {
            From::Memory(ptr, 1) => c.load_made_index(ptr, number),
            From::Memory(ptr, size) => c.load_made_index(ptr, number / size) * size + number % size,
            From::First(first) => first + number,
        }
    }
}

impl<'k, 'c> Attending<'k, 'c> {
    /// The only attention of a kernel.
    pub fn of(kernel: &'k Kernel<'_, 'c>) -> Result<Attending<'k, 'c>, Diagnostic> {
        let rows = &kernel.rows;
        let node = kernel.the("attention", Op::attends)?;
        let operands = rows.graph.operands(node.node);
        let (scale, window, sinks, listed) = match *rows.graph.op(node.node) {
            Op::Attention { scale, window } => (scale, window, operands.get(3), None),
            Op::AttendUpTo { scale, window } => (scale, window, None, None),
            Op::AttendListed { scale, block } => (scale, 0, None, Some((operands[3], block))),
            Op::AttendPart { scale, window, .. } => (scale, window, None, operands.get(3).map(|&list| (list, None))),
            _ => unreachable!("only these attend"),
        };
        let sinks = sinks.map(|&sinks| rows.operand(sinks)).transpose()?;
        let lists = |(list, block): (Value, Option<usize>)| {
            let heads = rows.graph.ty(operands[1]).as_cache().map_or(1, |cache| cache.heads);
            let entries = rows.shape(list)?.choices();
            let most = if block.is_some() { entries / heads } else { entries };
            Ok::<_, Diagnostic>(Lists { ptr: rows.index(list)?, most, block: block.map(|size| (size, heads)) })
        };
        let lists = listed.map(lists).transpose()?;
        let (every, is_part) = match *rows.graph.op(node.node) {
            Op::AttendPart { every, .. } => (every.unwrap_or(1), true),
            _ => (1, false),
        };
        let ends = match rows.graph.op(node.node) {
            Op::AttendUpTo { .. } => Some(rows.index(operands[3])?),
            _ => None,
        };
        let seen = Seen { window, every, lists, is_part, ends };
        Ok(Attending { node, query: operands[0], scale, sinks, seen })
    }

    /// The results of a kernel that stores nothing else.
    pub fn results(&self, kernel: &'k Kernel<'_, 'c>) -> Result<Results<'k, 'c>, Diagnostic> {
        let ((out, to), stats) = match &kernel.outputs[..] {
            [(out, to), (of, stats)] if of.node == self.node.node && of.out == 1 => ((*out, to), Some(stats)),
            _ => (kernel.output()?, None),
        };
        self.is_stored_as(&kernel.rows, out)?;
        Ok(Results { out: to, stats })
    }

    /// Checks that a value is the result, flattened or not.
    pub fn is_stored_as(&self, rows: &Rows, result: Value) -> Result<(), Diagnostic> {
        let graph = rows.graph;
        let flattened =
            matches!(graph.op(result.node), Op::Reshape { .. }) && graph.operands(result.node) == [self.node];
        match result == self.node || flattened {
            true => Ok(()),
            false => Err(unsupported("attention whose result is computed on")),
        }
    }
}

/// A flattened value is stored head by head.
pub fn through_reshape(rows: &Rows, v: Value) -> Result<Value, Diagnostic> {
    let flat = rows.shape(v)?.shape.rank() == 2;
    match rows.graph.op(v.node) {
        Op::Reshape { .. } if flat => Ok(rows.graph.operands(v.node)[0]),
        _ => Ok(v),
    }
}

/// Heads and their elements, of a value that has heads.
pub fn heads(shape: &Shape) -> Option<(usize, usize)> {
    match shape.0[..] {
        [_, h, d] => Some((h.fixed()?, d.fixed()?)),
        _ => None,
    }
}
