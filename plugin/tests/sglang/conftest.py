"""What the tests share: engines, models of one step each, and what is in `models.py`."""

import json
import multiprocessing
import os
import pickle
import sys
import time
import traceback
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

pytest.register_assert_rewrite("serving")
from models import (  # noqa: E402, F401
    ATOMC,
    EXAMPLES,
    PROBLEMS,
    bare,
    compile,
    golden_model,
    large_model,
    model,
    often_right,
    reference,
    trusted,
    with_draft,
)

os.environ.update(SGLANG_EXTERNAL_MODEL_PACKAGE="atomc.sglang", ATOMC_STRICT="1")
# A child that is forked has no use of the threads that its parent's products had, and waits for
# them.
torch.set_num_threads(1)
# Only an artifact attends with it, so any answer comes from one.
OURS = dict(attention_backend="atomc")
# Packages that SGLang imports for what these tests do not do.
ABSENT = Path(__file__).with_name("absent")
if version("sglang") == "0.5.11":
    # It imports its kernels when it starts, and finds pages with one of Triton's, which has an
    # interpreter for processors.
    sys.path.append(str(ABSENT))
    os.environ.update(PYTHONPATH=str(ABSENT), TRITON_INTERPRET="1")

# What AMD's guides have for large models with experts, with two ranks, and `--cuda-graph-max-bs` by
# the name that 0.5.23 has for it.
LARGE = "--tensor-parallel-size 2 --expert-parallel-size 2 --trust-remote-code --kv-cache-dtype fp8_e4m3 --page-size 1024"
LARGE += " --cuda-graph-max-bs-decode 16 --mem-fraction-static 0.8"


def engines():
    """Engines by their arguments."""
    import sglang

    made = {}

    def make(folder, **options):
        key = (folder, repr(sorted(options.items())))
        if key not in made:
            made[key] = sglang.Engine(
                model_path=str(folder),
                log_level="warning",
                **{**OURS, "max_total_tokens": 8192, **options},
            )
        return made[key]

    yield make
    for one in made.values():
        one.shutdown()


# For as long as the tests of a file run, or one test: an engine that waits takes a core's time.
engine = pytest.fixture(engines, scope="module", name="engine")
engine_of_test = pytest.fixture(engines, name="engine_of_test")


# How SGLang is told that requests are text alone, of a model that has other parts too.
TEXT_ALONE = dict(json_model_override_args='{"language_model_only": true}')


def every_other(folder: Path) -> None:
    """Says in SGLang's way that every other layer attends: which layers do it does not look up."""
    config = folder / "config.json"
    facts = json.loads(config.read_text())
    facts.get("text_config", facts)["full_attention_interval"] = 2
    config.write_text(json.dumps(facts))


def answers(engine, prompts, tokens=80, **options):
    """Greedy answers, each with what SGLang says of it."""
    return engine.generate(prompts, {"temperature": 0, "max_new_tokens": tokens, **options})


def until_idle(engine):
    """Waits for the scheduler to be done with its requests, which it is some time after their answers. Without it SGLang ends all of
    its processes where it is asked for what only an idle scheduler does."""
    for _ in range(600):
        if engine.flush_cache().success:
            return
        time.sleep(0.1)
    raise TimeoutError("a minute after its answers the scheduler still has requests")


def greedy(engine, prompts, tokens=80, **options):
    return [answer["text"] for answer in answers(engine, prompts, tokens, **options)]


def forked(work, *arguments):
    """What work gives in a child of this process, which has imported all that it wants: SGLang's state of a process is the child's.
    What it raises is raised here."""

    def run():
        try:
            found = work(*arguments), None
        except Exception as fault:
            # Pickling keeps notes and no traceback.
            fault.add_note(traceback.format_exc())
            found = None, fault
        # Results are pickled with their tensors, as shared memory ends with the child.
        sender.send_bytes(pickle.dumps(found))
        os._exit(0)

    import sglang.benchmark.one_batch  # noqa: F401, once for all children

    receiver, sender = multiprocessing.Pipe(False)
    child = multiprocessing.get_context("fork").Process(target=run)
    child.start()
    sender.close()
    try:
        found, fault = pickle.loads(receiver.recv_bytes())
    finally:
        child.join()
    if fault:
        raise fault
    return found


def runner(folder, **options):
    """SGLang's own runner of a model, in this process, without a scheduler."""
    from sglang.benchmark import one_batch
    from sglang.srt.plugins import load_plugins
    from sglang.srt.runtime_context import SpawnRanks, publish
    from sglang.srt.server_args import PortArgs, ServerArgs

    load_plugins()
    asked = {
        **OURS,
        "max_total_tokens": 4096,
        "max_running_requests": 8,
        "skip_tokenizer_init": True,
        **options,
    }
    arguments = ServerArgs(model_path=str(folder), device="cpu", **asked)
    arguments.resolve_once()
    publish(arguments, role="scheduler", ranks=SpawnRanks(world_rank=0, gpu_id=0))
    one_batch._init_process_global_configs()
    one_batch.get_tokenizer = lambda *_, **__: None
    return one_batch.load_model(arguments, PortArgs.init_new(arguments), 0, 0)[0]


def logits(runner, prompts):
    """Logits after each of some prompts, which are one step."""
    from sglang.benchmark.one_batch import prepare_synthetic_inputs_for_latency_test

    requests = prepare_synthetic_inputs_for_latency_test(len(prompts), 0, prompts)
    return runner.extend(requests)[1]
