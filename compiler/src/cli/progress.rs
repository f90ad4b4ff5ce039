//! Progress of long work: a bar on a terminal, a few plain lines otherwise. Both go to standard
//! error.
use std::io::IsTerminal;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use indicatif::{ProgressBar, ProgressStyle};

use super::failure::tell;

/// Plain lines appear at the beginning and at each of this many equal parts.
const LINES: u64 = 4;

pub struct Progress {
    what: String,
    unit: Unit,
    bar: Option<ProgressBar>,
    /// Parts that were told of.
    told: AtomicU64,
}

#[derive(Clone, Copy)]
pub enum Unit {
    Bytes,
    Pieces,
}

impl Progress {
    pub fn new(what: &str, unit: Unit) -> Progress {
        let bar = std::io::stderr().is_terminal().then(|| {
            let counts = match unit {
                Unit::Bytes => "{bytes}/{total_bytes}, {bytes_per_sec}",
                Unit::Pieces => "{pos}/{len}",
            };
            let style = ProgressStyle::with_template(&format!("{{msg}} {{wide_bar}} {counts}, {{eta}}"));
            ProgressBar::new(0).with_style(style.expect("the template is sound")).with_message(what.to_owned())
        });
        Progress { what: what.to_owned(), unit, bar, told: AtomicU64::new(0) }
    }

    /// Shows that `done` of `total` is done. Any thread may call it.
    pub fn at(&self, done: u64, total: u64) {
        if let Some(bar) = &self.bar {
            bar.set_length(total);
            bar.set_position(done);
            return;
        }
        let part = 1 + done * LINES / total.max(1);
        if self.told.fetch_max(part, Relaxed) < part {
            tell(format_args!("{}: {}", self.what, self.count(done, total)));
        }
    }

    fn count(&self, done: u64, total: u64) -> String {
        match self.unit {
            Unit::Bytes => format!("{:.1} of {:.1} MB", done as f64 / 1e6, total as f64 / 1e6),
            Unit::Pieces => format!("{done} of {total}"),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
