//! Golden cases of models that see images (`golden/images.py`).
use std::sync::Arc;

use atomc::frontend::Vision;
use atomc_runtime::sight::{Grid, Images, Rows, Sight};

use crate::Case;

/// A case: its sequences are prompts with images.
pub struct Seen {
    pub case: Case,
}

/// Every case, by name.
pub fn cases() -> Vec<Seen> {
    let all: Vec<Seen> = crate::cases_in("golden/images").into_iter().map(|case| Seen { case }).collect();
    assert!(all.len() >= 6, "only {} golden cases with images", all.len());
    all
}

impl Seen {
    /// How many there are.
    pub fn prompts(&self) -> usize {
        (0..).take_while(|prompt| self.case.golden.contains_key(&format!("tokens.{prompt}"))).count()
    }

    /// The numbers of a tensor of a prompt.
    pub fn numbers(&self, what: &str, prompt: usize) -> Vec<f64> {
        self.case.golden[&format!("{what}.{prompt}")].data.clone()
    }

    /// The patches of each image.
    pub fn grids(&self, prompt: usize) -> Vec<Grid> {
        let all = self.numbers("grids", prompt);
        all.chunks(3).map(|grid| Grid { rows: grid[1] as usize, columns: grid[2] as usize }).collect()
    }

    /// Numbers of a row of an image.
    pub fn width(&self, prompt: usize) -> usize {
        self.case.golden[&format!("rows.{prompt}")].shape[1]
    }

    /// Its tower.
    pub fn vision(&self) -> Vision {
        Vision::of(&self.case.config).unwrap_or_else(|fault| panic!("{}: {fault}", self.case.name))
    }

    /// The row that each token takes, or -1.
    pub fn sources(&self, prompt: usize) -> Vec<i32> {
        let (image, mut next) = (self.vision().image_token, 0..);
        let source = |token: u32| if token == image { next.next().expect("numbers do not end") } else { -1 };
        self.case.tokens(prompt).into_iter().map(source).collect()
    }

    /// The images of a prompt with the rows of its tower.
    pub fn images(&self, prompt: usize) -> Images {
        let (all, width, given) = (self.numbers("rows", prompt), self.width(prompt), self.vision().prompt);
        let mut rest = &all[..];
        let rows = self.places(prompt).into_iter().map(|(at, grid)| {
            let (own, others) = rest.split_at(grid.patches() * width);
            rest = others;
            let numbers = own.iter().map(|&v| v as f32).collect();
            (at, Arc::new(Rows { grid, lines: given.lines.is_some(), together: given.together, width, numbers }))
        });
        Images::of(rows.collect::<Vec<_>>())
    }

    /// The images of a prompt.
    pub fn sight(&self, prompt: usize) -> Sight {
        Sight::of(self.places(prompt))
    }

    /// The first token of each image, and the grid of its tokens.
    pub fn places(&self, prompt: usize) -> Vec<(usize, Grid)> {
        let (tokens, vision, mut from) = (self.case.tokens(prompt), self.vision(), 0);
        let image = vision.image_token;
        let places = self.grids(prompt).into_iter().map(|grid| {
            let grid = grid.merged(vision.merge);
            let at = from + tokens[from..].iter().position(|&token| token == image).expect("an image");
            from = at + grid.tokens(vision.prompt.lines.is_some());
            (at, grid)
        });
        places.collect()
    }
}
