"""A new evaluation is one file and one line in the registry."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

import pipelines
from pipelines.catalog import EVALUATIONS
from pipelines.evaluation.measure_checkpoint import measure, read_snapshots, write_snapshots
from pipelines.report.verdict import metrics_table
from pipelines.settings.load import parse

FILE = """
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.evaluation.base import Evaluation, Figure, Measured
from pipelines.evaluation.held_out import held_out_sets, read_held_out


def lengths(batches):
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"length": pc.utf8_length(batch["text"])})


def measure(tables, load, forms):
    found = [row["length"] for row in tables["documents"].map(lengths, "length int")]
    return [Measured({"documents": len(found), "longest_text": float(max(found))})]


EVALUATION = Evaluation(
    name="texts",
    part="texts",
    figures=(Figure.count("documents"), Figure("longest_text", "Longest text", better="lower")),
    sets=held_out_sets,
    read=read_held_out,
    measure=measure,
    held_out=True,
)
"""


@pytest.fixture
def config(spark, tmp_path, minilm, monkeypatch):
    """A run of a model that was not trained, and nothing to measure but the new evaluation."""
    (tmp_path / "text_lengths.py").write_text(FILE)
    spark.sparkContext.addPyFile(str(tmp_path / "text_lengths.py"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(EVALUATIONS.entries, "texts", "text_lengths:EVALUATION")
    held_out = tmp_path / "prepared" / "corpus" / "evaluation"
    held_out.mkdir(parents=True)
    documents = {"document_id": [1, 2], "text": ["A cat sleeps.", "The market fell."]}
    pq.write_table(pa.table(documents), held_out / "documents.parquet")
    queries = {"query_id": [3], "text": ["a sleeping animal"], "document_id": [1]}
    pq.write_table(pa.table(queries), held_out / "queries.parquet")
    (tmp_path / "run").mkdir()
    for name in ("start", "model"):
        (tmp_path / "run" / name).symlink_to(minilm)
    return parse(
        {
            "prepared": {"folder": str(tmp_path / "prepared")},
            "run": {"folder": str(tmp_path / "run")},
            "evaluation": {"retrieval": False, "geometry": False, "samples": 0},
        }
    )


def test_it_is_measured_and_shown_like_all_others(spark, config, tmp_path) -> None:
    expected = {"texts": {"documents": 2, "longest_text": 16.0}}
    card = tmp_path / "run" / "model" / "README.md"
    before = card.read_bytes() if card.is_file() else None
    figures = pipelines.evaluate(config)
    # That of a model that no run has made is not ours to write.
    assert (card.read_bytes() if card.is_file() else None) == before
    written = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert written["before"] == written["after"] == figures["after"] == expected
    assert list(written["measured"]["sets"]) == ["texts"]

    console = Console(record=True, width=120)
    console.print(metrics_table(figures))
    for shown in (console.export_text(), (tmp_path / "run" / "report.html").read_text()):
        assert "Longest text" in shown
        assert "2 documents" in shown

    write_snapshots(read_snapshots(spark, config), tmp_path / "snapshots")
    assert measure(tmp_path / "snapshots", lambda: None) == expected
