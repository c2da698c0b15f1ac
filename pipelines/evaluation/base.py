"""An evaluation, and its figures.

Code finds evaluations, to list, check, measure or show them, only through
:data:`pipelines.catalog.EVALUATIONS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from pipelines.catalog import EVALUATIONS
from pipelines.evaluation.embedder import EmbedderLoader
from pipelines.evaluation.rows import Rows, Tables
from pipelines.files.locations import location
from pipelines.files.versions import current
from pipelines.models.rerankers.folder import Reranker, read_reranker
from pipelines.settings import Config
from pipelines.settings.evaluation import RANKED_METRIC

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipelines.evaluation.intervals import Interval, Observations, Observed

Intervals: TypeAlias = "Callable[[Observations, Observations, float], dict[str, Interval]]"
"""Returns the intervals of differences between two models, by figure, at a confidence."""

FEWER = " among held-out"
"""Ends the names of a checkpoint's sets with fewer documents than the model's."""

RERANKER = "evaluation.reranker"
WHOLE = 0
"""Stands for the whole width among the widths of truncated embeddings."""
ENCODER = -1
"""Stands for the encoder's own width among them, without the lexical features behind it."""
_AT_WIDTH = {WHOLE: "", ENCODER: "@encoder"}


class Form(NamedTuple):
    """A way of ranking documents; a set is measured in several.

    Embeddings are truncated to ``width`` and scaled to length 1 again; :data:`WHOLE` keeps all, and
    :data:`ENCODER` all but lexical features. A hybrid form fuses the rankings by embeddings and by
    BM25. A reranked one is ranked again by a cross-encoder, whose ranking has the weight ``share``
    beside the one before it.
    """

    width: int = WHOLE
    hybrid: bool = False
    reranked: bool = False
    share: float = 1.0

    def named(self, name: str) -> str:
        """Return the name in ``metrics.json`` of a set in this form."""
        at_width = name + _AT_WIDTH.get(self.width, f"@{self.width}")
        again = "+rerank" * self.reranked + f"@{self.share:g}" * (self.share < 1)
        return f"{at_width}{'+bm25' * self.hybrid}{again}"


class Forms(NamedTuple):
    """The further measurements of rankings.

    Widths that are not below the model's are left out. If ``hybrid``, each width is also fused with
    BM25. ``metrics`` are added to the usual ones. If ``apart``, the encoder is also measured
    without its lexical features: the last ``lexical`` numbers of an embedding of this model.
    ``reranker`` ranks the first ``rerank_depth`` documents by whole embeddings again, with BM25
    where ``hybrid``; ``rerank_share`` is the weight of :func:`.nearest.rank_fusion`.
    """

    widths: Sequence[int] = ()
    hybrid: bool = False
    metrics: Sequence[str] = ()
    apart: bool = False
    lexical: int = 0
    reranker: Reranker | None = None
    rerank_depth: int = 0
    rerank_share: float = 1.0

    @classmethod
    def of(cls, config: Config, *, held_out: bool) -> Forms:
        """Return the forms of the settings, of held-out pairs or of other sets."""
        asked = config.evaluation
        hybrid = not held_out if asked.hybrid is None else asked.hybrid
        apart = config.encoder.lsa.dimensions > 0
        reranker = None
        if asked.reranker is not None:
            place = location(asked.reranker, config.storage).expanduser().absolute()
            reranker = read_reranker(current(place), RERANKER)
        return cls(
            widths=config.trained_widths(),
            hybrid=hybrid,
            metrics=asked.retrieval_metrics,
            apart=apart,
            reranker=reranker,
            rerank_depth=asked.rerank_depth,
            rerank_share=asked.rerank_share,
        )

    def each(self) -> list[Form]:
        """Return the forms, that of whole embeddings without BM25 first."""
        hybrids = (False, True) if self.hybrid else (False,)
        widths = (WHOLE, ENCODER) if self.apart else (WHOLE,)
        forms = [Form(width, hybrid) for width in (*widths, *self.widths) for hybrid in hybrids]
        return forms if self.reranker is None else [*forms, self.reranked]

    @property
    def reranked(self) -> Form:
        """Return the form that a cross-encoder ranks again."""
        return Form(hybrid=self.hybrid, reranked=True, share=self.rerank_share)


WHOLE_ALONE = Forms()


class Measured(NamedTuple):
    """The result of an evaluation of a model.

    ``figures`` are by their names in ``metrics.json``. Intervals and samples follow from
    ``observed``.
    """

    figures: dict[str, float]
    observed: Observed | None = None
    form: Form = Form()


@dataclass(frozen=True)
class Figure:
    """A figure of an evaluation.

    ``better`` is its better direction; None for a figure without a say on quality. A count
    (``is_count``) is the size of the set.
    """

    name: str
    label: str
    better: Literal["higher", "lower"] | None = "higher"
    is_count: bool = False

    @classmethod
    def count(cls, name: str) -> Figure:
        """Return a figure for the size of a set, such as the number of pairs."""
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
        part: The progress bar's text.
        figures: Its figures, in the order of tables.
        sets: Returns the files or folders to measure on; none where the settings turn it off.
        short_name: Returns a set's name in ``metrics.json``, unless another has that name too. A
            set of held-out pairs has the name of the evaluation, and that of its source.
        check: Checks a set as far as possible without Spark; raises InputError.
        read: Reads and checks a set; raises InputError.
        read_fewer: Reads the set with fewer documents, for checkpoints: one process is to measure
            each in minutes. Its figures differ, and have names of their own.
        arrange: Turns these tables into those of `measure`, on Spark.
        measure: Returns the figures; in the requested forms, if it `has_forms`.
        has_forms: Whether it measures at several widths, with BM25 and by further metrics.
        intervals: Compares two models; by means over the items unless given.
        held_out: Whether it measures on held-out pairs. These exist only after the preparation.
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
        """Return its figures under these settings."""
        further = config.evaluation.retrieval_metrics if self.has_forms else ()
        named = {figure.name: figure for figure in self.figures}
        return [*({name: ranked_figure(name) for name in further} | named).values()]

    def checkpoint_name(self, name: str) -> str:
        """Return the name of a set, in some form, in the figures of a checkpoint."""
        return name if self.read_fewer is None else f"{name}{FEWER}"


def figure_named(name: str) -> Figure:
    """Return a figure by its name in ``metrics.json``.

    A run folder may hold figures of another release. For unknown ones, higher is better.
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
