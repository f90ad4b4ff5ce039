"""`atomc check` says whether SGLang would run an artifact: each row of a list is started, up to a model with weights that are made up."""

import contextlib
import subprocess

import pytest
from conftest import ATOMC, compile, every_other, forked, golden_model, runner

OURS = "--attention-backend atomc"
# A model, how it is compiled, and options of SGLang's.
ROWS = [
    ("qwen3", "", ""),
    ("qwen3", "", OURS),
    ("qwen3", "", "--dtype float32"),
    ("qwen3", "--invariant", f"--enable-deterministic-inference {OURS}"),
    ("qwen3", "--invariant", "--enable-deterministic-inference --attention-backend torch_native"),
    ("moe-glm", "--invariant", "--enable-deterministic-inference"),
    ("hybrid-next", "", OURS),
    ("hybrid-next", "", f"--disable-radix-cache {OURS}"),
    ("hybrid-next", "", f"--mamba-radix-cache-strategy no_buffer {OURS}"),
    ("hybrid-next bare", "", OURS),
    ("moe-gpt-oss", "", ""),
    ("moe-gpt-oss", "", OURS),
    ("moe-gpt-oss-mxfp4", "", ""),
    ("q-gptq", "", OURS),
    ("q-fp8-block", "", OURS),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a model and an artifact, once for each way to compile it."""
    made: dict = {}

    def make(name: str, how: str):
        if (name, how) not in made:
            model, *bare = name.split()
            folder = golden_model(tmp_path_factory.mktemp("check"), model)
            if model.startswith("hybrid") and not bare:
                every_other(folder)
            compile(folder, *how.split())
            made[name, how] = folder
        return made[name, how]

    return make


def starts(folder, options: list[str]) -> bool:
    """Whether SGLang does, as far as a model that runs."""
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args

    def start():
        load_plugins()  # as the server does before it reads options
        given = prepare_server_args(["--model-path", str(folder), *options])
        names = [option[2:].replace("-", "_") for option in options if option.startswith("--")]
        asked = {name: getattr(given, name) for name in names}
        asked = dict(attention_backend=None) | asked
        loaded = runner(folder, load_format="dummy", **asked)
        return type(loaded.torch_runner.model).__module__

    with contextlib.suppress(Exception):  # with whatever it ends: it does not start
        return forked(start) == "atomc.sglang.model"
    return False


@pytest.mark.parametrize("name, how, options", ROWS)
def test_atomc_check_says_whether_sglang_starts(folder, name, how, options):
    model = folder(name, how)
    checked = subprocess.run(
        [ATOMC, "check", model, *options.split(), "--for", "sglang"], capture_output=True, text=True
    )
    assert starts(model, options.split()) == (checked.returncode == 0), checked.stderr
