//! `atomc report`: everything about an artifact on one page, which a browser shows offline.
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use atomc_artifact::manifest::{Kernel, KernelDef, Plan, Target, Variant};
use atomc_artifact::{Artifact, files};
use serde_json::{Value, json};

use super::failure::Failure;
use super::flow::{Bodies, Flow};
use super::inspect::{self, describe, name, size};
use super::{diff, opened, output, shown, why};

/// Write a page that shows all of an artifact
#[derive(clap::Args)]
#[command(after_help = "\
The page needs no network and nothing beside it: the steps as graphs of launches with their segments and kernels, memory over
the launches of a step, bytes, floors and times by kernel, what each kernel takes of a GPU, which schedule made it and why no
other, and what shaped the artifact. It follows the browser's light or dark scheme.

Examples:
  atomc report m.atomc -o report.html
  atomc report m.atomc -o report.html --against before.atomc
  atomc bench m.atomc --random-weights --kernels --json > bench.json
  atomc report m.atomc -o report.html --bench bench.json          with the times that were reached
  atomc bench m.atomc --model MI300X --kernels --json > predicted.json
  atomc report m.atomc -o report.html --bench predicted.json      with predicted ones, and what bounds kernels and loops")]
pub struct Args {
    artifact: PathBuf,
    /// The page to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Another artifact; the page says what changed from it to this one
    #[arg(long, value_name = "ARTIFACT")]
    against: Option<PathBuf>,
    /// What `atomc bench --kernels --json` said of the artifact, measured or, with --model,
    /// predicted
    #[arg(long, value_name = "FILE")]
    bench: Option<PathBuf>,
}

/// The page. Its parts replace their names.
const PAGE: &str = include_str!("report/page.html");
const STYLE: &str = include_str!("report/page.css");
const SCRIPT: &str = include_str!("report/page.js");

pub fn run(args: &Args) -> Result<(), Failure> {
    output::check(&args.output)?;
    let artifact = opened::open("artifact", &args.artifact)?;
    let open = |path: &PathBuf| opened::open("report", path);
    let before = args.against.as_ref().map(open).transpose()?;
    let bench = args.bench.as_deref().map(read_bench).transpose()?;
    let mut facts = describe(&artifact);
    facts["file"] = json!(args.artifact.file_name().map(|name| name.to_string_lossy()));
    facts["steps"] = steps(&artifact)?;
    facts["bench"] = bench.unwrap_or(Value::Null);
    if let (Some(before), Some(path)) = (before, &args.against) {
        let changes = diff::between(&before, &artifact)?;
        let told = |(change, count): (&diff::Change, usize)| {
            let mut told = change.json();
            told["count"] = json!(count);
            told
        };
        let told: Vec<Value> = diff::grouped(&changes).into_iter().map(told).collect();
        let name = path.file_name().map(|name| name.to_string_lossy());
        facts["against"] = json!({ "file": name, "all": changes.len(), "changes": told });
    }
    output::write(&args.output, page(&facts).as_bytes())?;
    let bytes = std::fs::metadata(&args.output).map_err(|e| Failure::file("output", &args.output, e))?.len();
    Ok(writeln!(std::io::stdout().lock(), "{}: {}", shown::path(&args.output), size(bytes as usize))?)
}

fn read_bench(path: &Path) -> Result<Value, Failure> {
    let bytes = files::read(path).map_err(|error| Failure::file("report", path, error))?;
    let wrong = |what: String| Failure::file("report", path, what);
    let value: Value = serde_json::from_slice(&bytes).map_err(|e| wrong(e.to_string()))?;
    let is_times = value["prefill"]["kernels"].is_array() && value["decode"].is_array();
    if is_times { Ok(value) } else { Err(wrong("it is not what `atomc bench --kernels --json` writes".into())) }
}

/// The strings of a page may be hostile: in a script element only `<` could end the element, and
/// the script shows strings as text.
fn page(facts: &Value) -> String {
    let data = facts.to_string().replace('<', "\\u003c").replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029");
    PAGE.replace("/*STYLE*/", STYLE).replace("/*SCRIPT*/", SCRIPT).replace("/*DATA*/", &data)
}

/// Kernels, launches, edges and memory of each target, in the order of its plans.
fn steps(artifact: &Artifact) -> Result<Value, Failure> {
    let targets = &artifact.manifest().targets;
    Ok(Value::Array(targets.iter().map(steps_of).collect::<Result<_, _>>()?))
}

fn steps_of(target: &Target) -> Result<Value, Failure> {
    let bodies = Bodies::of(target)?;
    let plans = target.plans.iter().map(|plan| plan_of(target, plan, &bodies));
    let kernels: Result<Vec<Value>, Failure> =
        target.kernels.iter().enumerate().map(|(number, def)| kernel_of(target, number, def, &bodies)).collect();
    let weights: Vec<Value> = weights(target).into_iter().map(|(part, bytes)| json!([part, bytes])).collect();
    Ok(json!({ "plans": plans.collect::<Vec<Value>>(), "kernels": kernels?, "weights": weights }))
}

fn plan_of(target: &Target, plan: &Plan, bodies: &Bodies) -> Value {
    let flow = bodies.flow(target, plan);
    let chip = target.variants.first().and_then(|variant| variant.chip.as_ref());
    let kernels = target.variants.first().map_or(&[][..], |variant| &variant.kernels);
    let launches = plan.launches.iter().map(|launch| {
        let rate = inspect::rate(kernels, launch.kernel);
        let floor = chip.map(|chip| chip.floor(launch.bytes, launch.flops, rate));
        json!([launch.kernel, launch.segment, launch.location, launch.bytes, launch.flops, floor])
    });
    let peak = flow.peak();
    let Flow { edges, kept } = flow;
    let kept = kept.iter().map(|kept| json!([kept.offset, kept.bytes, kept.from, kept.to]));
    json!({
        "name": name(plan),
        "body": plan.body,
        "arena": plan.arena_bytes,
        "peak": peak,
        "launches": launches.collect::<Vec<Value>>(),
        "edges": edges,
        "kept": kept.collect::<Vec<Value>>(),
        "calls": plan.calls,
    })
}

fn kernel_of(target: &Target, number: usize, def: &KernelDef, bodies: &Bodies) -> Result<Value, Failure> {
    let made = |variant: &Variant| {
        let Kernel { schedule, tasks, threads, resources, .. } = &variant.kernels[number];
        let reasons = why::reasons((target.invariant, variant), def, schedule)?;
        Ok(json!({ "schedule": schedule, "tasks": tasks, "threads": threads, "resources": resources, "why": reasons }))
    };
    let variants: Result<Vec<Value>, Failure> = target.variants.iter().map(made).collect();
    Ok(json!({ "ops": bodies.ops(number), "body": def.body, "variants": variants? }))
}

/// Bytes of weights by the part of the model that reads them, layers together.
fn weights(target: &Target) -> BTreeMap<String, usize> {
    let mut place: BTreeMap<usize, &str> = BTreeMap::new();
    for launch in target.plans.iter().flat_map(|plan| &plan.launches) {
        for arg in &launch.args {
            if let atomc_artifact::manifest::Arg::Weight { index } = arg {
                place.entry(*index).or_insert(&launch.location);
            }
        }
    }
    let mut by_part: BTreeMap<String, usize> = BTreeMap::new();
    for (index, weight) in target.weights.iter().enumerate() {
        let part = place.get(&index).map_or("none".into(), |location| super::shown::without_numbers(location));
        *by_part.entry(part).or_default() += weight.bytes;
    }
    by_part
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No string of an artifact ends the script element, and the page has everything in it.
    #[test]
    fn strings_stay_text() {
        let page = page(&json!({ "file": "</script><img src=x onerror=alert(1)>" }));
        assert_eq!(page.matches("</script>").count(), 2, "the page's own");
        assert!(page.contains("\\u003c/script>"));
        let loads = ["http://", "https://", "src=", "@import", "url("];
        let own = page.replace("http://www.w3.org/2000/svg", "").replace("src=x", "");
        assert!(loads.iter().all(|load| !own.contains(load)), "the page loads nothing");
        assert!(own.contains("default-src 'none'") && !own.contains("innerHTML"));
    }
}
