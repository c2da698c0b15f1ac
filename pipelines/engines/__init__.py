"""The engines by name. A new engine is one file, and one line here."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from pipelines.engines.base import Engine
from pipelines.errors import EngineUnavailable, InputError

REGISTRY: Mapping[str, str] = {
    "local": "pipelines.engines.local:LocalEngine",
    "bigdl": "pipelines.engines.bigdl:BigDLEngine",
    "deepspeed": "pipelines.engines.deepspeed:DeepSpeedEngine",
    "elephas": "pipelines.engines.elephas:ElephasEngine",
    "horovod": "pipelines.engines.horovod:HorovodEngine",
    "tensorflowonspark": "pipelines.engines.tensorflowonspark:TensorFlowOnSparkEngine",
    "torch": "pipelines.engines.torch:TorchEngine",
}


def engine(name: str) -> Engine:
    """The engine of a name; imports its module.

    Raises:
        InputError: There is no such engine.
        EngineUnavailable: Its library is not installed.
    """
    if name not in REGISTRY:
        known = ", ".join(sorted(REGISTRY))
        raise InputError("training.engine", f"there is no engine `{name}`", f"one of {known}")
    module, _, class_name = REGISTRY[name].partition(":")
    try:
        made: Engine = getattr(import_module(module), class_name)()
    except ImportError as error:
        raise EngineUnavailable(
            "training.engine",
            f"engine {name} cannot be loaded ({error})",
            f'pip install "sentence-pipelines[{name}]" on the driver and every executor',
        ) from error
    return made
