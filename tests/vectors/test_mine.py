"""The job `mine`, from a table of pairs to a table of negatives."""

from __future__ import annotations

import datetime
import json
import logging
import shutil
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from mining_cases import bytes_of, rows_of

import pipelines
from pipelines.cli import main
from pipelines.corpus.unit_rows import add_deleted_keys
from pipelines.errors import InputError, PipelineError
from pipelines.files import storage
from pipelines.files.begun import next_folder
from pipelines.files.prepared_folder import PreparedFolder, StageRecord
from pipelines.models.inference.embedder import load_embedder
from pipelines.settings.load import parse
from pipelines.vectors.mining_inputs import check_sources, read_pairs
from pipelines.vectors.mining_texts import STAGED_FILE


def brute_force(pairs: Path, model: Path, margin: float) -> dict[tuple[str, str], list[str]]:
    """Nearest documents of each pair, by the columns of the test."""
    rows = [row for row in pq.read_table(pairs).to_pylist() if row["a"] and row["q"].strip()]
    documents = sorted({row["a"] for row in rows})
    groups: dict[str, set[str]] = {}
    own: dict[str, set[str]] = {}
    positives: dict[str, set[str]] = {}
    for row in rows:
        groups.setdefault(row["a"], set()).add(row["topic"])
        own.setdefault(row["q"], set()).add(row["topic"])
        positives.setdefault(row["q"], set()).add(row["a"])
    embed = load_embedder(model, precision="fp32")
    vectors = dict(zip(documents, embed(documents), strict=True))
    found = {}
    for row in rows:
        anchor, positive = row["q"], row["a"]
        vector = embed([anchor])[0]
        scores = {text: float(vector @ vectors[text]) for text in documents}
        limit = scores[positive] - margin * abs(scores[positive])
        left = [
            text
            for text in sorted(documents, key=lambda text: -scores[text])
            if text not in positives[anchor] | {anchor}
            and not own[anchor] & groups[text]
            and scores[text] <= limit
        ]
        found[anchor, positive] = left
    return found


def test_the_nearest_documents_that_are_not_the_anchors_own(mined, pair_file, small_model) -> None:
    wanted = brute_force(pair_file, small_model, 0.05)
    rows = rows_of(mined.folder)
    assert list(rows[0]) == [
        *("anchor", "positive", "negative_0", "negative_1", "positive_score"),
        *("negative_0_score", "negative_1_score", "group", "key"),
    ]
    enough = {pair for pair, left in wanted.items() if len(left) >= 2}
    assert {(row["anchor"], row["positive"]) for row in rows} == enough
    assert len(rows) == len(enough)
    same = [
        [row["negative_0"], row["negative_1"]] == wanted[row["anchor"], row["positive"]][:2]
        for row in rows
    ]
    # Scores of a random model are close to one another, and some differ in their last digits.
    assert np.mean(same) > 0.97
    for row in rows:
        assert row["negative_0_score"] >= row["negative_1_score"]
        assert row["negative_0_score"] <= row["positive_score"] * 0.95 + 1e-5
        assert row["group"].startswith("t")
    assert {row["key"] for row in rows} <= {*range(240), 900}


def test_what_became_of_rows_and_documents_is_told(mined, pair_file, small_model) -> None:
    wanted = brute_force(pair_file, small_model, 0.05)
    assert (mined.read, mined.without_text, mined.repeated) == (244, 2, 1)
    assert mined.rows + mined.short == 241
    assert (mined.searched, mined.of_own_group) == (242, 0.0)
    # A text that is an anchor and a document is embedded once.
    assert mined.embedded == len({text for pair in wanted for text in pair})
    assert mined.dropped["same group"] > 0
    home = Path(mined.folder)
    manifest = json.loads((home / "_manifest.json").read_text())
    assert (manifest["rows"], manifest["negatives"]) == (mined.rows, 2)
    assert manifest["figures"]["dropped"] == mined.dropped
    lines = mined.lines()
    assert lines[0].startswith("242 pairs searched in ")
    assert f"{mined.rows} of 244 rows written; left out: 2 without text, 1 repeated" in lines[1]
    names = {path.name for path in home.iterdir() if not path.name.startswith("part-")}
    assert names == {"_manifest.json", "_mining.json"}
    assert not next_folder(home).exists()


def test_the_same_bytes_from_a_job_that_was_killed_and_cut_its_work_otherwise(
    spark, mining_job, mined, monkeypatch, caplog
) -> None:
    config = mining_job()
    monkeypatch.setattr("pipelines.vectors.embed.default_parallelism", lambda session: 7)
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "5")

    def dies(*_: object, **__: object) -> None:
        raise PipelineError("the driver is killed here")

    try:
        with monkeypatch.context() as patched:
            patched.setattr("pipelines.vectors.mine.make_parts", dies)
            with pytest.raises(PipelineError, match="killed here"):
                pipelines.mine(config)
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before)
    begun, files = next_folder(Path(config.mining.output)), bytes_of(mined.folder)
    assert (begun / "_work" / STAGED_FILE).is_file()
    assert len(files) == 3
    # A part that is there is not made again.
    name = sorted(files)[1]
    (begun / name).write_bytes(files[name])
    with caplog.at_level(logging.INFO):
        summary = pipelines.mine(config)
    assert "resuming the table in" in caplog.text
    assert summary.embedded == 0
    assert 0 < summary.searched < 242
    assert bytes_of(config.mining.output) == files
    again = pipelines.mine(config)
    assert (again.searched, again.rows, str(again)[:15]) == (0, summary.rows, "nothing to mine")
    # It may be killed when all is written, and before the table is in its place.
    Path(config.mining.output).rename(begun)
    assert pipelines.mine(config).searched == 0
    assert bytes_of(config.mining.output) == files


def test_vectors_of_an_unfinished_table_serve_other_filters(
    spark, mining_job, mined, tmp_path
) -> None:
    output = Path(shutil.copytree(mined.folder, tmp_path / "mined"))
    told = r"^mining.negatives: .*mined was made with another value of this setting. Set mining"
    with pytest.raises(InputError, match=told):
        pipelines.mine(mining_job(negatives=1))
    with pytest.raises(InputError, match=r"^mining.negatives: no anchor has 100 documents that"):
        pipelines.mine(mining_job(overwrite=True, negatives=100, max_score=-0.9))
    assert bytes_of(output) == bytes_of(mined.folder)
    loose = {"same_group": True, "relative_margin": 0.9, "choose": "random", "window": 9}
    summary = pipelines.mine(mining_job(overwrite=True, fill="random", **loose))
    assert (summary.embedded, summary.short) == (0, 0)
    assert summary.filled > 0
    assert 0 < summary.of_own_group < 1
    for row in rows_of(output):
        negatives = {row["negative_0"], row["negative_1"]}
        assert len(negatives - {row["anchor"], row["positive"]}) == 2
        assert np.isfinite([row["negative_0_score"], row["negative_1_score"]]).all()


def test_further_documents_prompts_and_other_formats(
    spark, mining_job, lines, tmp_path, small_model
):
    """A CSV of pairs, JSON lines of documents with groups, and a model with two prompts."""
    model = shutil.copytree(small_model, tmp_path / "model")
    prompts = {"prompts": {"query": "ask: ", "passage": "text: "}}
    storage.write_json(model / "config_sentence_transformers.json", prompts)
    pairs = tmp_path / "pairs.csv"
    quoted = [line.replace('"', "'") for line in lines]
    rows = [f'"{quoted[n]}","{quoted[n + 1]}",g{n}' for n in range(0, 40, 2)]
    pairs.write_text("\n".join(["q,a,topic", *rows]) + "\n")
    documents = tmp_path / "more.jsonl"
    more = [{"body": quoted[n], "of": "g0" if n < 60 else None} for n in range(50, 90)]
    more.append({"body": " ", "of": "g0"})
    documents.write_text("".join(f"{json.dumps(row)}\n" for row in more))
    summary = pipelines.mine(
        mining_job(
            model=str(model),
            inputs=[str(pairs)],
            format="csv",
            key_column=None,
            documents=[str(documents)],
            documents_format="jsonl",
            documents_column="body",
            documents_group_column="of",
            relative_margin=None,
        )
    )
    assert (summary.documents, summary.embedded, summary.rows) == (60, 80, 20)
    rows = {row["anchor"]: row for row in rows_of(summary.folder)}
    row = rows[quoted[0]]
    assert not {row["negative_0"], row["negative_1"]} & set(quoted[50:60])
    embed = load_embedder(model, precision="fp32")
    score = embed([quoted[0]], "query") @ embed([row["negative_0"]], "document").T
    assert abs(score.item() - row["negative_0_score"]) < 1e-5
    assert "key" not in row


def test_pairs_are_read_whatever_arrow_type_stores_them(spark, mining_job, tmp_path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    kinds = (pa.string(), pa.string_view(), pa.binary(), pa.large_string())
    for number, kind in enumerate(kinds):
        texts = {name: pa.array([f"{name} {number}"]).cast(kind) for name in ("q", "a")}
        at = pa.array([datetime.time(1)])
        topic = pa.array([number]).cast(pa.uint8() if number else pa.decimal128(19, 0))
        pq.write_table(
            pa.table({**texts, "the.topic": topic, "id": [number], "at": at}),
            folder / f"{number}.parquet",
        )
    empty = {name: pa.nulls(1) for name in ("q", "a", "the.topic", "id")}
    pq.write_table(pa.table(empty), folder / "9.parquet")
    config = mining_job(inputs=[str(folder)], group_column="the.topic")
    check_sources(config)
    rows = read_pairs(spark, config, tmp_path / "staged", tmp_path / "mined").collect()
    found = sorted((row["anchor"] or "", row["positive"] or "", str(row["key"])) for row in rows)
    assert found == [("", "", "None"), *((f"q {n}", f"a {n}", str(n)) for n in range(4))]
    assert len({row["group_id"] for row in rows}) == 5


def test_an_index_finds_nearly_the_same(spark, mining_job, mined) -> None:
    found = pipelines.mine(mining_job(search="index"))
    wanted = {(row["anchor"], row["positive"]): row for row in rows_of(mined.folder)}
    rows = rows_of(found.folder)
    same = [
        row["negative_0"] == wanted[row["anchor"], row["positive"]]["negative_0"]
        for row in rows
        if (row["anchor"], row["positive"]) in wanted
    ]
    assert len(same) > 0.95 * len(wanted)
    assert np.mean(same) > 0.9


def test_what_cannot_be_mined_is_refused(mining_job, tmp_path, capsys, pair_file) -> None:
    def refused(**settings) -> str:
        with pytest.raises(InputError) as caught:
            pipelines.mine(mining_job(**settings))
        return str(caught.value)

    assert refused(model=str(tmp_path)).startswith("mining.model: ")
    assert refused(inputs=["nowhere.parquet"]).startswith("mining.inputs: there is no file")
    assert "no column `text`. Name one of its columns: id, q, a" in refused(anchor_column="text")
    assert refused(anchor_column="id").startswith("mining.anchor_column: `id` of ")
    assert refused(documents=[str(pair_file)]).startswith("mining.documents_column: ")
    (tmp_path / "mined").mkdir()
    (tmp_path / "mined" / "notes.txt").write_text("mine")
    told = "holds other files (notes.txt). Move them elsewhere, or name an empty folder."
    assert refused() == f"mining.output: {tmp_path}/mined {told}"
    (tmp_path / "mined").rename(tmp_path / ".mined.next")
    assert refused() == f"mining.output: {tmp_path}/.mined.next {told}"
    (tmp_path / ".mined.next").rename(tmp_path / "mine")
    columns = {"anchor_column": "anchor", "positive_column": "positive"}
    unnamed = columns | {"group_column": None, "key_column": None}
    told = refused(inputs=[], **unnamed)
    assert told.startswith("mining.inputs: it is empty, and there is no corpus in")
    for name in unnamed:
        told = refused(inputs=[], **unnamed | {name: "x"})
        assert told == (
            f"mining.{name}: it names a column of mining.inputs, which is empty. Name the table, "
            f"or leave {name} out."
        )
    told = refused(documents_group_column="topic")
    assert told.startswith("mining.documents_group_column: it names a column of mining.documents, ")
    told = refused(
        documents=[str(pair_file)],
        documents_column="q",
        documents_group_column="topic",
        group_column=None,
    )
    assert told == (
        "mining.documents_group_column: the pairs have no groups to compare it with. Set "
        "mining.group_column, or leave it out."
    )
    wrong = {
        "mining.window=1": "mining.window: 1 documents are fewer than mining.negatives. Set it",
        "mining.max_score=-0.5": "mining.min_score: 0.0 is not below mining.max_score. Set it to l",
        "mining.documents_format=xls": "mining.documents_format: there is no format `xls`. Choose",
        "mining.search=fast": "mining.search: there is no search `fast`. Choose one of exact",
    }
    given = ["mining.negatives=2", "mining.choose=random", "mining.min_score=0.0"]
    for more, told in wrong.items():
        assert main(["mine", *(part for one in [*given, more] for part in ("--set", one))]) == 2
        assert capsys.readouterr().err.startswith(f"error: {told}")


def test_rows_that_a_killed_deletion_has_left_are_not_mined(tmp_path) -> None:
    prepared = PreparedFolder(tmp_path)
    prepared.corpus.pairs.mkdir(parents=True)
    record = StageRecord("f", 1.0, "made")
    storage.write_json(prepared.stage_record("corpus"), asdict(record))
    config = parse({"prepared": {"folder": str(tmp_path)}})
    check_sources(config)
    add_deleted_keys(prepared, "key", ["a"])
    with pytest.raises(InputError, match=r"^prepared\.folder: .* deleted keys, .* did not finish"):
        check_sources(config)
