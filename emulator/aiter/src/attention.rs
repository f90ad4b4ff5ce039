//! Attention: paged decode (`pa`), latent decode (`mla`), prompts (`fmha_v3_fwd`).
use super::numbers::{Element, Random};
use super::{Buffer, Case, Slots, THREADS};
use atomc_emulator::Grid;

/// Values of a head of paged decode and of prompts.
const HEAD: usize = 128;
/// Tokens of a page of paged decode.
const PAGE: usize = 16;

/// Softmax of a query's products with keys, applied to values; keys beyond `count` are none.
fn attend(
    query: &[f64],
    count: usize,
    scale: f64,
    key: impl Fn(usize) -> Vec<f64>,
    value: impl Fn(usize) -> Vec<f64>,
) -> Vec<f64> {
    let dot = |k: usize| query.iter().zip(key(k)).map(|(a, b)| a * b).sum::<f64>() * scale;
    let scores: Vec<f64> = (0..count).map(dot).collect();
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|s| (s - largest).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let mut out = Vec::new();
    for (at, weight) in weights.iter().enumerate() {
        let value = value(at);
        out.resize(value.len(), 0.0);
        out.iter_mut().zip(value).for_each(|(out, v)| *out += weight / sum * v);
    }
    out
}

fn list(numbers: &[usize]) -> String {
    let numbers: Vec<String> = numbers.iter().map(ToString::to_string).collect();
    numbers.join(", ")
}

fn grid(groups: [usize; 3], threads: u32) -> Grid {
    Grid { groups: groups.map(|n| n as u32), threads: [threads, 1, 1], dynamic_lds: 0 }
}

/// Decode of one token a sequence, or a few, over pages of 16.
#[derive(Clone, Copy, Debug)]
pub struct Paged {
    /// Tokens of each sequence.
    pub contexts: &'static [usize],
    pub kv_heads: usize,
    /// Query heads of one key head.
    pub group: usize,
    /// Tokens of queries of each sequence, the last ones of it.
    pub queries: usize,
    /// What keys and values are; queries are bf16. Bytes have a scale a token and head.
    pub cache: Element,
}

impl Paged {
    pub fn case(self, chip: &str, name: &str, seed: u64) -> Case {
        let Paged { contexts, kv_heads, group, queries, cache } = self;
        let mut random = Random::new(seed);
        let heads = kv_heads * group;
        let longest = contexts.iter().max().expect("a sequence").div_ceil(PAGE);
        let pages = longest * contexts.len() + 3;
        let order = random.order(pages);
        let table: Vec<u32> = order[..longest * contexts.len()].to_vec();
        let q = Element::Bf16.random(contexts.len() * queries * heads * HEAD, &mut random);
        let [keys, values] = [0, 1].map(|_| cache.random(pages * kv_heads * PAGE * HEAD, &mut random));
        let (low, high) = if cache == Element::Int8 { (0.004, 0.012) } else { (0.004, 0.008) };
        let [key_scales, value_scales] = [0, 1].map(|_| random.floats(pages * kv_heads * PAGE, low, high));
        let lengths: Vec<u32> = contexts.iter().map(|n| *n as u32).collect();
        let buffers = vec![
            Buffer::zeros(q.len()),
            Buffer::bytes(&q),
            Buffer::bytes(&keys),
            Buffer::bytes(&values),
            Buffer::words(&table),
            Buffer::words(&lengths),
            Buffer::floats(&key_scales),
            Buffer::floats(&value_scales),
            Buffer::words(&(0..=contexts.len()).map(|n| (n * queries) as u32).collect::<Vec<u32>>()),
        ];
        let mut slots = Slots::default();
        let scale = 1.0 / (HEAD as f64).sqrt();
        let head_bytes = cache.bytes(PAGE * HEAD);
        let words = [longest, kv_heads, heads * HEAD * 2, head_bytes * kv_heads, head_bytes, queries - 1, group];
        slots.buffers(&buffers[..8]).float((scale * std::f64::consts::LOG2_E) as f32);
        slots.words(&words.map(|v| v as u32)).pointer(if queries > 1 { buffers[8].address() } else { 0 });
        let cells = Cells { cache, kv_heads, keys, values, key_scales, value_scales, table, longest };
        let compare = move |buffers: &[Buffer]| {
            let q = Element::Bf16.values(&q, q.len() / 2);
            let mut wanted = Vec::new();
            for (row, query) in q.chunks_exact(HEAD).enumerate() {
                let (token, head) = (row / heads, row % heads / group);
                let sequence = token / queries;
                let count = contexts[sequence] + token % queries + 1 - queries;
                let [key, value] = [false, true].map(|v| {
                    let cells = &cells;
                    move |at| cells.get(v, sequence, head, at)
                });
                wanted.extend(attend(query, count, scale, key, value));
            }
            (buffers[0].as_bf16().collect(), wanted)
        };
        let many = if queries > 1 { format!(", {queries} queries") } else { String::new() };
        Case {
            path: format!("{chip}/pa/{name}.co"),
            sizes: format!("contexts {}, {heads} heads on {kv_heads}{many}", list(contexts)),
            grid: grid([kv_heads, contexts.len(), 1], THREADS),
            arguments: slots,
            buffers,
            compare: Box::new(compare),
            // Weights of the softmax become fp8 where the cache is of bytes.
            allowed: if cache == Element::Bf16 { 8e-3 } else { 4e-2 },
        }
    }
}

/// A paged cache: 16 bytes of a token's key together; 16 bytes of the values of one dimension.
struct Cells {
    cache: Element,
    kv_heads: usize,
    keys: Vec<u8>,
    values: Vec<u8>,
    key_scales: Vec<f32>,
    value_scales: Vec<f32>,
    table: Vec<u32>,
    longest: usize,
}

impl Cells {
    /// The key, or the value, of a token.
    fn get(&self, value: bool, sequence: usize, head: usize, token: usize) -> Vec<f64> {
        let page = self.table[sequence * self.longest + token / PAGE] as usize * self.kv_heads + head;
        let (slot, pack) = (token % PAGE, 16 / self.cache.bytes(1));
        let (codes, scales) = if value { (&self.values, &self.value_scales) } else { (&self.keys, &self.key_scales) };
        let scale = if self.cache == Element::Bf16 { 1.0 } else { f64::from(scales[page * PAGE + slot]) };
        let at = |d: usize| match value {
            true => (slot / pack * HEAD + d) * pack + slot % pack,
            false => (d / pack * PAGE + slot) * pack + d % pack,
        };
        (0..HEAD).map(|d| self.cache.value(codes, page * PAGE * HEAD + at(d)) * scale).collect()
    }
}

/// Decode with latent keys: 576 numbers a token, of which the first 512 are the values.
#[derive(Clone, Copy, Debug)]
pub struct Latent {
    pub lengths: &'static [usize],
    /// Query heads, all on the one key.
    pub heads: usize,
    /// Tokens of queries of each sequence, the last ones of it.
    pub queries: usize,
    /// Rows of a work-group.
    pub rows: usize,
    pub splits: usize,
    /// The type of queries and cache. Bytes have one scale for each of them.
    pub element: Element,
}

const LATENT: usize = 576;
const VALUES: usize = 512;

impl Latent {
    pub fn case(self, chip: &str, name: &str, seed: u64) -> Case {
        let Latent { lengths, heads, queries, rows, splits, element } = self;
        let mut random = Random::new(seed);
        let (sequences, tokens) = (lengths.len(), lengths.iter().sum::<usize>());
        let pages = tokens + 5;
        let order = random.order(pages);
        let indices: Vec<u32> = order[..tokens].to_vec();
        let prefix = |step: &dyn Fn(usize) -> usize| -> Vec<u32> {
            (0..=sequences).map(|n| (0..n).map(step).sum::<usize>() as u32).collect()
        };
        let q = element.random(sequences * queries * heads * LATENT, &mut random);
        let kv = element.random(pages * LATENT, &mut random);
        let scales = if element == Element::Bf16 { [1.0, 1.0] } else { [0.011f32, 0.013] };
        let parts = sequences * queries * splits * heads;
        let starts = prefix(&|n| lengths[n]);
        let buffers = vec![
            Buffer::zeros(parts * VALUES * 4),
            Buffer::zeros(parts * 4),
            Buffer::bytes(&q),
            Buffer::bytes(&kv),
            Buffer::words(&starts),
            Buffer::words(&indices),
            Buffer::words(&vec![1; sequences]),
            Buffer::words(&prefix(&|_| queries)),
            Buffer::words(&prefix(&|_| splits)),
            Buffer::floats(&scales[..1]),
            Buffer::floats(&scales[1..]),
        ];
        let scale = 1.0 / (LATENT as f64).sqrt();
        let slots = self.slots(&buffers, scale as f32);
        let compare = move |buffers: &[Buffer]| {
            let q = element.values(&q, sequences * queries * heads * LATENT);
            let kv = element.values(&kv, pages * LATENT);
            let [qs, ks] = scales.map(f64::from);
            let mut wanted = Vec::new();
            for (row, query) in q.chunks_exact(LATENT).enumerate() {
                let (sequence, token) = (row / heads / queries, row / heads % queries);
                let page = |at: usize| indices[starts[sequence] as usize + at] as usize * LATENT;
                let count = lengths[sequence] + token + 1 - queries;
                let key = |at: usize| kv[page(at)..][..LATENT].to_vec();
                let value = |at: usize| kv[page(at)..][..VALUES].iter().map(|v| v * ks).collect();
                wanted.extend(attend(query, count, scale * qs * ks, key, value));
            }
            (self.combine(buffers), wanted)
        };
        Case {
            path: format!("{chip}/mla/{name}.co"),
            sizes: self.sizes(),
            grid: grid([(heads * queries).div_ceil(rows), sequences, splits], THREADS),
            arguments: slots,
            buffers,
            compare: Box::new(compare),
            allowed: if element == Element::Bf16 { 8e-3 } else { 4e-2 },
        }
    }

    fn slots(&self, buffers: &[Buffer], scale: f32) -> Slots {
        let Latent { heads, queries, splits, element, .. } = *self;
        let [row, page] = [queries * heads, 1].map(|n| element.bytes(n * LATENT));
        let mut slots = Slots::default();
        slots.buffers(&buffers[..7]).float(scale);
        slots.words(&[heads * queries, splits, row, page, 0].map(|v| v as u32));
        slots.buffers(&buffers[7..9]).null().buffers(&buffers[9..]).word(u32::from(splits == 1));
        // No sums of the whole, and one rank of one.
        slots.null().null().words(&[1, 0]);
        slots
    }

    fn sizes(&self) -> String {
        let Latent { lengths, heads, queries, splits, .. } = *self;
        let mut text = format!("lengths {}, {heads} heads", list(lengths));
        if queries > 1 {
            text += &format!(", {queries} queries");
        }
        if splits > 1 {
            text += &format!(", {splits} splits");
        }
        text
    }

    /// The parts of the context together, as a second kernel does on a GPU.
    fn combine(&self, buffers: &[Buffer]) -> Vec<f64> {
        let Latent { lengths, heads, queries, splits, .. } = *self;
        if splits == 1 {
            return buffers[0].as_bf16().take(lengths.len() * queries * heads * VALUES).collect();
        }
        let (parts, sums): (Vec<f64>, Vec<f64>) = (buffers[0].as_floats().collect(), buffers[1].as_floats().collect());
        let mut out = Vec::new();
        for row in 0..lengths.len() * queries * heads {
            let (token, head) = (row / heads, row % heads);
            let valid = splits.min(lengths[token / queries].div_ceil(64));
            let at = |split: usize| (token * splits + split) * heads + head;
            let largest = (0..valid).map(|s| sums[at(s)]).fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = (0..valid).map(|s| (sums[at(s)] - largest).exp()).collect();
            let sum: f64 = weights.iter().sum();
            let value = |d: usize| (0..valid).map(|s| weights[s] / sum * parts[at(s) * VALUES + d]).sum::<f64>();
            out.extend((0..VALUES).map(value));
        }
        out
    }
}

/// Prompts: every query of a sequence at once.
#[derive(Clone, Copy, Debug)]
pub struct Prompt {
    pub batch: usize,
    pub queries: usize,
    pub keys: usize,
    pub heads: usize,
    pub kv_heads: usize,
    /// Numbers of a query.
    pub head: usize,
    pub causal: bool,
    pub element: Element,
}

impl Prompt {
    pub fn case(self, chip: &str, folder: &str, name: &str, seed: u64) -> Case {
        let Prompt { batch, queries, keys, heads, kv_heads, head, causal, element } = self;
        let mut random = Random::new(seed);
        let q = element.random(batch * queries * heads * head, &mut random);
        let k = element.random(batch * keys * kv_heads * head, &mut random);
        let v = element.random(batch * keys * kv_heads * HEAD, &mut random);
        let scales = if element == Element::Bf16 { [1.0f32; 3] } else { [0.011, 0.013, 0.02] };
        let one = |at: usize| Buffer::floats(&scales[at..=at]);
        let buffers = vec![
            Buffer::zeros(batch * queries * heads * HEAD * 2),
            Buffer::bytes(&q),
            Buffer::bytes(&k),
            Buffer::bytes(&v),
            Buffer::zeros(batch * heads * queries * 4),
            one(0),
            one(1),
            one(2),
        ];
        let scale = 1.0 / (head as f64).sqrt();
        let slots = self.slots(chip, &buffers, scale as f32);
        let compare = move |buffers: &[Buffer]| {
            let [q, k, v] = [(&q, queries * heads * head), (&k, keys * kv_heads * head), (&v, keys * kv_heads * HEAD)]
                .map(|(codes, n)| element.values(codes, batch * n));
            let [qs, ks, vs] = scales.map(f64::from);
            let mut wanted = Vec::new();
            for (row, query) in q.chunks_exact(head).enumerate() {
                let (sequence, token, group) =
                    (row / heads / queries, row / heads % queries, row % heads / (heads / kv_heads));
                let count = if causal { (token + 1 + keys).saturating_sub(queries) } else { keys };
                let at = |key: usize| (sequence * keys + key) * kv_heads + group;
                let key = |n: usize| k[at(n) * head..][..head].to_vec();
                let value = |n: usize| v[at(n) * HEAD..][..HEAD].iter().map(|x| x * vs).collect();
                wanted.extend(attend(query, count, scale * qs * ks, key, value));
            }
            (buffers[0].as_bf16().collect(), wanted)
        };
        let rows = if head == 128 { 256 } else { 128 };
        let tiles = queries.div_ceil(rows);
        let groups = match (head, chip) {
            (192, "gfx942") => [heads, tiles, batch],
            _ => [if causal { tiles.div_ceil(2) } else { tiles }, heads, batch],
        };
        Case {
            path: format!("{chip}/{folder}/{name}.co"),
            sizes: format!("{batch} x {queries} queries, {keys} keys, {heads} heads on {kv_heads}"),
            grid: grid(groups, if head == 192 { 256 } else { 512 }),
            arguments: slots,
            buffers,
            compare: Box::new(compare),
            // Weights become fp8. Where every query has all keys, results are small compared with
            // them.
            allowed: match (element, causal) {
                (Element::Bf16, _) => 1e-2,
                (_, true) => 2.5e-2,
                (_, false) => 5e-2,
            },
        }
    }

    fn slots(self, chip: &str, buffers: &[Buffer], scale: f32) -> Slots {
        let Prompt { queries, keys, heads, kv_heads, head, causal, element, .. } = self;
        let rows = if head == 128 { 256 } else { 128 };
        let tuning = match () {
            () if head == 192 && chip == "gfx942" => 0,
            () if causal && heads % 8 != 0 => 3,
            () => 5,
        };
        let bytes = |n: usize| element.bytes(n);
        let mut slots = Slots::default();
        slots.buffers(&buffers[..5]).float(scale);
        let q = [queries, bytes(heads * head), rows * bytes(heads * head), bytes(head), bytes(queries * heads * head)];
        let k = [heads / kv_heads, bytes(kv_heads * head), bytes(head), bytes(keys * kv_heads * head), tuning, 1];
        let v = [keys, head, HEAD, heads, bytes(kv_heads * HEAD), bytes(HEAD), bytes(keys * kv_heads * HEAD)];
        let o = [heads * HEAD * 2, HEAD * 2, queries * heads * HEAD * 2];
        for words in [&q[..], &k, &v, &o] {
            slots.words(&words.iter().map(|n| *n as u32).collect::<Vec<u32>>());
        }
        slots.null().null().word(queries as u32 * 4).null().null();
        if element == Element::Bf16 {
            slots.null().null().null();
        } else {
            slots.buffers(&buffers[5..]);
        }
        slots.words(&[0; 6]);
        slots
    }
}
