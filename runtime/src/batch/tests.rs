use super::*;
use crate::device::DeviceChoice;
use crate::device::apart::Apart;
use crate::toy;
use atomc_artifact::Artifact;

fn room() -> Room {
    Room { tokens: 80, rows: 8, tables: vec![TableRoom { blocks: 4, block_stride: 512 }], given: None }
}

fn host() -> Box<dyn Device> {
    DeviceChoice::default().open(&Artifact::open(toy::path()).unwrap(), 1).unwrap()
}

impl Inputs {
    fn first(&mut self, part: impl Fn(Parts) -> usize, count: usize) -> Vec<i32> {
        let part = part(self.parts);
        self.ints(part, 0, count).to_vec()
    }

    fn batch(&self, table: usize) -> Batch {
        let batches = self.block.address().wrapping_add(self.parts.batches).cast::<Batch>();
        // SAFETY: a batch was written there.
        unsafe { batches.add(table).read() }
    }
}

#[test]
fn lays_out_a_mixed_step() {
    let mut inputs = Inputs::new(&mut *host(), room()).unwrap();
    let prompt: Vec<u32> = (100..140).collect();
    inputs.clear();
    inputs.push(&[7], 33, 34, [&[5, 6, 9][..]]);
    inputs.want(1);
    inputs.push(&prompt, 0, 50, [&[1, 2, 3][..]]);
    inputs.want(2);
    let StepInputs { size, bytes } = inputs.step();
    assert_eq!((size.step.tokens, size.step.rows, size.tiles), (41, 3, 3));
    let length = bytes.len();
    assert_eq!(length, inputs.parts.tables + 2 * 4 * INT);
    assert_eq!(inputs.first(|p| p.step, 4), [41, 0, 3, 0]);
    assert_eq!(inputs.first(|p| p.ids, 3), [7, 100, 101]);
    assert_eq!(inputs.first(|p| p.positions, 3), [33, 0, 1]);
    assert_eq!(inputs.first(|p| p.lengths, 3), [34, 50, 50]);
    assert_eq!(inputs.first(|p| p.sequences, 3), [0, 1, 1]);
    assert_eq!(inputs.first(|p| p.rows, 4), [0, 39, 40, 0]);
    assert_eq!(inputs.first(|p| p.tiles, 8), [0, 1, 1, 32, 33, 8, 0, 0]);
    assert_eq!(inputs.first(|p| p.tables, 8), [5, 6, 9, 0, 1, 2, 3, 0]);
    let batch = inputs.batch(0);
    assert_eq!((batch.table_stride, batch.tile_count, batch.block_stride), (4, 3, 512));
}

#[test]
fn each_table_has_a_batch() {
    let tables = [(4, 512), (2, 768)].map(|(blocks, block_stride)| TableRoom { blocks, block_stride });
    let mut inputs = Inputs::new(&mut *host(), Room { tables: tables.to_vec(), ..room() }).unwrap();
    inputs.push(&[7], 33, 34, [&[5, 6, 9][..], &[8]]);
    inputs.push(&[7], 3, 4, [&[1][..], &[2]]);
    assert_eq!(inputs.step().bytes.len(), inputs.parts.tables + 2 * 6 * INT);
    assert_eq!(inputs.first(|p| p.tables, 8), [5, 6, 9, 0, 8, 0, 1, 0]);
    let (first, second) = (inputs.batch(0), inputs.batch(1));
    assert_eq!((first.table_stride, first.block_stride, second.table_stride, second.block_stride), (6, 512, 6, 768));
    assert_eq!(second.tables, first.tables.wrapping_add(4));
    assert_eq!((second.positions, second.tiles), (first.positions, first.tiles));
    assert_eq!(inputs.addresses().batch(1).cast_const(), inputs.addresses().batches.wrapping_add(size_of::<Batch>()));
}

#[test]
fn padding_is_zero_after_a_larger_step() {
    let mut inputs = Inputs::new(&mut *host(), room()).unwrap();
    inputs.push(&[9; 80], 0, 80, [&[1, 2, 3, 0][..]]);
    inputs.want(8);
    inputs.clear();
    inputs.push(&[8], 4, 5, [&[2][..]]);
    inputs.step();
    let Parts { ids, positions, lengths, sequences, .. } = inputs.parts;
    for part in [ids, positions, lengths, sequences] {
        assert!(inputs.first(|_| part, 80 + SPARE_TOKENS)[1..].iter().all(|&value| value == 0));
    }
    assert!(inputs.first(|p| p.rows, 8 + SPARE_TOKENS).iter().all(|&row| row == 0));
    assert!(inputs.first(|p| p.tiles, 2 * (80 + SPARE_TOKENS))[2..].iter().all(|&tile| tile == 0));
    let (batch, addresses) = (inputs.batch(0), inputs.addresses());
    assert_eq!((batch.tile_count, batch.positions.cast()), (1, addresses.positions.cast_const()));
}

#[test]
fn pointers_are_those_of_the_device() {
    let mut device = Apart::new(host());
    let mut inputs = Inputs::new(&mut device, room()).unwrap();
    let here = inputs.block.address();
    inputs.push(&[8], 4, 5, [&[2][..]]);
    inputs.step();
    let (batch, addresses, parts) = (inputs.batch(0), inputs.addresses(), inputs.parts);
    assert_ne!(addresses.block, here);
    assert_eq!(batch.tiles.cast(), addresses.block.wrapping_add(parts.tiles).cast_const());
    assert_eq!(batch.tables.cast(), addresses.block.wrapping_add(parts.tables).cast_const());
}
