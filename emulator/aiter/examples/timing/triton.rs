//! Triton's products of AITER, as `tests/triton/aiter_gemm.py` compiles them.
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use atomc_emulator::timing::chip::{Chip, Work};
use atomc_emulator::timing::cu::CORE;
use atomc_emulator::timing::occupancy;
use atomc_emulator::timing::profile::Sample;
use atomc_emulator::timing::trace::Trace;
use atomc_emulator::{CodeObject, Emulator, Grid};
use serde::Deserialize;

use crate::cache::Cache;
use crate::fit::Case;
use crate::rows::{CACHE_BYTES, COPIES};
use crate::zeros::Zeros;

/// A measured row with the kernels that it ran.
#[derive(Deserialize)]
pub struct Row {
    gfx: String,
    cus: String,
    kind: String,
    #[serde(rename = "M")]
    m: String,
    #[serde(rename = "N")]
    n: String,
    #[serde(rename = "K")]
    k: String,
    us: String,
    source: String,
    launches: Vec<Launch>,
}

#[derive(Deserialize)]
struct Launch {
    code: PathBuf,
    symbol: String,
    grid: [u32; 3],
    threads: u32,
    dynamic_lds: u32,
    kernarg_bytes: usize,
    args: Vec<Arg>,
    /// Tiles along M, N and K; a sum of splits has none.
    #[serde(flatten)]
    order: Option<Order>,
}

/// Which tile a work-group computes.
#[derive(Deserialize)]
struct Order {
    tiles: [u32; 3],
    /// Elements of a tile.
    tile: [u32; 3],
    /// Groups of an XCD get neighbouring tiles.
    remap: bool,
    /// Rows of tiles that are computed column by column.
    group_m: u32,
}

#[derive(Deserialize)]
struct Arg {
    name: String,
    offset: usize,
    size: usize,
    /// Bytes of the tensor that it points to.
    bytes: Option<u64>,
    #[serde(default)]
    value: i64,
}

pub fn read(folder: &Path) -> Result<Vec<Row>, String> {
    let path = folder.join("launches.json");
    let text = std::fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    serde_json::from_slice(&text).map_err(|e| format!("{}: {e}", path.display()))
}

impl Launch {
    /// Bytes of tensors that it writes, or of those that it reads.
    fn tensors(&self, written: bool) -> f64 {
        let writes = |a: &&Arg| ["c_ptr", "c_out_ptr"].contains(&a.name.as_str()) == written;
        self.args.iter().filter(writes).filter_map(|a| a.bytes).sum::<u64>() as f64
    }

    fn arguments(&self, zeros: &mut Zeros) -> Vec<u8> {
        let mut bytes = vec![0; self.kernarg_bytes];
        for arg in &self.args {
            let value = arg.bytes.map_or(arg.value.to_le_bytes(), |tensor| zeros.tensor(tensor).to_le_bytes());
            bytes[arg.offset..arg.offset + arg.size].copy_from_slice(&value[..arg.size]);
        }
        bytes
    }

    fn shape(&self) -> Grid {
        Grid { groups: self.grid, threads: [self.threads, 1, 1], dynamic_lds: self.dynamic_lds }
    }

    fn groups(&self) -> f64 {
        self.grid.iter().map(|n| f64::from(*n)).product()
    }

    fn record(&self, code: &CodeObject) -> Result<Trace, String> {
        let mut zeros = Zeros::of(self.args.iter().filter_map(|a| a.bytes));
        let arguments = self.arguments(&mut zeros);
        Emulator.record(code, &self.symbol, self.shape(), &arguments, zeros.memory(), [0; 3]).map_err(|e| e.to_string())
    }

    /// What a compute unit's groups take, of full rounds and of the last one.
    fn samples(&self, chip: &Chip, folder: &Path, cache: &mut Cache) -> Result<(f64, Vec<Sample>), String> {
        let bytes = std::fs::read(folder.join(&self.code)).map_err(|e| format!("{}: {e}", self.code.display()))?;
        let code = CodeObject::load(&bytes).map_err(|e| e.to_string())?;
        let kernel = code.kernel(&self.symbol).ok_or("no kernel")?;
        let each = chip.each(self.groups()) as u32;
        let together = occupancy::groups(&kernel.descriptor, code.isa, &self.shape()).min(each);
        let rest = each % together;
        let values: Vec<String> = self.args.iter().map(|a| a.bytes.map_or(a.value, |b| b as i64).to_string()).collect();
        let key = format!("{} {together} {rest} {:?} {}", self.code.display(), self.grid, values.join(" "));
        let samples = cache.or_make(&key, || {
            let trace = self.record(&code)?;
            let of = |n: &u32| Sample::of(&trace, *n as usize, &CORE);
            Ok([together, rest].iter().filter(|n| **n > 0).map(of).collect())
        })?;
        Ok((together.into(), samples))
    }

    fn work(&self, chip: &Chip, folder: &Path, cache: &mut Cache) -> Result<Work, String> {
        let (together, samples) = self.samples(chip, folder, cache)?;
        let [read, written] = [false, true].map(|w| self.tensors(w));
        let fetched = match &self.order {
            Some(order) => order.fetched(chip, together as u32, read / order.operands()),
            None => read / f64::from(chip.xcds),
        };
        // A sum of splits reads what was just written.
        let resident = self.order.is_none() || read * COPIES < CACHE_BYTES;
        let (group, rest) = (samples[0], samples.get(1).copied());
        Ok(Work { group, together, rest, groups: self.groups(), read, written, fetched, resident, memset: false })
    }
}

impl Order {
    /// Elements of both operands.
    fn operands(&self) -> f64 {
        let [m, n, k] = [0, 1, 2].map(|at| f64::from(self.tiles[at]) * f64::from(self.tile[at]));
        (m + n) * k
    }

    /// Bytes that an XCD requests from the memory beyond its L2: in each round, each tile once.
    fn fetched(&self, chip: &Chip, together: u32, element: f64) -> f64 {
        let [tm, tn, tk] = self.tile.map(f64::from);
        let groups: u32 = self.tiles.iter().product();
        let mine: Vec<[u32; 3]> = (0..groups).step_by(chip.xcds as usize).map(|id| self.tile_of(id, chip)).collect();
        let mut bytes = 0.0;
        for round in mine.chunks((chip.cus / chip.xcds * together) as usize) {
            let mut a: Vec<[u32; 2]> = round.iter().map(|[m, _, k]| [*m, *k]).collect();
            let mut b: Vec<[u32; 2]> = round.iter().map(|[_, n, k]| [*n, *k]).collect();
            for (tiles, rows) in [(&mut a, tm), (&mut b, tn)] {
                tiles.sort_unstable();
                tiles.dedup();
                bytes += tiles.len() as f64 * rows * tk * element;
            }
        }
        bytes
    }

    /// The tile along M, N and K of a work-group.
    fn tile_of(&self, id: u32, chip: &Chip) -> [u32; 3] {
        let [tiles_m, tiles_n, splits] = self.tiles;
        let id = if self.remap { remapped(id, tiles_m * tiles_n * splits, chip.xcds) } else { id };
        let (k, id) = (id % splits, id / splits);
        if splits > 1 || self.group_m == 1 {
            return [id / tiles_n, id % tiles_n, k];
        }
        let first = id / (self.group_m * tiles_n) * self.group_m;
        let rows = self.group_m.min(tiles_m - first);
        [first + id % rows, id % (self.group_m * tiles_n) / rows, k]
    }
}

/// A group's number if each XCD, which gets groups in turn, is to have neighbours.
fn remapped(id: u32, groups: u32, xcds: u32) -> u32 {
    let (xcd, at) = (id % xcds, id / xcds);
    let (each, more) = (groups / xcds, groups % xcds);
    xcd * each + xcd.min(more) + at
}

/// The rows of a chip as cases, and why others are not.
pub fn cases(rows: &[Row], chip: &Chip, folder: Option<&Path>, cache: &mut Cache) -> (Vec<Case>, Vec<String>) {
    let (mut cases, mut failed) = (Vec::new(), BTreeMap::new());
    let Some(folder) = folder else { return (cases, Vec::new()) };
    for row in rows.iter().filter(|r| r.gfx == chip.gfx && r.cus == chip.cus.to_string()) {
        let works: Result<Vec<Work>, String> = row.launches.iter().map(|l| l.work(chip, folder, cache)).collect();
        match works {
            Ok(works) => cases.push(Case {
                works,
                us: row.us.parse().unwrap_or(f64::NAN),
                kernel: row.source.clone(),
                shape: format!("{} x {} x {}", row.m, row.n, row.k),
                kind: row.kind.clone(),
            }),
            Err(e) => drop(failed.insert(format!("{}x{}x{} {}", row.m, row.n, row.k, row.kind), e)),
        }
    }
    let failed = failed.into_iter().map(|(row, e)| format!("{row}: {e}")).collect();
    (cases, failed)
}
