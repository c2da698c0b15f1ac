"""`export` refuses what it cannot write before it reads a model, and keeps the user's files."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pipelines
from pipelines.catalog import EXPORTS
from pipelines.cli import main
from pipelines.errors import InputError
from pipelines.exports.base import cosines_of
from pipelines.exports.stage import check_export, export_model
from pipelines.exports.texts import LONGEST, SENTENCES, SHORT, check_texts
from pipelines.files.ownership import EXPORT, check_ours
from pipelines.files.prepared_folder import PreparedFolder


def test_an_unknown_format_is_refused_with_the_known_ones(capsys):
    assert main(["export", "--to", "coreml"]) == 2
    said = capsys.readouterr().err
    assert "error: --to: there is no export format `coreml`" in said
    assert ", ".join(EXPORTS) in said


def test_a_folder_of_the_user_is_refused(tmp_path, settings):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"^--output: .*mine holds other files \(notes.txt\)"):
        pipelines.export(settings, "onnx", output=str(tmp_path / "mine"))
    assert (tmp_path / "mine" / "notes.txt").read_text() == "mine"


def test_an_export_within_the_model_would_change_its_digest(tmp_path, settings):
    (tmp_path / "model").mkdir()
    for inside in ("model", "model/onnx"):
        with pytest.raises(InputError, match=r"^--output: .* lies in the model "):
            export_model(settings, tmp_path / "model", tmp_path / inside, "onnx")


def test_an_earlier_export_may_be_replaced_and_no_file_of_the_user(tmp_path):
    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx" / "model.onnx").write_bytes(b"graph")
    with pytest.raises(InputError, match="holds other files"):
        check_ours("--output", tmp_path, EXPORT, whole=True)
    (tmp_path / "export.json").write_text('{"model_digest": "0", "runtime": "onnx"}')
    check_ours("--output", tmp_path, EXPORT, whole=True)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"holds other files \(notes.txt\)"):
        check_ours("--output", tmp_path, EXPORT, whole=True)


def test_the_model_is_named_once_and_exists(tmp_path, settings):
    out = str(tmp_path / "out")
    with pytest.raises(InputError, match=r"^--model: --served names a model too"):
        pipelines.export(settings, "onnx", model="default", served=True, output=out)
    with pytest.raises(InputError, match=r"^run\.folder: there is no model in .*run/model"):
        pipelines.export(settings, "onnx", output=out)
    with pytest.raises(InputError, match=r"^--model: there is no model in .*elsewhere"):
        pipelines.export(settings, "onnx", model=str(tmp_path / "elsewhere"), output=out)
    with pytest.raises(InputError, match=r"^promotion\.target"):
        pipelines.export(settings, "onnx", served=True, output=out)


def test_a_missing_library_is_named_with_its_extra(tmp_path, monkeypatch):
    monkeypatch.setattr("pipelines.libraries.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"is not installed\. Run .*sentence-pipelines\[export\]"):
        check_export("onnx", tmp_path / "out", int8=False)


@pytest.mark.slow
def test_the_command_tells_the_comparison(model, tmp_path, capsys):
    out = tmp_path / "out"
    arguments = ["--to", "onnx", "--model", str(model("static")), "--output", str(out)]
    assert main(["export", *arguments, "--set", f"prepared.folder={tmp_path}/none"]) == 0
    said = capsys.readouterr().out
    assert "fp32    onnx/model.onnx" in said
    assert "of Python's documentation" in said
    assert f"export  {out}" in said
    assert json.loads((out / "export.json").read_text())["runtime"] == "onnx"
    # Again, over the earlier one.
    assert main(["export", *arguments, "--set", f"prepared.folder={tmp_path}/none"]) == 0


def test_texts_are_those_of_the_corpus_where_there_is_one(settings):
    texts = check_texts(settings, 64)
    assert texts.origin == "of Python's documentation"
    assert len(texts.given) == 256
    assert texts.every[: len(SENTENCES)] == SENTENCES
    pairs = PreparedFolder.of(settings).corpus.pairs
    pairs.mkdir(parents=True)
    columns = {"anchor": [f"question {n}" for n in range(9)], "positive": ["word " * 900] * 9}
    pq.write_table(pa.table(columns), pairs / "part-00000.parquet")
    texts = check_texts(settings, 10**9)
    assert texts.origin == "of the corpus"
    assert "question 3" in texts.given
    assert max(map(len, texts.given)) == SHORT
    assert max(map(len, texts.long)) == 6 * LONGEST


def test_cosines_tell_zeros_and_damage():
    rows = np.array([[1, 0], [0, 0], [0, 0], [np.nan, 1], [2, 0]], np.float32)
    other = np.array([[1, 0], [0, 0], [1, 0], [0, 1], [0, 5]], np.float32)
    assert cosines_of(rows, other).tolist() == [1, 1, -1, -1, 0]
