//! The kinds of halves that layers have: a row each. The type of a row says how large its weights
//! are, and the compiler has a file for each with its graph.
use crate::{Attention, Delta, Experts, Gated, Latent, OwnRow, Pooled, ShortConv, Ssm};

/// A half of a layer. The result of its kind is added to the rows that go through.
#[derive(Clone, Debug, PartialEq)]
pub struct Half {
    pub kind: Kind,
    pub norms: Norms,
    /// Whether it sees what the half before it sees.
    pub beside: bool,
    /// What the rows that it sees, and its result, are multiplied with.
    pub factors: [f64; 2],
}

/// The norms before and after a half, by their names in the checkpoint.
pub type Norms = (Option<&'static str>, Option<&'static str>);

/// What a configuration asks of every kind.
pub(crate) trait Weights {
    /// The rows of its largest weight, which has a column for each number of the hidden size; and
    /// the field that they follow from.
    fn rows(&self) -> (&'static str, usize);
}

macro_rules! kinds {
    (($d:tt) $($(#[$doc:meta])* $name:ident($of:ty),)*) => {
        /// What a half of a layer computes.
        #[derive(Clone, Debug, PartialEq)]
        #[expect(clippy::large_enum_variant, reason = "a model has some hundred halves, which are read once")]
        pub enum Kind {
            $($(#[$doc])* $name($of),)*
        }

        impl Kind {
            /// See [`Weights::rows`].
            pub(crate) fn rows(&self) -> (&'static str, usize) {
                match self {
                    $(Kind::$name(of) => of.rows(),)*
                }
            }
        }

        $(
            impl From<$of> for Kind {
                fn from(of: $of) -> Kind {
                    Kind::$name(of)
                }
            }

            impl<'a> TryFrom<&'a Kind> for &'a $of {
                type Error = ();

                fn try_from(kind: &'a Kind) -> Result<&'a $of, ()> {
                    if let Kind::$name(of) = kind { Ok(of) } else { Err(()) }
                }
            }
        )*

        /// Evaluates one expression for every kind: `of_kind!(&half.kind, of => of.share(2))`.
        #[macro_export]
        macro_rules! of_kind {
            ($d kind:expr, $d of:ident => $d what:expr) => {
                match $d kind {
                    $($crate::Kind::$name($d of) => $d what,)*
                }
            };
        }
    };
}

kinds! { ($)
    /// Attention of heads over keys and values.
    Attention(Attention),
    /// Attention over latent rows.
    Latent(Latent),
    /// Attention over a window, and over rows of blocks of tokens.
    Pooled(Pooled),
    /// A convolution and the gated delta rule, with a recurrent state.
    Delta(Delta),
    /// A gated short convolution, with a recurrent state.
    ShortConv(ShortConv),
    /// A convolution and the state space of Mamba-2, with a recurrent state.
    Ssm(Ssm),
    /// A gated MLP.
    Gated(Gated),
    /// A mixture of experts.
    Experts(Experts),
    /// A layer's own embedding.
    OwnRow(OwnRow),
}
