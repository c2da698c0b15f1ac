"""The section `training` of the settings, and the layout of workers.

The workers of a run are **replicas** of the encoder. A replica is one worker, or several that hold
the encoder together. **Stages** follow one another, each with some of the layers (pipeline
parallel). The **members** of a stage have a part of every matrix each (tensor parallel). Replicas
share the granules of a step; the members of one read the same granules.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, model_validator

from pipelines.catalog import ENGINES
from pipelines.settings.base import Settings, choice_of


class Place(NamedTuple):
    """The place of a worker in the layout.

    `stage` counts groups of layers from the embeddings on; `member` is the tensor-parallel rank.
    """

    replica: int
    stage: int
    member: int

    def __str__(self) -> str:
        return f"replica {self.replica}, stage {self.stage}, tensor rank {self.member}"


@dataclass(frozen=True, kw_only=True)
class Placement:
    """The layout of workers. Ranks count members first, then stages, then replicas.

    Neighbouring ranks are mostly on one host, and the members of a stage exchange the most. A
    replica has `stages` stages of `members` members each.
    """

    replicas: int
    stages: int = 1
    members: int = 1

    @property
    def workers(self) -> int:
        """Return the number of workers."""
        return self.replicas * self.per_replica

    @property
    def per_replica(self) -> int:
        """Return the number of workers of one copy of the encoder."""
        return self.stages * self.members

    @property
    def sharing(self) -> str:
        """Return the name of the parties to a step's granules, for messages."""
        return "replicas" if self.is_divided else "workers"

    @property
    def is_divided(self) -> bool:
        """Tell whether a worker holds only a part of the encoder."""
        return self.per_replica > 1

    def place(self, rank: int) -> Place:
        """Return the place of a rank."""
        replica, within = divmod(rank, self.per_replica)
        return Place(replica, *divmod(within, self.members))

    def rank(self, place: Place) -> int:
        """Return the rank of the worker at a place."""
        return (place.replica * self.stages + place.stage) * self.members + place.member

    def replica_ranks(self, rank: int) -> Sequence[int]:
        """Return the ranks of a worker's replica."""
        first = rank - rank % self.per_replica
        return range(first, first + self.per_replica)

    def member_ranks(self, rank: int) -> Sequence[int]:
        """Return the ranks of a worker's stage, in its replica."""
        first = rank - rank % self.members
        return range(first, first + self.members)

    def stage_ranks(self, rank: int) -> Sequence[int]:
        """Return the ranks of a worker's replica with the same part of matrices, by stage."""
        place = self.place(rank)
        return [self.rank(place._replace(stage=stage)) for stage in range(self.stages)]

    def copy_ranks(self, rank: int) -> Sequence[int]:
        """Return the ranks with the same part of the encoder, one of each replica."""
        return range(rank % self.per_replica, self.workers, self.per_replica)


def layers_of_stage(layers: int, stages: int, stage: int) -> range:
    """Return the layers of a stage: as many for each as possible; earlier ones have one more.

    The last stage also compares embeddings, so it is not the one with more.
    """
    each, remainder = divmod(layers, stages)
    first = stage * each + min(stage, remainder)
    return range(first, first + each + (stage < remainder))


logger = logging.getLogger(__name__)

AUTO = "auto"
"""The value of ``training.engine`` that leaves the choice to :mod:`pipelines.engines.automatic`."""
# DeepSpeed always splits something.
_LEAST_SHARDING = {"deepspeed": "optimizer"}


class TrainingSettings(Settings):
    """Which engine trains the encoder, and how."""

    engine: Annotated[str, choice_of(ENGINES, AUTO)] = AUTO
    """[Engine](engines.md) that trains. `auto`: the fastest installed one for session and settings;
    a resumed run keeps its engine."""
    mode: Literal["sync", "async", "hogwild"] = "sync"
    """Update scheme; see [modes](../concepts/modes.md)."""
    framework: Literal["tensorflow", "torch", "bigdl"] = "tensorflow"
    """Library that computes gradients. Unset: engine `auto` chooses it."""
    feed: Literal["lanes", "spark", "memory"] = "lanes"
    """`lanes`: executors read lane files in place; `spark`: Spark feeds partitions; `memory`:
    executors read everything before the first step."""
    workers: int = Field(default=2, ge=1)
    """Training processes, one per executor; always one with `local`."""
    threads: int = Field(default=1, ge=1)
    """CPU threads per worker."""
    model_parallel: int = Field(default=1, ge=1)
    """Workers that share each matrix (tensor parallel); see [large
    encoders](../concepts/large-encoders.md)."""
    pipeline_parallel: int = Field(default=1, ge=1)
    """Consecutive stages of layers (pipeline parallel); see [large
    encoders](../concepts/large-encoders.md)."""
    granules_per_step: int = Field(default=2, ge=1)
    """Granules per update. With `sync`, a multiple of `workers` / (`model_parallel` x
    `pipeline_parallel`)."""
    max_staleness: int | None = Field(default=None, ge=0)
    """`async`, `hogwild`: a step waits for all but this many earlier steps. 0: one at a time. Null:
    no waiting."""
    parameter_servers: int = Field(default=1, ge=1)
    """`tensorflowonspark`, `async`: executors that share the parameters."""
    transport: Literal["http", "socket"] = "http"
    """`elephas`: protocol of its parameter server."""
    sharding: Literal["none", "optimizer", "gradients", "parameters"] = "none"
    """`torch`, `deepspeed`: state to split between workers; each value includes the previous ones.
    With `model_parallel`, `parameters` of `torch` splits a worker's part between replicas.
    `deepspeed` defaults to `optimizer`. See
    [training](../concepts/training.md#sharded-training)."""
    offload: Literal["none", "cpu", "disk"] = "none"
    """`torch`, `deepspeed` with sharding: `cpu` keeps state in host memory; `disk` also keeps
    moments in each worker's `TMPDIR`. See [training](../concepts/training.md#sharded-training)."""
    compression: Literal["none", "fp16", "bf16"] = "none"
    """Format of sent gradients, with half the bytes; the curve is close to that of `none`. `bf16`
    (`torch`): two digits at any size. `fp16` (`horovod`, `bigdl`): three digits, no values below
    6e-8 (`bigdl`: two digits at any size, for weights too)."""
    round_steps: int = Field(default=8, ge=1)
    """`elephas`, `sync`: steps between two averages of the workers' weights."""
    epochs: int = Field(default=1, ge=1)
    """Passes over the lanes."""
    max_steps: int | None = Field(default=None, ge=1)
    """Stop after this many steps."""
    learning_rate: float = Field(default=5e-5, gt=0)
    """Peak learning rate."""
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    """Learning rate after warm-up: falls to zero at the last step, or stays."""
    warmup: float = Field(default=0.1, ge=0, lt=1)
    """Share of steps with a rising learning rate."""
    weight_decay: float = Field(default=0.01, ge=0)
    """Decoupled weight decay (AdamW)."""
    clip_norm: float = Field(default=1.0, ge=0)
    """Largest gradient norm. 0: no clipping."""
    dropout: float | None = Field(default=None, ge=0, lt=1)
    """Dropout. Null: that of the start checkpoint (mostly 0.1 for BERT models, 0 for newer ones); 0
    for `random`. `simcse` requires a value."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Format of matrix products; weights stay fp32. `auto`: bf16 if all workers have instructions
    for it, otherwise fp32 (see `metrics.jsonl`). Set it for `async`, `hogwild` and `elephas` on
    mixed machines: differing choices end the run."""
    activation_checkpointing: bool = False
    """`torch`: keep only layer inputs, and recompute layers for gradients: less memory, a third
    more time."""
    tokens_per_forward: int | None = Field(default=None, ge=1)
    """`torch`: padded tokens per forward pass, for as many granules as fit. Larger granules pass in
    parts, twice, with the same loss. Null: whole granules, of as many tokens as keep the device
    busy. See [training](../concepts/training.md#memory)."""
    compile: bool = False
    """`torch`, encoders of BERT's family: compile the operations between matrix products. See
    [training](../concepts/training.md#compiled-layers)."""
    seed: int = Field(default=17, ge=0)
    """Seed of step order, dropout and random weights."""
    log_every: int = Field(default=10, ge=1)
    """Steps between metrics lines."""
    checkpoint_every: int = Field(default=500, ge=1)
    """Steps between checkpoints."""
    checkpoint_minutes: float | None = Field(default=None, gt=0)
    """`sync`: minutes after which to write a checkpoint too, for preemptible machines."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """Number of newest checkpoints to keep."""
    ema: float | None = Field(default=None, gt=0, lt=1)
    """Decay of an exponential moving average of the weights, which becomes the model (0.999: about
    a thousand steps). See [training](../concepts/training.md#choosing-the-model)."""
    average_checkpoints: int = Field(default=1, ge=1)
    """Checkpoints whose mean becomes the model: the last, and those before it at multiples of
    `checkpoint_every`. All are kept."""
    start_share: Annotated[float, Field(ge=0, lt=1)] | Literal["titles"] = 0.0
    """Share of the start's weights in the model: 0.5 keeps more general knowledge. `titles`: 0.5,
    or one step and the start's weights if most documents of `corpus.pairs: document` lack titles.
    See [training](../concepts/training.md#choosing-the-model)."""
    keep_best: str | None = None
    """Metric that picks the model among checkpoints (`evaluation.every_checkpoints`), such as
    `retrieval.ndcg@10`. Null: the last state."""
    patience: int | None = Field(default=None, ge=1)
    """Consecutive evaluations without a gain in `keep_best` that end training."""
    restarts: int = Field(default=2, ge=0)
    """Most restarts after lost workers: in the same job, from the newest checkpoint, with the
    workers that fit. 0: none."""
    resume: bool = False
    """Resume from the newest checkpoint, if any."""
    start_seconds: int = Field(default=60, ge=5)
    """Deadline to start processes on running executors (see `spark.wait_seconds`), and again for
    all workers to be ready."""
    stall_seconds: int = Field(default=300, ge=5)
    """Deadline for a step. Silent workers fail after 30 s."""

    @property
    def chooses_framework(self) -> bool:
        """Tell whether the framework is still to be chosen, together with the engine."""
        return self.engine == AUTO and "framework" not in self.model_fields_set

    @property
    def processes(self) -> int:
        """Return the number of training processes, which is one for engine `local`."""
        return 1 if self.engine == "local" else self.workers

    @property
    def placement(self) -> Placement:
        """Return the layout of the workers."""
        members, stages = self.model_parallel, self.pipeline_parallel
        replicas = max(self.processes // (members * stages), 1)
        return Placement(replicas=replicas, stages=stages, members=members)

    @property
    def kept_checkpoints(self) -> int:
        """Return the number of checkpoints to keep while a run goes on.

        A restart may need the one before the newest: the driver may not have heard yet of the steps
        that lead to the newest.
        """
        return max(self.keep_checkpoints, 2) if self.restarts else self.keep_checkpoints

    def averaged_steps(self, last_step: int) -> tuple[int, ...]:
        """Return the steps of the averaged checkpoints, oldest first; they are kept.

        `last_step` is that of the newest checkpoint. Other checkpoints by the clock, or on
        preemption, do not count: an interrupted run ends in the same model. Nor does the start: it
        is no state of training.
        """
        every = self.checkpoint_every
        before = range((last_step - 1) // every * every, 0, -every)
        return (*reversed(before[: self.average_checkpoints - 1]), last_step)

    @model_validator(mode="before")
    @classmethod
    def _read_earlier(cls, tree: Any) -> Any:
        """Accept ``elastic`` of earlier releases, for this release."""
        if not isinstance(tree, dict) or "elastic" not in tree:
            return tree
        if tree["elastic"]:
            logger.warning("training.elastic is what training.restarts does now, for all engines")
        return {key: value for key, value in tree.items() if key != "elastic"}

    @model_validator(mode="before")
    @classmethod
    def _with_defaults_of_the_engine(cls, tree: Any) -> Any:
        """Set the least sharding that the engine needs, unless the settings name one."""
        engine = tree.get("engine") if isinstance(tree, dict) else None
        least = _LEAST_SHARDING.get(engine) if isinstance(engine, str) else None
        return tree if least is None else {"sharding": least, **tree}
