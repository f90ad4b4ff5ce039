//! Measured rows, and the work that each of them is.
use std::collections::BTreeMap;
use std::path::Path;

use atomc_aiter::gemm::{Family, Kernel};
use atomc_emulator::CodeObject;
use atomc_emulator::timing::chip::{Chip, Work};
use atomc_emulator::timing::profile::{Profile, Sample};

use crate::aiter::{Arena, Product, element_bytes, sample};
use crate::cache::Cache;

/// A row of the table.
#[derive(Clone, Debug)]
pub struct Row {
    pub gfx: String,
    pub cus: u32,
    pub kind: String,
    pub m: u32,
    pub n: u32,
    pub k: u32,
    pub splits: u32,
    pub us: f64,
    pub kernel: String,
    pub shape: Kernel,
}

/// Lengths of the loop, for one split, at which streams are recorded.
const LENGTHS: [u32; 2] = [2048, 4096];

/// Copies of the operands that AITER's tuner goes through, and what of the Infinity Cache they may
/// fill. Source: `aiter/test_common.py`; AMD's CDNA3 white paper (256 MiB).
pub const COPIES: f64 = 101.0;
pub const CACHE_BYTES: f64 = 230e6;

pub fn read(path: &Path) -> Result<Vec<Row>, String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    text.lines().skip(1).map(|line| parse(line).ok_or_else(|| format!("{}: {line}", path.display()))).collect()
}

pub fn parse(line: &str) -> Option<Row> {
    let f: Vec<&str> = line.split(',').collect();
    let [gfx, cus, kind, m, n, k, splits, us, kernel] = f[..] else { return None };
    let shape = Kernel::parse(kernel)?;
    let splits: u32 = splits.parse().ok()?;
    // The tables have the logarithm for fp4.
    let splits = if shape.family == Family::Fp4 { 1 << splits } else { splits.max(1) };
    Some(Row {
        gfx: gfx.into(),
        cus: cus.parse().ok()?,
        kind: kind.into(),
        m: m.parse().ok()?,
        n: n.parse().ok()?,
        k: k.parse().ok()?,
        splits,
        us: us.parse().ok()?,
        kernel: kernel.into(),
        shape,
    })
}

impl Row {
    /// Rows of the tile that are inside of the result.
    fn inside(&self) -> u32 {
        self.m.min(self.shape.tile.0 as u32)
    }

    /// All rows of the first tile are inside.
    pub fn whole(&self) -> bool {
        self.m >= self.shape.tile.0 as u32
    }

    /// Work-groups of the launch.
    pub fn groups(&self) -> u32 {
        let [tm, tn] = [self.shape.tile.0, self.shape.tile.1].map(|t| t as u32);
        self.n.div_ceil(tn) * self.m.div_ceil(tm) * self.splits
    }

    /// Elements of K of one work-group.
    pub fn along(&self) -> u32 {
        let step = if matches!(self.shape.family, Family::Fp4) { 256 } else { 128 };
        self.k.div_ceil(self.splits).next_multiple_of(step).min(self.k)
    }

    pub fn sizes(&self) -> String {
        format!("{} x {} x {}, {} splits", self.m, self.n, self.k, self.splits)
    }

    fn key(&self) -> String {
        format!("{} {} {} {}", self.gfx, self.kernel, self.inside(), u32::from(self.splits > 1))
    }

    pub fn work(&self, profile: &Profile, chip: &Chip) -> Work {
        let [tm, tn] = [self.shape.tile.0, self.shape.tile.1].map(|t| t as u32);
        let element = element_bytes(self.shape.family);
        let [m, n, k] = [self.m, self.n, self.k].map(f64::from);
        let read = (m + n) * k * element;
        let grid = [self.n.div_ceil(tn) * self.splits, self.m.div_ceil(tm)];
        let tiles = unique_tiles(grid, self.splits, chip);
        let along = f64::from(self.along()) * element;
        Work {
            group: profile.along(self.along().into()),
            groups: f64::from(grid[0]) * f64::from(grid[1]),
            read,
            written: m * n * 2.0,
            fetched: (tiles[0] * f64::from(self.inside()) + tiles[1] * f64::from(tn.min(self.n))) * along,
            resident: read * COPIES < CACHE_BYTES,
            memset: self.splits > 1 && self.shape.family != Family::Bf16,
            ..Work::default()
        }
    }
}

/// The number of tiles of A and of B that the first XCD requests, over all rounds.
fn unique_tiles(grid: [u32; 2], splits: u32, chip: &Chip) -> [f64; 2] {
    let each = chip.cus / chip.xcds;
    let groups = grid[0] * grid[1];
    let mine: Vec<u32> = (0..groups).step_by(chip.xcds as usize).collect();
    let mut total = [0.0; 2];
    for round in mine.chunks(each as usize) {
        let mut a: Vec<u32> = round.iter().map(|id| id / grid[0] * splits + id % grid[0] % splits).collect();
        let mut b: Vec<u32> = round.iter().map(|id| id % grid[0]).collect();
        for (sum, tiles) in total.iter_mut().zip([&mut a, &mut b]) {
            tiles.sort_unstable();
            tiles.dedup();
            *sum += tiles.len() as f64;
        }
    }
    total
}

/// The profile of a row's kernel, with as many rows of its tile and with or without splits.
pub fn profile_of(cache: &Cache, row: &Row) -> Option<Profile> {
    let [a, b] = cache.get(&row.key())? else { return None };
    Some(profile([*a, *b]))
}

/// Records what is missing; tells of kernels that cannot be recorded.
pub fn fill(cache: &mut Cache, rows: &[Row], folder: &Path) -> Vec<String> {
    let arena = Arena::new();
    let mut codes: BTreeMap<String, Result<CodeObject, String>> = BTreeMap::new();
    let mut failed: BTreeMap<String, String> = BTreeMap::new();
    for row in rows {
        let key = row.key();
        if cache.get(&key).is_some() || failed.contains_key(&row.kernel) {
            continue;
        }
        let path = format!("{}/{}/{}.co", row.gfx, row.shape.family.folder(), row.kernel);
        let open = || atomc_aiter::open(folder, &path).map_err(|e| e.to_string());
        let code = codes.entry(path.clone()).or_insert_with(open);
        let made = code.as_ref().map_err(Clone::clone).and_then(|code| made(code, row, &arena));
        match made {
            Ok(profile) => cache.insert(key, profile.samples.to_vec()),
            Err(e) => drop(failed.insert(row.kernel.clone(), e)),
        }
    }
    failed.into_values().collect()
}

fn profile(samples: [Sample; 2]) -> Profile {
    Profile { k: LENGTHS.map(f64::from), samples }
}

fn made(code: &CodeObject, row: &Row, arena: &Arena) -> Result<Profile, String> {
    let splits = row.splits.min(2);
    let (m, n) = (row.inside(), row.shape.tile.1 as u32);
    let [a, b] = LENGTHS.map(|k| sample(code, row.shape.family, Product { m, n, k: k * splits, splits }, arena));
    Ok(profile([a?, b?]))
}
