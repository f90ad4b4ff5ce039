//! Vectors of the code under construction: of f32, of words, and of bits.
use inkwell::types::{BasicType, BasicTypeEnum, IntType, VectorType};
use inkwell::values::FloatValue;
use inkwell::{FloatPredicate, IntPredicate};

use super::{Any, BUILT, Code, Int, Ptr, ToInt, Vector};

impl<'c> Code<'c> {
    pub fn f32s(&self) -> VectorType<'c> {
        self.cx.f32_type().vec_type(self.lanes() as u32)
    }

    pub fn ints(&self, ty: IntType<'c>, lanes: usize) -> VectorType<'c> {
        ty.vec_type(lanes as u32)
    }

    pub fn zero(&self) -> Vector<'c> {
        self.f32s().const_zero()
    }

    /// All lanes the same constant.
    pub fn lit(&self, v: f64) -> Vector<'c> {
        VectorType::const_vector(&vec![self.number(v); self.lanes()])
    }

    pub fn splat(&self, v: impl Into<Any<'c>>) -> Vector<'c> {
        let v = v.into();
        let ty = match v.get_type() {
            BasicTypeEnum::FloatType(t) => t.vec_type(self.lanes() as u32),
            BasicTypeEnum::IntType(t) => t.vec_type(self.lanes() as u32),
            t => panic!("no vector of {t}"),
        };
        let zero = self.cx.i32_type().const_zero();
        let one = self.b.build_insert_element(ty.get_undef(), v, zero, "").expect(BUILT);
        self.b
            .build_shuffle_vector(
                one,
                ty.get_undef(),
                self.cx.i32_type().vec_type(self.lanes() as u32).const_zero(),
                "",
            )
            .expect(BUILT)
    }

    pub fn fadd(&self, a: Vector<'c>, b: Vector<'c>) -> Vector<'c> {
        self.b.build_float_add(a, b, "").expect(BUILT)
    }

    pub fn fsub(&self, a: Vector<'c>, b: Vector<'c>) -> Vector<'c> {
        self.b.build_float_sub(a, b, "").expect(BUILT)
    }

    pub fn fmul(&self, a: Vector<'c>, b: Vector<'c>) -> Vector<'c> {
        self.b.build_float_mul(a, b, "").expect(BUILT)
    }

    /// `a * b + c`, rounded once.
    pub fn fma(&self, a: Vector<'c>, b: Vector<'c>, c: Vector<'c>) -> Vector<'c> {
        self.call("llvm.fma", &[a.get_type().into()], &[a.into(), b.into(), c.into()]).into_vector_value()
    }

    pub fn fmax(&self, a: Vector<'c>, b: Vector<'c>) -> Vector<'c> {
        let more = self.b.build_float_compare(FloatPredicate::OGT, b, a, "").expect(BUILT);
        self.choose(more, b, a)
    }

    pub fn choose(&self, mask: Vector<'c>, yes: Vector<'c>, no: Vector<'c>) -> Vector<'c> {
        self.b.build_select(mask, yes, no, "").expect(BUILT).into_vector_value()
    }

    /// Lanes `i` with `i < n`.
    pub fn lanes_below(&self, n: impl ToInt<'c>) -> Vector<'c> {
        self.below(&(0..self.lanes()).collect::<Vec<_>>(), n)
    }

    /// Lanes that have a number below `n` in the list.
    pub fn below(&self, numbers: &[usize], n: impl ToInt<'c>) -> Vector<'c> {
        let n = n.to_int(self);
        let n = self.b.build_int_truncate_or_bit_cast(n.v, self.cx.i32_type(), "").expect(BUILT);
        self.b.build_int_compare(IntPredicate::SLT, self.numbers(numbers), self.splat(n), "").expect(BUILT)
    }

    /// 0, 1, 2, …
    pub fn iota(&self) -> Vector<'c> {
        self.numbers(&(0..self.lanes()).collect::<Vec<_>>())
    }

    fn numbers(&self, numbers: &[usize]) -> Vector<'c> {
        let numbers: Vec<_> = numbers.iter().map(|&i| self.cx.i32_type().const_int(i as u64, false)).collect();
        VectorType::const_vector(&numbers)
    }

    pub fn lane(&self, v: Vector<'c>, i: usize) -> Any<'c> {
        self.b.build_extract_element(v, self.cx.i32_type().const_int(i as u64, false), "").expect(BUILT)
    }

    /// Sum of the lanes, in an order that does not depend on the target.
    pub fn sum(&self, v: Vector<'c>) -> FloatValue<'c> {
        self.fold(v, |a, b| self.fadd(a, b))
    }

    pub fn top(&self, v: Vector<'c>) -> FloatValue<'c> {
        self.fold(v, |a, b| self.fmax(a, b))
    }

    fn fold(&self, v: Vector<'c>, f: impl Fn(Vector<'c>, Vector<'c>) -> Vector<'c>) -> FloatValue<'c> {
        let mut v = v;
        let halves = std::iter::successors(Some(self.lanes() / 2), |n| Some(n / 2)).take_while(|&n| n > 0);
        for half in halves {
            let mask: Vec<usize> = (0..self.lanes()).map(|i| (i + half) % self.lanes()).collect();
            v = f(v, self.shuffle(v, v, &mask));
        }
        self.lane(v, 0).into_float_value()
    }

    /// Lanes of `a` and then of `b`, counted on, in this order.
    pub fn shuffle(&self, a: Vector<'c>, b: Vector<'c>, lanes: &[usize]) -> Vector<'c> {
        let lanes: Vec<_> = lanes.iter().map(|&i| self.cx.i32_type().const_int(i as u64, false)).collect();
        self.b.build_shuffle_vector(a, b, VectorType::const_vector(&lanes), "").expect(BUILT)
    }

    /// Lane `i` gets lane `i - by` of `v`; lanes without such a lane are arbitrary.
    pub fn moved_up(&self, v: Vector<'c>, by: Int<'c>) -> Vector<'c> {
        let lanes: Vec<Any<'c>> = (0..self.lanes())
            .map(|i| self.b.build_extract_element(v, self.larger(self.int(i) - by, 0).v, "").expect(BUILT))
            .collect();
        self.floats(&lanes)
    }

    pub fn bitcast(&self, v: impl Into<Any<'c>>, ty: impl BasicType<'c>) -> Any<'c> {
        self.b.build_bit_cast(v.into(), ty, "").expect(BUILT)
    }

    /// Words as a vector.
    pub fn words(&self, words: &[Int<'c>]) -> Vector<'c> {
        self.in_a_row(self.cx.i32_type().vec_type(words.len() as u32), words.iter().map(|&word| word.into()))
    }

    /// Floats of 32 bits as a vector.
    pub fn floats(&self, floats: &[Any<'c>]) -> Vector<'c> {
        self.in_a_row(self.cx.f32_type().vec_type(floats.len() as u32), floats.iter().copied())
    }

    fn in_a_row(&self, ty: VectorType<'c>, elements: impl Iterator<Item = Any<'c>>) -> Vector<'c> {
        elements.enumerate().fold(ty.get_undef(), |all, (i, element)| {
            let at = self.cx.i32_type().const_int(i as u64, false);
            self.b.build_insert_element(all, element, at, "").expect("an element into its vector")
        })
    }

    /// A function of every word of a vector.
    pub fn map_words(&self, v: Vector<'c>, f: impl Fn(Int<'c>) -> Int<'c>) -> Vector<'c> {
        (0..v.get_type().get_size() as usize).fold(v.get_type().get_undef(), |all, i| {
            let at = self.cx.i32_type().const_int(i as u64, false);
            let word = f(self.as_int(self.lane(v, i)));
            self.b.build_insert_element(all, word.v, at, "").expect("a word into words")
        })
    }

    /// A scalar function of every element.
    pub fn each(&self, x: Vector<'c>, f: impl Fn(FloatValue<'c>) -> FloatValue<'c>) -> Vector<'c> {
        let mut result = x.get_type().get_undef();
        for i in 0..x.get_type().get_size() as usize {
            let at = self.cx.i32_type().const_int(i as u64, false);
            let v = f(self.lane(x, i).into_float_value());
            result = self.b.build_insert_element(result, v, at, "").expect("a float into floats");
        }
        result
    }

    /// Several vectors of one type, as one longer vector.
    pub fn join(&self, parts: &[Vector<'c>]) -> Vector<'c> {
        let mut parts = parts.to_vec();
        while parts.len() > 1 {
            parts = parts.chunks(2).map(|pair| self.join_two(pair[0], pair[1])).collect();
        }
        parts[0]
    }

    fn join_two(&self, a: Vector<'c>, b: Vector<'c>) -> Vector<'c> {
        let all: Vec<usize> = (0..2 * a.get_type().get_size() as usize).collect();
        self.shuffle(a, b, &all)
    }

    /// Elements `from` to `from + count` of a vector.
    pub fn part(&self, v: Vector<'c>, from: usize, count: usize) -> Vector<'c> {
        let all: Vec<usize> = (from..from + count).collect();
        if count == v.get_type().get_size() as usize { v } else { self.shuffle(v, v, &all) }
    }

    /// A load that takes part in no other thread's work.
    pub fn load_vector(&self, element: impl BasicType<'c>, count: usize, p: Ptr<'c>, align: usize) -> Vector<'c> {
        let ty = element.as_basic_type_enum();
        let ty = match ty {
            BasicTypeEnum::IntType(t) => t.vec_type(count as u32),
            BasicTypeEnum::FloatType(t) => t.vec_type(count as u32),
            t => panic!("no vector of {t}"),
        };
        self.load(ty, p, align as u32).into_vector_value()
    }
}
