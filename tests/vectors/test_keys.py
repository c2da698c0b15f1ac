"""Rows that are compared by key: what has changed, and tables that grow as if made at once."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from embedding_rounds import embed_here, write_lake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipelines.arrow_columns import is_key
from pipelines.corpus.unit_rows import hash_of
from pipelines.settings.load import parse
from pipelines.vectors.embedding import vectors_of
from pipelines.vectors.keys import (
    MATCHES,
    NEW,
    OLD,
    ROWS,
    STAYS,
    KeyScan,
    digests_of,
    match,
    scan_keys,
)
from pipelines.vectors.parts import Constant
from pipelines.vectors.row_deletion import DeletedRows

TEXTS = st.sampled_from(["the cat", "a dog", "one more dog", "", None])
FILES = st.sampled_from(["a", "b", "c"])
# A row is known by its key; which file it is in, and with which text, may be another each time.
ROUND = st.dictionaries(st.integers(0, 12), st.tuples(FILES, TEXTS), min_size=1)


def rows_of(*rows) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(ROWS.names, row, strict=True)) for row in rows], ROWS)


def counted(matches: pa.Table) -> dict[str, int]:
    found = matches.group_by("kind").aggregate([("rows", "sum")])
    return dict(zip(found["kind"].to_pylist(), found["rows_sum"].to_pylist(), strict=True))


def test_each_row_is_of_one_kind() -> None:
    matches = match(
        rows_of(
            ("same", NEW, 0, b"1"),
            ("other text", NEW, 1, b"2"),
            ("text of another", NEW, 2, b"3"),
            ("kept with its file", STAYS, 3, None),
            ("same", OLD, 9, b"1"),
            ("other text", OLD, 8, b"1"),
            ("was there", OLD, 7, b"3"),
            ("kept with its file", OLD, 6, b"5"),
        )
    )
    assert counted(matches) == {"unchanged": 2, "changed": 1, "new": 1, "gone": 1}
    places = matches.filter(matches["first"].is_valid()).to_pylist()
    assert [(row["key"], row["first"], row["second"]) for row in places] == [("same", 9, 0)]
    assert match(ROWS.empty_table()).equals(MATCHES.empty_table())


def test_keys_that_cannot_be_used_are_found_wherever_they_stand() -> None:
    twice = [("a", NEW, 4, None), ("a", STAYS, 2, None), ("a", OLD, 0, b"x")]
    for rows, kind, places in (
        (twice, "twice", (2, 4)),
        ([(None, NEW, 5, b"x"), ("b", NEW, 6, b"x")], "missing", (None, 5)),
    ):
        (found,) = (row for row in match(rows_of(*rows)).to_pylist() if row["kind"] == kind)
        assert (found["first"], found["second"]) == places
    # What an earlier table holds twice, made without keys, gives its vector once.
    old = match(rows_of(("a", OLD, 3, b"x"), ("a", OLD, 1, b"x"), ("a", NEW, 0, b"x")))
    assert counted(old) == {"unchanged": 1}


@pytest.mark.parametrize("texts", [["a", None, "", "ü"], ["x"] * 4])
def test_digests_tell_texts_apart(texts) -> None:
    strings = pa.array(texts)
    for column in (strings, strings.cast(pa.large_string()), strings.dictionary_encode()):
        found = digests_of(column).to_pylist()
        assert len(set(found)) == len(set(texts))
        assert None not in found


def test_rows_of_a_part_that_cannot_be_used_stand_for_it(tmp_path) -> None:
    path = tmp_path / "rows.parquet"
    many = 50_000
    pq.write_table(pa.table({"id": [*range(many), 7, 8, 8], "text": ["x"] * (many + 3)}), path)
    scan = KeyScan(NEW, path, 0, many + 3, 100, "id", "text")
    rows = pa.Table.from_batches(scan_keys([scan]), ROWS)
    assert rows["key"].to_pylist() == ["7", "7"]
    assert rows["position"].to_pylist() == [107, 100 + many]
    whole = pa.Table.from_batches(scan_keys([KeyScan(NEW, path, 3, many, 0, "id", None)]), ROWS)
    assert (len(whole), whole["digest"].null_count) == (many - 3, many - 3)
    # An earlier table may hold anything; one without the column of keys gives nothing.
    assert pa.Table.from_batches(scan_keys([KeyScan(OLD, path, 0, many + 3, 0, "id", "text")]))
    assert list(scan_keys([KeyScan(OLD, path, 0, 9, 0, "key", "text")])) == []
    constant = Constant("words", "string", "a b")
    (batch,) = scan_keys([KeyScan(NEW, path, 0, 2, 0, "id", "words", (constant,))])
    assert batch["digest"].to_pylist() == digests_of(pa.array(["a b"] * 2)).to_pylist()


def test_what_can_be_a_key() -> None:
    words = pa.dictionary(pa.int32(), pa.string())
    runs = pa.run_end_encoded(pa.int32(), pa.int64())
    good = [pa.int8(), pa.uint64(), pa.string(), pa.large_string(), pa.string_view(), words]
    good += [pa.decimal128(38, 0), runs, pa.null()]
    bad = [pa.float64(), pa.bool_(), pa.list_(pa.int64()), pa.binary(), pa.timestamp("us")]
    bad += [pa.decimal128(10, 2), pa.binary_view()]
    assert [is_key(kind) for kind in (*good, *bad)] == [True] * len(good) + [False] * len(bad)


@pytest.mark.parametrize(
    ("keys", "texts"),
    [
        (pa.array([7.0, 0.001, 12345678.0, 1e-4, None]), ["7.0", "0.001", "1.2345678E7", "1.0E-4"]),
        (pa.array([7.5, 1e10, 0.0], pa.float32()), ["7.5", "1.0E10", "0.0"]),
        (pa.array(["a", "b"]).dictionary_encode(), ["a", "b"]),
        (pa.array([7, None]).cast(pa.decimal128(38, 0)), ["7"]),
        (pa.array([True, False]), ["true", "false"]),
    ],
)
def test_deleted_keys_are_those_that_spark_reads(keys, texts) -> None:
    batch = pa.record_batch({"key": keys})
    for number, text in enumerate(texts):
        left = DeletedRows("key", (hash_of(text),)).without(batch)
        assert left["key"].equals(pa.concat_arrays([keys[:number], keys[number + 1 :]]))


def lake_of(rows: Mapping[int, tuple[str, str | None]]) -> dict[str, list[tuple[int, str | None]]]:
    files: dict[str, list[tuple[int, str | None]]] = {}
    for key, (file, text) in rows.items():
        files.setdefault(file, []).append((key, text))
    return files


@pytest.mark.slow
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rounds=st.lists(ROUND, min_size=2, max_size=3), quantise=st.sampled_from(["none", "int8"]))
def test_a_table_that_grows_is_as_one_made_at_once(
    rounds, quantise, small_model, tmp_path_factory
) -> None:
    home = tmp_path_factory.mktemp("grows")
    known = {"model": str(small_model), "inputs": [str(home / "lake")], "precision": "fp32"}
    known |= {"quantise": quantise, "part_rows": 3, "key_column": "id"}

    def job(output: str):
        return parse({"embedding": known | {"output": str(home / output)}})

    before: dict[int, str | None] = {}
    for number, rows in enumerate(rounds):
        write_lake(home / "lake", lake_of(rows))
        embedded = embed_here(job("grown"))
        texts = {key: text for key, (_, text) in rows.items()}
        wanted = [text for key, text in texts.items() if key not in before or before[key] != text]
        assert embedded == len(wanted)
        before = texts
        embed_here(job(f"at-once-{number}"))
        grown, at_once = (
            pq.read_table(home / name).sort_by("id") for name in ("grown", f"at-once-{number}")
        )
        columns = ["id", "text"]
        assert grown.select(columns).equals(at_once.select(columns))
        for table in (grown, at_once):
            assert table["embedding"].is_null().equals(table["text"].is_null())
        # One step of int8 where two ways to compute a value round to either side.
        tolerance = 1e-5 if quantise == "none" else 1e-2
        np.testing.assert_allclose(vectors_in(grown), vectors_in(at_once), atol=tolerance)


def vectors_in(table: pa.Table) -> np.ndarray:
    scales = table["embedding_scale"] if "embedding_scale" in table.column_names else None
    return vectors_of(
        table["embedding"].drop_null(), scales and scales.drop_null().combine_chunks()
    )
