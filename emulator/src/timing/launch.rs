//! A launch of many work-groups, with records of some: its time on a chip, and the limits of the
//! launch and of each of its loops.
use std::collections::BTreeMap;

use super::chip::{Chip, Which, Work};
use super::cu::{self, CORE};
use super::profile::{LATENCIES, Sample};
use super::trace::{Event, Op, Trace, Unit};

/// A launch.
#[derive(Clone, Debug, Default)]
pub struct Launch {
    /// Recorded work-groups, evenly out of the grid.
    pub traces: Vec<Trace>,
    /// Work-groups of the grid.
    pub groups: usize,
    /// Work-groups for which a compute unit has registers and LDS.
    pub room: usize,
    /// Bytes of operands and results.
    pub bytes: f64,
    /// Bytes that one XCD requests from the memory beyond its L2.
    pub fetched: f64,
    /// The Infinity Cache has the operands.
    pub resident: bool,
    /// The recorded work-groups make a part of the result together: what it takes is what the one
    /// takes that ends last.
    pub shares: bool,
}

/// What takes most of a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bound {
    /// From one kernel to the next.
    Launch,
    Hbm,
    InfinityCache,
    L2,
    /// The path between L1 and registers.
    L1,
    Lds,
    Matrix,
    Vector,
    /// One wave's instructions, one after the other.
    Issue,
    /// Nothing is busy: waves wait for what they asked for.
    Latency,
}

impl Bound {
    pub fn name(self) -> &'static str {
        match self {
            Bound::Launch => "launch",
            Bound::Hbm => "HBM",
            Bound::InfinityCache => "Infinity Cache",
            Bound::L2 => "L2",
            Bound::L1 => "L1",
            Bound::Lds => "LDS",
            Bound::Matrix => "matrix unit",
            Bound::Vector => "vector unit",
            Bound::Issue => "issue",
            Bound::Latency => "latency",
        }
    }
}

/// The busiest part of a compute unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Busy {
    /// Never [`Bound::Latency`].
    pub unit: Bound,
    /// Part of the clocks in which it works.
    pub share: f64,
}

/// A unit that works in less of the clocks does not bound them.
const BUSY: f64 = 0.6;

impl Busy {
    /// The unit, if it works most of the time.
    pub fn bound(self) -> Bound {
        if self.share < BUSY { Bound::Latency } else { self.unit }
    }
}

/// An innermost loop of a work-group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Loop {
    /// Instructions of its body, in the code.
    pub instructions: usize,
    /// How often the wave that goes round most often does.
    pub turns: usize,
    /// Clocks from the first turn to the last one, and their part of the work-group's.
    pub clocks: f64,
    pub share: f64,
    pub busy: Busy,
}

/// A launch on a chip.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    pub us: f64,
    pub bound: Bound,
    /// Busy clocks of the whole work-group.
    pub busy: Busy,
    /// In the order of their instructions.
    pub loops: Vec<Loop>,
}

impl Launch {
    /// Work-groups that a compute unit has at once, and those that are left for its last round.
    fn together(&self, chip: &Chip) -> [usize; 2] {
        let each = chip.each(self.groups as f64) as usize;
        let together = each.min(self.room).max(1);
        [together, each % together]
    }

    /// A sample of `together` work-groups, as the mean of the recorded ones.
    fn sample(&self, together: usize) -> Sample {
        let mut seen: Vec<(&Trace, Sample)> = Vec::new();
        let mut sum = vec![0.0; Sample::default().numbers().len()];
        for trace in &self.traces {
            let known = seen.iter().find(|(other, _)| other.waves == trace.waves).map(|(_, sample)| *sample);
            let sample = known.unwrap_or_else(|| Sample::of(trace, together, &CORE));
            seen.push((trace, sample));
            sum.iter_mut().zip(sample.numbers()).for_each(|(sum, number)| *sum += number);
        }
        let count = self.traces.len().max(1) as f64;
        let mean = Sample::from_numbers(&sum.iter().map(|sum| sum / count).collect::<Vec<f64>>()).unwrap_or_default();
        let [Some(first), Some(last)] = [self.traces.first(), self.traces.last()] else { return mean };
        if !self.shares {
            return mean;
        }
        // The additional work of the last one runs alone on the compute unit.
        let [alone, longer] = [first, last].map(|trace| Sample::of(trace, 1, &CORE).clocks);
        let more = |(at, clocks): (usize, &f64)| clocks + longer[at] - alone[at];
        let clocks: Vec<f64> = seen[0].1.clocks.iter().enumerate().map(more).collect();
        Sample { clocks: clocks.try_into().unwrap_or(mean.clocks), ..mean }
    }

    fn work(&self, chip: &Chip) -> Work {
        let [together, left] = self.together(chip);
        Work {
            group: self.sample(together),
            together: together as f64,
            rest: (left > 0).then(|| self.sample(left)),
            groups: self.groups as f64,
            read: self.bytes,
            fetched: self.fetched,
            resident: self.resident,
            ..Work::default()
        }
    }

    pub fn predict(&self, chip: &Chip) -> Prediction {
        let work = self.work(chip);
        let [together, _] = self.together(chip);
        let longest = self.traces.iter().max_by_key(|trace| trace.waves.iter().map(Vec::len).max());
        let unit = longest.map(|trace| Unfolded { trace, together, latency: latency(chip) });
        let idle = Busy { unit: Bound::Issue, share: 0.0 };
        let busy = unit.as_ref().map_or(idle, |unit| unit.busy(&unit.all()));
        let loops = unit.map(|unit| unit.loops()).unwrap_or_default();
        Prediction { us: chip.time(&work), bound: bound(chip, &work, busy), busy, loops }
    }
}

/// Clocks that memory takes to answer where HBM has to.
fn latency(chip: &Chip) -> u64 {
    ((chip.number(Which::Near) + chip.number(Which::Far)) * chip.number(Which::Clock)) as u64
}

/// The limit that would leave the longest time alone.
fn bound(chip: &Chip, work: &Work, busy: Busy) -> Bound {
    let parts = chip.parts(work);
    let compute = |of: fn(Sample) -> Sample| {
        chip.parts(&Work { group: of(work.group), rest: work.rest.map(of), ..*work }).compute
    };
    let l2 = compute(|sample| Sample { clocks: [1.0; LATENCIES.len()], factors: 0.0, ..sample });
    let units = compute(|sample| Sample { missed: 0.0, ..sample });
    let limits = [
        (Bound::Launch, parts.launch),
        (Bound::Hbm, parts.memory),
        (Bound::InfinityCache, parts.cache),
        (if l2 > units { Bound::L2 } else { busy.bound() }, parts.compute),
    ];
    limits.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).map_or(Bound::Launch, |(bound, _)| bound)
}

/// Equal work-groups on a compute unit.
struct Unfolded<'a> {
    trace: &'a Trace,
    together: usize,
    latency: u64,
}

/// For each wave, a range of its events.
type Spans = Vec<std::ops::Range<usize>>;

impl Unfolded<'_> {
    fn all(&self) -> Spans {
        self.trace.waves.iter().map(|events| 0..events.len()).collect()
    }

    /// Clocks until every wave has reached its end.
    fn clocks(&self, ends: impl Iterator<Item = usize>) -> f64 {
        let end = self.trace.ops.iter().position(|op| op.unit == Unit::End).unwrap_or_default();
        let end = Event { op: end as u32, ..Event::default() };
        let cut = |(events, end_at): (&Vec<Event>, usize)| events[..end_at].iter().copied().chain([end]).collect();
        let waves = self.trace.waves.iter().zip(ends).map(cut).collect();
        let trace = Trace { ops: self.trace.ops.clone(), waves };
        cu::clocks(&trace, self.together, self.latency, &CORE) as f64
    }

    /// From the first event of the spans to the last.
    fn between(&self, spans: &Spans) -> f64 {
        self.clocks(spans.iter().map(|span| span.end)) - self.clocks(spans.iter().map(|span| span.start))
    }

    fn busy(&self, spans: &Spans) -> Busy {
        let clocks = self.between(spans).max(1.0);
        let all = |of: &dyn Fn(&Op, &Event) -> u64| -> f64 {
            let waves = self.trace.waves.iter().zip(spans);
            let events = waves.flat_map(|(events, span)| &events[span.clone()]);
            (events.map(|event| of(&self.trace.ops[event.op as usize], event)).sum::<u64>() * self.together as u64)
                as f64
        };
        let simds = (self.trace.waves.len() * self.together).min(CORE.simds) as f64;
        let unit = |unit: Unit| move |op: &Op, _: &Event| if op.unit == unit { u64::from(op.clocks) } else { 0 };
        let l1 = |op: &Op, event: &Event| match op.unit {
            Unit::Load | Unit::Store | Unit::Atomic => {
                (u64::from(event.bytes) / CORE.l1_bytes).max(u64::from(event.lines)).max(CORE.issue)
            }
            _ => 0,
        };
        let lds = |op: &Op, event: &Event| if op.unit == Unit::Lds { u64::from(event.lds.max(4)) } else { 0 };
        let longest = spans.iter().map(|span| span.len()).max().unwrap_or(0) as f64;
        let units = [
            (Bound::Matrix, all(&unit(Unit::Matrix)) / simds),
            (Bound::Vector, all(&unit(Unit::Vector)) / simds),
            (Bound::Lds, all(&lds)),
            (Bound::L1, all(&l1)),
            (Bound::Issue, longest * CORE.issue as f64),
        ];
        let (unit, most) = units.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((Bound::Issue, 0.0));
        Busy { unit, share: (most / clocks).min(1.0) }
    }

    fn loops(&self) -> Vec<Loop> {
        let whole = self.between(&self.all()).max(1.0);
        innermost(self.trace)
            .into_iter()
            .map(|((first, last), turns)| {
                let inside = |event: &Event| (first..=last).contains(&event.op);
                let span = |events: &Vec<Event>| match events.iter().position(inside) {
                    Some(start) => start..events.iter().rposition(inside).map_or(start, |end| end + 1),
                    None => events.len()..events.len(),
                };
                let spans: Spans = self.trace.waves.iter().map(span).collect();
                let clocks = self.between(&spans);
                let instructions = (last - first + 1) as usize;
                Loop { instructions, turns, clocks, share: clocks / whole, busy: self.busy(&spans) }
            })
            .collect()
    }
}

/// First and last instruction of each loop that has no other one inside, and how often the wave
/// that goes round most often does.
fn innermost(trace: &Trace) -> BTreeMap<(u32, u32), usize> {
    let mut turns: BTreeMap<(u32, u32), usize> = BTreeMap::new();
    for events in &trace.waves {
        let mut own: BTreeMap<(u32, u32), usize> = BTreeMap::new();
        for pair in events.windows(2) {
            let (from, to) = (pair[0].op, pair[1].op);
            if to <= from && trace.ops[from as usize].unit == Unit::Branch {
                *own.entry((to, from)).or_insert(1) += 1;
            }
        }
        for (at, count) in own {
            let most = turns.entry(at).or_default();
            *most = count.max(*most);
        }
    }
    let has_inner =
        |&(first, last): &(u32, u32)| turns.keys().any(|&(a, b)| (a, b) != (first, last) && first <= a && b <= last);
    turns.iter().filter(|(at, _)| !has_inner(at)).map(|(at, count)| (*at, *count)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::chips::CHIPS;
    use super::*;

    /// A wave that goes round three times: a unit's instruction, then the branch.
    fn looping(unit: Unit, clocks: u16) -> Trace {
        let op = |unit, clocks| Op { unit, clocks, ..Op::default() };
        let ops = vec![op(Unit::Scalar, 4), op(unit, clocks), op(Unit::Branch, 4), op(Unit::End, 4)];
        let event = |op| Event { op, ..Event::default() };
        let events = [0, 1, 2, 1, 2, 1, 2, 3].map(event).to_vec();
        Trace { ops, waves: vec![events] }
    }

    fn launch(trace: Trace) -> Launch {
        Launch { traces: vec![trace], groups: 1, room: 2, ..Launch::default() }
    }

    #[test]
    fn loops_are_found_with_what_bounds_them() {
        let loops = launch(looping(Unit::Matrix, 400)).predict(&CHIPS[1]).loops;
        let [only] = loops[..] else { panic!("{loops:?}") };
        assert_eq!((only.instructions, only.turns, only.busy.bound()), (2, 3, Bound::Matrix));
        assert!(only.busy.share > 0.9 && only.share > 0.9, "{only:?}");
        let loops = launch(looping(Unit::Scalar, 4)).predict(&CHIPS[1]).loops;
        assert_eq!(loops[0].busy.unit, Bound::Issue);
    }

    #[test]
    fn bytes_bound_a_launch_that_has_many() {
        let chip = &CHIPS[2];
        let short = launch(looping(Unit::Vector, 4));
        assert_eq!(short.predict(chip).bound, Bound::Launch);
        let much = Launch { bytes: 1e9, ..short.clone() };
        assert_eq!(much.predict(chip).bound, Bound::Hbm);
        let long = Launch { bytes: 1e6, ..launch(looping(Unit::Matrix, 60_000)) };
        assert_eq!(long.predict(chip).bound, Bound::Matrix);
    }

    #[test]
    fn work_groups_share_a_compute_unit_where_there_are_many() {
        let chip = &CHIPS[1];
        let few = Launch { groups: 304, ..launch(looping(Unit::Matrix, 400)) };
        let together = |groups| Launch { groups, ..few.clone() }.together(chip);
        assert_eq!([together(304), together(608), together(3 * 304)], [[1, 0], [2, 0], [2, 1]]);
        // One wave each: two work-groups are on different SIMDs and take no longer.
        let twice = Launch { groups: 608, ..few.clone() };
        assert!((twice.predict(chip).us / few.predict(chip).us - 1.0).abs() < 0.05);
        let narrow = Launch { groups: 608, room: 1, ..few.clone() };
        assert!(narrow.predict(chip).us > few.predict(chip).us);
    }
}
