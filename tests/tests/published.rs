//! Published checkpoints, by their configurations and the names, types and shapes of their tensors
//! (`tests/published/README.md`): weight plans read exactly these tensors, of one rank and of
//! several.
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use atomc::driver::{self, Options};
use atomc::frontend::Config;
use atomc_config::{Experts, Vision};
use atomc_ir::{Arch, DType};
use atomc_passes::BucketOptions;
use atomc_runtime::checkpoint::{CheckpointError, Float, Source, Tensor};
use atomc_runtime::weights::{Fit, Rank, fit};

/// A release as its file describes it.
struct Release {
    name: String,
    config: Config,
    tensors: Headers,
}

/// Tensors by name: their types and shapes.
#[derive(Default)]
struct Headers(BTreeMap<String, (Float, Vec<usize>)>);

impl Source for Headers {
    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor<'_>, CheckpointError> {
        let missing = || CheckpointError::Missing { names: vec![name.to_owned()] };
        let (float, found) = self.0.get(name).ok_or_else(missing)?;
        if found != shape {
            let (name, found, want) = (name.to_owned(), found.clone(), shape.to_vec());
            return Err(CheckpointError::Shape { name, found, want });
        }
        Ok(Tensor::Bytes { float: *float, bytes: &[] })
    }

    fn names(&self) -> Vec<&str> {
        self.0.keys().map(String::as_str).collect()
    }
}

/// The type that safetensors has by a name.
fn float(name: &str) -> Float {
    match name {
        "BF16" => Float::BF16,
        "F16" => Float::F16,
        "F32" => Float::F32,
        "I64" => Float::I64,
        "I32" => Float::Code(DType::I32),
        "I8" => Float::Code(DType::I8),
        "U8" => Float::Code(DType::U8),
        "F8_E4M3" => Float::Code(DType::F8E4M3),
        other => panic!("a type `{other}`"),
    }
}

/// The names of a pattern: braces hold inclusive ranges and words.
fn expand(pattern: &str) -> Vec<String> {
    let Some((before, rest)) = pattern.split_once('{') else { return vec![pattern.to_owned()] };
    let (inside, behind) = rest.split_once('}').expect("a brace is closed");
    let choices = inside.split(',').flat_map(|choice| match choice.split_once("..") {
        Some((first, last)) => {
            let [first, last] = [first, last].map(|text| text.trim().parse::<usize>().expect("a number"));
            (first..=last).map(|number| number.to_string()).collect()
        }
        None => vec![choice.trim().to_owned()],
    });
    let behind = expand(behind);
    choices.flat_map(|choice| behind.iter().map(move |behind| format!("{before}{choice}{behind}"))).collect()
}

impl Release {
    fn read(path: &Path) -> Release {
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        let text = std::fs::read_to_string(path).expect("a text");
        let (_, rest) = text.split_once("\nconfig.json\n").expect("a configuration");
        let (config, tensors) = rest.split_once("\ntensors\n").expect("tensors");
        let config = Config::parse(config, None).unwrap_or_else(|fault| panic!("{name}: {fault}"));
        let mut headers = Headers::default();
        for line in tensors.lines().filter(|line| !line.trim().is_empty()) {
            let (pattern, rest) = line.split_once(' ').expect("a pattern and a type");
            let (ty, shape) = rest.trim().split_once(' ').expect("a type and a shape");
            let sizes = shape.trim().trim_matches(['[', ']']).split(',').map(str::trim).filter(|size| !size.is_empty());
            let shape: Vec<usize> = sizes.map(|size| size.parse().expect("a size")).collect();
            headers.0.extend(expand(pattern).into_iter().map(|name| (name, (float(ty), shape.clone()))));
        }
        Release { name, config, tensors: headers }
    }

    fn all() -> Vec<Release> {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("published");
        let files = std::fs::read_dir(dir).expect("a folder").map(|entry| entry.expect("an entry").path());
        let mut files: Vec<_> = files.filter(|path| path.extension().is_some_and(|ext| ext == "txt")).collect();
        files.sort();
        files.iter().map(|path| Release::read(path)).collect()
    }

    /// The parts of the checkpoint that are read by the plan of `ranks` ranks, which share
    /// projections or hold whole experts.
    fn fit(&self, arch: &Arch, (ranks, expert_ranks): (usize, usize)) -> Result<Fit, String> {
        let options = Options { ranks, expert_ranks, buckets: small(), ..Options::default() };
        let weights = driver::weights(&self.config, &options, arch).map_err(|fault| fault.to_string())?;
        let (names, of) = (driver::tensor_names(&self.config, None), ranks.max(expert_ranks));
        let rank = |number| fit(&weights, &names, Rank { number, of }, &self.tensors);
        let all: Vec<Fit> = (0..of).map(rank).collect::<Result<_, _>>().map_err(|error| error.to_string())?;
        Ok(all[0].clone())
    }
}

/// Plans differ in their kernels, and not in their weights.
fn small() -> BucketOptions {
    BucketOptions { decode: vec![1], each: 1, tokens: 32, rows: 1 }
}

fn arch(name: &str) -> &'static Arch {
    &atomc_targets::variants(name).expect("a target")[0]
}

/// Works a line out for each release, on as many threads as there are cores.
fn each(line: impl Fn(&Release) -> String + Sync) -> String {
    let (all, next) = (Release::all(), AtomicUsize::new(0));
    assert!(all.len() >= 24, "{} releases", all.len());
    let lines = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(release) = all.get(next.fetch_add(1, Relaxed)) {
                    let start = Instant::now();
                    let line = format!("{}: {}", release.name, line(release));
                    println!("{line}, {:.1} s", start.elapsed().as_secs_f64());
                    lines.lock().expect("no thread failed").insert(&release.name, line);
                }
            });
        }
    });
    lines.into_inner().expect("no thread failed").into_values().collect::<Vec<_>>().join("\n")
}

#[test]
fn weights_are_made_of_exactly_the_tensors() {
    let lines = each(|release| {
        let fits = ["host", "gfx942", "gfx950"].map(|target| release.fit(arch(target), (1, 1)));
        let [Ok(host), Ok(one), Ok(other)] = fits else { return format!("{fits:?}") };
        if host != one || host != other {
            return format!("targets read other tensors: {host:?}, {one:?}, {other:?}");
        }
        let ignored: usize = host.ignored.values().sum();
        assert_eq!(host.read + ignored, release.tensors.0.len(), "{}", release.name);
        let parts = host.ignored.iter().map(|(part, count)| format!(", {count} of the {part} are not read"));
        format!("{} tensors{}", host.read, parts.collect::<String>())
    });
    insta::assert_snapshot!(lines);
}

#[test]
fn towers_are_made_of_exactly_the_tensors() {
    let mut seen = 0;
    for release in Release::all().iter().filter(|release| release.config.seeing.is_some()) {
        let vision = Vision::of(&release.config).unwrap_or_else(|fault| panic!("{}: {fault}", release.name));
        for target in ["host", "gfx942", "gfx1201"] {
            let made = driver::tower_weights(&release.config, &vision, arch(target));
            let (weights, names) = made.unwrap_or_else(|fault| panic!("{} on {target}: {fault}", release.name));
            let fit = fit(&weights, &names, Rank { number: 0, of: 1 }, &release.tensors).expect("they fit");
            let begins =
                [Some(vision.style.path), vision.style.projector].map(|path| path.map(|path| format!("{path}.")));
            let is_own = |name: &&&str| begins.iter().flatten().any(|begins| name.starts_with(begins));
            let own = release.tensors.names().iter().filter(is_own).count();
            assert_eq!(fit.read, own, "{} on {target}", release.name);
            assert_eq!(fit.read + fit.ignored.values().sum::<usize>(), release.tensors.0.len(), "{}", release.name);
        }
        seen += 1;
    }
    assert!(seen >= 6, "{seen} releases with towers");
}

#[test]
fn ranks_share_releases_out() {
    let lines = each(|release| {
        let whole = release.fit(arch("gfx942"), (1, 1)).map(|fit| fit.read);
        let fits = |(ranks, expert_ranks): (usize, usize)| match release.fit(arch("gfx942"), (ranks, expert_ranks)) {
            // Ranks may have parts of different tensors, and all together read what one does.
            Ok(fit) if Ok(fit.read) == whole => "yes".to_owned(),
            Ok(fit) => format!("{} tensors", fit.read),
            Err(fault) => fault,
        };
        let shared = [2, 4, 8].map(|ranks| fits((ranks, 1))).join(", ");
        let has_experts = release.config.layers.iter().any(|layer| layer.half::<Experts>().is_some());
        let experts = if has_experts { format!("; --tp 8 --ep 8: {}", fits((8, 8))) } else { String::new() };
        format!("--tp 2, 4, 8: {shared}{experts}")
    });
    insta::assert_snapshot!(lines);
}

/// An artifact for the host and two chips: `cargo test -p atomc-tests --test published -- --ignored
/// --nocapture`.
#[test]
#[ignore = "takes a quarter of an hour"]
fn releases_compile() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let failed = each(|release| {
        let options =
            Options { targets: ["host", "gfx942", "gfx950"].map(str::to_owned).to_vec(), ..Options::default() };
        match driver::compile(&release.config, &options, &mut |_, _, _| ()) {
            Err(fault) => format!("failed: {fault}"),
            Ok(compiled) => {
                let path = dir.path().join(&release.name);
                compiled.write(&path).expect("an artifact");
                let bytes = std::fs::metadata(&path).expect("a file").len();
                format!("{:.2} MB", bytes as f64 / 1e6)
            }
        }
    });
    assert!(!failed.contains("failed"), "{failed}");
}
