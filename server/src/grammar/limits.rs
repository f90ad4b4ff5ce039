//! What forms of answers may be, and what they may take. Each limit is told by its name where it is
//! reached.
use std::time::Duration;

/// Limits of forms.
#[derive(Clone, Copy, Debug)]
pub struct FormLimits {
    /// Time that preparing a form may take.
    pub prepare: Duration,
    /// Time that a form may wait for those of others.
    pub wait: Duration,
    /// Forms that may wait.
    pub waiting: usize,
    /// Time that finding the tokens which may come next may take, once.
    pub mask: Duration,
    /// The same over an answer.
    pub answer: Duration,
    /// What each token of the answer adds to that.
    pub token: Duration,
    /// Bytes of a form.
    pub bytes: usize,
    /// Texts of a choice.
    pub choices: usize,
    /// Bytes of them.
    pub choice_bytes: usize,
    /// Values of a schema, those of `enum` apart.
    pub values: usize,
    /// Values of all `enum`.
    pub enum_values: usize,
    /// Properties of one object.
    pub properties: usize,
    /// Properties of a schema.
    pub all_properties: usize,
    /// Patterns of properties.
    pub patterns: usize,
    /// Schemas that `$ref` leads through, one after the other.
    pub references: usize,
    /// Alternatives that `allOf` makes by combining those of its schemas.
    pub combined: u64,
    /// Expressions that one text must match at once.
    pub conjuncts: u64,
    /// The sum of all different `multipleOf`, of which states are made.
    pub multiples: u64,
    /// Rules and terminals of a grammar.
    pub rules: usize,
    /// Names, texts and expressions in a grammar.
    pub items: usize,
    /// Texts and expressions in a grammar.
    pub terminals: usize,
    /// Bytes of an expression.
    pub expression: usize,
    /// Steps of its expressions after one character.
    pub steps: u64,
}

impl Default for FormLimits {
    fn default() -> FormLimits {
        FormLimits {
            prepare: Duration::from_secs(2),
            wait: Duration::from_secs(10),
            waiting: 64,
            mask: Duration::from_secs(1),
            answer: Duration::from_secs(20),
            token: Duration::from_millis(50),
            bytes: 1 << 20,
            choices: 100_000,
            choice_bytes: 2 << 20,
            values: 20_000,
            enum_values: 20_000,
            properties: 2_500,
            all_properties: 5_000,
            patterns: 64,
            references: 1000,
            combined: 64,
            conjuncts: 8,
            multiples: 20_000,
            rules: 2_000,
            items: 20_000,
            terminals: 2_500,
            expression: 64 << 10,
            steps: 1_000_000,
        }
    }
}

/// Why a form is not followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "a message says what its variant means, and shows the fields")]
pub enum FormError {
    #[error("the form has {found} {what}; at most {most} are taken")]
    TooMuch { what: &'static str, found: u64, most: u64 },
    #[error("{0}")]
    Wrong(String),
    #[error("preparing the form takes longer than {} s", .0.as_secs_f64())]
    Slow(Duration),
    #[error("forms of other requests are being prepared; try again later")]
    Busy,
    #[error("{0}")]
    Fault(String),
}

/// That there are not more of something than may be.
pub(super) fn at_most(what: &'static str, found: impl TryInto<u64>, most: impl TryInto<u64>) -> Result<(), FormError> {
    let (found, most) = (found.try_into().unwrap_or(u64::MAX), most.try_into().unwrap_or(u64::MAX));
    if found > most { Err(FormError::TooMuch { what, found, most }) } else { Ok(()) }
}
