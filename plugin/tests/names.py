"""Which names of modules that are loaded a framework's plugins change, as lines. usage: names.py vllm|sglang

It loads what a server of the framework loads, looks at all modules and at all classes in them, has the framework call its plugins, and
looks again."""

import sys
import warnings
from importlib import import_module
from types import ModuleType

# What loads most of a framework, and what calls its plugins.
LOADING = dict(
    vllm=["vllm.entrypoints.cli.main", "vllm.v1.worker.gpu_worker", "vllm.model_executor.models"],
    sglang=[
        "sglang.srt.entrypoints.http_server",
        "sglang.srt.managers.scheduler",
        "sglang.srt.model_executor.model_runner",
        "sglang.srt.speculative.eagle_worker_v2",
    ],
)
PLUGINS = dict(vllm="vllm.plugins:load_general_plugins", sglang="sglang.srt.plugins:load_plugins")


def inside(thing, name: str, seen: set[int]):
    """Names in a module or a class, and in the classes that it has, and what they are."""
    seen.add(id(thing))
    for key, value in list(vars(thing).items()):
        yield f"{name}.{key}", value
        own = isinstance(value, type) and value.__module__ == getattr(thing, "__name__", None)
        if own and id(value) not in seen:
            yield from inside(value, f"{name}.{key}", seen)


def found() -> dict:
    """Everything that is loaded. It is kept, so that nothing else takes its place in memory."""
    modules = [(n, m) for n, m in list(sys.modules.items()) if isinstance(m, ModuleType)]
    return {key: value for name, module in modules for key, value in inside(module, name, set())}


def changed(before: dict, after: dict) -> list[str]:
    """Names that are something else, or gone, or new in a module that was there: but for modules that were loaded since."""
    modules = {name.rpartition(".")[0] for name in before}
    is_new = lambda name: name not in before and name.rpartition(".")[0] in modules
    differ = [n for n in before if n not in after or after[n] is not before[n]]
    new = [n for n in after if is_new(n) and not isinstance(after[n], ModuleType)]
    return sorted(differ + new)


def main(framework: str) -> None:
    warnings.simplefilter("ignore")
    for module in LOADING[framework]:
        import_module(module)
    place, _, name = PLUGINS[framework].partition(":")
    load = getattr(import_module(place), name)
    found()  # which completes what completes itself when it is looked at
    before = found()
    load()
    print("changed:", *changed(before, found()), f"{len(before)} names", sep="\n")


if __name__ == "__main__":
    main(sys.argv[1])
