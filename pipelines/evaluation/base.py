"""What an evaluation is, and what is known of its figures.

Everything that lists, names, checks, measures, compares or shows evaluations goes through
:data:`pipelines.catalog.EVALUATIONS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from pipelines.catalog import EVALUATIONS
from pipelines.evaluation.embedder import EmbedderLoader
from pipelines.evaluation.rows import Rows, Tables
from pipelines.settings import Config
from pipelines.settings.evaluation import RANKED_METRIC

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipelines.evaluation.intervals import Interval, Observations, Observed

Intervals: TypeAlias = "Callable[[Observations, Observations, float], dict[str, Interval]]"
"""How sure differences between two models are, by figure, at a confidence."""

FEWER = " among held-out"
"""Ends the names of what checkpoints are measured on with fewer documents than a model."""

WHOLE = 0
"""Stands for the whole width of an embedding, among widths to which it is cut."""


class Form(NamedTuple):
    """How documents are ranked: one of several ways in which a set is measured.

    Attributes:
        width: To which embeddings are cut and scaled to length 1 again; :data:`WHOLE` for all.
        hybrid: By embeddings and BM25, both rankings fused.
    """

    width: int = WHOLE
    hybrid: bool = False

    def named(self, name: str) -> str:
        """Return what a set is called in ``metrics.json`` where it is measured in this form."""
        at_width = name if self.width == WHOLE else f"{name}@{self.width}"
        return f"{at_width}+bm25" if self.hybrid else at_width


class Forms(NamedTuple):
    """What else is measured where documents are ranked.

    Attributes:
        widths: Of embeddings, beside the whole ones; those that they do not exceed are left out.
        hybrid: Each width with BM25, too.
        metrics: Of rankings, beside the usual ones.
    """

    widths: Sequence[int] = ()
    hybrid: bool = False
    metrics: Sequence[str] = ()

    @classmethod
    def of(cls, config: Config) -> Forms:
        """Return what the settings ask for."""
        asked = config.evaluation
        return cls(config.trained_widths(), asked.hybrid, asked.retrieval_metrics)

    def each(self) -> list[Form]:
        """Return them one by one, that of whole embeddings alone first."""
        hybrids = (False, True) if self.hybrid else (False,)
        return [Form(width, hybrid) for width in (WHOLE, *self.widths) for hybrid in hybrids]


WHOLE_ALONE = Forms()


class Measured(NamedTuple):
    """What an evaluation found of a model.

    Attributes:
        figures: By their names in ``metrics.json``.
        observed: What they are the summary of; intervals and samples follow from it.
    """

    figures: dict[str, float]
    observed: Observed | None = None
    form: Form = Form()


@dataclass(frozen=True)
class Figure:
    """A figure of an evaluation.

    Attributes:
        better: Where a better model has it; None for what says nothing of quality.
        is_count: It says on how much was measured.
    """

    name: str
    label: str
    better: Literal["higher", "lower"] | None = "higher"
    is_count: bool = False

    @classmethod
    def count(cls, name: str) -> Figure:
        """Return one that says on how much was measured, such as the number of pairs."""
        return cls(name, name, better=None, is_count=True)


def ranked_figure(name: str) -> Figure:
    """Return a metric of rankings at any cut-off: `map@100` is shown as MAP@100."""
    metric, _, cutoff = name.partition("@")
    return Figure(name, f"{_RANKED[metric]}@{cutoff}")


_RANKED = {"ndcg": "nDCG", "mrr": "MRR", "recall": "Recall", "map": "MAP"}


def _of_means(before: Observations, after: Observations, confidence: float) -> dict[str, Interval]:
    from pipelines.evaluation.intervals import mean_intervals

    return mean_intervals(before, after, confidence)


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """A way to measure a model.

    Attributes:
        part: What the progress bar shows meanwhile.
        figures: What it gives, in the order in which they are shown.
        sets: The files or folders to measure on that the settings name; none where it is off.
        short_name: What a set is called in ``metrics.json``, unless another has that name too. A
            set of held-out pairs has the name of the evaluation, and that of its source.
        check: Looks at a set as far as that can be done without Spark; raises InputError.
        read: Reads and checks a set; raises InputError.
        read_fewer: The same with less to search, for checkpoints, which one process is to measure
            in minutes. Figures are others then, and have names of their own.
        arrange: Makes of these tables those that `measure` takes, on Spark.
        measure: Gives the figures; in the forms that are asked for, if it `has_forms`.
        has_forms: It measures at several widths, with BM25 and by further metrics.
        intervals: How sure the differences between two models are; those of means over the items
            unless given.
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
    arrange: Callable[[Tables], Tables] = lambda tables: tables
    measure: Callable[[Mapping[str, Rows], EmbedderLoader, Forms], Sequence[Measured]]
    has_forms: bool = False
    intervals: Intervals = _of_means
    held_out: bool = False

    def figures_of(self, config: Config) -> Sequence[Figure]:
        """Return what it gives with some settings."""
        more = config.evaluation.retrieval_metrics if self.has_forms else ()
        named = {figure.name: figure for figure in self.figures}
        return [*({name: ranked_figure(name) for name in more} | named).values()]

    def checkpoint_name(self, name: str) -> str:
        """Return what a set, in some form, is called where checkpoints are measured on it."""
        return name if self.read_fewer is None else f"{name}{FEWER}"


def figure_named(name: str) -> Figure:
    """Return what is known of a figure by its name in ``metrics.json``.

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
