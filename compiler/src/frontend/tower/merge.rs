//! How the patches of a group become a row of the language part.
use super::*;

impl TowerBuilder<'_> {
    /// The rows of groups of patches.
    pub(super) fn merged(&mut self, x: Value) -> Made {
        match self.vision.style.merger {
            Merger::Beside => self.beside("merger", x, false),
            Merger::Unfolded => self.unfolded(x),
            Merger::Mean => self.mean(x),
        }
    }

    /// The patches of each group side by side.
    fn grouped(&mut self, path: &str, x: Value) -> Made {
        let op = Op::GatherRun { count: self.vision.merged() };
        self.b.at(path).push(op, &[x, self.rows])
    }

    /// By a module with a norm and two products. Its norm is of the group as a whole, or of each
    /// patch.
    pub(super) fn beside(&mut self, module: &str, x: Value, norms_group: bool) -> Made {
        let (width, hidden, path) = (self.vision.width, self.hidden, self.path(module));
        let wide = width * self.vision.merged();
        let norm = format!("{path}.norm");
        let x = match norms_group {
            true => {
                let x = self.grouped(&path, x)?;
                self.norm(&norm, x, wide)?
            }
            false => {
                let x = self.norm(&norm, x, width)?;
                self.grouped(&path, x)?
            }
        };
        let x = self.linear(&format!("{path}.linear_fc1"), true, x, [wide, wide], self.dtype)?;
        let x = self.b.map(formula(self.vision.merging), &[x])?;
        self.linear(&format!("{path}.linear_fc2"), true, x, [hidden, wide], DType::F32)
    }

    /// By products, of which the first takes the first number of each patch of a group, then the
    /// second ones, and so on.
    fn unfolded(&mut self, x: Value) -> Made {
        let &Vision { width, merging, merging_eps: eps, style, .. } = self.vision;
        let (count, hidden, dtype) = (self.vision.merged(), self.hidden, self.dtype);
        let path = style.projector.unwrap_or(style.path);
        let norm = format!("{path}.norm");
        let weight = self.b.at(&norm).weight(format!("{norm}.weight"), dtype, &[width]);
        let x = self.b.push(Op::RmsNorm { eps }, &[x, weight])?;
        let module = format!("{path}.patch_merger.merging_layer");
        let x = self.grouped(&module, x)?;
        let order = (0..width * count).map(|column| column % count * width + column / count).collect();
        let order = self.b.push(Op::Numbers { values: order }, &[])?;
        let x = self.b.push(Op::Reorder {}, &[x, order])?;
        let x = self.linear(&module, false, x, [width, width * count], dtype)?;
        let x = self.linear(&format!("{path}.linear_1"), false, x, [hidden, width], dtype)?;
        let x = self.b.map(formula(merging), &[x])?;
        self.linear(&format!("{path}.linear_2"), false, x, [hidden, hidden], DType::F32)
    }

    /// By their mean, a norm and a product.
    fn mean(&mut self, x: Value) -> Made {
        let &Vision { width, merging_eps: eps, merging_offset: by, style, .. } = self.vision;
        let (count, hidden, dtype) = (self.vision.merged(), self.hidden, self.dtype);
        let path = style.projector.unwrap_or(style.path);
        let all = self.grouped(path, x)?;
        let part = |tower: &mut Self, number: usize| {
            let part = tower.b.push(Op::Slice { axis: 1, start: number * width, len: width }, &[all])?;
            tower.b.push(Op::Cast { to: DType::F32 }, &[part])
        };
        let mut sum = part(self, 0)?;
        for number in 1..count {
            let part = part(self, number)?;
            sum = self.b.add(sum, part)?;
        }
        let mean = self.b.scale(sum, 1.0 / count as f64)?;
        let mean = self.b.push(Op::Cast { to: dtype }, &[mean])?;
        let norm = format!("{path}.mm_soft_emb_norm");
        let weight = self.b.at(&norm).weight(format!("{norm}.weight"), DType::F32, &[width]);
        let weight = self.b.push(Op::Offset { by: by as f32 }, &[weight])?;
        let x = self.b.push(Op::RmsNorm { eps }, &[mean, weight])?;
        let weight = self.b.at(path).weight(format!("{path}.mm_input_projection_weight"), dtype, &[width, hidden]);
        let weight = self.b.push(Op::Transpose {}, &[weight])?;
        self.b.linear(x, weight, DType::F32)
    }
}
