//! Which crate may use which. The runtime must stay free of the compiler: no LLVM, no graph IR.
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// Every arrow that exists, tests aside. Adding one is a decision: change ARCHITECTURE.md with it.
const ARROWS: &[(&str, &[&str])] = &[
    (
        "atomc",
        &[
            "atomc-artifact",
            "atomc-config",
            "atomc-emulator",
            "atomc-ir",
            "atomc-passes",
            "atomc-runtime",
            "atomc-targets",
        ],
    ),
    ("atomc-artifact", &["atomc-dtype"]),
    ("atomc-c", &["atomc-runtime"]),
    ("atomc-config", &["atomc-dtype"]),
    ("atomc-dtype", &[]),
    ("atomc-emulator", &["atomc-artifact", "atomc-targets"]),
    ("atomc-fuzz", &["atomc-artifact", "atomc-config", "atomc-emulator", "atomc-ir", "atomc-runtime"]),
    ("atomc-hip", &["atomc-emulator"]),
    ("atomc-ir", &["atomc-config", "atomc-dtype"]),
    ("atomc-passes", &["atomc-ir"]),
    ("atomc-python", &["atomc-artifact", "atomc-config", "atomc-runtime"]),
    ("atomc-runtime", &["atomc-artifact"]),
    ("atomc-targets", &["atomc-artifact", "atomc-ir"]),
    ("atomc-tests", &["atomc", "atomc-artifact", "atomc-emulator", "atomc-ir", "atomc-targets"]),
];

/// What the runtime-only command line must not pull in, however indirectly. It has the graph IR,
/// for the reference interpreter of `atomc verify`.
const COMPILER_ONLY: &[&str] = &["atomc-emulator", "atomc-passes", "atomc-targets", "inkwell", "llvm-sys"];
/// What the runtime, which others link, must not pull in either.
const IR: &[&str] = &["atomc-ir", "petgraph"];

fn cargo(args: &[&str]) -> String {
    let out =
        Command::new(env!("CARGO")).args(args).current_dir(env!("CARGO_MANIFEST_DIR")).output().expect("cargo runs");
    assert!(out.status.success(), "cargo {}: {}", args.join(" "), String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).expect("UTF-8")
}

#[test]
fn crates_use_only_what_the_map_says() {
    let metadata: Value =
        serde_json::from_str(&cargo(&["metadata", "--no-deps", "--offline", "--format-version", "1"])).expect("JSON");
    let mut arrows: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for package in metadata["packages"].as_array().expect("packages") {
        let name = package["name"].as_str().expect("a name");
        let mut uses: Vec<&str> = Vec::new();
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            let other = dependency["name"].as_str().expect("a name");
            if dependency["kind"].is_null() && other.starts_with("atomc") {
                uses.push(other);
            }
        }
        uses.sort();
        arrows.insert(name, uses);
    }
    let wanted: BTreeMap<&str, Vec<&str>> = ARROWS.iter().map(|(name, uses)| (*name, uses.to_vec())).collect();
    assert_eq!(arrows, wanted);
}

#[test]
fn the_runtime_only_build_has_no_compiler() {
    let runtime = [COMPILER_ONLY, IR].concat();
    let builds: [(&[&str], &[&str]); 3] = [
        (&["-p", "atomc", "--no-default-features"], COMPILER_ONLY),
        (&["-p", "atomc-runtime"], &runtime),
        (&["-p", "atomc-python"], &runtime),
    ];
    for (package, banned) in builds {
        let args = [&["tree", "--offline", "--edges", "normal", "--prefix", "none"], package].concat();
        let tree = cargo(&args);
        let found: Vec<&str> = tree.lines().filter(|l| banned.iter().any(|c| l.split(' ').next() == Some(c))).collect();
        assert!(found.is_empty(), "{} pulls in {found:?}", package.join(" "));
        assert!(tree.contains("atomc-artifact"), "an empty tree proves nothing");
    }
}

/// Rooms of the GPUs' schedules, from the ground up: a file uses its own room and those before it.
const ROOMS: &[&str] =
    &["machine", "launch", "pack", "step_inputs", "experts", "rowwise", "recurrent", "gemm", "attention"];

#[test]
fn rooms_of_the_gpus_schedules_use_no_room_above() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../targets/src/simt");
    let height = |name: &str| ROOMS.iter().position(|room| *room == name);
    let (mut files, mut folders) = (0, vec![root.clone()]);
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
            let below = path.strip_prefix(&root).expect("below the root").with_extension("");
            let room = below.components().next().and_then(|part| part.as_os_str().to_str()).expect("a name");
            if room == "mod" {
                continue;
            }
            let room = height(room).unwrap_or_else(|| panic!("{} is in no room of the list", path.display()));
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            files += 1;
            let text = std::fs::read_to_string(&path).expect("a source file");
            for (_, used) in text.match_indices("crate::simt::").map(|(at, name)| text[at..].split_at(name.len())) {
                let used = used.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
                assert!(height(used).is_some_and(|used| used <= room), "{} uses {used}", path.display());
            }
        }
    }
    assert!(files > 20, "{files} files");
}
