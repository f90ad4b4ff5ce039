//! Licences, versions and sources of all dependencies, by the rules of `deny.toml`, which
//! `cargo deny` reads too.
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// As Cargo names it, whatever mirror a machine takes its packages from.
const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

fn packages() -> Vec<Value> {
    let args = ["metadata", "--locked", "--format-version", "1"];
    let out = Command::new(env!("CARGO")).args(args).current_dir(env!("CARGO_MANIFEST_DIR")).output();
    let out = out.expect("cargo runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let metadata: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    metadata["packages"].as_array().expect("packages").clone()
}

fn rules() -> toml::Table {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deny.toml");
    std::fs::read_to_string(path).expect("deny.toml").parse().expect("TOML")
}

fn text<'a>(package: &'a Value, field: &str) -> &'a str {
    package[field].as_str().unwrap_or_default()
}

/// Whether a licence expression (SPDX, or with a slash for OR, as old packages have it) can be met.
fn is_allowed(expression: &str, allowed: &BTreeSet<&str>) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    let met = any(&words, &mut at, allowed);
    met && at == words.len()
}

fn any(words: &[&str], at: &mut usize, allowed: &BTreeSet<&str>) -> bool {
    let mut met = all(words, at, allowed);
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        met |= all(words, at, allowed);
    }
    met
}

fn all(words: &[&str], at: &mut usize, allowed: &BTreeSet<&str>) -> bool {
    let mut met = one(words, at, allowed);
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        met &= one(words, at, allowed);
    }
    met
}

fn one(words: &[&str], at: &mut usize, allowed: &BTreeSet<&str>) -> bool {
    let Some(&word) = words.get(*at) else { return false };
    *at += 1;
    if word == "(" {
        let met = any(words, at, allowed);
        *at += 1;
        return met;
    }
    if words.get(*at) != Some(&"WITH") {
        return allowed.contains(word);
    }
    let exception = words.get(*at + 1).copied().unwrap_or_default();
    *at += 2;
    allowed.contains(format!("{word} WITH {exception}").as_str())
}

#[test]
fn licences_are_read() {
    let allowed = BTreeSet::from(["MIT", "Unicode-3.0", "Apache-2.0 WITH LLVM-exception"]);
    for good in ["MIT", "GPL-3.0/MIT", "(MIT OR GPL-3.0) AND Unicode-3.0", "Apache-2.0 WITH LLVM-exception OR GPL-3.0"]
    {
        assert!(is_allowed(good, &allowed), "{good}");
    }
    for bad in ["", "GPL-3.0", "MIT AND GPL-3.0", "(MIT OR GPL-3.0) AND GPL-3.0", "Apache-2.0", "MIT MIT"] {
        assert!(!is_allowed(bad, &allowed), "{bad}");
    }
}

#[test]
fn licences() {
    let (rules, packages) = (rules(), packages());
    let allowed = rules["licenses"]["allow"].as_array().expect("a list");
    let allowed: BTreeSet<&str> = allowed.iter().filter_map(toml::Value::as_str).collect();
    let strangers: Vec<String> = packages
        .iter()
        .filter(|package| !is_allowed(text(package, "license"), &allowed))
        .map(|package| format!("{}: {}", text(package, "name"), package["license"]))
        .collect();
    assert!(strangers.is_empty(), "licences that deny.toml does not allow:\n{}", strangers.join("\n"));
}

#[test]
fn versions() {
    let (rules, packages) = (rules(), packages());
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in &packages {
        versions.entry(text(package, "name")).or_default().insert(text(package, "version"));
    }
    let skipped = rules["bans"]["skip"].as_array().expect("a list");
    for skip in skipped.iter().map(|entry| entry["crate"].as_str().expect("a name")) {
        let (name, old) = skip.split_once('@').expect("a version");
        let of = versions.get_mut(name).unwrap_or_else(|| panic!("deny.toml skips {skip}, which nothing uses"));
        let before = of.len();
        of.retain(|version| !version.strip_prefix(old).is_some_and(|rest| rest.starts_with('.')));
        assert!(of.len() < before && !of.is_empty(), "deny.toml skips {skip}, which is no second version");
    }
    versions.retain(|_, of| of.len() > 1);
    assert!(versions.is_empty(), "several versions of a package, which deny.toml does not name: {versions:?}");
}

#[test]
fn sources() {
    for package in packages() {
        let source = package["source"].as_str();
        assert!(source.is_none_or(|source| source == CRATES_IO), "{} is from {source:?}", text(&package, "name"));
    }
}
