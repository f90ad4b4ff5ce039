//! The loaders: one lane copies tiles of both operands by tensor maps, K tile by K tile; or rows
//! alone, while all lanes of the producer decode the weight.
use super::Group;
use super::shape::{BLOCK, EIGHT, PRODUCERS, STRETCH, TOKENS};
use crate::code::{Int, Ptr};
use crate::simt::gemm::codes::Codes;
use crate::simt::gemm::codes_to_lds::{self, Blocks, CodesLoader};
use crate::simt::gemm::contract::Panel;
use crate::simt::gemm::tile::Tile;
use crate::simt::machine::fragment::VEC16;
use crate::simt::machine::warpgroup::{MAP, TensorMap};

impl<'c> Group<'_, '_, '_, 'c> {
    pub(super) fn make_maps(&self) {
        let c = self.code();
        c.clear_maps(self.maps, 2);
        c.when(c.equal(c.lane_index(), 0), || {
            if self.codes_to_decode().is_none() {
                self.make_weight_map();
            }
            if !self.shape.gathers {
                self.make_row_map();
            }
        });
        c.meet_in_wave();
    }

    fn make_weight_map(&self) {
        let (c, w, shape) = (self.code(), &self.contraction.parts.w, self.shape);
        let (size, panel) = (w.ty.dtype.size(), c.arch.memory.panel);
        let sizes: Vec<usize> = w.ty.shape.0.iter().map(|dim| dim.fixed().unwrap_or(0)).collect();
        let (matrices, rows) = (&sizes[..sizes.len() - 2], sizes[sizes.len() - 2]);
        let all = matrices.iter().product::<usize>() * c.arch.memory.padded(rows);
        let dims = [
            (BLOCK / size, 0, BLOCK / size),
            (w.stride * size / 16, panel * 16, 8),
            (panel / 8, BLOCK, panel / 8),
            (all / panel, panel * w.stride * size, shape.features / panel),
        ];
        c.make_map(self.map(0), w.ptr, &TensorMap { dtype: w.ty.dtype, dims: &dims, outer: None, swizzled: false });
    }

    fn make_row_map(&self) {
        let (c, w, x, shape) = (self.code(), &self.contraction.parts.w, self.x, self.shape);
        let dtype = shape.operands.dtype(self.contraction.matrix.dtype);
        // With heads, each head has some of the columns.
        let width = if self.contraction.parts.heads().is_some() { x.stride } else { w.stride };
        let dims = [(width, 0, shape.stretch), (self.room, x.stride * dtype.size(), TOKENS)];
        c.make_map(self.map(1), x.ptr, &TensorMap { dtype, dims: &dims, outer: None, swizzled: true });
    }

    fn map(&self, i: usize) -> Int<'c> {
        self.code().local_address(self.code().at(self.maps, i * MAP))
    }

    pub(super) fn place_maps(&self) {
        let c = self.code();
        let (first, end) = (usize::from(self.codes_to_decode().is_some()), if self.shape.gathers { 1 } else { 2 });
        (first..end).for_each(|i| c.place_map(c.at(self.placed, i * MAP), self.map(i)));
    }

    /// Loads all K tiles of a tile. The first one has this index.
    pub(super) fn produce(&self, tile: Tile<'c>, first: Int<'c>) {
        let (c, shape) = (self.code(), self.shape);
        let [weight, all] = shape.stage();
        c.repeat(0, shape.count, 1, |i| {
            let index = first + i;
            let (full, to) = (self.stages.full(index), self.stages.at(index));
            self.stages.wait_empty(c, index);
            c.expect_bytes(c.always(), full, all);
            self.copy_weight(tile, i, to, full);
            self.copy_rows(tile, i, to + weight, full);
        });
    }

    /// Issues the copy of the weight's part of a K tile.
    fn copy_weight(&self, tile: Tile<'c>, k_tile: Int<'c>, to: Int<'c>, full: Int<'c>) {
        let (c, shape) = (self.code(), self.shape);
        for (piece, start) in self.contraction.parts.starts().enumerate() {
            let panel = tile.weight_of(self.contraction, [tile.panel(), c.int(start / c.arch.memory.panel)]);
            let to = to + piece * shape.features / 8 * EIGHT;
            c.copy_box(to, self.placed, &[c.int(0), k_tile * 8, c.int(0), panel.number], full);
        }
    }

    fn copy_rows(&self, tile: Tile<'c>, k_tile: Int<'c>, to: Int<'c>, full: Int<'c>) {
        let (c, rows) = (self.code(), self.code().at(self.placed, MAP));
        let column = k_tile * self.shape.stretch;
        let column = self
            .contraction
            .parts
            .head_rows()
            .zip(tile.head())
            .map_or(column, |(rows, head)| column + rows.column(head));
        c.copy_box(to, rows, &[column, tile.first_source(c, c.int(0))], full);
    }

    /// Loads rows from any places: one lane loads boxes of the weight, and every lane loads 16
    /// bytes of each of some rows.
    pub(super) fn produce_gathered(&self, tile: Tile<'c>, first: Int<'c>, copies: Int<'c>) {
        let (c, shape) = (self.code(), self.shape);
        let [weight, _] = shape.stage();
        let rows = self.gathered_rows(tile);
        c.repeat(0, shape.count, 1, |i| {
            let index = first + i;
            let (full, to) = (self.stages.full(index), self.stages.at(index));
            self.stages.wait_empty(c, index);
            c.when(copies, || {
                c.expect_bytes(c.always(), full, weight);
                self.copy_weight(tile, i, to, full);
            });
            self.gather(&rows, i, to + weight);
            c.arrive_behind_copies(full);
        });
    }

    /// The addresses of the thread's vectors of a tile's rows, and their places in a stage.
    fn gathered_rows(&self, tile: Tile<'c>) -> Vec<(Ptr<'c>, Int<'c>)> {
        let (c, x) = (self.code(), self.x);
        let size = self.shape.operands.dtype(self.contraction.matrix.dtype).size();
        let thread = c.thread() % PRODUCERS;
        let vec16s = STRETCH / VEC16;
        let (vec16, first) = (thread % vec16s, thread / vec16s);
        let of_row = |i: usize| {
            let row = first + i * (PRODUCERS / vec16s);
            let source = c.to_i64(tile.source(c, row));
            let from = c.at(c.at(x.ptr, source * (x.stride * size)), vec16 * VEC16);
            (from, row * STRETCH + (vec16 ^ (row % 8)) * VEC16)
        };
        (0..TOKENS * vec16s / PRODUCERS).map(of_row).collect()
    }

    /// Issues the copies of the thread's vectors of a K tile's rows.
    fn gather(&self, rows: &[(Ptr<'c>, Int<'c>)], k_tile: Int<'c>, to: Int<'c>) {
        let c = self.code();
        for &(from, place) in rows {
            c.copy_vec16(to + place, c.at(from, k_tile * STRETCH));
        }
    }

    /// As [`Group::produce`], with all lanes decoding the weight. Quantised values of the next K
    /// tile are in flight while those of one are decoded.
    pub(super) fn produce_codes(&self, tile: Tile<'c>, first: Int<'c>, codes: &Codes<'c>, copies: Int<'c>) {
        let (c, shape) = (self.code(), self.shape);
        let [weight, all] = shape.stage();
        let decoded = codes_to_lds::Tile {
            panels: shape.rows / 16,
            columns: shape.stretch,
            threads: PRODUCERS,
            blocks: Blocks { along: BLOCK, down: EIGHT, panel: 2 * EIGHT },
            scales_sums: false,
        };
        let thread = c.thread() % PRODUCERS;
        let panel = |place| self.panel_of(tile, place);
        let dtype = self.contraction.matrix.dtype;
        let loader = CodesLoader::new(c, codes, dtype, decoded, thread, panel);
        let leads = c.equal(c.lane_index(), 0);
        let before = loader.load(c.int(0));
        let rows = if shape.gathers { self.gathered_rows(tile) } else { vec![] };
        c.carry((0, shape.count, 1), before, |i, loaded| {
            let index = first + i;
            let (full, to) = (self.stages.full(index), self.stages.at(index));
            let next = loader.load(c.smaller(i + 1, shape.count - 1));
            c.keep_order();
            self.stages.wait_empty(c, index);
            if shape.gathers {
                self.gather(&rows, i, to + weight);
                c.arrive_behind_copies(full);
            } else {
                c.when(copies, || {
                    c.expect_bytes(c.always(), full, all - weight);
                    self.copy_rows(tile, i, to + weight, full);
                });
            }
            loader.put(c.at_address(to), &loaded);
            c.show_to_products();
            c.meet_in_wave();
            c.arrive(leads, full);
            next
        });
    }

    /// The address of the panel in a place of a tile, and its number in the weight.
    fn panel_of(&self, tile: Tile<'c>, place: Int<'c>) -> (Ptr<'c>, Panel<'c>) {
        let contraction = self.contraction;
        let of_piece = self.shape.features / 16;
        let panel = contraction.made(tile.panel() + place % of_piece);
        let panel = [panel, contraction.first_panel(place / of_piece)];
        (tile.weight(contraction, panel), tile.weight_of(contraction, panel))
    }
}
