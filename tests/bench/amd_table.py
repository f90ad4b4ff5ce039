"""A table of predicted times of our products beside measured ones: amd_table.py BEST.csv DIR [TABLE]

amd_table.py BEST.csv --has CHIP SCHEME says whether BEST.csv has a product of that kind.

DIR has what `atomc bench --model CHIP --kernels --json` said, in files that tests/bench/amd.sh
names. BEST.csv has the best measured time of each shape. Whole rows go to TABLE, if it is named; the
summary goes to standard output.
"""

import csv
import json
import pathlib
import statistics
import sys

# What AITER calls our schemes, and the chips of its rows.
KINDS = {"none": "bf16", "fp8": "fp8_row", "fp8-block": "fp8_block", "mxfp4-rows": "fp4"}
CHIPS = {"MI300X": ("gfx942", "304"), "MI308X": ("gfx942", "80"), "MI355X": ("gfx950", "256")}
# Products that no scheme quantises: the head, and routers.
PLAIN = ("lm_head", "gate", "router")
# Rows of a product, by the limit of a step with that many tokens.
SIZES = [(1, 1), (2, 16), (17, 64), (65, 512), (513, 4096)]
# Data-sheet peaks: bytes a second of HBM, and operations a second of matrix units by type.
HBM = {"MI300X": 5.3e12, "MI355X": 8.0e12}
MATRIX = {
    "MI300X": {"bf16": 1.307e15, "fp8_row": 2.615e15, "fp8_block": 2.615e15},
    "MI355X": {"bf16": 2.5e15, "fp8_row": 5.0e15, "fp8_block": 5.0e15, "fp4": 10.1e15},
}
# Weights that do not stay in caches, in bytes, and rows of steps and prompts that shares are of.
LARGE, STEPS, PROMPT = 8e6, (1, 32), 2048


def measured(path):
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    return {
        (r["gfx"], r["cus"], r["kind"], *(int(r[x]) for x in "MNK")): (float(r["us"]), r["lib"])
        for r in rows
    }


def predicted(folder):
    """A row for each product of each step, once."""
    rows = {}
    for path in sorted(pathlib.Path(folder).glob("*+*.json")):
        model, ranks, scheme, chip, _ = path.stem.split("+")
        said = json.loads(path.read_text())
        assert said["predicted"] is True, path
        for step in [said["prefill"], *said["decode"]]:
            for kernel in step["kernels"]:
                shape = kernel["product"]
                # Rows of routed experts are several for each token, and have no rows in BEST.csv.
                # After a prompt's last attention only the rows that want logits remain.
                if not shape or shape["m"] != step["tokens"]:
                    continue
                us = 1e6 * kernel["predicted_seconds"] / kernel["launches"]
                module = kernel["module"].split(".")[-1]
                kind = "bf16" if module in PLAIN else KINDS[scheme]
                key = (chip, kind, shape["m"], shape["n"], shape["k"])
                where = model + (f", {ranks} ranks" if ranks != "1" else "")
                each = [kernel[what] / kernel["launches"] / us * 1e6 for what in ("bytes", "flops")]
                rows.setdefault(key, (us, kernel["bound"], where, module, *each))
    return rows


def joined(best, ours):
    for (chip, kind, m, n, k), (us, bound, model, module, *_) in sorted(ours.items()):
        found = best.get((*CHIPS[chip], kind, m, n, k))
        if found:
            yield {
                "chip": chip,
                "kind": kind,
                "m": m,
                "n": n,
                "k": k,
                "us": us,
                "bound": bound,
                "model": model,
                "module": module,
                "best": found[0],
                "lib": found[1],
            }


def lines(rows):
    yield "| chip | type | M | N | K | model, product | predicted us | bound | AITER's best us, measured | ratio |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for r in rows:
        yield (
            f"| {r['chip']} | {r['kind']} | {r['m']} | {r['n']} | {r['k']} | {r['model']}, {r['module']} "
            f"| {r['us']:.1f} | {r['bound']} | {r['best']:.1f} ({r['lib']}) | {r['us'] / r['best']:.2f} |"
        )


def summary(rows, total):
    yield (
        "| chip | type | "
        + " | ".join(f"M {a} to {b}" if a < b else f"M = {a}" for a, b in SIZES)
        + " |"
    )
    yield "|---|---|" + "---|" * len(SIZES)
    for chip, kind in sorted({(r["chip"], r["kind"]) for r in rows}):
        cells = []
        for low, high in SIZES:
            ratios = [
                r["us"] / r["best"]
                for r in rows
                if (r["chip"], r["kind"]) == (chip, kind) and low <= r["m"] <= high
            ]
            cell = (
                f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}; {len(ratios)})"
                if ratios
                else ""
            )
            cells.append(cell)
        yield f"| {chip} | {kind} | " + " | ".join(cells) + " |"
    yield ""
    yield (
        f"Predicted over measured: the median, in brackets the range and the number of shapes. {len(rows)} of "
        f"{total} products have a measured time of the same M, N and K."
    )


def shares(ours, rows):
    """What parts of the chips' peaks products reach, and how often they are ahead."""
    yield ""
    yield "| chip | type | decode, share of HBM | prompts, share of matrix peak | faster than measured |"
    yield "|---|---|---|---|---|"
    for chip, kind in sorted({key[:2] for key in ours}):
        mine = [(key[2:], value) for key, value in ours.items() if key[:2] == (chip, kind)]
        steps = [
            value[4] / HBM[chip]
            for (m, n, k), value in mine
            if STEPS[0] <= m <= STEPS[1] and value[4] * value[0] * 1e-6 > LARGE
        ]
        prompts = [value[5] / MATRIX[chip][kind] for (m, *_), value in mine if m >= PROMPT]
        ratios = [r["us"] / r["best"] for r in rows if (r["chip"], r["kind"]) == (chip, kind)]
        ahead = f"{sum(ratio < 1 for ratio in ratios)} of {len(ratios)}" if ratios else ""
        cells = [
            f"{100 * statistics.median(some):.0f} % ({len(some)})" if some else ""
            for some in (steps, prompts)
        ]
        yield f"| {chip} | {kind} | {cells[0]} | {cells[1]} | {ahead} |"
    yield ""
    yield (
        f"Medians, in brackets the number of shapes: steps of {STEPS[0]} to {STEPS[1]} rows that move more than "
        f"{LARGE / 1e6:.0f} MB, and prompts of {PROMPT} rows or more; peaks are those of data sheets."
    )


def main():
    best = measured(sys.argv[1])
    if sys.argv[2] == "--has":
        chip, scheme = sys.argv[3:]
        sys.exit(not any(key[:3] == (*CHIPS[chip], KINDS[scheme]) for key in best))
    ours = predicted(sys.argv[2])
    rows = list(joined(best, ours))
    if not rows:
        sys.exit("no shape of ours is in the table of measured times")
    if len(sys.argv) > 3:
        pathlib.Path(sys.argv[3]).write_text("\n".join(lines(rows)) + "\n")
    print("\n".join([*summary(rows, len(ours)), *shares(ours, rows)]))


if __name__ == "__main__":
    main()
