//! The steps that make a weight of the tensors of a checkpoint. The table has each step once: its
//! name, its attributes, its operands and its columns in the op table of graphs. Beside it stand
//! the rule for the shape and the type that a step makes, and its part of a weight's name.
//!
//! Graphs have a step as an op, plans as an expression. Both are made of the table by
//! [`weight_steps`](crate::weight_steps). What a step does to numbers stands where numbers are: in
//! the interpreter of graphs and in the loader.
mod rules;

pub use rules::{Elements, Fault, MAX_AXES, MAX_BYTES, Size, Stored, Value, is_shape, no_shape};

use crate::{DType, Encode, Encoded, Fact, Order};

/// Gives the table of steps to a macro: `weight_steps!(steps! { more })` is
/// `steps! { graph [rows] plan [rows] more }`. Graphs have the first rows as ops; the others are
/// steps of plans alone.
///
/// A row has, in this order:
/// - the step's variant, its name in graphs and manifests, and its attributes; behind `;` an
///   attribute that graphs alone write, with its value in plans;
/// - `of`: the operands as plans name them, that of the step's numbers first, and how many tensors
///   each of them is;
/// - `packs`: whether a device's kernel that packs weights does the step as well;
/// - `op`, in rows of graphs: the operands as graphs name them, and the columns `Reads`, `Maker`
///   and `Values` of the op table, in its words.
#[macro_export]
macro_rules! weight_steps {
    ($table:ident! { $($more:tt)* }) => {
        $table! {
            graph [
                /// The operands one after the other along an axis.
                Concat = "concat" { axis: usize } of (parts: Many) packs true
                    op (many: Reads::along(*axis)) [Rows, Kept];
                /// `len` places of an axis from `start` on.
                Slice = "slice" { axis: usize, start: usize, len: usize } of (of: One) packs true
                    op (x: Reads::along(*axis)) [Inline, Values::along(*axis, *start, *len)];
                /// Each `step`-th place of an axis, from `start` on, which is below it.
                Every = "every" { axis: usize, step: usize, start: usize } of (of: One) packs true
                    op (x: Reads::along(*axis)) [Outside, Kept];
                /// The value with zeros behind it along an axis, which then has `len` places.
                Pad = "pad" { axis: usize, len: usize } of (of: One) packs false
                    op (x: Reads::along(*axis)) [Outside, Kept];
                /// Of `parts` equal parts along an axis the one of this rank: number
                /// `rank * parts / ranks`.
                Shard = "shard" { axis: usize, parts: usize } of (of: One) packs true
                    op (x: Reads::along(*axis)) [Outside, Kept];
                /// The values and a constant, added in f32, for a weight that is kept as what it
                /// differs by from the constant.
                Offset = "offset" { by: f32 } of (of: One) packs true
                    op (w: Row) [Outside, Other];
                /// Columns of each matrix as rows.
                Transpose = "transpose" {} of (of: One) packs true
                    op (x: All) [Outside, Other];
                /// The numbers of a stored tensor row by row under another shape.
                View = "view" { shape: Vec<usize> } of (of: One) packs false
                    op (x: All) [Outside, Kept];
                /// The first `len` codes of type `to` along one of the last two axes, of words of
                /// type `from`, whose last may have bits to spare. `order` says where in a word
                /// each code lies.
                Unpack = "unpack" { from: DType, to: DType, axis: usize, len: usize, order: Order }
                    of (of: One) packs false
                    op (words: Reads::along(*axis)) [Outside, Other];
                /// Unpacked integers plus a number, as integers of type `to`, which has all of
                /// these.
                Shift = "shift" { by: i32, to: DType } of (of: One) packs false
                    op (codes: Row) [Outside, Other];
                /// The codes or the scales that a stored matrix of floats becomes, block by block;
                /// codes of 4 bits as bytes of two.
                Encode = "encode" { by: Encode, made: Encoded } of (of: One) packs false
                    op (w: All) [Outside, Other];
                /// The same, if something else in the checkpoint is as expected: `told`, which
                /// nothing is computed with. What is not unpacked there is of integers, unless the
                /// fact is one of floats.
                Expect = "expect" { is: Fact } of (of: One, told: One) packs false
                    op (x: Row, told: All) [Outside, Kept];
                /// Unpacked codes times the power of two of their block of rows and columns, as
                /// floats: the last step but for packing. Scales are as those of `Scaled`.
                Dequantise = "dequantise" { block: [usize; 2]; to: DType = DType::F32 }
                    of (of: One, scale: One) packs false
                    op (codes: Shared, scale: Shared) [Outside, Other];
            ]
            plan [
                /// Codes of a weight, if their scales are finite and not negative, and zero only
                /// where a whole block of rows and columns is.
                Scaled = "scaled" { block: [usize; 2] } of (of: One, scale: One, zero: Perhaps) packs false;
            ]
            $($more)*
        }
    };
}

/// How many expressions an operand of a plan is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Count {
    One,
    Perhaps,
    Many,
}

macro_rules! steps {
    (graph [$($graph:tt)*] plan [$($plan:tt)*]) => { steps! { $($graph)* $($plan)* } };
    ($(
        $(#[doc = $doc:literal])*
        $name:ident = $text:literal { $($attr:ident: $ty:ty),* $(; $own:ident: $own_ty:ty = $plans:expr)? }
            of ($($of:ident: $count:ident),*) packs $packs:literal $(op $args:tt $columns:tt)?;
    )*) => {
        /// A step with its attributes and without its operands.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(missing_docs, reason = "the documentation of a variant says what its fields are")]
        pub enum Step {
            $($(#[doc = $doc])* $name { $($attr: $ty,)* $($own: $own_ty)? },)*
        }

        impl Step {
            /// The name in graphs and manifests.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Step::$name { .. } => $text,)*
                }
            }

            /// Whether a device's kernel that packs weights does the step as well.
            pub fn is_packed_by_devices(&self) -> bool {
                match self {
                    $(Step::$name { .. } => $packs,)*
                }
            }

            /// The operands as plans name them.
            fn operands(&self) -> &'static [(&'static str, Count)] {
                match self {
                    $(Step::$name { .. } => &[$((stringify!($of), Count::$count)),*],)*
                }
            }
        }
    };
}

weight_steps!(steps! {});

impl Step {
    /// Where an operand stands in a manifest, seen from the expression of the step.
    pub fn place(&self, operand: usize) -> String {
        match self.operands() {
            &[(name, Count::Many)] => format!(".{}.{name}[{operand}]", self.name()),
            all => format!(".{}.{}", self.name(), all.get(operand).map_or("", |(name, _)| name)),
        }
    }

    /// The step in the one line that names a weight, with its operands' lines.
    pub fn text(&self, of: &[String]) -> String {
        let said = match self {
            Step::Concat { axis: 0 } | Step::Transpose {} => String::new(),
            Step::Concat { axis } => format!(", axis {axis}"),
            Step::Slice { axis, start, len } => format!(", axis {axis}, {start}..{}", start + len),
            Step::Every { axis, step, start } => format!(", axis {axis}, {step} from {start}"),
            Step::Pad { axis, len } => format!(", axis {axis}, {len}"),
            Step::Shard { axis, parts } => format!(", axis {axis}, 1 of {parts}"),
            Step::Offset { by } => format!(", {by:?}"),
            Step::View { shape } => format!(", {shape:?}"),
            Step::Unpack { to, axis, len, order, .. } => {
                format!(", {len} {} along axis {axis}, {}", to.name(), order.name())
            }
            Step::Shift { by, to } => format!(", {by}, {}", to.name()),
            Step::Encode { by: Encode { codes, block: [rows, cols], .. }, made } => {
                let block = format!("Block {{ rows: {rows}, cols: {cols} }}");
                format!(", {} of {} by {block}", made.name(), codes.name())
            }
            Step::Expect { is } => format!(" {}", is.text()),
            Step::Dequantise { block: [rows, cols], .. } | Step::Scaled { block: [rows, cols] } => {
                format!(", blocks of {rows} by {cols}")
            }
        };
        format!("{}({}{said})", self.name(), of.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(shape: &[usize], elements: Elements) -> Value {
        Value::new(shape.to_vec(), elements, Stored::Tensor)
    }

    #[test]
    fn lines_name_weights() {
        let line = |step: Step, of: &[&str]| step.text(&of.iter().map(|&of| of.to_owned()).collect::<Vec<_>>());
        assert_eq!(line(Step::Concat { axis: 0 }, &["a", "b"]), "concat(a, b)");
        assert_eq!(line(Step::Concat { axis: 1 }, &["a", "b"]), "concat(a, b, axis 1)");
        assert_eq!(line(Step::Slice { axis: 1, start: 2, len: 3 }, &["a"]), "slice(a, axis 1, 2..5)");
        assert_eq!(line(Step::Every { axis: 1, step: 2, start: 1 }, &["a"]), "every(a, axis 1, 2 from 1)");
        assert_eq!(line(Step::Pad { axis: 0, len: 8 }, &["a"]), "pad(a, axis 0, 8)");
        assert_eq!(line(Step::Shard { axis: 0, parts: 2 }, &["a"]), "shard(a, axis 0, 1 of 2)");
        assert_eq!(line(Step::Offset { by: 1.0 }, &["a"]), "offset(a, 1.0)");
        assert_eq!(line(Step::Transpose {}, &["a"]), "transpose(a)");
        assert_eq!(line(Step::View { shape: vec![2, 3] }, &["a"]), "view(a, [2, 3])");
        let unpack = Step::Unpack { from: DType::I32, to: DType::U4, axis: 1, len: 15, order: Order::Awq };
        assert_eq!(line(unpack, &["a"]), "unpack(a, 15 u4 along axis 1, awq)");
        assert_eq!(line(Step::Shift { by: -8, to: DType::I4 }, &["a"]), "shift(a, -8, i4)");
        let by = Encode { codes: DType::F4E2M1, scales: DType::E8M0, block: [1, 32] };
        let encode = Step::Encode { by, made: Encoded::Codes };
        assert_eq!(line(encode, &["a"]), "encode(a, codes of f4e2m1 by Block { rows: 1, cols: 32 })");
        assert_eq!(line(Step::Expect { is: Fact::All(8) }, &["a", "b"]), "expect(a, b all(8))");
        let dequantise = Step::Dequantise { block: [32, 1], to: DType::F32 };
        assert_eq!(line(dequantise, &["a", "s"]), "dequantise(a, s, blocks of 32 by 1)");
    }

    #[test]
    fn places_name_operands() {
        assert_eq!(Step::Concat { axis: 0 }.place(3), ".concat.parts[3]");
        assert_eq!(Step::Transpose {}.place(0), ".transpose.of");
        let scaled = Step::Scaled { block: [1, 1] };
        assert_eq!([0, 1, 2].map(|operand| scaled.place(operand)), [".scaled.of", ".scaled.scale", ".scaled.zero"]);
    }

    /// A step with fewer operands than it has is a fault, and no panic.
    #[test]
    fn operands_are_counted() {
        let fault = |step: Step, of| step.value::<usize>(of).unwrap_err();
        assert_eq!(fault(Step::Transpose {}, vec![]).detail, "too few operands");
        assert_eq!(fault(Step::Concat { axis: 0 }, vec![]).detail, "concat of nothing");
        let one = value(&[2, 2], Elements::Codes(DType::U4));
        assert_eq!(fault(Step::Scaled { block: [1, 1] }, vec![one]).detail, "too few operands");
        let deep = value(&[1; 9], Elements::Stored);
        assert!(fault(Step::Transpose {}, vec![deep]).detail.ends_with("is not one to 4 sizes of at least 1"));
    }

    /// What a plan knows of its past, and a graph of its types.
    #[test]
    fn types_follow() {
        let unpack = |to| Step::Unpack { from: DType::I32, to, axis: 1, len: 15, order: Order::Plain };
        for words in [Elements::Stored, Elements::Of(DType::I32)] {
            let codes = unpack(DType::U4).value(vec![value(&[4, 2], words)]).unwrap();
            assert_eq!((codes.shape.as_slice(), codes.elements), (&[4, 15][..], Elements::Codes(DType::U4)));
        }
        let other = unpack(DType::U4).value(vec![value(&[4, 2], Elements::Of(DType::U8))]).unwrap_err();
        assert_eq!((&*other.at, &*other.detail), (".unpack.of", "these are other words"));
        let by = Encode { codes: DType::F4E2M1, scales: DType::E8M0, block: [1, 32] };
        let made = Step::Encode { by, made: Encoded::Codes }.value(vec![value(&[4, 33], Elements::Stored)]).unwrap();
        assert_eq!((made.shape.as_slice(), made.elements), (&[4, 17][..], Elements::Made(DType::U8)));
    }
}
