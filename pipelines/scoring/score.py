"""The job `score`: pairs or triplets in, the same rows with a teacher's scores out, part by part.

Losses such as `margin_mse` and `listwise_kl` learn these scores (``corpus.score_columns``).
`_scoring.json` names the sources of a table, and is the first file in its folder.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.arrow_columns import as_text, is_text
from pipelines.catalog import SCORERS
from pipelines.corpus.readers.formats import Dialect
from pipelines.corpus.readers.inputs import has_columns
from pipelines.errors import InputError, PipelineError
from pipelines.files import records, storage, versions
from pipelines.files.begun import beginning, begun_folders, check_places, discard_begun, take_place
from pipelines.files.locations import Location, arrow_source, location
from pipelines.files.ownership import SCORES
from pipelines.progress import activity
from pipelines.scoring.scorers import Scorer
from pipelines.settings import Config, EmbeddingSettings, ScoringSettings
from pipelines.spark.capacity import default_parallelism
from pipelines.spark.session import running_tasks
from pipelines.vectors.embedding import blocks
from pipelines.vectors.inputs import (
    Files,
    check_no_overlap,
    input_stamps,
    parquet_inputs,
    table_files,
)
from pipelines.vectors.parts import (
    Constant,
    PartSize,
    RowRange,
    cut_file,
    in_threads,
    read_part,
    tasks,
    write_part,
)
from pipelines.vectors.table_job import (
    ATTEMPTS,
    MANIFEST_FILE,
    STAGED,
    life_signs,
    make_parts,
    missing_parts,
    working_on,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

PLAN_FILE = "_scoring.json"
INPUTS = "scoring.inputs"
OUTPUT = "scoring.output"
NEGATIVES = "scoring.negative_columns"
FORM = 1
"""Version of the files: a release does not continue from another version."""
SUFFIX = "_score"

_UNUSED = {
    ("cross_encoder", "encoder"): "fusion",
    ("bi_encoder", "model"): "fusion",
    ("bi_encoder", "logits"): "cross_encoder",
}
"""Scorers that do not use a key, with one that does."""
_BLOCK_ROWS = 1024
_MINED = re.compile(r"negative_(\d+)")
_FORM_KEY = "form"


@dataclass(frozen=True)
class ScoringSummary:
    """The result of a job.

    Attributes:
        folder: The table; in a store, its current version.
        rows: Rows of the table.
        left_out: Rows of the input with too few negatives below the margin.
        pairs: Scores in it; a row without one of the texts has none for it.
        positive_score: Mean score of the positives; ``negative_score`` likewise, None without.
        above: Share of negatives with a higher score than their positive; None of filtered ones.
        scored: Rows scored by this run, in ``seconds``.
    """

    folder: str
    rows: int
    left_out: int
    pairs: int
    positive_score: float | None
    negative_score: float | None
    above: float | None
    scored: int
    seconds: float

    @classmethod
    def read_again(cls, folder: Location) -> ScoringSummary:
        """Return the result of a finished table, for a run without any work."""
        again = {"folder": str(folder), "scored": 0, "seconds": 0.0}
        return records.built(
            folder / MANIFEST_FILE, lambda known: cls(**{**known["figures"], **again})
        )

    def lines(self) -> list[str]:
        """Return the lines to print at the end."""
        if not self.scored:
            return [f"nothing to score: all {self.rows:,} rows have scores"]
        rate = self.scored / max(self.seconds, 1e-9)
        lines = [f"{self.scored:,} rows scored, {rate:,.0f} rows/s ({self.seconds:.0f} s)"]
        if self.positive_score is not None:
            line = f"mean score of positives {self.positive_score:.3f}"
            if self.negative_score is not None:
                line += f", of negatives {self.negative_score:.3f}"
            lines.append(line)
        if self.left_out:
            read = self.rows + self.left_out
            lines.append(f"{self.left_out:,} of {read:,} rows left out: too few negatives pass")
        if self.above is not None:
            lines.append(f"{self.above:.1%} of the negatives score above their positive")
        return lines

    def __str__(self) -> str:
        return self.lines()[0]


@dataclass(frozen=True)
class Texts:
    """The columns of a table: the anchor, and its candidates, the positive first.

    Of the negatives, ``kept`` ones stay that score ``margin`` below the positive; None: all.
    """

    anchor: str
    candidates: tuple[str, ...]
    kept: int | None = None
    margin: float = 0.0

    @property
    def written(self) -> tuple[str, ...]:
        """The columns of candidates in the output."""
        return self.candidates if self.kept is None else self.candidates[: 1 + self.kept]

    @property
    def scores(self) -> list[str]:
        """The columns of scores."""
        return [f"{name}{SUFFIX}" for name in self.written]


@dataclass(frozen=True)
class ScoringJob:
    """A job of the section ``scoring``, with the present state of its model and inputs."""

    config: Config
    scorer: Scorer
    identity: Mapping[str, Any]

    @classmethod
    def of(cls, config: Config) -> ScoringJob:
        """Check all that can be checked without Spark.

        Raises:
            InputError: Model, inputs or settings cannot be used, or see :meth:`is_done`.
        """
        settings = config.scoring
        for (name, key), other in _UNUSED.items():
            if settings.scorer == name and getattr(settings, key):
                problem = f"`scorer: {name}` does not use it"
                remedy = f"Leave it out, or set scoring.scorer to {other}"
                raise InputError(f"scoring.{key}", problem, remedy)
        scorer = SCORERS.load(settings.scorer).of(config)
        table = table_settings(config)
        folder = location(settings.output, config.storage).expanduser().absolute()
        try:
            stamp = input_stamps(table, config.storage)
            check_no_overlap(table, folder, config.storage)
        except InputError as error:
            raise _renamed(error) from None
        asked = settings.model_dump(mode="json")
        columns = (
            *("format", "anchor_column", "positive_column", "negative_columns", "scorer"),
            *("keep_negatives", "margin"),
        )
        identity = {
            _FORM_KEY: FORM,
            INPUTS: [list(table.inputs), stamp],
            **{f"scoring.{name}": asked[name] for name in columns},
            **scorer.identity,
        }
        job = cls(config, scorer, identity)
        if table.format == "parquet":
            try:
                files = parquet_inputs(table, config.storage)
            except InputError as error:
                raise _renamed(error) from None
            for file in files:
                job.texts_of(file.types, str(file.path))
        job.is_done()
        return job

    @property
    def settings(self) -> ScoringSettings:
        """The section ``scoring``."""
        return self.config.scoring

    @property
    def folder(self) -> Location:
        """The place of the table."""
        return location(self.settings.output, self.config.storage).expanduser().absolute()

    def texts_of(self, types: Mapping[str, pa.DataType], where: str) -> Texts:
        """Return the columns of a table with these types; ``where`` names it in messages.

        Raises:
            InputError: A column is missing, or holds no text.
        """
        settings = self.settings
        negatives = settings.negative_columns or tuple(
            sorted(filter(_MINED.fullmatch, types), key=lambda name: int(name.split("_")[1]))
        )
        named = {
            "scoring.anchor_column": (settings.anchor_column,),
            "scoring.positive_column": (settings.positive_column,),
            NEGATIVES: negatives,
        }
        for key, names in named.items():
            for name in names:
                if name not in types:
                    problem = f"{where} has no column `{name}`"
                    raise InputError(key, problem, has_columns(types, "scoring"))
                if not is_text(types[name]):
                    problem = f"`{name}` of {where} holds {types[name]}"
                    raise InputError(key, problem, "Name a column of strings")
        kept = settings.keep_negatives
        if kept is not None and kept > len(negatives):
            raise InputError(
                "scoring.keep_negatives",
                f"{where} has {len(negatives)} negatives in a row",
                f"Set it to at most {len(negatives)}" if negatives else "Leave it out",
            )
        candidates = (settings.positive_column, *negatives)
        return Texts(settings.anchor_column, candidates, kept, settings.margin)

    def is_done(self) -> bool:
        """Return whether this table exists already.

        Raises:
            InputError: The folder holds foreign files, or a different table, without
                ``scoring.overwrite``. So does an unfinished one, unless its inputs have changed.
        """
        check_places(OUTPUT, self.folder, SCORES)
        if self.settings.overwrite:
            return False
        again = "Set scoring.overwrite=true to make it again, or name another scoring.output"
        for begun in begun_folders(self.folder):
            differing = self._differing(_identity_in(begun) or self.identity)
            if differing not in ("", _FORM_KEY, INPUTS):
                problem = f"the unfinished table in {begun} was made with another value of this"
                remedy = f"{again}. Or remove the unfinished table"
                raise InputError(differing, f"{problem} setting", remedy)
        known = _identity_in(versions.current(self.folder))
        if known is None:
            return False
        if known.get(_FORM_KEY) != FORM:
            raise InputError(OUTPUT, f"{self.folder} was made by another release", again)
        if differing := self._differing(known):
            raise InputError(
                differing, f"{self.folder} was made with another value of this setting", again
            )
        if self.identity[INPUTS][1] is None:
            problem = f"it is unknown whether they have changed since {self.folder} was made"
            raise InputError(INPUTS, problem, again)
        return True

    def _differing(self, known: Mapping[str, Any]) -> str:
        """Return the first setting with another value in a table; empty if there is none."""
        return next((key for key in self.identity if self.identity[key] != known.get(key)), "")

    @contextmanager
    def working(self) -> Iterator[None]:
        """Keep other jobs from the folder; see :func:`~pipelines.vectors.table_job.working_on`."""
        with working_on(OUTPUT, self.folder, "score"):
            yield

    def run(self, session: SparkSession) -> ScoringSummary:
        """Score the rows; the caller holds the lock of the folder.

        Raises:
            InputError: See :meth:`is_done`, or the input cannot be read.
            PipelineError: Spark's job failed or stood still; finished parts are kept.
        """
        if self.is_done():
            summary = ScoringSummary.read_again(versions.current(self.folder))
            logger.info("scoring: %s", summary)
            return summary
        begun, plan = self._begun(session)
        if (begun / MANIFEST_FILE).is_file():
            # The earlier job was killed just before its finished table took its place.
            summary = ScoringSummary.read_again(begun)
        else:
            summary = self._made(session, begun, plan)
            for line in summary.lines():
                logger.info("scoring: %s", line)
        for name in (STAGED, ATTEMPTS):
            storage.discard_folder(begun / name)
        take_place(begun, self.folder)
        return replace(summary, folder=str(versions.current(self.folder)))

    def _begun(self, session: SparkSession) -> tuple[Location, _Plan]:
        """Return folder and plan of the table to make: a begun one of these settings, or a new."""
        for place in begun_folders(self.folder):
            if _identity_in(place) == self.identity:
                logger.info("scoring: resuming the table in %s", place)
                return place, _Plan.read(place, self.config)
        discard_begun(self.folder)
        table = table_settings(self.config)
        with (
            activity("scoring", "planning the parts", running_tasks),
            beginning(self.folder) as begun,
        ):
            try:
                files = table_files(
                    session, table, self.config.storage, begun.aside, self.folder, OUTPUT
                )
            except InputError as error:
                raise _renamed(error) from None
            plan = self._planned(files)
            final = tuple(replace(part, path=begun.final(part.path)) for part in plan.parts)
            plan = replace(plan, parts=final)
            plan.write(begun.aside, self.identity)
        return begun.folder, plan

    def _planned(self, files: Files) -> _Plan:
        footers, constants = files
        found = {self.texts_of(file.types, str(file.path)) for file in footers}
        if len(found) > 1:
            counts = sorted(len(texts.candidates) - 1 for texts in found)
            problem = f"the files have {counts[0]} to {counts[-1]} negatives"
            raise InputError(NEGATIVES, problem, "Name the columns that all files have")
        settings = self.settings
        size = PartSize(settings.part_megabytes * 2**20, settings.part_rows, 4)
        parts = [
            part
            for place, file in enumerate(footers)
            for part in cut_file(file, size, f"part-{place:05d}", constants.get(file.path, ()))
        ]
        if not parts:
            raise InputError(INPUTS, "they hold no rows", "Name a table with rows")
        return _Plan(found.pop(), tuple(parts))

    def _made(self, session: SparkSession, folder: Location, plan: _Plan) -> ScoringSummary:
        """Make the missing parts of the table, and its manifest."""
        rows = {part.name: part.rows for part in plan.parts}
        names = {*missing_parts(folder, dict(rows))}
        missing = [part for part in plan.parts if part.name in names]
        began = time.monotonic()
        scorer = self.scorer
        if missing:
            scorer = scorer.in_session(session, self.config, plan.resolved)
            replace(plan, resolved=scorer.resolved).write(folder, self.identity)
        make = partial(score_parts, folder=folder, texts=plan.texts, scorer=scorer)
        dealt = tasks(missing, default_parallelism(session))
        scored = sum(make_parts(session, "scoring", folder, rows, dealt, make))
        seconds = round(time.monotonic() - began, 2)
        summary = _summary(folder, plan, scored, seconds)
        figures = {name: value for name, value in asdict(summary).items() if name != "folder"}
        manifest = {"rows": summary.rows, "score_columns": plan.texts.scores, "figures": figures}
        storage.write_json(folder / MANIFEST_FILE, manifest)
        return summary


@dataclass(frozen=True)
class _Plan:
    """The columns and parts of a table; ``resolved`` is that of its scorer, once known."""

    texts: Texts
    parts: tuple[RowRange, ...]
    resolved: Mapping[str, str] = field(default_factory=dict)

    def write(self, folder: Location, identity: Mapping[str, Any]) -> None:
        """Write the plan into the folder of its table."""
        parts = [
            {**vars(part), "path": str(part.path), "constants": [*map(asdict, part.constants)]}
            for part in self.parts
        ]
        known = {
            "identity": identity,
            "texts": asdict(self.texts),
            "parts": parts,
            "resolved": dict(self.resolved),
        }
        storage.write_json(folder / PLAN_FILE, known)

    @classmethod
    def read(cls, folder: Location, config: Config) -> _Plan:
        """Return the plan of a folder."""

        def built(known: dict[str, Any]) -> _Plan:
            texts = Texts(**{**known["texts"], "candidates": tuple(known["texts"]["candidates"])})
            parts = (
                RowRange(
                    **{
                        **part,
                        "path": location(part["path"], config.storage),
                        "constants": tuple(Constant(**one) for one in part["constants"]),
                    }
                )
                for part in known["parts"]
            )
            return cls(texts, tuple(parts), known["resolved"])

        plan: _Plan = records.built(folder / PLAN_FILE, built)
        return plan


def _identity_in(folder: Location) -> Mapping[str, Any] | None:
    path = folder / PLAN_FILE
    if not path.is_file():
        return None
    found: Mapping[str, Any] = records.built(path, lambda known: dict(known["identity"]))
    return found


def table_settings(config: Config) -> EmbeddingSettings:
    """Return the table of the settings in the form for the readers of tables."""
    settings, dialect = config.scoring, Dialect.of(config.scoring)
    mined = versions.current(location(config.mining.output, config.storage).absolute())
    return EmbeddingSettings(
        inputs=settings.inputs or (str(mined),),
        format=settings.format,
        text_column=settings.anchor_column,
        csv_separator=dialect.separator,
        csv_escape=dialect.escape,
        follow_links=settings.follow_links,
    )


def _renamed(error: InputError) -> InputError:
    """Return an error of the readers of tables, which know the section `embedding` only."""
    key = error.key.replace("embedding.", "scoring.")
    return InputError(key, error.problem, error.remedy.replace("embedding.", "scoring."))


def score_parts(
    parts: Iterable[RowRange],
    *,
    folder: Location,
    texts: Texts,
    scorer: Scorer,
    attempts: Location,
) -> Iterator[int]:
    """Write a file for each part, atomically; yield its number of rows. Runs on an executor."""
    for part in parts:
        sign = attempts / f"{part.name}.sign"
        # A part fits into memory, and its footer begins with the number of rows left out.
        scored, read = [], 0
        get_on = life_signs(sign)
        for batch in blocks(read_part(part), _BLOCK_ROWS):
            get_on()
            read += batch.num_rows
            scored.append(with_scores(batch, texts, scorer))
        if read != part.rows:
            raise PipelineError(f"{part.path} has {read} of the {part.rows} rows of {part.name}")
        left_out = read - sum(batch.num_rows for batch in scored)
        with storage.built_file(folder / f"{part.name}.parquet", aside_in=attempts) as path:
            write_part(path, iter(scored), texts.scores, left_out)
        sign.unlink(missing_ok=True)
        yield part.rows


def with_scores(batch: pa.RecordBatch, texts: Texts, scorer: Scorer) -> pa.RecordBatch:
    """Return rows with a score of each candidate, null without one of both texts."""
    anchors = as_text(batch.column(texts.anchor)).to_pylist()
    columns = [as_text(batch.column(name)).to_pylist() for name in texts.candidates]
    places, queries, documents = [], [], []
    for column, candidates in enumerate(columns):
        for row, (anchor, text) in enumerate(zip(anchors, candidates, strict=True)):
            if anchor is not None and text is not None:
                places.append((column, row))
                queries.append(anchor)
                documents.append(text)
    scores = np.full((len(columns), len(anchors)), np.nan, np.float32)
    if places:
        scores[tuple(np.transpose(places))] = scorer.scores(queries, documents)
    if texts.kept is not None:
        batch, scores = _without_false_negatives(batch, scores, texts)
    added = {
        name: pa.array(values, pa.float32(), from_pandas=True)
        for name, values in zip(texts.scores, scores, strict=True)
    }
    left_out = {*added, *(f"{name}{SUFFIX}" for name in texts.candidates)}
    left_out |= {*texts.candidates} - {*texts.written}
    kept = {name: batch.column(name) for name in batch.schema.names if name not in left_out}
    fields = [batch.schema.field(name) for name in kept]
    fields += [pa.field(name, pa.float32()) for name in added]
    schema = pa.schema(fields, batch.schema.metadata)
    return pa.RecordBatch.from_arrays([*kept.values(), *added.values()], schema=schema)


def _without_false_negatives(
    batch: pa.RecordBatch, scores: np.ndarray, texts: Texts
) -> tuple[pa.RecordBatch, np.ndarray]:
    """Return the rows with enough negatives below the margin, and the first of these negatives.

    ``scores`` are float32 [candidates, rows], NaN without a text.
    """
    assert texts.kept is not None, "all negatives are kept"
    # A comparison with NaN is false.
    passes = (scores[1:] <= scores[0] - texts.margin).T
    rows = np.flatnonzero(passes.sum(axis=1) >= texts.kept)
    # Stable: the first ones that pass, in their order.
    chosen = 1 + np.argsort(~passes[rows], axis=1, kind="stable")[:, : texts.kept]
    left = batch.take(pa.array(rows))
    names = texts.candidates
    columns = {name: as_text(left.column(name)).to_pylist() for name in names[1:]}
    places = [left.schema.get_field_index(name) for name in names[1 : 1 + texts.kept]]
    arrays = list(left.columns)
    for number, place in enumerate(places):
        of_rows = enumerate(chosen[:, number].tolist())
        values = [columns[names[candidate]][row] for row, candidate in of_rows]
        arrays[place] = pa.array(values, pa.string()).cast(left.schema.field(place).type)
    found = pa.RecordBatch.from_arrays(arrays, schema=left.schema)
    kept = np.take_along_axis(scores[:, rows], chosen.T, axis=0)
    return found, np.concatenate([scores[:1, rows], kept])


def _summary(folder: Location, plan: _Plan, scored: int, seconds: float) -> ScoringSummary:
    """Return the figures of the whole table, from its columns of scores."""
    files = [folder / f"{part.name}.parquet" for part in plan.parts]
    read = partial(_scores_of, columns=plan.texts.scores)
    scores = np.concatenate(in_threads(read, files))
    positives, negatives = scores[:, :1], scores[:, 1:]
    if not len(scores):
        raise InputError(
            "scoring.keep_negatives",
            f"no row has {plan.texts.kept} negatives below scoring.margin",
            "Set it to less, lower the margin, or mine more negatives",
        )
    return ScoringSummary(
        folder=str(folder),
        rows=len(scores),
        left_out=sum(part.rows for part in plan.parts) - len(scores),
        pairs=int((~np.isnan(scores)).sum()),
        positive_score=_mean(positives),
        negative_score=_mean(negatives),
        # Those that are kept score below it.
        above=_above(positives, negatives) if plan.texts.kept is None else None,
        scored=scored,
        seconds=seconds,
    )


def _above(positives: np.ndarray, negatives: np.ndarray) -> float | None:
    """Return the share of negatives with a higher score than their positive."""
    both = ~np.isnan(positives) & ~np.isnan(negatives)
    return float((negatives > positives)[both].mean()) if both.any() else None


def _scores_of(file: Location, columns: Sequence[str]) -> np.ndarray:
    """Return the scores of a file: float32 [rows, columns], NaN without one."""
    table = pq.read_table(arrow_source(file), columns=list(columns), use_threads=False)
    scores: np.ndarray = np.stack([table[name].to_numpy() for name in columns], axis=1)
    return scores.astype(np.float32)


def _mean(scores: np.ndarray) -> float | None:
    known = scores[~np.isnan(scores)]
    return round(float(known.astype(np.float64).mean()), 6) if known.size else None
