"""The section `training` of the settings, and the layout of workers.

The workers of a run are **replicas** of the encoder. A replica is one worker, or several that hold
the encoder together: in **stages**, one behind the other, each with some of the layers (pipeline
parallel), and within a stage as **members**, side by side, each with a part of every matrix (tensor
parallel). Replicas share the granules of a step; the members of one read the same granules.
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
        """Return the number of workers that hold one copy of the encoder together."""
        return self.stages * self.members

    @property
    def sharing(self) -> str:
        """Return what shares the granules of a step, for messages."""
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
    each, more = divmod(layers, stages)
    first = stage * each + min(stage, more)
    return range(first, first + each + (stage < more))


logger = logging.getLogger(__name__)

AUTO = "auto"
"""The value of ``training.engine`` that leaves the choice to :mod:`pipelines.engines.automatic`."""
_LEAST_SHARDING = {"deepspeed": "optimizer"}


class TrainingSettings(Settings):
    """Which engine trains the encoder, and how."""

    engine: Annotated[str, choice_of(ENGINES, AUTO)] = AUTO
    """The engine that trains. `auto`: the fastest that is installed and fits the session and the
    settings; a resumed run keeps its own. See [engines](engines.md)."""
    mode: Literal["sync", "async", "hogwild"] = "sync"
    """How updates are made; see [modes](../concepts/modes.md)."""
    framework: Literal["tensorflow", "torch", "bigdl"] = "tensorflow"
    """Framework that computes the gradients. Unset, engine `auto` chooses it as well."""
    feed: Literal["lanes", "spark", "memory"] = "lanes"
    """`lanes`: executors read lane files in place; `spark`: partitions are fed; `memory`: all is
    read before the first step."""
    workers: int = Field(default=2, ge=1)
    """Training processes, one per executor; engine `local` has one only."""
    threads: int = Field(default=1, ge=1)
    """CPU threads per worker."""
    model_parallel: int = Field(default=1, ge=1)
    """Workers that hold each layer together, a part of every matrix each (tensor parallel); see
    [large encoders](../concepts/large-encoders.md)."""
    pipeline_parallel: int = Field(default=1, ge=1)
    """Stages, one behind the other, that the layers are divided into (pipeline parallel); see
    [large encoders](../concepts/large-encoders.md)."""
    granules_per_step: int = Field(default=2, ge=1)
    """Granules per update; with `sync` a multiple of `workers`, or of `workers` / (`model_parallel`
    x `pipeline_parallel`) where several hold the encoder together."""
    max_staleness: int | None = Field(default=None, ge=0)
    """`async`, `hogwild`: a step waits until all steps more than this many before it are done; 0:
    one step at a time; unset: no step waits."""
    parameter_servers: int = Field(default=1, ge=1)
    """`async` of `tensorflowonspark`: executors that share the parameters."""
    transport: Literal["http", "socket"] = "http"
    """How workers of `elephas` reach its parameter server."""
    sharding: Literal["none", "optimizer", "gradients", "parameters"] = "none"
    """`torch`, `deepspeed`: what is split between the workers instead of being held by each; each
    value includes those before it. With `model_parallel`, `parameters` of `torch` splits the part
    of each worker between the replicas. Unset, `deepspeed` has `optimizer`, since it always splits
    something."""
    offload: Literal["none", "cpu", "disk"] = "none"
    """`torch`, `deepspeed` with a sharding: where workers keep what they need once in a step.
    `cpu`: the state is in the memory of the host, not of the GPU; `disk`: there too, and the
    optimiser's moments are in a file on the disk of the worker (`TMPDIR`), which goes with it. See
    [training](../concepts/training.md#sharded-training)."""
    compression: Literal["none", "fp16"] = "none"
    """`horovod`, `bigdl`: number format in which gradients are sent. `fp16`: half the bytes and
    three digits, and values below 6e-8 are lost (`bigdl`: two digits at any size, for weights
    too)."""
    round_steps: int = Field(default=8, ge=1)
    """`sync` of `elephas`: steps between two averages of the workers' weights."""
    epochs: int = Field(default=1, ge=1)
    """Passes over the lanes."""
    max_steps: int | None = Field(default=None, ge=1)
    """Stop after this many steps."""
    learning_rate: float = Field(default=5e-5, gt=0)
    """Peak learning rate."""
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    """Learning rate after warm-up: falls to zero at the last step, or stays."""
    warmup: float = Field(default=0.1, ge=0, lt=1)
    """Share of the steps over which the learning rate rises."""
    weight_decay: float = Field(default=0.01, ge=0)
    """Decoupled weight decay (AdamW)."""
    clip_norm: float = Field(default=1.0, ge=0)
    """Largest gradient norm; 0: no clipping."""
    dropout: float | None = Field(default=None, ge=0, lt=1)
    """Share of activations that are set to zero. Unset: what the start checkpoint was trained with
    (mostly 0.1 for the BERT family, 0 for newer models); 0 for `random`. `simcse` needs it to be
    set."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Number format of matrix products; weights stay fp32. `auto`: bf16 where the GPUs or CPUs of
    all workers have instructions for it, otherwise fp32: emulated bf16 takes many times as long.
    `metrics.jsonl` says which it was. In the modes `async` and `hogwild`, and where `elephas`
    averages, each worker decides alone, and the run ends if they differ: set it where machines are
    not alike."""
    activation_checkpointing: bool = False
    """`torch`: keep only the input of each layer, and compute the layer again for its gradient:
    less memory, a third more time."""
    tokens_per_micro_batch: int | None = Field(default=None, ge=1)
    """`torch`: padded tokens that are embedded at once; a granule that has more on a side is
    embedded in parts, twice, with the same loss. Unset: granules as they are. See
    [training](../concepts/training.md#memory)."""
    seed: int = Field(default=17, ge=0)
    """Seed of step order, dropout and random weights."""
    log_every: int = Field(default=10, ge=1)
    """Steps between two metrics lines."""
    checkpoint_every: int = Field(default=500, ge=1)
    """Steps between two checkpoints."""
    checkpoint_minutes: float | None = Field(default=None, gt=0)
    """`sync`: minutes after which there is a checkpoint too, whatever `checkpoint_every` says; for
    machines that may be taken away."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """Newest checkpoints that are kept; older ones are deleted."""
    ema: float | None = Field(default=None, gt=0, lt=1)
    """The model is an exponential moving average of the weights, with this decay (0.999: over some
    thousand steps). See [training](../concepts/training.md#choosing-the-model)."""
    average_checkpoints: int = Field(default=1, ge=1)
    """The model is the mean of so many checkpoints, the last one and those before it at multiples
    of `checkpoint_every`; all are kept."""
    start_share: Annotated[float, Field(ge=0, lt=1)] | Literal["titles"] = 0.0
    """The model is this share of the start's weights and the rest of the trained ones, whichever
    state that is; 0: the trained ones alone. 0.5 keeps what the start knew of other texts.
    `titles`: 0.5, unless most documents of `corpus.pairs: document` have no title: then one step is
    made, and the model keeps the start's weights. See
    [training](../concepts/training.md#choosing-the-model)."""
    keep_best: str | None = None
    """The model is the checkpoint that was best by this metric of the evaluations during training
    (`evaluation.every_checkpoints`), for example `retrieval.ndcg@10`. Unset: the last state."""
    patience: int | None = Field(default=None, ge=1)
    """Training ends early once so many evaluations in a row were no better by
    `training.keep_best`."""
    restarts: int = Field(default=2, ge=0)
    """When a worker is lost, a run goes on from its newest checkpoint within the same job, with the
    workers that the cluster has room for, at most this many times. 0: it ends."""
    resume: bool = False
    """Resume from the newest checkpoint, if there is one."""
    start_seconds: int = Field(default=60, ge=5)
    """Deadline, of its own each, for the engine to start its processes on executors that are there
    (see `spark.wait_seconds`), and for all workers to be ready to train."""
    stall_seconds: int = Field(default=300, ge=5)
    """Deadline for a step; a worker that sends nothing is given up after 30 s."""

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
        """Return the steps of the checkpoints that the model averages, oldest first; they are kept.

        `last_step` is that of the newest checkpoint. Other checkpoints by the clock, or written as
        a machine went, are left out, so that the model is the same whatever happened on the way. So
        is the start, which is no state of training.
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
