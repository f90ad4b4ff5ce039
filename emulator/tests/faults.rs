//! Broken kernels are caught. Most are made of good ones by overwriting instructions in the code
//! object.
#![allow(clippy::unwrap_used, reason = "what tests call may unwrap as they do")]
mod common;

use atomc_emulator::isa::{Family, Isa};
use atomc_emulator::{
    Checks, CodeObject, Counter, Fault, FaultKind, Grid, LaunchError, LoadError, Operation, Options, Unordered, testing,
};
use common::{Arguments, compile, isas};

/// `s_nop 0`, the same in all generations.
const NOP: [u8; 4] = 0xbf80_0000u32.to_le_bytes();

/// Code objects with one instruction replaced by a no-op. `which` picks the instruction; its text
/// is returned too.
fn without(ir: &str, isa: &Isa, kernel: &str, which: impl Fn(&str) -> bool) -> Vec<(String, CodeObject)> {
    let bytes = testing::compile(ir, isa);
    let whole = CodeObject::load(&bytes).unwrap();
    let code = &whole.kernel(kernel).unwrap().code;
    let decoded = whole.decoded(kernel).unwrap().as_ref().unwrap();
    let ends = decoded.steps.iter().skip(1).map(|s| s.inst.address).chain([decoded.end]);
    let mut broken = Vec::new();
    for ((step, text), end) in decoded.steps.iter().zip(&decoded.texts).zip(ends).filter(|((_, t), _)| which(t)) {
        let mut bytes = bytes.clone();
        let at = code.file.start + (step.inst.address - code.address) as usize;
        let size = (end - step.inst.address) as usize;
        bytes[at..at + size].copy_from_slice(&NOP.repeat(size / 4));
        broken.push((text.to_string(), CodeObject::load(&bytes).unwrap()));
    }
    assert!(!broken.is_empty(), "{}: nothing to break", isa.name);
    broken
}

fn is_wait(text: &str) -> bool {
    text.starts_with("s_waitcnt ") || text.starts_with("s_wait_") && text.contains("cnt")
}

fn add(code: &CodeObject, n: usize, told: u32) -> Result<atomc_emulator::Counts, Fault> {
    add_with(code, n, told, &Options::default())
}

fn add_with(code: &CodeObject, n: usize, told: u32, options: &Options) -> Result<atomc_emulator::Counts, Fault> {
    let (mut a, mut b, mut o) = (vec![1f32; n], vec![2f32; n], vec![0f32; n]);
    let arguments = Arguments::default().buffer(&mut a).buffer(&mut b).buffer(&mut o).value(told);
    arguments.launch_with(code, "vector_add", Grid::linear(told.div_ceil(256), 256), options)
}

fn reverse(code: &CodeObject, options: &Options) -> Result<atomc_emulator::Counts, Fault> {
    let (mut x, mut o) = (vec![1f32; 256], vec![0f32; 256]);
    x.iter_mut().enumerate().for_each(|(i, x)| *x = i as f32);
    let arguments = Arguments::default().buffer(&mut x).buffer(&mut o);
    arguments.launch_with(code, "shared_reverse", Grid::linear(1, 256), options)
}

#[test]
fn every_dropped_wait_for_a_load() {
    for isa in isas() {
        for (text, code) in without(include_str!("kernels/vector_add.ll"), isa, "vector_add", is_wait) {
            let fault = add(&code, 300, 300).expect_err(&text);
            assert!(matches!(fault.kind, FaultKind::MissingWait { .. }), "{} without {text}: {fault}", isa.name);
        }
    }
}

#[test]
fn the_fault_says_which_counter() {
    let isa = Isa::find("gfx1201").unwrap();
    let which = |t: &str| t.starts_with("s_wait_loadcnt");
    let (_, code) = without(include_str!("kernels/vector_add.ll"), isa, "vector_add", which).remove(0);
    let fault = add_with(&code, 64, 64, &Options { seed: 0, ..Options::default() }).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::MissingWait { counter: Counter::Vector, .. }));
    let text = fault.to_string();
    let place = text.find(" at 0x").unwrap()..text.find(": v").unwrap();
    insta::assert_snapshot!(text.replace(&text[place], " at PLACE"), @"kernel `vector_add`, group (0, 0, 0) wave 0, `v_add_f32_e32 v2, v2, v3` at PLACE: v2 is still being loaded: no wait on vmcnt/loadcnt covers it");
}

/// Only waits for stores at the end have no effect on one lane's values, and there are none here.
#[test]
fn every_dropped_wait_around_a_barrier() {
    for isa in isas() {
        for (text, code) in without(include_str!("kernels/shared.ll"), isa, "shared_reverse", is_wait) {
            for seed in 1..4 {
                let options = Options { seed, ..Options::default() };
                let fault = reverse(&code, &options).expect_err(&format!("{} without {text}", isa.name));
                let caught = matches!(fault.kind, FaultKind::MissingWait { .. } | FaultKind::LdsRace { .. });
                assert!(caught, "{} without {text}: {fault}", isa.name);
            }
        }
    }
}

#[test]
fn a_dropped_barrier() {
    for isa in isas() {
        let barrier = |t: &str| t.starts_with("s_barrier") && !t.starts_with("s_barrier_signal");
        let (_, code) = without(include_str!("kernels/shared.ll"), isa, "shared_reverse", barrier).remove(0);
        for seed in 0..8 {
            let fault = reverse(&code, &Options { seed, ..Options::default() }).unwrap_err();
            let caught = matches!(
                fault.kind,
                FaultKind::LdsRace { operation: Operation::Read, other: Operation::Write, .. }
                    | FaultKind::UninitialisedLds { .. }
                    | FaultKind::LdsRace { operation: Operation::Write, other: Operation::Read, .. }
            );
            assert!(caught, "{}: {fault}", isa.name);
        }
        // Without checks, the waves that run at random points still show it in the results.
        let options = Options { checks: Checks::NONE, ..Options::default() };
        reverse(&code, &options).unwrap();
    }
}

#[test]
fn one_element_too_many() {
    for isa in isas() {
        let code = compile(include_str!("kernels/vector_add.ll"), isa);
        assert!(add(&code, 300, 300).is_ok());
        let fault = add(&code, 300, 301).unwrap_err();
        let FaultKind::OutOfBounds { operation: Operation::Read, bytes: 4, nearest: Some((_, end)), address } =
            fault.kind
        else {
            panic!("{}: {fault}", isa.name)
        };
        assert_eq!(address, end, "the first byte behind the buffer");
        assert_eq!(fault.site.unwrap().lane, Some((300 % isa.lanes) as u8));
    }
}

/// Registers that are written once and then used: leaving such an instruction out is seen, whatever
/// was in the register.
#[test]
fn values_that_nobody_computed() {
    for isa in isas() {
        let vector = |t: &str| t.starts_with("v_") && !t.starts_with("v_cmp");
        let broken = without(include_str!("kernels/shared.ll"), isa, "shared_reverse", vector);
        let faults = broken.iter().filter_map(|(_, code)| reverse(code, &Options::default()).err());
        let found = faults.filter(|f| matches!(f.kind, FaultKind::Uninitialised { .. })).count();
        assert!(found >= 1, "{}: only {found} of {}", isa.name, broken.len());
        let code = compile(include_str!("kernels/shared.ll"), isa);
        let mut o = vec![0f32; 64];
        let fault = Arguments::default().buffer(&mut o).launch(&code, "shared_never", Grid::linear(1, 64)).unwrap_err();
        assert!(matches!(fault.kind, FaultKind::UninitialisedLds { .. }), "{}: {fault}", isa.name);
    }
}

#[test]
fn waves_that_do_not_come_to_the_barrier() {
    for isa in isas() {
        let code = compile(include_str!("kernels/shared.ll"), isa);
        let mut o = vec![0f32; 256];
        let launch = |n: u32, o: &mut Vec<f32>| {
            Arguments::default().buffer(o).value(n).launch(&code, "shared_leaves", Grid::linear(1, 256))
        };
        launch(256, &mut o).unwrap();
        let fault = launch(128, &mut o).unwrap_err();
        assert!(matches!(fault.kind, FaultKind::DivergentBarrier { .. }), "{}: {fault}", isa.name);
    }
}

#[test]
fn loads_to_lds_need_their_wait() {
    let chips = isas().into_iter().filter(|i| matches!(i.family, Family::Gfx942 | Family::Gfx950));
    for isa in chips {
        let run = |code: &CodeObject| {
            let mut x: Vec<u32> = (0..64).collect();
            let mut o = vec![0u32; 64];
            let arguments = Arguments::default().buffer(&mut x).buffer(&mut o);
            arguments.launch(code, "to_lds", Grid::linear(1, 64)).map(|_| o)
        };
        let ir = include_str!("kernels/to_lds.ll");
        assert!(run(&compile(ir, isa)).unwrap().into_iter().eq((0..64).rev()), "{}", isa.name);
        let (text, code) = without(ir, isa, "to_lds", |t| t.contains("vmcnt(0)")).remove(0);
        let fault = run(&code).unwrap_err();
        assert!(matches!(fault.kind, FaultKind::MissingLdsWait { .. }), "{} without {text}: {fault}", isa.name);
    }
}

const SHARES: &str = include_str!("kernels/shares.ll");

/// Four work-groups of several waves: the last one's result of the numbers of all.
fn share(code: &CodeObject, kernel: &str, options: &Options) -> Result<Vec<u32>, FaultKind> {
    let (mut x, mut c, mut o) = (vec![0u32; 1024], vec![0u32; 1], vec![0u32; 256]);
    let arguments = Arguments::default().buffer(&mut x).buffer(&mut c).buffer(&mut o).value(4u32);
    let done = arguments.launch_with(code, kernel, Grid::linear(4, 256), options);
    done.map(|_| o).map_err(|fault| fault.kind)
}

/// In order, in random orders, and by several threads.
fn orders() -> impl Iterator<Item = Options> {
    let seeds = (0..6).map(|seed| Options { seed, ..Options::default() });
    seeds.chain([Options { threads: 4, ..Options::default() }])
}

/// The fault of a read of another group's store.
fn unordered(done: Result<Vec<u32>, FaultKind>) -> Unordered {
    let kind = done.expect_err("groups that share");
    let FaultKind::Unpublished { why, .. } = kind else { panic!("{kind}") };
    why
}

#[test]
fn what_all_waves_release_other_groups_read() {
    for isa in isas() {
        let code = compile(SHARES, isa);
        for options in orders() {
            let sums = share(&code, "shares", &options).unwrap_or_else(|kind| panic!("{}: {kind}", isa.name));
            assert!(sums.into_iter().eq((0..256).rev().map(|t| 1536 + 4 * t)), "{}", isa.name);
        }
    }
}

/// Hardware counts outstanding stores for each wave, so the wave that publishes cannot wait for
/// those of others. On RDNA the barrier's own fence has each wave wait.
#[test]
fn what_one_wave_releases_for_all() {
    for isa in isas() {
        let code = compile(SHARES, isa);
        for (kernel, options) in ["shares_late", "shares_unreleased"].into_iter().zip(orders()) {
            let done = share(&code, kernel, &options);
            match isa.family.is_cdna() {
                true => assert!(matches!(unordered(done), Unordered::Outstanding { .. }), "{}: {kernel}", isa.name),
                false => assert_eq!(done.map(|_| ()), Ok(()), "{}: {kernel}", isa.name),
            }
        }
    }
}

#[test]
fn both_places_of_what_is_not_published() {
    let code = compile(SHARES, Isa::find("gfx942").unwrap());
    let options = Options { seed: 0, ..Options::default() };
    let kind = share(&code, "shares_late", &options).unwrap_err();
    let FaultKind::Unpublished { store, why: Unordered::Outstanding { published }, .. } = kind else {
        panic!("{kind}")
    };
    let decoded = code.decoded("shares_late").unwrap().as_ref().unwrap();
    let [stored, counted] = [store, published].map(|at| &*decoded.texts[decoded.index(at).unwrap()]);
    assert!(stored.starts_with("global_store_dword ") && counted.starts_with("global_atomic_add "));
    let text = kind.to_string();
    let words: Vec<_> = text.split(' ').map(|word| if word.starts_with("0x") { "PLACE" } else { word }).collect();
    insta::assert_snapshot!(words.join(" "), @"read of PLACE which wave 3 of group (0, 0, 0) stored at PLACE its group publishes at PLACE and no wait of the wave that stored is before that");
}

/// The wait of every wave, and the write-back, before the barrier.
#[test]
fn every_dropped_part_of_a_release() {
    for isa in isas() {
        let before = |wanted: &dyn Fn(&str) -> bool| {
            let bytes = testing::compile(SHARES, isa);
            let whole = CodeObject::load(&bytes).unwrap();
            let texts = &whole.decoded("shares").unwrap().as_ref().unwrap().texts;
            let store = texts.iter().position(|t| t.starts_with("global_store")).unwrap();
            let text = texts[store..].iter().find(|t| wanted(t)).unwrap();
            let nth = texts[..store].iter().filter(|t| *t == text).count();
            without(SHARES, isa, "shares", |t| t == &**text).remove(nth).1
        };
        let unwaited = before(&|t| is_wait(t) || t.starts_with("s_waitcnt_vscnt"));
        for options in orders() {
            let why = unordered(share(&unwaited, "shares", &options));
            assert!(matches!(why, Unordered::Outstanding { .. }), "{}: {why}", isa.name);
        }
        if matches!(isa.family, Family::Gfx942 | Family::Gfx950) {
            let cached = before(&|t| t.starts_with("buffer_wbl2"));
            for options in orders() {
                let why = unordered(share(&cached, "shares", &options));
                assert!(matches!(why, Unordered::Cached { .. }), "{}: {why}", isa.name);
            }
        }
    }
}

#[test]
fn reads_of_other_groups_behind_no_acquire() {
    for isa in isas() {
        let code = compile(SHARES, isa);
        for options in orders() {
            assert_eq!(unordered(share(&code, "shares_unacquired", &options)), Unordered::Stale, "{}", isa.name);
            let one_thread = options.threads == 1;
            let unread = share(&code, "shares_uncounted", &options);
            assert!(!one_thread || unordered(unread) == Unordered::Unread, "{}", isa.name);
        }
    }
}

/// An atomic operation that nothing reads publishes nothing, whatever is outstanding.
#[test]
fn counts_behind_stores() {
    for isa in isas() {
        let code = compile(SHARES, isa);
        for options in orders() {
            let (mut x, mut c, mut o) = (vec![0u32; 1024], vec![0u32; 7], vec![0u32; 1024]);
            x.iter_mut().zip(0..).for_each(|(x, i)| *x = i % 7);
            let arguments = Arguments::default().buffer(&mut x).buffer(&mut c).buffer(&mut o);
            arguments.launch_with(&code, "histogram", Grid::linear(4, 256), &options).unwrap();
            assert_eq!(c, [147, 147, 146, 146, 146, 146, 146], "{}", isa.name);
        }
    }
}

#[test]
fn launches_that_cannot_begin() {
    let isa = Isa::find("gfx942").unwrap();
    let code = compile(include_str!("kernels/vector_add.ll"), isa);
    let launch = |kernel: &str, grid: Grid, bytes: usize| {
        let arguments = Arguments { bytes: vec![0; bytes], ..Arguments::default() };
        arguments.launch(&code, kernel, grid).unwrap_err().kind
    };
    let unknown = launch("vector_sub", Grid::linear(1, 64), 28);
    assert_eq!(unknown, FaultKind::UnknownKernel { known: vec!["vector_add".into()] });
    let threads = launch("vector_add", Grid::linear(1, 2000), 28);
    assert_eq!(threads, FaultKind::Launch(LaunchError::Threads { found: 2000, limit: 1024 }));
    let arguments = launch("vector_add", Grid::linear(1, 64), 20);
    assert_eq!(arguments, FaultKind::Launch(LaunchError::Arguments { found: 20, wanted: 28 }));
    let lds = launch("vector_add", Grid { dynamic_lds: 1 << 20, ..Grid::linear(1, 64) }, 28);
    assert_eq!(lds, FaultKind::Launch(LaunchError::Lds { found: 1 << 20, limit: 65536 }));
}

#[test]
fn endless_kernels_end() {
    let isa = Isa::find("gfx942").unwrap();
    let code = compile(include_str!("kernels/collatz.ll"), isa);
    let mut o = vec![0u32; 64];
    let options = Options { limit: 100, ..Options::default() };
    let fault = Arguments::default()
        .buffer(&mut o)
        .value(64u32)
        .launch_with(&code, "collatz", Grid::linear(1, 64), &options)
        .unwrap_err();
    assert_eq!(fault.kind, FaultKind::Endless(100));
}

#[test]
fn what_cannot_be_loaded() {
    assert!(matches!(CodeObject::load(b"no ELF file"), Err(LoadError::Object(_))));
    let isa = Isa { name: "gfx1250", ..*Isa::find("gfx1201").unwrap() };
    let Err(error) = CodeObject::load(&testing::compile(include_str!("kernels/collatz.ll"), &isa)) else {
        panic!("there is no interpreter for it")
    };
    insta::assert_snapshot!(error, @"no interpreter for `gfx1250`; there is one for gfx90a, gfx942, gfx950, gfx9-4-generic, gfx1100, gfx1101, gfx1102, gfx1150, gfx1151, gfx1152, gfx11-generic, gfx1200, gfx1201, gfx12-generic");
}

/// Overwrites instructions by words that are no instructions.
#[test]
fn what_cannot_be_decoded() {
    let isa = Isa::find("gfx942").unwrap();
    let mut bytes = testing::compile(include_str!("kernels/vector_add.ll"), isa);
    let at = CodeObject::load(&bytes).unwrap().kernel("vector_add").unwrap().code.file.start;
    bytes[at..at + 4].fill(0xff);
    let fault = add(&CodeObject::load(&bytes).unwrap(), 64, 64).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::Decode(_)), "{fault}");
}
