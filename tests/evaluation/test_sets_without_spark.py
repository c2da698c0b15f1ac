"""Files to measure on are looked at before Spark starts."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pipelines
from pipelines.errors import InputError
from pipelines.evaluation.sets import check_sets
from pipelines.settings.load import load


@pytest.fixture
def files(tmp_path):
    """Files with other columns than are asked for, and one with those."""
    (tmp_path / "other.csv").write_text("a,b,score\nx,y,1\n")
    (tmp_path / "other.jsonl").write_text('{"a": "x", "sentence2": "y", "score": 1}\n')
    pq.write_table(pa.table({"sentence1": ["x"], "score": [1.0]}), tmp_path / "other.parquet")
    (tmp_path / "damaged.parquet").write_text("no Parquet")
    (tmp_path / "good.csv").write_text("sentence1,sentence2,score,label\nx,y,1,1\n")
    (tmp_path / "set").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("key", "name", "told"),
    [
        (
            "similarity",
            "other.csv",
            r"_columns: .*other.csv has no column `sentence1`, it has a, b",
        ),
        ("similarity", "other.jsonl", r"_columns: .*other.jsonl has no column `sentence1`, it has"),
        ("similarity", "other.parquet", r"_columns: .*parquet has no column `sentence2`, it has "),
        (
            "classification",
            "other.csv",
            r"_columns: .*other.csv has no column `sentence1`, it has ",
        ),
        ("similarity", "damaged.parquet", r": .*damaged.parquet cannot be read \(not Parquet"),
        ("classification", "nowhere.csv", r": there is no file or folder `.*nowhere.csv`, name ex"),
        ("retrieval_sets", "nowhere", r": there is no .*nowhere, name a folder with corpus.jsonl"),
        ("retrieval_sets", "set", r": .*qrels holds no \*.tsv, name the file to take"),
        ("guards", "nowhere.csv", r": there is no file or folder `.*nowhere.csv`, name ex"),
        ("guards", "nowhere", r": there is no .*nowhere, name a folder with corpus.jsonl"),
        # Of a retrieval set, and no file of pairs.
        ("guards", "set/qrels/dev.tsv", r": there is no .*dev.tsv, name a folder with corpus"),
    ],
)
def test_what_cannot_be_measured_on_is_refused_by_every_job(files, key, name, told):
    config = load(
        None,
        [
            f"evaluation.{key}=[{files / name}]",
            f"run.folder={files / 'run'}",
            f"prepared.folder={files / 'prepared'}",
            "encoder.start=random",
            "tokens.vocabulary=train",
            "training.engine=local",
        ],
    )
    (files / "run" / "model").mkdir(parents=True)
    with pytest.raises(InputError, match=rf"^evaluation\.{key}{told}"):
        pipelines.evaluate(config)
    with pytest.raises(InputError, match=rf"^evaluation\.{key}{told}"):
        check_sets(config)


def test_what_can_be_measured_on_passes(files):
    good = files / "good.csv"
    check_sets(
        load(None, [f"evaluation.{key}=[{good}]" for key in ("similarity", "classification")])
    )
