//! What the results of a step are called. A new state of a cache has the name of the parameter that
//! it comes from.

/// The logits of the rows that want them.
pub const LOGITS: &str = "logits";
/// The likeliest token after each of those rows.
pub const PICKS: &str = "picks";
/// Those logits over the whole vocabulary, where each rank has a part of it.
pub const WHOLE_LOGITS: &str = "whole_logits";
/// The rows of all tokens that logits are made of, and all that logits need of a step. Rows of
/// other layers are called `hidden.` and something.
pub const HIDDEN: &str = "hidden";

/// The rows that a draft model continues with: of all tokens of the target's step, and of those
/// that want logits of the draft's own. As a parameter of the draft's step, the rows that its
/// tokens take.
pub const DRAFTED: &str = "drafted";

/// The rows of tokens before the first layer, if they are more than rows of a weight. The caller of
/// a step may replace them.
pub const EMBEDDINGS: &str = "embeddings";

/// Whether a result is rows of all tokens, which a whole step does not have.
pub fn is_hidden(name: &str) -> bool {
    name.strip_prefix(HIDDEN).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_rows_go_by_their_name() {
        assert!(is_hidden(HIDDEN) && is_hidden("hidden.12"));
        assert!(!is_hidden("hiddens") && !is_hidden(LOGITS) && !is_hidden(""));
    }
}
