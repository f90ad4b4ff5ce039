//! `atomc doctor`: everything that keeps this machine from running or serving an artifact.
mod frameworks;
mod gpus;

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

use atomc_artifact::escaped;
use atomc_config::vllm::settings;
#[cfg(feature = "compiler")]
use atomc_runtime::device::lacking;
use atomc_runtime::{DeviceChoice, TrustList, trust};
use serde_json::{Value, json};

use super::failure::Failure;

/// Say what this machine has, what is missing, and what to do
#[derive(clap::Args)]
#[command(after_help = "\
A line for each thing that was looked at: `good`, `note` for what only some need, `bad` for what will fail, with what to do
below it. Leaves with 1 if anything is bad.

Examples:
  atomc doctor
  atomc doctor --device hip:0                    that GPU has to work
  atomc doctor --python venv/bin/python          vLLM and SGLang are looked for there
  atomc doctor --json | jq '.[] | select(.verdict != \"good\")'")]
pub struct Args {
    /// A device that has to be there: `host`, `hip:N` or `cuda:N`
    #[arg(long, value_name = "DEVICE")]
    device: Option<DeviceChoice>,
    /// The Python whose packages serve models
    #[arg(long, value_name = "FILE", default_value = "python3")]
    python: PathBuf,
    /// All findings as a JSON list
    #[arg(long)]
    json: bool,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    Good,
    /// It matters to some.
    Note,
    /// It will fail.
    Bad,
}

impl Verdict {
    fn name(self) -> &'static str {
        match self {
            Verdict::Good => "good",
            Verdict::Note => "note",
            Verdict::Bad => "bad",
        }
    }
}

/// The result of one check.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    verdict: Verdict,
    /// The thing: `processor`, `hip:0`.
    about: String,
    text: String,
    /// Advice.
    help: Option<String>,
}

impl Finding {
    fn good(about: &str, text: impl Into<String>) -> Finding {
        Finding { verdict: Verdict::Good, about: about.into(), text: text.into(), help: None }
    }

    fn note(about: &str, text: impl Into<String>, help: impl Into<String>) -> Finding {
        Finding { verdict: Verdict::Note, help: Some(help.into()), ..Finding::good(about, text) }
    }

    fn bad(about: &str, text: impl Into<String>, help: impl Into<String>) -> Finding {
        Finding { verdict: Verdict::Bad, ..Finding::note(about, text, help) }
    }

    fn json(&self) -> Value {
        json!({ "verdict": self.verdict.name(), "about": self.about, "text": self.text, "help": self.help })
    }
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let findings: Vec<Finding> = [
        vec![this(), processor(), memory()],
        gpus::look(args.device.as_ref()),
        frameworks::look(&args.python),
        vec![environment(std::env::vars_os()), trusted()],
    ]
    .into_iter()
    .flatten()
    .collect();
    show(&findings, args.json, &mut std::io::stdout().lock())?;
    let bad: Vec<&str> = findings.iter().filter(|f| f.verdict == Verdict::Bad).map(|f| f.about.as_str()).collect();
    match bad.is_empty() {
        true => Ok(()),
        false => Err(Failure::new("doctor", format!("what will fail: {}", bad.join(", ")))),
    }
}

fn show(findings: &[Finding], as_json: bool, out: &mut impl Write) -> Result<(), Failure> {
    if as_json {
        serde_json::to_writer_pretty(&mut *out, &findings.iter().map(Finding::json).collect::<Vec<_>>())?;
        return Ok(writeln!(out)?);
    }
    let width = findings.iter().map(|f| f.about.len()).max().unwrap_or(0);
    for Finding { verdict, about, text, help } in findings {
        writeln!(out, "{:4}  {about:width$}  {}", verdict.name(), escaped(text))?;
        if let Some(help) = help {
            writeln!(out, "{:width$}  {}", "", escaped(help), width = width + 6)?;
        }
    }
    Ok(())
}

/// This program.
fn this() -> Finding {
    let what = if cfg!(feature = "compiler") { "compiles and runs" } else { "runs, and cannot compile" };
    let format = atomc_artifact::FORMAT_VERSION;
    Finding::good("atomc", format!("{}, {what} artifacts of format {format}", env!("CARGO_PKG_VERSION")))
}

/// The processor, by the variant of the target `host` that runs on it.
#[cfg(feature = "compiler")]
fn processor() -> Finding {
    let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get());
    let rows = atomc_targets::variants("host").unwrap_or_default();
    let lacks: Vec<Vec<&str>> = rows.iter().map(|row| lacking(row.features)).collect();
    match lacks.iter().position(Vec::is_empty) {
        Some(best) => Finding::good("processor", format!("runs {}, {threads} threads", rows[best].name)),
        None => {
            let least = lacks.iter().min_by_key(|lacks| lacks.len()).map_or(String::new(), |lacks| lacks.join(", "));
            let help = "the target `host` does not run here, others compile";
            Finding::note("processor", format!("lacks {least}"), help)
        }
    }
}

#[cfg(not(feature = "compiler"))]
fn processor() -> Finding {
    let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get());
    Finding::good("processor", format!("{threads} threads"))
}

/// Memory that programs may still take, as Linux says it.
fn memory() -> Finding {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kilobytes = |name: &str| -> Option<f64> {
        text.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_suffix(" kB")?.parse().ok())
    };
    match (kilobytes("MemAvailable:"), kilobytes("MemTotal:")) {
        (Some(free), Some(all)) => Finding::good("memory", format!("{:.1} of {:.1} GB free", free / 1e6, all / 1e6)),
        _ => Finding::note("memory", "unknown", "/proc/meminfo does not say"),
    }
}

/// Our variables.
fn environment(variables: impl IntoIterator<Item = (OsString, OsString)>) -> Finding {
    match settings::read(variables) {
        Ok(set) if set.is_empty() => Finding::good("settings", "no variable of ours is set"),
        Ok(set) => {
            let said = set.iter().map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default()));
            let said = said.collect::<Vec<_>>().join(" ");
            match set.get("ATOMC_DISABLE").and_then(Value::as_str) {
                Some("1") => Finding::note("settings", said, "frameworks run their own models while this is set"),
                _ => Finding::good("settings", said),
            }
        }
        Err(fault) => Finding::bad("settings", fault, "unset it, or see docs/vllm.md for the names"),
    }
}

/// The list of artifacts that may run although the user does not name them.
fn trusted() -> Finding {
    let list = trust::place(std::env::var_os("XDG_CONFIG_HOME"), std::env::var_os("HOME"))
        .and_then(|path| Ok((TrustList::read(&path)?.entries().count(), path)));
    match list {
        Ok((count, path)) => Finding::good("trust", format!("{count} artifacts in {}", path.display())),
        Err(error) => Finding::bad("trust", error.to_string(), "`atomc trust --list` reads the same list"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment_of(name: &str, value: &str) -> Finding {
        environment([(name.into(), value.into())])
    }

    #[test]
    fn variables_that_change_what_runs_are_told() {
        assert_eq!(environment([]).verdict, Verdict::Good);
        assert_eq!(environment_of("ATOMC_STRICT", "1").text, "ATOMC_STRICT=1");
        assert_eq!(environment_of("ATOMC_DISABLE", "1").verdict, Verdict::Note);
        let misspelt = environment_of("ATOMC_STRIKT", "1");
        assert_eq!(misspelt.verdict, Verdict::Bad);
        assert!(misspelt.text.contains("ATOMC_STRIKT"), "{}", misspelt.text);
    }

    #[test]
    fn findings_are_lines_with_help_below() {
        let findings = [Finding::good("memory", "enough"), Finding::bad("hip", "no driver", "install it")];
        let mut text = vec![];
        show(&findings, false, &mut text).unwrap();
        assert_eq!(
            String::from_utf8(text).unwrap(),
            "good  memory  enough\nbad   hip     no driver\n              install it\n"
        );
        let mut text = vec![];
        show(&findings, true, &mut text).unwrap();
        let all: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!((&all[1]["verdict"], &all[1]["help"]), (&json!("bad"), &json!("install it")));
    }
}
