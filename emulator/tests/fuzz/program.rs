//! Random programs as LLVM IR text.
//!
//! A program is straight-line code with branches, over values of many types. It contains nothing
//! that the language leaves open: NaN are made one pattern and zeros positive if their bits could
//! show (LLVM fuses a product and a conversion to f16 with an addition of +0, for one), shifts and
//! divisions stay defined, and fused operations on f16 are absent, because this machine would round
//! them twice.
mod steps;

use std::fmt::Write;

/// Words of input of one work-item.
pub const INPUTS: usize = 8;
pub const THREADS: usize = 64;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Host,
    Device,
}

pub struct Random(u64);

/// Bits that make trouble in one type or another.
const EDGES: [u32; 24] = [
    0,
    1,
    0xffff_ffff,
    0x8000_0000,
    0x7fff_ffff,
    0x3f80_0000,
    0xbf80_0000,
    0x7f80_0000,
    0xff80_0000,
    0x7fc0_0000,
    0x0080_0000,
    0x807f_ffff,
    0x7f7f_ffff,
    0x3c00_7c00,
    0x8000_0001,
    0x03ff_0400,
    0xfbff_7bff,
    0x7e00_fe00,
    0x4b80_0000,
    0x00ff_ffff,
    0xcf00_0000,
    0x4f80_0000,
    0x3380_0000,
    0x0000_ffff,
];

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678_9abc_def1)
    }

    fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() >> 33) as usize % n
    }

    pub fn word(&mut self) -> u32 {
        match self.below(6) {
            0 => EDGES[self.below(EDGES.len())],
            1 => self.below(256) as u32,
            2 => (self.below(2000) as i32 - 1000) as u32,
            // Numbers of a size that neither overflows nor vanishes at once.
            3 => ((self.below(4096) as f32 - 2048.0) / 64.0).to_bits(),
            4 => {
                let half =
                    |r: &mut Random| u32::from(half::f16::from_f32((r.below(512) as f32 - 256.0) / 16.0).to_bits());
                half(self) | half(self) << 16
            }
            _ => self.bits() as u32,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Type {
    I1,
    I8,
    I16,
    I32,
    I64,
    F16,
    Bf16,
    F32,
    F64,
    V2I16,
    V2F16,
}

use Type::*;

impl Type {
    fn text(self) -> &'static str {
        match self {
            I1 => "i1",
            I8 => "i8",
            I16 => "i16",
            I32 => "i32",
            I64 => "i64",
            F16 => "half",
            Bf16 => "bfloat",
            F32 => "float",
            F64 => "double",
            V2I16 => "<2 x i16>",
            V2F16 => "<2 x half>",
        }
    }

    fn suffix(self) -> &'static str {
        match self {
            F16 => "f16",
            Bf16 => "bf16",
            F32 => "f32",
            F64 => "f64",
            V2I16 => "v2i16",
            V2F16 => "v2f16",
            other => other.text(),
        }
    }

    fn bits(self) -> u32 {
        match self {
            I1 => 1,
            I8 => 8,
            I16 | F16 | Bf16 => 16,
            I64 | F64 => 64,
            _ => 32,
        }
    }

    /// The integer type of the same size.
    fn raw(self) -> Type {
        match self.bits() {
            16 => I16,
            64 => I64,
            _ => I32,
        }
    }
}

/// A program under construction: lines and the values that later lines may use.
struct Builder {
    random: Random,
    body: String,
    next: usize,
    values: Vec<(String, Type)>,
    blocks: usize,
    /// The label of the block at hand, for phis.
    block: String,
}

pub struct Program {
    pub seed: u64,
    body: String,
    results: Vec<String>,
}

const LENGTH: usize = 40;
const RESULTS: usize = 12;

impl Program {
    pub fn random(seed: u64) -> Program {
        let mut b = Builder {
            random: Random::new(seed),
            body: String::new(),
            next: 0,
            values: Vec::new(),
            blocks: 0,
            block: "entry".into(),
        };
        b.inputs();
        for _ in 0..LENGTH {
            if b.random.below(12) == 0 { b.branch() } else { b.step() }
        }
        let results = (0..RESULTS).map(|_| b.result()).collect();
        Program { seed, body: b.body, results }
    }

    pub fn name(&self) -> String {
        format!("k{}", self.seed)
    }

    pub fn outputs(&self) -> usize {
        self.results.len()
    }

    pub fn text(&self, side: Side) -> String {
        let (attributes, tail, space) = match side {
            Side::Host => ("", "", ""),
            Side::Device => ("amdgpu_kernel", "#0", " addrspace(1)"),
        };
        let mut text = String::new();
        let parameters = if side == Side::Host { "i32 %t, " } else { "" };
        let _ = writeln!(
            text,
            "define {attributes} void @{}({parameters}ptr{space} %in, ptr{space} %out) {tail} {{\nentry:",
            self.name()
        );
        if side == Side::Device {
            text += "  %t = call i32 @llvm.amdgcn.workitem.id.x()\n";
        }
        text += &self.body.replace("@P", &format!("ptr{space}"));
        let _ = writeln!(text, "  %obase = mul i32 %t, {}", self.outputs());
        for (k, result) in self.results.iter().enumerate() {
            let _ = writeln!(text, "  %oi{k} = add i32 %obase, {k}\n  %oz{k} = zext i32 %oi{k} to i64");
            let _ = writeln!(text, "  %op{k} = getelementptr i32, ptr{space} %out, i64 %oz{k}");
            let _ = writeln!(text, "  store i32 {result}, ptr{space} %op{k}, align 4");
        }
        text + "  ret void\n}\n"
    }
}

/// A module of programs. Intrinsics declare themselves.
pub fn module(programs: &[Program], side: Side) -> String {
    let mut text: String = programs.iter().map(|p| p.text(side)).collect();
    text += "attributes #0 = { \"amdgpu-flat-work-group-size\"=\"64,64\" }\n";
    if side == Side::Device {
        text += "declare i32 @llvm.amdgcn.workitem.id.x()\n";
    } else {
        text += BF16_CALLS;
    }
    let mut declared: Vec<&str> = Vec::new();
    for line in text.lines().filter_map(|l| l.split_once("; declare ").map(|(_, d)| d)) {
        if !declared.contains(&line) {
            declared.push(line);
        }
    }
    let declarations: String = declared.iter().map(|d| format!("declare {d}\n")).collect();
    text + &declarations
}

/// Conversions to bf16 that code for this machine calls: to nearest even, here in integer
/// arithmetic. The result travels in a vector register, as the calling convention wants.
const BF16_CALLS: &str = "
define bfloat @__truncsfbf2(float %x) {
  %b = bitcast float %x to i32
  %s = lshr i32 %b, 16
  %odd = and i32 %s, 1
  %bias = add i32 %odd, 32767
  %r = add i32 %b, %bias
  %t = lshr i32 %r, 16
  %nan = fcmp uno float %x, %x
  %v = select i1 %nan, i32 32704, i32 %t
  %h = trunc i32 %v to i16
  %f = bitcast i16 %h to bfloat
  ret bfloat %f
}
";

impl Builder {
    fn name(&mut self) -> String {
        self.next += 1;
        format!("%v{}", self.next)
    }

    /// A new value of a type from an instruction's text.
    fn emit(&mut self, ty: Type, text: &str) -> String {
        let name = self.name();
        let _ = writeln!(self.body, "  {name} = {text}");
        self.values.push((name.clone(), ty));
        name
    }

    /// A value that no later line may pick.
    fn hidden(&mut self, text: &str) -> String {
        let name = self.name();
        let _ = writeln!(self.body, "  {name} = {text}");
        name
    }

    /// A call of an intrinsic over one type.
    fn call(&mut self, ty: Type, name: &str, arguments: &[(Type, String)]) -> String {
        let types: Vec<&str> = arguments.iter().map(|a| a.0.text()).collect();
        let texts: Vec<String> = arguments.iter().map(|a| format!("{} {}", a.0.text(), a.1)).collect();
        let declaration = format!("{} @llvm.{name}({})", ty.text(), types.join(", "));
        format!("call {} @llvm.{name}({}) ; declare {declaration}", ty.text(), texts.join(", "))
    }

    fn pick(&mut self, ty: Type) -> String {
        let of_type: Vec<usize> = (0..self.values.len()).filter(|n| self.values[*n].1 == ty).collect();
        if of_type.is_empty() || self.random.below(9) == 0 {
            return self.constant(ty);
        }
        // Later values are likelier, so that programs grow deep.
        let n = of_type.len();
        let at = n - 1 - self.random.below(n).min(self.random.below(n));
        self.values[of_type[at]].0.clone()
    }

    fn constant(&mut self, ty: Type) -> String {
        let word = self.random.word();
        let half = |bits: u32| half::f16::from_bits(bits as u16).to_f32();
        // LLVM takes a subnormal f32 constant for a 16-bit one when it makes `v_fma_mix`, if its
        // lower half is a small negative number.
        let finite = |x: f64| if x == 0.0 || (x as f32).is_normal() { x } else { 1.5 };
        match ty {
            I1 => "true".into(),
            I8 => (word as i8).to_string(),
            I16 => (word as i16).to_string(),
            I32 => (word as i32).to_string(),
            I64 => {
                if self.random.below(2) == 0 {
                    (word as i32).to_string()
                } else {
                    (self.random.bits() as i64).to_string()
                }
            }
            F16 => format!("0xH{:04X}", half::f16::from_f32(finite(half(word).into()) as f32).to_bits()),
            Bf16 => format!("0xR{:04X}", (finite(f32::from_bits(word & 0xffff_0000).into()) as f32).to_bits() >> 16),
            F32 => format!("{:#018X}", finite(f32::from_bits(word).into()).to_bits()).replace("0X", "0x"),
            F64 => {
                let x = [0.5, -1.0, 3.0, 1e-3, 65536.0, finite(f32::from_bits(word).into())][self.random.below(6)];
                format!("{:#018X}", x.to_bits()).replace("0X", "0x")
            }
            V2I16 => format!("<i16 {}, i16 {}>", word as i16, (word >> 16) as i16),
            V2F16 => {
                let part = |bits: u32| {
                    format!("half 0xH{:04X}", half::f16::from_f32(finite(half(bits).into()) as f32).to_bits())
                };
                format!("<{}, {}>", part(word), part(word >> 16))
            }
        }
    }

    fn inputs(&mut self) {
        let base = self.hidden(&format!("mul i32 %t, {INPUTS}"));
        for k in 0..INPUTS {
            let index = self.hidden(&format!("add i32 {base}, {k}"));
            let wide = self.hidden(&format!("zext i32 {index} to i64"));
            let pointer = self.hidden(&format!("getelementptr i32, @P %in, i64 {wide}"));
            let word = self.emit(I32, &format!("load i32, @P {pointer}, align 4"));
            match k {
                // A signalling NaN has no defined fate: adding zero quiets it.
                2 | 3 => {
                    let f = self.hidden(&format!("bitcast i32 {word} to float"));
                    self.emit(F32, &format!("fadd float {f}, 0.0"));
                }
                4 => {
                    let v = self.hidden(&format!("bitcast i32 {word} to <2 x half>"));
                    self.emit(V2F16, &format!("fadd <2 x half> {v}, zeroinitializer"));
                }
                5 => drop(self.emit(V2I16, &format!("bitcast i32 {word} to <2 x i16>"))),
                6 => {
                    let low = self.hidden(&format!("trunc i32 {word} to i16"));
                    let h = self.hidden(&format!("bitcast i16 {low} to half"));
                    self.emit(F16, &format!("fadd half {h}, 0.0"));
                    self.emit(I16, &format!("add i16 {low}, 0"));
                }
                7 => {
                    let high = self.hidden(&format!("lshr i32 {word}, 16"));
                    let low = self.hidden(&format!("trunc i32 {high} to i16"));
                    let b = self.hidden(&format!("bitcast i16 {low} to bfloat"));
                    self.emit(Bf16, &format!("fadd bfloat {b}, 0.0"));
                    let wide = self.hidden(&format!("zext i32 {word} to i64"));
                    self.emit(I64, &format!("mul i64 {wide}, 1099511627791"));
                }
                _ => {}
            }
        }
        let a = self.pick(F32);
        self.emit(F64, &format!("fpext float {a} to double"));
    }

    /// If a comparison holds, some lines; a phi joins.
    fn branch(&mut self) {
        let condition = self.condition();
        self.blocks += 1;
        let n = self.blocks;
        let before = std::mem::replace(&mut self.block, format!("then{n}"));
        let _ = writeln!(self.body, "  br i1 {condition}, label %then{n}, label %join{n}\nthen{n}:");
        let known = self.values.len();
        for _ in 0..3 {
            self.step();
        }
        let made = self.values.split_off(known);
        let _ = writeln!(self.body, "  br label %join{n}\njoin{n}:");
        let mut phis = Vec::new();
        for (value, ty) in made.into_iter().filter(|m| m.1 != I1) {
            let other = self.values.iter().rev().find(|v| v.1 == ty).map(|v| v.0.clone());
            let Some(other) = other else { continue };
            let name = self.name();
            let _ = writeln!(
                self.body,
                "  {name} = phi {} [ {value}, %{} ], [ {other}, %{before} ]",
                ty.text(),
                format_args!("then{n}")
            );
            phis.push((name, ty));
        }
        self.values.extend(phis);
        self.block = format!("join{n}");
    }

    fn condition(&mut self) -> String {
        let of_type = self.values.iter().rev().find(|v| v.1 == I1).map(|v| v.0.clone());
        match of_type.filter(|_| self.random.below(2) == 0) {
            Some(c) => c,
            None => {
                let (a, b) = (self.pick(I32), self.pick(I32));
                self.emit(I1, &format!("icmp slt i32 {a}, {b}"))
            }
        }
    }

    fn step(&mut self) {
        match self.random.below(16) {
            0..4 => self.integer(),
            4 => self.integer_call(),
            5..8 => self.float(),
            8 => self.float_call(),
            9 => self.compare(),
            10 => self.select(),
            11 | 12 => self.convert(),
            13 => self.packed(),
            14 => self.reinterpret(),
            _ => self.special(),
        }
    }

    /// The bits of a floating-point value, with one pattern for all NaN and one for both zeros.
    fn bits_of(&mut self, ty: Type) -> String {
        let a = self.pick(ty);
        self.canonical(ty, &a)
    }

    fn canonical(&mut self, ty: Type, a: &str) -> String {
        let (t, raw) = (ty.text(), ty.raw().text());
        let pattern = match ty {
            F16 => "32256",
            Bf16 => "32704",
            F64 => "9221120237041090560",
            _ => "2143289344",
        };
        let nan = self.hidden(&format!("fcmp uno {t} {a}, {a}"));
        let zero = self.hidden(&format!("fcmp oeq {t} {a}, 0.0"));
        let bits = self.hidden(&format!("bitcast {t} {a} to {raw}"));
        let positive = self.hidden(&format!("select i1 {zero}, {raw} 0, {raw} {bits}"));
        self.hidden(&format!("select i1 {nan}, {raw} {pattern}, {raw} {positive}"))
    }

    /// One word of output: some value's bits.
    fn result(&mut self) -> String {
        let ty = [I32, F32, I64, F16, Bf16, F64, I16, V2I16, V2F16, I8, I1, F32][self.random.below(12)];
        let value = self.values.iter().rev().find(|v| v.1 == ty).map(|v| v.0.clone());
        let value = match value.filter(|_| self.random.below(2) == 0) {
            Some(value) => value,
            None => self.pick(ty),
        };
        match ty {
            I32 => value,
            I1 | I8 | I16 => self.hidden(&format!("zext {} {value} to i32", ty.text())),
            I64 => self.fold(&value),
            F32 => self.canonical(F32, &value),
            F16 | Bf16 => {
                let bits = self.canonical(ty, &value);
                self.hidden(&format!("zext i16 {bits} to i32"))
            }
            F64 => {
                let bits = self.canonical(F64, &value);
                self.fold(&bits)
            }
            V2I16 => self.hidden(&format!("bitcast <2 x i16> {value} to i32")),
            V2F16 => {
                let parts = [0, 1].map(|k| {
                    let part = self.hidden(&format!("extractelement <2 x half> {value}, i32 {k}"));
                    let bits = self.canonical(F16, &part);
                    self.hidden(&format!("zext i16 {bits} to i32"))
                });
                let high = self.hidden(&format!("shl i32 {}, 16", parts[1]));
                self.hidden(&format!("or i32 {}, {high}", parts[0]))
            }
        }
    }

    fn fold(&mut self, value: &str) -> String {
        let high = self.hidden(&format!("lshr i64 {value}, 32"));
        let both = self.hidden(&format!("xor i64 {value}, {high}"));
        self.hidden(&format!("trunc i64 {both} to i32"))
    }
}
