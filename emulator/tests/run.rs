//! Kernels from LLVM IR on every processor, against plain loops.
#![allow(clippy::unwrap_used, reason = "what tests call may unwrap as they do")]
mod common;

use atomc_emulator::timing::cu;
use atomc_emulator::timing::trace::Unit;
use atomc_emulator::{Access, Counts, Emulator, Grid, Options};
use common::{Arguments, compile, isas};

fn done(name: &str, result: Result<Counts, atomc_emulator::Fault>) -> Counts {
    result.unwrap_or_else(|e| panic!("{name}: {e}"))
}

#[test]
fn vector_add() {
    for isa in isas() {
        let code = compile(include_str!("kernels/vector_add.ll"), isa);
        let n = 1000usize;
        let mut a: Vec<f32> = (0..n).map(|i| i as f32).collect();
        let mut b: Vec<f32> = (0..n).map(|i| 0.5 - i as f32 * 3.0).collect();
        let mut o = vec![f32::NAN; n];
        let arguments = Arguments::default().buffer(&mut a).buffer(&mut b).buffer(&mut o).value(n as u32);
        let counts = done(isa.name, arguments.launch(&code, "vector_add", Grid::linear(4, 256)));
        (0..n).for_each(|i| assert_eq!(o[i], a[i] + b[i], "{} {i}", isa.name));
        assert_eq!((counts.bytes_stored, counts.waves), (4000, 1024 / u64::from(isa.lanes)), "{}", isa.name);
    }
}

#[test]
fn lanes() {
    for isa in isas() {
        let code = compile(include_str!("kernels/lanes.ll"), isa);
        let n = isa.lanes as usize;
        let mut x: Vec<i32> = (0..n as i32).map(|i| i * i + 3).collect();
        let mut o = vec![0i32; n * 6];
        let arguments = Arguments::default().buffer(&mut x).buffer(&mut o).value(isa.lanes);
        done(isa.name, arguments.launch(&code, "lanes", Grid::linear(1, isa.lanes)));
        let votes = (0..n.min(32)).fold(0, |all, i| all | (x[i] & 1) << i);
        for i in 0..n {
            let row = i / 16 * 16;
            let shifted = if i == row { -7 } else { x[i - 1] };
            let expected = [x.iter().sum(), x[i ^ 31], shifted, x[row + 15 - i % 16], votes, x[0]];
            assert_eq!(o[i * 6..i * 6 + 6], expected, "{} lane {i}", isa.name);
        }
    }
}

/// LLVM's assembler takes these on every gfx9.
#[test]
fn altered() {
    for isa in isas().into_iter().filter(|isa| isa.family.is_cdna()) {
        let code = compile(include_str!("kernels/altered.ll"), isa);
        let (mut x, mut o) = ([7u32, 0], vec![0u32; 64 * 5]);
        let arguments = Arguments::default().buffer(&mut x).buffer(&mut o);
        done(isa.name, arguments.launch(&code, "altered", Grid::linear(1, 64)));
        for lane in 0..64u32 {
            // v12; v13 plus v10; v11; v13; the skipped ones, plus the old count
            let expected = [3 * lane, 5 * lane, 2 * lane, 4 * lane, 7 + lane];
            assert_eq!(o[lane as usize * 5..][..5], expected, "{} lane {lane}", isa.name);
        }
        assert_eq!(x, [6, 2], "{}", isa.name);
    }
}

#[test]
fn transpose() {
    for isa in isas() {
        let code = compile(include_str!("kernels/transpose.ll"), isa);
        let mut x: Vec<f32> = (0..1024).map(|i| i as f32).collect();
        let mut o = vec![0f32; 1024];
        let arguments = Arguments::default().buffer(&mut x).buffer(&mut o);
        let counts = done(isa.name, arguments.launch(&code, "transpose", Grid::linear(1, 256)));
        (0..1024).for_each(|i| assert_eq!(o[i], x[i % 32 * 32 + i / 32], "{} {i}", isa.name));
        // Rows of 33 words: columns fall on all banks.
        assert_eq!((counts.lds_conflicts, counts.barriers), (0, counts.waves), "{}", isa.name);
    }
}

#[test]
fn a_recorded_group_is_what_runs() {
    for isa in isas() {
        let code = compile(include_str!("kernels/transpose.ll"), isa);
        let (mut x, mut o) = (vec![0f32; 1024], vec![0f32; 1024]);
        let arguments = Arguments::default().buffer(&mut x).buffer(&mut o);
        let grid = Grid::linear(1, 256);
        let counts = done(isa.name, arguments.launch(&code, "transpose", grid));
        let trace = Emulator.record(&code, "transpose", grid, &arguments.bytes, &arguments.memory, [0; 3]);
        let trace = trace.unwrap_or_else(|e| panic!("{}: {e}", isa.name));
        let events = || trace.waves.iter().flatten();
        let of = |unit| events().filter(|e| trace.ops[e.op as usize].unit == unit).count() as u64;
        assert_eq!(events().count() as u64, counts.instructions, "{}", isa.name);
        assert_eq!([of(Unit::Lds), of(Unit::Load) + of(Unit::Store)], [counts.lds, counts.vmem], "{}", isa.name);
        assert_eq!(events().map(|e| u64::from(e.bytes)).sum::<u64>(), 2 * 4096, "{}", isa.name);
        assert!(cu::clocks(&trace, 1, 1000, &cu::CORE) > cu::clocks(&trace, 1, 500, &cu::CORE) + 400, "{}", isa.name);
    }
}

#[test]
fn atomics() {
    for isa in isas() {
        let code = compile(include_str!("kernels/atomics.ll"), isa);
        let n = 256u32;
        let mut u32s = [0u32; 4];
        let (mut f32s, mut u64s, mut counts) = ([0f32; 1], [0u64; 1], [0u32; 16]);
        let mut tickets = vec![u32::MAX; n as usize];
        let arguments = Arguments::default()
            .buffer(&mut u32s)
            .buffer(&mut f32s)
            .buffer(&mut u64s)
            .buffer(&mut tickets)
            .buffer(&mut counts);
        done(isa.name, arguments.launch(&code, "atomics", Grid::linear(2, 128)));
        let sum = n * (n - 1) / 2;
        assert_eq!(u32s, [n, n - 1, (n - 1).wrapping_neg(), 3 * n], "{}", isa.name);
        assert_eq!((f32s, u64s), ([sum as f32], [u64::from(sum) << 30]), "{}", isa.name);
        tickets.sort_unstable();
        assert!(tickets.iter().copied().eq(0..n), "{}: every ticket is given once", isa.name);
        let bin = |b: u32| 2 * (0..128u32).filter(|t| t * t % 16 == b).count() as u32;
        assert_eq!(counts, std::array::from_fn(|b| bin(b as u32)), "{}", isa.name);
    }
}

#[test]
fn divergent_loops() {
    let steps = |mut v: u32| {
        let mut s = 0;
        while v != 1 {
            v = if v % 2 == 1 { 3 * v + 1 } else { v / 2 };
            s += 1;
        }
        s
    };
    for isa in isas() {
        let code = compile(include_str!("kernels/collatz.ll"), isa);
        let mut o = vec![0u32; 150];
        let arguments = Arguments::default().buffer(&mut o).value(150u32);
        done(isa.name, arguments.launch(&code, "collatz", Grid::linear(3, 64)));
        assert!(o.iter().copied().eq((1..=150).map(steps)), "{}: {o:?}", isa.name);
    }
}

#[test]
fn scratch_and_flat_pointers() {
    for isa in isas() {
        let code = compile(include_str!("kernels/places.ll"), isa);
        let mut x: Vec<i32> = (0..64).map(|i| i * 1000 - 7).collect();
        let mut bytes: Vec<i8> = (0..64).map(|i| (i * 5) as i8).collect();
        let before = bytes.clone();
        let mut o = vec![0i32; 128];
        let arguments = Arguments::default().buffer(&mut x).buffer(&mut bytes).buffer(&mut o).value(3u32);
        done(isa.name, arguments.launch(&code, "places", Grid::linear(1, 64)));
        for t in 0..64 {
            let slot = if t % 16 == 3 { x[t] } else { 0 };
            assert_eq!(o[64 + t], x[t] + i32::from(before[t]) + slot, "{} {t}", isa.name);
            assert_eq!((o[t / 2] >> (t % 2 * 16)) as i16, x[t] as i16, "{} {t}", isa.name);
            assert_eq!(bytes[t], before[t].wrapping_add(1), "{} {t}", isa.name);
        }
    }
}

#[test]
fn buffers_drop_what_is_outside() {
    for isa in isas() {
        let code = compile(include_str!("kernels/buffers.ll"), isa);
        let mut x: Vec<u32> = (0..25).map(|i| i + 100).collect();
        let mut o = vec![7u32; 64];
        // Raw addressing; the field has another place from gfx11 on.
        let flags = if isa.family.is_cdna() { 0x27000u32 } else { 3 << 28 };
        let arguments = Arguments::default().buffer(&mut x).buffer(&mut o).value(flags);
        done(isa.name, arguments.launch(&code, "buffers", Grid::linear(1, 32)));
        let read = |i: usize| if i < 25 { x[i] } else { 0 };
        let expected: Vec<u32> = (0..64).map(|i| if i < 40 { read(i) + 1 } else { 7 }).collect();
        assert_eq!(o, expected, "{}", isa.name);
    }
}

#[test]
fn ids_in_three_dimensions() {
    for isa in isas() {
        let code = compile(include_str!("kernels/ids.ll"), isa);
        let mut o = vec![u32::MAX; 24 * 30];
        let arguments = Arguments::default().buffer(&mut o);
        let grid = Grid { groups: [2, 3, 5], threads: [4, 3, 2], dynamic_lds: 0 };
        done(isa.name, arguments.launch(&code, "ids", grid));
        assert!(o.iter().copied().eq(0..24 * 30), "{}: {o:?}", isa.name);
    }
}

#[test]
fn constants_beside_the_code() {
    for isa in isas() {
        let code = compile(include_str!("kernels/tables.ll"), isa);
        let mut o = vec![0u32; 64];
        let arguments = Arguments::default().buffer(&mut o).value(3u32);
        done(isa.name, arguments.launch(&code, "tables", Grid::linear(1, 64)));
        let (near, far) = ([3, 1, 4, 1], [2, 7, 1, 8]);
        (0..64).for_each(|t| assert_eq!(o[t], near[t % 4] * 100 + 80 + far[t % 4], "{} {t}", isa.name));
    }
}

#[test]
fn the_rest_of_the_memory_units() {
    for isa in isas() {
        let code = compile(include_str!("kernels/units.ll"), isa);
        let n = isa.lanes as usize;
        let mut x: Vec<u32> = (0..n as u32).map(|i| i * 77 + 5).collect();
        let half = |i: usize| half::f16::from_f32(i as f32 * 0.25);
        let mut h: Vec<u16> = (0..128).map(|i| half(i).to_bits()).collect();
        let (mut o, mut count, mut table) = (vec![0u32; n * 8], [3u32], [11u32, 22, 33]);
        let base = table.as_mut_ptr() as u64;
        let flags = if isa.family.is_cdna() { 0x27000u32 } else { 3 << 28 };
        let arguments = Arguments::default().buffer(&mut x).buffer(&mut h).buffer(&mut o);
        let mut arguments = arguments.value([base as u32, (base >> 32) as u32, 12, flags]).buffer(&mut count);
        // SAFETY: the table lives as long as the launch.
        unsafe { arguments.memory.map(base, 12, Access::Read) };
        let grid = Grid::linear(1, isa.lanes);
        // One lane's store is overwritten by the others' in the same instruction: all of them store
        // the same.
        done(isa.name, arguments.launch(&code, "units", grid));
        let mut tickets: Vec<u32> = o.iter().skip(5).step_by(8).copied().collect();
        tickets.sort_unstable();
        assert!(tickets.into_iter().eq(0..n as u32), "{}", isa.name);
        assert_eq!(count[0], *x.last().unwrap(), "{}", isa.name);
        for t in 0..n {
            let o = &o[t * 8..t * 8 + 8];
            let pair = u32::from((half(t) + half(t + 64)).to_bits()) | u32::from(half(t + 64).to_bits()) << 16;
            let sum = (n * (n - 1) / 2) as u32;
            let expected = [x[(t + n - 1) % n], 33, 0, x[t] * 2 + 3 + 7, x[t]];
            assert_eq!(o[..5], expected, "{} {t}", isa.name);
            assert_eq!(o[6..], [sum, pair], "{} {t}", isa.name);
        }
    }
}

/// The same seed gives the same run, and another seed another order. Threads of the host change
/// nothing else.
#[test]
fn seeds_and_threads() {
    let isa = isas()[1];
    let code = compile(include_str!("kernels/atomics.ll"), isa);
    let run = |options: &Options| {
        let (mut u32s, mut f32s, mut u64s, mut counts) = ([0u32; 4], [0f32; 1], [0u64; 1], [0u32; 16]);
        let mut tickets = vec![u32::MAX; 1024];
        let arguments = Arguments::default()
            .buffer(&mut u32s)
            .buffer(&mut f32s)
            .buffer(&mut u64s)
            .buffer(&mut tickets)
            .buffer(&mut counts);
        done("gfx942", arguments.launch_with(&code, "atomics", Grid::linear(8, 128), options));
        (tickets, u32s, counts)
    };
    let seeded = |seed| run(&Options { seed, ..Options::default() });
    assert_eq!(seeded(5), seeded(5));
    assert_ne!(seeded(5).0, seeded(6).0);
    let threads = run(&Options { threads: 4, ..Options::default() });
    let fast = run(&Options::fast());
    assert_eq!((threads.1, threads.2), (fast.1, fast.2));
}
