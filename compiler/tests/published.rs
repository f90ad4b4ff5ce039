//! The fit of both frameworks with each published checkpoint (`tests/published`) and its maker's
//! own options.
#[allow(dead_code, reason = "each file of tests uses a part of it")]
mod common;

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use common::Bench;

/// A release: its name, its `config.json`, and the makers' options for vLLM and SGLang.
struct Release {
    name: String,
    config: String,
    options: [Vec<String>; 2],
}

impl Release {
    fn read(path: &Path) -> Release {
        let text = std::fs::read_to_string(path).expect("a text");
        let (head, rest) = text.split_once("\nconfig.json\n").expect("a configuration");
        let (config, _) = rest.split_once("\ntensors\n").expect("tensors");
        let options = ["vllm:", "sglang:"].map(|field| {
            let line = head.lines().find_map(|line| line.strip_prefix(field)).expect("options");
            line.split_whitespace().map(|word| word.trim_matches('\'').to_owned()).collect()
        });
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        Release { name, config: config.to_owned(), options }
    }

    fn all() -> Vec<Release> {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/published");
        let files = std::fs::read_dir(dir).expect("a folder").map(|entry| entry.expect("an entry").path());
        let mut files: Vec<_> = files.filter(|path| path.extension().is_some_and(|ext| ext == "txt")).collect();
        files.sort();
        files.iter().map(|path| Release::read(path)).collect()
    }
}

#[test]
fn frameworks_run_published_checkpoints() {
    let (all, next, bench) = (Release::all(), AtomicUsize::new(0), Bench::empty());
    for Release { name, config, .. } in &all {
        bench.write(&format!("{name}/config.json"), config);
    }
    let refused = Mutex::new(vec![]);
    let check = |release: &Release, framework: &str, options: &[String]| {
        let name = release.name.as_str();
        let mut words = vec!["check", "--for", framework, name];
        words.extend(options.iter().map(String::as_str));
        let out = bench.run(&words);
        if !out.status.success() {
            let text = String::from_utf8_lossy(&out.stderr).lines().next().unwrap_or_default().to_owned();
            refused.lock().expect("no thread failed").push(format!("{name}, {framework}: {text}"));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(release) = all.get(next.fetch_add(1, Relaxed)) {
                    let frameworks = ["vllm", "sglang"].into_iter().zip(&release.options);
                    frameworks.for_each(|(framework, options)| check(release, framework, options));
                }
            });
        }
    });
    let mut refused = refused.into_inner().expect("no thread failed");
    refused.sort();
    insta::assert_snapshot!(refused.join("\n"));
}
