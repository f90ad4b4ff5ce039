//! The meaning of a checkpoint's `quantization_config`: which modules are quantised, how their
//! tensors are stored in the file, and how the rows that they multiply are quantised.
//!
//! Each method has a file that reads its fields. A field with a meaning that we do not support is a
//! fault that names it.
mod asked;
mod autoround;
mod awq_gptq;
mod bitsandbytes;
mod compressed_tensors;
mod fp8;
mod gguf;
mod made;
mod modelopt;
mod mxfp4;
mod names;
mod quark;
mod torchao;

use serde_json::{Value, json};

use crate::fields::Fields;
use crate::{DType, Diagnostic, Order};
pub use asked::{Modules, starred};
pub(crate) use fp8::{Release, USUAL};
use names::Names;

const FIELD: &str = "quantization_config";
/// The field that says which codes experts have.
const EXPERTS: &str = "expert_dtype";

/// What a method's fields are read with.
pub(crate) struct Around<'f, 'a> {
    /// The fields of the model.
    pub model: &'f Fields<'a>,
    pub dtype: DType,
    /// What the family's releases have with `fp8`.
    pub release: Release,
}

/// How the modules of a checkpoint are quantised.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantisation {
    /// As the file names it.
    pub method: &'static str,
    /// The first rule that names a module decides its scheme.
    rules: Vec<(Names, Option<Scheme>)>,
    /// Where scales of a cache of `f8e4m3` are, if the checkpoint has them.
    pub cache: Option<CacheScales>,
}

/// How the weight of a module is quantised.
#[derive(Clone, Debug, PartialEq)]
pub struct Scheme {
    /// The type of codes.
    pub codes: DType,
    /// The type of scales.
    pub scales: DType,
    pub blocks: Blocks,
    /// Whether each scale has a zero point.
    pub zeros: bool,
    pub stored: Stored,
    pub inputs: Option<Inputs>,
}

/// The elements that share a scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Blocks {
    Tensor,
    Row,
    /// This many columns of a row.
    Group(usize),
    /// This many rows and columns.
    Square(usize, usize),
}

/// The tensors of the file that make up a weight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Stored {
    /// `weight`, a code an element, and scales of this name.
    Codes { scale: &'static str, axes: Axes },
    /// A code an element, and scales, in tensors of these names.
    Named(Named),
    /// `weight`, two codes of a book in a byte, which become floats, with all that makes floats of
    /// them: `text` says how they lie. `nested` scales are codes, too.
    Book { text: &'static str, nested: bool },
    /// `weight`, as floats: codes and scales are made while it is loaded.
    Floats,
    /// Two codes of 4 bits a byte, and scales, in tensors of these names.
    Pairs { weight: &'static str, scale: &'static str },
    /// As `Pairs`, with scales of two levels.
    Levels(Levels),
    /// `weight_packed`, words along rows; codes are stored with half of their range added. If
    /// columns come in another order, `weight_g_idx` says which ones share a scale.
    Words { sorted: bool },
    /// `…_blocks`, two codes of 4 bits a byte, and `…_scales`: of all experts of a layer.
    Blocks,
    /// `weight.TYPE.codes` and `weight.TYPE.scales`, of a type of GGUF; and `weight.TYPE.least`:
    /// what is added to a group's numbers, or an integer that is taken off their codes.
    Typed { kind: &'static str, least: Option<DType> },
    /// `qweight`, words across columns, of the transposed weight.
    Awq,
    /// `qweight`, words down columns, of the transposed weight. `taken` was subtracted from zero
    /// points. Codes lie in words in this order.
    Gptq { taken: usize, told: Told, order: Order },
}

/// What `g_idx` says, which has the group of each column.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Told {
    /// There is none.
    Nothing,
    /// That groups follow each other.
    Groups,
    /// Which columns share a scale.
    Order,
}

/// The tensors of a weight of a code an element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Named {
    pub weight: &'static str,
    pub scale: &'static str,
    pub axes: Axes,
    /// What scales of the file are multiplied with.
    pub by: Option<f32>,
    /// A tensor of which all numbers must be zero.
    pub zeros: Option<(&'static str, Axes)>,
}

/// The tensors of a weight of pairs of codes whose scales of e4m3 have a number of their tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Levels {
    pub weight: &'static str,
    pub scale: &'static str,
    pub number: &'static str,
    /// Whether the number divides the scales.
    pub over: bool,
    /// The scale that the file has for rows of codes, which stay floats here.
    pub given: Option<&'static str>,
}

/// The axes of scales in the file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Axes {
    /// One number, with an axis or without.
    One,
    /// A number for each row.
    Vector,
    /// A row and a column for each block.
    Matrix,
}

/// How the rows that a weight multiplies are quantised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Inputs {
    pub codes: DType,
    pub scales: InputScales,
}

/// The source of rows' scales.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum InputScales {
    /// The file, as `input_scale`.
    Static,
    Row,
    /// This many columns of a row.
    Group(usize),
    /// This many columns of a row, with the scale rounded up to a power of two.
    Power(usize),
    /// A power of two for this many columns of a row, as MX formats have it.
    Mx(usize),
}

/// The tensors with the scales of keys and of values, relative to the path of a layer's attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CacheScales {
    pub keys: &'static str,
    pub values: &'static str,
    /// Whether these are of the projections that make keys and values.
    pub of_projections: bool,
}

/// Scales of the cache as vLLM names them.
const PLAIN_CACHE: CacheScales = CacheScales { keys: "k_scale", values: "v_scale", of_projections: false };

/// Modules that are no products of a layer.
const HEAD: &str = "lm_head";

impl Quantisation {
    /// How a module's weight is quantised, if it is. Writers of files spell its name in one of
    /// these ways.
    pub fn scheme(&self, spelled: &[impl AsRef<str>]) -> Option<&Scheme> {
        self.rule(spelled)?.1.as_ref()
    }

    /// Whether the rule of a module is one that names it, not the one of all products.
    pub fn names(&self, spelled: &[impl AsRef<str>]) -> bool {
        self.rule(spelled).is_some_and(|(names, _)| !names.are_layers())
    }

    /// The rule of a module: the first that has it.
    fn rule(&self, spelled: &[impl AsRef<str>]) -> Option<&(Names, Option<Scheme>)> {
        self.rules.iter().find(|(names, _)| spelled.iter().any(|module| names.has(module.as_ref())))
    }

    /// Whether codes are those of a GGUF file, which has its numbers as floats, too.
    pub fn is_of_file(&self) -> bool {
        self.method == GGUF
    }

    /// The columns of a group of each scheme that has groups.
    pub fn groups(&self) -> impl Iterator<Item = usize> {
        let schemes = self.rules.iter().filter_map(|(_, scheme)| scheme.as_ref());
        schemes.filter_map(|scheme| match scheme.blocks {
            Blocks::Group(columns) => Some(columns),
            _ => None,
        })
    }

    /// Whether a rule is of all products that no other names.
    pub fn has_rest(&self) -> bool {
        self.rules.iter().any(|(names, _)| names.are_layers())
    }

    /// Reads the part of a `config.json`, if it has one.
    pub(crate) fn read(around: &Around) -> Result<Option<Quantisation>, Diagnostic> {
        let f = around.model;
        let Some(fields) = f.object(FIELD)? else {
            return match f.get(EXPERTS) {
                Some(_) if around.release.experts.is_some() => {
                    Err(f.fault("config::quantised", EXPERTS, "is not supported without a quantization_config"))
                }
                _ => Ok(None),
            };
        };
        let method = fields.text("quant_method")?.ok_or_else(|| fields.missing("quant_method"))?;
        if method != "fp8" {
            without(f, EXPERTS)?;
        }
        let reader = METHODS.iter().find(|(name, _)| *name == canonical(method)).ok_or_else(|| {
            let known = METHODS.map(|(name, _)| name).join(", ");
            let message = format!("unknown method {method:?}");
            let help = "Others are saved as floats by their tools (`model.dequantize()` of transformers), \
                        and become codes here with `--quant`.";
            fields.fault("config::quantised", "quant_method", message).help(format!("Known: {known}. {help}"))
        })?;
        let quantisation = (reader.1)(&fields, around)?;
        f.note(FIELD, quantisation.echo());
        Ok(Some(quantisation))
    }

    /// The facts that distinguish models.
    pub(crate) fn echo(&self) -> Value {
        let rules = self.rules.iter().map(|(names, scheme)| {
            let scheme = scheme.as_ref().map_or("none".into(), Scheme::to_string);
            json!({ "modules": names.to_string(), "scheme": scheme })
        });
        let cache = self.cache.map(|cache| format!("{}, {}", cache.keys, cache.values));
        // In the order of their names, which not every build sorts by itself.
        json!({ "cache": cache, "quant_method": self.method, "rules": rules.collect::<Vec<_>>() })
    }
}

/// A method's name, and the function that reads it.
type Method = (&'static str, fn(&Fields, &Around) -> Result<Quantisation, Diagnostic>);

const METHODS: [Method; 12] = [
    ("fp8", fp8::read),
    ("mxfp8", fp8::read_powers),
    ("mxfp4", mxfp4::read),
    ("compressed-tensors", compressed_tensors::read),
    ("quark", quark::read),
    ("modelopt", modelopt::read),
    ("awq", awq_gptq::awq),
    ("gptq", awq_gptq::gptq),
    ("auto-round", autoround::read),
    ("bitsandbytes", bitsandbytes::read),
    ("torchao", torchao::read),
    (GGUF, gguf::read),
];

/// The method that readers of GGUF files write.
const GGUF: &str = "gguf";

/// Other names of methods. vLLM writes the first two into the configuration that it resolves; the
/// rest it has for the kernels that it would run, as does SGLang, and takes as `--quantization`.
const SPELLINGS: [(&str, &str); 11] = [
    ("gpt_oss_mxfp4", "mxfp4"),
    ("compressed_tensors", "compressed-tensors"),
    ("modelopt_fp4", "modelopt"),
    ("modelopt_mxfp8", "modelopt"),
    ("modelopt_mixed", "modelopt"),
    ("auto_awq", "awq"),
    ("awq_marlin", "awq"),
    ("auto_gptq", "gptq"),
    ("gptq_marlin", "gptq"),
    ("auto_round", "auto-round"),
    ("inc", "auto-round"),
];

/// The name by which [`METHODS`] has a method.
pub(crate) fn canonical(name: &str) -> &str {
    SPELLINGS.iter().find(|(other, _)| *other == name).map_or(name, |(_, name)| name)
}

impl std::fmt::Display for Scheme {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Scheme { codes, scales, blocks, zeros, stored, inputs } = self;
        write!(f, "{} with scales of {} for {blocks}", codes.name(), scales.name())?;
        let zeros = if *zeros { ", zero points" } else { "" };
        write!(f, "{zeros}, stored as {stored}")?;
        match inputs {
            Some(Inputs { codes, scales }) => write!(f, ", rows as {} with {scales}", codes.name()),
            None => Ok(()),
        }
    }
}

impl std::fmt::Display for Blocks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Blocks::Tensor => f.write_str("the tensor"),
            Blocks::Row => f.write_str("each row"),
            Blocks::Group(columns) => write!(f, "groups of {columns} columns"),
            Blocks::Square(rows, columns) => write!(f, "blocks of {rows} by {columns}"),
        }
    }
}

impl std::fmt::Display for Stored {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Stored::Codes { scale, axes } => write!(f, "codes with {scale}, {axes}"),
            Stored::Named(Named { weight, scale, .. }) => write!(f, "codes in {weight} with {scale}"),
            Stored::Book { text, nested } => {
                let scales = if *nested { " by scales that are codes" } else { "" };
                write!(f, "codes by {text} that become floats{scales}")
            }
            Stored::Floats => f.write_str("floats"),
            Stored::Pairs { weight, scale } => write!(f, "pairs of codes in {weight} with {scale}"),
            Stored::Levels(Levels { weight, scale, number, over, given }) => {
                let by = if *over { "over" } else { "times" };
                write!(f, "pairs of codes in {weight} with {scale} {by} {number}")?;
                given.map_or(Ok(()), |given| write!(f, ", {given} unused"))
            }
            Stored::Words { sorted } => {
                f.write_str("words along rows")?;
                if *sorted { f.write_str(", columns by weight_g_idx") } else { Ok(()) }
            }
            Stored::Blocks => f.write_str("blocks of all experts"),
            Stored::Typed { kind, least } => {
                write!(f, "{kind} of a GGUF file")?;
                least.map_or(Ok(()), |least| write!(f, " with least numbers of {}", least.name()))
            }
            Stored::Awq => f.write_str("AWQ's words across columns"),
            Stored::Gptq { taken, told, order } => {
                write!(f, "GPTQ's words down columns, {taken} off zero points")?;
                order.bits().map_or(Ok(()), |bits| write!(f, ", {bits} bits"))?;
                if *told == Told::Order { f.write_str(", columns by g_idx") } else { Ok(()) }
            }
        }
    }
}

impl std::fmt::Display for Axes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Axes::One => "one number",
            Axes::Vector => "a number for each row",
            Axes::Matrix => "a number for each block",
        })
    }
}

impl std::fmt::Display for InputScales {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            InputScales::Static => f.write_str("input_scale"),
            InputScales::Row => f.write_str("a scale for each row"),
            InputScales::Group(columns) => write!(f, "scales for groups of {columns} columns"),
            InputScales::Power(columns) => {
                write!(f, "scales rounded up to powers of two for groups of {columns} columns")
            }
            InputScales::Mx(columns) => write!(f, "powers of two for groups of {columns} columns"),
        }
    }
}

/// Columns that share a scale in NVFP4.
const NVFP4_GROUP: usize = 16;

/// Codes of e2m1 with scales of two levels, as f32 of both.
fn nvfp4(levels: Levels) -> Scheme {
    Scheme {
        codes: DType::F4E2M1,
        scales: DType::F32,
        blocks: Blocks::Group(NVFP4_GROUP),
        zeros: false,
        stored: Stored::Levels(levels),
        inputs: None,
    }
}

/// A number of bits, columns or rows, of these.
fn one_of_sizes(f: &Fields, name: &str, size: usize, known: &[usize]) -> Result<usize, Diagnostic> {
    match known.contains(&size) {
        true => Ok(size),
        false => Err(f.fault("config::quantised", name, format!("{size} is not supported, only {known:?}"))),
    }
}

/// Checks that a field has no meaning that weights would have to follow: absent, null, false or
/// empty.
fn without(f: &Fields, name: &str) -> Result<(), Diagnostic> {
    let empty = |v: &Value| match v {
        Value::Bool(set) => !set,
        Value::Object(map) => map.is_empty(),
        Value::Array(list) => list.is_empty(),
        _ => false,
    };
    match f.get(name) {
        Some(value) if !empty(value) => Err(f.fault("config::quantised", name, "is not supported")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
