"""What the job reads: columns, types, folders, encodings, and where the inputs lie."""

import datetime
import gzip
import lzma

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.errors import InputError, PipelineError
from pipelines.settings.load import parse
from pipelines.vectors.embed import EmbeddingJob, embed_table
from pipelines.vectors.parts import Constant, partition_columns, read_rows

WESTERN = "Où est la bibliothèque ?\nDéjà vu, à côté de la forêt.\nÇa va très bien.\n"
EVERY_KIND = """
select id, concat('text ', id) as text,
       timestamp'9999-12-31 23:59:59.999999' as last,
       timestamp_ntz'2020-01-01 00:00:00' as local,
       array(timestamp'1950-01-01 00:00:01', null) as list,
       named_struct('x', timestamp'2020-05-05 01:02:03.000004', 'y', date'2021-01-01') as struct,
       map('k', array(named_struct('q', timestamp'1900-05-05 01:02:03'))) as map,
       cast(id / 4 as decimal(10, 2)) as decimal, cast(null as binary) as bytes
from range(5)
"""


@pytest.fixture
def job(small_model, tmp_path):
    """Makes the configuration of a job."""

    def configured(*inputs, **settings):
        known = {
            "model": str(small_model),
            "inputs": [str(one) for one in inputs],
            "output": str(tmp_path / "table"),
            "part_rows": 64,
            "precision": "fp32",
        }
        return parse({"embedding": known | settings})

    return configured


@pytest.fixture
def every_kind(spark):
    return spark.sql(EVERY_KIND)


def same_in_spark(spark, folder, frame) -> None:
    """The table has the frame's columns and rows, in Spark's own types, and the vectors."""
    found = spark.read.parquet(f"file://{folder}")
    assert found.dtypes == [*frame.dtypes, ("embedding", "array<float>")]
    assert found.where("size(embedding) = 32").count() == frame.count()
    kept = found.drop("embedding").orderBy("id").collect()
    assert kept == frame.orderBy("id").collect()


def test_what_spark_wrote_spark_reads_with_the_vectors(spark, job, every_kind, tmp_path) -> None:
    every_kind.write.parquet(f"file://{tmp_path}/input")
    file = next((tmp_path / "input").glob("part-*"))
    assert b"org.apache.spark.sql.parquet.row.metadata" in pq.read_metadata(file).metadata
    assert pq.ParquetFile(file).schema.column(2).physical_type == "INT96"
    embed_table(spark, job(tmp_path / "input"))
    same_in_spark(spark, tmp_path / "table", every_kind)


def test_a_table_keeps_its_types(spark, job, every_kind, tmp_path) -> None:
    every_kind.createOrReplaceTempView("every_kind")
    embed_table(spark, job("every_kind", format="table"))
    same_in_spark(spark, tmp_path / "table", every_kind)


def test_nanoseconds_become_microseconds(spark, job, tmp_path) -> None:
    moments = pd.to_datetime(["2020-01-01 01:02:03.000004", None])
    frame = pd.DataFrame({"text": ["a", "b"], "at": moments, "n": pd.array([1, None], "Int64")})
    frame["in"] = [[moment] for moment in moments]
    frame.set_index("text", drop=False).rename_axis("key").to_parquet(tmp_path / "in.parquet")
    assert pq.read_schema(tmp_path / "in.parquet").field("at").type == pa.timestamp("ns")
    embed_table(spark, job(tmp_path / "in.parquet"))
    found = spark.read.parquet(f"file://{tmp_path}/table")
    assert dict(found.dtypes)["at"] == "timestamp_ntz"
    assert found.first()["at"] == datetime.datetime(2020, 1, 1, 1, 2, 3, 4)
    assert found.first()["in"] == [datetime.datetime(2020, 1, 1, 1, 2, 3, 4)]
    # pandas finds its own index and types again, and the vectors.
    again = pd.read_parquet(tmp_path / "table")
    assert again.index.name == "key"
    assert again["n"].dtype == "Int64"
    assert len(again.loc["a", "embedding"]) == 32


def test_nanoseconds_that_would_be_lost_are_refused(spark, job, tmp_path) -> None:
    path = tmp_path / "fine.parquet"
    texts = pa.array(["a", "b", "c"])
    for statistics in (True, False):
        moments = pa.array([0, 1_500, 2_000_000], pa.timestamp("ns"))
        rows = pa.table({"text": texts, "seen": pa.array([[one] for one in moments])})
        pq.write_table(rows.slice(0, 2), path, write_statistics=statistics)
        error, prefix = (InputError, "^") if statistics else (PipelineError, "executor: .*")
        with pytest.raises(error, match=rf"{prefix}embedding.inputs: `seen.*counts nanoseconds"):
            embed_table(spark, job(path))
    with pytest.raises(InputError, match="Round it to microseconds"):
        list(read_rows(path, 0, 2))


def test_texts_and_keys_however_arrow_stores_them(spark, job, tmp_path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    kinds = (pa.string(), pa.string_view(), pa.binary_view(), pa.large_string(), None, pa.null())
    for number, kind in enumerate(kinds):
        texts = pa.array([f"text {number}", None])
        if kind is None:
            texts = texts.dictionary_encode()
        else:
            texts = pa.nulls(2) if pa.types.is_null(kind) else texts.cast(kind)
        ids = pa.array([str(2 * number), str(2 * number + 1)], kind if number < 2 else pa.string())
        counts = pa.array([number, None]) if number < 5 else pa.nulls(2)
        rows = pa.table({"id": ids, "count": counts, "text": texts})
        pq.write_table(rows, folder / f"{number}.parquet")
    for embedded in (12, 0):
        summary = embed_table(spark, job(folder, key_column="id"))
        found = spark.read.parquet(f"file://{tmp_path}/table")
        there = {int(row["id"]) for row in found.where("embedding is not null").collect()}
        assert there == {0, 2, 4, 6, 8}
        assert (found.count(), summary.embedded) == (12, embedded)
        # A file without values has no types of its own, and no other reader could guess them.
        assert found.agg({"count": "sum"}).first()[0] == sum(range(5))
    # Views are strings and bytes, which older readers know.
    types = [pq.read_schema(path) for path in sorted((tmp_path / "table").glob("*.parquet"))]
    assert {str(schema.field("id").type) for schema in types} == {"string"}
    assert pd.read_parquet(tmp_path / "table").shape == (12, 4)


def test_rows_of_other_formats_with_one_key_have_no_places(spark, job, tmp_path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text('{"id": 7, "text": "a"}\n' * 2)
    with pytest.raises(InputError, match="`id` is `7` in two rows of the table"):
        embed_table(spark, job(path, key_column="id", format="jsonl"))


def test_columns_that_spark_does_not_read_are_told(spark, job, tmp_path, caplog) -> None:
    path = tmp_path / "in.parquet"
    others = {"at": [datetime.time(1)], "half": pa.array([1.5], pa.float16())}
    pq.write_table(pa.table({"text": ["a"], **others}), path)
    with pytest.raises(InputError, match=r"merge_into: Spark does not read `at` \(time64.*`half`"):
        EmbeddingJob.of(job(path, merge_into="lake.t", key_column="text")).check()
    embed_table(spark, job(path))
    assert "Spark does not read a table with `at` (time64[us]), `half` (halffloat)" in caplog.text
    assert pd.read_parquet(tmp_path / "table")["half"].tolist() == [1.5]


def test_names_of_columns_that_pandas_would_parse(spark, job, tmp_path) -> None:
    pd.DataFrame({0: ["a", "b"], 1: [1, 2]}).to_parquet(tmp_path / "in.parquet")
    embed_table(spark, job(tmp_path / "in.parquet", text_column="0"))
    assert [*pd.read_parquet(tmp_path / "table")] == ["0", "1", "embedding"]


def test_columns_in_the_names_of_folders(spark, job, tmp_path) -> None:
    lake = tmp_path / "lake"
    frame = spark.createDataFrame(
        [
            (1, "one", "en", 2024, "2024-02-01", "x/y=z"),
            (2, "zwei", "de", 7, "2024-02-02", "ü"),
            (3, "drei", "de", -(2**40), "2024-02-02", None),
        ],
        "id long, text string, lang string, number long, day string, odd string",
    )
    frame.write.partitionBy("lang", "number", "day", "odd").parquet(f"file://{lake}")
    expected = spark.read.parquet(f"file://{lake}")
    assert dict(expected.dtypes)["number"] == "bigint"
    assert dict(expected.dtypes)["day"] == "date"
    embed_table(spark, job(lake))
    same_in_spark(spark, tmp_path / "table", expected)


def test_folders_below_the_fixed_part_of_a_glob_count(tmp_path) -> None:
    for name in ("a=1/b=2024-01-01", "a=007/b=2024-1-1", "other"):
        folder = tmp_path / "lr=0.1" / name
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"text": ["x"]}), folder / "rows.parquet")
    found = partition_columns([f"{tmp_path}/lr=0.1/*/*/*.parquet", f"{tmp_path}/lr=0.1/other"])
    values = {file.parent.parent.name: constants for file, constants in found.items()}
    assert values["a=1"] == (Constant("a", "int32", "1"), Constant("b", "string", "2024-01-01"))
    assert values["lr=0.1"] == (Constant("a", "int32", None), Constant("b", "string", None))
    assert values["a=007"][0].array(2).to_pylist() == [7, 7]
    assert partition_columns([str(tmp_path / "lr=0.1" / "a=1")]) == {
        tmp_path / "lr=0.1/a=1/b=2024-01-01/rows.parquet": (Constant("b", "date32", "2024-01-01"),)
    }


def test_lines_in_any_encoding_and_compression(spark, job, tmp_path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    written = {
        "plain.txt": "\ufeffone\r\n\ntwo\rthree".encode(),
        "packed.txt.xz": lzma.compress("packed über\n".encode()),
        "packed.txt.gz": gzip.compress(b"gzip\n"),
        "western.txt": WESTERN.encode("cp1252"),
        "wide.txt": "wide ünder\nlast".encode("utf-16"),
    }
    for name, data in written.items():
        (folder / name).write_bytes(data)
    embed_table(spark, job(folder, format="text", text_column="line"))
    found = pq.read_table(tmp_path / "table").column("line").to_pylist()
    expected = ["one", "", "two", "three", "packed über", "gzip", "wide ünder", "last"]
    assert sorted(found) == sorted(expected + WESTERN.splitlines())


def test_columns_in_any_encoding_and_compression(spark, job, tmp_path) -> None:
    folder = tmp_path / "tables"
    folder.mkdir()
    written = {
        "a.csv.xz": lzma.compress('text,\n"packed, über\nall",1\n'.encode()),
        "b.csv": f"text\n{WESTERN}".encode("cp1252").replace(b", ", b" "),
        "c.tsv": 'more\ttext\n2\t"wide" ünder\n'.encode("utf-16"),
    }
    for name, data in written.items():
        (folder / name).write_bytes(data)
    embed_table(spark, job(folder, format="csv"))
    table = pq.read_table(tmp_path / "table")
    western = WESTERN.replace(", ", " ").splitlines()
    assert table.column_names == ["text", "_c1", "more", "embedding"]
    expected = ["packed, über\nall", *western, '"wide" ünder']
    assert table.column("text").to_pylist() == expected
    assert table.column("_c1").to_pylist() == ["1", None, None, None, None]
    assert table.column("more").to_pylist() == [None, None, None, None, "2"]


def test_text_that_cannot_be_read_is_refused(spark, job, tmp_path) -> None:
    written = {
        "cut.txt.gz": (gzip.compress(b"many lines\n" * 100)[:-9], "text", "damaged .gz"),
        "image.txt": (
            b"\x89PNG\r\n" + bytes(200),
            "text",
            "image.txt cannot be read as text .binary",
        ),
        "rows.csv.xz": (b"text\na\n", "csv", "rows.csv.xz cannot be read as csv .damaged .xz"),
        "open.csv": (b'text\n"a\n', "csv", "open.csv at byte 5: quotes that are not closed"),
        "twice.csv": (b"text,a,a\n", "csv", "has two columns `a`. Rename one of them"),
    }
    for name, (data, kind, message) in written.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(InputError, match=rf"^embedding.inputs: .*{message}") as refused:
            embed_table(spark, job(tmp_path / name, format=kind))
        assert "\n" not in str(refused.value)
        assert not (tmp_path / "table").exists()


def test_inputs_and_output_apart(job, sentence_file, tmp_path) -> None:
    lake = tmp_path / "lake"
    (lake / "a").mkdir(parents=True)
    rows = pq.read_table(sentence_file)
    for file in (lake / "a" / "rows.parquet", lake / "rows.parquet"):
        pq.write_table(rows, file)
    (tmp_path / "link").symlink_to(lake)
    (tmp_path / "pretty.parquet").symlink_to(lake / "rows.parquet")
    within, holds = "is within the inputs", "holds the input"
    cases = [
        (lake, lake, within),
        (lake, lake / "vectors", within),
        (f"file://{lake}", lake / "vectors", within),
        (f"{lake}/*", lake / "vectors", within),
        (f"{lake}/*/*.parquet", lake / "vectors", within),
        (f"{lake}/**", lake / "a" / "b" / "vectors", within),
        (f"{tmp_path}/link/*", lake / "vectors", within),
        (lake, tmp_path / "link" / "vectors", within),
        (lake / "a" / ".." / "a", lake / "a" / "vectors", within),
        (f"{lake}/*.parquet", lake, within),
        (lake / "rows.parquet", lake, holds),
        (lake / "a", lake, holds),
        (f"{lake}/r*s.parquet", tmp_path / "link", holds),
        (tmp_path / "pretty.parquet", lake, holds),
    ]
    for given, output, message in cases:
        with pytest.raises(InputError, match=rf"^embedding.output: .* {message}"):
            EmbeddingJob.of(job(given, output=str(output), overwrite=True)).check()
    assert pq.read_table(lake / "rows.parquet").equals(rows)
    for given, output in [(f"{lake}/r*.parquet", lake / "vectors"), (lake / "a", lake / "b")]:
        EmbeddingJob.of(job(given, output=str(output))).check()
