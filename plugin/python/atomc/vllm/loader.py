"""The load format `atomc`: checkpoints as vLLM reads them, with an artifact named beside it; or made-up weights."""

from dataclasses import replace

from vllm.model_executor.model_loader.default_loader import DefaultModelLoader


class Loader(DefaultModelLoader):
    def __init__(self, load_config):
        options = {"artifact": None, "random": None, **load_config.model_loader_extra_config}
        _, self.seed = options.pop("artifact"), options.pop("random")
        super().__init__(replace(load_config, load_format="auto", model_loader_extra_config=options))

    def load_weights(self, model, model_config) -> None:
        if self.seed is None:
            return super().load_weights(model, model_config)
        model.engine.load_random(self.seed)
