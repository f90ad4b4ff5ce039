//! The lines of a program: each method adds one operation on random values.
use super::Builder;
use super::Type::{self, *};

impl Builder {
    fn integer_type(&mut self) -> Type {
        [I32, I32, I32, I64, I16, I8][self.random.below(6)]
    }

    fn float_type(&mut self) -> Type {
        [F32, F32, F32, F16, F64, Bf16][self.random.below(6)]
    }

    pub(super) fn integer(&mut self) {
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

    pub(super) fn integer_call(&mut self) {
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

    pub(super) fn float(&mut self) {
        let ty = self.float_type();
        let (a, b) = (self.pick(ty), self.pick(ty));
        let t = ty.text();
        let text = match self.random.below(9) {
            0 | 1 => format!("fadd {t} {a}, {b}"),
            2 => format!("fsub {t} {a}, {b}"),
            3 | 4 => format!("fmul {t} {a}, {b}"),
            // Quotients of 16 bits come from f32 quotients on both sides; of f16 by approximations
            // on the other.
            5 if ty != Bf16 => {
                // LLVM does not always keep the sign of a zero: it must not show as that of an
                // infinity.
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

    pub(super) fn float_call(&mut self) {
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

    pub(super) fn compare(&mut self) {
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

    pub(super) fn select(&mut self) {
        let ty = [I32, F32, I64, F16, I16, F64, V2F16, V2I16, Bf16][self.random.below(9)];
        let condition = self.condition();
        let (a, b) = (self.pick(ty), self.pick(ty));
        let t = ty.text();
        self.emit(ty, &format!("select i1 {condition}, {t} {a}, {t} {b}"));
    }

    pub(super) fn convert(&mut self) {
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

    pub(super) fn packed(&mut self) {
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

    pub(super) fn reinterpret(&mut self) {
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

    /// Shapes that become one instruction: 24-bit products, high halves, bit fields, mixed
    /// products.
    pub(super) fn special(&mut self) {
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
}
