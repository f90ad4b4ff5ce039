//! Rows that are staged as they are in memory, copied by the machine: a run of columns of every
//! token at a time, into buffers in turn. Each wave issues the copies of some tokens, since a
//! lane's copies are issued one after the other.
use atomc_ir::{DType, Value};

use crate::code::Int;
use crate::row::{At, Col};
use crate::simt::gemm::contract::Contraction;
use crate::simt::gemm::gemv_bulk::Shape;
use crate::simt::machine::Gpu;
use crate::simt::machine::pipeline::Pipeline;

pub struct Copies<'s, 'k, 'a, 'c> {
    contraction: &'s Contraction<'k, 'a, 'c>,
    shape: Shape,
    rows: Value,
    dtype: DType,
    buffers: Pipeline<'c>,
    /// The first column of the work-group's share.
    first: Int<'c>,
}

impl<'s, 'k, 'a, 'c> Copies<'s, 'k, 'a, 'c> {
    /// Sets up buffers and their barriers. Other waves see them after the work-group's next
    /// barrier.
    pub fn begin(
        contraction: &'s Contraction<'k, 'a, 'c>,
        shape: Shape,
        rows: Value,
        first: Int<'c>,
    ) -> Copies<'s, 'k, 'a, 'c> {
        let c = contraction.matrix.c;
        let buffers = Pipeline::new(c, shape.buffers(), shape.k_tile_bytes(), 128);
        c.when(c.equal(c.thread(), 0), || {
            buffers.make_barriers(c, [1, shape.threads()]);
            c.show_barriers();
        });
        Copies { contraction, shape, rows, dtype: contraction.matrix.dtype, buffers, first }
    }

    fn code(&self) -> &'a Gpu<'c> {
        self.contraction.matrix.c
    }

    /// Issues the copies of the first K tiles.
    pub fn load_first(&self) {
        (0..self.shape.buffers()).for_each(|i| self.load(self.code().int(i)));
    }

    /// Issues the copies of the wave's tokens of a K tile, a lane for each. Bytes may arrive before
    /// the barrier expects them.
    fn load(&self, k_tile: Int<'c>) {
        let (c, rows, shape) = (self.code(), &self.contraction.parts.kernel.rows, self.shape);
        let barrier = self.buffers.full(k_tile);
        let bytes = shape.k_tile_columns() * self.dtype.size();
        c.expect_bytes(c.equal(c.thread(), 0), barrier, shape.tokens * bytes);
        let share = shape.tokens.div_ceil(shape.waves());
        let token = c.wave_index() * share + c.lane_index();
        let is_own = c.less(c.lane_index(), share) & c.less(token, shape.tokens);
        c.when(is_own, || {
            let x = rows.operand(self.rows).expect("rows in memory");
            let col = self.first + k_tile * shape.k_tile_columns();
            let from = rows.address(x, At { row: token, head: None, col: Col::Var(col) });
            let to = self.buffers.at(k_tile) + token * shape.token_bytes();
            c.copy_run_often(to, from, bytes, barrier);
        });
    }

    /// Waits for a K tile, and returns its address.
    pub fn wait_full(&self, k_tile: Int<'c>) -> Int<'c> {
        let c = self.code();
        self.buffers.wait_full(c, k_tile);
        c.meet_in_wave();
        self.buffers.at(k_tile)
    }

    /// A thread has read a K tile. Its buffer is filled again when all threads have read it; with
    /// enough buffers, the buffer of the K tile before is filled.
    pub fn release(&self, k_tile: Int<'c>) {
        let (c, shape) = (self.code(), self.shape);
        if shape.k_tiles == shape.buffers() {
            return;
        }
        self.buffers.release(c, c.always(), k_tile);
        let late = if shape.buffers() > 2 { 1 } else { 0 };
        let behind = k_tile - late;
        let next = behind + shape.buffers();
        let is_there = c.less(0, behind + 1) & c.less(next, shape.k_tiles);
        c.when(is_there, || {
            self.buffers.wait_empty(c, next);
            c.meet_in_wave();
            self.load(next);
        });
    }
}
