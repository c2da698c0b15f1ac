"""Parquet and tables by name: Spark reads them, and wrong files are counted."""

import datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lake_tables import write_delta
from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

from pipelines.corpus.readers.inputs import number_in
from pipelines.corpus.readers.spark_reader import read_rows
from pipelines.corpus.readers.tables import (
    DELTA,
    ICEBERG,
    load_delta,
    load_iceberg,
    no_reader,
    table_and_version,
)
from pipelines.errors import InputError
from pipelines.settings import CorpusSettings
from pipelines.settings.spark import DEFAULT_STORES
from pipelines.spark.java import delta_connector, iceberg_connector


def corpus(*inputs, **more):
    return CorpusSettings.model_validate(
        {"inputs": [str(path) for path in inputs], "format": "parquet", "pairs": "single", **more}
    )


def write(path, **columns):
    pq.write_table(pa.table(columns), path)
    return path


def test_wrong_parquet_files_are_quarantined_as_a_whole(spark, tmp_path):
    write(tmp_path / "a.parquet", text=["good", None, "Grüße"])
    write(tmp_path / "b.parquet", text=[1, 2])
    write(tmp_path / "c.parquet", title=["x"] * 7)
    write(tmp_path / "d.parquet", text=[["x"], ["y"]])
    (tmp_path / "e.parquet").write_bytes(b"PAR1 and then it was cut off")
    whole = write(tmp_path / "f.parquet", text=["x" * 999]).read_bytes()
    (tmp_path / "f.parquet").write_bytes(whole[:-9])
    rows = read_rows(spark, corpus(tmp_path)).collect()
    good = [row for row in rows if row["quarantined"] is None]
    assert sorted((row["text_0"] or "", row["bytes"]) for row in good) == [
        ("", 0),
        ("1", 1),
        ("2", 1),
        ("Grüße", 7),
        ("good", 4),
    ]
    bad = {row["file"][-9:]: row for row in rows if row["quarantined"] is not None}
    assert {name: row["rows"] for name, row in bad.items()} == {
        "c.parquet": 7,
        "d.parquet": 2,
        "e.parquet": 1,
        "f.parquet": 1,
    }
    assert bad["c.parquet"]["quarantined"] == "no column `text`"
    assert bad["d.parquet"]["quarantined"].startswith("column `text` holds list")
    assert bad["e.parquet"]["quarantined"].startswith("not Parquet, ")
    assert bad["c.parquet"]["level"] == "rows"


def test_parquet_columns_with_odd_names_and_bytes(spark, tmp_path):
    texts = pa.array([b"good", b"\xff bad"], pa.binary())
    path = write(tmp_path / "a.parquet", **{"the.text `x`": texts, "score": [0.5, 1.0]})
    settings = corpus(path, text_column="the.text `x`")
    rows = sorted(row["text_0"] for row in read_rows(spark, settings).collect())
    assert rows == ["good", "\ufffd bad"]


def test_values_are_read_whatever_arrow_type_stores_them(spark, tmp_path):
    """A file for each way to store them: Spark does not know all of these types."""
    texts = [pa.string_view(), pa.large_string(), pa.binary_view(), pa.large_binary()]
    lists = [pa.list_(pa.string_view()), pa.large_list(pa.string()), pa.list_(pa.binary(), 2)]
    numbers = [pa.uint8(), pa.float16(), pa.decimal128(21, 2), pa.decimal256(50, 1), pa.bool_()]
    for number in range(5):
        text = pa.array(["good", "Grüße"])
        write(
            tmp_path / f"{number}.parquet",
            text=text.cast(texts[number]) if number < 4 else text.dictionary_encode(),
            score=pa.array([1, 0], pa.int64()).cast(numbers[number]),
            wrong=pa.array([["x", "y"]] * 2).cast(lists[number % 3]),
            group=pa.array([datetime.time(1)] * 2),
        )
    write(tmp_path / "5.parquet", text=pa.nulls(1), score=pa.nulls(1), wrong=pa.nulls(1))
    texts = {"pairs": "columns", "pair_columns": ("text", "text")}
    frame = read_rows(spark, corpus(tmp_path, score_column="score", **texts))
    rows = frame.withColumn("number", F.expr(number_in("score"))).collect()
    found = sorted((row["text_0"] or "", row["number"] or 0.0) for row in rows)
    assert found == [("", 0.0), *[("Grüße", 0.0)] * 5, *[("good", 1.0)] * 5]
    assert {row["quarantined"] for row in rows} == {None}
    texts = {"pairs": "triplets", "triplet_columns": ("text", "text", "wrong[1]")}
    rows = read_rows(spark, corpus(tmp_path, **texts)).collect()
    found = sorted((row["negatives"] for row in rows), key=str)
    assert found == [["y"]] * 10 + [[None]]
    assert {row["quarantined"] for row in rows} == {None}
    settings = corpus(tmp_path, group_column="group", pairs="group")
    times = read_rows(spark, settings).where("quarantined is null").select("group").distinct()
    assert [row["group"] for row in times.collect()] == ["01:00:00.000000"]
    (row,) = read_rows(spark, corpus(tmp_path / "5.parquet")).collect()
    assert (row["text_0"], row["quarantined"]) == (None, None)
    assert row["input"] == (tmp_path / "5.parquet").as_uri()


def test_booleans_are_numbers_however_they_are_spelled(spark):
    words = ["true", "False", " TRUE ", "1", "0.5", "yes", None, "1e-3"]
    frame = spark.createDataFrame([(word,) for word in words], "word string")
    found = [row[0] for row in frame.select(F.expr(number_in("word"))).collect()]
    assert found == [1.0, 0.0, 1.0, 1.0, 0.5, None, None, 0.001]


@pytest.mark.parametrize(
    ("columns", "more", "key", "problem"),
    [
        ({"title": ["a"]}, {}, "corpus.text_column", "`text`. Name one of its columns: title"),
        ({"text": [["a"]]}, {}, "corpus.text_column", "column `text` of .* holds list"),
        (
            {"text": ["a"]},
            {"pairs": "group", "group_column": "image"},
            "corpus.group_column",
            "no column `image`",
        ),
        (
            {"anchor": ["a"], "positive": ["b"]},
            {"pairs": "triplets"},
            "corpus.triplet_columns",
            "no column `negative`",
        ),
    ],
)
def test_no_parquet_file_that_can_be_read(spark, tmp_path, columns, more, key, problem):
    write(tmp_path / "a.parquet", **columns)
    with pytest.raises(InputError, match=problem) as raised:
        read_rows(spark, corpus(tmp_path, **more))
    assert raised.value.key == key


def test_tables_and_views_by_name(spark, tmp_path):
    frame = spark.createDataFrame([("a", "t"), (None, "u")], "text string, title string")
    frame.createOrReplaceTempView("texts_of_a_view")
    location = (tmp_path / "saved").as_uri()
    frame.write.option("path", location).mode("overwrite").saveAsTable("texts_of_a_table")
    try:
        names = ("texts_of_a_view", "default.texts_of_a_table")
        rows = read_rows(spark, corpus(*names, format="table", pairs="title")).collect()
        found = sorted((row["title"], row["text_0"] or "", row["bytes"]) for row in rows)
        assert found == [("t", "a", 1), ("t", "a", 1), ("u", "", 0), ("u", "", 0)]
        assert {(row["file"], row["offset"], row["document"]) for row in rows} == {(None,) * 3}
        with pytest.raises(InputError, match=r"_a_view has no column `x`\. Name one .*: text"):
            read_rows(spark, corpus("texts_of_a_view", format="table", text_column="x"))
        untitled = {"format": "table", "pairs": "document", "title_column": "y"}
        with pytest.raises(InputError, match=r"title_column: .* set it to null if there are"):
            read_rows(spark, corpus("texts_of_a_view", **untitled))
        rows = read_rows(spark, corpus("texts_of_a_view", **untitled | {"title_column": None}))
        assert {row["title"] for row in rows.collect()} == {None}
    finally:
        spark.sql("drop table texts_of_a_table")
        spark.catalog.dropTempView("texts_of_a_view")


def test_a_table_column_that_is_nested(spark):
    spark.createDataFrame([(["a"],)], "text array<string>").createOrReplaceTempView("nested_texts")
    try:
        with pytest.raises(InputError, match="holds array<string>"):
            read_rows(spark, corpus("nested_texts", format="table"))
    finally:
        spark.catalog.dropTempView("nested_texts")


@pytest.mark.parametrize(
    ("kind", "name", "named"),
    [
        ("table", "no_such_table", ["no_such_table", "catalog.database.table"]),
        ("iceberg", "sea.texts.pages", ["pyiceberg knows no catalog `sea`", "~/.pyiceberg.yaml"]),
        ("iceberg", "sea.texts.pages", ["iceberg-spark-runtime", "spark.jars.packages"]),
        ("iceberg", "/none.metadata.json", ["there is no table", "none.metadata.json"]),
        ("delta", "no_such_table", ["io.delta:delta-spark", "spark.sql.extensions"]),
        ("delta", None, ["is no Delta table (", "Name the folder or address of one"]),
    ],
)
def test_tables_that_are_not_there(spark, tmp_path, kind, name, named):
    with pytest.raises(InputError) as raised:
        read_rows(spark, corpus(name or tmp_path, format=kind))
    assert raised.value.key == "corpus.inputs"
    assert all(part in str(raised.value) for part in named)
    assert "\n" not in str(raised.value)


def test_a_cluster_without_connector_and_library_names_both_ways():
    error = no_reader("delta", delta_connector("3.5.1"), "on the driver")
    assert (error.key, error.problem) == ("corpus.inputs", "Delta is not on the cluster")
    remedy = error.remedy
    assert remedy.startswith('Run `pip install "sentence-pipelines[delta]"` on the driver, or add ')
    assert remedy.endswith("spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog")
    error = no_reader("iceberg", iceberg_connector("4.0.0"), "on the driver")
    assert "iceberg-spark-runtime-4.0_2.13" in error.remedy


def test_delta_tables_without_a_connector(spark, tmp_path):
    """Rows, their columns and versions by the executors."""
    rows = pa.table({"text": ["a", None, "c"], "lang": ["en", "de", "de"], "n": [[1], None, []]})
    folder = tmp_path / "a table"
    write_delta(folder, rows, partition_by=["lang"])
    more = rows.append_column("title", pa.array(["x", "y", "z"]))
    table = write_delta(folder, more, mode="append", schema_mode="merge")
    table.delete("text = 'a'")
    titled = {"format": "delta", "pairs": "title"}

    def found(version):
        read = read_rows(spark, corpus(f"{folder}{version}", **titled)).collect()
        return sorted((row["text_0"] or "", row["title"] or "") for row in read)

    assert found("") == [("", ""), ("", "y"), ("c", ""), ("c", "z")]
    assert found("@v1") == sorted([*found(""), ("a", ""), ("a", "x")])
    with pytest.raises(InputError, match="has no column `title`"):
        found("@v0")
    with pytest.raises(InputError, match="holds array<bigint>"):
        read_rows(spark, corpus(folder, format="delta", text_column="n"))
    (row,) = load_delta(spark, f"{folder}@v0").where("text = 'a'").collect()
    assert row.asDict() == {"text": "a", "lang": "en", "n": [1]}


def test_a_version_whose_files_are_gone_is_named(spark, tmp_path):
    table = write_delta(tmp_path, pa.table({"text": ["a"]}))
    (file,) = tmp_path.glob("*.parquet")
    table.delete("text = 'a'")
    file.unlink()
    with pytest.raises(InputError, match=r"data file of `.*@v0` cannot .* Name a newer version"):
        load_delta(spark, f"{tmp_path}@v0")
    assert load_delta(spark, str(tmp_path)).count() == 0


def test_moments_and_times_of_no_zone_differ(spark, tmp_path):
    """Both ways into Spark, by its reader and by the executors, give the same column."""
    noon = datetime.datetime(2020, 7, 1, 12)
    kinds = {"moment": pa.timestamp("us", "UTC"), "local": pa.timestamp("us")}
    rows = pa.table({name: pa.array([noon, None], kind) for name, kind in kinds.items()})
    write_delta(tmp_path / "lake", rows)
    read = load_delta(spark, str(tmp_path / "lake"))
    pq.write_table(rows, tmp_path / "plain.parquet")
    plain = spark.read.parquet(f"file://{tmp_path}/plain.parquet")
    assert read.dtypes == plain.dtypes == [("moment", "timestamp"), ("local", "timestamp_ntz")]
    assert read.collect() == plain.collect()


def test_iceberg_tables_without_a_connector(spark, lake):
    nested = pa.table({"text": ["a", None], "lang": ["en", "de"], "in": [{"x": 1}, None]})
    table = lake.create_table("db.texts", schema=nested.schema)
    with table.update_spec() as spec:
        spec.add_identity("lang")
    table.append(nested)
    first = table.current_snapshot().snapshot_id
    table.append(nested)
    table.delete("text = 'a'")

    def found(name):
        rows = read_rows(spark, corpus(name, format="iceberg", group_column="lang")).collect()
        return sorted((row["text_0"] or "", row["group"]) for row in rows)

    assert found("lake.db.texts") == [("", "de"), ("", "de")]
    assert found(f"lake.db.texts@{first}") == [("", "de"), ("a", "en")]
    assert found(table.metadata_location) == [("", "de"), ("", "de")]
    (row,) = load_iceberg(spark, f"lake.db.texts@{first}").where("text = 'a'").collect()
    assert row.asDict(recursive=True) == {"text": "a", "lang": "en", "in": {"x": 1}}


def test_a_version_stands_behind_an_at_sign(tmp_path):
    (tmp_path / "odd@v3").mkdir()
    assert [
        table_and_version(given)
        for given in (
            "/lake/a@v12",
            "lake.db.a@77",
            "s3://b/a@1",
            "/lake/a",
            "a@b",
            str(tmp_path / "odd@v3"),
        )
    ] == [
        ("/lake/a", "12"),
        ("lake.db.a", "77"),
        ("s3://b/a", "1"),
        ("/lake/a", None),
        ("a@b", None),
        (str(tmp_path / "odd@v3"), None),
    ]


def test_the_newest_version_of_a_delta_folder_is_pinned(tmp_path):
    log = tmp_path / "table" / "_delta_log"
    log.mkdir(parents=True)
    table = str(tmp_path / "table")
    stores = DEFAULT_STORES
    assert DELTA.pin(None, table, stores) == table
    assert DELTA.fingerprint([table], stores) is None
    for name in ("9.json", "11.json", "10.checkpoint.parquet", "00000000000000000099.crc"):
        version, _, ending = name.partition(".")
        (log / f"{version.zfill(20)}.{ending}").touch()
    assert DELTA.pin(None, table, stores) == f"{table}@v11"
    assert DELTA.pin(None, f"{table}@v3", stores) == f"{table}@v3"
    assert DELTA.fingerprint([table], stores) == {"tables": [[table, 11]]}
    assert DELTA.fingerprint([f"{table}@v3"], stores) == {"tables": [[table, 3]]}
    assert ICEBERG.fingerprint(["lake.a@7"], stores) == {"tables": [["lake.a", "7"]]}
    assert ICEBERG.fingerprint(["lake.a@7", "lake.b"], stores) is None


def test_spark_is_asked_for_the_version(spark):
    """A table that has no versions is refused for the option, and not read as it is."""
    spark.range(3).write.mode("overwrite").saveAsTable("no_versions")
    try:
        with pytest.raises(InputError, match=r"(?i)time.travel") as raised:
            read_rows(spark, corpus("no_versions@v1", format="delta", text_column="id"))
        assert raised.value.key == "corpus.inputs"
        assert ICEBERG.pin(spark, "no_versions", DEFAULT_STORES) == "no_versions"
    finally:
        spark.sql("drop table no_versions")


def test_no_tables_at_all(spark):
    with pytest.raises(InputError, match="Name tables"):
        read_rows(spark, corpus(format="table"))
