"""`atomc check` says whether vLLM would run an artifact: each row of a list is started, with weights that are made up."""

import contextlib
import subprocess

import pytest
from conftest import ATOMC, compile, golden_model, is_ours
from vllm import LLM, EngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser

# A model, how it is compiled, and options of vLLM's.
ROWS = [
    ("qwen3", "", ""),
    ("qwen3", "", "-O3"),
    ("qwen3", "", "--block-size 48"),
    ("qwen3", "", "--block-size 64"),
    ("qwen3", "", "--dtype float32"),
    ("qwen3", "", "--kv-cache-dtype fp8"),
    ("hybrid-next", "", "--block-size 32"),
    ("hybrid-next", "", "--block-size 64"),
    ("moe-gpt-oss-mxfp4", "", ""),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a model and an artifact, once for each way to compile it."""
    made: dict = {}

    def make(name: str, how: str):
        if (name, how) not in made:
            folder = golden_model(tmp_path_factory.mktemp("check"), name)
            compile(folder, *how.split())
            made[name, how] = folder
        return made[name, how]

    return make


@pytest.mark.parametrize("name, how, options", ROWS)
def test_atomc_check_says_whether_vllm_starts(folder, name, how, options):
    model, started = folder(name, how), False
    checked = subprocess.run(
        [ATOMC, "check", model, *options.split(), "--for", "vllm"], capture_output=True, text=True
    )
    small = "--load-format dummy --skip-tokenizer-init --kv-cache-memory-bytes 16777216"
    given = EngineArgs.add_cli_args(FlexibleArgumentParser()).parse_args(
        ["--model", str(model), *small.split(), "--max-num-seqs", "4", *options.split()]
    )
    with contextlib.suppress(Exception):  # with whatever it ends: it does not start
        asked = EngineArgs.from_cli_args(given)
        fields = {n: getattr(asked, n) for n in vars(given) if hasattr(asked, n)}
        started = is_ours(LLM(**fields))
    assert started == (checked.returncode == 0), checked.stderr
