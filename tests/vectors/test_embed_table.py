"""The job: every column kept, parts made once, and refusals that name the key."""

import json
import logging
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.errors import InputError, PipelineError
from pipelines.files import storage
from pipelines.vectors.embed import EmbeddingJob, embed_table
from pipelines.vectors.embedding import vectors_of
from pipelines.vectors.parts import (
    LEAST_BYTES,
    InputFile,
    PartSize,
    RowRange,
    cut_file,
    read_inputs,
    read_rows,
    tasks,
)
from pipelines.vectors.store import open_table, read_blocks
from pipelines.vectors.table_job import MANIFEST_FILE, PLAN_FILE


def test_spark_and_pandas_read_the_table(spark, embedded, small_model, sentence_file) -> None:
    from pipelines.models.inference.embedder import load_embedder

    assert (embedded.rows, embedded.texts, embedded.embedded) == (303, 301, 303)
    folder = Path(embedded.folder)
    before = pq.read_table(sentence_file)
    table = pq.read_table(folder)
    assert table.drop_columns(["embedding"]).equals(before)
    assert table.schema.field("embedding").type == pa.list_(pa.float32())
    texts = table.column("text").drop_null().to_pylist()
    vectors = vectors_of(table.column("embedding").drop_null())
    np.testing.assert_allclose(vectors, load_embedder(small_model)(texts), atol=1e-5)

    frame = spark.read.parquet(f"file://{folder}")
    assert dict(frame.dtypes)["embedding"] == "array<float>"
    row = frame.where("id = 7").first()
    np.testing.assert_array_equal(np.array(row["embedding"], np.float32), vectors[7])
    assert frame.where("embedding is null").count() == 2
    assert len(pd.read_parquet(folder).loc[7, "embedding"]) == 32
    manifest = json.loads((folder / MANIFEST_FILE).read_text())
    assert manifest["rows"] == sum(manifest["parts"].values()) == 303
    assert (manifest["type"], manifest["dimensions"], manifest["texts"]) == ("float32", 32, 301)


def test_a_prompt_stands_before_each_text(spark, job, small_model, tmp_path, caplog) -> None:
    from sentence_transformers import SentenceTransformer

    caplog.set_level(logging.INFO, "pipelines")
    model = shutil.copytree(small_model, tmp_path / "model")
    prompts = {"query": "ask: ", "document": "text: ", "topic": "topic: "}
    values = {"prompts": prompts, "default_prompt_name": "topic"}
    storage.write_json(model / "config_sentence_transformers.json", values)
    library = SentenceTransformer(str(model), device="cpu")
    for name, encode in (("document", library.encode_document), (None, library.encode)):
        output = tmp_path / f"{name}"
        assert "embedding.prompt_name=document" not in caplog.text
        embed_table(spark, job(model=str(model), output=str(output), prompt_name=name))
        assert open_table(output).prompt_name == name
        texts = pq.read_table(output).drop_null()
        expected = encode(texts.column("text").to_pylist())
        np.testing.assert_allclose(vectors_of(texts.column("embedding")), expected, atol=2e-5)
    assert "prompt for documents is `text: `" in caplog.text
    with pytest.raises(InputError, match=r"^embedding.prompt_name: .* begun with unset, not"):
        EmbeddingJob.of(job(model=str(model), output=str(output), prompt_name="query")).check()


def test_a_second_run_makes_what_is_missing_alone(spark, job, embedded_table, caplog) -> None:
    caplog.set_level(logging.INFO, "pipelines")
    parts = sorted(embedded_table.glob("part-*.parquet"))
    assert len(parts) == 5
    lost, bytes_before = parts[2], parts[2].read_bytes()
    times = {part: part.stat().st_mtime_ns for part in parts}
    lost.unlink()
    summary = embed_table(spark, job(batch_tokens=100))
    assert (summary.rows, summary.embedded) == (303, 64)
    assert "64 rows embedded" in caplog.text
    assert "239 already had vectors" in caplog.text
    changed = [part for part in parts if part.stat().st_mtime_ns != times[part]]
    assert changed == [lost]
    again = pq.read_table(lost)
    before = pq.read_table(pa.BufferReader(bytes_before))
    assert again.column("text").equals(before.column("text"))
    np.testing.assert_allclose(
        *(vectors_of(table.column("embedding").drop_null()) for table in (again, before)),
        atol=1e-5,
    )
    assert embed_table(spark, job()).embedded == 0


def test_other_settings_or_inputs_are_refused(
    spark, job, sentence_file, small_model, minilm_folder, tmp_path
) -> None:
    copy = tmp_path / "copy.parquet"
    pq.write_table(pq.read_table(sentence_file).slice(0, 20), copy)
    embed_table(spark, job(inputs=[str(copy)]))
    cases = {
        "embedding.dimensions": {"dimensions": 8},
        "embedding.quantise": {"quantise": "int8"},
        "embedding.output_column": {"output_column": "v"},
        "embedding.precision": {"precision": "bf16"},
        "embedding.model": {"model": str(minilm_folder)},
        "embedding.inputs": {"inputs": [str(sentence_file)]},
    }
    for key, settings in cases.items():
        with pytest.raises(InputError, match=rf"^{key}: .*/table was begun with "):
            embed_table(spark, job(**({"inputs": [str(copy)]} | settings)))
    pq.write_table(pq.read_table(sentence_file).slice(0, 21), copy)
    with pytest.raises(InputError, match=r"^embedding.inputs: .*other content of the same inputs"):
        embed_table(spark, job(inputs=[str(copy)]))
    assert embed_table(spark, job(inputs=[str(copy)], overwrite=True)).embedded == 21


def test_another_format_and_int8_vectors(spark, job, tmp_path, lines) -> None:
    """Text and CSV are read in `test_embed_inputs.py`."""
    frame = pd.DataFrame({"text": ["one, two", 'a "quoted" text', *lines[:8]], "n": range(10)})
    path = tmp_path / "input.jsonl"
    frame.to_json(path, orient="records", lines=True)
    embed_table(spark, job(inputs=[str(path)], format="jsonl", quantise="int8"))
    table = pq.read_table(tmp_path / "table")
    assert sorted(table.column("text").to_pylist()) == sorted(frame["text"])
    assert {*table.column_names} == {"text", "n", "embedding", "embedding_scale"}
    (block,) = read_blocks(open_table(tmp_path / "table"), open_table(tmp_path / "table").files)
    np.testing.assert_allclose(np.linalg.norm(block.vectors, axis=1), 1, atol=1e-5)
    assert not list((tmp_path / "table").glob("_input"))


def test_a_table_of_the_session(spark, job, small_model, tmp_path, lines) -> None:
    from pipelines.models.inference.embedder import load_embedder

    frame = spark.createDataFrame([(text,) for text in [*lines[:5], None]], "text string")
    frame.createOrReplaceTempView("embedded_lines")
    assert embed_table(spark, job(inputs=["embedded_lines"], format="table")).rows == 6
    table = pq.read_table(tmp_path / "table")
    assert sorted(table.column("text").drop_null().to_pylist()) == sorted(lines[:5])
    present = table.filter(table.column("text").is_valid())
    expected = load_embedder(small_model)(present.column("text").to_pylist())
    np.testing.assert_allclose(vectors_of(present.column("embedding")), expected, atol=1e-5)
    assert table.column("embedding").null_count == 1


def test_what_cannot_be_read_is_refused_and_changes_nothing(spark, job, embedded, tmp_path) -> None:
    fake = tmp_path / "fake.parquet"
    fake.write_text("just text\n")
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"text": "a"}\n{"text": \n')
    empty = tmp_path / "empty.parquet"
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), empty)
    cases = [
        ({"inputs": []}, "embedding.inputs: it is empty"),
        ({"inputs": [str(tmp_path / "absent")]}, "embedding.inputs: there is no file or folder"),
        ({"inputs": [str(fake)]}, "embedding.inputs: .*fake.parquet cannot be read"),
        ({"inputs": [str(empty)]}, "embedding.inputs: they hold no rows"),
        ({"inputs": [str(broken)], "format": "jsonl"}, "embedding.inputs: .*cannot be read as"),
        ({"inputs": ["nowhere"], "format": "table"}, "embedding.inputs: there is no table"),
        ({"inputs": [str(tmp_path)]}, "embedding.output: .*table is within the inputs"),
        ({"text_column": "body"}, "embedding.text_column: .* has no column `body`"),
        ({"text_column": "tags"}, "embedding.text_column: `tags` of .* holds no text"),
        ({"output_column": "id"}, "embedding.output_column: .* already has a column `id`"),
    ]
    table = tmp_path / "table"
    for settings, message in cases:
        with pytest.raises(InputError, match=f"^{message}"):
            embed_table(spark, job(**settings))
        if "format" not in settings and "hold no rows" not in message:
            with pytest.raises(InputError, match=f"^{message}"):
                EmbeddingJob.of(job(**settings)).check()
        assert not table.exists()
    table.mkdir()
    (table / "letter.txt").write_text("mine")
    with pytest.raises(InputError, match=r"^embedding.output: .* holds other files"):
        embed_table(spark, job(overwrite=True))
    shutil.rmtree(table)
    # Nor does an overwrite that is refused.
    shutil.copytree(embedded.folder, table)
    before = {path: path.read_bytes() for path in table.iterdir()}
    for settings, message in cases:
        with pytest.raises(InputError, match=f"^{message}"):
            embed_table(spark, job(overwrite=True, **settings))
        assert {path: path.read_bytes() for path in table.iterdir()} == before
    assert {path.name for path in tmp_path.iterdir()} == {
        *("table", fake.name, broken.name, empty.name)
    }
    (tmp_path / "link").symlink_to(table)
    with pytest.raises(InputError, match=r"^embedding.output: .*link is a link\. Name .*table"):
        embed_table(spark, job(overwrite=True, output=str(tmp_path / "link")))


def test_what_the_user_has_put_beside_a_table_stays(spark, job, embedded_table, tmp_path) -> None:
    table = embedded_table
    for name in ("table/notes.txt", "table/finished/part-00000.parquet", ".table.next/notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("mine")
        with pytest.raises(InputError, match=r"^embedding.output: .* holds other files \("):
            EmbeddingJob.of(job(overwrite=True)).check()
        with pytest.raises(InputError, match=r"^embedding.output: .* holds other files"):
            embed_table(spark, job(overwrite=True))
        (tmp_path / name).unlink()
        if (tmp_path / name).parent != table:
            (tmp_path / name).parent.rmdir()
    (tmp_path / ".table.gone").mkdir()
    embed_table(spark, job(overwrite=True))
    assert {path.name for path in tmp_path.glob(".table*")} == {".table.gone"}


def test_a_job_that_fails_keeps_its_parts(spark, job, sentence_file, tmp_path) -> None:
    folder = tmp_path / "inputs"
    folder.mkdir()
    for name, start in (("a", 0), ("b", 100)):
        pq.write_table(pq.read_table(sentence_file).slice(start, 100), folder / f"{name}.parquet")
    config = job(inputs=[str(folder)], part_rows=100)
    embed_table(spark, config)
    output = tmp_path / "table"
    max(output.glob("part-*")).unlink()
    plan = json.loads((output / PLAN_FILE).read_text())
    plan["parts"][1]["path"] = str(folder / "away.parquet")
    (output / PLAN_FILE).write_text(json.dumps(plan))
    with pytest.raises(PipelineError, match=r"failed on an executor: .*away.parquet.*are kept"):
        embed_table(spark, config)
    assert [part.name for part in output.glob("part-*")] == ["part-00000-00000-00000.parquet"]


def test_parts_are_all_rows_once(sentence_file) -> None:
    parts = cut_file(
        read_inputs([sentence_file])[0], PartSize(2**30, 70, 128), "part-00000-00000", ()
    )
    assert [part.rows for part in parts] == [70, 70, 70, 70, 23]
    found = [
        value
        for part in parts
        for batch in read_rows(part.path, part.start, part.stop, ["id"])
        for value in batch.column("id").to_pylist()
    ]
    assert found == list(range(303))
    assert [len(task) for task in tasks(parts, 1)] == [1, 1, 1, 1, 1]
    assert all(re.fullmatch(r"part(-\d{5}){3}", part.name) for part in parts)


def test_parts_are_of_some_bytes_whatever_their_rows() -> None:
    rows, vector = 10_000_000, 384 * 4
    files = [InputFile(Path(f"/lake/{number}"), rows, rows * 100, {}) for number in range(100)]
    size = PartSize(128 * 2**20, None, vector)
    parts = [part for file in files for part in cut_file(file, size, file.path.name, ())]
    assert sum(part.rows for part in parts) == 1_000_000_000
    assert len(parts) == 12_200
    assert max(part.rows for part in parts) * (100 + vector) <= 128 * 2**20
    # Few rows are shared among the slots of a cluster, but not in crumbs.
    assert size.shared(files, 1000) == size
    few = [InputFile(Path("/lake/few"), 100_000, 10_000_000, {})]
    assert len(cut_file(few[0], size.shared(few, 4), "few", ())) == 16
    assert size.shared(few, 1000).size == LEAST_BYTES


def test_small_parts_are_shared_among_tasks() -> None:
    def part(rows: int, reused: int = 0) -> RowRange:
        return RowRange("part", Path("/lake/a"), 0, rows, reused=reused)

    assert [len(task) for task in tasks([part(100)] * 8, 1)] == [2, 2, 2, 2]
    assert [len(task) for task in tasks([part(100)] * 8, 4)] == [1] * 8
    # What keeps its vectors is hardly any work.
    assert [len(task) for task in tasks([part(5000, 5000)] * 16 + [part(4000)], 1)] == [16, 1]
    assert tasks([], 4) == []
