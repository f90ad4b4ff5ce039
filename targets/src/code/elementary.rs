//! Quotients, roots and powers, for which GPUs have instructions of their own.
use atomc_ir::arch::{Isa, Machine};
use inkwell::values::FloatValue;

use super::{BUILT, Code, Vector};

impl<'c> Code<'c> {
    /// On GPUs, for f32, within 1.5 units in the last place.
    pub fn fdiv(&self, a: Vector<'c>, b: Vector<'c>) -> Vector<'c> {
        let short = b.get_type() == self.f32s();
        match &self.arch.machine {
            Machine::Simt(simt) if short => self.fmul(a, self.reciprocal(simt.isa, b)),
            _ => self.b.build_float_div(a, b, "").expect(BUILT),
        }
    }

    /// `1 / sqrt(sum / count + eps)`.
    pub fn inverse_root(&self, sum: FloatValue<'c>, count: usize, eps: f64) -> FloatValue<'c> {
        if let Machine::Simt(simt) = &self.arch.machine {
            let mean = self.b.build_float_mul(sum, self.number(1.0 / count as f64), "").expect(BUILT);
            let mean = self.b.build_float_add(mean, self.number(eps), "").expect(BUILT);
            return self.inverse_square_root(simt.isa, mean);
        }
        let ty = &[self.cx.f32_type().into()];
        let mean = self.b.build_float_div(sum, self.number(count as f64), "").expect(BUILT);
        let mean = self.b.build_float_add(mean, self.number(eps), "").expect(BUILT);
        let root = self.call("llvm.sqrt", ty, &[mean.into()]).into_float_value();
        self.b.build_float_div(self.number(1.0), root, "").expect(BUILT)
    }

    /// The square root.
    pub fn root(&self, v: Vector<'c>) -> Vector<'c> {
        self.call("llvm.sqrt", &[v.get_type().into()], &[v.into()]).into_vector_value()
    }

    /// `2^x` by a GPU's own instruction: within two units in the last place, 0 for subnormal
    /// results.
    pub fn exp2(&self, isa: Isa, x: Vector<'c>) -> Vector<'c> {
        self.each(x, |v| self.power_of_two(isa, v))
    }

    /// `2^x` of one number.
    pub fn power_of_two(&self, isa: Isa, x: FloatValue<'c>) -> FloatValue<'c> {
        self.instruction(isa, ["llvm.amdgcn.exp2", "llvm.nvvm.ex2.approx.ftz"], x)
    }

    /// `1 / x`, within one unit in the last place.
    pub fn reciprocal(&self, isa: Isa, x: Vector<'c>) -> Vector<'c> {
        self.each(x, |v| self.instruction(isa, ["llvm.amdgcn.rcp", "llvm.nvvm.rcp.approx.ftz.f"], v))
    }

    /// `1 / sqrt(x)`, within two units in the last place.
    fn inverse_square_root(&self, isa: Isa, x: FloatValue<'c>) -> FloatValue<'c> {
        self.instruction(isa, ["llvm.amdgcn.rsq", "llvm.nvvm.rsqrt.approx.f"], x)
    }

    /// A function of one number that both kinds of GPUs have an instruction for.
    fn instruction(&self, isa: Isa, [amdgcn, ptx]: [&str; 2], x: FloatValue<'c>) -> FloatValue<'c> {
        let f32 = [self.cx.f32_type().into()];
        match isa {
            Isa::Amdgcn => self.call(amdgcn, &f32, &[x.into()]),
            // Some of these are for one type only, and take none.
            Isa::Ptx => self.call(ptx, if ptx.ends_with("ftz") { &f32 } else { &[] }, &[x.into()]),
        }
        .into_float_value()
    }
}
