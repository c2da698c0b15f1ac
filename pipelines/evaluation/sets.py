"""The evaluation sets of the settings: names, checks, tables, and digests to compare by."""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, TypeVar

from pipelines import __version__
from pipelines.catalog import EVALUATIONS
from pipelines.errors import InputError
from pipelines.evaluation.base import RERANKER, WHOLE_ALONE, Evaluation, Form, Forms
from pipelines.evaluation.embedder import EmbedderLoader, embedder_loader
from pipelines.evaluation.held_out import held_out_sets, set_name
from pipelines.evaluation.intervals import CONFIDENCE, Interval, Observed
from pipelines.evaluation.rows import SparkRows, Tables
from pipelines.files.locations import Location, location
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.libraries import check_installed
from pipelines.losses.loss import scores_pairs
from pipelines.models.lsa.modules import count_terms
from pipelines.progress import next_part
from pipelines.runs.model_choice import Metric
from pipelines.settings import Config

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pipelines.evaluation.intervals import Observations


logger = logging.getLogger(__name__)

Value = TypeVar("Value")


@dataclass(frozen=True)
class NamedSet:
    """A set of the settings; ``name`` is its unique key in ``metrics.json``."""

    name: str
    given: str
    evaluation: Evaluation

    @property
    def source(self) -> tuple[Callable[..., Tables], str]:
        """A key, equal for sets of the same tables, such as those of held-out pairs."""
        return self.evaluation.read, self.given

    def forms(self, config: Config) -> Forms:
        """Return the forms in which it is measured."""
        if not self.evaluation.has_forms:
            return WHOLE_ALONE
        return Forms.of(config, held_out=self.evaluation.held_out)

    def read(self, session: SparkSession, config: Config) -> Tables:
        """Read the tables; raises InputError if they are missing or malformed."""
        with _naming_guards(config, self.given):
            return self.evaluation.read(session, config, self.given)

    def read_for_checkpoints(self, session: SparkSession, config: Config) -> Tables:
        """Read the tables for the evaluation of checkpoints."""
        with _naming_guards(config, self.given):
            read = self.evaluation.read_fewer or self.evaluation.read
            return read(session, config, self.given)


class Role(StrEnum):
    """The role of a set in judging a model."""

    JUDGED = "judged"
    """Queries (or pairs) with judgements by people: these decide."""
    HELD_OUT = "held_out"
    """Pairs of the corpus itself, a proxy for real queries."""
    GUARD = "guard"
    """Other subjects: a model should be no worse on them than before."""
    VARIANT = "variant"
    """One of these again, with shorter embeddings or with BM25; it decides nothing."""


def told_sets(config: Config) -> dict[str, dict[str, str]]:
    """Return the `evaluation` and `role` of each set, in each form, by its name."""
    return {
        name: {
            "evaluation": named.evaluation.name,
            "role": (_role(config, named) if name == named.name else Role.VARIANT).value,
        }
        for named in named_sets(config)
        for name in names_in_forms(named, config)
    }


def _role(config: Config, named: NamedSet) -> Role:
    if named.evaluation.held_out:
        return Role.HELD_OUT
    return Role.GUARD if named.given in config.evaluation.guards else Role.JUDGED


def named_sets(config: Config) -> list[NamedSet]:
    """Return all sets to measure a model on, evaluation by evaluation.

    A set takes its whole path as name where short names would be equal.

    Raises:
        InputError: A file is named twice.
    """
    evaluations = [EVALUATIONS.load(name) for name in EVALUATIONS]
    # Their names are taken even where they are off.
    taken = Counter(evaluation.name for evaluation in evaluations if evaluation.held_out)
    sets = [
        NamedSet(evaluation.short_name(given), given, evaluation)
        for evaluation in evaluations
        for given in evaluation.sets(config)
    ]
    taken.update(short.name for short in sets if not short.evaluation.held_out)

    def name_of(short: NamedSet) -> str:
        if short.evaluation.held_out:
            return set_name(config, short.evaluation.name, short.given)
        return short.name if taken[short.name] == 1 else short.given

    named = [replace(short, name=name_of(short)) for short in sets]
    counts = Counter(unique.name for unique in named)
    name, often = counts.most_common(1)[0] if named else ("", 0)
    if often > 1:
        raise InputError("evaluation", f"{name} is named twice", "Name it once")
    return named


def names_in_forms(named: NamedSet, config: Config) -> list[str]:
    """Return the names of a set in all its measured forms."""
    return [form.named(named.name) for form in named.forms(config).each()]


def in_place(config: Config, found: Mapping[str, Value]) -> dict[str, Value]:
    """Return what was found of each set, with one form in place of the others.

    It is the reranked form if ``config`` names a reranker, and otherwise the ranking before it. A
    cross-encoder has no ranking of its own.
    """
    replaced = dict(found)
    for named in named_sets(config):
        forms = named.forms(config)
        form = Form(hybrid=forms.hybrid) if forms.reranker is None else forms.reranked
        if form.named(named.name) not in found:
            continue
        for name in names_in_forms(named, config):
            replaced[name] = found[form.named(named.name)]
        if forms.reranker is not None:
            del replaced[form.named(named.name)]
    return replaced


def intervals_between(
    sets: Mapping[str, Mapping[str, str]],
    before: Mapping[str, Observations],
    after: Mapping[str, Observations],
    confidence: float = CONFIDENCE,
) -> dict[str, dict[str, Interval]]:
    """Return the intervals of the differences between two models, by set and figure.

    ``sets`` are those of :func:`told_sets`; sets without observations of both models are left out.
    """
    return {
        name: EVALUATIONS.load(known["evaluation"]).intervals(before[name], after[name], confidence)
        for name, known in sets.items()
        if name in before and name in after
    }


def check_sets(config: Config) -> None:
    """Check files and folders to measure on, as far as possible without Spark.

    Raises:
        InputError: One is missing, cannot be read, or lacks a column.
    """
    is_reranked = config.evaluation.reranker is not None or scores_pairs(config)
    if config.evaluation.rerank_share < 1 and not is_reranked:
        problem = "no evaluation.reranker names a cross-encoder"
        raise InputError("evaluation.rerank_share", problem, "Leave it out")
    if config.evaluation.reranker is not None:
        check_installed(RERANKER, "transformers")
        Forms.of(config, held_out=False)
    for evaluation in map(EVALUATIONS.load, EVALUATIONS):
        for given in evaluation.sets(config):
            with _naming_guards(config, given):
                evaluation.check(config, given)


@contextmanager
def _naming_guards(config: Config, given: str) -> Iterator[None]:
    """Raise errors about a guard under `evaluation.guards`, not under its evaluation's setting."""
    try:
        yield
    except InputError as error:
        named = tuple(f"evaluation.{name}" for name in EVALUATIONS)
        if given not in config.evaluation.guards or error.key not in named:
            raise
        raise InputError("evaluation.guards", error.problem, error.remedy) from None


def metric_named(config: Config, key: str, name: str) -> Metric:
    """Return a metric of the sets as checkpoints are measured on them.

    ``name`` is the name of a set, in a measured form, a dot, and the name of a figure, as in
    ``metrics.json``.

    Raises:
        InputError: There is no such set, or it has no such figure of quality.
    """
    known = {
        f"{measured}.{figure.name}": Metric(
            evaluation=named.evaluation.checkpoint_name(measured),
            figure=figure.name,
            sign=1 if figure.better == "higher" else -1,
            asked_as=f"{measured}.{figure.name}",
        )
        for named in named_sets(config)
        for measured in names_in_forms(named, config)
        for figure in named.evaluation.figures_of(config)
        if figure.better is not None
    }
    if name not in known:
        names = ", ".join(known) or "the metrics of a set, and name the set in `evaluation`"
        raise InputError(key, f"`{name}` is not measured", f"Choose one of {names}")
    return known[name]


def check_tables(session: SparkSession, config: Config) -> None:
    """Read files and folders to measure on, except held-out pairs: preparing makes these.

    Raises:
        InputError: One is missing or malformed.
    """
    for named in named_sets(config):
        if not named.evaluation.held_out:
            named.read(session, config)


def digest_sets(session: SparkSession, config: Config) -> dict[str, str]:
    """Return a digest of each set of :func:`evaluate`, 16 hexadecimal digits.

    Keys are the names of the sets, in all forms. A digest covers the rows, in any order, and the
    release of this package. Two models are comparable if measured under one digest.

    Raises:
        InputError: See :func:`check_tables`.
    """
    known: dict[tuple[Callable[..., Tables], str], str] = {}
    digests: dict[str, str] = {}
    for named in named_sets(config):
        if named.source not in known:
            known[named.source] = digest_tables(*named.read(session, config).values())
        digests |= dict.fromkeys(names_in_forms(named, config), known[named.source])
    return digests


def digest_tables(*tables: DataFrame) -> str:
    """Return the digest of a set's tables, as in :func:`digest_sets`."""
    content = json.dumps([__version__, [_row_sum(table) for table in tables]])
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _row_sum(table: DataFrame) -> Sequence[str]:
    """Return count and sum of the rows' hashes, independent of the order of the rows."""
    from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

    # As decimals: a sum of 64-bit hashes would overflow.
    hashes = F.xxhash64(*table.columns).cast("decimal(20,0)")
    found = table.agg(F.count("*"), F.sum(hashes)).collect()[0]
    return [str(value) for value in found]


def ndcg_of_forms(
    session: SparkSession, config: Config, loads: Mapping[str, EmbedderLoader]
) -> dict[str, dict[str, float]]:
    """Return nDCG@10 (times 100) of several forms of a model on the judged retrieval sets.

    ``loads`` has a loader of each form on executors. The result is by the names of the sets, and of
    the forms in ``loads``.

    Raises:
        InputError: A set cannot be read.
    """
    found: dict[str, dict[str, float]] = {}
    for named in named_sets(config):
        if named.given not in config.evaluation.retrieval_sets:
            continue
        arranged = named.evaluation.arrange(named.read(session, config))
        tables = {name: SparkRows(frame) for name, frame in arranged.items()}
        found[named.name] = {
            form: named.evaluation.measure(tables, load, WHOLE_ALONE)[0].figures["ndcg@10"]
            for form, load in loads.items()
        }
    return found


def evaluate(
    session: SparkSession,
    config: Config,
    model_folder: Location | str,
    on_observed: Callable[[str, Observed], None] = lambda name, found: None,
) -> dict[str, dict[str, float]]:
    """Measure a model on the held-out pairs and on the files and folders of the settings.

    The held-out pairs, if any, are those of ``<prepared.folder>/corpus/evaluation``.

    Args:
        model_folder: The model, where every executor can read it.
        on_observed: Called with the name of a set and the model's observations on it, by
            evaluations with figures of single items.

    Returns:
        Figures by the names of the sets. Evaluations at several widths take each of
        ``objective.dimensions``, of all sources' objectives; with ``evaluation.hybrid``, each fused
        with BM25 too.

    Raises:
        InputError: A set or the model cannot be read.
    """
    load = embedder_loader(session, model_folder)
    if config.evaluation.retrieval and not held_out_sets(config):
        place = PreparedFolder.of(config).corpus.queries.parent
        logger.info("no retrieval evaluation: %s holds no held-out pairs", place)
    lexical = count_terms(location(model_folder))
    known: dict[tuple[Callable[..., Tables], str], Tables] = {}
    figures: dict[str, dict[str, float]] = {}
    for evaluation, sets in groupby(named_sets(config), attrgetter("evaluation")):
        next_part(evaluation.part)
        of_evaluation = list(sets)
        # All sets of an evaluation are checked before the first measurement.
        for named in of_evaluation:
            if named.source not in known:
                known[named.source] = named.read(session, config)
        for named in of_evaluation:
            arranged = evaluation.arrange(known[named.source])
            tables = {name: SparkRows(frame) for name, frame in arranged.items()}
            forms = named.forms(config)._replace(lexical=lexical)
            for found in evaluation.measure(tables, load, forms):
                name = found.form.named(named.name)
                figures[name] = found.figures
                if found.observed is not None:
                    on_observed(name, found.observed)
    return figures
