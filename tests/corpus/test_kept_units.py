"""Only what is new of the inputs is read, and the corpus is that of all of them."""

import json
import os
import re
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpus_runs import (
    dropped,
    evaluation_of,
    pairs_of,
    prepared,
    sentence,
    sides_of,
    write_parquet,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.corpus import kept_units as cutting
from pipelines.corpus.kept_units import (
    Generation,
    KeptSource,
    Source,
    claims,
    find_generations,
    find_sources,
    naming_for,
    unchanged,
    write_generation,
)
from pipelines.corpus.readers.formats import Columns, Wanted
from pipelines.corpus.readers.ranges import read_splits
from pipelines.corpus.stage import prepare_corpus
from pipelines.corpus.texts import unit_batches
from pipelines.corpus.unit_rows import SCHEMA
from pipelines.errors import InputError
from pipelines.settings import CorpusSettings
from pipelines.settings.corpus import SourceSettings
from pipelines.settings.load import parse


def write_texts(folder, *names):
    for name in names:
        (folder / name).write_text(f"Text of {name} which is long enough to stay here.\n\nHead\n")
    return [folder / name for name in names]


def test_a_source_is_a_file_or_one_of_many_bundles(tmp_path, monkeypatch):
    files = write_texts(tmp_path, *(f"{number}.txt" for number in range(40)))
    apart = find_sources(files, naming_for(files, 1))
    assert [source.files for source in apart.values()] == [(file,) for file in files]
    monkeypatch.setattr(cutting, "MOST_SOURCES", 7)
    naming = naming_for(files, 1)
    bundles = find_sources(files, naming)
    assert len(bundles) <= 7
    assert sorted(file for source in bundles.values() for file in source.files) == sorted(files)
    for name, source in bundles.items():
        assert {naming.name_of(str(file)) for file in source.files} == {name}
    # One more file changes the bundle that it is in, and no other.
    more = find_sources([*files, *write_texts(tmp_path, "new.txt")], naming)
    assert sum(more[name].stamp != source.stamp for name, source in bundles.items()) == 1


def test_what_changes_while_it_is_read_is_read_again(tmp_path):
    files = write_texts(tmp_path, "a.txt", "b.txt", "c.txt")
    found = find_sources(files, naming_for(files, 1))
    os.utime(files[1], ns=(1, 1))
    files[2].unlink()
    assert list(unchanged(found).values()) == [found[str(files[0])].stamp, None, None]
    assert find_sources(files, naming_for(files, 1))[str(files[2])].stamp is None


NAMES = st.sampled_from("abcde")
STAMPS = st.sampled_from(["1", "2", "3"])


@given(
    st.lists(st.tuples(st.sampled_from("xy"), st.dictionaries(NAMES, STAMPS | st.none()))),
    st.dictionaries(NAMES, STAMPS),
)
def test_each_source_is_claimed_once_where_it_is_as_it_was(generations, now):
    held = [
        Generation(None, None, key, {name: KeptSource(stamp, 0) for name, stamp in own.items()})
        for key, own in generations
    ]
    found = claims(held, "x", {name: Source((), stamp) for name, stamp in now.items()})
    assert [claim.generation for claim in found] == held
    claimed = [(name, one.stamp) for claim in found for name, one in claim.live.items()]
    usable = {
        (name, stamp) for key, own in generations if key == "x" for name, stamp in own.items()
    }
    assert Counter(claimed) == Counter(set(now.items()) & usable)


def cut(files, naming):
    """The units of files as executors make them, in one task."""
    splits = [(str(file), 0, None) for file in files]
    raw = read_splits(splits, wanted=Wanted("text", Columns(("text",))))
    found = unit_batches(raw, CorpusSettings(format="text", pairs="adjacent"), naming)
    return pa.Table.from_batches(found, SCHEMA)


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(6)), st.integers(1, 5))
def test_units_of_files_do_not_depend_on_those_they_are_read_with(order, part):
    with TemporaryDirectory() as name:
        files = write_texts(Path(name), *(f"{number}.txt" for number in range(6)))
        naming = naming_for(files, 1)
        together = cut(files, naming)
        shuffled = [files[number] for number in order]
        apart = pa.concat_tables([cut(shuffled[:part], naming), cut(shuffled[part:], naming)])
        key = [(one.name, "ascending") for one in SCHEMA if not pa.types.is_list(one.type)]
        assert apart.sort_by(key).equals(together.sort_by(key))
        counts = Counter(together["source"].to_pylist())
        assert len(set(counts.values())) == 1 and len(counts) == 6


def test_settings_of_one_file_are_told_from_those_of_the_whole():
    base = CorpusSettings(inputs=("a",), format="text")
    key = cutting.settings_key(base)
    same = {"inputs": ("b",), "near_duplicates": 0.5, "evaluation_pairs": 7, "exclude": ("e",)}
    assert cutting.settings_key(base.model_copy(update=same)) == key
    for changed in ({"min_characters": 20}, {"report_examples": 0}, {"csv_multiline": False}):
        assert cutting.settings_key(base.model_copy(update=changed)) != key
    assert cutting.settings_of_corpus(base) == cutting.settings_of_corpus(
        base.model_copy(update={"prompts": {"anchor": "query: "}})
    )
    assert {*CorpusSettings.model_fields, *SourceSettings.model_fields} >= {*cutting.COUNTS_FROM}


def test_a_generation_is_read_as_it_was_written(tmp_path):
    totals = cutting._TOTALS.of(
        cut(write_texts(tmp_path, "a.txt"), naming_for([], 3)).to_batches()[0]
    )
    (tmp_path / "3").mkdir()
    kept = {"a": KeptSource("1", totals["source"][0].as_py()), "b": KeptSource(None, -5)}
    write_generation(tmp_path / "3", "key", kept, totals)
    (found,) = find_generations(tmp_path)
    assert (found.number, found.settings, found.sources) == (3, "key", kept)
    assert found.totals_of([kept["a"].id]).equals(totals)
    assert found.totals_of([-5]).num_rows == 0


def write_documents(folder, number):
    """Documents, some of which repeat sentences of the file before."""
    lines = []
    for one in range(12):
        begins = [40 * number + 3 * one]
        if number and one < 3:
            begins.append(begins[0] - 40)
        text = "\n\n".join(" ".join(map(sentence, range(n, n + 3))) for n in begins)
        lines.append(json.dumps({"text": text, "doc": f"{number}-{one}"}))
    (folder / f"{number}.jsonl").write_text("\n".join(lines) + "\n")


def training_of(summary):
    """What a corpus says of its pairs for training."""
    statistics = json.loads((summary.folder / "statistics.json").read_text())
    return [pairs_of(summary), summary.funnel, statistics]


def corpus_of(summary):
    """All that a corpus says, but for its times."""
    return [*training_of(summary), evaluation_of(summary)]


def asked_in(summary):
    queries, _ = evaluation_of(summary)
    return {(row["query_id"], row["document_id"]): row["text"] for row in queries}


def from_scratch(spark, folder, asked, corpus):
    """A preparation that knows nothing of what came before but what was asked."""
    before = folder / "prepared" / "corpus" / "evaluation"
    before.mkdir(parents=True)
    queries, documents = (list(column) for column in zip(*asked, strict=True))
    table = pa.table({"query_id": queries, "document_id": documents})
    pq.write_table(table, before / "queries.parquet")
    return prepared(spark, folder, **corpus)


def generations_of(folder):
    found = find_generations(folder / "prepared" / "units")
    return {one.number: len(one.sources) for one in found}


@pytest.mark.parametrize("near", [pytest.param(0, marks=pytest.mark.matrix), 0.95])
def test_a_corpus_that_grows_is_that_of_all_its_files(spark, tmp_path, monkeypatch, near):
    inputs = tmp_path / "inputs"
    inputs.mkdir()
    corpus = {
        "inputs": [str(inputs)],
        "format": "jsonl",
        "group_column": "doc",
        "pairs": "adjacent",
        "near_duplicates": near,
        "evaluation_share": 0.3,
        "evaluation_pairs": 9,
        "max_quarantined": 1,
    }
    for number in (4, 1, 0):
        write_documents(inputs, number)
    with (inputs / "1.jsonl").open("a") as file:
        file.write('{"text": "cut of')
    asked = asked_in(prepared(spark, tmp_path, **corpus))
    assert generations_of(tmp_path) == {1: 3}
    # Two files are new, one is gone and another has changed: nothing of what they were is left.
    for number in (3, 2, 1):
        write_documents(inputs, number)
    (inputs / "4.jsonl").unlink()
    read, read_files = [], cutting.read_files

    def noted(*args):
        read.append([file.name for file in args[3]])
        return read_files(*args)

    monkeypatch.setattr(cutting, "read_files", noted)
    grown = prepared(spark, tmp_path, **corpus)
    assert read == [["1.jsonl", "2.jsonl", "3.jsonl"]]
    assert sorted(generations_of(tmp_path).values()) == [1, 3]
    assert corpus_of(grown) == corpus_of(from_scratch(spark, tmp_path / "all", asked, corpus))
    assert dropped(grown)["duplicate"]
    # By hash alone others would take their places. Sentences that come again may be duplicates.
    numbers = {pair: int(re.findall(r"\d+", text)[0]) for pair, text in asked.items()}
    stay = {pair for pair, number in numbers.items() if number < 160 and number % 40 >= 9}
    assert stay and stay <= asked_in(grown).keys()
    assert len(asked_in(grown)) == 9
    held = "\n".join(
        str(pq.read_table(path)["anchor"].to_pylist())
        for path in (tmp_path / "prepared" / "units").glob("*/rows/*.parquet")
    )
    assert sentence(170) not in held and sentence(45) in held


def test_parquet_files_are_kept_one_by_one(spark, tmp_path, monkeypatch):
    def write(name, numbers):
        path = tmp_path / "in puts" / name
        write_parquet(
            path, **{"one": list(map(sentence, numbers)), "two": ["It is always so."] * 40}
        )

    (tmp_path / "in puts").mkdir()
    corpus = {
        # Spark tells of the files by the path without the step up.
        "inputs": [str(tmp_path / "in puts" / ".." / "in puts")],
        "format": "parquet",
        "pairs": "columns",
        "pair_columns": ["one", "two"],
        "evaluation_share": 0,
        "max_quarantined": 1,
    }
    write("a b[1]+%20.parquet", range(40))
    (tmp_path / "in puts" / "broken.parquet").write_bytes(b"PAR1")
    prepared(spark, tmp_path, **corpus)
    write("c.parquet", range(20, 60))
    read, read_files = [], cutting.read_files
    monkeypatch.setattr(
        cutting, "read_files", lambda *args: read.append(args[3]) or read_files(*args)
    )
    grown = prepared(spark, tmp_path, **corpus)
    assert [[file.name for file in files] for files in read] == [["c.parquet"]]
    assert {one for one, _ in sides_of(grown)} == {sentence(number) for number in range(60)}
    assert (grown.quarantined, dropped(grown)) == (1, {"repeated pair": 20})
    assert generations_of(tmp_path) == {1: 2, 2: 1}
    # Generations that are merged are the same corpus.
    write("d.parquet", range(50, 90))
    monkeypatch.setattr(cutting, "MOST_GENERATIONS", 1)
    merged = training_of(prepared(spark, tmp_path, **corpus))
    assert [file.name for file in read[-1]] == ["d.parquet"]
    assert generations_of(tmp_path) == {1: 2, 4: 2}
    # Units that are not wanted are removed, and all files are read.
    unkept = {"folder": str(tmp_path / "prepared"), "keep_units": False}
    found = prepare_corpus(spark, parse({"corpus": corpus, "prepared": unkept}))
    assert training_of(found) == merged
    assert not (tmp_path / "prepared" / "units").exists()


def test_inputs_of_which_none_can_be_read_are_refused_whatever_is_kept(tmp_path):
    (tmp_path / "a.csv").write_text("other\nvalue\n")
    with pytest.raises(InputError, match="no column"):
        prepared(None, tmp_path, inputs=[str(tmp_path / "a.csv")], format="csv", pairs="single")
