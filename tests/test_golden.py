"""What release 0.1.0 wrote is read, goes on and gives the same figures; no name of it is lost."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from golden_artifacts import GOLDEN, golden_config, surface, unpack

import pipelines
from pipelines.corpus.unit_rows import hash_of
from pipelines.errors import NothingNew
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.jobs.delete import delete
from pipelines.jobs.roll_back import roll_back
from pipelines.lanes.files import LaneManifest
from pipelines.settings.base import RENAMED
from pipelines.vectors.row_deletion import DeletedRows, delete_from_table

# How the engine starts a worker has tests of its own.
pytestmark = pytest.mark.usefixtures("warm_workers")

QUERY = "Read a table of texts."
# Of sums that another processor makes in another order.
CLOSE = 1e-3


@pytest.fixture
def golden(tmp_path) -> Path:
    """The artifacts, in a folder of the test's own."""
    return unpack(tmp_path / "golden")


def losses_in(run: Path) -> list[float]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [line["loss"] for line in map(json.loads, lines)]


def keys_of(table: Path) -> list[str]:
    return [key for part in sorted(table.glob("part-*")) for key in read_column(part, "id")]


def read_column(part: Path, name: str) -> list:
    return pq.ParquetFile(part).read([name])[name].to_pylist()


@pytest.mark.slow
def test_lanes_give_the_losses_of_then(golden):
    pipelines.train(golden_config(golden, {"run.folder": golden / "again"}))
    np.testing.assert_allclose(losses_in(golden / "again"), losses_in(golden / "run"), rtol=CLOSE)


def test_a_run_goes_on_from_its_checkpoint(golden):
    run, expected = golden / "run", losses_in(golden / "run")
    shutil.rmtree(run / "checkpoints" / "step-00000012")
    pipelines.train(golden_config(golden, {"training.resume": "true"}))
    np.testing.assert_allclose(losses_in(run), expected, rtol=CLOSE)
    assert len(list((run / "attempts").iterdir())) == 2


def test_a_run_is_measured_as_it_was(spark, golden):
    expected = json.loads((golden / "run" / "metrics.json").read_text())
    figures = pipelines.evaluate(golden_config(golden))
    for state in ("before", "after"):
        for name, values in expected[state].items():
            assert figures[state][name] == pytest.approx(values, rel=CLOSE), (state, name)
    assert (golden / "run" / "report.html").is_file()


def test_preparing_again_gives_the_same_lanes(spark, golden):
    config = golden_config(golden)
    before = LaneManifest.load(PreparedFolder.of(config).lanes.path)
    again = pipelines.prepare(config)
    assert (again.digest, again.examples) == (before.digest, before.examples)


# What is prepared again after a deletion is not of then; of the table of vectors there is a test.
@pytest.mark.matrix
def test_rows_of_keys_are_deleted(spark, golden):
    config = golden_config(golden)
    deleted = delete(config, ["d000", "d001"])
    assert (deleted.rows, deleted.vectors, deleted.unmatched) == (2, 2, ())
    assert {"d000", "d001"}.isdisjoint(keys_of(golden / "vectors"))


def test_vectors_are_searched_kept_and_deleted_by_key(spark, golden):
    config = golden_config(golden)
    nearest = ["d123", "d097", "d084"]
    for indexed in (False, True):
        hits = pipelines.search(config, [QUERY], 3, indexed=indexed)
        assert [hit.key for hit in hits] == nearest
    with (golden / "pairs.jsonl").open("a") as file:
        file.write(json.dumps({"id": "new", "anchor": "A row.", "positive": "A new row."}) + "\n")
    made = pipelines.embed(config)
    assert (made.rows, made.embedded) == (161, 1)
    assert sorted(keys_of(golden / "vectors")) == [
        *(f"d{number:03}" for number in range(160)),
        "new",
    ]
    deleted = DeletedRows("id", tuple(sorted(map(hash_of, ("d000", "new")))))
    assert delete_from_table(spark, config, deleted) == 2
    assert sorted(keys_of(golden / "vectors")) == [f"d{number:03}" for number in range(1, 160)]


def test_negatives_that_were_mined_are_not_mined_again(spark, golden):
    mined = pipelines.mine(golden_config(golden))
    assert (mined.rows, mined.searched) == (133, 0)


def test_the_model_in_service_is_compared_replaced_and_put_back(spark, golden):
    versions = golden / "served" / "versions"
    assert pipelines.promote(golden_config(golden)).version == versions / "00001"
    with pytest.raises(NothingNew):
        pipelines.train(golden_config(golden, {"run.only_new": "true"}))
    other = {
        "run.folder": golden / "other",
        "training.seed": 2,
        # Only what is compared.
        "evaluation.geometry": "false",
        "evaluation.samples": 0,
        "promotion.tolerance": "{retrieval.ndcg@10: 100}",
    }
    config = golden_config(golden, other)
    pipelines.train(config)
    pipelines.evaluate(config)
    promoted = pipelines.promote(config)
    assert promoted.version == versions / "00002"
    assert promoted.judgements
    assert roll_back(config) == versions / "00001"


def test_no_command_option_or_setting_is_lost():
    recorded, now = json.loads((GOLDEN / "surface.json").read_text()), surface()
    for command, options in recorded["commands"].items():
        assert set(options) <= set(now["commands"].get(command, ())), command
    for former, (kind, default) in recorded["settings"].items():
        key = RENAMED.get(former, former)
        assert key in now["settings"], key
        assert default == now["settings"][key][1], key
        assert set(kind.split(" | ")) <= set(now["settings"][key][0].split(" | ")), key
