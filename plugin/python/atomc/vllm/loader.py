"""The load format `atomc`: vLLM's own reading of checkpoints, with an artifact named beside it."""

from dataclasses import replace

from vllm.config.load import LoadConfig
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader


class Loader(DefaultModelLoader):
    def __init__(self, load_config: LoadConfig):
        options = {k: v for k, v in load_config.model_loader_extra_config.items() if k != "artifact"}
        super().__init__(replace(load_config, load_format="auto", model_loader_extra_config=options))
