//! The container file, which no test builds: what it says is held to what tests run.
use std::path::Path;

fn read(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)).expect("a file of the tree")
}

/// The instructions of a container file, each in one line.
fn instructions(text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let joined = lines.join("\n").replace("\\\n", " ");
    joined.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).filter(|l| !l.is_empty()).collect()
}

#[test]
fn the_image_is_made_as_tests_install_the_package() {
    let all = instructions(&read("dist/vllm.Containerfile"));
    let kinds: Vec<&str> = all.iter().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(kinds, ["ARG", "FROM", "RUN", "RUN"], "{all:?}");

    // The release of vLLM that all tests run with.
    let tests = read("plugin/tests/run.sh");
    let releases = tests.split("[vllm]=\"").nth(1).expect("releases of vLLM");
    let first = releases.split([' ', '"']).next().expect("a release");
    assert_eq!(all[0], format!("ARG BASE=vllm/vllm-openai:v{first}"));
    assert_eq!(all[1], "FROM ${BASE}");

    // The folder that a wheel is made in, and the way it is installed.
    assert!(read("dist/build.sh").contains("${1:-target/dist}"));
    assert!(all[2].contains("source=target/dist,target=/dist "), "{}", all[2]);
    let install = tests.lines().find(|line| line.contains("uv pip install")).expect("tests install the wheel");
    for words in ["uv pip install", "--no-deps", "*.whl"] {
        assert!(all[2].contains(words) && install.contains(words), "{words}: {} {install}", all[2]);
    }

    // The entry point that it looks for at its end is that of the package.
    let package = read("plugin/pyproject.toml");
    let entries = package.split("[project.entry-points.\"vllm.general_plugins\"]").nth(1).expect("entry points");
    assert!(entries.trim_start().starts_with("atomc = "));
    assert!(all[3].contains("group='vllm.general_plugins', name='atomc'"), "{}", all[3]);
}
