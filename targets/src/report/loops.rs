//! Loops in straight code: the instructions between a branch back and its target.
use std::collections::VecDeque;
use std::ops::Range;

use crate::disasm::Instruction;

use super::class::Class;

/// Loops that hold no other loop, in the order of their addresses, as ranges of instructions.
/// Branches back to one place are one loop, to the last of them.
pub fn innermost(code: &[Instruction]) -> Vec<Range<usize>> {
    let mut loops: Vec<Range<usize>> = Vec::new();
    for (at, instruction) in code.iter().enumerate() {
        let Some(target) = target(instruction) else { continue };
        let Ok(start) = code.binary_search_by_key(&target, |i| i.address) else { continue };
        if start > at {
            continue;
        }
        match loops.iter_mut().find(|l| l.start == start) {
            Some(same) => same.end = at + 1,
            None => loops.push(start..at + 1),
        }
    }
    let holds = |a: &Range<usize>, b: &Range<usize>| a != b && a.start <= b.start && b.end <= a.end;
    let mut found: Vec<_> = loops.iter().filter(|a| !loops.iter().any(|b| holds(a, b))).cloned().collect();
    found.sort_by_key(|l| l.start);
    found
}

/// The target of a branch: a signed number of words after the branch.
fn target(instruction: &Instruction) -> Option<u64> {
    let (name, operand) = instruction.text.split_once(' ')?;
    if name != "s_branch" && !name.starts_with("s_cbranch_") {
        return None;
    }
    let words = operand.trim().parse::<i32>().ok()? as i16;
    Some((instruction.address + instruction.bytes).wrapping_add_signed(i64::from(words) * 4))
}

/// The mean number of vector and matrix instructions between a global load and the first wait that
/// covers it, when the body runs again and again; 0 without loads.
pub fn overlap(body: &[Class]) -> usize {
    // For each outstanding load in order: in the first round, the arithmetic that had been issued
    // before it.
    let mut outstanding: VecDeque<Option<usize>> = VecDeque::new();
    let (mut arithmetic, mut covered, mut loads) = (0, 0, 0);
    for (at, class) in body.iter().chain(body).chain(body).enumerate() {
        match class {
            Class::Matrix | Class::Vector => arithmetic += 1,
            Class::Load { .. } => {
                loads += usize::from(at < body.len());
                outstanding.push_back((at < body.len()).then_some(arithmetic));
            }
            Class::Store { counted: true } => outstanding.push_back(None),
            Class::Wait { loads: Some(left) } => {
                while outstanding.len() > *left {
                    covered += outstanding.pop_front().flatten().map_or(0, |before| arithmetic - before);
                }
            }
            _ => {}
        }
    }
    // A load that nothing waits for in three rounds has been in flight all the time.
    covered += outstanding.iter().flatten().map(|before| arithmetic - before).sum::<usize>();
    covered.checked_div(loads).unwrap_or(0)
}
