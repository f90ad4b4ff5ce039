"""Models as vLLM serves them on a GPU: through artifacts and with its own classes, in turn, row by row, and the gate of what they reach.

    python tests/bench/served.py prepare FOLDER [ROW ...]
    python tests/bench/served.py run FOLDER [ROW ...] > FILE
    python tests/bench/served.py check FILE

`prepare` puts a configuration into FOLDER/ROW, and an artifact beside it. `run` prints one JSON line for each side, row and number of
requests; options of vllm_gpu.py go to it, as --memory=0.9. `check` ends with 1 where a ratio is under 95 % of that in served.json.

A ratio is vLLM's own model over the artifact, for milliseconds a token and to the first token, and the other way round for tokens a
second: more is better. `check --write NAME` keeps the ratios of FILE under a name, which is a machine's.
"""

import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

HERE = pathlib.Path(__file__).parent
KEPT = HERE / "served.json"
SHARE = 0.95

BLOCKS = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "weight_block_size": [128, 128],
}
INT4 = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "input_activations": None,
            "output_activations": None,
            "weights": {
                "num_bits": 4,
                "type": "int",
                "symmetric": True,
                "strategy": "group",
                "group_size": 128,
            },
        }
    },
}
MXFP4 = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ],
}
GATES = ["lm_head", *(f"model.layers.{layer}.mlp.gate" for layer in range(48))]

# The file of a row's configuration, and what differs from it.
ROWS: dict[str, tuple[str, dict]] = {
    "qwen3-8b": ("qwen3-8b", {}),
    "qwen3-8b-fp8": ("qwen3-8b", {"quantization_config": BLOCKS}),
    "qwen3-8b-int4": ("qwen3-8b", {"quantization_config": INT4}),
    "qwen3-30b-a3b": ("qwen3-30b-a3b", {}),
    "qwen3-30b-a3b-fp8": (
        "qwen3-30b-a3b",
        {"quantization_config": BLOCKS | {"modules_to_not_convert": GATES}},
    ),
    "gpt-oss-20b": (
        "gpt-oss-120b",
        {
            "num_hidden_layers": 24,
            "num_local_experts": 32,
            "layer_types": ["sliding_attention", "full_attention"] * 12,
            "quantization_config": MXFP4,
        },
    ),
    "deepseek-v2-lite": ("deepseek-v2-lite", {}),
    "qwen3-next-8": ("qwen3-next-80b-a3b", {}),
    "qwen3-8b-ranks-2": ("qwen3-8b", {}),
    "qwen3-30b-a3b-ranks-2": ("qwen3-30b-a3b", {}),
}


def ranks(row: str) -> int:
    return 2 if row.endswith("ranks-2") else 1


def has_experts(config: dict) -> bool:
    return any("experts" in key for key in config)


def prepare(folder: pathlib.Path, rows: list[str], atomc: str, target: str) -> None:
    for row in rows:
        name, changes = ROWS[row]
        config = json.loads((HERE / f"{name}.json").read_text()) | changes
        place = folder / row
        place.mkdir(parents=True, exist_ok=True)
        (place / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        options = "--context 4096 --decode 1,2,4,8,16,32,64 --prefill 2048".split()
        options += ["--tp", str(ranks(row))]
        options += ["--ep", "2"] if ranks(row) == 2 and has_experts(config) else []
        command = [atomc, "compile", str(place), "--target", target, *options]
        subprocess.run([*command, "-o", str(place / "model.atomc")], check=True)


class Side:
    """One process of vllm_gpu.py, what it prints in a file of FOLDER/ROW."""

    def __init__(self, folder: pathlib.Path, row: str, own: bool, options: list[str]):
        self.row, self.own = row, own
        self.log = folder / row / ("own.log" if own else "atomc.log")
        experts = has_experts(json.loads((folder / row / "config.json").read_text()))
        command = [sys.executable, str(HERE / "vllm_gpu.py"), str(folder / row), "--hold"]
        # Answers of one sequence must not all choose the same experts as the next one's.
        command += ["--temperature", "1"] if experts else []
        command += ["--ranks", str(ranks(row))]
        command += ["--experts-apart"] if experts and ranks(row) > 1 else []
        self.child = subprocess.Popen(
            [*command, *options],
            stdin=subprocess.PIPE,
            stdout=self.log.open("w"),
            stderr=subprocess.STDOUT,
            env=os.environ | ({"ATOMC_DISABLE": "1"} if own else {"ATOMC_STRICT": "1"}),
            start_new_session=True,
        )

    def lines(self) -> list[dict]:
        found = [line for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [{"row": self.row} | json.loads(line) for line in found]

    def ready(self) -> bool:
        return self.child.poll() is not None or any("ready_s" in line for line in self.lines())

    def measure(self, limit: float) -> bool:
        """Lets it go on, if it is ready, and prints what it found."""
        is_ready, why = self.ready(), f"more than {limit:.0f} s"
        try:
            self.child.communicate(b"\n", timeout=limit if is_ready else 0)
            why = f"exit code {self.child.returncode}"
        except subprocess.TimeoutExpired:
            os.killpg(self.child.pid, signal.SIGKILL)
            self.child.wait()
        lines = self.lines()
        if self.child.returncode != 0:
            lines.append({"row": self.row, "plugin": not self.own, "failed": why})
        for line in lines:
            print(json.dumps(line), flush=True)
        return self.child.returncode == 0


def run(sides: list[Side], limit: float) -> bool:
    """Starts together, and measures one after the other, when all have started."""
    until = time.monotonic() + limit
    while time.monotonic() < until and not all(side.ready() for side in sides):
        time.sleep(0.2)
    done = [side.measure(limit) for side in sides]
    return all(done)


def ratios(lines: Iterator[dict]) -> dict[str, dict[str, dict[str, float]]]:
    sides: dict[tuple[str, int], dict[bool, dict]] = {}
    for line in lines:
        if "requests" in line:
            sides.setdefault((line["row"], line["requests"]), {})[line["plugin"]] = line
    found: dict[str, dict[str, dict[str, float]]] = {}
    for (row, requests), both in sides.items():
        if len(both) == 2:
            own, ours = both[False], both[True]
            found.setdefault(row, {})[str(requests)] = {
                "token": round(own["tpot_ms"] / ours["tpot_ms"], 3),
                "first": round(own["ttft_ms"] / ours["ttft_ms"], 3),
                "rate": round(ours["tokens_s"] / own["tokens_s"], 3),
            }
    return found


def check(path: pathlib.Path, machine: str, write: bool) -> bool:
    """Whether each ratio that both the file and served.json have is at least 95 % of what is kept."""
    with path.open() as lines:
        found = ratios(json.loads(line) for line in lines if line.startswith("{"))
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    if write:
        kept.setdefault(machine, {}).update(found)
        KEPT.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
        return True
    good, compared = True, 0
    for row, sizes in found.items():
        for requests, values in sizes.items():
            for what, value in values.items():
                wanted = kept[machine].get(row, {}).get(requests, {}).get(what)
                if wanted is None:
                    continue
                compared += 1
                if value < SHARE * wanted:
                    good = False
                    print(f"{row}, {requests} requests: {what} {value}, kept {wanted}")
    print(f"{compared} ratios compared with those of {machine}")
    return good and compared > 0


def main() -> None:
    parse = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parse.add_subparsers(dest="verb", required=True)
    for verb in "prepare", "run":
        part = verbs.add_parser(verb)
        part.add_argument("folder", type=pathlib.Path)
        part.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(ROWS)}; all")
        part.add_argument("--gpus", type=int, default=2, help="rows of more ranks are left out")
        if verb == "prepare":
            part.add_argument("--atomc", default="atomc")
            part.add_argument("--target", default="sm_90a")
        else:
            part.add_argument(
                "--limit", type=float, default=600, help="seconds of a start, and of a measurement"
            )
            part.add_argument(
                "--together",
                action="store_true",
                help="start all, measure one after the other; the memory is shared (--cache-tokens)",
            )
    part = verbs.add_parser("check")
    part.add_argument("file", type=pathlib.Path)
    part.add_argument("--machine", default="H100")
    part.add_argument("--write", action="store_true", help="keep the ratios instead")
    args, rest = parse.parse_known_args()
    if args.verb != "check":
        unknown = [row for row in args.rows if row not in ROWS]
        if unknown:
            parse.error(f"no row {unknown[0]}")
        args.rows = [row for row in args.rows or ROWS if ranks(row) <= args.gpus]
    if rest and args.verb != "run":
        parse.error(f"unknown: {' '.join(rest)}")
    if args.verb == "prepare":
        prepare(args.folder, args.rows, args.atomc, args.target)
    elif args.verb == "run":
        wanted = [(row, own) for row in args.rows for own in (False, True)]
        groups = [wanted] if args.together else [[one] for one in wanted]
        done = [
            run([Side(args.folder, row, own, rest) for row, own in group], args.limit)
            for group in groups
        ]
        sys.exit(not all(done))
    else:
        sys.exit(not check(args.file, args.machine, args.write))


if __name__ == "__main__":
    main()
