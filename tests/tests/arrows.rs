//! Which crate may use which. The runtime must stay free of the compiler: no LLVM, no graph IR.
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
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
            "atomc-gguf",
            "atomc-ir",
            "atomc-passes",
            "atomc-runtime",
            "atomc-server",
            "atomc-targets",
        ],
    ),
    ("atomc-aiter", &["atomc-emulator"]),
    ("atomc-artifact", &["atomc-dtype"]),
    ("atomc-c", &["atomc-runtime"]),
    ("atomc-config", &["atomc-dtype"]),
    ("atomc-dtype", &[]),
    ("atomc-emulator", &["atomc-artifact", "atomc-targets"]),
    (
        "atomc-fuzz",
        &[
            "atomc-artifact",
            "atomc-config",
            "atomc-emulator",
            "atomc-gguf",
            "atomc-ir",
            "atomc-runtime",
            "atomc-server",
        ],
    ),
    ("atomc-gguf", &["atomc-artifact"]),
    ("atomc-hip", &["atomc-emulator"]),
    ("atomc-ir", &["atomc-config", "atomc-dtype"]),
    ("atomc-passes", &["atomc-ir"]),
    ("atomc-python", &["atomc-artifact", "atomc-config", "atomc-runtime"]),
    ("atomc-runtime", &["atomc-artifact"]),
    ("atomc-server", &["atomc-artifact", "atomc-runtime"]),
    ("atomc-targets", &["atomc-artifact", "atomc-ir"]),
    ("atomc-tests", &["atomc", "atomc-artifact", "atomc-emulator", "atomc-ir", "atomc-runtime", "atomc-targets"]),
];

/// What the runtime-only command line must not pull in, however indirectly. It has the graph IR,
/// for the reference interpreter of `atomc verify`.
const COMPILER_ONLY: &[&str] = &["atomc-emulator", "atomc-passes", "atomc-targets", "inkwell", "llvm-sys"];
/// What the runtime, which others link, must not pull in either.
const IR: &[&str] = &["atomc-ir", "petgraph", "tokio"];

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
        (&["-p", "atomc", "--no-default-features", "--features", "server"], COMPILER_ONLY),
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

/// Rooms of the targets, from the ground up: a file uses its own room and those before it.
const TARGETS: &[&str] = &[
    "tuning",
    "spec",
    "arch",
    "llvm",
    "code",
    "math",
    "row",
    "argmax",
    "choice",
    "held",
    "cache",
    "kernel",
    "recurrent",
    "schedule",
    "contraction",
    "host",
    "simt",
    "select",
    "jobs",
    "link",
    "metadata",
    "disasm",
    "report",
    "steps",
    "ptx",
    "lib",
];

/// Rooms of the GPUs' schedules, in the same way.
const ROOMS: &[&str] = &[
    "machine",
    "keys",
    "launch",
    "pack",
    "step_inputs",
    "exchange",
    "experts",
    "rowwise",
    "recurrent",
    "sparse",
    "gemm",
    "attention",
];

/// The source files below a folder.
fn sources(root: &Path) -> Vec<PathBuf> {
    let (mut files, mut folders) = (vec![], vec![root.to_path_buf()]);
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    files
}

/// Names that begin paths below `from` in a text, tests and comments aside: of
/// `use from::{a::b, c}` these are `a` and `c`.
fn used<'t>(text: &'t str, from: &str) -> BTreeSet<&'t str> {
    let text = text.split("#[cfg(test)]").next().unwrap_or_default();
    let word = |text: &'t str| text.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
    let mut found = BTreeSet::new();
    for (at, _) in text.match_indices(from) {
        let rest = &text[at + from.len()..];
        let line = text[..at].rsplit('\n').next().unwrap_or_default();
        if line.trim_start().starts_with("//") {
            continue;
        }
        let Some(list) = rest.strip_prefix('{') else {
            found.insert(word(rest));
            continue;
        };
        let (mut depth, mut begin) = (0, 0);
        for (i, c) in list.char_indices() {
            match c {
                '{' => depth += 1,
                '}' if depth > 0 => depth -= 1,
                ',' | '}' if depth == 0 => {
                    found.insert(word(list[begin..i].trim()));
                    begin = i + 1;
                    if c == '}' {
                        break;
                    }
                }
                _ => {}
            }
        }
    }
    found.remove("");
    found
}

/// Every use of a room above, in the files below a folder that name each other with a path
/// beginning with `from`. Names that the top module re-exports, as `handed` lists them, belong to
/// the room that they come from.
fn arrows_up(root: &Path, from: &str, rooms: &[&str], handed: &BTreeMap<String, String>) -> Vec<String> {
    let height = |name: &str| rooms.iter().position(|room| *room == name);
    let mut up = vec![];
    let files = sources(root);
    assert!(files.len() > 20, "{} files", files.len());
    for path in files {
        let below = path.strip_prefix(root).expect("below the root").with_extension("");
        let room = below.components().next().and_then(|part| part.as_os_str().to_str()).expect("a name");
        if room == "mod" || below.ends_with("tests") {
            continue;
        }
        let own = height(room).unwrap_or_else(|| panic!("{} is in no room of the list", path.display()));
        let text = std::fs::read_to_string(&path).expect("a source file");
        for name in used(&text, from) {
            let used = handed.get(name).map_or(name, String::as_str);
            // A name in no room comes from another crate.
            if height(used).is_some_and(|used| used > own) {
                up.push(format!("{} uses {name}", below.display()));
            }
        }
    }
    up
}

/// The rooms that names come from which a crate's root hands on.
fn handed_on(root: &str) -> BTreeMap<String, String> {
    let uses = root.lines().filter_map(|line| line.strip_prefix("pub use ")?.strip_suffix(';')?.split_once("::"));
    let names = |(room, names): (&str, &str)| {
        let names: Vec<&str> = names.trim_matches(['{', '}']).split(", ").collect();
        names.into_iter().map(|name| (name.to_owned(), room.to_owned())).collect::<Vec<_>>()
    };
    uses.flat_map(names).collect()
}

#[test]
fn rooms_of_the_targets_use_no_room_above() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../targets/src");
    let handed = handed_on(&std::fs::read_to_string(root.join("lib.rs")).expect("the root"));
    assert_eq!(handed.get("KernelSpec").map(String::as_str), Some("spec"));
    assert_eq!(arrows_up(&root, "crate::", TARGETS, &handed), Vec::<String>::new());
}

#[test]
fn rooms_of_the_gpus_schedules_use_no_room_above() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../targets/src/simt");
    assert_eq!(arrows_up(&root, "crate::simt::", ROOMS, &BTreeMap::new()), Vec::<String>::new());
}

#[test]
fn uses_are_found_in_lists_and_not_in_comments() {
    let text = "use a::{b::{c, d}, e};\n// a::f\nlet g = a::h::i(a::j);\n#[cfg(test)]\nuse a::k;";
    assert_eq!(used(text, "a::").into_iter().collect::<Vec<_>>(), ["b", "e", "h", "j"]);
}
