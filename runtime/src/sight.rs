//! Images in sequences: the positions that their tokens have, and what a tower's step is told of
//! patches.

use std::sync::Arc;

pub use atomc_artifact::manifest::Tiling;

/// Places of a table that a patch has a share of.
pub const TAPS: usize = 4;

/// The patches of an image: how many it has below each other, and side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Rows of patches.
    pub rows: usize,
    /// Patches of a row.
    pub columns: usize,
}

/// Where a patch is in its image, and what it has of the table of positions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Patch {
    /// Its row of patches.
    pub row: usize,
    /// Its place in the row.
    pub column: usize,
    /// Rows of the table, row of positions after row.
    pub taps: [i32; TAPS],
    /// The share of each.
    pub shares: [f32; TAPS],
}

impl Grid {
    /// Patches of the image.
    pub fn patches(self) -> usize {
        self.rows * self.columns
    }

    /// Where in the image the token is that comes so many behind its first one: its row and its
    /// column. What stands behind the tokens of a row is no column of the grid.
    fn place(self, inside: usize, lines: bool) -> (usize, usize) {
        let wide = self.columns + usize::from(lines);
        (inside / wide, inside % wide)
    }

    /// Tokens of the image, with those behind its rows if there are `lines`.
    pub fn tokens(self, lines: bool) -> usize {
        self.rows * (self.columns + usize::from(lines))
    }

    /// The grid of tokens.
    pub fn merged(self, merge: usize) -> Grid {
        Grid { rows: self.rows / merge, columns: self.columns / merge }
    }

    /// All patches, those that become one token one after the other. Sides are multiples of what
    /// is merged.
    pub fn in_order(self, tiling: Tiling) -> impl Iterator<Item = Patch> {
        let (merge, side) = (tiling.merge, tiling.side.unwrap_or(1));
        let each = merge * merge;
        let tokens = self.merged(merge);
        (0..tokens.patches() * each).map(move |i| {
            let (token, inside) = (i / each, i % each);
            let row = token / tokens.columns * merge + inside / merge;
            let column = token % tokens.columns * merge + inside % merge;
            let [down, across] = [taps(row, self.rows, side), taps(column, self.columns, side)];
            let both = |of: usize| (down[of / 2], across[of % 2]);
            Patch {
                row,
                column,
                taps: std::array::from_fn(|of| (both(of).0.0 * side + both(of).1.0) as i32),
                shares: std::array::from_fn(|of| both(of).0.1 * both(of).1.1),
            }
        })
    }
}

/// The two rows of a table of `side` that a row of `size` lies between, with the share of each:
/// the first and the last ones lie on those of the table.
fn taps(row: usize, size: usize, side: usize) -> [(usize, f32); 2] {
    let at = (row * (side - 1)) as f32 / (size - 1).max(1) as f32;
    let first = at.floor();
    let share = |of: f32| (1.0 - (at - first - of).abs()).max(0.0);
    [(first as usize, share(0.0)), ((first as usize + 1).min(side - 1), share(1.0))]
}

/// An image in a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Placed {
    /// The number of its first token.
    at: usize,
    /// The position of that.
    position: usize,
    /// Its tokens.
    grid: Grid,
}

/// The images of a sequence, and so the positions of its tokens. A token has three: of its time,
/// its row and its column. Those of text are equal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sight {
    images: Vec<Placed>,
}

impl Sight {
    /// Of images by the number of their first token, with the grid of their tokens, in order.
    pub fn of(images: impl IntoIterator<Item = (usize, Grid)>) -> Sight {
        let mut sight = Sight::default();
        for (at, grid) in images {
            let [position, ..] = sight.position(at);
            sight.images.push(Placed { at, position: position as usize, grid });
        }
        sight
    }

    /// The positions of a token: time, row, column. Behind an image positions go on from the
    /// longer one of its sides.
    pub fn position(&self, token: usize) -> [i32; 3] {
        let Some(Placed { at, position, grid }) = self.images.iter().rev().find(|image| image.at <= token) else {
            return [token as i32; 3];
        };
        let inside = token - at;
        if inside < grid.patches() {
            return [*position, position + inside / grid.columns, position + inside % grid.columns].map(|p| p as i32);
        }
        [(position + grid.rows.max(grid.columns) + inside - grid.patches()) as i32; 3]
    }
}

/// Reasons why a prompt and its images do not belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the prompt has places for {places} images, and {images} are given")]
pub struct PlacesError {
    /// Tokens of images in the prompt.
    pub places: usize,
    /// Images that are given.
    pub images: usize,
}

/// The tokens of images in prompts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marks {
    /// Stands for a row of an image.
    pub image: u32,
    /// Stand behind those of a row of an image, and of its last row, if something does.
    pub lines: Option<[u32; 2]>,
}

impl Marks {
    /// A prompt in which the token of an image stands for each image: with as many of these tokens
    /// as the image has rows, and the number of the first one.
    pub fn spread(self, prompt: &[u32], grids: &[Grid]) -> Result<(Vec<u32>, Vec<usize>), PlacesError> {
        let places = prompt.iter().filter(|&&token| token == self.image).count();
        if places != grids.len() {
            return Err(PlacesError { places, images: grids.len() });
        }
        let (mut tokens, mut first, mut grids) = (Vec::with_capacity(prompt.len()), vec![], grids.iter().peekable());
        for &token in prompt {
            match grids.next_if(|_| token == self.image) {
                Some(&grid) => {
                    first.push(tokens.len());
                    self.write(grid, &mut tokens);
                }
                None => tokens.push(token),
            }
        }
        Ok((tokens, first))
    }

    /// The tokens of an image.
    fn write(self, Grid { rows, columns }: Grid, tokens: &mut Vec<u32>) {
        for row in 1..=rows {
            tokens.extend(std::iter::repeat_n(self.image, columns));
            tokens.extend(self.lines.map(|[end, last]| if row < rows { end } else { last }));
        }
    }
}

/// The images of a sequence with the rows that a tower has made of them.
#[derive(Clone, Debug, Default)]
pub struct Images {
    sight: Sight,
    /// The first token of each image and its rows.
    rows: Vec<(usize, Arc<Rows>)>,
}

/// Rows of an image, one for each of its tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Rows {
    /// The grid of its tokens.
    pub grid: Grid,
    /// Whether a token without a row stands behind those of each row of the grid.
    pub lines: bool,
    /// Whether the tokens of the image see each other, also those that come after them.
    pub together: bool,
    /// Numbers of a row.
    pub width: usize,
    /// Row after row.
    pub numbers: Vec<f32>,
}

impl Images {
    /// Of images by the number of their first token, in order.
    pub fn of(images: impl IntoIterator<Item = (usize, Arc<Rows>)>) -> Images {
        let rows: Vec<(usize, Arc<Rows>)> = images.into_iter().collect();
        Images { sight: Sight::of(rows.iter().map(|(at, rows)| (*at, rows.grid))), rows }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Whether each has a row of so many numbers for each of its tokens.
    pub fn are_of(&self, width: usize) -> bool {
        let fits = |rows: &Rows| rows.width == width && rows.numbers.len() == rows.grid.patches() * width;
        self.rows.iter().all(|(_, rows)| fits(rows))
    }

    /// The positions of a token: time, row, column.
    pub fn position(&self, token: usize) -> [i32; 3] {
        self.sight.position(token)
    }

    /// The tokens of the image that a token is one of, from the first up to the one behind them, if
    /// they see each other.
    fn together(&self, token: usize) -> Option<(usize, usize)> {
        let (at, rows) = self.rows.iter().rev().find(|(at, _)| *at <= token)?;
        let end = at + rows.grid.tokens(rows.lines);
        (rows.together && token < end).then_some((*at, end))
    }

    /// How many positions of its sequence a token sees.
    pub fn end(&self, token: usize) -> usize {
        self.together(token).map_or(token + 1, |(_, end)| end)
    }

    /// The image that tokens from one on end within, if its tokens see each other.
    fn cut(&self, from: usize, tokens: usize) -> Option<(usize, usize)> {
        self.together(from + tokens).filter(|&(at, _)| at < from + tokens && tokens > 0)
    }

    /// As many tokens from one on, or fewer: none of an image without those behind it that it sees.
    pub fn before(&self, from: usize, tokens: usize) -> usize {
        self.cut(from, tokens).map_or(tokens, |(at, _)| at.saturating_sub(from))
    }

    /// As many tokens from one on, or more: all of an image of which there are some.
    pub fn whole(&self, from: usize, tokens: usize) -> usize {
        self.cut(from, tokens).map_or(tokens, |(_, end)| end - from)
    }

    /// The row that a token takes, if it is one of an image.
    pub fn row(&self, token: usize) -> Option<&[f32]> {
        let (at, rows) = self.rows.iter().rev().find(|(at, _)| *at <= token)?;
        let (row, column) = rows.grid.place(token - at, rows.lines);
        let number = row * rows.grid.columns + column;
        let numbers = rows.numbers.get(number * rows.width..(number + 1) * rows.width)?;
        (column < rows.grid.columns).then_some(numbers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What transformers makes of it is in `tests/tests/images.rs`.
    #[test]
    fn text_goes_on_behind_the_longer_side() {
        let sight = Sight::of([(2, Grid { rows: 2, columns: 3 }), (9, Grid { rows: 1, columns: 1 })]);
        let first: Vec<i32> = (0..12).map(|token| sight.position(token)[0]).collect();
        assert_eq!(first, [0, 1, 2, 2, 2, 2, 2, 2, 5, 6, 7, 8]);
        assert_eq!([sight.position(4), sight.position(5)], [[2, 2, 4], [2, 3, 2]]);
        assert_eq!(Sight::default().position(7), [7; 3]);
    }

    #[test]
    fn an_image_has_as_many_tokens_as_rows() {
        let grids = [Grid { rows: 2, columns: 2 }, Grid { rows: 1, columns: 1 }];
        let marks = Marks { image: 9, lines: None };
        assert_eq!(marks.spread(&[1, 9, 2, 9, 3], &grids), Ok((vec![1, 9, 9, 9, 9, 2, 9, 3], vec![1, 6])));
        assert_eq!(marks.spread(&[1, 9], &grids), Err(PlacesError { places: 1, images: 2 }));
        assert_eq!(marks.spread(&[1, 2], &[]), Ok((vec![1, 2], vec![])));
    }

    #[test]
    fn rows_of_an_image_may_have_ends() {
        let grid = Grid { rows: 2, columns: 2 };
        let marks = Marks { image: 9, lines: Some([7, 8]) };
        let (tokens, first) = marks.spread(&[1, 9, 2], &[grid]).expect("one place");
        assert_eq!((&tokens[..], &first[..]), (&[1, 9, 9, 7, 9, 9, 8, 2][..], &[1][..]));
        assert_eq!(grid.tokens(true), 6);
        let rows = Rows { grid, lines: true, together: false, width: 1, numbers: vec![0.0, 1.0, 2.0, 3.0] };
        let images = Images::of([(1, Arc::new(rows))]);
        let taken: Vec<Option<f32>> = (0..8).map(|token| images.row(token).map(|row| row[0])).collect();
        assert_eq!(taken, [None, Some(0.0), Some(1.0), None, Some(2.0), Some(3.0), None, None]);
    }

    #[test]
    fn images_whose_tokens_see_each_other_are_whole() {
        let grid = Grid { rows: 2, columns: 2 };
        let rows = Arc::new(Rows { grid, lines: false, together: true, width: 1, numbers: vec![0.0; 4] });
        let images = Images::of([(2, rows.clone()), (7, rows)]);
        let ends: Vec<usize> = (0..12).map(|token| images.end(token)).collect();
        assert_eq!(ends, [1, 2, 6, 6, 6, 6, 7, 11, 11, 11, 11, 12]);
        let both = |from, tokens| [images.before(from, tokens), images.whole(from, tokens)];
        assert_eq!([both(0, 2), both(0, 3), both(0, 6), both(0, 9)], [[2, 2], [2, 6], [6, 6], [7, 11]]);
        // What goes on from a shared beginning has the rest of its image.
        assert_eq!([both(4, 1), both(4, 2), both(5, 0)], [[0, 2], [2, 2], [0, 0]]);
    }

    #[test]
    fn the_ends_of_an_image_are_those_of_the_table() {
        let tiling = Tiling { channels: 3, frames: 2, patch: 4, merge: 2, only: None, side: Some(4) };
        let patches: Vec<Patch> = Grid { rows: 6, columns: 4 }.in_order(tiling).collect();
        assert_eq!(patches.len(), 24);
        let places: Vec<(usize, usize)> = patches[..6].iter().map(|p| (p.row, p.column)).collect();
        assert_eq!(places, [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3)]);
        assert_eq!((patches[0].taps[0], patches[0].shares), (0, [1.0, 0.0, 0.0, 0.0]));
        let last = patches[23];
        let of_last: f32 = last.taps.iter().zip(last.shares).filter(|(tap, _)| **tap == 15).map(|(_, s)| s).sum();
        assert_eq!(((last.row, last.column), of_last), ((5, 3), 1.0));
        assert!(patches.iter().all(|p| (p.shares.iter().sum::<f32>() - 1.0).abs() < 1e-6));
    }
}
