//! Rows of blocks of tokens, and attention in parts.
use std::sync::Arc;

use super::{BatchState, CacheState, Cx, Entry, Real, Results, Tensor, Val, one, product};
use crate::elementwise::Scalar;
use crate::types::DType;

/// The largest score of no key: below every real one, and far from overflow.
const NO_KEY: f64 = -1e30_f32 as f64;

/// Rows of a cache that a token at a position sees: those whose tokens are all there.
pub fn complete(position: i32, every: Option<usize>) -> i32 {
    (position + 1) / every.unwrap_or(1) as i32
}

/// The key and the value that a cache has at a place.
fn entry<S>(cache: &CacheState<S>, sequence: i32, place: i32) -> Result<&Entry<S>, String> {
    let found = cache.entries.get(&(sequence, place)).map(|entry: &Arc<Entry<S>>| &**entry);
    found.ok_or_else(|| format!("sequence {sequence} has no row {place}"))
}

pub(crate) fn attend_part<S: Real>(
    args: &[&Val<S>],
    _: Cx,
    &scale: &f64,
    &window: &usize,
    &every: &Option<usize>,
) -> Results<S> {
    let (q, cache, batch) = (args[0].float()?, args[1].cache()?, args[2].batch()?);
    let list = args.get(3).map(|list| list.int()).transpose()?;
    let (heads, dim) = (q.shape[1], q.shape[2]);
    let (kv_heads, width) = sizes(cache, dim);
    let (mut seen, mut stats) = (Vec::new(), Vec::new());
    for (t, &seq) in batch.sequences.iter().enumerate() {
        let places = places(batch, t, (list, window), every);
        let entries: Vec<&Entry<S>> = places.iter().map(|&p| entry(cache, seq, p)).collect::<Result<_, _>>()?;
        let mut sums = Vec::with_capacity(heads);
        for head in 0..heads {
            let (query, of) = (&q.data[(t * heads + head) * dim..][..dim], head * kv_heads / heads);
            let part = |(k, v): &&Entry<S>| (k[of * dim..][..dim].to_vec(), v[of * width..][..width].to_vec());
            let (out, top, sum) = part_of(query, &entries.iter().map(part).collect::<Vec<_>>(), scale, width);
            seen.extend(out);
            stats.push(top);
            sums.push(sum);
        }
        stats.extend(sums);
    }
    let seen = Tensor::new(vec![q.shape[0], heads, width], seen);
    Ok(vec![Val::Float(seen), Val::Float(Tensor::new(vec![q.shape[0], 2 * heads], stats))])
}

/// Heads of a cache, and numbers of a value.
fn sizes<S>(cache: &CacheState<S>, dim: usize) -> (usize, usize) {
    cache.entries.values().next().map_or((1, dim), |entry| {
        let heads = (entry.0.len() / dim).max(1);
        (heads, entry.1.len() / heads)
    })
}

/// The places of a cache that a token sees.
fn places(batch: &BatchState, t: usize, (list, window): (Option<&[i32]>, usize), every: Option<usize>) -> Vec<i32> {
    let end = complete(batch.positions[t], every);
    if let Some(list) = list {
        let each = list.len() / batch.positions.len().max(1);
        return list[t * each..][..each].iter().copied().take_while(|&place| place >= 0).collect();
    }
    let before = i32::try_from(window).ok().filter(|&keys| keys > 0 && keys < end);
    (before.map_or(0, |keys| end - keys)..end).collect()
}

/// What a query sees of some keys, the largest score, and the sum of the exponentials of what
/// scores are less than it.
fn part_of<S: Real>(query: &[S], seen: &[(Vec<S>, Vec<S>)], scale: f64, width: usize) -> (Vec<S>, S, S) {
    let zero = S::of(0.0);
    let scores: Vec<S> = seen.iter().map(|(k, _)| product(query, k, false, false).mul(S::of(scale))).collect();
    let Some(&first) = scores.first() else { return (vec![zero; width], S::of(NO_KEY), zero) };
    let top = scores.iter().fold(first, |top, &score| Scalar::max(top, score));
    let weights: Vec<S> = scores.iter().map(|&score| score.sub(top).exp()).collect();
    let sum = weights.iter().fold(zero, |sum, &weight| sum.add(weight));
    let mut out = vec![zero; width];
    for (weight, (_, v)) in weights.iter().zip(seen) {
        let weight = weight.div(sum).narrowed();
        out.iter_mut().zip(v).for_each(|(o, &x)| *o = o.add_product(weight, x));
    }
    (out, top, sum)
}

pub(crate) fn join<S: Real>(args: &[&Val<S>], _: Cx, _: &DType) -> Results<S> {
    let parts = args[..4].iter().map(|v| v.float()).collect::<Result<Vec<_>, _>>()?;
    let &[a, of_a, b, of_b] = &parts[..] else { return Err("two parts".into()) };
    let sinks = args.get(4).map(|sinks| sinks.float()).transpose()?;
    let (heads, width) = (a.shape[1], a.shape[2]);
    let mut data = Vec::with_capacity(a.data.len());
    for (i, (own, other)) in a.data.chunks_exact(width).zip(b.data.chunks_exact(width)).enumerate() {
        let (row, head) = (i / heads * 2 * heads, i % heads);
        let part = |of: &Tensor<S>| (of.data[row + head], of.data[row + heads + head]);
        let sink = sinks.map(|sinks| (sinks.data[head], S::of(1.0)));
        let ((top_a, _), (top_b, _)) = (part(of_a), part(of_b));
        let top = sink.iter().fold(Scalar::max(top_a, top_b), |top, &(sink, _)| Scalar::max(top, sink));
        let weight = |(own, sum): (S, S)| own.sub(top).exp().mul(sum);
        let (of_a, of_b) = (weight(part(of_a)), weight(part(of_b)));
        let all = sink.into_iter().fold(of_a.add(of_b), |all, sink| all.add(weight(sink)));
        let sum = |(&a, &b): (&S, &S)| a.mul(of_a).add(b.mul(of_b)).div(all);
        data.extend(own.iter().zip(other).map(sum));
    }
    one(a.shape.clone(), data)
}

pub(crate) fn pool<S: Real>(args: &[&Val<S>], _: Cx, &every: &usize, &overlap: &bool) -> Results<S> {
    let (cache, bias, batch) = (args[0].cache()?, args[1].float()?, args[2].batch()?);
    let all = bias.width();
    let width = if overlap { all / 2 } else { all };
    let mut data = Vec::with_capacity(batch.positions.len() * width);
    for (&seq, &pos) in batch.sequences.iter().zip(&batch.positions) {
        let own = pos + 1 - every as i32;
        if (pos + 1) % every as i32 != 0 {
            data.resize(data.len() + width, S::of(0.0));
            continue;
        }
        // Each block with the columns that a row has of it.
        let before = (overlap && own > 0).then_some((own - every as i32, 0));
        let blocks: Vec<(i32, usize)> = before.into_iter().chain([(own, all - width)]).collect();
        let mut seen = Vec::with_capacity(2 * every);
        for (first, start) in blocks {
            for place in 0..every {
                let (z, v) = entry(cache, seq, first + place as i32)?;
                let bias = &bias.data[place * all..][..all];
                let z: Vec<S> = z[start..][..width].iter().zip(&bias[start..]).map(|(&z, &b)| z.add(b)).collect();
                seen.push((z, &v[start..][..width]));
            }
        }
        data.extend((0..width).map(|col| {
            let column: Vec<S> = seen.iter().map(|(z, _)| z[col]).collect();
            let weights = super::softmax(&column);
            weights.iter().zip(&seen).fold(S::of(0.0), |sum, (&weight, (_, v))| sum.add_product(weight, v[col]))
        }));
    }
    one(vec![batch.positions.len(), width], data)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::run;
    use super::*;
    use crate::text::parse;

    fn float(shape: &[usize], data: &[f64]) -> Val<f64> {
        Val::Float(Tensor::new(shape.to_vec(), data.to_vec()))
    }

    fn eval(text: &str, tokens: usize, params: &[(&str, Val<f64>)]) -> Vec<Val<f64>> {
        let graph = parse(text).unwrap();
        assert_eq!(parse(&graph.print()).unwrap().print(), graph.print());
        graph.verify().unwrap();
        let params: BTreeMap<String, Val<f64>> = params.iter().map(|(n, v)| (n.to_string(), v.clone())).collect();
        run(&graph, Cx::of(tokens, 0), &params, &|_| None).unwrap()
    }

    fn near(got: &[f64], want: &[f64]) {
        let is_near = |(g, w): (&f64, &f64)| (g - w).abs() < 1e-12;
        assert!(got.len() == want.len() && got.iter().zip(want).all(is_near), "{got:?}, {want:?}");
    }

    fn batch(positions: std::ops::Range<i32>) -> Val<f64> {
        Val::Batch(BatchState { sequences: vec![0; positions.len()], positions: positions.collect() })
    }

    /// Blocks of two tokens. Keys are zero, so that a bias of ln 3 on the second token weighs it
    /// three times.
    #[test]
    fn blocks_are_pooled_when_they_are_complete() {
        let text = |overlap: bool, width: usize| {
            format!(
                "graph @g(%c: cache<f32, 1, 2>, %k: f32[T, 1, 2], %v: f32[T, 1, 2], %bias: f32[2, 2], %b: batch) {{
  %0 = kv_write %c, %k, %v, %b : cache<f32, 1, 2>
  %1 = pool %0, %bias, %b {{every = 2, overlap = {overlap}}} : f32[T, {width}]
  return %1, %0
}}"
            )
        };
        let three = 3f64.ln();
        let values = [1.0, 10.0, 5.0, 20.0, 2.0, 30.0, 4.0, 50.0];
        let params = |cache: CacheState<f64>, from: usize, to: usize| {
            [
                ("c", Val::Cache(cache)),
                ("k", float(&[to - from, 1, 2], &vec![0.0; 2 * (to - from)])),
                ("v", float(&[to - from, 1, 2], &values[2 * from..2 * to])),
                ("bias", float(&[2, 2], &[0.0, 0.0, three, 0.0])),
                ("b", batch(from as i32..to as i32)),
            ]
        };
        let whole = eval(&text(false, 2), 4, &params(CacheState::default(), 0, 4));
        near(&whole[0].float().unwrap().data, &[0.0, 0.0, 4.0, 15.0, 0.0, 0.0, 3.5, 40.0]);
        // The second row is of the first columns of the block before and the second ones of its
        // own.
        let both = eval(&text(true, 1), 4, &params(CacheState::default(), 0, 4));
        near(&both[0].float().unwrap().data, &[0.0, 15.0, 0.0, (1.0 + 3.0 * 5.0 + 30.0 + 50.0) / 6.0]);
        // The same where a step ends inside a block.
        let first = eval(&text(true, 1), 3, &params(CacheState::default(), 0, 3));
        let rest = eval(&text(true, 1), 1, &params(first[1].cache().unwrap().clone(), 3, 4));
        near(&rest[0].float().unwrap().data, &both[0].float().unwrap().data[3..]);
    }

    /// Of rows of two tokens those are written, chosen and seen that are complete.
    #[test]
    fn rows_of_blocks_are_written_by_their_last_token() {
        let text =
            "graph @g(%q: f32[T, 1, 1], %w: f32[T, 1], %c: cache<f32, 1, 1, prefix 1>, %k: f32[T, 1, 1], %b: batch) {
  %0 = key_write %c, %k, %b {values = 1, every = 2} : cache<f32, 1, 1, prefix 1>
  %1 = choose %q, %w, %0, %b {k = 2, every = 2} : i32[T*2]
  %2, %3 = attend_part %q, %0, %b, %1 {scale = 1.0, window = 0, every = 2} : f32[T, 1, 1], f32[T, 2]
  %4, %5 = attend_part %q, %0, %b {scale = 1.0, window = 0, every = 2} : f32[T, 1, 1], f32[T, 2]
  return %1, %2, %3, %4, %5, %0
}";
        let params = [
            ("q", float(&[5, 1, 1], &[0.0; 5])),
            ("w", float(&[5, 1], &[1.0; 5])),
            ("c", Val::Cache(CacheState::default())),
            ("k", float(&[5, 1, 1], &[7.0, 1.0, 8.0, 3.0, 9.0])),
            ("b", batch(0..5)),
        ];
        let made = eval(text, 5, &params);
        assert_eq!(made[0], Val::Int(vec![-1, -1, 0, -1, 0, -1, 0, 1, 0, 1]));
        near(&made[1].float().unwrap().data, &[0.0, 1.0, 1.0, 2.0, 2.0]);
        near(&made[2].float().unwrap().data, &[NO_KEY, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 2.0, 0.0, 2.0]);
        assert_eq!((&made[1], &made[2]), (&made[3], &made[4]));
        assert_eq!(made[5].cache().unwrap().entries.keys().collect::<Vec<_>>(), [&(0, 0), &(0, 1)]);
    }

    /// The keys of one attention, shared out among two caches.
    #[test]
    fn parts_are_joined_to_the_whole() {
        let parts = "graph @g(%q: f32[T, 2, 2], %c: cache<f32, 1, 2, prefix 2>, %d: cache<f32, 1, 2, prefix 2>, %b: batch, %s: f32[2]) {
  %0, %1 = attend_part %q, %c, %b {scale = 0.5, window = 2} : f32[T, 2, 2], f32[T, 4]
  %2, %3 = attend_part %q, %d, %b {scale = 0.5, window = 0, every = 2} : f32[T, 2, 2], f32[T, 4]
  %4 = join %0, %1, %2, %3, %s {to = f32} : f32[T, 2, 2]
  return %4
}";
        let whole = "graph @g(%q: f32[T, 2, 2], %c: cache<f32, 1, 2, prefix 2>, %b: batch, %s: f32[2]) {
  %0 = attention %q, %c, %b, %s {scale = 0.5, window = 0} : f32[T, 2, 2]
  return %0
}";
        let keys = [[1.0, -2.0], [0.5, 3.0], [-1.0, 0.25], [2.0, 1.0]];
        let state = |of: &[usize]| {
            let entry = |(place, &key): (usize, &usize)| {
                ((0, place as i32), Arc::new((keys[key].to_vec(), keys[key].to_vec())))
            };
            Val::Cache(CacheState { entries: of.iter().enumerate().map(entry).collect() })
        };
        let (q, s) = (float(&[1, 2, 2], &[1.0, 2.0, -3.0, 0.5]), float(&[2], &[0.3, -1.0]));
        let made = eval(
            parts,
            1,
            &[
                ("q", q.clone()),
                ("c", state(&[0, 0, 2, 3])),
                ("d", state(&[0, 1])),
                ("b", batch(3..4)),
                ("s", s.clone()),
            ],
        );
        let want = eval(whole, 1, &[("q", q), ("c", state(&[0, 1, 2, 3])), ("b", batch(3..4)), ("s", s)]);
        near(&made[0].float().unwrap().data, &want[0].float().unwrap().data);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let text = "graph @g(%q: f32[T, 2, 2], %c: cache<f32, 1, 2, prefix 2>, %b: batch) {
  %0, %1 = attend_part %q, %c, %b {scale = 0.5, window = 0, every = 2} : f32[T, 2, 2], f32[T, 4]
  return %0
}";
        let wrong =
            |from: &str, to: &str| parse(&text.replace(from, to)).unwrap().verify().unwrap_err().messages.remove(0);
        assert_eq!(wrong("every = 2", "every = 0"), "attend_part: a row must be of a token at least");
        assert_eq!(wrong("window = 0", "window = 3"), "attend_part: a window is of tokens, and without a list");
    }
}
