"""A framework's loss in a step, with negatives on any worker.

Runs on executors.

A worker compares its own examples with the candidates of all workers, in chunks of examples, and
sends the gradients of the candidates to their workers. Let a step have E examples and C candidates:
E positives, n E for n hard negatives per example, and E more if the loss compares anchors with
anchors. With embeddings of d numbers and W workers, a worker

- makes 6 S d E/W multiplications and additions (two matrix products for the gradients, one before),
  with S the candidates of all compared directions: C unless the loss names others,
- holds about 7 C d fp32 numbers, by measurement. They are the candidates (joined too, with hard
  negatives), the gradients of a chunk, their sum, its sent part, and PyTorch's temporary copy,
- holds arrays of ``SIMILARITIES`` similarities, or of C if C is larger: 4 of them, 6 with hardness,
  a margin or all directions, 7 with all of these; never the C E/W of all its examples. The
  allocator of glibc may hold as much again, without ``MALLOC_MMAP_THRESHOLD_`` in the environment,
- receives C d numbers of candidates, sends as many of gradients, and gathers 8 bytes for each text
  and each group,
- gathers (E + C) t numbers more if a teacher with vectors of t numbers detects false negatives. It
  holds them up to twice (joined, with hard negatives), and multiplies them too.

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
"""Maps a chunk of anchors [anchors, width], or all if they are candidates too, and all candidates,
side by side; the chunk's picks; and its share of the worker's anchors. Returns its mean loss times
this share, and the gradients."""


def pulls_on_embeddings(
    embeddings: Sequence[Any],
    candidates: Candidates,
    collectives: Collectives,
    gradients_of: GradientsOf,
    join: Callable[[list[Any]], Any],
) -> tuple[Any, list[Any]]:
    """Return the loss and its gradients at the embeddings of this worker; all workers call it.

    Args:
        embeddings: Of each side, [examples, width], of this worker's granules.
        candidates: Of all workers.
        join: Joins tensors of the framework along the first axis.

    Returns:
        The mean loss of this worker's anchors; the step's loss is the mean of these over the
        workers. And for each side, in the shape of ``embeddings``, the sum of the workers'
        gradients. Pulled through the encoder and averaged over the workers, it gives the gradient
        of the step.
    """
    # Only candidates travel between workers; anchors are among them if the loss compares anchors.
    local, shared = ([], embeddings) if candidates.anchors else (embeddings[:1], embeddings[1:])
    examples = len(embeddings[0])
    texts = [collectives.all_gather(side) for side in shared]
    first = collectives.rank * examples
    total: Any = 0.0
    at_anchors: list[Any] = []
    at_texts: list[Any] = []
    for start, end in chunks(examples, candidates.count):
        picks = candidates.picks(first + start, first + end)
        share = (end - start) / examples
        anchors = [side[start:end] for side in local]
        loss, pulls = gradients_of([*anchors, *texts], picks, share)
        total = total + loss
        at_anchors += pulls[: len(local)]
        # In place, if the framework can: these are the largest arrays.
        of_chunk = pulls[len(local) :]
        at_texts = [*map(iadd, at_texts, of_chunk)] if at_texts else [*of_chunk]
    joined = [join(at_anchors)] if at_anchors else []
    return total, joined + [collectives.reduce_scatter(pull) for pull in at_texts]


def chunks(anchors: int, candidates: int) -> Iterator[tuple[int, int]]:
    """Yield the bounds of chunks of anchors with at most ``SIMILARITIES``, or one anchor."""
    size = max(SIMILARITIES // candidates, 1)
    for start in range(0, anchors, size):
        yield start, min(start + size, anchors)


LossOf = Callable[[Sequence[Any], Any], Any]
"""A framework's loss of the sides' embeddings and the targets."""


@dataclass(frozen=True)
class Objective:
    """The loss of a source, in a framework.

    `sides` are a granule's, in the order of the loss's inputs. With `across_granules`, all granules
    of a step give negatives.
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

        Gathers a teacher's vectors too, if used: as many numbers as the embeddings, at equal width.
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
        """Return the targets of a granule with negatives of its own."""
        return granule_targets(self.settings, granule, self.sides)


def objectives(run: TrainingRun, framework: str) -> tuple[Objective, ...]:
    """Return the objective of each source of a run, by its number."""
    return tuple(
        Objective(
            of_source.config.objective,
            tuple(of_source.sides),
            configured_loss(of_source.config.objective, framework),
            spans_steps(of_source.config.objective),
        )
        for of_source in run.by_source
    )
