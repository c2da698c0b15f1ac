"""Collections with judged queries whose documents are trained on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from pipelines.errors import InputError

CAPTIONS = "*captions-en-{part}.parquet"
IMAGES = 1000
"""Of captions, that are asked for."""


@dataclass(frozen=True, kw_only=True)
class Collection:
    """A collection.

    Attributes:
        judged: Folder in BEIR's layout, that is measured on.
        pairs: Keys of the section `corpus` that make pairs of the documents.
        singles: Keys that make sentences of them.
    """

    judged: Path
    pairs: Mapping[str, Any]
    singles: Mapping[str, Any]


def find_collection(data: str | None, folder: Path) -> Collection:
    """The collection in a folder.

    Args:
        data: In BEIR's layout, with titles; or with captions (Parquet, columns `image` and `text`)
            for training and others to ask for.
        folder: For what is made of captions.

    Raises:
        InputError: It is neither.
    """
    if data is not None and (Path(data) / "corpus.jsonl").is_file():
        return _of_documents(Path(data).absolute())
    if data is not None:
        found = [sorted(Path(data).rglob(CAPTIONS.format(part=part))) for part in ("train", "val")]
        if all(found):
            return _of_captions(found[0][0], found[1][0], folder / "captions")
    raise InputError(
        "--data",
        f"{data or 'nothing'} is no folder in BEIR's layout, and holds no captions",
        "Name a folder with corpus.jsonl, queries.jsonl and qrels",
    )


def _of_documents(folder: Path) -> Collection:
    inputs = {"format": "jsonl", "inputs": [str(folder / "corpus.jsonl")]}
    columns = {"pairs": "columns", "pair_columns": ["title", "text"]}
    singles = {"pairs": "single", "sentences": True, "text_column": "text"}
    return Collection(judged=folder, pairs=inputs | columns, singles=inputs | singles)


def _of_captions(train: Path, asked: Path, folder: Path) -> Collection:
    """The first caption of an image asks for its others."""
    rows = pq.read_table(asked, columns=["image", "text"]).to_pylist()
    by_image: dict[str, list[str]] = {}
    for row in rows:
        by_image.setdefault(row["image"], []).append(row["text"])
    images = list(islice(by_image.items(), IMAGES))
    queries = ({"_id": image, "text": texts[0]} for image, texts in images)
    documents = (
        {"_id": f"{image}-{place}", "text": text}
        for image, texts in images
        for place, text in enumerate(texts[1:])
    )
    judged = [
        f"{image}\t{image}-{place}\t1" for image, texts in images for place in range(len(texts) - 1)
    ]
    (folder / "qrels").mkdir(parents=True)
    _write_lines(folder / "queries.jsonl", map(json.dumps, queries))
    _write_lines(folder / "corpus.jsonl", map(json.dumps, documents))
    _write_lines(folder / "qrels/test.tsv", ["query-id\tcorpus-id\tscore", *judged])
    inputs = {"format": "parquet", "inputs": [str(train)], "text_column": "text"}
    pairs = {"pairs": "group", "group_column": "image"}
    return Collection(judged=folder, pairs=inputs | pairs, singles=inputs | {"pairs": "single"})


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
