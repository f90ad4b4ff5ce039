//! AMX: products of 16 x 32 bf16 tiles.
use inkwell::values::BasicMetadataValueEnum;

use crate::code::{Code, Int, Ptr};

/// Rows of a tile, and bytes of one row.
pub const ROWS: usize = 16;
pub const ROW_BYTES: usize = 64;
/// bf16 columns of a tile.
pub const DEPTH: usize = 32;

/// The tile registers, all of 64-byte rows: 0 to 3 for sums, 4 and 5 for x, 6 and 7 for weights.
pub struct Tiles<'a, 'c>(&'a Code<'c>);

impl<'a, 'c> Tiles<'a, 'c> {
    /// `rows` is the number of rows of x, and so of sums, in a tile.
    pub fn open(c: &'a Code<'c>, rows: usize) -> Tiles<'a, 'c> {
        // Palette 1; bytes per row as eight u16 from byte 16; rows as eight bytes from byte 48
        // (Intel SDM, LDTILECFG).
        let mut config = [0u8; 64];
        config[0] = 1;
        for tile in 0..8 {
            config[16 + 2 * tile] = ROW_BYTES as u8;
            config[48 + tile] = if tile < 6 { rows } else { ROWS } as u8;
        }
        let bytes: Vec<_> = config.iter().map(|&b| c.cx.i8_type().const_int(b as u64, false)).collect();
        let constant = c.cx.i8_type().const_array(&bytes);
        let global = c.module.add_global(constant.get_type(), None, "tiles");
        global.set_initializer(&constant);
        global.set_constant(true);
        global.set_alignment(64);
        global.set_linkage(inkwell::module::Linkage::Private);
        c.call("llvm.x86.ldtilecfg", &[], &[global.as_pointer_value().into()]);
        Tiles(c)
    }

    pub fn close(self) {
        self.0.call("llvm.x86.tilerelease", &[], &[]);
    }

    fn tile(&self, t: usize) -> BasicMetadataValueEnum<'c> {
        self.0.cx.i8_type().const_int(t as u64, false).into()
    }

    pub fn zero(&self, t: usize) {
        self.0.call("llvm.x86.tilezero", &[], &[self.tile(t)]);
    }

    /// Rows `stride` bytes apart.
    pub fn load(&self, t: usize, p: Ptr<'c>, stride: usize) {
        let stride: Int = self.0.int(stride);
        self.0.call("llvm.x86.tileloadd64", &[], &[self.tile(t), p.into(), stride.into()]);
    }

    pub fn store(&self, t: usize, p: Ptr<'c>, stride: usize) {
        let stride: Int = self.0.int(stride);
        self.0.call("llvm.x86.tilestored64", &[], &[self.tile(t), p.into(), stride.into()]);
    }

    /// `sum += a * b`, where `b` holds pairs of its rows.
    pub fn multiply(&self, sum: usize, a: usize, b: usize) {
        self.0.call("llvm.x86.tdpbf16ps", &[], &[self.tile(sum), self.tile(a), self.tile(b)]);
    }
}
