"""A job that is run again: what goes on, what begins anew, and what is left alone."""

import os
import re
import shutil
import threading
from contextvars import Context

import pyarrow.parquet as pq
import pytest

import pipelines
from pipelines.errors import InputError, NothingNew, PipelineError
from pipelines.files import storage
from pipelines.files.begun import lock_file, next_folder
from pipelines.files.locks import held
from pipelines.vectors.embed import EmbeddingJob, embed_table
from pipelines.vectors.store import open_table
from pipelines.vectors.table_job import ATTEMPTS, MANIFEST_FILE, PLAN_FILE, STAGED


def unfinished(folder) -> None:
    """The state in which a job leaves a table that dies at its third part."""
    (folder / MANIFEST_FILE).unlink()
    third = sorted(folder.glob("part-*"))[2]
    third.unlink()
    (folder / ATTEMPTS / "dead").mkdir(parents=True)
    (folder / ATTEMPTS / "dead" / f"{third.stem}.1").write_bytes(b"PAR1 and then nothing")


def test_an_unfinished_table_goes_on_and_a_finished_one_is_made_again(
    spark, job, embedded_table
) -> None:
    folder = embedded_table
    for overwrite in (False, True):
        unfinished(folder)
        first = min(folder.glob("part-*"))
        kept = first.stat().st_mtime_ns
        assert embed_table(spark, job(overwrite=overwrite)).embedded == 64
        assert first.stat().st_mtime_ns == kept
        assert not (folder / ATTEMPTS).exists()
    assert embed_table(spark, job(overwrite=True)).embedded == 303
    unfinished(folder)
    assert embed_table(spark, job(overwrite=True, dimensions=8)).embedded == 303
    assert open_table(folder).dimensions == 8


def test_a_table_that_is_up_to_date_is_told_from_others(job, embedded, tmp_path) -> None:
    assert not EmbeddingJob.of(job()).is_up_to_date()
    shutil.copytree(embedded.folder, tmp_path / "table")
    assert EmbeddingJob.of(job()).is_up_to_date()
    assert not EmbeddingJob.of(job(dimensions=8)).is_up_to_date()
    # By the model in service, and without a session.
    version = tmp_path / "served" / "versions" / "00001"
    shutil.copytree(job().embedding.model, version)
    (tmp_path / "served" / "current").symlink_to("versions/00001")
    served = job(overwrite=True, served=True, model=None)
    config = served.model_copy(
        update={
            "promotion": served.promotion.model_copy(update={"target": str(tmp_path / "served")}),
            "run": served.run.model_copy(update={"only_new": True}),
        }
    )
    with pytest.raises(NothingNew, match=r"^run.only_new: .*table has the vectors of this model"):
        pipelines.embed(config)
    (tmp_path / "served" / "current").unlink()
    with pytest.raises(InputError, match=r"^promotion.target: nothing is in service in"):
        pipelines.embed(config)
    unfinished(tmp_path / "table")
    assert not EmbeddingJob.of(job()).is_up_to_date()


def test_auto_stays_what_it_was(spark, job, tmp_path) -> None:
    folder = tmp_path / "table"
    embed_table(spark, job(precision="auto"))
    made = storage.read_json(folder / MANIFEST_FILE)
    assert (made["backend"] in ("openvino", "torch")) > (made["precision"] == "auto")
    unfinished(folder)
    # As if it had been begun on a cluster where `auto` meant something else.
    plan = storage.read_json(folder / PLAN_FILE)
    other = "fp32" if made["precision"] == "bf16" else "bf16"
    storage.write_json(folder / PLAN_FILE, plan | {"backend": "torch", "precision": other})
    assert embed_table(spark, job(precision="auto")).embedded == 64
    made = storage.read_json(folder / MANIFEST_FILE)
    assert (made["backend"], made["precision"]) == ("torch", other)
    assert made["settings"]["embedding.precision"] == "auto"
    assert (
        open_table(folder).model_sha256
        == made["settings"]["embedding.model"]
        == made["model_digest"]
    )


def test_a_table_that_may_have_changed_is_no_work_done(spark, job, tmp_path, lines) -> None:
    def view(texts) -> None:
        rows = [(text,) for text in texts]
        spark.createDataFrame(rows, "text string").createOrReplaceTempView("growing")

    config = {"inputs": ["growing"], "format": "table", "part_rows": 2}
    view(lines[:5])
    embed_table(spark, job(**config))
    view(lines[:9])
    with pytest.raises(InputError, match=r"^embedding.inputs: .*whether growing has changed"):
        embed_table(spark, job(**config))
    assert embed_table(spark, job(**config, overwrite=True)).rows == 9


def test_a_copied_input_lasts_as_long_as_the_job(
    spark, job, tmp_path, lines, small_model, monkeypatch
) -> None:
    path, folder = tmp_path / "lines.txt", tmp_path / "table"
    path.write_text("".join(f"{line}\n" for line in lines[:100]))
    config = {"inputs": [str(path)], "format": "text"}

    def dies(*_: object) -> None:
        raise PipelineError("the driver is killed here")

    with monkeypatch.context() as patched:
        patched.setattr("pipelines.vectors.embed.make_vectors", dies)
        with pytest.raises(PipelineError, match="killed here"):
            embed_table(spark, job(**config))
    assert list((next_folder(folder) / STAGED).glob("part-*"))
    assert not folder.exists()
    assert embed_table(spark, job(**config)).embedded == 100
    assert not (folder / STAGED).exists()
    next(folder.glob("part-*")).unlink()
    with pytest.raises(InputError, match=r"^embedding.output: .*part-.* is gone, .*overwrite=true"):
        embed_table(spark, job(**config))
    assert embed_table(spark, job(**config, overwrite=True)).embedded == 100


def test_two_jobs_in_one_folder(spark, job, tmp_path) -> None:
    """Of two at once one is told who is at work; what the other makes is whole."""
    told = rf"^embedding.output: .*/table is in use by `embed`, process {os.getpid()} on "
    with held(lock_file(tmp_path / "table"), "embed"), pytest.raises(PipelineError, match=told):
        # Of nothing that the caller holds.
        Context().run(embed_table, spark, job())
    assert not (tmp_path / "table").exists()
    results: list[object] = []

    def run() -> None:
        try:
            results.append(embed_table(spark, job(part_rows=32)))
        except PipelineError as error:
            results.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    refused = [result for result in results if isinstance(result, PipelineError)]
    done = [result for result in results if not isinstance(result, PipelineError)]
    # The second may have come when the first was done.
    assert [result.rows for result in done] == [303] * (2 - len(refused))
    for error in refused:
        assert re.match(told, str(error))
    assert pq.read_table(tmp_path / "table").num_rows == 303
    assert not list(tmp_path.glob(".table*"))
