//! Several streams in place of one row.
use super::{Cx, Real, Results, Tensor, Val, one};

pub(crate) fn sinkhorn<S: Real>(
    args: &[&Val<S>],
    _: Cx,
    &n: &usize,
    &rounds: &usize,
    &norm: &f64,
    &eps: &f64,
) -> Results<S> {
    let all = args.iter().map(|v| v.float()).collect::<Result<Vec<_>, _>>()?;
    let &[m, x, base, scale] = &all[..] else { return Err("four operands have numbers".into()) };
    let is_whole = m.width() > n;
    let parts = if let [_, parts, _] = m.shape[..] { parts } else { 1 };
    let (mut seen, mut mixed) = (Vec::new(), Vec::new());
    for (m_parts, x) in m.data.chunks(parts * m.width()).zip(x.rows()) {
        let m: Vec<S> = (0..m.width()).map(|at| sum(m_parts.iter().skip(at).step_by(m.width()))).collect();
        let square = x.iter().fold(S::of(0.0), |sum, &v| sum.add(v.mul(v))).div(S::of(x.len() as f64));
        let factor = S::of(1.0).div(square.add(S::of(norm)).sqrt());
        let logit = |at: usize| {
            let scale = scale.data[(at / n).min(2)];
            m[at].mul(factor).mul(scale).add(base.data[at])
        };
        seen.extend((0..n).map(|at| logistic(logit(at)).add(S::of(eps))));
        if is_whole {
            let logits: Vec<S> = (2 * n..n * (n + 2)).map(logit).collect();
            let matrix = balanced(&logits, n, rounds, S::of(eps));
            for to in 0..n {
                mixed.extend((0..n).map(|from| matrix[from * n + to]));
                mixed.push(logistic(logit(n + to)).mul(S::of(2.0)));
            }
        }
    }
    let rows = m.shape[0];
    let mixed = is_whole.then(|| Val::Float(Tensor::new(vec![rows, n * (n + 1)], mixed)));
    Ok([Val::Float(Tensor::new(vec![rows, n], seen))].into_iter().chain(mixed).collect())
}

fn sum<'a, S: Real>(all: impl Iterator<Item = &'a S>) -> S {
    all.fold(S::of(0.0), |sum, &v| sum.add(v))
}

fn logistic<S: Real>(x: S) -> S {
    S::of(1.0).div(S::of(1.0).add(S::of(0.0).sub(x).exp()))
}

/// A matrix with sums of rows and of columns that are about one.
fn balanced<S: Real>(logits: &[S], n: usize, rounds: usize, eps: S) -> Vec<S> {
    let mut matrix: Vec<S> = logits.chunks(n).flat_map(|row| super::softmax(row)).map(|v| v.add(eps)).collect();
    let divide = |matrix: &mut Vec<S>, step: usize, line: usize| {
        for i in 0..n {
            let sum = (0..n).fold(S::of(0.0), |sum, at| sum.add(matrix[i * line + at * step])).add(eps);
            (0..n).for_each(|at| matrix[i * line + at * step] = matrix[i * line + at * step].div(sum));
        }
    };
    for round in 0..rounds {
        if round > 0 {
            divide(&mut matrix, 1, n);
        }
        divide(&mut matrix, n, 1);
    }
    matrix
}

pub(crate) fn collapse<S: Real>(args: &[&Val<S>], _: Cx) -> Results<S> {
    let (x, weights) = (args[0].float()?, args[1].float()?);
    let (n, width) = (x.shape[1], x.width());
    let mut data = vec![S::of(0.0); x.shape[0] * width];
    for (i, stream) in x.rows().enumerate() {
        let sums = data[i / n * width..][..width].iter_mut();
        sums.zip(stream).for_each(|(sum, &v)| *sum = sum.add_product(v, weights.data[i]));
    }
    one(vec![x.shape[0], width], data)
}

pub(crate) fn mix_rows<S: Real>(args: &[&Val<S>], cx: Cx) -> Results<S> {
    let (x, logits) = (args[0].float()?, args[1].float()?);
    let (count, each) = (logits.shape[1], logits.width());
    let mut shares = Vec::with_capacity(logits.data.len() / each);
    let firsts: Vec<S> = logits.data.iter().step_by(each).copied().collect();
    for row in firsts.chunks_exact(count) {
        let top = row[1..].iter().fold(row[0], |top, &v| top.max(v));
        let parts: Vec<S> = row.iter().map(|&v| v.sub(top).exp()).collect();
        let all = parts[1..].iter().fold(parts[0], |sum, &v| sum.add(v));
        shares.extend(parts.into_iter().map(|part| part.div(all)));
    }
    let shares = Val::Float(Tensor::new(vec![logits.shape[0], count], shares));
    collapse(&[&Val::Float(x.clone()), &shares], cx)
}

pub(crate) fn mix<S: Real>(args: &[&Val<S>], _: Cx) -> Results<S> {
    let (x, y, weights) = (args[0].float()?, args[1].float()?, args[2].float()?);
    let (n, width) = (x.shape[1], x.width());
    let mut data = Vec::with_capacity(x.data.len());
    for (row, y) in y.rows().enumerate() {
        let own = &x.data[row * n * width..][..n * width];
        for to in 0..n {
            let weights = &weights.data[(row * n + to) * (n + 1)..][..n + 1];
            data.extend((0..width).map(|col| {
                let sum = (0..n).fold(S::of(0.0), |sum, from| sum.add_product(own[from * width + col], weights[from]));
                sum.add_product(y[col], weights[n])
            }));
        }
    }
    one(x.shape.clone(), data)
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

    fn eval(text: &str, params: &[(&str, Val<f64>)]) -> Vec<Vec<f64>> {
        let graph = parse(text).unwrap();
        assert_eq!(parse(&graph.print()).unwrap().print(), graph.print());
        graph.verify().unwrap();
        let params: BTreeMap<String, Val<f64>> = params.iter().map(|(n, v)| (n.to_string(), v.clone())).collect();
        let out = run(&graph, Cx::of(1, 0), &params, &|_| None).unwrap();
        out.iter().map(|v| v.float().unwrap().data.clone()).collect()
    }

    /// Sums of rows and of columns go to one, and logits are those of a normed row.
    #[test]
    fn mixtures_are_balanced() {
        let text = |rounds: usize| {
            format!(
                "graph @g(%m: f32[T, 8], %x: f32[T, 4], %base: f32[8], %scale: f32[3]) {{
  %0, %1 = sinkhorn %m, %x, %base, %scale {{streams = 2, rounds = {rounds}, norm = 0.0, eps = 0.0}} : f32[T, 2], f32[T, 6]
  return %0, %1
}}"
            )
        };
        // The mean of squares of x is 4, so logits of m are halves of it.
        let params = [
            ("m", float(&[1, 8], &[0.0, 2.0, -2.0, 0.0, 4.0, 0.0, 0.0, 1.0])),
            ("x", float(&[1, 4], &[2.0, -2.0, 2.0, 2.0])),
            ("base", float(&[8], &[0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0])),
            ("scale", float(&[3], &[1.0, 1.0, 1.0])),
        ];
        let made = eval(&text(60), &params);
        let logistic = |x: f64| 1.0 / (1.0 + (-x).exp());
        assert!((made[0][0] - 0.5).abs() < 1e-12 && (made[0][1] - logistic(1.0)).abs() < 1e-12, "{:?}", made[0]);
        let [a, b, one, c, d, two] = made[1][..] else { panic!("six weights") };
        assert!((one - 1.0).abs() < 1e-12 && (two - 1.0).abs() < 1e-12, "{one} {two}");
        for sum in [a + b, c + d, a + c, b + d] {
            assert!((sum - 1.0).abs() < 1e-9, "{sum}");
        }
        assert!(a > b && d > c, "{a} {b} {c} {d}");
        // One round makes the sums of columns one, and no others. The new streams are the columns.
        let [a, b, _, c, d, _] = eval(&text(1), &params)[1][..] else { panic!("six weights") };
        assert!((a + b - 1.0).abs() < 1e-12 && (c + d - 1.0).abs() < 1e-12 && (a + c - 1.0).abs() > 1e-3);
    }

    #[test]
    fn rows_by_the_softmax_of_logits() {
        let text = "graph @g(%x: f32[T, 3, 2], %logits: f32[T, 3, 2]) {
  %0 = mix_rows %x, %logits : f32[T, 2]
  return %0
}";
        let x = float(&[1, 3, 2], &[1.0, 2.0, 10.0, 20.0, 100.0, 200.0]);
        // Shares of 1, 2 and 5 eighths, however large the logits are.
        let logits = [1.0f64, 9.0, 2.0, 9.0, 5.0, 9.0].map(|share| share.ln() + 800.0);
        let made = eval(text, &[("x", x), ("logits", float(&[1, 3, 2], &logits))]);
        let far = |(made, want): (&f64, f64)| (made - want).abs();
        assert!(made[0].iter().zip([521.0 / 8.0, 1042.0 / 8.0]).map(far).all(|far| far < 1e-9), "{made:?}");
    }

    #[test]
    fn streams_by_hand() {
        let text = "graph @g(%x: f32[T, 2, 2], %y: f32[T, 2], %seen: f32[T, 2], %mixed: f32[T, 6]) {
  %0 = collapse %x, %seen : f32[T, 2]
  %1 = mix %x, %y, %mixed : f32[T, 2, 2]
  return %0, %1
}";
        let made = eval(
            text,
            &[
                ("x", float(&[1, 2, 2], &[1.0, 2.0, 10.0, 20.0])),
                ("y", float(&[1, 2], &[100.0, 200.0])),
                ("seen", float(&[1, 2], &[3.0, 0.5])),
                ("mixed", float(&[1, 6], &[1.0, 0.0, 2.0, 0.5, 0.25, -1.0])),
            ],
        );
        assert_eq!(made, [vec![8.0, 16.0], vec![201.0, 402.0, -97.0, -194.0]]);
    }
}
