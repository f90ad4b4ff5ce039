use super::*;
use crate::device::DeviceChoice;
use crate::toy;

fn open(variant: Option<&str>) -> Result<Host, DeviceError> {
    let artifact = Artifact::open(toy::path()).unwrap();
    Host::open(&artifact, &artifact.manifest().targets[0], variant, 2)
}

#[test]
fn takes_the_first_variant_that_runs() {
    assert_eq!(open(None).unwrap().name(), "host:plain");
    assert_eq!(open(Some("plain")).unwrap().name(), "host:plain");
}

#[test]
fn says_why_a_variant_does_not_run() {
    assert_eq!(
        open(Some("from-the-future")).unwrap_err().to_string(),
        "this CPU cannot run variant `from-the-future`: it lacks no-such-feature; the artifact has: from-the-future, plain"
    );
    assert_eq!(
        open(Some("x86-64-v9")).unwrap_err().to_string(),
        "the artifact has no variant `x86-64-v9` for the host; it has: from-the-future, plain"
    );
    let mut target = toy::manifest().targets.remove(0);
    target.variants.truncate(1);
    assert_eq!(
        choose(&target, None, &Cpu::default()).unwrap_err().to_string(),
        "this CPU cannot run any variant in the artifact: `from-the-future` needs no-such-feature"
    );
}

#[test]
fn refuses_code_that_is_none_or_lacks_a_kernel() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bad.atomc");
    let message = |manifest, code: &[u8]| {
        atomc_artifact::write(&path, &manifest, &[code.to_vec()]).unwrap();
        let artifact = Artifact::open(&path).unwrap();
        DeviceChoice::default().open(&artifact, 1).err().unwrap().to_string()
    };
    let text = message(toy::manifest(), b"not a shared object");
    assert!(text.starts_with("cannot load the code of variant `plain`: "), "{text}");
    let mut renamed = toy::manifest();
    renamed.targets[0].kernels[2].symbol = "tail".into();
    let code = Artifact::open(toy::path()).unwrap().section(1).unwrap().to_vec();
    assert_eq!(message(renamed, &code), "cannot load the code of variant `plain`: it has no kernel `tail`");
    let mut elsewhere = toy::manifest();
    elsewhere.targets[0].name = "gfx942".into();
    assert_eq!(message(elsewhere, &code), "the artifact has no code for target `host`; it has: gfx942");
}

/// Two libraries at once, and one after another: each must be its own.
#[test]
fn libraries_are_not_mistaken_for_each_other() {
    let load = || {
        let artifact = Artifact::open(toy::path()).unwrap();
        let target = &artifact.manifest().targets[0];
        // SAFETY: the toy's kernels have the right signature.
        unsafe { Code::load(artifact.section(1).unwrap(), &target.variants[1], &target.kernels) }.unwrap()
    };
    let (a, b) = (load(), load());
    assert_ne!(a.kernels[0] as usize, b.kernels[0] as usize);
    drop(a);
    let c = load();
    assert_ne!(c.kernels[0] as usize, b.kernels[0] as usize);
}

#[test]
fn opens_by_choice() {
    let artifact = Artifact::open(toy::path()).unwrap();
    let device = "host:plain".parse::<DeviceChoice>().unwrap().open(&artifact, 3);
    assert_eq!(device.unwrap().pool().threads(), 3);
}
