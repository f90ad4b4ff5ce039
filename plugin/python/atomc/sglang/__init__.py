"""SGLang serves models through atomc artifacts: SGLANG_EXTERNAL_MODEL_PACKAGE names this package; see docs/sglang.md."""

import time
from importlib import import_module


def prepare_model(config, *, architecture: str = "", **options):
    """The model that SGLang runs for a Hugging Face configuration, under the options of this process: that of the artifact which
    the model has, or one of SGLang's own class. `architecture` is a class that stands in for the one that the configuration names.
    Options are those of SGLang's classes, as `quant_config` and `prefix`. Torch's default type is the model's, as in SGLang's loader.

    What it uses of SGLang it imports when it is called, and fails if it is not there: SGLang forgives what cannot be imported."""
    compat, adapters, choice = (
        import_module(f".{name}", __name__) for name in ("compat", "adapters", "config")
    )
    began, architecture = time.perf_counter(), architecture or config.architectures[0]
    if (artifact := choice.find(architecture)) is None:
        return compat.own_class(architecture)(config, **options)
    if architecture in compat.DRAFTS:
        return import_module(".draft", __name__).draft(artifact, architecture)
    architecture = compat.CALLED.get(config.model_type, architecture)
    adapter = adapters.adapter(architecture, artifact)
    model = adapter.construct(
        adapter, artifact, adapter.prepare(config) | {"architectures": [architecture]}
    )
    choice.logger.info(
        "atomc: %s; opened in %.0f ms", model.engine, (time.perf_counter() - began) * 1e3
    )
    return model
