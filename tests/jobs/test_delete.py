"""Rows of deleted keys are nowhere in what is prepared, and do not come back."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpus_factory import small_config
from corpus_runs import everything_in, sentence
from embedding_fixtures import small_model
from hypothesis import given
from hypothesis import strategies as st

import pipelines
from pipelines.corpus import kept_units as cutting
from pipelines.corpus.unit_rows import (
    DELETED,
    add_deleted_keys,
    deleted_keys,
    hash_of,
    hashed_keys,
    without_deleted,
)
from pipelines.errors import InputError
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.jobs.delete import Deletion, command, delete, read_keys
from pipelines.settings import TeacherSettings
from pipelines.settings.load import parse
from pipelines.vectors.row_deletion import discard_unfinished
from pipelines.vectors.store import open_table

__all__ = ["small_model"]

KEYS = st.sampled_from(["a", "b", "c", "12", "", None])


@given(st.lists(KEYS), st.sets(st.sampled_from(["a", "12", "z"])))
def test_rows_are_parted_by_their_keys(keys, deleted):
    rows = len(keys)
    texts = {name: ["secret"] * rows for name in ("title", "text_0", "text_1", "group")}
    lists = pa.array([["secret", "secret"]] * rows, pa.list_(pa.string()))
    nothing = pa.nulls(rows, pa.string())
    hashes = hashed_keys(pa.array(keys, pa.string()))
    batch = pa.RecordBatch.from_pydict(
        {"key": hashes, "reason": nothing, "score": nothing}
        | {"negatives": lists, "candidate_scores": lists}
        | {name: pa.array(values, pa.string()) for name, values in texts.items()}
    )
    others, gone = without_deleted(batch, [hash_of(key) for key in deleted])
    assert others.num_rows == sum(key not in deleted for key in keys)
    assert (0 if gone is None else gone.num_rows) == sum(key in deleted for key in keys)
    if gone is not None:
        assert set(gone["reason"].to_pylist()) == {DELETED}
        assert "secret" not in str(gone.to_pylist())


def test_keys_of_a_command_line(tmp_path):
    file = tmp_path / "keys.txt"
    file.write_text("one\n\ntwo\n")
    assert read_keys(["zero"], str(file)) == ["zero", "one", "two"]
    for given_keys, path, key in (([], None, "--key"), (["a"], str(tmp_path / "no"), "--keys")):
        with pytest.raises(InputError) as raised:
            read_keys(given_keys, path)
        assert raised.value.key == key


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"]
)
def test_keys_of_a_file_are_what_its_lines_show(tmp_path, encoding):
    file = tmp_path / "keys.txt"
    file.write_bytes("4711 \r\n\t4712\n\n 4713\u00a0\r\ufeffmüller x\n \n".encode(encoding))
    assert read_keys([" a "], str(file)) == [" a ", "4711", "4712", "4713", "müller x"]


@pytest.mark.parametrize(
    "data, told",
    [
        (b"", "holds no key"),
        (b"\xef\xbb\xbf \r\n", "holds no key"),
        (b"4711\nm\xfcller\n", "is not UTF-8 at byte 6"),
        (b"m\xfcller\nh\xf6fer\ngr\xfcn\n", "is not UTF-8 at byte 1"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\r", "holds no text"),
    ],
)
def test_files_without_keys_are_refused(tmp_path, data, told):
    file = tmp_path / "keys.txt"
    file.write_bytes(data)
    with pytest.raises(InputError, match=told) as raised:
        read_keys([], str(file))
    assert raised.value.key == "--keys"


def test_keys_without_rows_are_named(capsys, monkeypatch):
    found = Deletion(50, 3, None, tuple(f"user {number}\x1b" for number in range(30)), ())
    monkeypatch.setattr("pipelines.jobs.delete.delete", lambda config, keys: found)
    results = command(parse({}), ["user 1"], None)
    told = capsys.readouterr().out
    assert "for 30 keys in corpus.inputs: user 0\\x1b, user 1" in told
    assert "user 19\\x1b and 10 more. Compare" in told and "user 20" not in told
    assert results["unmatched"] == 30


def test_what_has_no_keys_or_is_not_prepared_is_refused(tmp_path):
    corpus = {"inputs": [str(tmp_path / "inputs")], "format": "jsonl"}
    config = {"corpus": corpus, "prepared": {"folder": str(tmp_path / "prepared")}}
    with pytest.raises(InputError, match="`delete` needs it") as raised:
        delete(parse(config), ["a"])
    assert raised.value.key == "corpus.key_column"
    corpus["key_column"] = "user"
    with pytest.raises(InputError, match="there is no corpus") as raised:
        delete(parse(config), ["a"])
    assert raised.value.key == "prepared.folder"
    assert not (tmp_path / "prepared").exists()


def test_deleted_rows_do_not_come_back_with_another_column(tmp_path):
    folder = PreparedFolder(tmp_path)
    assert deleted_keys(folder, None) == ()
    assert add_deleted_keys(folder, "user", ["b", "a"]) == 2
    assert add_deleted_keys(folder, "user", ["a", "c"]) == 3
    assert set(deleted_keys(folder, "user")) == {hash_of(key) for key in "abc"}
    for column in (None, "other"):
        with pytest.raises(InputError, match="would come back") as raised:
            deleted_keys(folder, column)
        assert raised.value.key == "corpus.key_column"


def write_rows(path, numbers, owner):
    rows = [
        {
            "user": owner(number),
            "text": f"{sentence(number)}\n\n{sentence(number + 5000)} It says {number} times so.",
        }
        for number in numbers
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")


def with_vectors(config, model, folder):
    """The same with a table of vectors of four users, which is made."""
    rows = {"user": [f"user {number}" for number in range(6, 10)], "text": ["a", "b", "c", "d"]}
    pq.write_table(pa.table(rows), folder / "users.parquet")
    inputs, output = (str(folder / "users.parquet"),), str(folder / "vectors")
    config = config.changed("embedding", inputs=inputs, output=output, model=str(model))
    assert pipelines.embed(config).rows == 4
    return config


def without_users(config, folder):
    pq.write_table(pa.table({"text": ["e"]}), folder / "nobody.parquet")
    return config.changed("embedding", inputs=(str(folder / "nobody.parquet"),), overwrite=True)


def test_rows_of_a_key_leave_the_prepared_folder(spark, small_model, tmp_path, monkeypatch):
    inputs = tmp_path / "inputs"
    inputs.mkdir()
    write_rows(inputs / "0.jsonl", range(300), lambda number: f"user {number % 50}")
    write_rows(inputs / "1.jsonl", range(300, 600), lambda number: "other")
    with (inputs / "0.jsonl").open("a") as file:
        file.write('{"user": "user 7", "text": "A broken secret')
    settings = {
        "inputs": [str(inputs)],
        "format": "jsonl",
        "pairs": "adjacent",
        "key_column": "user",
        "evaluation_share": 0.2,
        "near_duplicates": 0,
    }
    base = small_config(tmp_path / "prepared")
    corpus = type(base.corpus).model_validate(settings)
    teacher = TeacherSettings(model=str(small_model))
    config = base.model_copy(update={"corpus": corpus, "teacher": teacher})
    pipelines.prepare(config)
    told = everything_in(tmp_path / "prepared")
    assert "It says 7 times so." in told and "A broken secret" not in told
    read, read_files = [], cutting.read_files
    monkeypatch.setattr(
        cutting, "read_files", lambda *args: read.append(args[3]) or read_files(*args)
    )
    lanes = tmp_path / "prepared" / "lanes" / "manifest.json"
    before = lanes.read_text()
    config = with_vectors(config, small_model, tmp_path)
    deletion = delete(config, ["user 7", "user 8", "nobody"])
    assert (deletion.keys, deletion.rows, deletion.vectors) == (3, 12, 2)
    assert deletion.unmatched == ("nobody",)
    left = lanes.read_text()
    assert left != before
    table = open_table(tmp_path / "vectors")
    assert pq.read_table(table.files[0].path)["user"].to_pylist() == ["user 6", "user 9"]
    with pytest.raises(InputError, match=r"^embedding.inputs: rows were deleted .* by `user`"):
        pipelines.embed(without_users(config, tmp_path))
    assert any("earlier models in run folders" in line for line in deletion.not_covered)
    assert [[file.name for file in files] for files in read] == [["0.jsonl"]]
    told = everything_in(tmp_path / "prepared")
    for number in (7, 57, 258):
        assert f"It says {number} times so." not in told
        assert sentence(number) not in told
    assert str(hash_of("user 7")) not in told.replace(
        (tmp_path / "prepared" / "deleted_keys.json").read_text(), ""
    )
    assert "It says 9 times so." in told and "It says 507 times so." in told
    # The inputs still hold them: deleted once more, they are known, and nothing is left to be done.
    assert delete(config, ["user 8"]).unmatched == ()
    assert [[file.name for file in files] for files in read] == [["0.jsonl"]]
    kept = json.loads((tmp_path / "prepared" / "stages.json").read_text())
    assert all(stage["kept"] for stage in kept)
    assert lanes.read_text() == left
    # A table that no job has finished holds rows of keys, too.
    (tmp_path / "vectors").rename(tmp_path / ".vectors.next")
    (tmp_path / ".vectors.next" / "_manifest.json").unlink()
    assert not discard_unfinished(config, "no such column")
    assert discard_unfinished(config, "user")
    assert not (tmp_path / ".vectors.next").exists()
