//! Schedule families: what a kernel is, before anyone knows its machine.

macro_rules! families {
    ($($(#[doc = $doc:literal])* $name:ident = $text:literal $tokens:ident;)*) => {
        /// The schedule family that emits a kernel.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Family {
            $($(#[doc = $doc])* $name,)*
        }

        impl Family {
            /// Every family.
            pub const ALL: [Family; [$($text),*].len()] = [$(Family::$name),*];

            /// The name in the text form, in symbols and in manifests.
            pub fn name(self) -> &'static str {
                match self {
                    $(Family::$name => $text,)*
                }
            }

            /// For how many tokens one kernel of the family is.
            pub fn tokens(self) -> Tokens {
                match self {
                    $(Family::$name => Tokens::$tokens,)*
                }
            }
        }
    };
}

/// For how many tokens a kernel of a family is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tokens {
    /// Any number.
    Any,
    /// The number of a bucket: the kernel is unrolled over its rows.
    Bucket,
    /// The number of a bucket on GPUs, where it decides among how many work-groups the work is
    /// shared out.
    BucketOnGpus,
    /// Any number; on GPUs steps that decode or verify guesses have kernels of their own, as a
    /// sequence has a few tokens there, and none goes in chunks.
    FewOnGpus,
}

families! {
    /// One row at a time: norms, rotary embedding, activations, gathers, the largest of a row,
    /// writes into the cache.
    Rows = "rows" Any;
    /// A contraction over few rows, with row-wise ops before it and elementwise ops after it.
    Matvec = "matvec" Bucket;
    /// A contraction over many rows, tiled, with elementwise ops after it.
    Matmul = "matmul" Any;
    /// Attention of one new token of each sequence, with the ops that make its queries, keys and
    /// values.
    AttendOne = "attend_one" BucketOnGpus;
    /// Attention of runs of tokens over a cache that already holds their keys and values.
    AttendMany = "attend_many" Any;
    /// The positions that each token attends to, by scores of the keys of a cache.
    Choose = "choose" BucketOnGpus;
    /// Attention of each token over listed positions of a cache that already holds their keys and
    /// values.
    AttendListed = "attend_listed" BucketOnGpus;
    /// Which rows of a step each expert has.
    Group = "group" Any;
    /// A contraction of few rows with the weights of their experts, with elementwise ops after it.
    GroupedMatvec = "grouped_matvec" Bucket;
    /// A contraction of many rows, a block of one expert's at a time, with elementwise ops after
    /// it.
    GroupedMatmul = "grouped_matmul" Any;
    /// One token of each sequence after the other, by a state that the sequence has.
    Recur = "recur" FewOnGpus;
}
