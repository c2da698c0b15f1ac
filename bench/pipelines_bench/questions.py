"""Measures `recipe: questions` on judged queries, part by part.

With `questions.model`, that language model asks about the documents of each set. Without it an
oracle asks: the judged queries of one half of a set are the questions, and the other half measures;
then the other way round. So it shows what good questions bring. No query measures a model that has
seen it.

Each case adds to the one before: pairs alone, mined hard negatives, a teacher's scores. A further
case trains a reranker, which ranks what the start finds.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import statistics
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.table import Table

import pipelines
from pipelines.errors import InputError
from pipelines.evaluation.base import Form
from pipelines.evaluation.intervals import Observations, Observed
from pipelines.evaluation.sets import evaluate as measure_model
from pipelines.files.locations import Location
from pipelines.files.run_folder import RunFolder
from pipelines.jobs.triplets import is_scored
from pipelines.progress import next_part
from pipelines.progress.screen import Screen
from pipelines.settings import Config
from pipelines.settings.load import parse
from pipelines.settings.recipes import ASKS
from pipelines.spark.session import spark_session
from pipelines_bench.recipe import (
    DENSE,
    FIGURE,
    difference,
    judged_folders,
    mean_over_runs,
    mean_score,
    told,
)

logger = logging.getLogger(__name__)

SEEDS = (0, 1, 2)
PAIRS, NEGATIVES, SCORES, RERANKER = "pairs", "negatives", "scores", "reranker"
CASES = (PAIRS, NEGATIVES, SCORES, RERANKER)
_HALVES = 2
DOCUMENTS = "documents.parquet"
_IN_BATCH = {"name": "in_batch_negatives"}


@dataclass(frozen=True)
class Fold:
    """Questions to learn from, and the judged queries that measure.

    Attributes:
        questions: Table with the columns `anchor`, `positive` and `group`; None if the language
            model is to be asked.
        measured: Folder in BEIR's layout.
    """

    questions: Path | None
    measured: Path


@dataclass(frozen=True)
class Judged:
    """A set in BEIR's layout, as it is read here.

    Attributes:
        titles: Titles by document; empty where it has none.
        texts: Texts by document, title first, as the evaluation reads them.
        queries: Texts by judged query.
        relevant: Relevant documents by query.
    """

    folder: Path
    titles: Mapping[str, str]
    texts: Mapping[str, str]
    queries: Mapping[str, str]
    relevant: Mapping[str, Sequence[str]]

    @classmethod
    def read(cls, folder: Path) -> Judged:
        """Read a folder; documents without any text are left out."""
        documents = {str(row["_id"]): row for row in _lines(folder / "corpus.jsonl")}
        titles = {key: row.get("title") or "" for key, row in documents.items()}
        texts = {key: f"{titles[key]} {row['text']}".strip() for key, row in documents.items()}
        relevant: dict[str, list[str]] = {}
        for line in (folder / "qrels/test.tsv").read_text("utf-8").splitlines()[1:]:
            query, document, score = line.split("\t")
            if float(score) > 0 and texts.get(document):
                relevant.setdefault(query, []).append(document)
        asked = {str(row["_id"]): row["text"] for row in _lines(folder / "queries.jsonl")}
        return cls(
            folder,
            titles,
            {key: text for key, text in texts.items() if text},
            {key: asked[key] for key in relevant},
            relevant,
        )

    def group(self, query: str) -> str:
        """Return what queries with the same relevant documents share."""
        return " ".join(sorted(self.relevant[query]))

    def halves(self) -> tuple[list[str], list[str]]:
        """Return the queries as two halves, which hashes decide; neither parts a group.

        Queries with the same words are one group, too.
        """
        leaders: dict[str, str] = {}

        def leader(name: str) -> str:
            while (found := leaders.setdefault(name, name)) != name:
                name = found
            return name

        for query, text in self.queries.items():
            leaders[leader(f"text {text.casefold()}")] = leader(self.group(query))
        halves: tuple[list[str], list[str]] = ([], [])
        for query in self.queries:
            drawn = hashlib.sha256(leader(self.group(query)).encode()).digest()[0]
            halves[drawn % _HALVES].append(query)
        return halves


def measure(
    config: Config, data: str | None, runs: int | None = None, cases: str | None = None
) -> dict[str, Any]:
    """Train on questions about the documents of each set, and measure.

    Args:
        config: With `recipe: questions` and `evaluation.retrieval_sets`.
        data: Not used: the sets are those of the settings.
        runs: Seeds of each training.
        cases: Names of :data:`CASES`, with commas.

    Returns:
        ``sets``: by set ``start`` (nDCG@10, times 100), ``questions`` (their number), and by case
        ``gain``, ``interval``, ``verdict`` and ``by_seed``; ``mean_gain`` by case.

    Raises:
        InputError: The recipe is another, a set is no folder, or there is no such case.
    """
    if config.recipe != ASKS:
        raise InputError("recipe", "the benchmark is of `questions`", f"Set it to {ASKS}")
    folders = judged_folders(config)
    named = _cases(config, cases)
    seeds = range(runs) if runs is not None else SEEDS
    with tempfile.TemporaryDirectory(prefix="questions-") as work:
        sets = {one.name: _of_set(config, one, Path(work), named, seeds) for one in folders}
    _print(sets, named)
    means = {
        case: round(statistics.fmean(found["cases"][case]["gain"] for found in sets.values()), 2)
        for case in named
    }
    return {"sets": sets, "mean_gain": means, "asked": config.questions.model or "oracle"}


def _cases(config: Config, cases: str | None) -> tuple[str, ...]:
    named = tuple(cases.split(",")) if cases else CASES[: 3 if is_scored(config) else 2]
    for case in named:
        if case not in CASES:
            raise InputError("--cases", f"there is no `{case}`", f"Choose of {', '.join(CASES)}")
    if SCORES in named and not is_scored(config):
        raise InputError("--cases", "no teacher gives `scores`", "Set scoring.model, or encoder")
    return named


def _of_set(
    config: Config, folder: Path, work: Path, cases: Sequence[str], seeds: Sequence[int]
) -> dict[str, Any]:
    judged = Judged.read(folder)
    home = work / folder.name
    home.mkdir()
    _write_documents(home / DOCUMENTS, judged)
    before: list[Observations] = []
    after: dict[tuple[str, int], list[Observations]] = {}
    asked = 0
    for number, fold in enumerate(_folds(config, judged, home)):
        tree = _tree(config, fold, home / f"half-{number}")
        asked += _make_triplets(parse(tree), fold, cases)
        for case in cases:
            for seed in seeds:
                next_part(f"{folder.name}, half {number + 1}, {case}, seed {seed}")
                one = parse(_of_case(tree, case, seed))
                pipelines.prepare(one)
                pipelines.train(one)
                run = RunFolder.of(one)
                if len(before) == number:
                    before.append(_observed(one, run.start))
                after.setdefault((case, seed), []).append(_measured(one, run, case))
    start = _joined(before)
    return {
        "queries": len(start.items),
        "start": round(mean_score(start), 2),
        "questions": asked,
        "cases": {
            case: _gain(start, [_joined(after[case, seed]) for seed in seeds]) for case in cases
        },
    }


def _write_documents(path: Path, judged: Judged) -> None:
    keys = list(judged.texts)
    columns = {"text": [judged.texts[key] for key in keys]}
    if any(judged.titles.values()):
        columns["title"] = [judged.titles[key] for key in keys]
    pq.write_table(pa.table(columns), path)


def _folds(config: Config, judged: Judged, home: Path) -> Iterator[Fold]:
    if config.questions.model is not None:
        yield Fold(None, judged.folder)
        return
    halves = judged.halves()
    for number, (learned, measured) in enumerate((halves, halves[::-1])):
        questions = home / f"questions-{number}.parquet"
        _write_questions(questions, judged, learned)
        part = home / f"measured-{number}" / judged.folder.name
        _write_measured(part, judged, measured)
        yield Fold(questions, part)


def _write_questions(path: Path, judged: Judged, queries: Iterable[str]) -> None:
    rows = [
        {"anchor": judged.queries[query], "positive": judged.texts[document], "group": query}
        for query in queries
        for document in judged.relevant[query]
    ]
    pq.write_table(pa.Table.from_pylist(rows), path)


def _write_measured(folder: Path, judged: Judged, queries: Sequence[str]) -> None:
    """Write a part of a set; queries with the same relevant documents are one group."""
    (folder / "qrels").mkdir(parents=True)
    # A link would be refused: the set is compared with the training pairs.
    shutil.copyfile(judged.folder / "corpus.jsonl", folder / "corpus.jsonl")
    rows = (
        {"_id": key, "text": judged.queries[key], "group": judged.group(key)} for key in queries
    )
    (folder / "queries.jsonl").write_text(
        "".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8"
    )
    lines = [f"{query}\t{one}\t1" for query in queries for one in judged.relevant[query]]
    (folder / "qrels/test.tsv").write_text(
        "\n".join(["query-id\tcorpus-id\tscore", *lines, ""]), encoding="utf-8"
    )


def _tree(config: Config, fold: Fold, home: Path) -> dict[str, Any]:
    """Return the settings of a fold: of its own folders, and without further evaluations."""
    tree = config.model_dump(mode="json")
    documents = str(home.parent / DOCUMENTS)
    tree["questions"] |= {"inputs": [documents], "format": "parquet", "text_column": "text"}
    if "title" in pq.read_schema(documents).names:
        tree["questions"]["title_column"] = "title"
    tree["questions"]["output"] = str(home / "questions")
    asked = str(fold.questions or home / "questions")
    tree["mining"] |= {"inputs": [asked], "documents": [documents], "output": str(home / "mined")}
    tree["scoring"] |= {"inputs": [str(home / "mined")], "output": str(home / "scored")}
    tree["corpus"] |= {"evaluation_share": 0.0, "max_dropped": 1.0}
    tree["prepared"]["folder"] = str(home / "prepared")
    tree["run"] |= {"folder": str(home / "run"), "overwrite": True, "keep_start": False}
    tree["evaluation"] |= {"retrieval": False, "geometry": False, "samples": 0, "guards": []}
    tree["evaluation"] |= {"retrieval_sets": [str(fold.measured)], "hybrid": False}
    return tree


def _make_triplets(config: Config, fold: Fold, cases: Sequence[str]) -> int:
    """Ask where nobody has, mine and score; return the number of distinct questions."""
    if fold.questions is None:
        pipelines.ask(config)
    if set(cases) - {PAIRS}:
        pipelines.mine(config)
    if SCORES in cases:
        pipelines.score(config)
    asked = pq.read_table(config.mining.inputs[0], columns=["anchor"])
    return len(asked["anchor"].unique())


def _of_case(tree: Mapping[str, Any], case: str, seed: int) -> dict[str, Any]:
    """Return the settings of a training."""
    corpus, objective = dict(tree["corpus"]), tree["objective"]
    corpus["inputs"] = [tree["scoring" if case == SCORES else "mining"]["output"]]
    if case != SCORES:
        corpus.pop("score_columns")
        objective = {"name": "reranking"} if case == RERANKER else _IN_BATCH
    if case == PAIRS:
        corpus.pop("triplet_columns")
        corpus |= {"inputs": tree["mining"]["inputs"], "pairs": "columns"}
        corpus |= {"pair_columns": ["anchor", "positive"]}
    encoder = dict(tree["encoder"])
    training = {**tree["training"], "seed": seed, "resume": False}
    if case == RERANKER:
        # A cross-encoder has no embeddings, of which these are settings.
        encoder["max_length"], training["start_share"] = None, 0.0
    return {
        **tree,
        # It would name the columns again.
        "recipe": None,
        "corpus": corpus,
        "encoder": encoder,
        "objective": objective,
        "training": training,
    }


def _measured(config: Config, run: RunFolder, case: str) -> Observations:
    if case != RERANKER:
        return _observed(config, run.model)
    return _observed(
        config.changed("evaluation", reranker=str(run.reranker)), run.start, Form(reranked=True)
    )


def _observed(config: Config, model: Location, form: Form = DENSE) -> Observations:
    """Return the figures of a model, query by query."""
    session = spark_session(config.for_stage("evaluate"), needs_context=False)
    name = form.named(Path(config.evaluation.retrieval_sets[0]).name)
    found: dict[str, Observed] = {}
    measure_model(session, config, model, found.__setitem__)
    return found[name].observations


def _joined(halves: Sequence[Observations]) -> Observations:
    """Return the queries of all halves as those of one set."""
    groups = [one.groups for one in halves if one.groups is not None]
    return Observations(
        np.concatenate([one.items for one in halves]),
        {FIGURE: np.concatenate([one.values[FIGURE] for one in halves])},
        np.concatenate(groups) if len(groups) == len(halves) else None,
    )


def _gain(start: Observations, runs: Sequence[Observations]) -> dict[str, Any]:
    by_seed = [round(mean_score(one) - mean_score(start), 2) for one in runs]
    return {**difference(start, mean_over_runs(runs)), "by_seed": by_seed}


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        yield from (json.loads(line) for line in file)


def _print(sets: Mapping[str, Mapping[str, Any]], cases: Sequence[str]) -> None:
    table = Table("set", "queries", "questions", "start", *cases)
    for name, found in sets.items():
        shown = (told(found["cases"][case]) for case in cases)
        counts = (f"{found[key]:,}" for key in ("queries", "questions"))
        table.add_row(name, *counts, f"{found['start']:.2f}", *shown)
    means = [
        statistics.fmean(found["cases"][case]["gain"] for found in sets.values()) for case in cases
    ]
    start = statistics.fmean(found["start"] for found in sets.values())
    table.add_row("mean", "", "", f"{start:.2f}", *(f"{mean:+.2f}" for mean in means))
    Screen().print(table)
