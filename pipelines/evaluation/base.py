"""What an evaluation is, and what is known of the figures that it gives.

An evaluation is measured twice: by Spark, for start and trained model, and by one process without
Spark, for checkpoints while executors are busy with training. Everything that lists, names, checks,
measures, compares or shows evaluations goes through the registry of this package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import pyarrow as pa

from pipelines.catalog import EVALUATIONS
from pipelines.evaluation.embedder import EmbedderLoader
from pipelines.settings import Config
from pipelines.settings.evaluation import RANKED_METRIC

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pipelines.evaluation.intervals import Interval, Observations, Observed

BATCH_ROWS = 1024
"""Rows of a snapshot that are read at a time."""

Tables: TypeAlias = "Mapping[str, DataFrame]"
"""What an evaluation measures on, by the names that it gives its tables."""

SnapshotTables: TypeAlias = Callable[[str], Iterator[pa.RecordBatch]]
"""The rows of a table that was written for a process without Spark, by its name."""

OnObserved: TypeAlias = "Callable[[Observed], None]"
"""Takes what figures are the summary of: intervals of differences and samples follow from it."""

Intervals: TypeAlias = "Callable[[Observations, Observations, float], dict[str, Interval]]"
"""How sure differences between two models are, by figure, at a confidence."""


FEWER = " among held-out"
"""Ends the names of what checkpoints are measured on with fewer documents than a model."""

WHOLE = 0
"""Stands for the whole width of an embedding, among widths to which it is cut."""


class Form(NamedTuple):
    """How documents are ranked where an evaluation measures several ways of it.

    Attributes:
        width: To which embeddings are cut and scaled to length 1 again; :data:`WHOLE` for all.
        hybrid: By embeddings and by BM25, both rankings fused.
    """

    width: int = WHOLE
    hybrid: bool = False


ByForm: TypeAlias = Mapping[Form, dict[str, float]]
"""Figures by how documents are ranked, those of whole embeddings alone first."""


class Nested(NamedTuple):
    """How an evaluation measures several forms of ranking, embedding once.

    Attributes:
        measure: As that of the evaluation, with three arguments more: widths to which embeddings
            are cut, whether each is measured in the hybrid form too, and which metrics of rankings
            are measured beside the usual ones. What is observed is told with the form before it.
            Widths that embeddings do not exceed are left out.
        measure_snapshot: The same on a snapshot.
    """

    measure: Callable[
        [
            Tables,
            EmbedderLoader,
            Callable[[Form, Observed], None],
            Sequence[int],
            bool,
            Sequence[str],
        ],
        ByForm,
    ]
    measure_snapshot: Callable[
        [SnapshotTables, EmbedderLoader, Sequence[int], bool, Sequence[str]], ByForm
    ]


def form_name(name: str, form: Form) -> str:
    """What a set is called in ``metrics.json`` where it is measured on in a form."""
    at_width = name if form.width == WHOLE else f"{name}@{form.width}"
    return f"{at_width}+bm25" if form.hybrid else at_width


@dataclass(frozen=True)
class Figure:
    """A figure of an evaluation.

    Attributes:
        name: In ``metrics.json``.
        label: For people.
        better: Where a better model has it; None for what says nothing of quality.
        is_count: It says on how much was measured.
    """

    name: str
    label: str
    better: Literal["higher", "lower"] | None = "higher"
    is_count: bool = False

    @classmethod
    def count(cls, name: str) -> Figure:
        """On how much was measured, such as the number of pairs."""
        return cls(name, name, better=None, is_count=True)


def ranked_figure(name: str) -> Figure:
    """A metric of rankings at any cut-off: `map@100` is shown as MAP@100."""
    metric, _, cutoff = name.partition("@")
    return Figure(name, f"{_RANKED[metric]}@{cutoff}")


_RANKED = {"ndcg": "nDCG", "mrr": "MRR", "recall": "Recall", "map": "MAP"}


def _unchanged(tables: Tables) -> Tables:
    return tables


def _of_means(before: Observations, after: Observations, confidence: float) -> dict[str, Interval]:
    from pipelines.evaluation.intervals import mean_intervals

    return mean_intervals(before, after, confidence)


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """A way to measure a model.

    Attributes:
        name: In the registry.
        part: What the progress bar shows while it goes on.
        figures: What it gives, in the order in which they are shown.
        sets: The files or folders to measure on that the settings name; none where it is off.
        short_name: What a set is called in ``metrics.json``, unless another has that name too. A
            set of held-out pairs has the name of the evaluation, and that of its source.
        check: Looks at a set as far as that can be done without Spark; raises InputError.
        read: Reads and checks a set; raises InputError.
        read_fewer: The same with less to search, for checkpoints, which one process is to measure
            in minutes. Figures are others then, and have names of their own.
        measure: Measures on the tables that `read` gives, by Spark.
        snapshot: Makes of these tables the smaller ones that `measure_snapshot` needs.
        measure_snapshot: The same figures on a snapshot, in this process.
        intervals: How sure the differences between two models are; those of means over the items
            unless given.
        nested: How it measures at the widths of a run's `objective.dimensions`, and with BM25, if
            it does.
        held_out: It measures on the pairs that the preparation holds out, which are not there
            before.
    """

    name: str
    part: str
    figures: Sequence[Figure]
    sets: Callable[[Config], Sequence[str]]
    short_name: Callable[[str], str] = str
    check: Callable[[Config, str], None] = lambda config, given: None
    read: Callable[[SparkSession, Config, str], Tables]
    read_fewer: Callable[[SparkSession, Config, str], Tables] | None = None
    measure: Callable[[Tables, EmbedderLoader, OnObserved], dict[str, float]]
    snapshot: Callable[[Tables], Tables] = _unchanged
    measure_snapshot: Callable[[SnapshotTables, EmbedderLoader], dict[str, float]]
    intervals: Intervals = _of_means
    nested: Nested | None = None
    held_out: bool = False

    def figures_of(self, config: Config) -> Sequence[Figure]:
        """What it gives with some settings."""
        more = config.evaluation.retrieval_metrics if self.nested is not None else ()
        named = {figure.name: figure for figure in self.figures}
        return [*({name: ranked_figure(name) for name in more} | named).values()]

    def checkpoint_name(self, name: str) -> str:
        """What a set, in some form, is called where checkpoints are measured on it."""
        return name if self.read_fewer is None else f"{name}{FEWER}"

    def measure_at(
        self,
        tables: Tables,
        load: EmbedderLoader,
        on_observed: Callable[[Form, Observed], None],
        dimensions: Sequence[int],
        *,
        hybrid: bool,
        metrics: Sequence[str] = (),
    ) -> ByForm:
        """The figures of whole embeddings, and of other forms where this evaluation knows them."""
        if self.nested is not None:
            return self.nested.measure(tables, load, on_observed, dimensions, hybrid, metrics)
        return {Form(): self.measure(tables, load, partial(on_observed, Form()))}

    def measure_snapshot_at(
        self,
        tables: SnapshotTables,
        load: EmbedderLoader,
        dimensions: Sequence[int],
        *,
        hybrid: bool,
        metrics: Sequence[str] = (),
    ) -> ByForm:
        """The same on a snapshot."""
        if self.nested is not None:
            return self.nested.measure_snapshot(tables, load, dimensions, hybrid, metrics)
        return {Form(): self.measure_snapshot(tables, load)}


def figure_named(name: str) -> Figure:
    """What is known of a figure by its name in ``metrics.json``.

    A run folder may hold figures that no evaluation of this release gives; of those more is taken
    for better.
    """
    evaluation: Evaluation
    for evaluation in map(EVALUATIONS.load, EVALUATIONS):
        for figure in evaluation.figures:
            if figure.name == name:
                return figure
    if RANKED_METRIC.fullmatch(name):
        return ranked_figure(name)
    words = name.replace("_", " ")
    return Figure(name, words[:1].upper() + words[1:])
