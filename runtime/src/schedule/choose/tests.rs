use std::time::Duration;

use super::*;

const LOGITS: [f32; 5] = [1.0, 3.0, -1.0, 2.5, 0.0];

fn greedy(settings: Settings, prompt: &[u32], count: usize) -> Vec<u32> {
    let mut chooser = Chooser::new(settings, None, prompt);
    let mut next = || {
        let chosen = chooser.choose(&LOGITS).unwrap();
        chooser.take(chosen.token).unwrap();
        chosen.token
    };
    (0..count).map(|_| next()).collect()
}

fn penalties(repetition: f32, presence: f32, frequency: f32) -> Settings {
    Settings { penalties: Penalties { repetition, presence, frequency }, ..Settings::default() }
}

#[test]
fn penalties_count_what_was_there() {
    assert_eq!(greedy(Settings::default(), &[1], 3), [1, 1, 1]);
    // A prompt counts for repetition alone: 3 / 1.5 is below 2.5, which becomes 1.67 in its turn.
    assert_eq!(greedy(penalties(1.5, 0.0, 0.0), &[1], 3), [3, 1, 1]);
    assert_eq!(greedy(penalties(1.0, 1.0, 0.0), &[1], 4), [1, 3, 1, 1]);
    // 3, 2.5, 2.4, 1.9, 1.8.
    assert_eq!(greedy(penalties(1.0, 0.0, 0.6), &[1], 5), [1, 3, 1, 3, 1]);
    // Negative logits are multiplied.
    let settings = Settings { bias: vec![(1, -99.0), (3, -99.0), (0, -99.0), (4, -99.0)], ..penalties(2.0, 0.0, 0.0) };
    let mut chooser = Chooser::new(settings, None, &[2]);
    chooser.choose(&LOGITS).unwrap();
    assert_eq!(chooser.row[2], -2.0);
}

#[test]
fn a_bias_bans_and_forces() {
    assert_eq!(greedy(Settings { bias: vec![(1, -100.0)], ..Settings::default() }, &[], 1), [3]);
    assert_eq!(greedy(Settings { bias: vec![(2, 100.0), (99, 100.0)], ..Settings::default() }, &[], 1), [2]);
    assert_eq!(greedy(Settings { stop: vec![1], min_new: 2, ..Settings::default() }, &[], 3), [3, 3, 1]);
}

/// Allows one token after the other.
struct Row(Vec<u32>);

impl Guide for Row {
    fn progress(&mut self, _within: Duration) -> Result<Progress, String> {
        Ok(Progress::Open)
    }

    fn allow(&mut self, allowed: &mut Vec<u32>) -> Result<(), String> {
        let next = *self.0.first().ok_or("nothing is left")?;
        allowed.iter_mut().for_each(|word| *word = 0);
        allowed[next as usize / 32] |= 1 << (next % 32);
        Ok(())
    }

    fn take(&mut self, token: u32) -> Result<Progress, String> {
        assert_eq!(self.0.remove(0), token);
        Ok(if self.0.is_empty() { Progress::Complete } else { Progress::Open })
    }
}

#[test]
fn a_guide_is_followed() {
    let mut chooser = Chooser::new(Settings::default(), Some(Box::new(Row(vec![4, 2]))), &[]);
    assert!(!chooser.is_plain());
    for (token, is_last) in [(4, false), (2, true)] {
        assert_eq!(chooser.choose(&LOGITS).unwrap().token, token);
        assert_eq!(chooser.take(token), Ok(is_last.then_some(Why::Stop(None))));
    }
    assert_eq!(chooser.choose(&LOGITS), Err(ChoiceError::Guide("nothing is left".into())));
}

#[test]
fn rows_that_are_no_numbers_choose_nothing() {
    for settings in [Settings::default(), penalties(1.1, 0.0, 0.0)] {
        let mut chooser = Chooser::new(settings, None, &[]);
        assert_eq!(chooser.choose(&[f32::NAN; 5]), Err(ChoiceError::NotFinite));
        assert_eq!(chooser.choose(&[]), Err(ChoiceError::NotFinite));
    }
}

#[test]
fn likelihoods_are_of_the_model() {
    let settings = Settings { logprobs: Some(2), bias: vec![(2, 100.0)], ..Settings::default() };
    let chosen = Chooser::new(settings, None, &[]).choose(&LOGITS).unwrap();
    let found = chosen.likelihood.unwrap();
    let sum: f64 = LOGITS.iter().map(|&logit| f64::from(logit).exp()).sum();
    let of = |token: u32| (f64::from(LOGITS[token as usize]) - sum.ln()) as f32;
    let close = |a: f32, b: f32| (a - b).abs() < 1e-6;
    assert!(chosen.token == 2 && close(found.logprob, of(2)), "{found:?}");
    assert!(found.top.iter().zip([1, 3]).all(|(&(token, value), wanted)| token == wanted && close(value, of(wanted))));
    assert_eq!(likelihood(&LOGITS, 0, 99).top.len(), 5);
    assert_eq!(likelihood(&LOGITS, 0, 0).top, []);
}
