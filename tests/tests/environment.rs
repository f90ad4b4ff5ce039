//! Every variable that sources read is one that the rules of the environment know: what is not, is
//! refused by `atomc check`, `atomc doctor` and the frameworks' shims.
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use atomc_config::vllm::settings::{DEVELOPERS, VARIABLES};

/// Folders that hold no sources.
const SKIPPED: &[&str] = &["target", ".git", ".venv", "node_modules", "docs"];
/// Names in quotes that are no variables of an environment when atomc runs: what build scripts tell
/// sources (`env!`), a guard of the header for C, and a misspelt name that tests set.
const OTHERS: &[&str] = &["ATOMC_HOST", "ATOMC_H", "ATOMC_STRIKT"];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder of the tree") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.is_dir() && !path.is_symlink() && !SKIPPED.contains(&name) {
            sources(&path, found);
        } else if [".rs", ".py", ".sh"].iter().any(|end| name.ends_with(end)) || path.ends_with(".ci/run") {
            found.push(path);
        }
    }
}

/// Names in a text that follow one of these characters.
fn names(text: &str, behind: &[char]) -> Vec<String> {
    let starts = text.match_indices("ATOMC_").filter(|(at, _)| text[..*at].ends_with(behind));
    let name = |at: usize| text[at..].chars().take_while(|c| c.is_ascii_uppercase() || *c == '_').collect::<String>();
    starts.map(|(at, _)| name(at)).filter(|name| name != "ATOMC_").collect()
}

#[test]
fn variables_that_are_read_are_known() {
    let mut files = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join(".."), &mut files);
    let known: BTreeSet<&str> =
        VARIABLES.iter().map(|variable| variable.name).chain(DEVELOPERS.iter().copied()).collect();
    let mut read = BTreeSet::new();
    for path in files {
        let is_shell = !path.extension().is_some_and(|end| end == "rs" || end == "py");
        let behind: &[char] = if is_shell { &['$', '{'] } else { &['"', '\''] };
        for name in names(&std::fs::read_to_string(&path).expect("text"), behind) {
            assert!(known.contains(&name[..]) || OTHERS.contains(&&name[..]), "{}: {name}", path.display());
            read.insert(name);
        }
    }
    let idle: Vec<&&str> = known.iter().filter(|name| !read.contains(**name)).collect();
    assert!(idle.is_empty(), "nothing reads {idle:?}");
}
