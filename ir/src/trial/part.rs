//! A body computed for some rows of a step, and of these for the elements that are wanted: products
//! only where somebody asks for their result, with rows of weights that are made when they are
//! needed.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::demand::{self, is_of_step, lead, row_width};
use super::judge::Verdict;
use super::mask::Mask;
use super::{Bound, Operand, Param, Sampling, Source, Trial, name};
use crate::elementwise::Scalar;
use crate::graph::{NodeId, Value};
use crate::interp::{self, BatchState, Cx, Real, Tensor, Val};
use crate::ops::Op;
use crate::types::{Block, Dim, Type};

/// What of a kernel is computed by the reference, and with what.
#[derive(Clone, Copy, Debug)]
pub struct Reference {
    /// Which elements; none for all.
    pub sampling: Option<Sampling>,
    /// Threads that compute.
    pub threads: usize,
    /// Most bytes of all threads together, in addition to the operands.
    pub memory: usize,
}

/// Tokens of a part, at most.
const MOST_TOKENS: usize = 64;

/// Some tokens and some rows of logits of a step, by their numbers in it.
pub(super) struct Part {
    tokens: Vec<usize>,
    rows: Vec<usize>,
    /// Of these, those with results that are compared.
    own: BTreeSet<usize>,
    /// Whether these are rows, and not tokens.
    by_rows: bool,
    /// For each gather of rows of the step the places of these in the part.
    gathered: BTreeMap<NodeId, Vec<usize>>,
}

impl Part {
    /// Rows of a dimension.
    pub fn count(&self, dim: Dim) -> usize {
        dim.at(self.tokens.len(), self.rows.len())
    }

    /// Their numbers in the step.
    fn picked(&self, dim: Dim) -> Vec<usize> {
        match dim {
            Dim::Fixed(count) => (0..count).collect(),
            Dim::Tokens => self.tokens.clone(),
            Dim::Rows => self.rows.clone(),
            Dim::Choices(k) => self.tokens.iter().flat_map(|token| token * k..(token + 1) * k).collect(),
        }
    }

    pub fn gathered(&self, node: NodeId) -> &[usize] {
        self.gathered.get(&node).map_or(&[], Vec::as_slice)
    }

    /// Whether a row of a result, by its place in the part, is compared.
    fn is_own(&self, dim: Dim, row: usize) -> bool {
        match dim {
            Dim::Rows => self.by_rows && self.own.contains(&self.rows[row]),
            Dim::Choices(k) => !self.by_rows && self.own.contains(&self.tokens[row / k]),
            _ => !self.by_rows && self.own.contains(&self.tokens[row]),
        }
    }
}

impl Trial<'_> {
    /// The bytes of all results beside what the reference makes of them, all or a sample.
    pub fn compare(
        &self,
        reference: Reference,
        operands: &[Operand],
        got: &[impl AsRef<[u8]> + Sync],
    ) -> Result<Verdict, String> {
        let sampling = reference.sampling.filter(|_| demand::divides(self.graph));
        let Some(sampling) = sampling else { return Ok(self.judge(operands, &self.want()?, got)) };
        let wanted = self.sample(sampling);
        let parts = self.parts(&wanted, reference);
        let states: Vec<Option<Val<Bound>>> = (0..self.params.len()).map(|number| self.state_of(number)).collect();
        let (next, found) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
        let work = || {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let Some(part) = parts.get(number) else { return };
                let verdict = Computed { trial: self, part, states: &states }.verdict(&wanted, got);
                found.lock().unwrap_or_else(PoisonError::into_inner).insert(number, verdict);
            }
        };
        std::thread::scope(|scope| {
            (1..reference.threads.min(parts.len())).for_each(|_| drop(scope.spawn(work)));
            work();
        });
        let found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut verdict = self.judge_rest(operands, got);
        for one in found.into_values() {
            verdict = verdict.and(one?);
        }
        Ok(verdict)
    }

    /// The step in parts that can be computed one by one.
    fn parts(&self, wanted: &[(Value, Mask)], reference: Reference) -> Vec<Part> {
        let mut parts = Vec::new();
        for by_rows in [false, true] {
            let own = wanted.iter().filter(|(v, _)| (lead(self.graph.ty(*v)) == Some(Dim::Rows)) == by_rows);
            let mut numbers = BTreeSet::new();
            for (v, mask) in own {
                let k = self.graph.ty(*v).as_tensor().map_or(1, |t| t.choices());
                numbers.extend((0..mask.rows).filter(|&row| mask.any(row)).map(|row| row / k));
            }
            let numbers: Vec<usize> = numbers.into_iter().collect();
            for own in numbers.chunks(self.most_tokens(numbers.len(), reference)) {
                parts.push(self.part(own, by_rows));
            }
        }
        parts
    }

    /// How many tokens a part may have, so that the parts of all threads fit the memory and all
    /// threads have something to do.
    fn most_tokens(&self, tokens: usize, reference: Reference) -> usize {
        let each = |id: NodeId| {
            let types = self.graph.types(id).iter().filter(|ty| lead(ty).is_some());
            types.map(|ty| row_width(ty) * ty.as_tensor().map_or(1, |t| t.choices())).sum::<usize>()
        };
        let bytes = self.graph.ids().map(each).sum::<usize>() * size_of::<Bound>();
        let room = reference.memory / reference.threads.max(1) / bytes.max(1);
        tokens.div_ceil(4 * reference.threads.max(1)).clamp(1, MOST_TOKENS).min(room.max(1))
    }

    fn part(&self, own: &[usize], by_rows: bool) -> Part {
        let wanted = self.step.wanted();
        let rows = if by_rows { own.to_vec() } else { vec![] };
        let mut tokens: BTreeSet<usize> = own.iter().map(|&n| if by_rows { wanted[n] as usize } else { n }).collect();
        let gathers: Vec<NodeId> = self.graph.ids().filter(|&id| self.gathers_rows(id)).collect();
        loop {
            let before = tokens.len();
            if self.attends_to_its_own() {
                self.add_earlier(&mut tokens);
            }
            for &id in
                gathers.iter().filter(|&&id| lead(self.graph.ty(self.graph.operands(id)[0])) == Some(Dim::Tokens))
            {
                let found = self.indices(id).map(|(dim, list)| (dim, list.to_vec()));
                let Some((dim, list)) = found else { continue };
                let more: Vec<usize> = match dim {
                    Dim::Rows => rows.iter().map(|&row| list[row].max(0) as usize).collect(),
                    _ => tokens.iter().map(|&token| list[token].max(0) as usize).collect(),
                };
                tokens.extend(more);
            }
            if tokens.len() == before {
                break;
            }
        }
        let mut part = Part {
            tokens: tokens.into_iter().collect(),
            rows,
            own: own.iter().copied().collect(),
            by_rows,
            gathered: BTreeMap::new(),
        };
        for id in gathers {
            let Some((dim, list)) = self.indices(id) else { continue };
            let there = part.picked(lead(self.graph.ty(self.graph.operands(id)[0])).unwrap_or(Dim::Tokens));
            let place = |row: usize| there.binary_search(&(list[row].max(0) as usize)).unwrap_or(0);
            let places = part.picked(dim).into_iter().map(place).collect();
            part.gathered.insert(id, places);
        }
        part
    }

    /// Whether a node picks rows of the step.
    fn gathers_rows(&self, id: NodeId) -> bool {
        matches!(self.graph.op(id), Op::Gather {}) && lead(self.graph.ty(self.graph.operands(id)[0])).is_some()
    }

    /// The rows that a gather picks, which an operand names.
    fn indices(&self, id: NodeId) -> Option<(Dim, &[i32])> {
        let list = self.graph.operands(id)[1];
        let number = self.graph.inputs().into_iter().position(|v| v == list)?;
        match &self.params[number] {
            Param::Indices(indices) => Some((lead(self.graph.ty(list))?, indices)),
            _ => None,
        }
    }

    /// Whether attention sees what the kernel itself writes.
    fn attends_to_its_own(&self) -> bool {
        self.graph.ids().any(|id| {
            let sees = |id: NodeId| !matches!(self.graph.op(self.graph.operands(id)[1].node), Op::Input { .. });
            matches!(self.graph.op(id), Op::Attention { .. }) && sees(id)
        })
    }

    /// The tokens of the same sequences before those that are there.
    fn add_earlier(&self, tokens: &mut BTreeSet<usize>) {
        let mut first = 0;
        for run in &self.step.runs {
            if let Some(&last) = tokens.range(first..first + run.tokens).next_back() {
                tokens.extend(first..last);
            }
            first += run.tokens;
        }
    }

    /// Whether nothing reads a weight but a row at a time.
    fn is_read_by_rows(&self, v: Value) -> bool {
        let by_rows = |&(user, slot): &(NodeId, usize)| match self.graph.op(user) {
            Op::Gather {} => slot == 0,
            op => op.is_contraction() && slot > 0 && !(matches!(op, Op::Grouped { .. }) && slot == 2),
        };
        let Type::Tensor(t) = self.graph.ty(v) else { return false };
        !is_of_step(t) && !self.graph.is_output(v) && self.graph.users(v).iter().all(by_rows)
    }

    /// A parameter with rows that are made on demand.
    fn source_of(&self, v: Value) -> Option<&Source> {
        let number = self.graph.inputs().into_iter().position(|input| input == v)?;
        match &self.params[number] {
            Param::Numbers(source) if self.is_read_by_rows(v) => Some(source),
            _ => None,
        }
    }
}

/// A part of a trial that is being computed.
struct Computed<'a> {
    trial: &'a Trial<'a>,
    part: &'a Part,
    /// States, and the batch, by the number of the operand.
    states: &'a [Option<Val<Bound>>],
}

impl Computed<'_> {
    fn verdict(&self, wanted: &[(Value, Mask)], got: &[impl AsRef<[u8]>]) -> Result<Verdict, String> {
        let graph = self.trial.graph;
        let own: Vec<(Value, Mask)> = wanted.iter().map(|(v, mask)| (*v, self.own(*v, mask))).collect();
        let needed = demand::demand(graph, self.part, &own);
        let cx = Cx::of(self.part.tokens.len(), self.part.rows.len());
        let made = interp::run_with(graph, cx, &|name| self.param(name), &|_| None, &|id, args, cx| {
            self.node(id, args, cx, &needed)
        })?;
        let mut verdict = Verdict::default();
        for ((&v, want), got) in graph.outputs().iter().zip(&made).zip(got) {
            let Some((_, mask)) = own.iter().find(|(other, _)| *other == v) else { continue };
            let rows = lead(graph.ty(v)).map(|dim| self.part.picked(dim)).unwrap_or_default();
            verdict = verdict.and(self.trial.judge_part(v, want, (&rows, mask), got.as_ref()));
        }
        Ok(verdict)
    }

    /// Of what is wanted the rows of this part.
    fn own(&self, v: Value, mask: &Mask) -> Mask {
        let dim = lead(self.trial.graph.ty(v)).unwrap_or(Dim::Tokens);
        let picked = self.part.picked(dim);
        let mut own = Mask::new(picked.len(), mask.width);
        for (row, &number) in picked.iter().enumerate().filter(|(row, _)| self.part.is_own(dim, *row)) {
            own.add_row(row, mask, number);
        }
        own
    }

    fn param(&self, wanted: &str) -> Option<Val<Bound>> {
        let (trial, inputs) = (self.trial, self.trial.graph.inputs());
        let number = inputs.iter().position(|&v| name(trial.graph, v) == wanted)?;
        let dim = lead(trial.graph.ty(inputs[number]));
        match &trial.params[number] {
            Param::Indices(list) => Some(Val::Int(
                dim.map_or(list.clone(), |dim| self.part.picked(dim).iter().map(|&row| list[row]).collect()),
            )),
            // Rows of weights are made when somebody asks for them: the tensor has none.
            Param::Numbers(source) if trial.is_read_by_rows(inputs[number]) => {
                Some(Val::Float(Tensor { shape: source.shape().to_vec(), data: vec![] }))
            }
            Param::Numbers(source) => {
                let rows = dim.map_or_else(|| (0..source.rows()).collect(), |dim| self.part.picked(dim));
                let mut shape = source.shape().to_vec();
                if dim.is_some() {
                    shape[0] = rows.len();
                }
                let mut numbers = Vec::with_capacity(shape.iter().product());
                rows.into_iter().for_each(|row| source.row(row, &mut numbers));
                let dtype = source.ty().dtype;
                Some(Val::Float(Tensor::new(shape, numbers.into_iter().map(|v| Bound::operand(v, dtype)).collect())))
            }
            Param::Batch => {
                let all = trial.step.batch();
                let pick = |of: &[i32]| self.part.tokens.iter().map(|&token| of[token]).collect();
                Some(Val::Batch(BatchState { sequences: pick(&all.sequences), positions: pick(&all.positions) }))
            }
            Param::Cache(_) | Param::Slots(_) => self.states[number].clone(),
        }
    }

    /// Nodes that are computed only where it is asked for, or that read rows of weights.
    fn node(
        &self,
        id: NodeId,
        args: &[&Val<Bound>],
        cx: Cx,
        needed: &BTreeMap<Value, Mask>,
    ) -> Option<Result<Vec<Val<Bound>>, String>> {
        let graph = self.trial.graph;
        let mask = needed.get(&id.into());
        match graph.op(id) {
            Op::Gather {} => self.gather(id, args).transpose(),
            Op::Attention { scale, window } => {
                let mask = mask?;
                let heads = args[0].float().ok()?.shape[1];
                let wide = mask.width / heads;
                let wanted = |t: usize, head: usize| (head * wide..(head + 1) * wide).any(|col| mask.get(t, col));
                Some(interp::attention_of(args, (*scale, *window), wanted))
            }
            Op::AttendUpTo { scale, window } => {
                let mask = mask?;
                let heads = args[0].float().ok()?.shape[1];
                let wide = mask.width / heads;
                let wanted = |t: usize, head: usize| (head * wide..(head + 1) * wide).any(|col| mask.get(t, col));
                Some(interp::attend_up_to_of(args, (*scale, *window), wanted))
            }
            Op::AttendListed { scale, block } => {
                let mask = mask?;
                let heads = args[0].float().ok()?.shape[1];
                let wide = mask.width / heads;
                let wanted = |t: usize, head: usize| (head * wide..(head + 1) * wide).any(|col| mask.get(t, col));
                Some(interp::attend_listed_of(args, (*scale, *block), wanted))
            }
            op if op.is_contraction() => {
                let weight = Weight::of(self.trial, id)?;
                Some(self.product(id, args, (cx, &weight), mask).map(|made| vec![Val::Float(made)]))
            }
            _ => None,
        }
    }

    fn gather(&self, id: NodeId, args: &[&Val<Bound>]) -> Result<Option<Vec<Val<Bound>>>, String> {
        let table = self.trial.graph.operands(id)[0];
        let mut data = Vec::new();
        let (rows, width) = if self.trial.gathers_rows(id) {
            let (from, places) = (args[0].float()?, self.part.gathered(id));
            let width = from.shape[1..].iter().product::<usize>();
            places.iter().for_each(|&row| data.extend_from_slice(&from.data[row * width..][..width]));
            (places.len(), width)
        } else {
            let Some(source) = self.trial.source_of(table) else { return Ok(None) };
            let (mut numbers, rows) = (Vec::new(), args[1].int()?);
            for row in rows.iter().map(|&row| row.max(0) as usize) {
                if row >= source.rows() {
                    return Err(format!("row {row} of {}", source.rows()));
                }
                source.row(row, &mut numbers);
            }
            data.extend(numbers.into_iter().map(|v| Bound::operand(v, source.ty().dtype)));
            (rows.len(), source.width())
        };
        Ok(Some(vec![Val::Float(Tensor::new(vec![rows, width], data))]))
    }

    /// A product with a weight, of the elements that are needed; all others are no numbers.
    fn product(
        &self,
        id: NodeId,
        args: &[&Val<Bound>],
        (cx, weight): (Cx, &Weight),
        mask: Option<&Mask>,
    ) -> Result<Tensor<Bound>, String> {
        let x = args[0].float()?;
        let cols = *x.shape.last().unwrap_or(&1);
        let lines = x.data.len() / cols.max(1);
        // Each line of the result has the weight of one matrix.
        let (matrices, each, heads) = match self.trial.graph.op(id) {
            Op::Grouped { .. } => {
                let experts = args[2].int()?.to_vec();
                let each = experts.len() / lines.max(1);
                (experts, each, 1)
            }
            Op::PerHead { .. } => ((0..lines).map(|line| (line % x.shape[1]) as i32).collect(), 1, x.shape[1]),
            _ => (vec![0; lines], 1, 1),
        };
        let height = weight.height;
        let mut data = vec![Bound::of(f64::NAN); matrices.len() * height];
        let mut of: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (line, &matrix) in matrices.iter().enumerate() {
            match usize::try_from(matrix) {
                Ok(matrix) if matrix >= weight.matrices => {
                    return Err(format!("expert {matrix} of {}", weight.matrices));
                }
                Ok(matrix) => of.entry(matrix).or_default().push(line),
                Err(_) => data[line * height..][..height].fill(Bound::of(0.0)),
            }
        }
        let is_needed =
            |line: usize, col: usize| mask.is_some_and(|mask| mask.get(line / heads, line % heads * height + col));
        let (mut row, mut numbers) = (Vec::new(), Vec::new());
        for (matrix, lines) in of {
            for col in 0..height {
                let mut lines = lines.iter().filter(|&&line| is_needed(line, col)).peekable();
                if lines.peek().is_none() {
                    continue;
                }
                weight.row(matrix, col, &mut row, &mut numbers);
                for &line in lines {
                    let x = &x.data[line / each * cols..][..cols];
                    data[line * height + col] = interp::product(x, &row, weight.block.is_some(), cx.coarse);
                }
            }
        }
        let mut shape = x.shape.clone();
        (shape[0], *shape.last_mut().unwrap_or(&mut 0)) = (matrices.len() / heads, height);
        Ok(Tensor::new(shape, data))
    }
}

/// The weight of a product, with rows that are made on demand.
struct Weight<'t> {
    codes: &'t Source,
    scale: Option<&'t Source>,
    zero: Option<&'t Source>,
    block: Option<Block>,
    matrices: usize,
    height: usize,
}

impl<'t> Weight<'t> {
    fn of(trial: &'t Trial, id: NodeId) -> Option<Weight<'t>> {
        let (operands, op) = (trial.graph.operands(id), trial.graph.op(id));
        let (block, more) = match op {
            Op::Linear { block, .. } | Op::PerHead { block, .. } => (*block, &operands[2..]),
            Op::Grouped { block, .. } => (*block, &operands[3..]),
            _ => return None,
        };
        let codes = trial.source_of(operands[1])?;
        let source = |number: usize| match more.get(number) {
            Some(&v) => trial.source_of(v).map(Some),
            None => Some(None),
        };
        let (matrices, height) = match codes.shape() {
            &[matrices, height, _] => (matrices, height),
            shape => (1, shape[0]),
        };
        Some(Weight { codes, scale: source(0)?, zero: source(1)?, block, matrices, height })
    }

    /// What a row of a matrix means.
    fn row(&self, matrix: usize, row: usize, to: &mut Vec<Bound>, numbers: &mut Vec<f64>) {
        numbers.clear();
        to.clear();
        self.codes.row(matrix * self.height + row, numbers);
        let exact = |v: f64, of: &Source| Bound::operand(v, of.ty().dtype);
        let (Some(block), Some(scale)) = (self.block, self.scale) else {
            to.extend(numbers.iter().map(|&v| exact(v, self.codes)));
            return;
        };
        let at = matrix * (scale.rows() / self.matrices) + row / block.rows;
        for (number, codes) in numbers.chunks(block.cols).enumerate() {
            let zero = self.zero.map(|zero| (exact(zero.at(at, number), zero), zero.ty().dtype.is_float()));
            let scale = exact(scale.at(at, number), scale);
            to.extend(codes.iter().map(|&code| {
                let code = exact(code, self.codes);
                match zero {
                    None => Scalar::mul(code, scale),
                    Some((zero, false)) => Scalar::mul(Scalar::sub(code, zero), scale),
                    Some((least, true)) => Scalar::add(Scalar::mul(code, scale), least),
                }
            }));
        }
    }
}
