"""The frameworks' sides of training, imported only in a worker.

Each framework has one, and so have the engines that split the state between the workers.
"""

from __future__ import annotations

from typing import Any

from pipelines.registry import Registry

# Of factories of steppers: see pipelines.training.steppers.base.
STEPPERS: Registry[Any] = Registry(
    "stepper",
    "training.framework",
    {
        "tensorflow": "pipelines.training.steppers.tensorflow:TensorFlowStepper",
        "torch": "pipelines.training.steppers.torch:TorchStepper",
        "torch-fsdp": "pipelines.training.steppers.fsdp:FsdpStepper",
        "torch-tensor": "pipelines.training.steppers.model_parallel:ModelParallelStepper",
        "torch-tensor-fsdp": "pipelines.training.steppers.divided_fsdp:DividedFsdpStepper",
        "torch-pipeline": "pipelines.training.steppers.pipeline:PipelineStepper",
        "deepspeed-pipeline": (
            "pipelines.training.steppers.deepspeed_pipeline:DeepSpeedPipelineStepper"
        ),
        "deepspeed": "pipelines.training.steppers.deepspeed:DeepSpeedStepper",
        "megatron": "pipelines.training.steppers.megatron:MegatronStepper",
        "mesh": "pipelines.training.steppers.mesh:MeshStepper",
    },
)
