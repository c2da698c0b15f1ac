"""The loss that a framework minimises in a step, with negatives on any worker.

Runs on executors.

A worker compares its own examples with the candidates of all workers, some examples at a time, and
sends the gradients of the candidates to the workers that embedded them. With E examples in a step,
C candidates (E positives, n E hard negatives where examples have n, and E more where anchors are
compared with anchors), embeddings of d numbers and W workers, a worker

- makes 6 S d E/W multiplications and additions (two matrix products for the gradients, one before),
  with S the candidates of all compared directions: C unless the loss names others,
- holds about 7 C d fp32 numbers, as measured (the candidates, also joined if there are hard
  negatives, the gradients from some examples, the sum of these, its sent part, and PyTorch's
  temporary copy), and arrays of ``SIMILARITIES`` similarities, or C if that is more: 4 of them, 6
  with hardness, a margin or all directions, 7 with all of these; never the C E/W of all its
  examples. The allocator of glibc may hold as much again, unless ``MALLOC_MMAP_THRESHOLD_`` is set
  in the environment,
- receives C d numbers of candidates, sends as many of gradients, and gathers 8 bytes for each text
  and each group,
- gathers (E + C) t numbers more where a teacher with vectors of t numbers detects false negatives,
  holds them up to twice (joined, where there are hard negatives), and multiplies them too.

Source: gradient caching, Gao, Zhang, Han and Callan, "Scaling Deep Contrastive Learning Batch Size
under Memory Limited Setup", RepL4NLP 2021, arXiv:2101.06983; similarities in parts after Cheng et
al., "Breaking the Memory Barrier: Near Infinite Batch Size Scaling for Contrastive Loss", 2024,
arXiv:2410.17243.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import iadd
from typing import Any

import numpy as np

from pipelines.catalog import LOSSES
from pipelines.lanes.files import Granule
from pipelines.losses.candidates import (
    Candidates,
    Picks,
    Targets,
    granule_targets,
    identities,
    teachers_vectors,
)
from pipelines.losses.loss import configured_loss, spans_steps
from pipelines.runs.run import TrainingRun
from pipelines.settings import ObjectiveSettings
from pipelines.training.collectives.base import Collectives

SIMILARITIES = 2**22
"""Similarities of anchors and candidates in memory at once: 16 MiB."""

GradientsOf = Callable[[list[Any], Picks, float], tuple[Any, Sequence[Any]]]
"""Maps some anchors [anchors, width], or all if they are candidates too, and all candidates, side
by side; the anchors' picks; and these anchors' share of the worker's. Returns their mean loss times
this share, and its gradients."""


def pulls_on_embeddings(
    own: Sequence[Any],
    candidates: Candidates,
    collectives: Collectives,
    gradients_of: GradientsOf,
    join: Callable[[list[Any]], Any],
) -> tuple[Any, list[Any]]:
    """Return the loss and its gradients at the embeddings of this worker; all workers call it.

    Args:
        own: The embeddings of each side, [examples, width], of this worker's granules.
        candidates: Of all workers.
        join: Joins tensors of the framework along the first axis.

    Returns:
        The mean loss of this worker's anchors, whose mean over the workers is the step's. And for
        each side, in the shape of ``own``, the sum of the workers' gradients. Pulled through the
        encoder and averaged over the workers, it gives the gradient of the step.
    """
    # Candidates of all workers; and, unless they are candidates too, the anchors of this one.
    alone, shared = ([], own) if candidates.anchors else (own[:1], own[1:])
    examples = len(own[0])
    texts = [collectives.all_gather(side) for side in shared]
    first = collectives.rank * examples
    total: Any = 0.0
    at_anchors: list[Any] = []
    at_texts: list[Any] = []
    for start, end in chunks(examples, candidates.count):
        picks = candidates.picks(first + start, first + end)
        share = (end - start) / examples
        some = [side[start:end] for side in alone]
        loss, pulls = gradients_of([*some, *texts], picks, share)
        total = total + loss
        at_anchors += pulls[: len(alone)]
        # In place, where the framework can: these are the largest arrays.
        more = pulls[len(alone) :]
        at_texts = [*map(iadd, at_texts, more)] if at_texts else [*more]
    joined = [join(at_anchors)] if at_anchors else []
    return total, joined + [collectives.reduce_scatter(pull) for pull in at_texts]


def chunks(anchors: int, candidates: int) -> Iterator[tuple[int, int]]:
    """Yield first and last of as many anchors as have ``SIMILARITIES``, at least one."""
    size = max(SIMILARITIES // candidates, 1)
    for start in range(0, anchors, size):
        yield start, min(start + size, anchors)


LossOf = Callable[[Sequence[Any], Any], Any]
"""A framework's loss of the sides' embeddings and the targets."""


@dataclass(frozen=True)
class Objective:
    """The loss of a source, in a framework.

    `sides` are a granule's, in the order of the loss's inputs. With `across_granules`, negatives
    come from all granules of a step.
    """

    settings: ObjectiveSettings
    sides: tuple[str, ...]
    loss: LossOf
    across_granules: bool

    @property
    def needs(self) -> str:
        """The loss's needs of the corpus; see :class:`~pipelines.losses.loss.Loss`."""
        needs: str = LOSSES.load(self.settings.name).needs
        return needs

    def candidates(self, granules: Sequence[Granule], collectives: Collectives) -> Candidates:
        """Return the candidates of a step from all workers; all workers call it.

        Gathers a teacher's vectors too, if used: as many numbers as embeddings have at equal width.
        """
        gathered = collectives.all_gather(identities(granules, self.sides))
        taught = self.settings.uses_teacher
        vectors = teachers_vectors(granules, self.sides) if taught else []
        return Candidates(
            np.asarray(gathered),
            anchors=self.settings.compares_anchors,
            teacher=[np.asarray(collectives.all_gather(side)) for side in vectors],
        )

    def targets(self, granule: Granule) -> Targets:
        """Return the targets of a granule whose negatives are its own."""
        return granule_targets(self.settings, granule, self.sides)


def objectives(run: TrainingRun, framework: str) -> tuple[Objective, ...]:
    """Return the objective of each source of a run, by its number."""
    return tuple(
        Objective(
            one.config.objective,
            tuple(one.sides),
            configured_loss(one.config.objective, framework),
            spans_steps(one.config.objective),
        )
        for one in run.by_source
    )
