//! Hyper-connections: in place of one row that all halves of layers add to, several streams, of
//! which a half sees a mixture. After it they are mixed with each other and with what it made.
use crate::Diagnostic;
use crate::fields::Fields;

/// Most streams: weights of their mixtures are kept in registers.
const MAX_STREAMS: usize = 8;
const MAX_ROUNDS: usize = 1024;

/// The streams of a token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Streams {
    pub count: usize,
    /// How often the sums of rows and of columns of a mixture are made one.
    pub rounds: usize,
    /// What is added to weights and to these sums.
    pub eps: f64,
}

/// After how many layers rows are kept, if the family has the field, and a configuration uses it.
pub(crate) fn kept_every(f: &Fields, field: Option<&'static str>) -> Result<Option<usize>, Diagnostic> {
    let Some(name) = field else { return Ok(None) };
    let every = f.size_or_none(name)?;
    f.note(name, every);
    Ok(every)
}

/// The streams of a family that has some.
pub(crate) fn read(f: &Fields) -> Result<Streams, Diagnostic> {
    let count = f.at_most("hc_mult", f.or("hc_mult", Fields::size, 4)?, MAX_STREAMS)?;
    let rounds = f.at_most("hc_sinkhorn_iters", f.or("hc_sinkhorn_iters", Fields::size, 20)?, MAX_ROUNDS)?;
    Ok(Streams { count, rounds, eps: f.or("hc_eps", Fields::not_negative, 1e-6)? })
}
