"""What the settings ask to measure on: names, checks, tables, and digests to compare by."""

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
from typing import TYPE_CHECKING

from pipelines import __version__
from pipelines.catalog import EVALUATIONS
from pipelines.errors import InputError
from pipelines.evaluation.base import WHOLE_ALONE, Evaluation, Forms
from pipelines.evaluation.embedder import embedder_loader
from pipelines.evaluation.held_out import held_out_sets, set_name
from pipelines.evaluation.intervals import CONFIDENCE, Interval, Observed
from pipelines.evaluation.rows import SparkRows, Tables
from pipelines.files.locations import Location
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.progress import next_part
from pipelines.runs.model_choice import Metric
from pipelines.settings import Config

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pipelines.evaluation.intervals import Observations


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class NamedSet:
    """A set that the settings name.

    Attributes:
        name: In ``metrics.json``; no two have one name.
    """

    name: str
    given: str
    evaluation: Evaluation

    @property
    def source(self) -> tuple[Callable[..., Tables], str]:
        """What is the same for sets of the same tables, such as those of held-out pairs."""
        return self.evaluation.read, self.given

    def read(self, session: SparkSession, config: Config) -> Tables:
        """Read the tables; raises InputError if they are not what they are said to be."""
        with _naming_guards(config, self.given):
            return self.evaluation.read(session, config, self.given)

    def read_for_checkpoints(self, session: SparkSession, config: Config) -> Tables:
        """Read the same as far as checkpoints are measured on it."""
        with _naming_guards(config, self.given):
            read = self.evaluation.read_fewer or self.evaluation.read
            return read(session, config, self.given)


class Role(StrEnum):
    """What a set says of a model."""

    JUDGED = "judged"
    """Questions (or pairs) and what people said of them: what decides."""
    HELD_OUT = "held_out"
    """Pairs of the corpus itself, which stand in for questions."""
    GUARD = "guard"
    """Other subjects, on which a model should be no worse than before."""
    VARIANT = "variant"
    """One of these again, with shorter embeddings or with BM25, which decides nothing."""


def told_sets(config: Config) -> dict[str, dict[str, str]]:
    """Return by the name of each set, in each form: its `evaluation` and `role`."""
    return {
        name: {
            "evaluation": one.evaluation.name,
            "role": (_role(config, one) if name == one.name else Role.VARIANT).value,
        }
        for one in named_sets(config)
        for name in names_in_forms(one, config)
    }


def _role(config: Config, one: NamedSet) -> Role:
    if one.evaluation.held_out:
        return Role.HELD_OUT
    return Role.GUARD if one.given in config.evaluation.guards else Role.JUDGED


def named_sets(config: Config) -> list[NamedSet]:
    """Return all that a model is to be measured on, evaluation by evaluation.

    A set has its whole path for a name where short names would be equal.

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
    taken.update(one.name for one in sets if not one.evaluation.held_out)

    def name_of(one: NamedSet) -> str:
        if one.evaluation.held_out:
            return set_name(config, one.evaluation.name, one.given)
        return one.name if taken[one.name] == 1 else one.given

    named = [replace(one, name=name_of(one)) for one in sets]
    name, often = Counter(one.name for one in named).most_common(1)[0] if named else ("", 0)
    if often > 1:
        raise InputError("evaluation", f"{name} is named twice", "name it once")
    return named


def names_in_forms(one: NamedSet, config: Config) -> list[str]:
    """Return what a set is called, and what in each other form in which it is measured."""
    forms = Forms.of(config) if one.evaluation.has_forms else WHOLE_ALONE
    return [form.named(one.name) for form in forms.each()]


def intervals_between(
    sets: Mapping[str, Mapping[str, str]],
    before: Mapping[str, Observations],
    after: Mapping[str, Observations],
    confidence: float = CONFIDENCE,
) -> dict[str, dict[str, Interval]]:
    """Return how sure the differences between two models are, by set and figure.

    Args:
        sets: Their evaluations; see :func:`told_sets`.
        before: Of a model, by set.
        after: Of another on the same sets; those that only one was measured on are left out.
    """
    return {
        name: EVALUATIONS.load(told["evaluation"]).intervals(before[name], after[name], confidence)
        for name, told in sets.items()
        if name in before and name in after
    }


def check_sets(config: Config) -> None:
    """Look at files and folders to measure on, as far as that can be done without Spark.

    Raises:
        InputError: One is missing, cannot be read, or lacks a column.
    """
    for evaluation in map(EVALUATIONS.load, EVALUATIONS):
        for given in evaluation.sets(config):
            with _naming_guards(config, given):
                evaluation.check(config, given)


@contextmanager
def _naming_guards(config: Config, given: str) -> Iterator[None]:
    """Have errors about a guard name its own setting, and not that of its evaluation."""
    try:
        yield
    except InputError as error:
        named = tuple(f"evaluation.{name}" for name in EVALUATIONS)
        if given not in config.evaluation.guards or error.key not in named:
            raise
        raise InputError("evaluation.guards", error.problem, error.remedy) from None


def metric_named(config: Config, key: str, name: str) -> Metric:
    """Return a metric of what the settings ask to measure, as checkpoints are measured.

    Args:
        name: The name of a set, in one of the forms that are measured, a dot, and the name of a
            figure, as in ``metrics.json``.

    Raises:
        InputError: There is no such set, or no such figure that says how good a model is.
    """
    known = {
        f"{measured}.{figure.name}": Metric(
            evaluation=one.evaluation.checkpoint_name(measured),
            figure=figure.name,
            sign=1 if figure.better == "higher" else -1,
            asked_as=f"{measured}.{figure.name}",
        )
        for one in named_sets(config)
        for measured in names_in_forms(one, config)
        for figure in one.evaluation.figures_of(config)
        if figure.better is not None
    }
    if name not in known:
        names = ", ".join(known) or "none, since nothing is: see the settings of evaluation"
        raise InputError(key, f"`{name}` is not measured", f"one of {names}")
    return known[name]


def check_tables(session: SparkSession, config: Config) -> None:
    """Read files and folders to measure on, but for held-out pairs, which preparing makes.

    Raises:
        InputError: One is missing, or not what it is said to be.
    """
    for one in named_sets(config):
        if not one.evaluation.held_out:
            one.read(session, config)


def digest_sets(session: SparkSession, config: Config) -> dict[str, str]:
    """Return a digest of each set that :func:`evaluate` measures on.

    It follows from the rows in any order, and from the release of this package, which decides how
    they are measured: two models measured under one digest may be compared.

    Returns:
        By the names of the sets, in all forms in which they are measured on, 16 hexadecimal digits.

    Raises:
        InputError: See :func:`check_tables`.
    """
    known: dict[tuple[Callable[..., Tables], str], str] = {}
    digests: dict[str, str] = {}
    for one in named_sets(config):
        if one.source not in known:
            known[one.source] = digest_tables(*one.read(session, config).values())
        digests |= dict.fromkeys(names_in_forms(one, config), known[one.source])
    return digests


def digest_tables(*tables: DataFrame) -> str:
    """Return the digest of what a set is measured on, as :func:`digest_sets` has it."""
    content = json.dumps([__version__, [_row_sum(table) for table in tables]])
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _row_sum(table: DataFrame) -> Sequence[str]:
    """Return count and sum of the rows' hashes: the same in whatever order the rows are."""
    from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

    hashes = F.xxhash64(*table.columns).cast("decimal(20,0)")
    found = table.agg(F.count("*"), F.sum(hashes)).collect()[0]
    return [str(value) for value in found]


def evaluate(
    session: SparkSession,
    config: Config,
    model_folder: Location | str,
    on_observed: Callable[[str, Observed], None] = lambda name, found: None,
) -> dict[str, dict[str, float]]:
    """Measure a model on the held-out pairs and on the files and folders that are named.

    Args:
        config: ``evaluation`` says what is measured; the held-out pairs are those of
            ``<prepared.folder>/corpus/evaluation``, where there are any.
        model_folder: The model, where every executor can read it.
        on_observed: Called with the name of a set and what was observed of the model on it, by the
            evaluations whose figures are of single items.

    Returns:
        By the names of the sets the figures of their evaluations; at each of
        ``objective.dimensions``, of all sources' objectives, too where an evaluation measures at
        several widths; each fused with BM25 too with ``evaluation.hybrid``.

    Raises:
        InputError: What is asked for cannot be read.
    """
    load = embedder_loader(session, model_folder)
    if config.evaluation.retrieval and not held_out_sets(config):
        place = PreparedFolder.of(config).corpus.queries.parent
        logger.info("no retrieval evaluation: there are no held-out pairs in %s", place)
    forms = Forms.of(config)
    known: dict[tuple[Callable[..., Tables], str], Tables] = {}
    figures: dict[str, dict[str, float]] = {}
    for evaluation, sets in groupby(named_sets(config), attrgetter("evaluation")):
        next_part(evaluation.part)
        of_evaluation = list(sets)
        # All of an evaluation are checked before the first is worked on.
        for one in of_evaluation:
            if one.source not in known:
                known[one.source] = one.read(session, config)
        for one in of_evaluation:
            arranged = evaluation.arrange(known[one.source])
            tables = {name: SparkRows(frame) for name, frame in arranged.items()}
            for found in evaluation.measure(tables, load, forms):
                name = found.form.named(one.name)
                figures[name] = found.figures
                if found.observed is not None:
                    on_observed(name, found.observed)
    return figures
