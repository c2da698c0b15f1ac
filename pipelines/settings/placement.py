"""Which part of an encoder, and which part of a step, each worker has.

The workers of a run are **replicas** of the encoder. A replica may be a single worker, or several
that hold the encoder together: in **stages**, one behind the other, each with some of the layers
(pipeline parallel), and within a stage as **members**, side by side, each with a part of every
matrix (tensor parallel). Steps are shared by replicas: the members of one read the same granules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Place(NamedTuple):
    """Where a worker stands.

    Attributes:
        replica: Which copy of the encoder it belongs to.
        stage: Which of its groups of layers, from the embeddings on.
        member: Which part of their matrices: what others call the tensor parallel rank.
    """

    replica: int
    stage: int
    member: int

    def __str__(self) -> str:
        return f"replica {self.replica}, stage {self.stage}, tensor rank {self.member}"


@dataclass(frozen=True, kw_only=True)
class Placement:
    """How the workers are laid out; their ranks count members first, then stages, then replicas.

    Neighbouring ranks are mostly on one host, and the members of a stage exchange the most.

    Attributes:
        replicas: Copies of the encoder.
        stages: Of each replica.
        members: Of each stage.
    """

    replicas: int
    stages: int = 1
    members: int = 1

    @property
    def workers(self) -> int:
        """All of them."""
        return self.replicas * self.per_replica

    @property
    def per_replica(self) -> int:
        """Workers that hold one copy of the encoder together."""
        return self.stages * self.members

    @property
    def sharing(self) -> str:
        """What shares the granules of a step, for messages."""
        return "replicas" if self.is_divided else "workers"

    @property
    def is_divided(self) -> bool:
        """Whether a worker holds a part of the encoder only."""
        return self.per_replica > 1

    def place(self, rank: int) -> Place:
        """Where the worker of a rank stands."""
        replica, within = divmod(rank, self.per_replica)
        return Place(replica, *divmod(within, self.members))

    def rank(self, place: Place) -> int:
        """The rank of the worker that stands at a place."""
        return (place.replica * self.stages + place.stage) * self.members + place.member

    def replica_ranks(self, rank: int) -> Sequence[int]:
        """The workers of a worker's replica."""
        first = rank - rank % self.per_replica
        return range(first, first + self.per_replica)

    def member_ranks(self, rank: int) -> Sequence[int]:
        """The workers of a worker's stage, in its replica."""
        first = rank - rank % self.members
        return range(first, first + self.members)

    def stage_ranks(self, rank: int) -> Sequence[int]:
        """The workers of a worker's replica that hold the same part of matrices, by stage."""
        place = self.place(rank)
        return [self.rank(place._replace(stage=stage)) for stage in range(self.stages)]

    def copy_ranks(self, rank: int) -> Sequence[int]:
        """The workers that hold the same part of the encoder, one of each replica."""
        return range(rank % self.per_replica, self.workers, self.per_replica)


def layers_of_stage(layers: int, stages: int, stage: int) -> range:
    """The layers of a stage: as many for each as possible, the earlier ones having one more.

    The last stage also compares embeddings, so it is not the one with more.
    """
    each, more = divmod(layers, stages)
    first = stage * each + min(stage, more)
    return range(first, first + each + (stage < more))
