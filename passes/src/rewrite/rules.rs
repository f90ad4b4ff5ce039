//! The table of fusion rules.

/// A rewrite in the IR's text, without types: `%x` are the nodes of the pattern, `?x` any values.
/// Operands of commuting ops match in either order. A node with readers outside of the pattern does
/// not match.
#[derive(Debug)]
pub struct Rule {
    pub name: &'static str,
    pub find: &'static str,
    pub make: &'static str,
    /// Rules that may want the same root and come later in the table.
    pub before: &'static [&'static str],
}

pub const RULES: &[Rule] = &[
    Rule {
        name: "silu_mul",
        find: "%g = silu ?gate
               %y = mul %g, ?up",
        make: "%y = silu_mul ?gate, ?up",
        before: &["gelu_mul", "gelu_tanh_mul"],
    },
    Rule {
        name: "gelu_mul",
        find: "%g = gelu ?gate
               %y = mul %g, ?up",
        make: "%y = gelu_mul ?gate, ?up",
        before: &["gelu_tanh_mul"],
    },
    Rule {
        name: "gelu_tanh_mul",
        find: "%g = gelu_tanh ?gate
               %y = mul %g, ?up",
        make: "%y = gelu_tanh_mul ?gate, ?up",
        before: &[],
    },
    Rule {
        name: "all_reduce_add",
        find: "%s = all_reduce ?x
               %y = add ?a, %s",
        make: "%y = all_reduce ?x, ?a",
        before: &[],
    },
];
