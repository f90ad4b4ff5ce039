"""What `/metrics` says of an artifact: `atomc:artifact_info`, which is 1 where one runs."""

from functools import cache

from prometheus_client import Gauge

from atomc.frameworks import disabled, located

from . import compat, config

LABELS = ("engine", "model_name", "architecture", "artifact", "fingerprint", "attention")


@cache
def gauge() -> Gauge:
    """One in each process, however many engines it has."""
    return Gauge(
        "atomc:artifact_info", "The artifact that runs.", LABELS, multiprocess_mode="mostrecent"
    )


class Info(compat.StatLoggerBase):
    """Entry point of `vllm.stat_logger_plugins`: vLLM makes one for each engine when it serves."""

    def __init__(self, vllm_config, engine_index: int = 0):
        model = vllm_config.model_config
        artifact = None if disabled() else located(config.wanted(vllm_config), config.logger)[0]
        if artifact and model.architecture in compat.ARCHITECTURES:
            facts = (artifact.architecture, artifact.path, artifact.fingerprint, config.attention())
            gauge().labels(engine_index, model.served_model_name, *facts).set(1)

    def record(self, *_, **__): ...

    def log_engine_initialized(self): ...
