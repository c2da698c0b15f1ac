"""What keeps texts out of the prepared folder: `corpus.redact` and `corpus.report_examples`."""

import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpus_runs import everything_in, pairs_of, prepared, sentence, write_parquet

from pipelines.corpus.cleaning.redaction import check_redactor, redact_batches
from pipelines.errors import InputError
from pipelines.settings.load import parse

REDACT = "redactors:without_numbers"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("no_such_module:function", "`no_such_module` cannot be imported"),
        ("redactors:no_such_function", "`redactors` has no function `no_such_function`"),
        ("redactors:re", "`redactors` has no function `re`"),
        ("redactors:that_forgets", r"returned NoneType for a text\. Let it return text"),
        ("redactors:that_fails", r"raised KeyError \(redactors.py, line \d+\)\. Correct"),
    ],
)
def test_what_cannot_redact_is_refused_by_the_driver(name, problem):
    with pytest.raises(InputError, match=problem) as raised:
        check_redactor(name)
    assert raised.value.key == "corpus.redact"
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["redactors", "redactors.function", "my module:f", ":f", "m:"])
def test_what_is_no_name_of_a_function_is_refused(name):
    with pytest.raises(InputError, match="is no module with a function") as raised:
        parse({"corpus": {"redact": name}})
    assert raised.value.key == "corpus.redact"


def test_an_error_on_an_executor_names_the_key_and_not_the_text():
    batch = pa.RecordBatch.from_pydict({"text": ["secret 12345"]})
    with pytest.raises(InputError, match=r"corpus.redact: .*KeyError") as raised:
        list(redact_batches([batch], "redactors:that_fails_on_numbers", ["text"]))
    assert "12345" not in str(raised.value)


def test_only_texts_are_redacted_and_nulls_stay():
    batch = pa.RecordBatch.from_pydict({"text": ["call 12345", None, ""], "file": ["12345"] * 3})
    (found,) = redact_batches([batch], REDACT, ["text"])
    assert found.to_pydict() == {"text": ["call (number)", None, ""], "file": ["12345"] * 3}
    (same,) = redact_batches([batch], None, ["text"])
    assert same is batch


def test_the_identity_changes_with_the_file(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    digests = set()
    for number in (1, 2):
        (tmp_path / f"changing_{number}.py").write_text(f"def f(text): return text + '{number}'\n")
        name, digest = check_redactor(f"changing_{number}:f")
        assert name == f"changing_{number}:f"
        digests.add(digest)
    assert len(digests) == 2


def test_no_text_is_shown_and_none_is_written_before_it_is_redacted(spark, tmp_path):
    rows = [{"text": f"{sentence(n)} Call 555{n:04} now."} for n in range(200)]
    lines = [json.dumps(row) for row in rows]
    lines[50:50] = ['{"text": "broken 5559999', '{"text": "Short"}', '{"text": "Few 5558888"}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    exclude = write_parquet(tmp_path / "e.parquet", sentence1=[rows[7]["text"]], sentence2=["-"])
    summary = prepared(
        spark,
        tmp_path,
        inputs=[str(tmp_path / "a.jsonl")],
        format="jsonl",
        pairs="single",
        near_duplicates=0,
        exclude=[exclude],
        redact=REDACT,
        report_examples=0,
        min_characters=15,
    )
    texts = {row["anchor"] for row in pairs_of(summary)}
    expected = {f"{sentence(n)} Call (number) now." for n in range(200) if n != 7}
    assert texts == expected
    told = everything_in(summary.folder)
    assert re.search("Call 555|5558888|5559999", told) is None
    statistics = json.loads((summary.folder / "statistics.json").read_text())
    assert statistics["examples"] == {}
    (place,) = pq.read_table(summary.folder / "quarantine.parquet").to_pylist()
    assert (place["excerpt"], place["reason"]) == (None, "not JSON")
    assert "Short" not in told
