"""Parquet files that Spark cannot read are named, and the others are read without them."""

from datetime import date, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpus_runs import pairs_of, sentence

from pipelines.corpus.stage import prepare_corpus
from pipelines.errors import InputError
from pipelines.evaluation.pairs import PairFiles, read_pairs
from pipelines.settings.load import parse
from pipelines.vectors.mining_inputs import check_sources, mining_sources
from pipelines.vectors.parts import read_rows
from pipelines.vectors.sources import damage_told


def write(path, begin, rows=100, **more):
    columns = {
        "sentence1": [sentence(number) for number in range(begin, begin + rows)],
        "sentence2": [sentence(5000 + number) for number in range(begin, begin + rows)],
    }
    pq.write_table(pa.table({**columns, **more}), path)


def damage(path, column):
    """Overwrites bytes in the data of a column, which the footer does not show."""
    chunk = pq.read_metadata(path).row_group(0).column(column)
    data = bytearray(path.read_bytes())
    begin = chunk.dictionary_page_offset or chunk.data_page_offset
    middle = begin + chunk.total_compressed_size // 2
    data[middle : middle + 64] = b"\xff" * 64
    path.write_bytes(data)


def prepare(spark, folder, *, keep_units=True, **corpus):
    given = {"format": "parquet", "pairs": "columns", "evaluation_share": 0, **corpus}
    given.setdefault("inputs", [str(folder / "inputs")])
    prepared = {"folder": str(folder / "prepared"), "keep_units": keep_units}
    return prepare_corpus(spark, parse({"corpus": given, "prepared": prepared}))


def quarantine(summary):
    return pq.read_table(summary.folder / "quarantine.parquet").to_pylist()


@pytest.fixture
def inputs(tmp_path):
    (tmp_path / "inputs").mkdir()
    for number in range(3):
        write(tmp_path / "inputs" / f"{number}.parquet", 1000 * number)
    return tmp_path / "inputs"


def check_left_out(summary, file):
    assert len(pairs_of(summary)) == 200
    (lost,) = quarantine(summary)
    assert lost["file"] == str(file) and lost["rows"] == 100
    assert lost["reason"].startswith("damaged (")


def test_a_damaged_page_may_be_too_much_of_the_corpus_or_leaves_its_file_out(
    spark, tmp_path, inputs
):
    damage(inputs / "1.parquet", 1)
    with pytest.raises(InputError, match=r"100 of 300 rows .*1\.parquet .*\(damaged \(") as raised:
        prepare(spark, tmp_path)
    assert raised.value.key == "corpus.max_quarantined"
    check_left_out(prepare(spark, tmp_path, max_quarantined=0.4), inputs / "1.parquet")


def test_a_damaged_page_leaves_its_file_out_where_no_units_are_kept(spark, tmp_path, inputs):
    damage(inputs / "1.parquet", 1)
    summary = prepare(spark, tmp_path, keep_units=False, max_quarantined=0.4)
    check_left_out(summary, inputs / "1.parquet")


def test_damage_where_nothing_is_wanted_does_not_count(spark, tmp_path, inputs):
    write(inputs / "1.parquet", 1000, other=["x" * number for number in range(100)])
    damage(inputs / "1.parquet", 2)
    assert len(pairs_of(prepare(spark, tmp_path))) == 300


def test_columns_that_cannot_be_told_apart_are_named(spark, tmp_path, inputs):
    file = inputs / "1.parquet"
    columns = [[sentence(number) for number in range(10)]] * 3
    for names, problem in (
        (("sentence1", "sentence2", "sentence1"), "two columns `sentence1`"),
        (("sentence1", "Sentence1", "sentence2"), "columns `sentence1` and `Sentence1`, which are"),
    ):
        pq.write_table(pa.Table.from_arrays(list(map(pa.array, columns)), names=names), file)
        with pytest.raises(InputError, match=rf"1\.parquet cannot be read \({problem}") as raised:
            prepare(spark, tmp_path, inputs=[str(file)])
        assert "\n" not in str(raised.value)
    summary = prepare(spark, tmp_path, max_quarantined=0.4)
    assert len(pairs_of(summary)) == 200
    assert quarantine(summary)[0]["reason"].startswith(problem)
    evaluated = {"inputs": [str(inputs / "0.parquet")], "exclude": [str(file)]}
    with pytest.raises(InputError, match=rf"1\.parquet cannot be read \({problem}") as raised:
        prepare(spark, tmp_path, **evaluated)
    assert raised.value.key == "corpus.exclude"


DATES = pa.array([date(1066, 10, 14), date(1899, 12, 31)] * 50)
MOMENTS = pa.array([datetime(1492, 10, 12), datetime(1899, 12, 31)] * 50, pa.timestamp("us"))


@pytest.mark.parametrize(
    ("begins", "version"),
    [
        pytest.param(MOMENTS, "int96", id="moments as int96"),
        pytest.param(MOMENTS, "plain", id="moments", marks=pytest.mark.matrix),
        pytest.param(DATES, "plain", id="dates"),
    ],
)
def test_dates_before_1900_are_groups_as_any_others(spark, tmp_path, inputs, begins, version):
    table = pq.read_table(inputs / "1.parquet").append_column("day", begins)
    file = inputs / "1.parquet"
    pq.write_table(table, file, use_deprecated_int96_timestamps=version == "int96")
    summary = prepare(spark, tmp_path, inputs=[str(file)], group_column="day")
    assert len({row["group"] for row in pairs_of(summary)}) == 2
    assert len(pairs_of(summary)) == 100


def test_other_commands_name_what_is_damaged(spark, tmp_path, inputs):
    """`embed`, `mine` and evaluations, whose rows cannot be left out."""
    file = inputs / "1.parquet"
    write(file, 1000, score=[number % 5 for number in range(100)])
    kind = PairFiles("evaluation.similarity", ("sentence1", "sentence2", "score"))
    assert read_pairs(spark, str(file), kind).count() == 100
    damage(file, 1)
    with pytest.raises(InputError, match=r"^evaluation.similarity: .*1\.parquet .*\(damaged \("):
        read_pairs(spark, str(file), kind)
    with pytest.raises(OSError, match=r"1\.parquet is damaged \("):
        list(read_rows(file, 0, 100))
    columns = {"anchor_column": "sentence1", "positive_column": "sentence2"}
    config = parse({"mining": {"inputs": [str(inputs)], **columns}})
    told = r"^mining.inputs: .*1\.parquet cannot be read \(damaged \("
    with pytest.raises(InputError, match=told), damage_told(spark, config, mining_sources(config)):
        spark.read.parquet(str(inputs)).select("sentence2").collect()


@pytest.mark.parametrize(
    "names, problem",
    [
        (("anchor", "Anchor", "positive"), "columns `anchor` and `Anchor`, which are one column"),
        (("anchor", "positive", "anchor"), "two columns `anchor`"),
    ],
)
def test_tables_of_pairs_have_columns_of_different_names(tmp_path, names, problem):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_arrays([pa.array(["a"])] * 3, names=names), path)
    with pytest.raises(InputError, match=rf"^mining.inputs: .*a\.parquet has {problem}"):
        check_sources(parse({"mining": {"inputs": [str(path)]}}))
