"""The load format `atomc`: packed weights if there are some, else a checkpoint as vLLM reads it; or made-up weights."""

from dataclasses import replace
from pathlib import Path

from .compat import DefaultModelLoader


class Loader(DefaultModelLoader):
    def __init__(self, load_config):
        options = {"artifact": None, "random": None, **load_config.model_loader_extra_config}
        _, self.seed = options.pop("artifact"), options.pop("random")
        super().__init__(
            replace(load_config, load_format="auto", model_loader_extra_config=options)
        )

    def load_weights(self, model, model_config) -> None:
        engine = getattr(model, "engine", None)  # which vLLM's own models do not have
        if engine and self.seed is not None:
            engine.load_random(self.seed)
        elif engine and (packed := Path(model_config.model, engine.packed_name)).exists():
            engine.load(packed)
        else:
            super().load_weights(model, model_config)
