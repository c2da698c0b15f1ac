"""The engines by name. A new engine is one file, and one line here.

The file has a class that derives from :class:`~pipelines.engines.spark_engine.SparkJobEngine` if
one Spark job runs all workers, or else from :class:`~pipelines.engines.spark_engine.SparkEngine`
or :class:`~pipelines.engines.base.Engine`. The overview, the generated page, the checks and the
contract tests follow from what it declares.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines.registry import Registry

if TYPE_CHECKING:
    from pipelines.engines.base import Engine

ENGINES: Registry[type[Engine]] = Registry(
    kind="engine",
    key="training.engine",
    entries={
        "local": "pipelines.engines.local:LocalEngine",
        "bigdl": "pipelines.engines.bigdl.engine:BigDLEngine",
        "deepspeed": "pipelines.engines.deepspeed:DeepSpeedEngine",
        "elephas": "pipelines.engines.elephas.engine:ElephasEngine",
        "horovod": "pipelines.engines.horovod.engine:HorovodEngine",
        "megatron": "pipelines.engines.megatron:MegatronEngine",
        "mesh": "pipelines.engines.mesh.engine:MeshEngine",
        "tensorflowonspark": "pipelines.engines.tensorflowonspark.engine:TensorFlowOnSparkEngine",
        "torch": "pipelines.engines.torch:TorchEngine",
    },
)
