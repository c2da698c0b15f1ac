"""What the corpus stage refuses, and in which words."""

import gzip
import json

import pyarrow as pa
import pytest
from corpus_runs import prepared, sentence, write_parquet

from pipelines.errors import InputError

LINES = [json.dumps({"text": sentence(number)}) for number in range(50)]
BROKEN = "\n".join([*LINES, '{"text": "cut of', "[1]", *LINES])
HEADERS = {"a.csv": "text,other\na,b\n", "b.csv": "title,other\na,b\n"}
CUT_OFF = gzip.compress("\n".join(map(sentence, range(20))).encode())[:-12]
ONE = {"a.parquet": {"text": [sentence(1)]}}
UNREADABLE = "corpus.max_quarantined"


def written(folder, files):
    """Writes files of text, of bytes, and of Parquet where columns are given."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, dict):
            write_parquet(path, **content)
        else:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())


# Readers' own tests hold what is refused of a format before the stage reads anything.
@pytest.mark.parametrize(
    ("files", "corpus", "key", "problem"),
    [
        ({"a.jsonl": BROKEN}, {}, UNREADABLE, "2 of 102 rows .*a.jsonl at byte .*not JSON"),
        ({"a.json": '[\n{"text": "a"}\n]'}, {}, UNREADABLE, "2 of 3 rows .*a.json at byte 0"),
        ({"a.jsonl": '{"text": ["a"]}'}, {}, UNREADABLE, "1 of 1 rows .*`text` holds a list"),
        (HEADERS, {}, UNREADABLE, "1 of 2 rows .*b.csv .*no column `text`"),
        ({"a.parquet": "just text"}, {}, "corpus.inputs", "a.parquet cannot be read .not Parquet"),
        ({"a.txt.gz": CUT_OFF}, {}, UNREADABLE, "a.txt.gz at byte .*ends too early"),
        (ONE, {"pairs": "columns", "score_range": [5, 0]}, "corpus.score_range", "is empty"),
        (
            ONE | {"exclude/b.parquet": {"title": ["a"]}},
            {"inputs": ["a.parquet"], "exclude": ["exclude/b.parquet"]},
            "corpus.exclude_columns",
            "no column .*its columns: title",
        ),
        (ONE, {"exclude": ["none.parquet"]}, "corpus.exclude", "there is no file"),
        (
            {"a.parquet": {"text": ["ab", "cd", None]}},
            {},
            "corpus.inputs",
            "no pair is left of 3 rows, and the main reason is `too short`",
        ),
        (
            {"a.parquet": {"text": pa.array([], pa.string())}},
            {},
            "corpus.inputs",
            "no pair is left of 0 rows",
        ),
    ],
)
def test_what_the_user_can_mend_is_said_in_one_line(spark, tmp_path, files, corpus, key, problem):
    inputs = tmp_path / "inputs"
    written(inputs, files)
    ending = next(iter(files)).split(".")[1]
    kind = {"json": "jsonl", "txt": "text"}.get(ending, ending)
    given = {"inputs": ["."], "pairs": "single", "evaluation_share": 0, **corpus}
    for name in {"inputs", "exclude"} & given.keys():
        given[name] = [str(inputs / path) for path in given[name]]
    kept = tmp_path / "prepared" / "corpus" / "funnel.json"
    kept.parent.mkdir(parents=True)
    kept.write_text("what was there before")
    with pytest.raises(InputError, match=problem) as raised:
        prepared(spark, tmp_path, format=kind, **given)
    assert raised.value.key == key
    assert "\n" not in str(raised.value)
    # What was cut is kept for a run with other settings, whole or not at all.
    units = tmp_path / "prepared" / "units"
    left = [path for path in (tmp_path / "prepared").rglob("*") if path.is_file()]
    assert [path for path in left if not path.is_relative_to(units)] == [kept]
    assert not [path for path in units.glob("*") if not path.name.isdigit()]
    assert kept.read_text() == "what was there before"
