"""What a table of negatives follows from, and where it is made until it takes its place.

`_mining.json` says what a table follows from, and is the first thing in its folder; beside it, in
`_work`, are texts, vectors and pairs, until the table is whole.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.catalog import SEARCHES
from pipelines.errors import InputError
from pipelines.files import records, storage, versions
from pipelines.files.copies import local_folder
from pipelines.files.locations import Location, RemotePath, arrow_source, listed, location
from pipelines.files.ownership import NEGATIVES
from pipelines.files.run_folder import RunFolder
from pipelines.settings import Config, MiningSettings
from pipelines.tokens.start import Prompts, read_prompts
from pipelines.vectors.embedding import EmbeddingOptions, embedding_options, vectors_of
from pipelines.vectors.mining_inputs import DOCUMENTS, INPUTS, stamps
from pipelines.vectors.mining_texts import PLACE_BITS, Anchors
from pipelines.vectors.nearest import SCORE_DECIMALS, unit_length
from pipelines.vectors.negatives import NONE, GetOn, Negatives, Selection, choose, fill, wanted
from pipelines.vectors.part_files import SIGN_SECONDS
from pipelines.vectors.parts import read_rows
from pipelines.vectors.plan import beginning, begun_folders, check_places, discard_begun
from pipelines.vectors.store import VectorTable, on_this_machine, rows_at


@dataclass(frozen=True)
class PartFigures:
    """What became of the pairs of a part; stands in the footer of its file.

    Attributes:
        pairs: That were read.
        repeated: Of those, the same two texts once more.
        short: Pairs that have been left out, with fewer negatives than were wanted.
        written: Rows of the output.
        filled: Of those, rows with negatives that were drawn at random.
        dropped: Documents that filters have dropped, by reason; see
            :meth:`~pipelines.vectors.negatives.Selection.dropped`.
        negatives: That were written.
        of_own_group: Of those, negatives of their anchor's group.
        positive_scores: Sum of the scores of the positives that were written.
        negative_scores: The same of the negatives.
    """

    pairs: int = 0
    repeated: int = 0
    short: int = 0
    written: int = 0
    filled: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    negatives: int = 0
    of_own_group: int = 0
    positive_scores: float = 0.0
    negative_scores: float = 0.0

    def as_json(self) -> bytes:
        """For a footer."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, told: bytes) -> PartFigures:
        """As a footer has them."""
        return cls(**json.loads(told))


@dataclass(frozen=True)
class MiningSummary:
    """What a job did.

    Attributes:
        folder: The table; in a store the version of it that is the current one.
        read: Rows of the input.
        without_text: Of those, rows without an anchor or a positive.
        repeated: Pairs that are there once more.
        short: Pairs that were left out, with fewer negatives than were wanted.
        rows: Of the table.
        filled: Of those, rows with negatives that were drawn at random.
        documents: Texts that were searched.
        dropped: Documents that filters have dropped, by reason.
        of_own_group: Share of the negatives that are of their anchor's group; None where there are
            no groups.
        positive_score: Mean cosine of the anchors and the positives that were written.
        negative_score: The same of the negatives.
        searched: Pairs that this run searched.
        embedded: Texts that this run embedded.
        seconds: That the search of these pairs took.
    """

    folder: str
    read: int
    without_text: int
    repeated: int
    short: int
    rows: int
    filled: int
    documents: int
    dropped: Mapping[str, int]
    of_own_group: float | None
    positive_score: float | None
    negative_score: float | None
    searched: int
    embedded: int
    seconds: float

    @property
    def rate(self) -> float:
        """Pairs searched a second."""
        return self.searched / max(self.seconds, 1e-9)

    def lines(self) -> list[str]:
        """What is told at the end."""
        if not self.searched and not self.embedded:
            return [f"nothing to mine, all {self.rows:,} rows are there"]
        lines = [
            f"{self.searched:,} pairs searched in {self.documents:,} documents, "
            f"{self.rate:,.0f} anchors/s ({self.seconds:.0f} s)",
            f"{self.rows:,} rows of {self.read:,}; left out: {self.without_text:,} without text, "
            f"{self.repeated:,} repeated, {self.short:,} with too few negatives",
        ]
        if any(self.dropped.values()):
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in self.dropped.items())
            lines.append(f"documents nearer than the negatives, and dropped: {reasons}")
        if self.filled:
            lines.append(f"{self.filled:,} rows have negatives that were drawn at random")
        if self.positive_score is not None and self.negative_score is not None:
            lines.append(
                f"mean cosine of positives {self.positive_score:.3f}, "
                f"of negatives {self.negative_score:.3f}"
            )
        if self.of_own_group:
            lines.append(f"{self.of_own_group:.1%} of the negatives are of the anchor's group")
        return lines

    def __str__(self) -> str:
        return self.lines()[0]


def added_up(parts: Iterable[PartFigures]) -> PartFigures:
    """The figures of several parts as those of the whole, in the order of the parts."""
    sums: dict[str, Any] = dict.fromkeys(PartFigures.__dataclass_fields__, 0)
    dropped: Counter[str] = Counter()
    for part in parts:
        told = asdict(part)
        dropped.update(told.pop("dropped"))
        for name, value in told.items():
            sums[name] += value
    return PartFigures(**{**sums, "dropped": dict(dropped)})


GROUPS = "groups"
"""Column of documents: 64 bits for each of their groups."""


@dataclass(frozen=True)
class Texts:
    """The texts of a job, with their vectors; sent to executors.

    Attributes:
        documents: All that are searched.
        anchors: Those that are none of these; None where all are.
    """

    documents: VectorTable
    anchors: VectorTable | None


@dataclass(frozen=True)
class Pairs:
    """The pairs of a part.

    Attributes:
        rows: The different ones.
        anchors: The same as arrays.
        read: How many there were.
    """

    rows: pa.Table
    anchors: Anchors
    read: int


def read_pairs(file: Location, texts: Texts) -> Pairs:
    """The pairs of a part.

    Args:
        file: The pairs, sorted by anchor and positive.
        texts: What the places of the pairs are in.
    """
    with pq.ParquetFile(arrow_source(file)) as opened:
        rows = opened.read(use_threads=False)
    own = _positions(texts.documents, rows["own_at"])
    others = _positions(texts.anchors, rows["anchor_at"])
    positives = _positions(texts.documents, rows["positive_at"])
    is_other = np.diff(np.stack([own, others]), axis=1, prepend=-2).any(axis=0)
    numbers = np.cumsum(is_other) - 1
    is_first = is_other | (np.diff(positives, prepend=-2) != 0)
    size = sum(document.rows for document in texts.documents.files)
    kept = np.flatnonzero(is_first)
    vectors = _vectors_of_anchors(texts, own[kept], others[kept])
    matching = _vectors(texts.documents, positives[kept])
    scores = np.round(np.einsum("ij,ij->i", vectors, matching).astype(float), SCORE_DECIMALS)
    starts, groups, group_documents = _groups(rows["group_id"], numbers, texts.documents)
    anchors = Anchors(
        documents=size,
        ids=rows["id"].to_numpy()[kept],
        vectors=vectors,
        positive_scores=scores,
        numbers=numbers[kept],
        own=own[kept],
        positives=np.unique(numbers * size + positives),
        group_starts=starts,
        groups=groups,
        group_documents=group_documents,
    )
    return Pairs(rows.take(pa.array(kept)), anchors, rows.num_rows)


def _positions(table: VectorTable | None, places: pa.ChunkedArray) -> np.ndarray:
    """Positions in a table of the places of rows; -1 where there is none."""
    found = np.full(len(places), -1, np.int64)
    if table is None:
        return found
    present = places.is_valid().to_numpy()
    known = places.drop_null().to_numpy()
    buckets = {int(file.path.stem.rpartition("-")[2]): file.first for file in table.files}
    firsts = np.zeros(max(buckets) + 1, np.int64)
    firsts[list(buckets)] = list(buckets.values())
    found[present] = firsts[known >> PLACE_BITS] + (known & (2**PLACE_BITS - 1))
    return found


def _vectors_of_anchors(texts: Texts, own: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Those of documents where an anchor is known by none of its own."""
    vectors = np.empty((len(own), texts.documents.dimensions), np.float32)
    is_document = others < 0
    vectors[is_document] = _vectors(texts.documents, own[is_document])
    if texts.anchors is not None:
        vectors[~is_document] = _vectors(texts.anchors, others[~is_document])
    return vectors


def _vectors(table: VectorTable, positions: np.ndarray) -> np.ndarray:
    if not len(positions):
        return np.empty((0, table.dimensions), np.float32)
    return unit_length(vectors_of(rows_at(table, positions, [table.vector]).column(table.vector)))


def _groups(
    ids: pa.ChunkedArray, numbers: np.ndarray, documents: VectorTable
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The last three of :class:`~pipelines.vectors.mining_texts.Anchors`."""
    present = ids.is_valid().to_numpy()
    known, groups = np.unique(ids.drop_null().to_numpy(), return_inverse=True)
    anchors = int(numbers[-1]) + 1 if len(numbers) else 0
    of_anchors = np.unique(np.stack([numbers[present], groups], axis=1), axis=0)
    starts = np.searchsorted(of_anchors[:, 0], np.arange(anchors + 1))
    if not len(known):
        return starts, of_anchors[:, 1], np.empty(0, np.int64)
    found = [
        _documents_of_groups(known, documents, number) for number in range(len(documents.files))
    ]
    return starts, of_anchors[:, 1], np.sort(np.concatenate(found))


def _documents_of_groups(known: np.ndarray, table: VectorTable, number: int) -> np.ndarray:
    """Pairs of a group of this part and a document of a file, as one number each."""
    file = table.files[number]
    size = sum(one.rows for one in table.files)
    batches = list(read_rows(file.path, 0, file.rows, [GROUPS]))
    lists = pa.Table.from_batches(batches).column(GROUPS).combine_chunks()
    positions = np.repeat(
        file.first + np.arange(len(lists)), lists.value_lengths().to_numpy(zero_copy_only=False)
    )
    values = lists.flatten().to_numpy()
    places = np.minimum(np.searchsorted(known, values), len(known) - 1)
    shared = known[places] == values
    pairs: np.ndarray = places[shared] * size + positions[shared]
    return pairs


def scores_of(
    anchors: Anchors, rows: np.ndarray, documents: np.ndarray, table: VectorTable
) -> np.ndarray:
    """Cosines of anchors and documents that no search has compared.

    Args:
        anchors: The pairs.
        rows: Of pairs.
        documents: Positions, as many.
        table: Has their vectors.
    """
    products = np.einsum("ij,ij->i", anchors.vectors[rows], _vectors(table, documents))
    scores: np.ndarray = np.round(products.astype(float), SCORE_DECIMALS)
    return scores


logger = logging.getLogger(__name__)

PLAN_FILE = "_mining.json"
MANIFEST_FILE = "_manifest.json"
WORK = "_work"
OUTPUT = "mining.output"
MODEL = "mining.model"
FORM = 1
"""Of the files of the work: another release may not go on with them."""

_FORM_KEY = "form"
_OWN = ("output", "overwrite", "model", "inputs", "documents")
_OF_TEXTS = (
    *("format", "anchor_column", "positive_column", "group_column", "key_column"),
    *("documents_format", "documents_column", "documents_group_column", "part_rows"),
)


@dataclass(frozen=True)
class Plan:
    """What is written when a table is begun.

    Attributes:
        texts: What texts, vectors and pairs follow from, by setting.
        negatives: What else the table follows from.
        backend: Who embeds, where the setting is ``auto`` too.
        precision: The same of the precision.
    """

    texts: Mapping[str, Any]
    negatives: Mapping[str, Any]
    backend: str
    precision: str

    @property
    def is_dated(self) -> bool:
        """Whether a change of the inputs would be noticed: tables by name have no version."""
        told = (self.texts[INPUTS], self.texts[DOCUMENTS])
        return all(one is None or one[1] is not None for one in told)

    def differing(self, other: Plan) -> str | None:
        """The first setting in which another table is of something else."""
        here, there = {**self.texts, **self.negatives}, {**other.texts, **other.negatives}
        return next((key for key in here if here[key] != there.get(key)), None)


def read_plan(folder: Location) -> Plan | None:
    """The plan in a folder; None where there is none."""
    path = folder / PLAN_FILE
    known: Plan | None = records.read(path, Plan) if path.is_file() else None
    return known


def write_plan(folder: Location, plan: Plan) -> None:
    """Writes a plan into the folder of its table."""
    storage.write_json(folder / PLAN_FILE, asdict(plan))


def output_folder(config: Config) -> Location:
    """The place of the table."""
    return location(config.mining.output, config.storage).expanduser().absolute()


def options_of(config: Config, threads: int = 1, backend: str | None = None) -> EmbeddingOptions:
    """How texts are embedded: by the model of the section, as the section `embedding` says.

    Raises:
        InputError: There is no such model, or the settings do not fit it.
    """
    named = config.mining.model
    model = (
        RunFolder.of(config).model
        if named is None
        else versions.current(location(named, config.storage))
    )
    embedding = config.embedding
    try:
        return embedding_options(
            model,
            backend=backend or embedding.backend,
            precision=embedding.precision,
            threads=threads,
            batch_tokens=embedding.batch_tokens,
            dimensions=embedding.dimensions,
        )
    except InputError as error:
        if error.key != "embedding.model":
            raise
        raise InputError(MODEL, error.problem, error.remedy) from None


def prompts_of(options: EmbeddingOptions) -> Prompts:
    """The prompts of the model."""
    return read_prompts(local_folder(options.model))


def plan_of(config: Config, options: EmbeddingOptions) -> Plan:
    """What a table is to follow from.

    Raises:
        InputError: An input is not there.
    """
    asked = config.mining.model_dump(mode="json")
    texts = {
        _FORM_KEY: FORM,
        MODEL: options.model_sha256,
        **stamps(config),
        **{f"mining.{name}": asked[name] for name in _OF_TEXTS},
        # Files of documents are larger for an index.
        "mining.search": asked["search"],
        "embedding.backend": config.embedding.backend,
        "embedding.precision": config.embedding.precision,
        "embedding.batch_tokens": config.embedding.batch_tokens,
        "embedding.dimensions": options.dimensions,
    }
    names = [name for name in MiningSettings.model_fields if f"mining.{name}" not in texts]
    negatives = {f"mining.{name}": asked[name] for name in names if name not in _OWN}
    return Plan(texts, negatives, options.backend, options.precision)


def finished(config: Config, plan: Plan) -> bool:
    """Whether the table is there already, of the same.

    Raises:
        InputError: The folder holds other files, or a table of something else that may not be
            replaced.
    """
    folder = output_folder(config)
    there = versions.current(folder)
    check_places(OUTPUT, folder, NEGATIVES)
    known = read_plan(there)
    if known is None or config.mining.overwrite:
        return False
    other = plan.differing(known)
    again = "set mining.overwrite=true to make it again, or name another mining.output"
    if other == _FORM_KEY:
        raise InputError(OUTPUT, f"{folder} was made by another release", again)
    if other is not None:
        raise InputError(other, f"{folder} was made with another value of it", again)
    if not plan.is_dated:
        problem = f"whether they have changed since {folder} was made cannot be known"
        raise InputError(INPUTS, problem, again)
    return True


def begin(folder: Location, plan: Plan) -> tuple[Location, Plan]:
    """Where a table is made: one that was begun goes on, with the vectors that it has.

    Args:
        folder: The place of the table; no other job works there.
        plan: What it is to follow from.

    Returns:
        The folder, and the plan, with the backend and the precision of what is there.
    """
    for place in begun_folders(folder):
        known = read_plan(place)
        if known is None or known.texts != plan.texts:
            continue
        plan = replace(plan, backend=known.backend, precision=known.precision)
        if known.negatives != plan.negatives:
            (place / MANIFEST_FILE).unlink(missing_ok=True)
            for file in listed(place, "part-*.parquet"):
                file.unlink()
            write_plan(place, plan)
        logger.info("mining: going on with what %s holds", place)
        return place, plan
    discard_begun(folder)
    with beginning(folder) as begun:
        write_plan(begun.aside, plan)
    return begun.folder, plan


FIGURES = b"sentence_pipelines.mining"
"""Key in the footer of a file: what became of its pairs."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """What all parts of a job have in common; sent to executors.

    Attributes:
        settings: Of the job.
        pairs: Folder of the pairs.
        texts: Their texts, with vectors.
        folder: Of the output.
        attempts: Folder for signs of life, of this job alone.
        threads: CPU threads of a task.
    """

    settings: MiningSettings
    pairs: Location
    texts: Texts
    folder: Location
    attempts: Location
    threads: int


def make_parts(names: Iterable[str], *, work: Work) -> Iterator[int]:
    """Makes files of the output, each of which appears as a whole; yields pairs that it read."""
    pa.set_cpu_count(work.threads)
    documents = work.texts.documents
    if any(isinstance(file.path, RemotePath) for file in documents.files):
        # Every part reads all of them.
        documents = on_this_machine(documents)
    work = replace(work, texts=replace(work.texts, documents=documents))
    for name in names:
        yield _make(name, work)


def _make(name: str, work: Work) -> int:
    """Makes a file; returns how many pairs it read."""
    found = read_pairs(work.pairs / f"{name}.parquet", work.texts)
    settings, documents, anchors = work.settings, work.texts.documents, found.anchors
    selection = Selection(anchors, settings, wanted(settings))
    sign = work.attempts / f"{name}.sign"
    SEARCHES.load(settings.search).find(selection, documents, _signs(sign))
    negatives = mined = choose(selection.result(), anchors, settings)
    if settings.fill == "random":
        negatives = _scored(fill(mined, anchors, settings), anchors, documents)
    written = np.flatnonzero(negatives.is_whole)
    kept = Negatives(negatives.documents[written], negatives.scores[written])
    figures = PartFigures(
        pairs=found.read,
        repeated=found.read - len(anchors),
        short=len(anchors) - len(written),
        written=len(written),
        filled=int((~mined.is_whole[written]).sum()),
        dropped=selection.dropped(),
        negatives=kept.documents.size,
        of_own_group=_of_own_group(anchors, written, kept),
        positive_scores=float(anchors.positive_scores[written].sum()),
        negative_scores=float(kept.scores.sum()),
    )
    table = _table(found, written, kept, documents)
    with storage.built_file(work.folder / f"{name}.parquet") as path:
        told = table.replace_schema_metadata({FIGURES: figures.as_json()})
        pq.write_table(told, path, compression="zstd", write_page_checksum=True)
    sign.unlink(missing_ok=True)
    return found.read


def _signs(sign: Location) -> GetOn:
    """Has a file grow every so often, by which the driver sees that the task gets on."""
    told, count = time.monotonic(), 0

    def get_on() -> None:
        nonlocal told, count
        if time.monotonic() - told > SIGN_SECONDS:
            told, count = time.monotonic(), count + 1
            storage.write_text(sign, "." * count)

    return get_on


def _scored(negatives: Negatives, anchors: Anchors, documents: VectorTable) -> Negatives:
    """With the scores of documents that were drawn at random."""
    rows, places = np.nonzero((negatives.documents != NONE) & np.isnan(negatives.scores))
    scores = negatives.scores.copy()
    scores[rows, places] = scores_of(anchors, rows, negatives.documents[rows, places], documents)
    return Negatives(negatives.documents, scores)


def _of_own_group(anchors: Anchors, written: np.ndarray, kept: Negatives) -> int:
    rows = np.repeat(written, kept.documents.shape[1])
    return int(anchors.are_of_group(rows, kept.documents.reshape(-1)).sum())


def _table(found: Pairs, written: np.ndarray, kept: Negatives, documents: VectorTable) -> pa.Table:
    """The rows of the output: texts, scores, and what else the input has."""
    assert documents.text is not None, "documents are texts"
    rows = found.rows.take(pa.array(written))
    count = kept.documents.shape[1]
    texts = rows_at(documents, kept.documents.T.reshape(-1), [documents.text])
    texts = texts.column(documents.text).combine_chunks()
    columns = {name: rows.column(name) for name in ("anchor", "positive")}
    for number in range(count):
        columns[f"negative_{number}"] = texts.slice(number * len(written), len(written))
    scores = found.anchors.positive_scores[written]
    columns["positive_score"] = pa.array(scores, pa.float32())
    for number in range(count):
        scored = np.ascontiguousarray(kept.scores[:, number])
        columns[f"negative_{number}_score"] = pa.array(scored, pa.float32())
    columns |= {name: rows.column(name) for name in ("group", "key") if name in rows.column_names}
    return pa.table(columns)


def read_figures(file: Location) -> PartFigures:
    """What became of the pairs of a file.

    Raises:
        pyarrow.ArrowInvalid: The file is not whole.
    """
    footer = pq.read_schema(arrow_source(file)).metadata or {}
    return PartFigures.from_json(footer[FIGURES])
