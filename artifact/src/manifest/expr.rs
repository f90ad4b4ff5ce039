//! The weight plan: how a buffer of parameters follows from the tensors of a checkpoint.
use atomc_dtype::step::Step;
use atomc_dtype::{DType, Encode, Encoded, Fact, Order, Whole, nth_name, weight_steps};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// Operands of a step, as expressions have them.
trait Operands: Sized {
    /// Adds those that there are.
    fn list<'a>(&'a self, all: &mut Vec<&'a WeightExpr>);
    /// The next ones, if there are as many as there must be.
    fn take(all: &mut std::vec::IntoIter<WeightExpr>) -> Option<Self>;
}

impl Operands for Box<WeightExpr> {
    fn list<'a>(&'a self, all: &mut Vec<&'a WeightExpr>) {
        all.push(self);
    }
    fn take(all: &mut std::vec::IntoIter<WeightExpr>) -> Option<Self> {
        all.next().map(Box::new)
    }
}

impl Operands for Option<Box<WeightExpr>> {
    fn list<'a>(&'a self, all: &mut Vec<&'a WeightExpr>) {
        all.extend(self.as_deref());
    }
    fn take(all: &mut std::vec::IntoIter<WeightExpr>) -> Option<Self> {
        Some(all.next().map(Box::new))
    }
}

impl Operands for Vec<WeightExpr> {
    fn list<'a>(&'a self, all: &mut Vec<&'a WeightExpr>) {
        all.extend(self);
    }
    fn take(all: &mut std::vec::IntoIter<WeightExpr>) -> Option<Self> {
        Some(all.collect())
    }
}

macro_rules! operands {
    (One) => { Box<WeightExpr> };
    (Perhaps) => { Option<Box<WeightExpr>> };
    (Many) => { Vec<WeightExpr> };
}

macro_rules! expressions {
    (graph [$($graph:tt)*] plan [$($plan:tt)*]) => { expressions! { $($graph)* $($plan)* } };
    ($(
        $(#[doc = $doc:literal])*
        $name:ident = $text:literal { $($attr:ident: $ty:ty),* $(; $own:ident: $own_ty:ty = $plans:expr)? }
            of ($of:ident: $count:ident $(, $more:ident: $more_count:ident)*) packs $packs:literal
            $(op $args:tt $columns:tt)?;
    )*) => {
        /// An expression over checkpoint tensors, of any number of axes. Conversion to the weight's
        /// type and layout comes last.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(rename_all = "lowercase", deny_unknown_fields)]
        #[allow(missing_docs, reason = "the documentation of a variant says what its fields are")]
        pub enum WeightExpr {
            /// A tensor of the checkpoint by its name, which must have this shape: of any float
            /// type where the weight is of one, else of the weight's.
            Tensor { name: String, shape: Vec<usize> },
            /// `count` tensors of this shape, stacked along a new first axis: `name` has a star in
            /// the place of their numbers. A checkpoint may have them in one tensor instead.
            Stack {
                name: String,
                count: usize,
                shape: Vec<usize>,
                #[serde(default, skip_serializing_if = "Option::is_none")]
                whole: Option<Whole>,
            },
            /// Values that follow from the configuration alone (rotary frequencies).
            Const { values: Vec<f32> },
            $(
                $(#[doc = $doc])*
                $name { $($attr: $ty,)* $($more: operands!($more_count),)* $of: operands!($count) },
            )*
        }

        impl WeightExpr {
            /// The outermost step; none of what a checkpoint or the configuration has.
            pub fn step(&self) -> Option<Step> {
                match self {
                    WeightExpr::Tensor { .. } | WeightExpr::Stack { .. } | WeightExpr::Const { .. } => None,
                    $(WeightExpr::$name { $($attr,)* .. } => {
                        Some(Step::$name { $($attr: $attr.clone(),)* $($own: $plans)? })
                    })*
                }
            }

            /// A step of such operands, if there are as many as it has.
            pub fn of(step: Step, operands: Vec<WeightExpr>) -> Option<WeightExpr> {
                let mut operands = operands.into_iter();
                let made = match step {
                    $(Step::$name { $($attr,)* .. } => {
                        let $of = Operands::take(&mut operands)?;
                        $(let $more = Operands::take(&mut operands)?;)*
                        WeightExpr::$name { $($attr,)* $($more,)* $of }
                    })*
                };
                operands.next().is_none().then_some(made)
            }

            /// The operands of the outermost step, that of its numbers first.
            pub fn operands(&self) -> Vec<&WeightExpr> {
                let mut all = Vec::new();
                match self {
                    WeightExpr::Tensor { .. } | WeightExpr::Stack { .. } | WeightExpr::Const { .. } => {}
                    $(WeightExpr::$name { $of, $($more,)* .. } => {
                        $of.list(&mut all);
                        $($more.list(&mut all);)*
                    })*
                }
                all
            }
        }
    };
}

weight_steps!(expressions! {});

impl WeightExpr {
    /// Works something out for the expression: `make` makes it for each step, of what it made for
    /// the step's operands.
    pub fn fold<'a, T>(&'a self, make: &mut impl FnMut(&'a WeightExpr, Vec<T>) -> T) -> T {
        let operands = self.operands().into_iter().map(|operand| operand.fold(make)).collect();
        make(self, operands)
    }

    /// Every tensor that the expression names, from left to right.
    pub fn sources(&self) -> Vec<Sources<'_>> {
        let mut all = Vec::new();
        self.fold(&mut |expr, _: Vec<()>| match expr {
            WeightExpr::Tensor { name, shape } => all.push(Sources::One { name, shape }),
            WeightExpr::Stack { name, count, shape, whole } => {
                all.push(Sources::Stack { name, count: *count, shape, whole: whole.as_ref() });
            }
            _ => {}
        });
        all
    }

    /// Name and shape of every tensor that the expression names, from left to right, those that may
    /// be in the place of others too.
    pub fn tensors(&self) -> Vec<(Cow<'_, str>, Cow<'_, [usize]>)> {
        self.sources().iter().flat_map(|sources| sources.each().chain(sources.whole())).collect()
    }
}

/// Tensors that an expression names together.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs, reason = "the documentation of a variant says what its fields are")]
pub enum Sources<'a> {
    /// See [`WeightExpr::Tensor`].
    One { name: &'a str, shape: &'a [usize] },
    /// See [`WeightExpr::Stack`].
    Stack { name: &'a str, count: usize, shape: &'a [usize], whole: Option<&'a Whole> },
}

/// A tensor's name and shape.
type Named<'a> = (Cow<'a, str>, Cow<'a, [usize]>);

impl<'a> Sources<'a> {
    /// The tensors one by one.
    pub fn each(&self) -> impl Iterator<Item = Named<'a>> + use<'a> {
        let (stack, name, count, shape) = match *self {
            Sources::One { name, shape } => (false, name, 1, shape),
            Sources::Stack { name, count, shape, .. } => (true, name, count, shape),
        };
        let name = move |number| if stack { nth_name(name, number).into() } else { name.into() };
        (0..count).map(move |number| (name(number), shape.into()))
    }

    /// The one tensor that may be in their place.
    pub fn whole(&self) -> Option<Named<'a>> {
        let &Sources::Stack { count, shape, whole: Some(whole), .. } = self else { return None };
        let rest = shape.get(1..).unwrap_or_default();
        Some(((&whole.name[..]).into(), [&[count, whole.rows], rest].concat().into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Operands come in the order of the table; manifests have that of the numbers last.
    #[test]
    fn steps_and_operands_make_the_expression() {
        let tensor = |name: &str| WeightExpr::Tensor { name: name.into(), shape: vec![1, 1] };
        let one = |name: &str| Box::new(tensor(name));
        let block = [1, 1];
        for expr in [
            WeightExpr::Concat { axis: 0, parts: vec![tensor("a"), tensor("b"), tensor("c")] },
            WeightExpr::Transpose { of: one("a") },
            WeightExpr::Expect { is: Fact::All(8), told: one("b"), of: one("a") },
            WeightExpr::Scaled { block, scale: one("b"), zero: None, of: one("a") },
            WeightExpr::Scaled { block, scale: one("b"), zero: Some(one("c")), of: one("a") },
            WeightExpr::Dequantise { block, scale: one("b"), of: one("a") },
        ] {
            let operands: Vec<WeightExpr> = expr.operands().into_iter().cloned().collect();
            let names = expr.tensors().into_iter().map(|(name, _)| name.into_owned()).collect::<String>();
            assert!("abc".starts_with(&names) && names.len() == operands.len(), "{names}");
            let step = expr.step().unwrap();
            assert_eq!(WeightExpr::of(step.clone(), operands.clone()).as_ref(), Some(&expr));
            let more = [operands, vec![tensor("d"), tensor("e")]].concat();
            assert_eq!(WeightExpr::of(step, more).is_some(), matches!(expr, WeightExpr::Concat { .. }));
            let of = expr.operands().first().map(|of| serde_json::to_string(of).unwrap()).unwrap();
            let json = serde_json::to_string(&expr).unwrap();
            assert!(json.ends_with(&format!("\"of\":{of}}}}}")) || json.starts_with("{\"concat\""), "{json}");
        }
        assert_eq!((tensor("a").step(), tensor("a").operands().len()), (None, 0));
        assert_eq!(WeightExpr::of(Step::Transpose {}, vec![]), None);
    }
}
