//! `atomc diff`: the changes from one artifact to another.
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::PathBuf;

use atomc_artifact::manifest::{
    Kernel, KernelDef, Manifest, PageStream, Paged, Plan, Slots, StateGroup, Target, Weight,
};
use atomc_artifact::{Artifact, escaped};
use serde_json::{Value, json};

use super::failure::Failure;
use super::flow::Bodies;
use super::inspect::{name, size};
use super::{opened, shown};

/// Say what changed from one artifact to another
#[derive(clap::Args)]
#[command(after_help = "\
Options and facts of the model that shaped them, then for each target its weights, its steps with what they do in each part of
the model and with their memory, and its kernels: those of one alone, and those of both that have another schedule or take something else of the GPU. A kernel is the same if
it computes the same. `-` is what the first has, `+` what the second has.

Examples:
  atomc diff before.atomc after.atomc
  atomc diff before.atomc after.atomc --json | jq '.[] | select(.about | startswith(\"gfx942\"))'")]
pub struct Args {
    before: PathBuf,
    after: PathBuf,
    /// Every change as a JSON list
    #[arg(long)]
    json: bool,
}

/// A change of one thing; nothing where one of both does not have it.
#[derive(Debug, PartialEq, Eq)]
pub struct Change {
    about: String,
    before: Option<String>,
    after: Option<String>,
}

impl Change {
    /// Whether one of both alone has it.
    fn is_lone(&self) -> bool {
        self.before.is_none() || self.after.is_none()
    }

    pub fn json(&self) -> Value {
        json!({ "about": self.about, "before": self.before, "after": self.after })
    }

    /// The change as text, without the numbers of layers.
    fn alike(&self) -> [String; 3] {
        let text = |text: &Option<String>| text.as_deref().map(shown::without_numbers).unwrap_or_default();
        [shown::without_numbers(&self.about), text(&self.before), text(&self.after)]
    }
}

/// Facts by their names.
type Facts = BTreeMap<String, String>;

pub fn run(args: &Args) -> Result<(), Failure> {
    let open = |path: &PathBuf| opened::open("diff", path);
    let (before, after) = (open(&args.before)?, open(&args.after)?);
    let all = between(&before, &after)?;
    let out = &mut std::io::stdout().lock();
    if args.json {
        return shown::json(out, &all.iter().map(Change::json).collect::<Vec<_>>());
    }
    if before.fingerprint() == after.fingerprint() {
        return Ok(writeln!(out, "no difference")?);
    }
    if all.is_empty() {
        return Ok(writeln!(out, "the same but for details that no list here has: `atomc inspect --json` has all")?);
    }
    for (Change { about, before, after }, count) in grouped(&all) {
        match count {
            1 => writeln!(out, "{}", escaped(about))?,
            count => writeln!(out, "{} ({count} alike)", escaped(&shown::without_numbers(about)))?,
        }
        for (sign, text) in [("-", before), ("+", after)] {
            text.iter().try_for_each(|text| writeln!(out, "  {sign} {}", escaped(text)))?;
        }
    }
    Ok(())
}

/// Changes with their counts. Layers that changed in the same way are one change.
pub fn grouped(all: &[Change]) -> Vec<(&Change, usize)> {
    let mut groups: Vec<(&Change, usize)> = vec![];
    let mut group_of: BTreeMap<[String; 3], usize> = BTreeMap::new();
    for change in all {
        let group = *group_of.entry(change.alike()).or_insert(groups.len());
        match groups.get_mut(group) {
            Some((_, count)) => *count += 1,
            None => groups.push((change, 1)),
        }
    }
    groups
}

/// The changes from one artifact to another.
pub fn between(before: &Artifact, after: &Artifact) -> Result<Vec<Change>, Failure> {
    let (one, other) = (before.manifest(), after.manifest());
    let shared = |name: &str| [one, other].iter().all(|m| m.targets.iter().any(|target| target.name == name));
    let mut all = changes(&facts(before, &shared)?, &facts(after, &shared)?);
    // A step that one alone has is one change.
    let lone: Vec<String> = all.iter().filter(|change| change.is_lone()).map(|change| change.about.clone()).collect();
    all.retain(|change| !lone.iter().any(|plan| part_of(&change.about, plan)));
    let of_tower = towers(before.tower(), after.tower())?;
    // What shaped both parts was told.
    let new: Vec<Change> = of_tower.into_iter().filter(|change| !all.contains(change)).collect();
    all.extend(new.into_iter().map(|change| Change { about: format!("tower {}", change.about), ..change }));
    Ok(all)
}

/// The changes from one tower to another, or that one alone is there.
fn towers(before: Option<Artifact>, after: Option<Artifact>) -> Result<Vec<Change>, Failure> {
    let shown = |tower: &Option<Artifact>| tower.as_ref().map(|tower| tower.manifest().model.architecture.clone());
    match (&before, &after) {
        (Some(before), Some(after)) => between(before, after),
        (None, None) => Ok(vec![]),
        _ => Ok(vec![Change { about: "of".into(), before: shown(&before), after: shown(&after) }]),
    }
}

/// Whether something is told of a part of a step, or of its memory.
fn part_of(about: &str, plan: &str) -> bool {
    about.strip_prefix(plan).is_some_and(|rest| rest == MEMORY || rest.starts_with(AT))
}

/// The suffix of a step's name in a line about its memory, and in one about a part of that.
const MEMORY: &str = " memory";
const AT: &str = " at ";

/// The facts that differ, or that only one side has.
fn changes(before: &Facts, after: &Facts) -> Vec<Change> {
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let change = |name: &String| {
        let (before, after) = (before.get(name).cloned(), after.get(name).cloned());
        (before != after).then(|| Change { about: name.clone(), before, after })
    };
    names.into_iter().filter_map(change).collect()
}

/// Everything, of targets that both have; of others that they are there.
fn facts(artifact: &Artifact, is_shared: &dyn Fn(&str) -> bool) -> Result<Facts, Failure> {
    let manifest = artifact.manifest();
    let mut facts = Facts::from([("producer".into(), manifest.producer.clone())]);
    shaped_by("config", &manifest.config, &mut facts);
    for target in &manifest.targets {
        match is_shared(&target.name) {
            true => {
                let named = |(what, text)| (format!("{} {what}", target.name), text);
                facts.extend(of_target(artifact, target).map(named));
                facts.extend(steps(target)?.into_iter().map(named));
            }
            false => _ = facts.insert(format!("target {}", target.name), format!("{} plans", target.plans.len())),
        }
    }
    facts.extend(sizes(manifest));
    Ok(facts)
}

/// For each plan its memory, and its work in each part of the model: the graph of its launches.
fn steps(target: &Target) -> Result<Vec<(String, String)>, Failure> {
    let bodies = Bodies::of(target)?;
    let mut all = vec![];
    for plan in &target.plans {
        let flow = bodies.flow(target, plan);
        let (peak, unshared) = (flow.peak(), flow.kept.iter().map(|kept| kept.bytes).sum());
        let text = format!(
            "{} values, {} at once, {} without reuse, in an arena of {}",
            flow.kept.len(),
            size(peak),
            size(unshared),
            size(plan.arena_bytes)
        );
        all.push((format!("plan {}{MEMORY}", name(plan)), text));
        let mut parts: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for launch in &plan.launches {
            let (family, ops) = (&target.kernels[launch.kernel].family, bodies.ops(launch.kernel));
            parts.entry(&launch.location).or_default().push(format!("{family}: {ops}"));
        }
        all.extend(parts.into_iter().map(|(part, done)| (format!("plan {}{AT}{part}", name(plan)), done.join("; "))));
    }
    Ok(all)
}

/// Every number and text of the facts that shaped an artifact, by its place.
fn shaped_by(place: &str, value: &Value, facts: &mut Facts) {
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(name, value)| shaped_by(&format!("{place}.{name}"), value, facts));
        }
        Value::Array(items) if items.iter().any(|item| item.is_object() || item.is_array()) => {
            items.iter().enumerate().for_each(|(i, item)| shaped_by(&format!("{place}[{i}]"), item, facts));
        }
        other => {
            facts.insert(place.to_owned(), other.to_string());
        }
    }
}

fn sizes(manifest: &Manifest) -> [(String, String); 2] {
    let ranks = format!("{} by heads and widths, {} by experts", manifest.tensor_parallel, manifest.expert_parallel);
    let stop = format!("{:?}", manifest.model.stop);
    [("ranks".into(), ranks), ("stop tokens".into(), stop)]
}

fn of_target<'a>(artifact: &'a Artifact, target: &'a Target) -> impl Iterator<Item = (String, String)> + 'a {
    let code = target.variants.iter().map(|variant| {
        let text =
            format!("{} of code, {} kernels", size(artifact.sections()[variant.section].length), variant.kernels.len());
        (format!("variant {}", variant.name), text)
    });
    let state = target.groups.iter().enumerate().map(|(number, group)| {
        let layers = target.states.iter().filter(|state| state.group == number).count();
        (format!("states {number}"), format!("{layers} layers of {}", kept(group)))
    });
    let kernels = target.variants.iter().flat_map(|variant| {
        let mut seen: BTreeMap<String, usize> = BTreeMap::new();
        target
            .kernels
            .iter()
            .zip(&variant.kernels)
            .map(move |(def, made)| kernel(&variant.name, def, made, &mut seen))
            .collect::<Vec<_>>()
    });
    let weights = target.weights.iter().map(|w| (format!("weight {}", w.name), weight(w)));
    code.chain(state).chain(weights).chain(target.plans.iter().map(plan)).chain(kernels)
}

fn kept(group: &StateGroup) -> String {
    match group {
        StateGroup::Slots(Slots { bytes, each: 1 }) => format!("{} a sequence", size(*bytes)),
        StateGroup::Slots(Slots { bytes, each }) => format!("{} of {} a sequence", each + 1, size(*bytes)),
        StateGroup::Paged(Paged { block_bytes, streams, window, every }) => {
            let stream = |s: &PageStream| format!("{} {} x {} {}", s.name, s.heads, s.width, s.dtype.name());
            let streams: Vec<String> = streams.iter().map(stream).collect();
            let of = if *every > 1 { format!(", {every} tokens an entry") } else { String::new() };
            format!("pages of {}: {}, window {window}{of}", size(*block_bytes), streams.join(", "))
        }
    }
}

fn weight(weight: &Weight) -> String {
    let Weight { dtype, shape, bytes, layout, .. } = weight;
    format!("{} {shape:?} {}, {}", dtype.name(), json!(layout), size(*bytes))
}

fn plan(plan: &Plan) -> (String, String) {
    let sum = |of: fn(&atomc_artifact::manifest::Launch) -> u64| plan.launches.iter().map(of).sum::<u64>();
    let (bytes, flops) = (sum(|launch| launch.bytes), sum(|launch| launch.flops));
    let text = format!(
        "{} launches, {} calls, arena {}, {} moved and {:.3} Gflop at full size",
        plan.launches.len(),
        plan.calls.len(),
        size(plan.arena_bytes),
        size(bytes as usize),
        flops as f64 / 1e9
    );
    (format!("plan {}", name(plan)), text)
}

/// A kernel by its function and its number of tokens. Its number, with which its symbol begins,
/// says nothing; the rest names its place in the model.
fn kernel(variant: &str, def: &KernelDef, made: &Kernel, seen: &mut BTreeMap<String, usize>) -> (String, String) {
    let place = def.symbol.trim_start_matches(|c: char| c == 'k' || c.is_ascii_digit()).trim_start_matches('_');
    let place = place.strip_prefix(made.schedule.as_str()).unwrap_or(place).trim_start_matches('_');
    // The schedule's variant for few tokens, which the number of tokens says too.
    let place = match place.strip_prefix('x').and_then(|rest| rest.split_once('_')) {
        Some((tokens, rest)) if tokens.parse::<usize>().is_ok() => rest,
        _ => place,
    };
    let body = blake3::hash(def.body.as_bytes()).to_hex();
    let about = format!("kernel {place}, {} of {}, {variant}", def.family, def.tokens);
    let count = seen.entry(about.clone()).or_default();
    *count += 1;
    let about = if *count == 1 { about } else { format!("{about} ({count})") };
    let taken = made.resources.as_ref().map_or(String::new(), |r| {
        format!(
            ", {} VGPRs, {} SGPRs, LDS {} B, {} spilled, {} waves on a SIMD, {} instructions",
            r.vgprs,
            r.sgprs,
            r.lds,
            r.vgpr_spills + r.sgpr_spills,
            r.occupancy,
            r.instructions
        )
    });
    (about, format!("body {}, {}, {} threads{taken}", &body[..8], made.schedule, made.threads))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(text: &str) -> Facts {
        let mut facts = Facts::new();
        shaped_by("config", &serde_json::from_str(text).expect("JSON"), &mut facts);
        facts
    }

    #[test]
    fn what_shaped_an_artifact_is_compared_leaf_by_leaf() {
        let before = facts(r#"{"a": 1, "layers": [{"w": 2}, {"w": 3}], "list": [1, 2], "gone": "x"}"#);
        let after = facts(r#"{"a": 1, "layers": [{"w": 2}, {"w": 4}], "list": [1, 5], "new": true}"#);
        let found: Vec<(String, String)> = changes(&before, &after)
            .into_iter()
            .map(|c| (c.about, format!("{} {}", c.before.unwrap_or_default(), c.after.unwrap_or_default())))
            .collect();
        let want = [
            ("config.gone", "\"x\" "),
            ("config.layers[1].w", "3 4"),
            ("config.list", "[1,2] [1,5]"),
            ("config.new", " true"),
        ];
        assert_eq!(found, want.map(|(about, text)| (about.to_owned(), text.to_owned())));
        assert!(changes(&before, &before).is_empty());
    }
}
