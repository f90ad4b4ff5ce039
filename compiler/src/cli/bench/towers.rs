//! The time of a tower: images of one size, from their patches to the rows of the language part.
use std::io::Write;
use std::time::Instant;

use atomc_runtime::Artifact;
use atomc_runtime::manifest::Chip;
use atomc_runtime::sight::Grid;
use atomc_runtime::tower::Image;
use serde_json::{Value, json};

use super::{Args, Lengths, Stepped, Timed, median, peaks};
use crate::cli::failure::Failure;

/// What an image took.
pub struct Seen {
    grid: Grid,
    /// Seconds from the patches in the host's memory to the rows in it.
    pub seconds: f64,
    /// Seconds of the launches alone, of one after the other.
    launches: f64,
    /// Operations of products; attention is not counted.
    flops: u64,
    /// The kernels of the step.
    pub timed: Timed,
}

/// A grid of about so many patches, as nearly a square as the tower takes.
fn grid(patches: usize, merge: usize) -> Grid {
    let side = |of: usize| (of / merge).max(1) * merge;
    let rows = side(patches.isqrt());
    Grid { rows, columns: side(patches / rows) }
}

/// Times the tower of an artifact with weights as the command names them.
pub fn measure(args: &Args, artifact: &Artifact, patches: usize) -> Result<Seen, Failure> {
    let mut tower = args.engine.tower(artifact)?;
    let tiling = tower.tiling();
    let grid = grid(patches.min(tower.most()), tiling.merge);
    let count = grid.patches() * tiling.numbers();
    let image = Image { grid, numbers: (0..count).map(|i| (i % 255) as f32 / 127.0 - 1.0).collect() };
    let failed = |error| Failure::new("image", error);
    let mut times = Vec::with_capacity(args.repeat);
    for _ in 0..=args.repeat {
        let start = Instant::now();
        tower.rows(&[&image]).map_err(failed)?;
        times.push(start.elapsed().as_secs_f64());
    }
    let (plan, launched) = tower.timed(&image).map_err(failed)?;
    let (target, plan) = (tower.target(), &tower.plans()[plan]);
    let variant = peaks::variant(target, tower.device_name());
    let lengths = Lengths { sequences: 0, first: 1, last: 1 };
    let timed = Stepped { target, plan, variant, times: &launched, lengths }.timed();
    let launches = timed.launches.iter().map(|launch| launch.seconds).sum();
    let share = grid.patches() as f64 / plan.tokens as f64;
    let flops = timed.kernels.iter().map(|kernel| kernel.flops).sum::<u64>();
    Ok(Seen { grid, seconds: median(times.split_off(1)), launches, flops: (flops as f64 * share) as u64, timed })
}

impl Seen {
    /// Operations of products a second of the launches.
    fn rate(&self) -> f64 {
        self.flops as f64 / self.launches
    }

    pub fn line(&self, out: &mut impl Write, chip: Option<&Chip>) -> std::io::Result<()> {
        let Seen { grid: Grid { rows, columns }, seconds, launches, .. } = self;
        let share = chip.map(|chip| format!(", {:.0} % of the peak", 100.0 * self.rate() / chip.flops));
        writeln!(
            out,
            "image of {rows} x {columns} patches: {:.2} ms, of which kernels {:.2} ms, products at {:.1} TFLOP/s{}",
            seconds * 1e3,
            launches * 1e3,
            self.rate() / 1e12,
            share.unwrap_or_default()
        )
    }

    pub fn json(&self, kernels: Vec<Value>) -> Value {
        let Seen { grid: Grid { rows, columns }, seconds, launches, flops, timed } = self;
        json!({ "rows": rows, "columns": columns, "seconds": seconds, "kernel_seconds": launches, "flops": flops,
            "plan": timed.plan, "kernels": kernels })
    }
}
