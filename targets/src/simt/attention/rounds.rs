//! Work-groups that stay, and take work in rounds.
use crate::code::{Any, Int};
use crate::simt::machine::Gpu;

/// Runs `body` for each of this work-group's numbers below `all`, with values carried from one to
/// the next. All work-groups make the same number of calls: `body` is told whether its number
/// exists, and gets the last one if it does not. Every other round work-groups take numbers in the
/// opposite order, so that all have about the same amount of work if the first numbers have the
/// most.
pub fn each_in_rounds<'c>(
    c: &Gpu<'c>,
    all: Int<'c>,
    groups: usize,
    carried: &[Any<'c>],
    body: impl FnOnce(Int<'c>, Int<'c>, &[Any<'c>]) -> Vec<Any<'c>>,
) {
    let rounds = (all + (groups - 1)) / groups;
    c.for_each((0, rounds, 1), carried, |round, carried| {
        let back = groups - 1 - c.group();
        let place = c.pick_int(c.equal(round % 2, 0), c.group(), back);
        let number = round * groups + place;
        body(c.smaller(number, all - 1), c.less(number, all), carried)
    });
}
