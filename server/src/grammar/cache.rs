//! Forms that were prepared lately, by their description.
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::limits::FormError;
use super::{Form, Prepared};

/// Forms that are kept.
const MOST: usize = 64;
/// Bytes that they may hold, by estimate.
const MOST_BYTES: usize = 8 << 20;
/// A grammar holds some hundred times the bytes of its form: 900 for one of 1,000 properties.
const BYTES_PER_BYTE: usize = 900;

/// The result of preparing a form: a refused form is refused again.
type Outcome = Result<Prepared, FormError>;

/// Forms with their results, the most recently used ones at the end.
#[derive(Default)]
pub struct Cache {
    kept: Mutex<VecDeque<(Form, Outcome)>>,
}

impl Cache {
    fn kept(&self) -> MutexGuard<'_, VecDeque<(Form, Outcome)>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The result of a form that was prepared before.
    pub fn get(&self, form: &Form) -> Option<Outcome> {
        let mut kept = self.kept();
        let place = kept.iter().position(|(known, _)| known == form)?;
        let entry = kept.remove(place)?;
        let outcome = entry.1.clone();
        kept.push_back(entry);
        Some(outcome)
    }

    /// Keeps the result of a form, if it is not too large.
    pub fn put(&self, form: &Form, outcome: &Outcome) {
        let mut kept = self.kept();
        if bytes(form) > MOST_BYTES / 2 || kept.iter().any(|(known, _)| known == form) {
            return;
        }
        kept.push_back((form.clone(), outcome.clone()));
        while kept.len() > MOST || kept.iter().map(|(form, _)| bytes(form)).sum::<usize>() > MOST_BYTES {
            kept.pop_front();
        }
    }
}

fn bytes(form: &Form) -> usize {
    form.bytes() * BYTES_PER_BYTE + (64 << 10)
}
