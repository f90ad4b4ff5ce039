"""Whether a step takes longer the more sequences decode: a larger step may not be faster than a smaller one.

    python tests/bench/steps.py list
    python tests/bench/steps.py config SHAPE > config.json
    python tests/bench/steps.py check FILE ...

`list` names every shape of this folder, and quantised forms of some; `config` prints one with so few layers that a GPU of 80 GB holds
it. `check` reads what `atomc bench --json` said of steps of several sizes, and ends with 1 where one took less time than a smaller one,
by more than two medians of the same step differ.
"""

import argparse
import json
import pathlib
import sys

from served import BLOCKS, GATES, MXFP4, ROWS

HERE = pathlib.Path(__file__).parent
LAYERS = 8
SLACK = 0.01

# Shapes without a file of their own: the file that they are based on, and the differences.
FORMS: dict[str, tuple[str, dict]] = {
    "deepseek-v3": (
        "deepseek-v3",
        {"quantization_config": BLOCKS | {"modules_to_not_convert": GATES}},
    ),
    "gpt-oss-120b": ("gpt-oss-120b", {"quantization_config": MXFP4}),
    **{
        row: ROWS[row]
        for row in ("gpt-oss-20b", "qwen3-30b-a3b-fp8", "qwen3-8b-fp8", "qwen3-8b-int4")
    },
}


def shapes() -> list[str]:
    files = {path.stem for path in HERE.glob("*.json") if path.stem != "served"}
    return sorted(files | FORMS.keys())


def config(shape: str) -> dict:
    name, changes = FORMS.get(shape, (shape, {}))
    whole = json.loads((HERE / f"{name}.json").read_text()) | changes
    part = whole.get("text_config", whole)
    # Layers like all but the first ones come after these.
    part["num_hidden_layers"] = min(
        part["num_hidden_layers"], LAYERS, part.get("first_k_dense_replace", LAYERS) + 2
    )
    for key in ("layer_types", "mlp_layer_types"):
        if key in part:
            part[key] = part[key][: part["num_hidden_layers"]]
    return whole


def faults(bench: dict) -> list[str]:
    """What of a measurement must not be."""
    steps = sorted((step["batch"], step["seconds"]) for step in bench["decode"])
    found, slowest = [], (0, 0.0)
    for batch, seconds in steps:
        if seconds < slowest[1] * (1 - SLACK):
            before, longer = slowest
            found.append(
                f"{batch} sequences take {1e3 * seconds:.3f} ms, and {before} take {1e3 * longer:.3f}"
            )
        slowest = max(slowest, (batch, seconds), key=lambda step: step[1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("list")
    verbs.add_parser("config").add_argument("shape", choices=shapes())
    verbs.add_parser("check").add_argument("files", nargs="+", type=pathlib.Path)
    args = parser.parse_args()
    match args.verb:
        case "list":
            print(*shapes(), sep="\n")
        case "config":
            print(json.dumps(config(args.shape), indent=2))
        case _:
            wrong = False
            for file in args.files:
                bench = json.loads(file.read_text())
                times = ", ".join(
                    f"{step['batch']}: {1e3 * step['seconds']:.3f}" for step in bench["decode"]
                )
                print(f"{file.stem}: ms by sequences: {times}")
                for fault in faults(bench):
                    wrong = True
                    print(f"  WRONG: {fault}")
            sys.exit(wrong)


if __name__ == "__main__":
    main()
