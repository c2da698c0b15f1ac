"""What is found out about a corpus from some of its texts."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tiny_checkpoints import FAMILIES, write_plain

from pipelines.files.prepared_folder import PreparedFolder
from pipelines.tokens.stage import corpus_length, sampled_pairs
from pipelines.tokens.vocabulary import copy_tokenizer


@pytest.fixture
def prepared(tmp_path):
    start = write_plain(tmp_path / "start", FAMILIES["bert"])
    prepared = PreparedFolder(tmp_path / "prepared")
    prepared.corpus.pairs.mkdir(parents=True)
    prepared.tokens.tokenizer.mkdir(parents=True)
    copy_tokenizer(start, prepared.tokens.tokenizer, 32)
    return prepared


def write(prepared, name, rows):
    schema = pa.schema([("id", pa.int64()), ("anchor", pa.string()), ("positive", pa.string())])
    table = pa.Table.from_pylist(rows, schema)
    pq.write_table(table, prepared.corpus.pairs / f"{name}.parquet")


@pytest.mark.parametrize("most", [1, 4, 10, 12, 50])
def test_every_file_gives_its_share(prepared, most):
    for name, rows in (("a", 8), ("b", 3), ("c", 1)):
        write(prepared, name, [{"id": n, "anchor": f"{name}{n}"} for n in range(rows)])
    batches = list(sampled_pairs(prepared, most))
    assert {*batches[0].schema.names} == {"anchor", "positive"}
    found = [text for batch in batches for text in batch["anchor"].to_pylist()]
    assert min(most, 12) <= len(found) <= min(most + 3, 12)
    for name in "abc":
        own = [text for text in found if text[0] == name]
        assert own == [f"{name}{n}" for n in range(len(own))]
        assert own


@pytest.mark.parametrize(
    ("long", "short", "expected"), [(3, 2, 64), (2, 2, 8), (0, 4, 8), (4, 0, 64)]
)
def test_a_model_reads_more_where_most_documents_are_longer(prepared, long, short, expected):
    texts = ["one two three " * 9] * long + ["one two"] * short
    # What stands for a question is no document.
    rows = [{"anchor": "one two three " * 9, "positive": text} for text in texts]
    write(prepared, "pairs", rows)
    assert corpus_length(prepared, 8, 64) == expected
    assert corpus_length(prepared, 8, 4) == 8


def test_texts_alone_are_documents(prepared):
    write(prepared, "texts", [{"anchor": "one two three " * 9}])
    assert corpus_length(prepared, 8, 64) == 64
