//! Elementwise ops: one line each, generic over the scalar it computes with, so that the line is
//! the documentation, the reference and the kernel body.

use crate::ops::Values;

/// What a formula may do with a number. Implemented by `f32`, `f64` and by vectors of emitted code.
pub trait Scalar: Copy {
    /// `self + o`
    fn add(self, o: Self) -> Self;
    /// `self - o`
    fn sub(self, o: Self) -> Self;
    /// `self * o`
    fn mul(self, o: Self) -> Self;
    /// `self / o`
    fn div(self, o: Self) -> Self;
    /// The larger one.
    fn max(self, o: Self) -> Self;
    /// The exponential.
    fn exp(self) -> Self;
    /// Gauss error function.
    fn erf(self) -> Self;
    /// A constant of the same kind as `self`.
    fn lit(self, v: f64) -> Self;
}

macro_rules! float_scalar {
    ($($t:ty)*) => {$(
        impl Scalar for $t {
            fn add(self, o: Self) -> Self { self + o }
            fn sub(self, o: Self) -> Self { self - o }
            fn mul(self, o: Self) -> Self { self * o }
            fn div(self, o: Self) -> Self { self / o }
            fn max(self, o: Self) -> Self { <$t>::max(self, o) }
            fn exp(self) -> Self { <$t>::exp(self) }
            fn erf(self) -> Self { erf(self as f64) as $t }
            fn lit(self, v: f64) -> Self { v as $t }
        }
    )*};
}
float_scalar!(f32 f64);

/// Error function to about 1e-15: the Taylor series near zero, the continued fraction of `erfc`
/// elsewhere.
fn erf(x: f64) -> f64 {
    let a = x.abs();
    if a.is_nan() {
        return x;
    }
    if a > 6.0 {
        return x.signum();
    }
    let scale = std::f64::consts::FRAC_2_SQRT_PI;
    if a < 3.0 {
        let (mut term, mut sum) = (a, a);
        for n in 1..100 {
            term *= -a * a / n as f64;
            sum += term / (2 * n + 1) as f64;
        }
        return (sum * scale).copysign(x);
    }
    let tail = (1..=60).rev().fold(0.0, |t, k| k as f64 / 2.0 / (a + t));
    (1.0 - (-a * a).exp() / (a + tail) * scale / 2.0).copysign(x)
}

/// A constant of a formula. Equal if its bits are.
#[derive(Clone, Copy, Debug)]
pub struct Number(
    /// What is computed with.
    pub f64,
);

impl PartialEq for Number {
    fn eq(&self, other: &Number) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}

impl Eq for Number {}

impl std::hash::Hash for Number {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.to_bits().hash(state);
    }
}

macro_rules! elementwise {
    ($($(#[doc = $doc:literal])* $name:ident $({$($attr:ident),+})? = $text:literal ($($arg:ident),+) $(, $commutes:ident $values:ident)? => $formula:expr;)*) => {
        /// An op that computes each element of its result from the same element of its operands.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Elementwise {
            $($(#[doc = $doc])* $name $({
                $(
                    /// A constant of the formula.
                    $attr: Number,
                )+
            })?,)*
        }

        impl Elementwise {
            /// Every op, with 1 for its constants.
            pub const ALL: &'static [Elementwise] = &[$(Elementwise::$name $({ $($attr: Number(1.0)),+ })?),*];

            /// Its name in the text form.
            pub fn name(self) -> &'static str {
                match self { $(Elementwise::$name { .. } => $text,)* }
            }

            /// Its constants by name.
            pub fn constants(self) -> Vec<(&'static str, f64)> {
                match self { $(Elementwise::$name $({ $($attr),+ })? => vec![$($((stringify!($attr), $attr.0)),+)?],)* }
            }

            /// The same op with the constants that `read` gives for names.
            pub fn with<E>(self, mut read: impl FnMut(&'static str) -> Result<f64, E>) -> Result<Elementwise, E> {
                Ok(match self { $(Elementwise::$name { .. } => Elementwise::$name $({ $($attr: Number(read(stringify!($attr))?)),+ })?,)* })
            }

            /// Names of the operands.
            pub fn operands(self) -> &'static [&'static str] {
                match self { $(Elementwise::$name { .. } => &[$(stringify!($arg)),+],)* }
            }

            /// What it computes, in a line.
            pub fn doc(self) -> &'static str {
                match self { $(Elementwise::$name { .. } => concat!($($doc),*),)* }
            }

            /// Whether the two operands may change places.
            pub fn commutes(self) -> bool {
                match self { $(Elementwise::$name { .. } => false $(|| stringify!($commutes) == "commutes")?,)* }
            }

            /// What the elements of the first operand become.
            pub fn values(self) -> Values {
                match self { $(Elementwise::$name { .. } => [$(Values::$values,)? Values::Other][0],)* }
            }

            /// The formula, on one element of each operand.
            pub fn eval<S: Scalar>(self, args: &[S]) -> S {
                match self {
                    $(Elementwise::$name $({ $($attr),+ })? => {
                        let [$($arg),+] = args else { panic!("{} takes {:?}", $text, self.operands()) };
                        $(let $arg = *$arg;)+
                        $formula
                    })*
                }
            }
        }
    };
}

fn silu<S: Scalar>(x: S) -> S {
    x.div(x.lit(1.0).add(x.lit(0.0).sub(x).exp()))
}

fn gelu<S: Scalar>(x: S) -> S {
    x.mul(x.lit(0.5)).mul(x.lit(1.0).add(x.mul(x.lit(std::f64::consts::FRAC_1_SQRT_2)).erf()))
}

/// `0.5 * (1 + tanh(u))` is `1 / (1 + exp(-2u))`.
fn gelu_tanh<S: Scalar>(x: S) -> S {
    let u = x.add(x.mul(x).mul(x).mul(x.lit(0.044715))).mul(x.lit((2.0 / std::f64::consts::PI).sqrt()));
    x.div(x.lit(1.0).add(u.mul(u.lit(-2.0)).exp()))
}

/// The sigmoid's steepness is that of OpenAI's CLIP, as transformers' `QuickGELUActivation` has it.
fn quick_gelu<S: Scalar>(x: S) -> S {
    x.div(x.lit(1.0).add(x.mul(x.lit(-1.702)).exp()))
}

/// The smaller one.
fn min<S: Scalar>(a: S, b: S) -> S {
    let negative = |x: S| x.lit(0.0).sub(x);
    negative(negative(a).max(negative(b)))
}

/// Cut off at a limit and below its negative.
fn within<S: Scalar>(x: S, limit: f64) -> S {
    min(x, x.lit(limit)).max(x.lit(-limit))
}

fn sigmoid<S: Scalar>(x: S) -> S {
    x.lit(1.0).div(x.lit(1.0).add(x.lit(0.0).sub(x).exp()))
}

/// `ln(1 + e)` for `e` from 0 to 1 is `2 atanh(s)` of `s = e / (2 + e)`, a third at most: the terms
/// of its series that are left out are below 1e-11.
pub fn softplus<S: Scalar>(x: S) -> S {
    let away = x.lit(0.0).sub(x.max(x.lit(0.0).sub(x)));
    let e = away.exp();
    let s = e.div(e.add(e.lit(2.0)));
    let square = s.mul(s);
    let series = (0..10).rev().fold(s.lit(0.0), |sum, n| sum.mul(square).add(s.lit(1.0 / (2 * n + 1) as f64)));
    x.max(x.lit(0.0)).add(s.mul(s.lit(2.0)).mul(series))
}

/// The continued fraction of a quarter of `x`, doubled twice: up to 12, from where on it is 1 to
/// 1e-10. Small numbers keep their relative precision.
fn tanh<S: Scalar>(x: S) -> S {
    let x = within(x, 12.0).mul(x.lit(0.25));
    let square = x.mul(x);
    let of = |terms: [f64; 4]| terms[1..].iter().fold(x.lit(terms[0]), |sum, &term| sum.mul(square).add(x.lit(term)));
    let quarter = x.mul(of([1.0, 378.0, 17_325.0, 135_135.0])).div(of([28.0, 3_150.0, 62_370.0, 135_135.0]));
    (0..2).fold(quarter, |t, _| t.add(t).div(t.mul(t).add(t.lit(1.0))))
}

/// Near a limit no number goes beyond it.
fn softly<S: Scalar>(x: S, limit: f64) -> S {
    tanh(x.mul(x.lit(1.0 / limit))).mul(x.lit(limit))
}

fn squared<S: Scalar>(x: S) -> S {
    x.mul(x)
}

/// With numbers that are cut off at a limit, the gate only above.
fn silu_bounded<S: Scalar>(gate: S, up: S, limit: f64) -> S {
    silu(min(gate, gate.lit(limit))).mul(within(up, limit))
}

/// With numbers that are cut off at a limit, the gate only above.
fn swiglu_clamped<S: Scalar>(gate: S, up: S, alpha: f64, limit: f64) -> S {
    let (gate, up) = (min(gate, gate.lit(limit)), within(up, limit));
    let swish = gate.div(gate.lit(1.0).add(gate.mul(gate.lit(-alpha)).exp()));
    swish.mul(up.add(up.lit(1.0)))
}

elementwise! {
    /// a + b
    Add = "add" (a, b), commutes Added => a.add(b);
    /// a * b
    Mul = "mul" (a, b), commutes Multiplied => a.mul(b);
    /// x * by
    Scale {by} = "scale" (x) => x.mul(x.lit(by.0));
    /// x * (1 / scale), as what has a scale becomes codes
    Unscale = "unscale" (x, scale) => x.mul(x.lit(1.0).div(scale));
    /// x / (1 + exp(-x))
    Silu = "silu" (x) => silu(x);
    /// 1 / (1 + exp(-x))
    Sigmoid = "sigmoid" (x) => sigmoid(x);
    /// -exp(log) * ln(1 + exp(x + bias)), the logarithm of what a state is multiplied with
    Decay = "decay" (x, bias, log) => x.lit(0.0).sub(log.exp()).mul(softplus(x.add(bias)));
    /// least * sigmoid(exp(log) * (x + bias)), such a logarithm that stays above a number
    DecayBounded {least} = "decay_bounded" (x, bias, log) => sigmoid(log.exp().mul(x.add(bias))).mul(x.lit(least.0));
    /// ln(1 + exp(x + bias))
    Softplus = "softplus" (x, bias) => softplus(x.add(bias));
    /// x * Phi(x), exact
    Gelu = "gelu" (x) => gelu(x);
    /// x * Phi(x), by the tanh approximation
    GeluTanh = "gelu_tanh" (x) => gelu_tanh(x);
    /// x / (1 + exp(-1.702 x))
    QuickGelu = "quick_gelu" (x) => quick_gelu(x);
    /// max(x, 0)^2
    ReluSquared = "relu_squared" (x) => squared(x.max(x.lit(0.0)));
    /// max(x, 0)
    Relu = "relu" (x) => x.max(x.lit(0.0));
    /// beta * tanh(x / beta) * sigmoid(x)
    Situ {beta} = "situ" (x) => softly(x, beta.0).mul(sigmoid(x));
    /// beta * tanh(gate / beta) * sigmoid(gate) * linear * tanh(up / linear)
    SituMul {beta, linear} = "situ_mul" (gate, up) => softly(gate, beta.0).mul(sigmoid(gate)).mul(softly(up, linear.0));
    /// limit * tanh(x / limit)
    SoftCap {limit} = "soft_cap" (x) => softly(x, limit.0);
    /// silu(gate) * up
    SiluMul = "silu_mul" (gate, up) => silu(gate).mul(up);
    /// gelu(gate) * up
    GeluMul = "gelu_mul" (gate, up) => gelu(gate).mul(up);
    /// gelu_tanh(gate) * up
    GeluTanhMul = "gelu_tanh_mul" (gate, up) => gelu_tanh(gate).mul(up);
    /// gate * up, of a gate up to a limit and an up within it
    MulLimited {limit} = "mul_limited" (gate, up) => min(gate, gate.lit(limit.0)).mul(within(up, limit.0));
    /// silu(gate) * up, of a gate up to a limit and an up within it
    SiluBounded {limit} = "silu_bounded" (gate, up) => silu_bounded(gate, up, limit.0);
    /// gate * sigmoid(alpha gate) * (up + 1), of a gate up to a limit and an up within it
    SwigluClamped {alpha, limit} = "swiglu_clamped" (gate, up) => swiglu_clamped(gate, up, alpha.0, limit.0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn erf_at_known_points() {
        // Abramowitz and Stegun, table 7.1.
        for (x, want) in
            [(0.0, 0.0), (0.5, 0.5204998778), (1.0, 0.8427007929), (2.0, 0.9953222650), (3.5, 0.999999256902)]
        {
            assert!((erf(x) - want).abs() < 1e-10, "erf({x}) = {}", erf(x));
            assert_eq!(erf(-x), -erf(x));
        }
    }

    #[test]
    fn every_formula_takes_its_operands() {
        for op in Elementwise::ALL {
            let args = vec![0.5f64; op.operands().len()];
            assert!(op.eval(&args).is_finite(), "{}", op.name());
        }
    }

    #[test]
    fn decays_are_those_of_softplus() {
        // As Python computes -exp(log) * log1p(exp(x + bias)).
        for ([x, bias, log], want) in [
            ([0.0, 0.0, 0.0], -std::f64::consts::LN_2),
            ([1.0, -3.0, 0.5], -0.20926891165420952),
            ([2.0, 0.5, -1.0], -0.9487205142943126),
            ([30.0, 1.0, 0.0], -31.0),
            ([-30.0, 1.0, 0.0], -2.543665647376923e-13),
        ] {
            let made: f64 = Elementwise::Decay.eval(&[x, bias, log]);
            assert!((made - want).abs() < 1e-10, "{x} {bias} {log}: {made}");
        }
        assert_eq!(Elementwise::Sigmoid.eval(&[-200.0f32]), 0.0);
        // As PyTorch computes it in float64.
        let bounded = Elementwise::DecayBounded { least: Number(-5.0) };
        for ([x, bias, log], want) in
            [([1.0, -3.0, 0.5], -0.17829515), ([2.0, 0.5, -1.0], -3.5749034), ([90.0, 0.0, 3.0], -5.0)]
        {
            let made: f64 = bounded.eval(&[x, bias, log]);
            assert!((made - want).abs() < 1e-5, "{x} {bias} {log}: {made}");
        }
    }

    #[test]
    fn activations_at_extremes() {
        assert_eq!(Elementwise::Silu.eval(&[-200.0f32]), 0.0);
        assert_eq!(Elementwise::Silu.eval(&[200.0f32]), 200.0);
        assert!(Elementwise::Silu.eval(&[f32::NAN]).is_nan());
        assert_eq!(Elementwise::GeluTanh.eval(&[50.0f32]), 50.0);
        let capped = |x: f32| Elementwise::SoftCap { limit: Number(30.0) }.eval(&[x]);
        assert_eq!([capped(1e9), capped(-1e9), capped(0.0)], [30.0, -30.0, 0.0]);
        // As Python computes 30 * tanh(20 / 30).
        assert!((capped(20.0) - 17.483_488).abs() < 1e-5, "{}", capped(20.0));
        let clamped = Elementwise::SwigluClamped { alpha: Number(1.702), limit: Number(7.0) };
        // As PyTorch computes it in float64.
        for ([gate, up], want) in
            [([1.0, 2.0], 2.537387), ([100.0, 9.0], 55.999625), ([-3.0, -9.0], 0.108428), ([-900.0, 3.0], 0.0)]
        {
            let made: f64 = clamped.eval(&[gate, up]);
            assert!((made - want).abs() < 1e-5, "{gate} {up}: {made}");
        }
        for x in [-900.0f64, -12.5, -2.0, -1e-3, 0.0, 1e-9, 0.7, 3.0, 11.0, 900.0] {
            let [made, want]: [f64; 2] = [tanh(x), x.tanh()];
            assert!((made - want).abs() <= 1e-10 * want.abs(), "tanh({x}) = {made}");
        }
        let situ = Elementwise::SituMul { beta: Number(4.0), linear: Number(25.0) };
        let made: f64 = situ.eval(&[-3.0, 30.0]);
        let want = 4.0 * (-0.75f64).tanh() / (1.0 + 3f64.exp()) * 25.0 * 1.2f64.tanh();
        assert!((made - want).abs() < 1e-8, "{made} {want}");
        let bounded = Elementwise::SiluBounded { limit: Number(7.0) };
        for ([gate, up], want) in [([1.0, 2.0], 1.4621172), ([100.0, 9.0], 48.955361), ([-3.0, -9.0], 0.995943)] {
            let made: f64 = bounded.eval(&[gate, up]);
            assert!((made - want).abs() < 1e-5, "{gate} {up}: {made}");
        }
        let limited = Elementwise::MulLimited { limit: Number(7.0) };
        for ([gate, up], want) in [([1.0, 2.0], 2.0), ([100.0, 9.0], 49.0), ([-9.0, -9.0], 63.0), ([8.0, -3.0], -21.0)]
        {
            assert_eq!(limited.eval(&[gate, up]), want);
        }
    }
}
