//! The table of types: what llama.cpp calls a type of tensors, how many elements and bytes a block
//! of it has, and how a block becomes floats.
use crate::blocks;

/// Makes the type and all that is known of it from the table. A decoder takes exactly the bytes of
/// its row, and makes exactly its elements.
macro_rules! types {
    ($($(#[$doc:meta])* $name:ident = $id:literal: $elements:literal in $bytes:literal, $decode:path;)*) => {
        /// The type of a tensor's elements, by the name that llama.cpp gives it.
        #[allow(non_camel_case_types, reason = "the names are those of llama.cpp")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Type { $($(#[$doc])* $name,)* }

        impl Type {
            /// All types, as the table has them.
            pub const ALL: &[Type] = &[$(Type::$name,)*];

            fn row(self) -> Row {
                match self {
                    $(Type::$name => Row {
                        id: $id,
                        name: stringify!($name),
                        elements: $elements,
                        bytes: $bytes,
                        decode: |bytes, out| {
                            let (blocks, outs) = (bytes.as_chunks::<$bytes>().0, out.as_chunks_mut::<$elements>().0);
                            blocks.iter().zip(outs).for_each(|(block, out)| $decode(block, out));
                        },
                    },)*
                }
            }
        }
    };
}

types! {
    /// IEEE's float of 32 bits.
    F32 = 0: 1 in 4, blocks::f32;
    /// IEEE's float of 16 bits.
    F16 = 1: 1 in 2, blocks::f16;
    /// The upper half of an `f32`.
    BF16 = 30: 1 in 2, blocks::bf16;
    /// Integers from -8 to 7 with a scale.
    Q4_0 = 2: 32 in 18, blocks::q4_0;
    /// Integers from 0 to 15 with a scale and a minimum.
    Q4_1 = 3: 32 in 20, blocks::q4_1;
    /// Integers from -16 to 15 with a scale.
    Q5_0 = 6: 32 in 22, blocks::q5_0;
    /// Integers from 0 to 31 with a scale and a minimum.
    Q5_1 = 7: 32 in 24, blocks::q5_1;
    /// Bytes with a sign, with a scale.
    Q8_0 = 8: 32 in 34, blocks::q8_0;
    /// Integers from 0 to 3; scales and minima of 4 bits for 16 elements.
    Q2_K = 10: 256 in 84, blocks::q2_k;
    /// Integers from -4 to 3; scales of 6 bits for 16 elements.
    Q3_K = 11: 256 in 110, blocks::q3_k;
    /// Integers from 0 to 15; scales and minima of 6 bits for 32 elements.
    Q4_K = 12: 256 in 144, blocks::q4_k;
    /// Integers from 0 to 31; scales and minima of 6 bits for 32 elements.
    Q5_K = 13: 256 in 176, blocks::q5_k;
    /// Integers from -32 to 31; scales of 8 bits for 16 elements.
    Q6_K = 14: 256 in 210, blocks::q6_k;
    /// Sixteen levels that are not evenly spaced, with a scale.
    IQ4_NL = 20: 32 in 18, blocks::iq4_nl;
    /// The same levels; scales of 6 bits for 32 elements.
    IQ4_XS = 23: 256 in 136, blocks::iq4_xs;
    /// -1, 0 or 1, five of them in a byte, with a scale.
    TQ1_0 = 34: 256 in 54, blocks::tq1_0;
    /// -1, 0 or 1, four of them in a byte, with a scale.
    TQ2_0 = 35: 256 in 66, blocks::tq2_0;
    /// `e2m1` of the OCP, with a power of two.
    MXFP4 = 39: 32 in 17, blocks::mxfp4;
}

struct Row {
    id: u32,
    name: &'static str,
    elements: usize,
    bytes: usize,
    decode: fn(&[u8], &mut [f32]),
}

/// Types of llama.cpp that are not read.
const OTHERS: &[(u32, &str)] = &[
    (9, "Q8_1"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (29, "IQ1_M"),
    (40, "NVFP4"),
];

impl Type {
    /// The type of this number in files, or what the number is called.
    pub fn of(id: u32) -> Result<Type, String> {
        let other = || OTHERS.iter().find(|(other, _)| *other == id).map(|(_, name)| (*name).to_owned());
        let found = Type::ALL.iter().copied().find(|kind| kind.id() == id);
        found.ok_or_else(|| other().unwrap_or_else(|| format!("number {id}")))
    }

    /// The number in files.
    pub fn id(self) -> u32 {
        self.row().id
    }

    /// The name that llama.cpp has for it.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Elements of a block. Rows are whole blocks.
    pub fn block(self) -> usize {
        self.row().elements
    }

    /// Bytes of a block.
    pub fn block_bytes(self) -> usize {
        self.row().bytes
    }

    /// The names of all types, for messages.
    pub fn names() -> String {
        Type::ALL.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(", ")
    }

    /// Makes floats of whole blocks, as many as there is room for: the reference for every other
    /// way to compute with a type.
    ///
    /// # Panics
    ///
    /// Panics if the bytes are not those of as many blocks as the floats are.
    pub fn dequantise(self, bytes: &[u8], out: &mut [f32]) {
        let Row { elements, bytes: size, decode, .. } = self.row();
        assert!(bytes.len().is_multiple_of(size), "{} has whole blocks", self.name());
        assert_eq!(bytes.len() / size * elements, out.len(), "{} makes an element of each", self.name());
        decode(bytes, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_of_one_type_each() {
        for &kind in Type::ALL {
            assert_eq!(Type::of(kind.id()), Ok(kind));
            assert!(OTHERS.iter().all(|(id, name)| *id != kind.id() && *name != kind.name()), "{}", kind.name());
        }
        assert_eq!(Type::of(16), Err("IQ2_XXS".to_owned()));
        assert_eq!(Type::of(4), Err("number 4".to_owned()));
    }
}
