"""Runs of the corpus stage on small inputs."""

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.corpus.stage import prepare_corpus
from pipelines.settings.load import parse

WORDS = ("red", "green", "blue", "small", "large", "old", "young", "quick")
WORDS += ("slow", "bright", "dark", "warm", "cold", "round", "flat")


def sentence(number):
    """A sentence of its own for each number."""
    first, rest = WORDS[number % 15], WORDS[number // 15 % 15]
    return f"The {first} and {rest} animal number {number} runs."


def prepared(spark, folder, *files, **corpus):
    """Runs the stage; on Parquet files that are named, without an evaluation, unless told."""
    if files:
        corpus = {"inputs": files, "format": "parquet", "evaluation_share": 0, **corpus}
    config = parse(
        {
            "corpus": corpus,
            "prepared": {"folder": str(folder / "prepared")},
            "objective": {"name": "simcse"} if corpus.get("pairs") == "single" else {},
            "training": {"dropout": 0.1},
        }
    )
    return prepare_corpus(spark, config)


def write_parquet(path, **columns):
    pq.write_table(pa.table(columns), path)
    return str(path)


def everything_in(folder):
    """All that the files of a folder say, in words."""
    tables = [
        str(pq.read_table(path).to_pylist()) for path in folder.rglob("*.parquet") if path.is_file()
    ]
    others = [path.read_text() for path in folder.rglob("*") if path.suffix in (".json", ".html")]
    return "\n".join(tables + others)


def pairs_of(summary):
    table = pq.read_table(summary.folder / "pairs.parquet")
    return sorted(table.to_pylist(), key=lambda row: row["id"])


def sides_of(summary):
    return {(row["anchor"], row["positive"]) for row in pairs_of(summary)}


def evaluation_of(summary):
    folder = summary.folder / "evaluation"
    read = [pq.read_table(folder / f"{name}.parquet") for name in ("queries", "documents")]
    return [table.to_pylist() for table in read]


def distractors_of(summary):
    """Texts by their numbers."""
    rows = pq.read_table(summary.folder / "evaluation" / "distractors.parquet").to_pylist()
    return {row["document_id"]: row["text"] for row in rows}


def dropped(summary):
    return {line.name: line.rows for line in summary.funnel if line.kind == "dropped"}


def many_pairs(folder):
    """Anchors that repeat, and a positive that many share."""
    anchors = [sentence(n // 2) for n in range(400)]
    positives = [
        sentence(1000 + n) if n % 40 else "The shared partner of many." for n in range(400)
    ]
    return [
        write_parquet(
            folder / f"{part}.parquet", sentence1=anchors[part::3], sentence2=positives[part::3]
        )
        for part in range(3)
    ]
