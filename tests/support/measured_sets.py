"""Sets to measure on, and what the evaluations give for them, as a job would ask for it."""

import json
from pathlib import Path
from typing import Any

from pipelines.evaluation.sets import evaluate
from pipelines.settings.load import parse


def measured_on(spark, model, **evaluation: Any) -> dict[str, dict[str, float]]:
    """The figures of a model on the sets that settings of the section `evaluation` name."""
    section = {"retrieval": False, "geometry": False} | evaluation
    return evaluate(spark, parse({"evaluation": section}), model)


def write_set(folder: Path, documents, queries, qrels, split: str = "test") -> Path:
    """A retrieval set: documents as title and text, and queries, by id; and judgements."""
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    lines = [
        json.dumps({"_id": key, "title": title, "text": text, "metadata": {}})
        for key, (title, text) in documents.items()
    ]
    (folder / "corpus.jsonl").write_text("\n".join(lines), encoding="utf-8")
    lines = [json.dumps({"_id": key, "text": text}) for key, text in queries.items()]
    (folder / "queries.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    rows = [("query-id", "corpus-id", "score"), *qrels]
    text = "".join("\t".join(map(str, row)) + "\n" for row in rows)
    (folder / "qrels" / f"{split}.tsv").write_text(text, encoding="utf-8")
    return folder
