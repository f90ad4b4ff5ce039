//! From a row of logits to a token.

/// How to choose. The default is greedy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 is greedy.
    pub temperature: f32,
    /// Keep this many of the most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Of those, keep the fewest with probabilities that add up to this much; 1 keeps all.
    pub top_p: f32,
    /// Keep tokens that are at least this likely relative to the most likely one, before `top_p`
    /// counts; 0 keeps all.
    pub min_p: f32,
    /// Begins the sequence of random numbers; greedy choices need none.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0 }
    }
}

/// A number that nothing can be chosen by.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{field}: {value} is not {allowed}")]
pub struct SamplingError {
    /// Which number, as [`Sampling`] names it.
    pub field: &'static str,
    /// The value.
    pub value: f32,
    /// The allowed values, in words.
    pub allowed: &'static str,
}

impl Sampling {
    /// Checks that the numbers can be used to choose. Every `top_k` can: one beyond the vocabulary
    /// keeps all.
    pub fn check(&self) -> Result<(), SamplingError> {
        let Sampling { temperature, top_p, min_p, .. } = *self;
        let fault = |field, value, allowed| Err(SamplingError { field, value, allowed });
        if !(temperature.is_finite() && temperature >= 0.0) {
            return fault("temperature", temperature, "a finite number of at least 0");
        }
        if !(top_p > 0.0 && top_p <= 1.0) {
            return fault("top_p", top_p, "a number above 0 and at most 1");
        }
        if !(0.0..=1.0).contains(&min_p) {
            return fault("min_p", min_p, "a number from 0 to 1");
        }
        Ok(())
    }

    /// Whether nothing is left to chance: a temperature that is not positive gives nothing to weigh
    /// with.
    pub fn is_greedy(&self) -> bool {
        self.temperature <= 0.0 || !self.temperature.is_finite()
    }
}

/// Chooses tokens. The same logits and seed give the same tokens.
#[derive(Clone, Debug)]
pub struct Sampler {
    sampling: Sampling,
    random: Pcg,
    /// Tokens still in the running, with their logits and then their weights.
    candidates: Vec<(f32, u32)>,
}

/// The most likely token; of equals, the one with the lowest id. NaN is never likely.
pub fn greedy(logits: &[f32]) -> u32 {
    let mut best = (f32::NEG_INFINITY, 0);
    for (id, &logit) in (0..).zip(logits) {
        if logit > best.0 {
            best = (logit, id);
        }
    }
    best.1
}

impl Sampler {
    /// A sampler for one sequence. [`Sampling::check`] finds settings that it cannot choose by.
    pub fn new(sampling: Sampling) -> Sampler {
        Sampler { sampling, random: Pcg::new(sampling.seed), candidates: Vec::new() }
    }

    /// Chooses a token from one row of logits.
    pub fn sample(&mut self, logits: &[f32]) -> u32 {
        let Sampling { temperature, top_k, top_p, min_p, .. } = self.sampling;
        let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        // An infinite logit leaves nothing to weigh.
        if self.sampling.is_greedy() || !most.is_finite() {
            return greedy(logits);
        }
        self.candidates.clear();
        self.candidates.extend((0..).zip(logits).filter(|(_, logit)| !logit.is_nan()).map(|(id, &logit)| (logit, id)));
        if (1..self.candidates.len()).contains(&top_k) {
            self.candidates.select_nth_unstable_by(top_k - 1, likelier);
            self.candidates.truncate(top_k);
        }
        for (logit, _) in &mut self.candidates {
            *logit = ((*logit - most) / temperature).exp();
        }
        if min_p > 0.0 {
            self.candidates.retain(|&(weight, _)| weight >= min_p);
        }
        if top_p < 1.0 {
            self.keep_nucleus(top_p);
        }
        self.draw()
    }

    /// Keeps the most likely tokens up to a share of the whole, the one that reaches it among them.
    fn keep_nucleus(&mut self, share: f32) {
        let total = self.total();
        // The tokens below this bound have less than the rest of the share together, so none is in
        // the nucleus. It spares the sort nearly the whole vocabulary.
        let bound = (f64::from(1.0 - share) * total / self.candidates.len() as f64) as f32;
        self.candidates.retain(|&(weight, _)| weight >= bound);
        self.candidates.sort_unstable_by(likelier);
        let mut sum = 0.0;
        let reached = self.candidates.iter().position(|&(weight, _)| {
            sum += f64::from(weight);
            sum >= f64::from(share) * total
        });
        self.candidates.truncate(reached.map_or(usize::MAX, |last| last + 1));
    }

    fn total(&self) -> f64 {
        self.candidates.iter().map(|&(weight, _)| f64::from(weight)).sum()
    }

    fn draw(&mut self) -> u32 {
        let mut left = self.random.unit() * self.total();
        for &(weight, id) in &self.candidates {
            left -= f64::from(weight);
            if left < 0.0 {
                return id;
            }
        }
        // Rounding can leave a hair at the end.
        self.candidates.iter().rfind(|(weight, _)| *weight > 0.0).map_or(0, |&(_, id)| id)
    }
}

/// Order of likelihood; of equals, the lowest id first.
fn likelier(a: &(f32, u32), b: &(f32, u32)) -> std::cmp::Ordering {
    b.0.total_cmp(&a.0).then(a.1.cmp(&b.1))
}

/// PCG XSH RR 64/32 (O'Neill, 2014), the reference stream.
#[derive(Clone, Debug)]
struct Pcg {
    state: u64,
}

impl Pcg {
    const STREAM: u64 = 0xda3e_39cb_94b9_5bdb;

    fn new(seed: u64) -> Pcg {
        let mut pcg = Pcg { state: 0 };
        pcg.next();
        pcg.state = pcg.state.wrapping_add(seed);
        pcg.next();
        pcg
    }

    fn next(&mut self) -> u32 {
        let old = self.state;
        self.state = old.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(Self::STREAM << 1 | 1);
        (((old >> 18 ^ old) >> 27) as u32).rotate_right((old >> 59) as u32)
    }

    /// Uniform in [0, 1), of 53 bits.
    fn unit(&mut self) -> f64 {
        let bits = u64::from(self.next()) << 32 | u64::from(self.next());
        (bits >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frequencies(sampling: Sampling, logits: &[f32]) -> Vec<f64> {
        const DRAWS: usize = 40_000;
        let mut sampler = Sampler::new(sampling);
        let mut counts = vec![0.0; logits.len()];
        (0..DRAWS).for_each(|_| counts[sampler.sample(logits) as usize] += 1.0 / DRAWS as f64);
        counts
    }

    #[track_caller]
    fn close(found: &[f64], expect: &[f64]) {
        assert!(found.iter().zip(expect).all(|(a, b)| (a - b).abs() < 0.01), "{found:?} is not {expect:?}");
    }

    const LOGITS: [f32; 4] = [0.0, 2.0f32, 1.0, -1.0];

    fn softmax(logits: &[f32], temperature: f32) -> Vec<f64> {
        let weights: Vec<f64> = logits.iter().map(|&logit| f64::from(logit / temperature).exp()).collect();
        let total: f64 = weights.iter().sum();
        weights.into_iter().map(|weight| weight / total).collect()
    }

    #[test]
    fn greedy_takes_the_first_of_the_best() {
        assert_eq!(greedy(&[1.0, 3.0, 3.0, 2.0]), 1);
        assert_eq!(greedy(&[f32::NAN, -1.0, f32::NAN]), 1);
        assert_eq!(greedy(&[f32::NAN, f32::NEG_INFINITY]), 0);
        assert_eq!(Sampler::new(Sampling::default()).sample(&LOGITS), 1);
    }

    #[test]
    fn numbers_are_checked() {
        let good = [(0.0, 1.0), (-0.0, 1.0), (f32::MIN_POSITIVE, f32::MIN_POSITIVE), (f32::MAX, 0.5)];
        for (temperature, top_p) in good {
            assert_eq!(Sampling { temperature, top_p, ..Sampling::default() }.check(), Ok(()));
        }
        let message = |sampling: Sampling| sampling.check().unwrap_err().to_string();
        for temperature in [f32::NAN, -1.0, f32::INFINITY, f32::NEG_INFINITY] {
            let found = message(Sampling { temperature, ..Sampling::default() });
            assert_eq!(found, format!("temperature: {temperature} is not a finite number of at least 0"));
        }
        for top_p in [f32::NAN, -1.0, 0.0, 1.5, f32::INFINITY] {
            let found = message(Sampling { top_p, ..Sampling::default() });
            assert_eq!(found, format!("top_p: {top_p} is not a number above 0 and at most 1"));
        }
    }

    #[test]
    fn draws_from_the_softmax() {
        for temperature in [0.5, 1.0, 2.0] {
            close(
                &frequencies(Sampling { temperature, ..Sampling::default() }, &LOGITS),
                &softmax(&LOGITS, temperature),
            );
        }
    }

    #[test]
    fn top_k_keeps_exactly_k() {
        let sampling = Sampling { temperature: 1.0, top_k: 2, ..Sampling::default() };
        let (a, b) = (2f64.exp(), 1f64.exp());
        close(&frequencies(sampling, &LOGITS), &[0.0, a / (a + b), b / (a + b), 0.0]);
        close(&frequencies(sampling, &[1.0, 1.0, 1.0]), &[0.5, 0.5, 0.0]);
        let one = Sampling { top_k: 1, ..sampling };
        close(&frequencies(one, &LOGITS), &[0.0, 1.0, 0.0, 0.0]);
    }

    #[test]
    fn top_p_keeps_the_nucleus() {
        // The probabilities are 0.0871, 0.6439, 0.2369, 0.0321.
        let sampling = |top_p| Sampling { temperature: 1.0, top_p, ..Sampling::default() };
        close(&frequencies(sampling(0.6), &LOGITS), &[0.0, 1.0, 0.0, 0.0]);
        close(&frequencies(sampling(0.7), &LOGITS), &[0.0, 0.731, 0.269, 0.0]);
        close(&frequencies(sampling(0.9), &LOGITS), &[0.09, 0.665, 0.245, 0.0]);
        close(&frequencies(sampling(0.0), &LOGITS), &[0.0, 1.0, 0.0, 0.0]);
        close(&frequencies(sampling(1.0), &LOGITS), &softmax(&LOGITS, 1.0));
    }

    #[test]
    fn min_p_keeps_what_is_likely_beside_the_best() {
        // Relative to the best: 0.135, 1, 0.368, 0.050.
        let sampling = |min_p| Sampling { temperature: 1.0, min_p, ..Sampling::default() };
        close(&frequencies(sampling(0.4), &LOGITS), &[0.0, 1.0, 0.0, 0.0]);
        close(&frequencies(sampling(0.3), &LOGITS), &[0.0, 0.731, 0.269, 0.0]);
        close(&frequencies(Sampling { top_p: 0.7, ..sampling(0.3) }, &LOGITS), &[0.0, 1.0, 0.0, 0.0]);
        close(&frequencies(sampling(0.0), &LOGITS), &softmax(&LOGITS, 1.0));
        let message = sampling(1.5).check().unwrap_err().to_string();
        assert_eq!(message, "min_p: 1.5 is not a number from 0 to 1");
    }

    /// The bound that spares the sort changes nothing, also over a wide vocabulary.
    #[test]
    fn nucleus_is_exact() {
        let mut random = Pcg::new(9);
        let logits: Vec<f32> = (0..5000).map(|_| (random.unit() * 12.0) as f32).collect();
        for top_p in [0.1, 0.5, 0.9, 0.99] {
            let mut sorted: Vec<(f32, u32)> =
                (0..).zip(&logits).map(|(id, &logit)| ((logit - 12.0).exp(), id)).collect();
            sorted.sort_by(likelier);
            let total: f64 = sorted.iter().map(|c| f64::from(c.0)).sum();
            let mut sum = 0.0;
            let size =
                1 + sorted.iter().take_while(|c| (sum += f64::from(c.0), sum < f64::from(top_p) * total).1).count();
            let mut sampler = Sampler::new(Sampling::default());
            sampler.candidates = (0..).zip(&logits).map(|(id, &logit)| ((logit - 12.0).exp(), id)).collect();
            sampler.keep_nucleus(top_p);
            assert_eq!(sampler.candidates, sorted[..size]);
        }
    }

    #[test]
    fn is_deterministic_by_seed() {
        let logits = [0.0; 1000];
        let draw = |seed| {
            let mut sampler = Sampler::new(Sampling { temperature: 1.0, seed, ..Sampling::default() });
            (0..8).map(|_| sampler.sample(&logits)).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn survives_bad_rows() {
        let mut sampler = Sampler::new(Sampling { temperature: 1.0, top_k: 2, top_p: 0.5, min_p: 0.1, seed: 3 });
        assert_eq!(sampler.sample(&[]), 0);
        assert_eq!(sampler.sample(&[f32::NAN, f32::NAN]), 0);
        assert_eq!(sampler.sample(&[0.0, f32::INFINITY]), 1);
        assert_eq!(sampler.sample(&[f32::NEG_INFINITY, 0.0, f32::NAN]), 1);
    }

    /// The first numbers of the reference implementation's demo (pcg32_srandom(42, 54)) have
    /// another stream; these pin ours.
    #[test]
    fn generator_is_uniform() {
        let mut random = Pcg::new(5);
        let mut buckets = [0; 16];
        (0..160_000).for_each(|_| buckets[(random.unit() * 16.0) as usize] += 1);
        assert!(buckets.iter().all(|&count: &i32| (count - 10_000).abs() < 500), "{buckets:?}");
    }
}
