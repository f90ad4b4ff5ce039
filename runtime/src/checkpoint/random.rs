//! Random weights instead of a checkpoint: a model can be timed with its configuration alone.
use super::{CheckpointError, Source, Tensor};
use atomc_artifact::manifest::DType;

const STD: f32 = 0.02;

/// The same for embeddings: a token's own row outweighs the additions of layers, so that routers,
/// which see it after a norm, send tokens to experts evenly and each to others.
const EMBEDDING_STD: f32 = 20.0;

/// Scales of codes are between this and half of it, so that weights of them are small.
const SCALE: f32 = 1.0 / 1024.0;

/// A source that makes up every tensor: about normal with a standard deviation of 0.02, around 1
/// for the weights of norms and around 0 for all others, and of 20 for embeddings; codes and words
/// of them are any bits that are numbers, and scales small. The values depend on the seed, the
/// tensor's name and the place in it, on nothing else.
#[derive(Clone, Copy, Debug)]
pub struct Random {
    /// Other seeds make other values of every tensor.
    pub seed: u64,
}

/// The values of one made-up tensor.
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    key: u64,
    mean: f32,
    std: f32,
    scale: bool,
}

impl Source for Random {
    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor<'_>, CheckpointError> {
        let norm = shape.len() == 1 && name.contains("norm") && name.ends_with(".weight");
        // FNV-1a, then mixed with the seed.
        let hash = name
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        let scale = name.rsplit('.').next().is_some_and(|last| last.contains("scale"));
        let mean = if norm { 1.0 } else { 0.0 };
        let std = if name.contains("embed") { EMBEDDING_STD } else { STD };
        Ok(Tensor::Random(Stream { key: mix(hash ^ mix(self.seed)), mean, std, scale }))
    }

    fn names(&self) -> Vec<&str> {
        Vec::new()
    }
}

impl Stream {
    /// Element `index`: the sum of four uniform 16-bit numbers (variance 4/12 in units of their
    /// range), which is close to normal, from one round of a counter-based generator.
    #[inline]
    pub fn at(self, index: u64) -> f32 {
        let bits = self.bits(index);
        if self.scale {
            return self.scale(index);
        }
        let sum = (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
        let scale = self.std * 1.732_050_8 / 65536.0;
        (sum as i32 - 131_070) as f32 * scale + self.mean
    }

    /// Element `index` of a tensor of scales.
    pub fn scale(self, index: u64) -> f32 {
        SCALE * (0.5 + (self.bits(index) & 0xffff) as f32 / 131_072.0)
    }

    /// Element `index` of a tensor of codes, in its lowest bits, never NaN; or of one of words,
    /// which may have any bits.
    #[inline]
    pub fn code(self, index: u64, dtype: DType) -> u32 {
        let bits = self.bits(index) as u32;
        match dtype {
            // Below 2 in size, so that no sum of a few thousand of them overflows anything.
            DType::F8E4M3 => bits & 0xbf,
            DType::E8M0 => 127 - 10 - (bits & 1),
            _ => bits,
        }
    }

    #[inline]
    fn bits(self, index: u64) -> u64 {
        mix(self.key.wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }
}

/// The finaliser of SplitMix64.
#[inline]
pub(crate) fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(seed: u64, name: &str, count: u64) -> Vec<f32> {
        match (Random { seed }).tensor(name, &[count as usize]).unwrap() {
            Tensor::Random(stream) => (0..count).map(|i| stream.at(i)).collect(),
            other => panic!("{other:?}"),
        }
    }

    fn mean_and_std(values: &[f32]) -> (f64, f64) {
        let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / values.len() as f64;
        let variance = values.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / values.len() as f64;
        (mean, variance.sqrt())
    }

    #[test]
    fn is_about_normal() {
        let values = values(1, "model.layers.0.mlp.up_proj.weight", 100_000);
        let (mean, std) = mean_and_std(&values);
        assert!(mean.abs() < 4e-4 && (std - 0.02).abs() < 4e-4, "{mean} {std}");
        let within = values.iter().filter(|v| v.abs() < 0.02).count() as f64 / values.len() as f64;
        assert!((within - 0.683).abs() < 0.02, "{within}");
    }

    #[test]
    fn scales_are_small_and_codes_are_numbers() {
        for name in ["model.layers.0.mlp.up_proj.weight_scale_inv", "q_proj.scales"] {
            assert!(values(1, name, 1000).iter().all(|v| (SCALE / 2.0..SCALE).contains(v)), "{name}");
        }
        let Ok(Tensor::Random(stream)) = (Random { seed: 1 }).tensor("w", &[1]) else { panic!("made up") };
        assert!((0..10_000).all(|i| stream.code(i, DType::F8E4M3) & 0x7f != 0x7f));
        assert!((0..10_000).all(|i| stream.code(i, DType::E8M0) & 0xff < 127));
    }

    #[test]
    fn norms_are_around_one() {
        let (mean, std) = mean_and_std(&values(1, "model.layers.0.input_layernorm.weight", 10_000));
        assert!((mean - 1.0).abs() < 2e-3 && std < 0.03, "{mean} {std}");
    }

    #[test]
    fn depends_on_seed_and_name_only() {
        assert_eq!(values(1, "a", 64), values(1, "a", 64));
        assert_ne!(values(1, "a", 64), values(2, "a", 64));
        assert_ne!(values(1, "a", 64), values(1, "b", 64));
    }
}
