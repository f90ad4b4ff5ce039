//! Frameworks: the releases that a Python has, and those that the package `atomc` was tested with.
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde::Deserialize;

use super::Finding;

/// The output of the module `atomc.packages`.
#[derive(Deserialize)]
struct Packages {
    python: String,
    /// The version of the package `atomc`.
    atomc: String,
    frameworks: Vec<Framework>,
}

#[derive(Deserialize)]
struct Framework {
    name: String,
    /// The version that is installed.
    version: Option<String>,
    /// The versions that the package `atomc` names as tested.
    tested: Vec<String>,
}

pub fn look(python: &Path) -> Vec<Finding> {
    match ask(python) {
        Ok(packages) => findings(&packages),
        Err(why) => {
            let help = "only frameworks need it: pip install the wheel, or name another with --python";
            vec![Finding::note("plugin", why, help)]
        }
    }
}

/// How long a Python may take: it imports no framework.
const TIME: Duration = Duration::from_secs(20);
/// Bytes of its output that are read, some hundred times the output of `atomc.packages`.
const MOST_BYTES: u64 = 64 << 10;
/// Between two looks at whether it has ended.
const PAUSE: Duration = Duration::from_millis(10);

/// The output of a command, if it ends in time. Output beyond the bytes that are read ends it.
fn output(mut command: Command, time: Duration) -> std::io::Result<Output> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (out, err) = (reader(child.stdout.take()), reader(child.stderr.take()));
    let status = wait(&mut child, time);
    // The readers end with the child's ends of the pipes.
    let read = |thread: std::thread::JoinHandle<Vec<u8>>| thread.join().unwrap_or_default();
    let status = status?;
    Ok(Output { status, stdout: read(out), stderr: read(err) })
}

fn reader(pipe: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // A part that cannot be read counts as empty.
        let _ = pipe.map(|pipe| pipe.take(MOST_BYTES).read_to_end(&mut bytes));
        bytes
    })
}

fn wait(child: &mut Child, time: Duration) -> std::io::Result<std::process::ExitStatus> {
    let start = Instant::now();
    loop {
        match child.try_wait()? {
            Some(status) => return Ok(status),
            None if start.elapsed() < time => std::thread::sleep(PAUSE),
            None => {
                child.kill()?;
                child.wait()?;
                return Err(std::io::Error::other(format!("gave no answer in {} s", time.as_secs())));
            }
        }
    }
}

fn ask(python: &Path) -> Result<Packages, String> {
    let failed = |why: &dyn std::fmt::Display| format!("{}: {why}", python.display());
    let mut command = Command::new(python);
    command.args(["-m", "atomc.packages"]);
    let output = output(command, TIME).map_err(|error| failed(&error))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(failed(&text.lines().last().unwrap_or("ended without a word")));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| failed(&error))
}

fn findings(packages: &Packages) -> Vec<Finding> {
    let Packages { python, atomc, frameworks } = packages;
    let ours = env!("CARGO_PKG_VERSION");
    let plugin = match atomc == ours {
        true => Finding::good("plugin", format!("atomc {atomc} for Python {python}")),
        false => {
            let text = format!("atomc {atomc} for Python {python}, and this program is {ours}");
            Finding::bad("plugin", text, "install the wheel of this release")
        }
    };
    std::iter::once(plugin).chain(frameworks.iter().filter_map(framework)).collect()
}

/// A framework, if it is installed. The text after a plus names a build of the same release.
fn framework(Framework { name, version, tested }: &Framework) -> Option<Finding> {
    let version = version.as_ref()?;
    let release = version.split('+').next().unwrap_or_default();
    if tested.iter().any(|known| known == release) {
        return Some(Finding::good(name, format!("{version}, a release that is tested")));
    }
    let text = format!("{version} is not among the releases that are tested: {}", tested.join(", "));
    Some(Finding::bad(name, text, "install one of these, or set ATOMC_UNSUPPORTED_VERSION=1"))
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    fn bad(atomc: &str, vllm: Option<&str>) -> Vec<String> {
        let (name, version) = ("vLLM".to_owned(), vllm.map(str::to_owned));
        let frameworks = vec![Framework { name, version, tested: vec!["0.33.0".into()] }];
        let found = findings(&Packages { python: "3.11.7".into(), atomc: atomc.into(), frameworks });
        found.into_iter().filter(|f| f.verdict == Verdict::Bad).map(|f| f.about).collect()
    }

    #[test]
    fn releases_are_compared_with_what_the_package_names() {
        let ours = env!("CARGO_PKG_VERSION");
        assert!(bad(ours, Some("0.33.0+cpu")).is_empty());
        assert_eq!(bad(ours, Some("0.99.0")), ["vLLM"]);
        assert_eq!(bad("0.0.1", None), ["plugin"]);
    }

    #[test]
    fn a_python_that_says_nothing_or_too_much_is_ended() {
        let run = |words: &[&str], time| {
            let mut command = Command::new(words[0]);
            command.args(&words[1..]);
            output(command, time)
        };
        let fault = run(&["sleep", "60"], Duration::from_millis(50)).expect_err("no answer");
        assert_eq!(fault.to_string(), "gave no answer in 0 s");
        let endless = run(&["yes"], Duration::from_secs(20)).expect("it is ended");
        assert!(!endless.status.success() && endless.stdout.len() as u64 == MOST_BYTES);
        let short = run(&["echo", "a"], Duration::from_secs(20)).expect("an answer");
        assert!(short.status.success() && short.stdout == b"a\n");
    }

    #[test]
    fn a_python_without_the_package_is_a_note() {
        let [finding] = &look(Path::new("/no/such/python"))[..] else { panic!("one") };
        assert_eq!(finding.verdict, Verdict::Note);
        assert!(finding.text.contains("/no/such/python"), "{}", finding.text);
    }
}
