//! Rotary frequencies: the variants as one formula each.
use std::f64::consts::PI;
use std::fmt;

/// How the inverse frequencies of a rotary embedding are scaled.
#[derive(Clone, Debug, PartialEq)]
pub enum Scaling {
    Default,
    Linear {
        factor: f64,
    },
    /// The base grows with the length of the sequence: [`Freqs::inverse`] gives the frequencies up
    /// to `original` tokens, and the `rope_table` op applies the growth.
    Dynamic {
        factor: f64,
        original: usize,
    },
    Llama3 {
        factor: f64,
        low: f64,
        high: f64,
        original: usize,
    },
    Yarn {
        factor: f64,
        beta_fast: f64,
        beta_slow: f64,
        original: usize,
        truncate: bool,
    },
    /// Each frequency is divided by a factor of its own.
    Long {
        factors: Vec<f64>,
    },
    /// The first `turned` frequencies are divided by the factor; pairs behind them do not turn.
    Proportional {
        factor: f64,
        turned: usize,
    },
}

impl Scaling {
    pub const NAMES: [&'static str; 7] = ["default", "linear", "dynamic", "llama3", "yarn", "longrope", "proportional"];
}

/// Inverse frequencies of one rotary embedding over `dim` elements of a head.
#[derive(Clone, Debug, PartialEq)]
pub struct Freqs {
    pub theta: f64,
    pub dim: usize,
    pub scaling: Scaling,
}

/// As attributes of graphs have it: every number reads back as the same.
impl fmt::Display for Freqs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rest = match &self.scaling {
            Scaling::Default => "default".to_string(),
            Scaling::Linear { factor } => format!("linear, {factor:?}"),
            Scaling::Dynamic { factor, original } => format!("dynamic, {factor:?}, {original}"),
            Scaling::Llama3 { factor, low, high, original } => {
                format!("llama3, {factor:?}, {low:?}, {high:?}, {original}")
            }
            Scaling::Yarn { factor, beta_fast, beta_slow, original, truncate } => {
                format!("yarn, {factor:?}, {beta_fast:?}, {beta_slow:?}, {original}, {truncate}")
            }
            Scaling::Long { factors } => {
                let factors: Vec<String> = factors.iter().map(|factor| format!("{factor:?}")).collect();
                format!("longrope, {}", factors.join(", "))
            }
            Scaling::Proportional { factor, turned } => format!("proportional, {factor:?}, {turned}"),
        };
        write!(f, "({:?}, {}, {rest})", self.theta, self.dim)
    }
}

impl Freqs {
    /// `dim / 2` values, computed in double precision.
    pub fn inverse(&self) -> Vec<f64> {
        (0..self.dim / 2).map(|i| self.scaled(i, self.theta.powf(-2.0 * i as f64 / self.dim as f64))).collect()
    }

    fn scaled(&self, i: usize, inv: f64) -> f64 {
        match &self.scaling {
            Scaling::Default | Scaling::Dynamic { .. } => inv,
            Scaling::Linear { factor } => inv / factor,
            Scaling::Long { factors } => inv / factors[i],
            Scaling::Proportional { factor, turned } => {
                if i < *turned {
                    inv / factor
                } else {
                    0.0
                }
            }
            &Scaling::Llama3 { factor, low, high, original } => {
                let wavelength = 2.0 * PI / inv;
                let turns = original as f64 / wavelength;
                let smooth = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                (1.0 - smooth) * inv / factor + smooth * inv
            }
            &Scaling::Yarn { factor, beta_fast, beta_slow, original, truncate } => {
                let (low, high) = self.correction_range(beta_fast, beta_slow, original, truncate);
                let ramp = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                inv / factor * ramp + inv * (1.0 - ramp)
            }
        }
    }

    /// Between which elements YaRN goes over from the plain to the interpolated frequencies.
    fn correction_range(&self, fast: f64, slow: f64, original: usize, truncate: bool) -> (f64, f64) {
        let at = |turns: f64| self.dim as f64 * (original as f64 / (turns * 2.0 * PI)).ln() / (2.0 * self.theta.ln());
        let (mut low, mut high) = (at(fast), at(slow));
        if truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        let (low, high) = (low.max(0.0), high.min(self.dim as f64 - 1.0));
        (low, if low == high { high + 0.001 } else { high })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llama3_has_three_bands() {
        let plain = Freqs { theta: 10_000.0, dim: 32, scaling: Scaling::Default }.inverse();
        let scaling = Scaling::Llama3 { factor: 4.0, low: 1.0, high: 4.0, original: 128 };
        let scaled = Freqs { theta: 10_000.0, dim: 32, scaling }.inverse();
        assert_eq!(plain[0], scaled[0]);
        assert_eq!(plain[15] / 4.0, scaled[15]);
        assert!(plain.iter().zip(&scaled).any(|(p, s)| s < p && s * 4.0 > *p));
    }
}
