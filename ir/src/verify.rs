//! What is legal, at every stage. Collects all errors and prints them inside the listing.
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::graph::{Graph, NodeId, Value};
use crate::ops::{Class, Op, Stage};
use crate::types::{Block, DType, Dim, Layout, Type};

/// Everything that is wrong with a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifyError {
    /// Each fault, in the order of the listing.
    pub messages: Vec<String>,
    /// The graph's text with each message below its line.
    pub listing: String,
}

impl fmt::Display for VerifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in\n{}", self.messages.join("; "), self.listing)
    }
}

impl std::error::Error for VerifyError {}

#[derive(Default)]
struct Errors {
    nodes: BTreeMap<NodeId, Vec<String>>,
    messages: Vec<String>,
}

impl Errors {
    fn add(&mut self, id: NodeId, message: String) {
        self.nodes.entry(id).or_default().push(message.clone());
        self.messages.push(message);
    }
}

impl Graph {
    /// Rules that hold at every stage.
    pub fn verify(&self) -> Result<(), VerifyError> {
        self.verify_at(Stage::Model)
    }

    /// The rules of a stage and of all before it.
    pub fn verify_at(&self, stage: Stage) -> Result<(), VerifyError> {
        let mut errors = Errors::default();
        let order = self.order();
        let place: BTreeMap<NodeId, usize> = order.iter().enumerate().map(|(i, &id)| (id, i)).collect();
        if self.outputs().is_empty() {
            errors.messages.push("the graph returns nothing".into());
        }
        for (i, (name, _)) in self.results().enumerate() {
            if !name.is_empty() && self.results().take(i).any(|(other, _)| other == name) {
                errors.messages.push(format!("two results are called `{name}`"));
            }
        }
        for &id in &order {
            self.check_operands(id, &place, &mut errors);
            self.check_types(id, &mut errors);
            self.check_caches(id, &mut errors);
            self.check_stage(id, stage, &mut errors);
        }
        if errors.messages.is_empty() {
            return Ok(());
        }
        let listing = self.print_with(&|id| errors.nodes.get(&id).cloned().unwrap_or_default());
        Err(VerifyError { messages: errors.messages, listing })
    }

    fn check_operands(&self, id: NodeId, place: &BTreeMap<NodeId, usize>, errors: &mut Errors) {
        for v in self.operands(id) {
            if place[&v.node] >= place[&id] {
                errors.add(id, "the graph has a cycle".into());
            }
            if v.out >= self.types(v.node).len() {
                errors.add(id, format!("reads result {} of a node with {}", v.out, self.types(v.node).len()));
            }
        }
    }

    fn check_types(&self, id: NodeId, errors: &mut Errors) {
        for ty in self.types(id) {
            if let Type::Tensor(t) = ty {
                if !t.shape.well_formed() {
                    errors.add(id, format!("{ty}: only the first axis may be symbolic, and none may be zero"));
                }
                if t.layout.is_packed() && t.shape.sizes().is_none_or(|sizes| ![2, 3].contains(&sizes.len())) {
                    errors.add(id, format!("{ty}: only matrices of known size are packed"));
                }
                let choices = matches!(t.shape.0[..], [Dim::Choices(_)]) && t.dtype == DType::I32;
                if matches!(t.layout, Layout::Grouped { .. }) && !choices {
                    errors.add(id, format!("{ty}: only the experts of rows are grouped"));
                }
                let stored = t.dtype.is_code() || t.dtype == DType::E8M0;
                let scaled = t.layout.is_coded();
                let is_mx = matches!(t.layout, Layout::Mx(_));
                let is_byte = t.dtype.bits() == 8 && t.dtype.is_code();
                if scaled && !is_mx && (!is_byte || t.shape.rank() != 2) {
                    errors.add(id, format!("{ty}: only rows of codes of a byte have scales of their own"));
                }
                let is_float = matches!(t.dtype, DType::F8E4M3 | DType::F4E2M1);
                if is_mx && (!is_float || t.shape.rank() != 2) {
                    errors.add(id, format!("{ty}: only rows of codes that are floats have scales of MX"));
                }
                if stored && !scaled && t.shape.sizes().is_none() {
                    errors.add(id, format!("{ty}: only weights and caches have elements of {}", t.dtype.name()));
                }
            }
        }
        if self.op(id).class() == Class::Source {
            return;
        }
        let operands = self.operands(id);
        if operands.iter().any(|v| v.out >= self.types(v.node).len()) {
            return;
        }
        let types: Vec<&Type> = operands.iter().map(|&v| self.ty(v)).collect();
        match self.op(id).infer(&types) {
            Err(e) => errors.add(id, format!("{}: {e}", self.op(id).name())),
            Ok(want) if want != self.types(id) => {
                let list = |types: &[Type]| types.iter().map(|t| t.to_string()).collect::<Vec<_>>().join(", ");
                errors.add(id, format!("has type {}, should be {}", list(self.types(id)), list(&want)));
            }
            Ok(_) => {}
        }
        if let Op::Linear { block: Some(block), .. } | Op::Grouped { block: Some(block), .. } = *self.op(id)
            && let Err(e) = self.check_cuts(operands[1], block)
        {
            errors.add(id, e);
        }
        if let Op::Kernel { body, .. } = self.op(id)
            && let Err(e) = body.verify()
        {
            errors.add(id, format!("body: {}", e.messages.join("; ")));
        }
    }

    /// That a weight of codes is cut and joined only where blocks end: else its scales would be
    /// those of other rows or columns.
    fn check_cuts(&self, w: Value, block: Block) -> Result<(), String> {
        // With each value what of the weight its axes are: which axis, and how many of its places
        // to one.
        let (mut open, mut seen) = (vec![(w, [(0, 1), (1, 1)])], BTreeSet::new());
        while let Some((v, axes)) = open.pop() {
            if !seen.insert((v, axes)) {
                continue;
            }
            // Where there is an axis before those of the matrix, its places are whole matrices.
            let before = self.ty(v).as_tensor().map_or(0, |t| t.shape.rank().saturating_sub(2));
            for (axis, border) in self.borders(v)? {
                let Some(axis) = axis.checked_sub(before) else { continue };
                let (axis, places) = axes[axis.min(1)];
                let side = if axis == 0 { block.rows } else { block.cols };
                let border = border.saturating_mul(places);
                if !border.is_multiple_of(side) {
                    return Err(format!("a border at {border} of axis {axis} parts a block of {side}"));
                }
            }
            let operands = self.operands(v.node);
            let first = |axes| operands.first().map(|&v| (v, axes));
            match *self.op(v.node) {
                Op::Transpose {} => open.extend(first([axes[1], axes[0]])),
                Op::Unpack { from, to, axis, .. } => {
                    let mut axes = axes;
                    let places = &mut axes[axis.saturating_sub(before).min(1)].1;
                    *places = usize::saturating_mul(*places, from.bits() / to.bits());
                    open.extend(first(axes));
                }
                Op::Expect { .. } => open.extend(first(axes)),
                // Of a tensor as it is stored, which is whole.
                Op::View { .. } | Op::Encode { .. } | Op::Dequantise { .. } | Op::Times { .. } => {}
                _ if self.op(v.node).class() == Class::Layout => open.extend(operands.into_iter().map(|v| (v, axes))),
                _ => {}
            }
        }
        Ok(())
    }

    /// Where a value begins to be made of another one, or of another part of it: the axis and the
    /// place.
    fn borders(&self, v: Value) -> Result<Vec<(usize, usize)>, String> {
        let size = |v: Value, axis: usize| {
            let dim = self.ty(v).as_tensor().and_then(|t| t.shape.0.get(axis)?.fixed());
            dim.ok_or_else(|| format!("{} has no size along axis {axis}", self.ty(v)))
        };
        let operands = self.operands(v.node);
        Ok(match *self.op(v.node) {
            Op::Concat { axis } => {
                let sizes = operands.iter().map(|&part| size(part, axis)).collect::<Result<Vec<_>, _>>()?;
                let starts =
                    sizes.iter().scan(0usize, |end, &size| Some(std::mem::replace(end, end.saturating_add(size))));
                starts.map(|start| (axis, start)).collect()
            }
            Op::Slice { axis, start, len } => {
                let (all, end) = (size(operands[0], axis)?, start.saturating_add(len));
                [start, end].into_iter().filter(|&border| border < all).map(|border| (axis, border)).collect()
            }
            Op::Shard { axis, parts } if parts > 1 => vec![(axis, size(v, axis)?)],
            Op::Every { axis, step, .. } if step > 1 => vec![(axis, 1)],
            _ => vec![],
        })
    }

    /// A cache state is changed at most once: otherwise two histories of one buffer would exist. A
    /// state that is changed is not read any more, or a later write could be seen by an earlier
    /// read.
    fn check_caches(&self, id: NodeId, errors: &mut Errors) {
        for out in 0..self.types(id).len() {
            let v = Value { node: id, out };
            if !self.ty(v).is_state() {
                continue;
            }
            let users = self.users(v);
            let writes = users.iter().filter(|(user, _)| self.types(*user).iter().any(Type::is_state)).count();
            if writes > 1 || writes == 1 && (users.len() > 1 || self.is_output(v)) {
                errors.add(
                    id,
                    format!(
                        "a cache state that is written has one user, not {}",
                        users.len() + self.is_output(v) as usize
                    ),
                );
            }
        }
    }

    fn check_stage(&self, id: NodeId, stage: Stage, errors: &mut Errors) {
        let op = self.op(id);
        let constant = self.is_constant(id);
        if stage >= Stage::Segmented {
            if self.segment(id).is_none() && !constant && !matches!(op, Op::Input { .. }) {
                errors.add(id, "has no segment".into());
            }
            for (slot, &v) in self.operands(id).iter().enumerate() {
                let wants = op.reads(slot).layout();
                let packed = self.ty(v).as_tensor().is_none_or(|t| wants.is_none_or(|layout| t.layout == layout));
                if !packed {
                    let what = if wants == Some(Layout::Columns) { "a scale or zero point" } else { "its weight" };
                    errors.add(id, format!("{what} is not packed"));
                }
            }
        }
        let outside = matches!(op, Op::Input { .. } | Op::Kernel { .. }) || op.is_call();
        if stage >= Stage::Fused && !constant && !outside {
            errors.add(id, format!("`{}` is in no kernel", op.name()));
        }
    }

    /// Whether a node depends on weights and constants alone, through ops that a weight plan may
    /// hold.
    pub fn is_constant(&self, id: NodeId) -> bool {
        match self.op(id).class() {
            Class::Source => matches!(self.op(id), Op::Weight { .. } | Op::Weights { .. }),
            Class::Layout => self.operands(id).iter().all(|v| self.is_constant(v.node)),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::ops::Stage;
    use crate::text::parse;

    fn check(text: &str, stage: Stage) -> String {
        let graph = parse(text).unwrap();
        assert_eq!(parse(&graph.print()).unwrap().print(), graph.print());
        graph.verify_at(stage).map_or_else(|e| e.listing, |()| "fine".into())
    }

    #[test]
    fn errors_stand_below_their_lines() {
        let text = "graph @g(%x: bf16[T, 8], %w: bf16[4, 9], %n: bf16[8]) {
  %0 = rms_norm %x, %n {eps = 1e-6} : bf16[T, 9]
  %1 = linear %0, %w {out = i32} : bf16[T, 4]
  return %1
}";
        insta::assert_snapshot!(check(text, Stage::Model), @r"
        graph @g(%x: bf16[T, 8], %w: bf16[4, 9], %n: bf16[8]) {
          %0 = rms_norm %x, %n {eps = 1e-6} : bf16[T, 9]
          ^ has type bf16[T, 9], should be bf16[T, 8]
          %1 = linear %0, %w {out = i32} : bf16[T, 4]
          ^ linear: the result must be of a float type
          return %1
        }
        ");
    }

    #[test]
    fn a_name_is_one_result() {
        let text = "graph @g(%x: f32[T, 8]) {\n  %0 = silu %x : f32[T, 8]\n  return a = %0, b = %0, %0, %x\n}";
        assert_eq!(check(text, Stage::Model), "fine");
        let graph = parse(text).unwrap();
        assert_eq!(graph.result("b"), Some(graph.outputs()[1]));
        assert_eq!(graph.result("c"), None);
        let e = parse(&text.replace("b = %0", "a = %x")).unwrap().verify().unwrap_err();
        assert_eq!(e.messages, ["two results are called `a`"]);
    }

    #[test]
    fn a_cache_state_has_one_history() {
        let text = "graph @g(%c: cache<f32, 1, 4>, %k: f32[T, 1, 4], %q: f32[T, 2, 4], %b: batch) {
  %0 = kv_write %c, %k, %k, %b : cache<f32, 1, 4>
  %1 = kv_write %c, %k, %k, %b : cache<f32, 1, 4>
  %2 = attention %q, %0, %b {scale = 1.0, window = 0} : f32[T, 2, 4]
  return %2, %0, %1
}";
        // The state is a parameter, which has no line of its own: the message stands at the head.
        let e = parse(text).unwrap().verify().unwrap_err();
        assert_eq!(e.messages, ["a cache state that is written has one user, not 2"]);
        assert_eq!(
            check(
                &text
                    .replace(
                        "kv_write %c, %k, %k, %b : cache<f32, 1, 4>\n  %2",
                        "kv_write %0, %k, %k, %b : cache<f32, 1, 4>\n  %2"
                    )
                    .replace("%q, %0", "%q, %1")
                    .replace("%2, %0, %1", "%2, %1"),
                Stage::Model
            ),
            "fine"
        );
    }

    #[test]
    fn stages_forbid_more_and_more() {
        let text = "graph @g(%x: f32[T, 8]) {
  %0 = weight {name = \"w\"} : f32[4, 8]
  %1 = linear %x, %0 {out = f32} : f32[T, 4]
  return %1
}";
        assert_eq!(check(text, Stage::Model), "fine");
        let messages = |stage| parse(text).unwrap().verify_at(stage).unwrap_err().messages;
        assert_eq!(messages(Stage::Segmented), ["has no segment", "its weight is not packed"]);
        assert_eq!(messages(Stage::Fused), ["has no segment", "its weight is not packed", "`linear` is in no kernel"]);
    }

    /// Every scheme is a block, and blocks at the ends may be smaller.
    #[test]
    fn weights_of_codes() {
        let fault = |codes: &str, more: &str, block: &str| {
            let types: Vec<String> = more.split(';').filter(|t| !t.is_empty()).map(str::to_string).collect();
            let params: String = types.iter().enumerate().map(|(i, t)| format!(", %s{i}: {t}")).collect();
            let operands: String = (0..types.len()).map(|i| format!(", %s{i}")).collect();
            let text = format!(
                "graph @g(%x: bf16[T, 192], %w: {codes}[64, 192]{params}) {{
                  %0 = linear %x, %w{operands} {{out = bf16{block}}} : bf16[T, 64]
                  return %0
                }}"
            );
            let graph = parse(&text).unwrap();
            assert_eq!(parse(&graph.print()).unwrap().print(), graph.print());
            graph.verify().map_or_else(|e| e.messages.join("; "), |()| "fine".into())
        };
        let sound = [
            ("bf16", "", ""),
            ("f8e4m3", "f32[1, 1]", ", block = [64, 192]"),
            ("f8e4m3", "bf16[64, 1]", ", block = [1, 192]"),
            ("f8e4m3", "f32[1, 2]", ", block = [128, 128]"),
            ("i8", "bf16[64, 1];i8[64, 1]", ", block = [1, 192]"),
            ("i4", "bf16[64, 3];u8[64, 3]", ", block = [1, 64]"),
            ("u4", "f16[64, 3];u8[64, 3]", ", block = [1, 64]"),
            ("i4", "bf16[64, 6]", ", block = [1, 32]"),
            ("f4e2m1", "e8m0[64, 6]", ", block = [1, 32]"),
        ];
        for (codes, more, block) in sound {
            assert_eq!(fault(codes, more, block), "fine");
        }
        let group = ", block = [1, 32]";
        let faults = [
            ("bf16", "f32[64, 6]", group, "a weight of bf16 has neither block nor scale"),
            ("bf16", "", group, "a weight of bf16 has neither block nor scale"),
            ("i4", "", "", "a weight of i4 takes a block and a scale for each"),
            ("i4", "bf16[64, 6]", "", "a weight of i4 takes a block and a scale for each"),
            ("i4", "", group, "a weight of i4 takes a block and a scale for each"),
            ("i32", "bf16[64, 6]", group, "w must be of a float type, not i32[64, 192]"),
            ("i4", "bf16[64, 5]", group, "scale must be [64, 6] of f32, f16, bf16 or e8m0, not bf16[64, 5]"),
            ("i4", "i8[64, 6]", group, "scale must be [64, 6] of f32, f16, bf16 or e8m0, not i8[64, 6]"),
            ("i4", "bf16[64, 6];u4[64, 6]", group, "zero must be [64, 6] of i8, u8, f32, f16 or bf16, not u4[64, 6]"),
            ("u4", "bf16[64, 6];u8[64]", group, "zero must be [64, 6] of i8, u8, f32, f16 or bf16, not u8[64]"),
            ("f4e2m1", "e8m0[64, 6];i8[64, 6]", group, "a weight of f4e2m1 has no zero points"),
            (
                "i4",
                "bf16[64, 6];i4[64, 6];i4[64, 6]",
                group,
                "`linear` takes 2 operands (x, w) and perhaps scale, zero, not 5",
            ),
        ];
        for (codes, more, block, says) in faults {
            assert_eq!(fault(codes, more, block), format!("linear: {says}"));
        }
        assert!(parse("graph @g() {\n  %0 = linear {out = f32, block = [0, 1]} : f32[1]\n  return %0\n}").is_err());
    }

    /// Where two blocks of 128 rows and one of 64 meet, counting blocks alone would not show it.
    #[test]
    fn codes_are_cut_between_blocks() {
        let check = |made: &str, [rows, cols]: [usize; 2]| {
            let text = format!(
                r#"graph @g(%x: bf16[T, {cols}]) {{
                  %0 = weight {{name = "a"}} : f8e4m3[192, 256]
                  %1 = weight {{name = "b"}} : f8e4m3[128, 256]
                  %2 = {made}
                  %3 = weight {{name = "s"}} : f32[{}, {}]
                  %4 = linear %x, %2, %3 {{out = bf16, block = [128, 128]}} : bf16[T, {rows}]
                  return %4
                }}"#,
                rows.div_ceil(128),
                cols.div_ceil(128)
            );
            parse(&text).unwrap().verify().map_or_else(|e| e.messages.join("; "), |()| "fine".into())
        };
        assert_eq!(check("concat %1, %0 {axis = 0} : f8e4m3[320, 256]", [320, 256]), "fine");
        let apart = "a border at 192 of axis 0 parts a block of 128";
        assert_eq!(check("concat %0, %1 {axis = 0} : f8e4m3[320, 256]", [320, 256]), apart);
        assert_eq!(check("slice %0 {axis = 0, start = 128, len = 64} : f8e4m3[64, 256]", [64, 256]), "fine");
        assert_eq!(check("slice %0 {axis = 0, start = 0, len = 128} : f8e4m3[128, 256]", [128, 256]), "fine");
        let cut = "a border at 64 of axis 0 parts a block of 128";
        assert_eq!(check("slice %0 {axis = 0, start = 64, len = 128} : f8e4m3[128, 256]", [128, 256]), cut);
        assert_eq!(check("slice %0 {axis = 0, start = 0, len = 64} : f8e4m3[64, 256]", [64, 256]), cut);
        assert_eq!(check("shard %1 {axis = 1, parts = 2} : f8e4m3[128, 128]", [128, 128]), "fine");
        let cut = "a border at 64 of axis 1 parts a block of 128";
        assert_eq!(check("shard %1 {axis = 1, parts = 4} : f8e4m3[128, 64]", [128, 64]), cut);
    }

    /// Below a transposition and an unpacking too, where columns are rows, and eight of them a
    /// word.
    #[test]
    fn codes_are_cut_between_blocks_as_they_are_stored() {
        let check = |made: &str| {
            let text = format!(
                r#"graph @g(%x: bf16[T, 96]) {{
                  %0 = weight {{name = "a"}} : i32[16, 8]
                  {made}
                  %2 = unpack %1 {{from = i32, to = u4, axis = 0, len = 96, order = plain}} : u4[96, 8]
                  %3 = transpose %2 : u4[8, 96]
                  %4 = shift %3 {{by = -8, to = i4}} : i4[8, 96]
                  %5 = weight {{name = "s"}} : f32[8, 3]
                  %6 = linear %x, %4, %5 {{out = bf16, block = [1, 32]}} : bf16[T, 8]
                  return %6
                }}"#
            );
            parse(&text).unwrap().verify().map_or_else(|e| e.messages.join("; "), |()| "fine".into())
        };
        assert_eq!(check("%1 = slice %0 {axis = 0, start = 4, len = 12} : i32[12, 8]"), "fine");
        let parted = "a border at 16 of axis 1 parts a block of 32";
        assert_eq!(check("%1 = slice %0 {axis = 0, start = 2, len = 12} : i32[12, 8]"), parted);
    }

    #[test]
    fn shapes_are_checked_op_by_op() {
        let refuse = |line: &str| {
            let text = format!(
                "graph @g(%x: f32[T, 8], %y: f32[T, 4], %v: f32[8], %i: i32[T], %h: f32[T, 2, 4], %t: f32[T, 6], %b: batch, %w: i32[2, 3], %c: u4[8], %kv: cache<f32, 1, 4>) {{\n  {line}\n  return %0\n}}"
            );
            parse(&text).unwrap().verify().unwrap_err().messages.join("; ")
        };
        let cases = [
            (
                "%0 = add %x, %y : f32[T, 8]",
                "add: operands have shapes [T, 8] and [T, 4]: they must be equal, or one axis like the last or a whole row, or one number",
            ),
            ("%0 = add %x : f32[T, 8]", "add: `add` takes 2 operands (a, b), not 1"),
            ("%0 = silu %i : i32[T]", "silu: the first operand must be of a float type, not i32[T]"),
            (
                "%0 = slice %x {axis = 1, start = 6, len = 3} : f32[T, 3]",
                "slice: 3 from 6 on do not lie in axis 1 of [T, 8]",
            ),
            ("%0 = slice %x {axis = 0, start = 0, len = 1} : f32[1, 8]", "slice: axis: 0 of [T, 8] is no number"),
            (
                "%0 = reshape %x {shape = [T, 3, 3]} : f32[T, 3, 3]",
                "reshape: [T, 8] cannot become [T, 3, 3]: the first axis and the elements of a row must stay",
            ),
            (
                "%0 = cast %x {to = f8e4m3} : f8e4m3[T, 8]",
                "f8e4m3[T, 8]: only weights and caches have elements of f8e4m3; cast: casts to float types only",
            ),
            ("%0 = transpose %v : f32[8]", "transpose: [8] is no matrix"),
            ("%0 = view %v {shape = [3, 3]} : f32[3, 3]", "view: shape: [3, 3] has not the numbers of [8]"),
            (
                "%0 = unpack %w {from = u8, to = i4, axis = 0, len = 8, order = plain} : i4[8, 3]",
                "unpack: these are other words",
            ),
            (
                "%0 = unpack %w {from = i32, to = i4, axis = 0, len = 8, order = plain} : i4[8, 3]",
                "unpack: len: 8 codes of 4 bits do not lie in axis 0 of [2, 3]",
            ),
            (
                "%0 = unpack %w {from = i32, to = u8, axis = 0, len = 8, order = awq} : u8[8, 3]",
                "unpack: i32 is not made of u8 in the order awq",
            ),
            ("%0 = shift %c {by = -7, to = i4} : i4[8]", "shift: u4 plus -7 does not become i4"),
            ("%0 = shift %w {by = 0, to = i8} : i8[2, 3]", "shift: i32 plus 0 does not become i8"),
            ("%0 = expect %x, %v {is = all(8)} : f32[T, 8]", "expect: told: these are no integers"),
            ("%0 = gather %x, %v : f32[T, 8]", "gather: rows must be i32 with one axis, not f32[8]"),
            (
                "%0 = quantise %x {to = f4e2m1, rule = row} : f4e2m1[T, 8]@scaled(8)",
                "f4e2m1[T, 8]@scaled(8): only rows of codes of a byte have scales of their own; \
                 quantise: no rule makes codes of f4e2m1 like that",
            ),
            (
                "%0 = quantise %x, %v {to = i8, rule = static} : i8[T, 8]@scaled(8)",
                "quantise: there must be one scale where the rule makes none",
            ),
            (
                "%0 = quantise %x {to = f8e4m3, rule = group(4)} : f8e4m3[T, 8]@scaled(8)",
                "has type f8e4m3[T, 8]@scaled(8), should be f8e4m3[T, 8]@scaled(4)",
            ),
            (
                "%0 = quantise %x {to = i8, rule = mx_codes(4)} : i8[T, 8]@mx(4)",
                "i8[T, 8]@mx(4): only rows of codes that are floats have scales of MX; \
                 quantise: no rule makes codes of i8 like that",
            ),
            ("%0 = rope %h, %t : f32[T, 2, 4]", "rope: x f32[T, 2, 4] and table f32[T, 6] do not fit"),
            (
                "%0 = attention %h, %b, %b {scale = 1.0, window = 0} : f32[T, 2, 4]",
                "attention: cache must be a cache, not batch",
            ),
            (
                "%0 = attention %h, %kv, %b, %v {scale = 1.0, window = 0} : f32[T, 2, 4]",
                "attention: sinks must have one number for each of 2 heads, not f32[8]",
            ),
        ];
        for (line, message) in cases {
            assert_eq!(refuse(line), message);
        }
    }
}
