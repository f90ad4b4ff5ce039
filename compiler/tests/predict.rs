//! `atomc bench --model` and the other outputs with its predictions: each of them says that it is
//! one.
mod common;

use std::collections::BTreeMap;

use common::{Bench, MODEL};
use serde_json::{Value, json};

fn compiled() -> Bench {
    let bench = Bench::empty();
    let sizes = ["--context", "256", "--decode", "1,4", "--prefill", "64"];
    let targets = ["--target", "gfx942,gfx90a", "-o", "m.atomc"];
    bench.succeed(&[&["compile", MODEL], &sizes[..], &targets].concat());
    bench
}

fn predict(bench: &Bench, chip: &str, more: &[&str]) -> String {
    let steps = ["--prompt", "64", "--position", "100", "--batch", "1,4", "--kernels"];
    bench.succeed(&[&["bench", "m.atomc", "--model", chip], &steps[..], more].concat())
}

fn read(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

#[test]
fn predictions_say_what_they_are() {
    let bench = compiled();
    let text = predict(&bench, "MI300X", &[]);
    assert!(text.starts_with("PREDICTED for MI300X, not measured; the model's error on MI300X: median "), "{text}");
    assert!(text.contains("no kernel of atomc was measured on such a chip"), "{text}");
    let others: Vec<&str> = text.lines().skip(1).filter(|line| !line.starts_with("assumed: ")).collect();
    assert!(others.len() > 15 && others.iter().all(|line| line.contains("predicted ")), "{text}");

    let all = read(&predict(&bench, "gfx942", &["--json"]));
    assert_eq!((&all["predicted"], &all["chip"], &all["target"]), (&json!(true), &json!("MI300X"), &json!("gfx942")));
    assert!(all["note"].as_str().is_some_and(|note| text.starts_with(note)));
    assert!(["median_percent", "p90_percent", "rows"].iter().all(|of| all["model_error"]["written"][of].is_number()));
    // No field has a name that a measured time has.
    fn seconds(value: &Value) -> bool {
        match value {
            Value::Object(fields) => fields.iter().any(|(name, value)| name == "seconds" || seconds(value)),
            Value::Array(items) => items.iter().any(seconds),
            _ => false,
        }
    }
    assert!(!seconds(&all));
    assert_eq!(all["decode"].as_array().map(Vec::len), Some(2));
    let [one, four] = [0, 1].map(|at| all["decode"][at]["predicted_seconds"].as_f64().expect("a time"));
    assert!(one > 0.0 && four >= one, "{one} {four}");
    let fewer = read(&predict(&bench, "MI308X", &["--json"]));
    assert_eq!((&fewer["chip"], &fewer["target"]), (&json!("MI308X"), &json!("gfx942")));
}

/// Names and types of everything that the JSON form has.
#[test]
fn the_json_form() {
    fn shape(value: &Value) -> Value {
        match value {
            // By name, whichever order the build's JSON has.
            Value::Object(fields) => {
                let sorted: BTreeMap<_, _> = fields.iter().collect();
                sorted.into_iter().map(|(name, value)| (name.clone(), shape(value))).collect()
            }
            Value::Array(items) => {
                items.iter().max_by_key(|item| item.to_string().len()).map_or(json!([]), |item| json!([shape(item)]))
            }
            Value::Number(_) => json!("number"),
            Value::String(_) => json!("text"),
            other => other.clone(),
        }
    }
    let all = shape(&read(&predict(&compiled(), "MI300X", &["--json"])));
    insta::assert_snapshot!(serde_json::to_string_pretty(&all["prefill"]["kernels"][0]["loops"]).expect("JSON"));
    let names = |value: &Value| {
        value.as_object().map(|fields| fields.keys().cloned().collect::<Vec<_>>().join(" ")).unwrap_or_default()
    };
    insta::assert_snapshot!(format!(
        "{}\n{}\n{}\n{}",
        names(&all),
        names(&all["model_error"]),
        names(&all["prefill"]),
        names(&all["prefill"]["kernels"][0])
    ));
}

#[test]
fn inspect_says_what_bounds_kernels_and_loops() {
    let bench = compiled();
    let text = bench.succeed(&["inspect", "m.atomc", "--kernels", "--model", "MI300X"]);
    let (_, predicted) = text.split_once("PREDICTED for MI300X").expect("predictions");
    let about = read(&bench.succeed(&["inspect", "m.atomc", "--json"]));
    let kernels = about["targets"][0]["variants"][0]["kernels"].as_array().expect("kernels").len();
    assert_eq!(predicted.matches("\n  kernel  ").count(), kernels, "{predicted}");
    assert_eq!(
        predicted.matches("          predicted ").count() - predicted.matches("predicted loop").count(),
        kernels
    );
    assert!(predicted.matches("predicted loop of ").count() > 3, "{predicted}");
    assert!(!bench.succeed(&["inspect", "m.atomc", "--kernels"]).contains("predicted"));
}

#[test]
fn the_report_shows_predictions_as_such() {
    let bench = compiled();
    bench.write("predicted.json", predict(&bench, "MI300X", &["--json"]));
    bench.succeed(&["report", "m.atomc", "-o", "report.html", "--bench", "predicted.json"]);
    let page = std::fs::read_to_string(bench.path("report.html")).expect("a page");
    assert!(page.contains("PREDICTED for MI300X, not measured") && page.contains("\"predicted\":true"));
}

#[test]
fn what_cannot_be_predicted_is_refused() {
    let bench = compiled();
    let fail = |args: &[&str]| {
        let out = bench.run(&[&["bench", "m.atomc"], args].concat());
        assert!(!out.status.success(), "{args:?}");
        String::from_utf8(out.stderr).expect("UTF-8")
    };
    for chip in ["gfx90a", "gfx1100", "gfx1201", "MI250X"] {
        let message = fail(&["--model", chip]);
        let wanted =
            format!("no numbers for `{chip}`, of which no measured time is published; it has: MI308X, MI300X, MI355X");
        assert!(message.contains(&wanted), "{message}");
    }
    assert!(fail(&["--model", "MI355X"]).contains("gfx950"), "the artifact has no such code");
    assert!(fail(&["--model", "MI300X", "--random-weights"]).contains("cannot be used with"));
    assert!(fail(&["--model", "MI300X", "--device", "emu:gfx942"]).contains("cannot be used with"));
    assert!(fail(&["--kernels"]).contains("an artifact has no weights"), "no chip is named");
    // The caller attends: there are no kernels for a part of the step.
    bench.succeed(&["compile", MODEL, "--target", "gfx942", "--attention", "caller", "-o", "caller.atomc"]);
    let out = bench.run(&["bench", "caller.atomc", "--model", "MI300X"]);
    assert!(String::from_utf8_lossy(&out.stderr).contains("no plan of the artifact attends itself"));
}

/// Measured times that are the predicted ones but for a factor.
#[test]
fn predictions_are_graded_by_measured_times() {
    let bench = compiled();
    let predicted = read(&predict(&bench, "MI300X", &["--json"]));
    let measured = |step: &Value, factor: f64| {
        let seconds = |value: &Value| value["predicted_seconds"].as_f64().expect("a time") * factor;
        let kernels = step["kernels"].as_array().expect("kernels").iter();
        let kernels: Vec<Value> = kernels
            .map(|k| json!({ "symbol": k["symbol"], "launches": k["launches"], "seconds": seconds(k) }))
            .collect();
        json!({ "tokens": step["tokens"], "batch": step["batch"], "seconds": seconds(step), "kernels": kernels })
    };
    let decode = [(0, 1.0), (1, 1.25)].map(|(at, factor)| measured(&predicted["decode"][at], factor));
    let all =
        json!({ "product": "AMD Instinct MI300X", "prefill": measured(&predicted["prefill"], 0.5), "decode": decode });
    bench.write("measured.json", all.to_string());
    let graded = predict(&bench, "MI300X", &["--measured", "measured.json"]);
    assert!(graded.contains("measured on AMD Instinct MI300X, predicted for MI300X\n"), "{graded}");
    let errors = |what: &str| {
        let lines = graded.lines().filter(|line| line.ends_with(what));
        lines.map(|line| line.split_whitespace().nth(2).expect("an error").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(
        [errors("  prefill 64"), errors("  decode, batch 1"), errors("  decode, batch 4")].concat(),
        ["+100", "+0", "-20"]
    );
    assert!(graded.contains("error over 3 steps: median 20.0 %, 90th percentile 100.0 %"), "{graded}");
    assert!(!graded.contains("different chips"));

    let other = predict(&bench, "MI308X", &["--measured", "measured.json"]);
    assert!(other.contains("these are different chips"), "{other}");
    bench.write("predicted.json", predicted.to_string());
    let refused = |file: &str| {
        let out = bench.run(&["bench", "m.atomc", "--model", "MI300X", "--prompt", "64", "--measured", file]);
        assert!(!out.status.success());
        String::from_utf8(out.stderr).expect("UTF-8")
    };
    assert!(refused("predicted.json").contains("its times are predicted, not measured"));
    bench.write("other.json", "{}");
    assert!(refused("other.json").contains("it is not what `atomc bench --kernels --json` writes"));
}
