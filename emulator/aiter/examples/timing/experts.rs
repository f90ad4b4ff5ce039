//! AITER's hand-written kernels of fused experts.
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use atomc_aiter::{Slots, numbers::Random};
use atomc_emulator::timing::chip::{Chip, Work};
use atomc_emulator::timing::cu::CORE;
use atomc_emulator::timing::occupancy;
use atomc_emulator::timing::profile::Sample;
use atomc_emulator::timing::trace::Trace;
use atomc_emulator::{CodeObject, Emulator, Grid};

use crate::cache::Cache;
use crate::fit::Case;
use crate::rows::{CACHE_BYTES, COPIES};
use crate::zeros::Zeros;

/// A measured row: the first launch, or the only one.
#[derive(Clone, Debug)]
pub struct Row {
    gfx: String,
    cus: u32,
    tokens: u32,
    dim: u32,
    inner: u32,
    experts: u32,
    chosen: u32,
    scale: String,
    block: u32,
    us: f64,
    kernel: String,
    one_stage: bool,
}

/// What AITER's tables say of a kernel.
#[derive(Clone, Debug)]
struct Kernel {
    path: String,
    /// Columns of the gate of a work-group.
    columns: u32,
    /// Work-groups a compute unit that take tiles in turn; 0 where each has one.
    persistent: u32,
    /// Tokens are not sorted: a group has one expert of one token.
    flat: bool,
}

/// The measured rows. Not measured are rows without a time, and those with the very time of the
/// same kernel, model and chip at another number of tokens: AITER's tables have such copies.
pub fn read(path: &Path) -> Result<Vec<Row>, String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let parsed = text.lines().skip(1).map(|l| parse(l).ok_or_else(|| format!("{}: {l}", path.display())));
    let rows: Vec<Row> = parsed.collect::<Result<_, _>>()?;
    let copied = |row: &Row| {
        let same = |other: &&Row| other.us == row.us && other.kernel == row.kernel && other.model() == row.model();
        rows.iter().filter(same).any(|other| other.tokens != row.tokens)
    };
    Ok(rows.iter().filter(|row| row.us > 0.0 && !copied(row)).cloned().collect())
}

fn parse(line: &str) -> Option<Row> {
    let f: Vec<&str> = line.split(',').collect();
    let number = |at: usize| f.get(at)?.parse::<u32>().ok();
    Some(Row {
        gfx: f.first()?.to_string(),
        cus: number(1)?,
        tokens: number(2)?,
        dim: number(3)?,
        inner: number(4)?,
        experts: number(5)?,
        chosen: number(6)?,
        scale: f.get(10)?.to_string(),
        block: number(11)?,
        us: f.get(13)?.parse().ok()?,
        kernel: f.get(14)?.to_string(),
        one_stage: f.get(17)? == &"1",
    })
}

/// Kernels of the tables below `hsa`, by chip and name.
pub struct Kernels {
    folder: PathBuf,
    named: BTreeMap<String, Kernel>,
}

const FOLDERS: [&str; 3] = ["fmoe/silu", "fmoe/gelu", "fmoe_2stages"];

impl Kernels {
    pub fn open(hsa: &Path) -> Kernels {
        let mut kernels = Kernels { folder: hsa.into(), named: BTreeMap::new() };
        for gfx in ["gfx942", "gfx950"] {
            for folder in FOLDERS.map(|f| format!("{gfx}/{f}")) {
                let files = std::fs::read_dir(hsa.join(&folder)).into_iter().flatten().flatten();
                for file in files.filter(|f| f.path().extension().is_some_and(|e| e == "csv")) {
                    let text = std::fs::read_to_string(file.path()).unwrap_or_default();
                    kernels.table(gfx, &folder, &text);
                }
            }
        }
        kernels
    }

    fn table(&mut self, gfx: &str, folder: &str, text: &str) {
        let mut lines = text.lines().map(|l| l.split(',').collect::<Vec<&str>>());
        let Some(names) = lines.next() else { return };
        for fields in lines {
            let field = |name: &str| names.iter().position(|n| n == &name).and_then(|at| fields.get(at).copied());
            let number = |name: &str| field(name).and_then(|v| v.parse::<u32>().ok());
            let Some((symbol, code)) = field("knl_name").zip(field("co_name")) else { continue };
            let Some(columns) = number("subGU_n").or(number("tile_n")) else { continue };
            // The symbol is mangled: its length, its name, and an E.
            let name = symbol.find("fmoe").map_or(symbol, |at| symbol[at..].trim_end_matches('E'));
            let turns = if number("ps") == Some(1) { number("tg_num_perCU").unwrap_or(1) } else { 0 };
            let flat = number("flat").unwrap_or(0) != 0;
            let kernel = Kernel { path: format!("{folder}/{code}"), columns, persistent: turns, flat };
            self.named.insert(format!("{gfx} {name}"), kernel);
        }
    }
}

/// Blocks of rows of the chosen experts.
struct Routing {
    /// The expert of each block.
    blocks: Vec<u32>,
    active: u32,
}

impl Row {
    fn model(&self) -> [u32; 5] {
        [self.cus, self.dim, self.inner, self.experts, self.chosen]
    }

    /// It takes less time than the chip's peak allows.
    fn is_possible(&self, chip: &Chip) -> bool {
        let rows = f64::from(self.tokens) * f64::from(self.chosen);
        let clocks = 2.0 * rows * self.weights() / (f64::from(chip.cus) * chip.fp8_rate);
        clocks / chip.peak_clock * 1e-3 < self.us
    }

    fn bytes_of_row(&self) -> u64 {
        // Their weights are fp8 all the same.
        if self.kernel.contains("blockscaleBf16") || self.kernel.contains("_a16_") { 2 } else { 1 }
    }

    fn weights(&self) -> f64 {
        let products = if self.one_stage { 3.0 } else { 2.0 };
        products * f64::from(self.inner) * f64::from(self.dim)
    }

    /// Every token chooses its experts by random scores, as AITER's tuner has it.
    fn routing(&self) -> Routing {
        let mut random = Random::new(1);
        let mut rows = vec![0u32; self.experts as usize];
        for _ in 0..self.tokens {
            let mut mine: BTreeSet<u32> = BTreeSet::new();
            while mine.len() < self.chosen as usize {
                mine.insert((random.between(0.0, 1.0) * self.experts as f32) as u32 % self.experts);
            }
            mine.iter().for_each(|e| rows[*e as usize] += 1);
        }
        let of = |(expert, rows): (usize, &u32)| vec![expert as u32; rows.div_ceil(self.block) as usize];
        let active = rows.iter().filter(|r| **r > 0).count() as u32;
        Routing { blocks: rows.iter().enumerate().flat_map(of).collect(), active }
    }

    /// Rows of a block that are tokens, in the mean.
    fn filled(&self, routing: &Routing) -> u32 {
        let rows = f64::from(self.tokens * self.chosen) / routing.blocks.len() as f64;
        (rows.round() as u32).clamp(1, self.block)
    }

    /// Arguments where all blocks belong to the first expert.
    fn arguments(&self, kernel: &Kernel, filled: u32) -> (Slots, Zeros) {
        let [tokens, dim, inner] = [self.tokens, self.dim, self.inner].map(u64::from);
        let chosen = u64::from(self.chosen);
        let out = if self.one_stage { tokens * dim * 2 } else { tokens * chosen * inner * 2 };
        let x = tokens * dim * self.bytes_of_row();
        let scales = [tokens * dim.div_ceil(128) * 4, 2 * inner * dim.div_ceil(128) * 4, dim * inner.div_ceil(128) * 4];
        let sizes = [out, x, 2 * inner * dim, 8, dim * inner, scales[0], scales[1], scales[2], inner * 4];
        let lists = u64::from(self.block) * 4;
        let mut zeros = Zeros::of(sizes.iter().copied().chain([lists * 4, lists * 4, lists * 4]));
        let row = |at: u32| match at < filled {
            // In place of tokens there are the experts of each.
            _ if kernel.flat => 0,
            true => (u64::from(at) * tokens / u64::from(filled)) as u32,
            false => self.tokens | self.chosen << 24,
        };
        let ids: Vec<u32> = (0..self.block).map(row).collect();
        let mut place = sizes.map(|_| 0);
        for (at, bytes) in sizes.iter().enumerate() {
            place[at] = if at == 3 { zeros.words(&[self.block, self.tokens]) } else { zeros.tensor(*bytes) };
        }
        let lists =
            [zeros.words(&ids), zeros.words(&vec![1.0f32.to_bits(); ids.len()]), zeros.words(&vec![0; ids.len()])];
        let mut slots = Slots::default();
        if self.one_stage {
            place.iter().chain(&lists).for_each(|p| _ = slots.pointer(*p));
            self.sizes(kernel, &mut slots);
        } else {
            [0, 1, 2, 3, 5, 6].iter().for_each(|at| _ = slots.pointer(place[*at]));
            slots.null().pointer(lists[0]).pointer(lists[2]);
            self.sizes_of_first(&mut slots);
            slots.pointer(lists[1]);
        }
        (slots, zeros)
    }

    /// The arguments of `fmoe` after the pointers.
    fn sizes(&self, kernel: &Kernel, slots: &mut Slots) {
        let Row { dim, inner, tokens, experts, chosen, .. } = *self;
        let parts = inner.div_ceil(kernel.columns);
        let turns = kernel.persistent * self.cus / parts * parts;
        let scales = self.scale_strides();
        let x = dim * self.bytes_of_row() as u32;
        let strides = [x, dim, inner, dim * 2, 2 * inner * dim, inner * dim, scales[0], scales[1], inner * 4];
        slots.words(&[dim, inner, tokens, experts]).words(&strides).words(&[chosen, turns, parts]);
    }

    /// The arguments of `fmoe_2stages` after the pointers.
    fn sizes_of_first(&self, slots: &mut Slots) {
        let Row { dim, inner, tokens, experts, chosen, .. } = *self;
        let out = chosen * inner * self.bytes_of_result();
        let strides = [dim, dim, out, 2 * inner * dim, self.scale_strides()[0], inner * 4, chosen, 0, 0];
        slots.words(&[dim, inner, tokens, experts]).words(&strides);
    }

    /// The first launch leaves fp8 where scales belong to blocks.
    fn bytes_of_result(&self) -> u32 {
        if !self.one_stage && self.in_blocks() { 1 } else { 2 }
    }

    fn in_blocks(&self) -> bool {
        self.scale == "per_1x128"
    }

    /// Bytes of the scales of an expert, of both products.
    fn scale_strides(&self) -> [u32; 2] {
        let Row { dim, inner, .. } = *self;
        match self.in_blocks() {
            true => [2 * inner / 128 * (dim / 128) * 4, dim / 128 * (inner / 128) * 4],
            false => [2 * inner * 4, dim * 4],
        }
    }

    fn grid(&self, kernel: &Kernel) -> Grid {
        let parts = self.inner.div_ceil(kernel.columns);
        let turns = kernel.persistent * self.cus / parts * parts;
        let groups = match turns {
            _ if kernel.flat => [parts, self.chosen, self.tokens],
            0 => [parts, 1, 1],
            _ => [kernel.persistent * self.cus, 1, 1],
        };
        Grid { groups, threads: [256, 1, 1], dynamic_lds: 0 }
    }

    fn record(&self, code: &CodeObject, kernel: &Kernel, filled: u32) -> Result<Trace, String> {
        let symbol = code.kernels().next().ok_or("no kernel")?.to_string();
        let (slots, zeros) = self.arguments(kernel, filled);
        let mut arguments = slots.bytes().to_vec();
        let wanted = code.kernel(&symbol).map_or(0, |k| k.metadata.kernarg_segment_size as usize);
        arguments.resize(arguments.len().max(wanted), 0);
        Emulator.record(code, &symbol, self.grid(kernel), &arguments, zeros.memory(), [0; 3]).map_err(|e| e.to_string())
    }

    fn work(&self, kernel: &Kernel, chip: &Chip, folder: &Path, cache: &mut Cache) -> Result<Work, String> {
        let routing = self.routing();
        let filled = self.filled(&routing);
        let parts = self.inner.div_ceil(kernel.columns);
        let groups = f64::from(parts * routing.blocks.len() as u32);
        let code = atomc_aiter::open(folder, &kernel.path).map_err(|e| e.to_string())?;
        let symbol = code.kernels().next().ok_or("no kernel")?.to_string();
        let descriptor = code.kernel(&symbol).ok_or("no kernel")?.descriptor;
        let each = chip.each(groups) as u32;
        let together = occupancy::groups(&descriptor, code.isa, &self.grid(kernel)).min(each);
        let rest = each % together;
        let shape = [self.tokens, self.dim, self.inner, self.experts, self.chosen, self.block, filled];
        let key = format!("{} {} {together} {rest} {shape:?}", self.gfx, self.kernel);
        let samples = cache.or_make(&key, || {
            let trace = self.record(&code, kernel, filled)?;
            let of = |n: &u32| Sample::of(&trace, *n as usize, &CORE);
            Ok([together, rest].iter().filter(|n| **n > 0).map(of).collect())
        })?;
        let x = f64::from(self.tokens * self.dim) * self.bytes_of_row() as f64;
        let read = f64::from(routing.active) * self.weights() + x;
        let results = if self.one_stage { self.dim } else { self.chosen * self.inner };
        Ok(Work {
            group: samples[0],
            together: together.into(),
            rest: samples.get(1).copied(),
            groups,
            read,
            written: f64::from(self.tokens) * f64::from(results) * f64::from(self.bytes_of_result()),
            fetched: self.fetched(&routing, kernel, chip, together),
            resident: read * COPIES < CACHE_BYTES,
            // Sums of experts begin at zero.
            memset: self.one_stage,
        })
    }

    /// Bytes that an XCD requests from the memory beyond its L2: in each round, weights of an
    /// expert's part and rows of a block once.
    fn fetched(&self, routing: &Routing, kernel: &Kernel, chip: &Chip, together: u32) -> f64 {
        let parts = self.inner.div_ceil(kernel.columns) as usize;
        let weights = self.weights() / parts as f64;
        let rows = f64::from(self.filled(routing) * self.dim) * self.bytes_of_row() as f64;
        let mine: Vec<usize> = (0..routing.blocks.len() * parts).step_by(chip.xcds as usize).collect();
        let round = (chip.cus / chip.xcds * together) as usize;
        let bytes = |ids: &[usize]| {
            let tiles: BTreeSet<[usize; 2]> =
                ids.iter().map(|id| [routing.blocks[id / parts] as usize, id % parts]).collect();
            let blocks: BTreeSet<usize> = ids.iter().map(|id| id / parts).collect();
            tiles.len() as f64 * weights + blocks.len() as f64 * rows
        };
        mine.chunks(round).map(bytes).sum()
    }
}

/// The rows of a chip as cases, and why others are not.
pub fn cases(rows: &[Row], kernels: &Kernels, chip: &Chip, cache: &mut Cache) -> (Vec<Case>, Vec<String>) {
    let (mut cases, mut failed) = (Vec::new(), BTreeMap::new());
    for row in rows.iter().filter(|r| r.gfx == chip.gfx && r.cus == chip.cus) {
        let kernel = kernels.named.get(&format!("{} {}", row.gfx, row.kernel));
        let work = match kernel {
            None => Err("no such kernel".to_string()),
            _ if !row.is_possible(chip) => Err("faster than the chip can be".to_string()),
            Some(_) if row.kernel.contains("MXfp4") => Err("weights in fp4".to_string()),
            Some(kernel) => row.work(kernel, chip, &kernels.folder, cache),
        };
        match work {
            Ok(work) => cases.push(Case {
                works: vec![work],
                us: row.us,
                kernel: row.kernel.clone(),
                shape: format!(
                    "{} x {} x {}, {} of {} experts",
                    row.tokens, row.inner, row.dim, row.chosen, row.experts
                ),
                kind: row.scale.clone(),
            }),
            Err(e) => *failed.entry(format!("{}: {e}", row.kernel)).or_insert(0) += 1,
        }
    }
    let failed = failed.into_iter().map(|(why, n)| format!("{n} rows of {why}")).collect();
    (cases, failed)
}
