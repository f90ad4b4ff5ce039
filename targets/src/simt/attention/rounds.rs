//! Work-groups that stay, and take what there is to do in rounds.
use crate::code::{Any, Int};
use crate::simt::machine::Gpu;

/// `body` for each of this work-group's numbers below `all`, with what is carried from one to the
/// next; it is told whether there is such a number, and gets the last one where there is none.
/// Every other round work-groups take numbers in the opposite order, so that all have about as much
/// to do where the first numbers are the most work.
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
