"""The order of a run's steps, and checks of the lanes against the needs of its losses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow.parquet as pq

from pipelines.catalog import LOSSES
from pipelines.errors import InputError
from pipelines.files.locations import Location, arrow_source
from pipelines.lanes.files import LaneManifest
from pipelines.lanes.plan import BatchPlan, SourceShare, steps_by_weight
from pipelines.settings import Config
from pipelines.spark.parquet_parts import data_files
from pipelines.tokens.examples import SOURCE, rows_by_source
from pipelines.vectors.teacher import check_lanes_of_teacher


def batch_plan(config: Config, manifest: LaneManifest) -> BatchPlan:
    """Return the order of the steps; refuse workers and steps at odds with the lanes."""
    training = config.training
    placement = training.placement
    if training.mode == "sync" and placement.replicas > manifest.lanes:
        most = manifest.lanes * placement.per_replica
        raise InputError(
            "training.workers",
            f"{placement.replicas} {placement.sharing} cannot share {manifest.lanes} lanes",
            f"Use at most {most}, or prepare a larger corpus",
        )
    # A row (one granule from every lane) has to split into whole steps.
    if manifest.lanes % training.granules_per_step:
        fitting = [n for n in range(1, manifest.lanes + 1) if manifest.lanes % n == 0]
        raise InputError(
            "training.granules_per_step",
            f"{training.granules_per_step} does not divide the {manifest.lanes} lanes",
            f"Choose one of {', '.join(map(str, fitting))}",
        )
    for source, lanes in zip(config.by_source(), _lanes_by_source(config, manifest), strict=True):
        _check_lanes(source, lanes)
    return BatchPlan(
        lanes=manifest.lanes,
        rows=manifest.rows,
        granules_per_step=training.granules_per_step,
        seed=training.seed,
        sources=_source_shares(config, manifest),
    )


def _lanes_by_source(config: Config, manifest: LaneManifest) -> Sequence[LaneManifest]:
    """Return the lanes as each source sees them; refuse lanes of other sources."""
    asked = [source.name for source in config.corpus.sources]
    held = [source.name for source in manifest.sources]
    if asked != held:
        raise InputError(
            "corpus.sources",
            f"the lanes hold {', '.join(held) or 'none'}, and not {', '.join(asked) or 'none'}",
            "Run `sentence-pipelines prepare` with the same settings first",
        )
    return manifest.by_source


def _source_shares(config: Config, manifest: LaneManifest) -> tuple[SourceShare, ...]:
    """Return each source's part of an epoch; refuse a weight without a step.

    An epoch has as many steps as the lanes.
    """
    each = manifest.lanes // config.training.granules_per_step
    sizes = [source.rows * each for source in manifest.sources]
    weights = [source.weight for source in config.corpus.sources]
    given = [weight for weight in weights if weight is not None]
    counts = steps_by_weight(sum(sizes), given or sizes) if sizes else ()
    for source, count in zip(config.corpus.sources, counts, strict=True):
        if not count:
            raise InputError(
                "corpus.sources.weight",
                f"{source.weight:g} gives source {source.name} none of {sum(sizes)} steps",
                "Raise it, or leave the source out",
            )
    return tuple(
        SourceShare(first=source.first_row * each, steps=size, per_epoch=count)
        for source, size, count in zip(manifest.sources, sizes, counts, strict=True)
    )


def _check_lanes(config: Config, manifest: LaneManifest) -> None:
    """Refuse a loss with unmet needs: pairs, negatives, scores or a teacher."""
    needs = LOSSES.load(config.objective.name).needs
    if needs not in ("singles", "teacher") and not manifest.paired:
        raise InputError("objective.name", "the lanes hold single texts", "Set it to simcse")
    if needs == "triplets" and not manifest.negatives:
        raise InputError(
            "objective.name",
            "the lanes hold no hard negatives",
            "Set corpus.pairs to triplets and prepare again",
        )
    has_scores = {"scores": manifest.scored, "candidate_scores": manifest.candidates_scored}
    columns = {"scores": "corpus.score_column", "candidate_scores": "corpus.score_columns"}
    if not has_scores.get(needs, True):
        raise InputError(
            "objective.name", "the lanes hold no scores", f"Set {columns[needs]} and prepare again"
        )
    if config.objective.uses_teacher:
        check_lanes_of_teacher(config, manifest.teacher)


def check_labels(config: Config, examples: Location) -> None:
    """Refuse scores other than 0 and 1 for a loss on labels.

    `examples` are the files behind the lanes; only the columns of scores and sources are read.
    """
    losses = {number: source.objective.name for number, source in enumerate(config.by_source())}
    labelled = {number: name for number, name in losses.items() if LOSSES.load(name).labels}
    for number, scores in _scores(examples) if labelled else ():
        wrong = scores[(scores != 0) & (scores != 1)]
        if number in labelled and len(wrong):
            raise InputError(
                "corpus.score_column",
                f"`{labelled[number]}` needs labels, 0 or 1, and {wrong[0]:g} is among the scores",
                "Name a column of labels, or another loss",
            )


def _scores(examples: Location) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the number of a source and its scores, for each batch of examples."""
    for path in data_files(examples):
        with pq.ParquetFile(arrow_source(path)) as file:
            columns = [name for name in ("score", SOURCE) if name in file.schema_arrow.names]
            for batch in file.iter_batches(columns=columns):
                for number, rows in rows_by_source(batch):
                    yield number, rows.column("score").to_numpy(zero_copy_only=False)
