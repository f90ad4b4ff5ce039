//! Every path and every link in a document of the tree leads to something that exists, and no line
//! of a document or a comment is too long to read.
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Folders that hold no sources: build outputs, version control, virtual environments.
const SKIPPED: &[&str] = &["target", ".git", ".venv", "node_modules"];
/// What commands of the documents make, and version control ignores.
const GENERATED: &[&str] = &["tests/triton/all", "tests/triton/peers"];
/// Endings by which a name in a document is taken for a source file, wherever it lies.
const SOURCES: &[&str] = &["rs", "py", "sh"];

/// All files and folders of the tree, relative to its root.
fn tree(root: &Path) -> BTreeSet<PathBuf> {
    let (mut found, mut folders) = (BTreeSet::new(), vec![PathBuf::new()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(root.join(&folder)).expect("a folder of the tree") {
            let entry = entry.expect("an entry");
            let path = folder.join(entry.file_name());
            if SKIPPED.iter().any(|name| entry.file_name() == *name) {
                continue;
            }
            if entry.file_type().expect("a type").is_dir() {
                folders.push(path.clone());
            }
            found.insert(path);
        }
    }
    found
}

/// `a/{b,c}.rs` as `a/b.rs` and `a/c.rs`.
fn expand(word: &str) -> Vec<String> {
    let (Some(open), Some(close)) = (word.find('{'), word.find('}')) else { return vec![word.to_owned()] };
    if close < open {
        return vec![word.to_owned()];
    }
    let (head, tail) = (&word[..open], &word[close + 1..]);
    word[open + 1..close].split(',').map(|middle| format!("{head}{middle}{tail}")).collect()
}

/// The words of a document that stand in code: spans between backticks, and lines that are indented
/// or fenced.
fn code_words(text: &str) -> Vec<(usize, String)> {
    let (mut words, mut fenced) = (Vec::new(), false);
    for (number, line) in text.lines().enumerate() {
        if line.starts_with("```") {
            fenced = !fenced;
            continue;
        }
        let whole = fenced || line.starts_with("    ");
        let spans: Vec<&str> = if whole { vec![line] } else { line.split('`').skip(1).step_by(2).collect() };
        let split = spans.iter().flat_map(|span| span.split([' ', '(', ')', ';', '"', '\'', '=']));
        for word in split.map(|word| word.trim_end_matches([',', '.', ':', '/'])).filter(|word| !word.is_empty()) {
            words.extend(expand(word).into_iter().map(|word| (number + 1, word)));
        }
    }
    words
}

/// What a word of a document names in the tree, if it names a path there at all.
fn is_missing(word: &str, tree: &BTreeSet<PathBuf>) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
    let word = word.split(':').next().unwrap_or(word);
    if word.is_empty() || word.starts_with('/') || word.starts_with("..") || !word.chars().all(plain) {
        return false;
    }
    let path = Path::new(word);
    let first = path.components().next().expect("the word is not empty");
    if word.contains('/') && tree.contains(Path::new(&first)) {
        return !tree.contains(path) && !GENERATED.contains(&word);
    }
    let source = path.extension().is_some_and(|end| SOURCES.iter().any(|known| end == *known));
    source && !tree.iter().any(|file| file.ends_with(path))
}

/// The targets of `[text](target)`, web addresses aside.
fn links(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let ends = line.match_indices("](").map(|(at, mark)| &line[at + mark.len()..]);
        let targets = ends.filter_map(|rest| rest.split_once(')')).map(|(target, _)| target);
        found.extend(targets.filter(|target| !target.contains("://")).map(|target| (number + 1, target)));
    }
    found
}

/// A heading as GitHub makes its anchor.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

fn has_anchor(text: &str, wanted: &str) -> bool {
    text.lines().filter(|line| line.starts_with('#')).any(|line| anchor(line.trim_start_matches('#').trim()) == wanted)
}

fn is_broken(link: &str, document: &Path) -> bool {
    let (file, heading) = link.split_once('#').map_or((link, None), |(file, heading)| (file, Some(heading)));
    let folder = document.parent().expect("a document lies in a folder");
    let target = if file.is_empty() { document.to_owned() } else { folder.join(file) };
    let text = || std::fs::read_to_string(&target).unwrap_or_default();
    !target.exists() || heading.is_some_and(|heading| !has_anchor(&text(), heading))
}

/// The faults of a document, a line each.
fn faults(root: &Path, document: &Path, tree: &BTreeSet<PathBuf>) -> Vec<String> {
    let text = std::fs::read_to_string(root.join(document)).expect("a document");
    let paths = code_words(&text).into_iter().filter(|(_, word)| is_missing(word, tree));
    let mut found: Vec<String> =
        paths.map(|(line, word)| format!("{}:{line}: `{word}` does not exist", document.display())).collect();
    for (line, link) in links(&text) {
        if is_broken(link, &root.join(document)) {
            found.push(format!("{}:{line}: the link to {link} leads nowhere", document.display()));
        }
    }
    found
}

#[test]
fn every_path_in_a_document_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tree's root");
    let tree = tree(root);
    let documents: Vec<&PathBuf> = tree.iter().filter(|file| file.extension().is_some_and(|end| end == "md")).collect();
    assert!(documents.len() > 10, "{documents:?}");
    let found: Vec<String> = documents.iter().flat_map(|document| faults(root, document, &tree)).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn faults_of_a_document_are_found() {
    let tree: BTreeSet<PathBuf> =
        ["docs", "docs/a.md", "ir", "ir/src", "ir/src/ops.rs"].iter().map(PathBuf::from).collect();
    for word in ["docs/b.md", "ir/src/op.rs", "gone.rs", "src/gone.rs", "ir/src/gone.rs:12"] {
        assert!(is_missing(word, &tree), "{word}");
    }
    for word in ["docs/a.md", "ops.rs", "src/ops.rs", "ir/src/ops.rs:12", "config.json", "models/x.json", "/dev/null"] {
        assert!(!is_missing(word, &tree), "{word}");
    }
    assert_eq!(expand("a/{b,c}.rs"), ["a/b.rs", "a/c.rs"]);
    assert_eq!(
        code_words("see `x.rs`, y.rs\n    bash z.sh\n"),
        [(1, "x.rs".into()), (2, "bash".into()), (2, "z.sh".into())]
    );
    assert_eq!(anchor("Inside vLLM: what works"), "inside-vllm-what-works");
}

/// The schedules of a table of docs/kernels.md below a heading: name and family, in order.
fn schedules_below<'t>(text: &'t str, heading: &str) -> Vec<(&'t str, &'t str)> {
    let section = text.split("\n## ").find(|section| section.starts_with(heading)).expect("a heading");
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| {
        let mut cells = row.split('|').map(str::trim).skip(1);
        let [name, family] = std::array::from_fn(|_| cells.next().expect("a cell"));
        (name.trim_matches('`'), family)
    })
    .collect()
}

#[test]
fn the_table_of_kernels_has_every_schedule_in_the_order_of_its_list() {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/kernels.md"))
        .expect("the document");
    for (heading, arch) in [("GPUs", "gfx942"), ("CPUs", "x86-64-v3")] {
        let arch = atomc_targets::rows().iter().find(|row| row.name == arch).expect("a row");
        let all = atomc_targets::schedules(arch).iter().map(|s| (s.name, s.family.name()));
        assert_eq!(schedules_below(&text, heading), all.collect::<Vec<_>>(), "{heading}");
    }
}

#[test]
fn the_page_of_chips_has_every_target() {
    let text =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/chips.md")).expect("the document");
    for row in atomc_targets::rows() {
        assert!(text.contains(&format!("`{}`", row.name)), "{}", row.name);
    }
}

#[test]
fn the_table_of_contents_has_every_document() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let text = std::fs::read_to_string(docs.join("README.md")).expect("the document");
    let files = std::fs::read_dir(docs).expect("a folder").map(|entry| entry.expect("an entry").file_name());
    let names = files.map(|name| name.into_string().expect("a plain name")).filter(|name| name != "README.md");
    let missing: Vec<String> =
        names.filter(|name| name.ends_with(".md") && !text.contains(&format!("({name})"))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn the_page_of_models_has_every_published_checkpoint() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(root.join("../docs/models.md")).expect("the document");
    let files = std::fs::read_dir(root.join("published")).expect("a folder").map(|entry| entry.expect("an entry"));
    let names = files.map(|file| file.file_name().into_string().expect("a plain name"));
    let missing: Vec<String> =
        names.filter(|name| name.ends_with(".txt") && !text.contains(&format!("/{name})"))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// Columns of a line of a document, or of a comment.
const WIDTH: usize = 100;

/// What begins a comment that has a line of its own, in files with this ending; none in documents.
fn marker(file: &Path) -> Option<Option<&'static str>> {
    match file.extension()?.to_str()? {
        "rs" | "c" => Some(Some("//")),
        "py" | "sh" | "toml" => Some(Some("#")),
        "md" => Some(None),
        _ => None,
    }
}

/// Whether text could continue in the next line: it has a space outside of code spans and links.
fn can_break(text: &str) -> bool {
    let item = text.trim_start();
    let item = item.trim_start_matches(|c: char| c.is_ascii_digit()).trim_start_matches(['-', '*', '.']).trim();
    let (mut in_code, mut depth) = (false, 0);
    item.chars().any(|c| {
        match c {
            '`' => in_code = !in_code,
            '[' if !in_code => depth += 1,
            ']' if !in_code => depth -= 1,
            _ => {}
        }
        c == ' ' && !in_code && depth <= 0
    })
}

/// The numbers of lines that are too long. Tables, headings, rules and code stay as they are.
fn long_lines(text: &str, marker: Option<&str>) -> Vec<usize> {
    let (mut found, mut fenced) = (Vec::new(), false);
    for (number, line) in text.lines().enumerate() {
        let body = match marker {
            None => Some(line),
            Some(mark) => line.trim_start().strip_prefix(mark).map(|rest| rest.trim_start_matches(['/', '!'])),
        };
        let Some(body) = body else {
            fenced = false;
            continue;
        };
        let body = if marker.is_some() { body.strip_prefix(' ').unwrap_or(body) } else { body };
        if body.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        let marked = body.trim_start().starts_with(['|', '#']) || body.starts_with("---");
        let is_fixed = fenced || marked || body.starts_with("    ");
        if line.chars().count() > WIDTH && !is_fixed && can_break(body) {
            found.push(number + 1);
        }
    }
    found
}

#[test]
fn no_line_of_a_document_or_a_comment_is_too_long() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tree's root");
    let mut found = Vec::new();
    for file in tree(root) {
        let Some(marker) = marker(&file).filter(|_| root.join(&file).is_file()) else { continue };
        let text = std::fs::read_to_string(root.join(&file)).expect("a file of text");
        let lines = long_lines(&text, marker).into_iter();
        found.extend(lines.map(|line| format!("{}:{line}: longer than {WIDTH} columns", file.display())));
    }
    assert!(found.is_empty(), "{}\n`python3 tests/wrap.py` wraps them", found.join("\n"));
}

#[test]
fn long_lines_are_found() {
    let words = "word ".repeat(20);
    let code = format!("`{words}`");
    for text in [format!("{words}."), format!("- {words}."), format!("see {code}"), format!("[a]({code}) b c {words}")]
    {
        assert_eq!(long_lines(&text, None), [1], "{text}");
        assert_eq!(long_lines(&format!("    /// {text}"), Some("//")), [1], "{text}");
    }
    let link = format!("[{words}](x.md)");
    for text in [format!("| {words} |"), format!("    {words}."), format!("- {code}"), link, format!("## {words}.")] {
        assert_eq!(long_lines(&text, None), [0; 0], "{text}");
        assert_eq!(long_lines(&format!("    /// {text}"), Some("//")), [0; 0], "{text}");
    }
    assert_eq!(long_lines(&format!("```\n{words}.\n```\n{words}."), None), [4]);
    assert_eq!(long_lines(&format!("let x = \"{words}.\"; // {words}"), Some("//")), [0; 0]);
}
