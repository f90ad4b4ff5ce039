//! A stored case: a code object, its launch, and the contents of its buffers before and after.
//! `tests/triton/README.md` has the format.
use std::fs;
use std::path::{Path, PathBuf};

use atomc_artifact::hsaco::ValueKind;
use half::{bf16, f16};
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;

/// The JSON file of a case on one chip.
#[derive(Debug, Deserialize)]
pub struct Case {
    pub case: String,
    pub chip: String,
    pub code: PathBuf,
    pub data: PathBuf,
    pub symbol: String,
    pub grid: [u32; 3],
    pub threads: u32,
    pub dynamic_lds: u32,
    pub kernarg_bytes: usize,
    pub args: Vec<Arg>,
    pub outputs: Vec<Output>,
    #[serde(skip)]
    folder: PathBuf,
}

#[derive(Debug, Deserialize)]
pub struct Arg {
    pub name: String,
    pub offset: usize,
    pub size: usize,
    #[serde(flatten)]
    pub value: Value,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "kind", content = "value", rename_all = "lowercase")]
pub enum Value {
    Buffer,
    Null,
    I32(i32),
    Fp32(f32),
}

/// A buffer that the kernel writes. A result is right if it differs by no more than
/// `atol + rtol * |expected|`.
#[derive(Debug, Deserialize)]
pub struct Output {
    pub name: String,
    pub atol: f64,
    pub rtol: f64,
}

impl Case {
    /// All cases below a directory that are for a chip, by name.
    pub fn all(root: &Path, chip: &str) -> Vec<Case> {
        let entries = fs::read_dir(root).unwrap_or_else(|e| panic!("{}: {e}", root.display()));
        let files = entries.map(|e| e.unwrap().path().join(format!("{chip}.json"))).filter(|f| f.exists());
        let mut cases: Vec<Case> = files.map(|f| Case::read(&f)).collect();
        cases.sort_by(|a, b| a.case.cmp(&b.case));
        cases
    }

    fn read(file: &Path) -> Case {
        let text = fs::read(file).unwrap();
        let mut case: Case = serde_json::from_slice(&text).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        case.folder = file.parent().unwrap().into();
        case
    }

    pub fn code(&self) -> Vec<u8> {
        fs::read(self.folder.join(&self.code)).unwrap()
    }

    pub fn data(&self) -> Vec<u8> {
        fs::read(self.folder.join(&self.data)).unwrap()
    }

    /// The explicit arguments as the kernel reads them; `address` gives the place of a buffer.
    pub fn kernarg(&self, address: impl Fn(&str) -> u64) -> Vec<u8> {
        let mut bytes = vec![0; self.kernarg_bytes];
        for arg in &self.args {
            let value = match arg.value {
                Value::Buffer => address(&arg.name).to_le_bytes().to_vec(),
                Value::Null => vec![0; arg.size],
                Value::I32(v) => v.to_le_bytes().to_vec(),
                Value::Fp32(v) => v.to_le_bytes().to_vec(),
            };
            bytes[arg.offset..arg.offset + arg.size].copy_from_slice(&value);
        }
        bytes
    }

    /// The arguments as the metadata must list them: offset, size, kind.
    pub fn layout(&self) -> Vec<(usize, usize, ValueKind)> {
        let kind = |v: &Value| match v {
            Value::Buffer | Value::Null => ValueKind::GlobalBuffer,
            Value::I32(_) | Value::Fp32(_) => ValueKind::ByValue,
        };
        self.args.iter().map(|a| (a.offset, a.size, kind(&a.value))).collect()
    }

    /// The names of the buffers among the arguments.
    pub fn buffers(&self) -> impl Iterator<Item = &str> {
        self.args.iter().filter(|a| matches!(a.value, Value::Buffer)).map(|a| a.name.as_str())
    }
}

/// The largest error of an output, as a part of the allowed one, and its place.
pub fn worst(output: &Output, got: &[u8], tensors: &SafeTensors) -> (f64, String) {
    let tensor = tensors.tensor(&format!("out.{}", output.name)).unwrap();
    assert_eq!(got.len(), tensor.data().len());
    let (got, want) = (numbers(tensor.dtype(), got), numbers(tensor.dtype(), tensor.data()));
    let mut worst = (0.0, String::new());
    for (i, (&got, &want)) in got.iter().zip(&want).enumerate() {
        let allowed = output.atol + output.rtol * want.abs();
        let error = match (got - want).abs() {
            _ if got == want || got.is_nan() && want.is_nan() => 0.0,
            away if away <= allowed => away / allowed,
            _ => f64::INFINITY,
        };
        if error > worst.0 {
            worst = (error, format!("{}[{i}] of {:?} is {got}, expected {want}", output.name, tensor.shape()));
        }
    }
    worst
}

/// The elements of a tensor; 64-bit integers of the cases are exact in f64 or differ by more than
/// its rounding if wrong.
fn numbers(dtype: Dtype, bytes: &[u8]) -> Vec<f64> {
    fn each<const N: usize>(bytes: &[u8], f: impl Fn([u8; N]) -> f64) -> Vec<f64> {
        bytes.chunks_exact(N).map(|c| f(c.try_into().unwrap())).collect()
    }
    match dtype {
        Dtype::BF16 => each(bytes, |b| bf16::from_le_bytes(b).to_f64()),
        Dtype::F16 => each(bytes, |b| f16::from_le_bytes(b).to_f64()),
        Dtype::F32 => each(bytes, |b| f32::from_le_bytes(b).into()),
        Dtype::F64 => each(bytes, f64::from_le_bytes),
        Dtype::I8 => each(bytes, |b| i8::from_le_bytes(b).into()),
        Dtype::I32 => each(bytes, |b| i32::from_le_bytes(b).into()),
        Dtype::I64 => each(bytes, |b| i64::from_le_bytes(b) as f64),
        Dtype::F8_E4M3 => each(bytes, |[b]| if b & 0x7f == 0x7f { f64::NAN } else { e4m3(b, 7) }),
        Dtype::F8_E4M3FNUZ => each(bytes, |[b]| if b == 0x80 { f64::NAN } else { e4m3(b, 8) }),
        other => panic!("no case has a tensor of {other:?}"),
    }
}

/// An 8-bit float with three bits of mantissa.
fn e4m3(bits: u8, bias: i32) -> f64 {
    let (exponent, mantissa) = (i32::from(bits >> 3 & 15), f64::from(bits & 7) / 8.0);
    let value = match exponent {
        0 => mantissa * 2f64.powi(1 - bias),
        e => (1.0 + mantissa) * 2f64.powi(e - bias),
    };
    if bits & 0x80 == 0 { value } else { -value }
}
