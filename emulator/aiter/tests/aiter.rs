//! One kernel of each of AITER's families and chips against float64; `--example aiter` runs all.
//!
//!     ATOMC_AITER=DIR cargo test --release -p atomc-aiter --test aiter -- --ignored
use std::collections::BTreeSet;
use std::path::PathBuf;

use atomc_emulator::Options;

#[test]
#[ignore = "needs the code objects of AITER in the folder that ATOMC_AITER names"]
fn one_of_each() {
    let folder = PathBuf::from(std::env::var_os("ATOMC_AITER").expect("ATOMC_AITER names a folder"));
    let mut seen = BTreeSet::new();
    for entry in atomc_aiter::entries() {
        if !seen.insert((entry.family, entry.chip)) {
            continue;
        }
        let mut case = entry.case();
        let code = atomc_aiter::open(&folder, &case.path).unwrap_or_else(|e| panic!("{e}"));
        let options = Options { quantum: 1, ..Options::fast() };
        case.run(&code, &options).unwrap_or_else(|fault| panic!("{}: {fault}", case.path));
        let error = case.error();
        assert!(error <= case.allowed, "{}: error {error:.1e} of {:.1e}", case.path, case.allowed);
        // Operands that count: another result is far away.
        let (_, wanted) = (case.compare)(&case.buffers);
        assert!(wanted.iter().filter(|v| **v != 0.0).count() * 64 > wanted.len(), "{}: zeros", case.path);
    }
    assert_eq!(seen.len(), 19, "ten families on two chips; products of fp4 on one");
}
