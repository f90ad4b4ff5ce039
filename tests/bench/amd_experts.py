"""Our products of experts on AMD chips, PREDICTED by the model of docs/timing.md, beside the times
that AITER MEASURED of its fused experts for the same sizes:

    python3 tests/bench/amd_experts.py EXPERTS.csv [TABLE.md]

EXPERTS.csv has a row for each size: gfx, cus, tokens, hidden, inter, experts, k, act, rows_type,
weight_type, scale, us1, us2 (microseconds of one or two stages). Its numbers are those of the tuned
configurations that AITER publishes (https://github.com/ROCm/aiter, below aiter/configs). Ours are
both products and the kernel that quantises between them; both sides leave out the router, grouping
and the first quantising. ATOMC is the command line, if not that of `cargo build --release`. Needs
no GPU.
"""

import collections
import csv
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

CHIPS = {("gfx942", "304"): "MI300X", ("gfx950", "256"): "MI355X"}
SCHEMES = {"per_1x128": "fp8-block", "per_Token": "fp8"}
DECODE, PROMPTS = [1, 2, 4, 8, 16, 32, 64], [512, 2048]
ATOMC = os.environ.get("ATOMC", "target/release/atomc")
# One layer. Only its experts are looked at.
CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_act": "silu",
    "dtype": "bfloat16",
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 8192,
    "attention_bias": False,
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "intermediate_size": 512,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "vocab_size": 1024,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def measured(path):
    """Of each chip, scheme and size: microseconds by tokens, where the table has them."""
    sizes = collections.defaultdict(dict)
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            chip = CHIPS.get((row["gfx"], row["cus"]))
            scheme = SCHEMES.get(row["scale"])
            us = sum(float(row[stage] or 0) for stage in ("us1", "us2"))
            tokens = int(row["tokens"])
            of_bytes = row["weight_type"].startswith("float8")
            if not (chip and scheme and of_bytes and us and row["act"] == "Silu"):
                continue
            if tokens in DECODE + PROMPTS:
                size = (int(row[name]) for name in ("hidden", "inter", "experts", "k"))
                key = (chip, scheme, *size)
                times = sizes[key]
                times[tokens] = min(times.get(tokens, us), us)
    return sizes


def predicted(chip, scheme, size, tokens):
    """Microseconds of our products, by tokens."""
    hidden, inter, experts, chosen = size
    sizes = {
        "hidden_size": hidden,
        "moe_intermediate_size": inter,
        "num_experts": experts,
        "num_experts_per_tok": chosen,
    }
    target = next(gfx for (gfx, _), name in CHIPS.items() if name == chip)
    decode = [n for n in tokens if n in DECODE] or [1]
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder)
        (path / "config.json").write_text(json.dumps(CONFIG | sizes))
        artifact = path / "m.atomc"
        quant = f"{scheme},lm_head=none,*.mlp.gate=none"
        run(
            "compile",
            path / "config.json",
            "--no-trust",
            "--target",
            target,
            "--quant",
            quant,
            "--decode",
            ",".join(map(str, decode)),
            "--prefill",
            max(PROMPTS),
            "-o",
            artifact,
        )
        us = {}
        for prompt in [n for n in tokens if n in PROMPTS] or [PROMPTS[0]]:
            said = json.loads(
                run(
                    "bench",
                    artifact,
                    "--model",
                    chip,
                    "--kernels",
                    "--json",
                    "--prompt",
                    prompt,
                    "--position",
                    512,
                    "--batch",
                    ",".join(map(str, decode)),
                )
            )
            assert said["predicted"] is True
            us |= {step["tokens"]: of_experts(step) for step in [said["prefill"], *said["decode"]]}
    return {n: us[n] for n in tokens}


def of_experts(step):
    """Both products of a step, and the kernels between and after them."""

    def counts(kernel):
        return "experts" in kernel["symbol"] and not (
            "rowwise" in kernel["symbol"] and "gate" in kernel["symbol"]
        )

    products = [k for k in step["kernels"] if counts(k) and k["product"]]
    # The last kernel of rows adds up a token's choices, which AITER's second stage does too.
    assert len(products) == 2, step["kernels"]
    return sum(1e6 * k["predicted_seconds"] / k["launches"] for k in step["kernels"] if counts(k))


def run(*words):
    done = subprocess.run([ATOMC, *map(str, words)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    lines, ratios = [], collections.defaultdict(list)
    for (chip, scheme, *size), known in sorted(measured(sys.argv[1]).items()):
        ours = predicted(chip, scheme, size, sorted(known))
        cells = " | ".join(
            f"{ours[n]:.0f}, {known[n]:.0f}" if n in known else "" for n in DECODE + PROMPTS
        )
        hidden, inter, experts, chosen = size
        lines.append(
            f"| {chip} | {scheme} | {hidden} x {inter} | {chosen} of {experts} | {cells} |"
        )
        print(lines[-1], flush=True)
        for n in known:
            ratios[
                chip, scheme, "1 to 8" if n <= 8 else "16 to 64" if n <= 64 else "prompts"
            ].append(ours[n] / known[n])
    for key, all in sorted(ratios.items()):
        print(
            *key, f"{len(all)} sizes, predicted over measured: median {statistics.median(all):.2f}"
        )
    if len(sys.argv) > 2:
        head = (
            "| chip | scheme | hidden x inner | experts | "
            + " | ".join(map(str, DECODE + PROMPTS))
            + " |"
        )
        rule = "|---" * (4 + len(DECODE + PROMPTS)) + "|"
        pathlib.Path(sys.argv[2]).write_text("\n".join([head, rule, *lines]) + "\n")


if __name__ == "__main__":
    main()
