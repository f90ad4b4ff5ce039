//! The options of every verb that reads a model's configuration.
use std::collections::BTreeMap;

use atomc::frontend::{self, Config, Unfit};
use atomc_ir::DType;

use super::failure::{Failure, tell};
use super::place::Place;

#[derive(clap::Args)]
pub struct ModelArgs {
    /// Hugging Face model folder, or its config.json, or a name of the hub that is in its cache, or
    /// a GGUF file
    #[arg(value_parser = Place::parser())]
    model: Place,
    /// Type to compute with: bf16, f16 or f32 [default: the configuration's]
    #[arg(long, value_name = "TYPE", value_parser = dtype)]
    dtype: Option<DType>,
    /// Type of the KV cache: fp8, which is e4m3 with a scale of 1, or auto, which is the type to
    /// compute with
    #[arg(long, value_name = "TYPE", value_enum, default_value_t = CacheDType::Auto)]
    cache_dtype: CacheDType,
    /// Longest sequence in tokens [default: the configuration's]
    #[arg(long, value_name = "N", value_parser = context)]
    context: Option<usize>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum CacheDType {
    Auto,
    Fp8,
}

fn dtype(text: &str) -> Result<DType, String> {
    let named = frontend::DTYPES.into_iter().find_map(|(name, dtype)| (name == text).then_some(dtype));
    let known = "known types: bf16, f16, f32, and their names in a configuration";
    named.or_else(|| DType::from_name(text).filter(|d| d.is_float())).ok_or(known.into())
}

fn context(text: &str) -> Result<usize, String> {
    let wanted = || format!("must be a whole number from 1 to {}", frontend::MAX_SIZE);
    text.parse().ok().filter(|n| (1..=frontend::MAX_SIZE).contains(n)).ok_or_else(wanted)
}

impl ModelArgs {
    pub fn config(&self) -> Result<Config, Failure> {
        self.applied(self.read()?)
    }

    /// The configuration without these options.
    pub fn read(&self) -> Result<Config, Failure> {
        Ok(self.model.model()?.config()?)
    }

    /// A configuration with these options applied.
    pub fn applied(&self, mut config: Config) -> Result<Config, Failure> {
        config.dtype = self.dtype.unwrap_or(config.dtype);
        config.cache = match self.cache_dtype {
            CacheDType::Auto => config.cache,
            CacheDType::Fp8 => Some(DType::F8E4M3),
        };
        let reach = config.reach();
        config.context = self.context.unwrap_or(config.context);
        if config.context > reach {
            let made =
                format!("--context {} is more than the {reach} positions that the model was made for", config.context);
            tell(format_args!("warning: {made}: nothing is known of its answers beyond"));
        }
        Ok(config)
    }
}

/// Has a model quantised by rules, if there are some, and says what they leave as it is.
pub fn quantise(config: &mut Config, rules: &[String]) -> Result<(), Failure> {
    if rules.is_empty() {
        return Ok(());
    }
    config.quantise(rules)?;
    let mut reasons: BTreeMap<Unfit, Vec<String>> = BTreeMap::new();
    for (module, why) in frontend::left(config)? {
        reasons.entry(why).or_default().push(module);
    }
    for (why, modules) in reasons {
        tell(format_args!("--quant leaves {} as they are: {why}", modules.join(", ")));
    }
    Ok(())
}
