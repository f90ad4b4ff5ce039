//! Random programs as LLVM IR text.
//!
//! A program is straight-line code with branches, over values of many types. What the language leaves open is kept out: NaN
//! are made one pattern and zeros positive where their bits could show (LLVM fuses a product and a conversion to f16 with an
//! addition of +0, for one), shifts and divisions stay defined, and fused operations
//! on f16 are absent, because this machine would round them twice.
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

/// Conversions to bf16 that code for this machine calls: to nearest even, here in integer arithmetic. The result travels in a
/// vector register, as the calling convention wants.
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
        let finite = |x: f64| if x.is_finite() { x } else { 1.5 };
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

    fn integer_type(&mut self) -> Type {
        [I32, I32, I32, I64, I16, I8][self.random.below(6)]
    }

    fn float_type(&mut self) -> Type {
        [F32, F32, F32, F16, F64, Bf16][self.random.below(6)]
    }

    fn integer(&mut self) {
        let ty = self.integer_type();
        let (a, b) = (self.pick(ty), self.pick(ty));
        let t = ty.text();
        let text = match self.random.below(11) {
            0 => format!("add {t} {a}, {b}"),
            1 => format!("sub {t} {a}, {b}"),
            2 => format!("mul {t} {a}, {b}"),
            3 => format!("and {t} {a}, {b}"),
            4 => format!("or {t} {a}, {b}"),
            5 => format!("xor {t} {a}, {b}"),
            6 | 7 => {
                let amount = self.hidden(&format!("and {t} {b}, {}", ty.bits() - 1));
                let op = ["shl", "lshr", "ashr"][self.random.below(3)];
                format!("{op} {t} {a}, {amount}")
            }
            8 => {
                // Odd divisors are never zero; halving the dividend keeps the one overflow away.
                let divisor = self.hidden(&format!("or {t} {b}, 1"));
                let dividend = self.hidden(&format!("ashr {t} {a}, 1"));
                let op = ["udiv", "urem", "sdiv", "srem"][self.random.below(4)];
                format!("{op} {t} {dividend}, {divisor}")
            }
            9 => {
                let inverted = self.hidden(&format!("xor {t} {b}, -1"));
                format!("{} {t} {a}, {inverted}", ["and", "or", "xor"][self.random.below(3)])
            }
            _ => {
                let other = self.pick(ty);
                let first = ["and", "or", "xor", "add", "shl"][self.random.below(5)];
                let b = if first == "shl" { "3".to_string() } else { b };
                let inner = self.hidden(&format!("{first} {t} {a}, {b}"));
                format!("{} {t} {inner}, {other}", ["or", "add", "xor", "and"][self.random.below(4)])
            }
        };
        self.emit(ty, &text);
    }

    fn integer_call(&mut self) {
        let ty = self.integer_type();
        let (a, b, c) = (self.pick(ty), self.pick(ty), self.pick(ty));
        let two = ["umin", "umax", "smin", "smax", "uadd.sat", "usub.sat", "sadd.sat", "ssub.sat"];
        let text = match self.random.below(8) {
            0..4 => {
                let name = two[self.random.below(two.len())];
                self.call(ty, &format!("{name}.{}", ty.suffix()), &[(ty, a), (ty, b)])
            }
            4 => {
                let name = ["ctpop", "bitreverse"][self.random.below(2)];
                self.call(ty, &format!("{name}.{}", ty.suffix()), &[(ty, a)])
            }
            5 => {
                let name = ["ctlz", "cttz", "abs"][self.random.below(3)];
                self.call(ty, &format!("{name}.{}", ty.suffix()), &[(ty, a), (I1, "false".into())])
            }
            6 => {
                let name = ["fshl", "fshr"][self.random.below(2)];
                self.call(ty, &format!("{name}.{}", ty.suffix()), &[(ty, a), (ty, b), (ty, c)])
            }
            _ => {
                let low = self.call(ty, &format!("smin.{}", ty.suffix()), &[(ty, a), (ty, b.clone())]);
                let low = self.hidden(&low);
                self.call(ty, &format!("smax.{}", ty.suffix()), &[(ty, low), (ty, c)])
            }
        };
        self.emit(ty, &text);
    }

    fn float(&mut self) {
        let ty = self.float_type();
        let (a, b) = (self.pick(ty), self.pick(ty));
        let t = ty.text();
        let text = match self.random.below(9) {
            0 | 1 => format!("fadd {t} {a}, {b}"),
            2 => format!("fsub {t} {a}, {b}"),
            3 | 4 => format!("fmul {t} {a}, {b}"),
            // Quotients of 16 bits come from f32 quotients on both sides; of f16 by approximations on the other.
            5 if ty != Bf16 => {
                // LLVM does not always keep the sign of a zero: it must not show as that of an infinity.
                let zero = self.hidden(&format!("fcmp oeq {t} {b}, 0.0"));
                let divisor = self.hidden(&format!("select i1 {zero}, {t} 3.0, {t} {b}"));
                format!("fdiv {t} {a}, {divisor}")
            }
            6 => format!("fneg {t} {a}"),
            7 => {
                let negative = self.hidden(&format!("fneg {t} {b}"));
                format!("{} {t} {a}, {negative}", ["fadd", "fmul"][self.random.below(2)])
            }
            _ => {
                let c = self.pick(ty);
                let product = self.hidden(&format!("fmul {t} {a}, {b}"));
                format!("fadd {t} {product}, {c}")
            }
        };
        self.emit(ty, &text);
    }

    fn float_call(&mut self) {
        let ty = [F32, F32, F16, F64][self.random.below(4)];
        let (a, b, c) = (self.pick(ty), self.pick(ty), self.pick(ty));
        let s = ty.suffix();
        let one = ["floor", "ceil", "trunc", "rint", "fabs"];
        let text = match self.random.below(7) {
            0 | 1 => {
                let name = one[self.random.below(one.len())];
                self.call(ty, &format!("{name}.{s}"), &[(ty, a)])
            }
            2 if ty != F16 => self.call(ty, &format!("fma.{s}"), &[(ty, a), (ty, b), (ty, c)]),
            3 if ty != F16 => {
                let positive = self.call(ty, &format!("fabs.{s}"), &[(ty, a)]);
                let positive = self.hidden(&positive);
                self.call(ty, &format!("sqrt.{s}"), &[(ty, positive)])
            }
            4 => {
                let sign = self.values_or(ty, &b);
                self.call(ty, &format!("copysign.{s}"), &[(ty, a), (ty, sign)])
            }
            _ => {
                // Which zero is the larger is open; adding a positive zero makes them one.
                let name = ["minnum", "maxnum"][self.random.below(2)];
                let picked = self.call(ty, &format!("{name}.{s}"), &[(ty, a), (ty, b)]);
                let picked = self.hidden(&picked);
                format!("fadd {} {picked}, 0.0", ty.text())
            }
        };
        self.emit(ty, &text);
    }

    /// Signs of NaN are open, and those of zeros get lost: a sign is only taken from other values.
    fn values_or(&mut self, ty: Type, value: &str) -> String {
        let t = ty.text();
        let sure = self.hidden(&format!("fcmp one {t} {value}, 0.0"));
        self.hidden(&format!("select i1 {sure}, {t} {value}, {t} 1.0"))
    }

    fn compare(&mut self) {
        if self.random.below(2) == 0 {
            let ty = [I32, I32, I64, I16, I8][self.random.below(5)];
            let (a, b) = (self.pick(ty), self.pick(ty));
            let p = ["eq", "ne", "ult", "ule", "ugt", "uge", "slt", "sle", "sgt", "sge"][self.random.below(10)];
            self.emit(I1, &format!("icmp {p} {} {a}, {b}", ty.text()));
        } else {
            let ty = self.float_type();
            let (a, b) = (self.pick(ty), self.pick(ty));
            let p = ["oeq", "ogt", "oge", "olt", "ole", "one", "ord", "ueq", "ugt", "uge", "ult", "ule", "une", "uno"]
                [self.random.below(14)];
            self.emit(I1, &format!("fcmp {p} {} {a}, {b}", ty.text()));
        }
    }

    fn select(&mut self) {
        let ty = [I32, F32, I64, F16, I16, F64, V2F16, V2I16, Bf16][self.random.below(9)];
        let condition = self.condition();
        let (a, b) = (self.pick(ty), self.pick(ty));
        let t = ty.text();
        self.emit(ty, &format!("select i1 {condition}, {t} {a}, {t} {b}"));
    }

    fn convert(&mut self) {
        let (from, to, op) = [
            (F32, F16, "fptrunc"),
            (F32, Bf16, "fptrunc"),
            (F64, F32, "fptrunc"),
            (F16, F32, "fpext"),
            (Bf16, F32, "fpext"),
            (F32, F64, "fpext"),
            (I32, F32, "sitofp"),
            (I32, F32, "uitofp"),
            (I64, F32, "sitofp"),
            (I64, F64, "uitofp"),
            (I32, F64, "sitofp"),
            (I16, F32, "uitofp"),
            (I8, F32, "uitofp"),
            (I16, F16, "sitofp"),
            (I32, I64, "sext"),
            (I32, I64, "zext"),
            (I16, I32, "sext"),
            (I16, I32, "zext"),
            (I8, I32, "sext"),
            (I8, I32, "zext"),
            (I32, I16, "trunc"),
            (I32, I8, "trunc"),
            (I64, I32, "trunc"),
            (I1, I32, "zext"),
            (F32, I32, "fptosi.sat"),
            (F32, I32, "fptoui.sat"),
            (F32, I16, "fptosi.sat"),
            (F64, I32, "fptosi.sat"),
            (F64, I32, "fptoui.sat"),
        ][self.random.below(29)];
        let a = self.pick(from);
        let text = if op.ends_with("sat") {
            self.call(to, &format!("{op}.{}.{}", to.suffix(), from.suffix()), &[(from, a)])
        } else {
            format!("{op} {} {a} to {}", from.text(), to.text())
        };
        self.emit(to, &text);
    }

    fn packed(&mut self) {
        if self.random.below(2) == 0 {
            let (a, b) = (self.pick(V2F16), self.pick(V2F16));
            let swapped =
                self.hidden(&format!("shufflevector <2 x half> {b}, <2 x half> {a}, <2 x i32> <i32 1, i32 2>"));
            let b = if self.random.below(3) == 0 { swapped } else { b };
            let text = match self.random.below(4) {
                0 => format!("fadd <2 x half> {a}, {b}"),
                1 => format!("fmul <2 x half> {a}, {b}"),
                2 => format!("fsub <2 x half> {a}, {b}"),
                _ => {
                    let name = ["minnum", "maxnum"][self.random.below(2)];
                    let picked = self.call(V2F16, &format!("{name}.v2f16"), &[(V2F16, a), (V2F16, b)]);
                    let picked = self.hidden(&picked);
                    format!("fadd <2 x half> {picked}, zeroinitializer")
                }
            };
            self.emit(V2F16, &text);
        } else {
            let (a, b) = (self.pick(V2I16), self.pick(V2I16));
            let text = match self.random.below(6) {
                0 => format!("add <2 x i16> {a}, {b}"),
                1 => format!("sub <2 x i16> {a}, {b}"),
                2 => format!("mul <2 x i16> {a}, {b}"),
                3 => {
                    let amount = self.hidden(&format!("and <2 x i16> {b}, <i16 15, i16 15>"));
                    format!("{} <2 x i16> {a}, {amount}", ["shl", "lshr", "ashr"][self.random.below(3)])
                }
                _ => {
                    let name = ["umin", "umax", "smin", "smax", "uadd.sat", "usub.sat", "sadd.sat", "ssub.sat"]
                        [self.random.below(8)];
                    self.call(V2I16, &format!("{name}.v2i16"), &[(V2I16, a), (V2I16, b)])
                }
            };
            self.emit(V2I16, &text);
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

    fn reinterpret(&mut self) {
        match self.random.below(6) {
            0 => {
                let bits = self.bits_of(F32);
                self.emit(I32, &format!("add i32 {bits}, 0"));
            }
            1 => {
                let bits = self.bits_of(F64);
                self.emit(I64, &format!("add i64 {bits}, 0"));
            }
            2 => {
                let a = self.pick(V2I16);
                self.emit(I32, &format!("bitcast <2 x i16> {a} to i32"));
            }
            3 => {
                let a = self.pick(V2F16);
                let k = self.random.below(2);
                self.emit(F16, &format!("extractelement <2 x half> {a}, i32 {k}"));
            }
            4 => {
                let (a, b) = (self.pick(F16), self.pick(F16));
                let one = self.hidden(&format!("insertelement <2 x half> poison, half {a}, i32 0"));
                self.emit(V2F16, &format!("insertelement <2 x half> {one}, half {b}, i32 1"));
            }
            _ => {
                let a = self.pick(V2I16);
                let k = self.random.below(2);
                self.emit(I16, &format!("extractelement <2 x i16> {a}, i32 {k}"));
            }
        }
    }

    /// Shapes that become one instruction: 24-bit products, high halves, bit fields, mixed products.
    fn special(&mut self) {
        let (a, b, c) = (self.pick(I32), self.pick(I32), self.pick(I32));
        match self.random.below(8) {
            0 => {
                let low = self.hidden(&format!("and i32 {a}, 16777215"));
                let other = self.hidden(&format!("and i32 {b}, 16777215"));
                let product = self.hidden(&format!("mul i32 {low}, {other}"));
                self.emit(I32, &format!("add i32 {product}, {c}"));
            }
            1 => {
                let [x, y] = [a, b].map(|v| {
                    let up = self.hidden(&format!("shl i32 {v}, 8"));
                    self.hidden(&format!("ashr i32 {up}, 8"))
                });
                self.emit(I32, &format!("mul i32 {x}, {y}"));
            }
            2 | 3 => {
                let extend = ["zext", "sext"][self.random.below(2)];
                let [x, y] = [a, b].map(|v| self.hidden(&format!("{extend} i32 {v} to i64")));
                let product = self.hidden(&format!("mul i64 {x}, {y}"));
                if self.random.below(2) == 0 {
                    let high = self.hidden(&format!("lshr i64 {product}, 32"));
                    self.emit(I32, &format!("trunc i64 {high} to i32"));
                } else {
                    let more = self.pick(I64);
                    self.emit(I64, &format!("add i64 {product}, {more}"));
                }
            }
            4 => {
                let (shift, bits) = (self.random.below(24), 1 + self.random.below(16));
                let down = self.hidden(&format!("lshr i32 {a}, {shift}"));
                self.emit(I32, &format!("and i32 {down}, {}", (1u32 << bits) - 1));
            }
            5 => {
                let [x, y] = [F16, F16].map(|t| {
                    let v = self.pick(t);
                    self.hidden(&format!("fpext half {v} to float"))
                });
                let z = self.pick(F32);
                let text = self.call(F32, "fma.f32", &[(F32, x), (F32, y), (F32, z)]);
                self.emit(F32, &text);
            }
            6 => {
                let (low, high) = (self.pick(F32), self.pick(F32));
                let x = self.pick(F32);
                let least = self.call(F32, "minnum.f32", &[(F32, low), (F32, x)]);
                let least = self.hidden(&least);
                let most = self.call(F32, "maxnum.f32", &[(F32, least), (F32, high)]);
                let most = self.hidden(&most);
                self.emit(F32, &format!("fadd float {most}, 0.0"));
            }
            _ => {
                let text = self.call(I32, "bswap.i32", &[(I32, a)]);
                self.emit(I32, &text);
            }
        }
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
