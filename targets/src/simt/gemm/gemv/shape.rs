//! How a kernel divides the weight's columns into steps, by the room in registers and local memory.
use atomc_ir::arch::{GpuArch, Isa, Simt};
use atomc_ir::{Diagnostic, Family, Layout};

use crate::row::unsupported;
use crate::simt::gemm::codes::Steps;
use crate::simt::gemm::contract::Sizes;
use crate::simt::gemm::quantised::Quantised;
use crate::simt::machine::fragment::{VEC16, layout_of};
use crate::tuning::Number;
use crate::{Choice, KernelSpec};

/// Most waves of a work-group, and the numbers that may be chosen instead.
const WAVES: usize = 8;
pub const OPEN_WAVES: Number = Number { name: "waves", values: &[WAVES, 4, 16] };
/// Waves of a work-group if each makes panels alone.
const ALONE: usize = 8;
/// Panels that a wave makes alone, one after the other, and the fewest work-groups of that kind for
/// each unit of the chip.
const TURNS: [usize; 4] = [8, 4, 2, 1];
const GROUPS: usize = 2;
/// Most tokens that are multiplied together by the matrix of one head.
const OF_HEAD: usize = 32;
/// Rows of a tile, if there are many.
pub const ROWS: usize = 32;
/// Bytes of local memory that are left for small exchanges.
const EXCHANGED: usize = 1 << 10;

/// How a kernel divides the weight into steps, waves and tiles.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Rows of the result that are made together: all tokens, or some rows of an expert.
    pub tokens: usize,
    /// Vectors of staged rows from one column to the next: on AMD an odd number, so that lanes
    /// which write neighbouring columns of a row do not wait for the same banks of local memory.
    pub staged: usize,
    /// Tiles of tokens, and how many each has.
    pub columns: usize,
    pub width: usize,
    pub waves: usize,
    /// Teams of waves with a panel of the result each, and the panels that a team makes.
    pub teams: usize,
    pub turns: usize,
    /// Whether the waves share out a token's choices, which are added up, and not the columns.
    pub deals_choices: bool,
    /// Steps along K, and how many of them each wave has in flight. A step is one product; for a
    /// quantised weight it is the codes that are loaded together.
    pub steps: usize,
    pub ahead: usize,
    pub codes: Option<Steps>,
    /// How quantised operands are multiplied as stored, if they are.
    pub quantised: Option<Quantised>,
    /// Columns of one product.
    span: usize,
    /// Most bytes of local memory, where rows are computed into it.
    local: usize,
}

impl Shape {
    pub fn new(spec: &KernelSpec, arch: GpuArch, choice: &Choice) -> Result<Shape, Diagnostic> {
        let sizes = Sizes::of(spec.body)?;
        let most = choice.get(&OPEN_WAVES).unwrap_or(WAVES);
        let Some(encoding) = sizes.encoding else { return Ok(Shape::of((spec, most), arch, sizes, None)) };
        // Steps as long as fit where rows are staged.
        let quantised = Quantised::of(spec.body, arch);
        let sizes = match quantised {
            Some(Quantised { dtype, in_memory, .. }) => Sizes { dtype, plain: in_memory, ..sizes },
            None => sizes,
        };
        if quantised.is_some_and(|quantised| quantised.block_scaled.is_some()) {
            return Ok(Shape { quantised, ..Shape::of((spec, most), arch, sizes, None) });
        }
        let shape = |steps| Shape { quantised, ..Shape::of((spec, most), arch, sizes, Some(steps)) };
        let mut shapes = Steps::all(encoding, quantised, arch).map(shape);
        let first = shapes.next().ok_or_else(|| unsupported("codes whose scales no step agrees with"))?;
        let size = sizes.dtype.size();
        let fits =
            |shape: &Shape| sizes.plain || shape.waves * shape.step_bytes(size) <= shape.room_for_rows(sizes.pieces);
        Ok(if fits(&first) { first } else { shapes.fold(first, |best, next| if fits(&best) { best } else { next }) })
    }

    /// The shape with at most `most_waves` waves.
    fn of((spec, most_waves): (&KernelSpec, usize), arch: GpuArch, sizes: Sizes, codes: Option<Steps>) -> Shape {
        let Sizes { dtype, depth, pieces, plain, .. } = sizes;
        let simt = arch.simt;
        let layout = Quantised::of(spec.body, arch).map_or(layout_of(simt, dtype), |quantised| quantised.layout(simt));
        let times = codes.map_or(1, |codes| codes.times);
        let span = layout.span(simt.wave);
        let steps = arch.memory.padded(depth) / (span * times);
        let vec16s = dtype.bytes(layout.depth) / VEC16;
        let width = simt.matrix.columns;
        let tokens = Shape::tokens(spec, &sizes, width);
        let (columns, rows) = (tokens.div_ceil(width), simt.matrix.rows());
        let near = columns * vec16s * times;
        let asked = match codes {
            None => vec16s * pieces * rows,
            Some(codes) => (pieces * (codes.words() * rows + codes.marks(simt))).div_ceil(4),
        };
        let asked = if plain { asked + near } else { asked };
        let held = pieces * columns * simt.matrix.results + if plain { 0 } else { near * 4 };
        // Sums of a step, and its fragments.
        let held = held + codes.map_or(0, |_| columns * simt.matrix.results + vec16s * times * rows * 4);
        let gemv = simt.gemv;
        let free = (simt.unit.vgprs / simt.unit.waves).saturating_sub(held + gemv.others) / 4;
        let ahead = (free.max(gemv.in_flight) / asked).max(2).min(steps);
        // Partial sums that waves exchange share local memory with the rows and the small
        // exchanges.
        let room = (simt.unit.lds_group - gemv.local - EXCHANGED) / (pieces * tokens * 16 * 4);
        // Rows that are staged are staged by all waves together.
        let deals_choices = plain && sizes.experts.is_some_and(|experts| experts.combined && experts.choices > 1);
        let waves = match sizes.experts.filter(|_| deals_choices) {
            Some(experts) => experts.choices.min(room).clamp(1, most_waves),
            None => (steps / ahead).min(room).clamp(1, most_waves),
        };
        let turns = Shape::turns(spec, arch, sizes).filter(|_| plain && !deals_choices);
        let (waves, teams) = if turns.is_some() { (ALONE, ALONE) } else { (waves, 1) };
        let staged = if simt.isa == Isa::Amdgcn { tokens | 1 } else { tokens };
        Shape {
            tokens,
            staged,
            columns,
            width,
            waves,
            teams,
            turns: turns.unwrap_or(1),
            deals_choices,
            steps,
            ahead,
            codes,
            quantised: None,
            span,
            local: gemv.local,
        }
    }

    /// Rows of the result that are made together.
    fn tokens(spec: &KernelSpec, sizes: &Sizes, width: usize) -> usize {
        let most = match sizes.heads {
            Some(_) if spec.invariant => OF_HEAD,
            Some(_) => spec.tokens.min(OF_HEAD),
            None if spec.family == Family::Matmul => ROWS,
            None => spec.tokens,
        };
        // A tile of an expert's rows has one block of columns.
        sizes.experts.map_or(most, |experts| match experts.layout {
            Layout::Grouped { tile, .. } => tile,
            _ if experts.combined => 1,
            _ => (spec.tokens * experts.choices).min(width),
        })
    }

    /// Panels of experts' rows that a wave makes alone, one after the other, if there are enough
    /// for each unit of the chip.
    fn turns(spec: &KernelSpec, arch: GpuArch, sizes: Sizes) -> Option<usize> {
        let experts = sizes.experts?;
        let all = arch.memory.panels(sizes.rows / sizes.pieces);
        let tiles = all * (spec.tokens * experts.choices).min(experts.count);
        let fits =
            |turns: &usize| all.is_multiple_of(turns * ALONE) && tiles >= turns * ALONE * GROUPS * arch.simt.chip.units;
        TURNS.iter().copied().find(fits)
    }

    /// Waves that make a panel.
    pub fn team(&self) -> usize {
        self.waves / self.teams
    }

    /// Products of a step.
    pub fn times(&self) -> usize {
        self.codes.map_or(1, |codes| codes.times)
    }

    /// Bytes of the rows of a step, for elements of `size` bytes.
    pub fn step_bytes(&self, size: usize) -> usize {
        self.staged * self.span * self.times() * size
    }

    /// Bytes of local memory for rows: what the partial sums of the waves leave.
    pub fn room_for_rows(&self, pieces: usize) -> usize {
        self.local.saturating_sub(self.waves * (4 + pieces * self.tokens * 16 * 4))
    }

    pub fn threads(&self, simt: &Simt) -> usize {
        self.waves * simt.wave
    }
}
