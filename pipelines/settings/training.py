"""Settings of what is trained, how, and who follows it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pipelines.settings.base import Settings


class EncoderSettings(Settings):
    """What is trained. The shape keys count only with `start: random`."""

    start: str = Field(
        default="default",
        description="A checkpoint folder, `random`, or `default` (the packaged all-MiniLM-L6-v2).",
    )
    kind: Literal["transformer", "bag"] = Field(
        default="transformer",
        description=(
            "`transformer`: of the BERT family; `bag`: the mean of static token embeddings, for "
            "which of the shape keys only `hidden` and `normalise` count."
        ),
    )
    layers: int = Field(default=4, ge=1, description="Transformer layers.")
    hidden: int = Field(default=256, ge=8, description="Width.")
    heads: int = Field(default=4, ge=1, description="Attention heads; a divisor of `hidden`.")
    intermediate: int | None = Field(
        default=None, ge=8, description="Feed-forward width; 4 x `hidden` unless set."
    )
    pooling: Literal["mean", "cls"] = Field(default="mean", description="Tokens to sentence.")
    normalise: bool = Field(default=True, description="Embeddings of length 1.")


class ObjectiveSettings(Settings):
    """What is minimised."""

    name: Literal["in_batch_negatives", "cosine_regression", "twins"] = Field(
        default="in_batch_negatives", description="The loss."
    )
    temperature: float = Field(default=0.05, gt=0, description="Divides cosine similarities.")
    negatives: Literal["granule", "step"] = Field(
        default="granule", description="Where negatives come from: the granule, or the whole step."
    )


class TrainingSettings(Settings):
    """How it is trained."""

    engine: str = Field(default="tensorflowonspark", description="A name in the engine table.")
    mode: Literal["sync", "async", "hogwild"] = Field(default="sync", description="Update rule.")
    framework: Literal["tensorflow", "torch", "bigdl"] = Field(
        default="tensorflow", description="Who computes the gradients."
    )
    feed: Literal["lanes", "spark", "memory"] = Field(
        default="lanes",
        description=(
            "`lanes`: executors read lane files in place; `spark`: partitions are fed; "
            "`memory`: all is read before the first step."
        ),
    )
    workers: int = Field(default=2, ge=1, description="Processes that train, one an executor.")
    threads: int = Field(default=1, ge=1, description="CPU threads a worker.")
    granules_per_step: int = Field(
        default=2, ge=1, description="Granules of one update; with `sync` a multiple of `workers`."
    )
    max_staleness: int | None = Field(
        default=None,
        ge=0,
        description=(
            "`async`, `hogwild`: a step waits for all that are more than so many before it; "
            "0: in step; unset: it never waits."
        ),
    )
    parameter_servers: int = Field(
        default=1,
        ge=1,
        description="`async` of `tensorflowonspark`: executors that share the parameters.",
    )
    transport: Literal["http", "socket"] = Field(
        default="http", description="How workers of `elephas` reach its parameter server."
    )
    sharding: Literal["none", "optimizer", "gradients", "parameters"] = Field(
        default="none",
        description=(
            "`torch`, `deepspeed`: what is split between the workers instead of being held by "
            "each; each value includes those before it."
        ),
    )
    compression: Literal["none", "fp16"] = Field(
        default="none",
        description=(
            "`horovod`, `bigdl`: what gradients travel as. `fp16`: half the bytes, and three "
            "digits; what is below 6e-8 is lost (`bigdl`: two digits of any size, and the weights "
            "too)."
        ),
    )
    elastic: bool = Field(
        default=False,
        description=(
            "`horovod`: when a worker is lost, fewer of them go on from the newest checkpoint. "
            "The steps since then are made again: see `checkpoint_every`."
        ),
    )
    round_steps: int = Field(
        default=8, ge=1, description="`sync` of `elephas`: steps between two averagings."
    )
    epochs: int = Field(default=1, ge=1, description="Passes over the lanes.")
    max_steps: int | None = Field(default=None, ge=1, description="Stop after so many steps.")
    learning_rate: float = Field(default=5e-5, gt=0, description="At its highest.")
    schedule: Literal["linear", "cosine", "constant"] = Field(
        default="linear", description="Decay after warm-up, to zero at the last step."
    )
    warmup: float = Field(default=0.1, ge=0, lt=1, description="Share of the steps.")
    weight_decay: float = Field(default=0.01, ge=0, description="Decoupled (AdamW).")
    clip_norm: float = Field(
        default=1.0, ge=0, description="Largest gradient norm; 0: no clipping."
    )
    dropout: float = Field(
        default=0.0, ge=0, lt=1, description="Share of activations; `twins` needs it."
    )
    precision: Literal["auto", "fp32", "bf16"] = Field(
        default="auto",
        description=(
            "Of the matrix products; weights stay fp32. `auto`: bf16 on a GPU, fp32 on a CPU, "
            "which without the instructions for it takes many times as long in bf16."
        ),
    )
    activation_checkpointing: bool = Field(
        default=False,
        description=(
            "`torch`: keep the input of each layer only, and compute the layer once more for its "
            "gradient: less memory, a third more time."
        ),
    )
    seed: int = Field(default=17, ge=0, description="Decides step order, noise, random weights.")
    log_every: int = Field(default=10, ge=1, description="Steps between two metrics lines.")
    checkpoint_every: int = Field(default=500, ge=1, description="Steps between two checkpoints.")
    keep_checkpoints: int = Field(default=2, ge=1, description="Older ones are deleted.")
    resume: bool = Field(default=False, description="Go on from the newest checkpoint, if any.")
    start_seconds: int = Field(
        default=60,
        ge=5,
        description=(
            "Deadline for the executors to be there, for the engine to start its processes on "
            "them, and for all workers to be ready to train; for each of these."
        ),
    )
    stall_seconds: int = Field(
        default=300,
        ge=5,
        description="Deadline for a step; a silent worker is given up after 30 s.",
    )


class TrackingSettings(Settings):
    """Where a run can be followed, beside its own folder."""

    trackers: tuple[str, ...] = Field(
        default=(), description="Any of `mlflow` and `tensorboard`; see [tracking](tracking.md)."
    )
    mlflow_uri: str | None = Field(
        default=None,
        description=(
            "Tracking server or store. Unset: as MLflow finds it, by `MLFLOW_TRACKING_URI` or on "
            "Databricks."
        ),
    )
    mlflow_experiment: str | None = Field(
        default=None,
        description="Experiment, made if there is none. Unset: as MLflow finds it.",
    )
    mlflow_run_name: str | None = Field(
        default=None, description="Name of the run; that of `run.folder` unless set."
    )
    mlflow_registered_model: str | None = Field(
        default=None, description="Register the model as a version of this one."
    )
    tensorboard_folder: str | None = Field(
        default=None,
        description=(
            "Event files go to a folder in it that is named after `run.folder`; unset: to "
            "`tensorboard` in `run.folder`."
        ),
    )
    wait_seconds: int = Field(
        default=60,
        ge=0,
        description="A job that ends waits at most so long for trackers to take what is left.",
    )


class RunSettings(Settings):
    """Where the results go."""

    folder: str = Field(
        default="runs/default", description="Folder that the driver and every executor can reach."
    )
    overwrite: bool = Field(
        default=False, description="Delete a run that the folder holds, and begin anew."
    )
