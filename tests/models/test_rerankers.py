"""Cross-encoders: their folders, and the scores of sentence-transformers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder as TheirCrossEncoder
from tiny_rerankers import LINES, write_reranker

from pipelines.errors import InputError
from pipelines.models.rerankers.folder import read_reranker
from pipelines.models.rerankers.torch import CrossEncoder

KEY = "scoring.model"


@pytest.fixture(scope="module", params=["bert", "roberta", "distilbert", "electra", "mpnet"])
def folder(request, tmp_path_factory) -> Path:
    return write_reranker(tmp_path_factory.mktemp("rerankers") / request.param, request.param)


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> Path:
    return write_reranker(tmp_path_factory.mktemp("reranker") / "bert", "bert")


def pairs() -> tuple[list[str], list[str]]:
    queries = [LINES[number % len(LINES)] for number in range(40)]
    documents = [" ".join(LINES[: 1 + number]) for number in range(38)]
    return queries, [*documents, "", "x"]


def test_scores_are_those_of_sentence_transformers(folder):
    queries, documents = pairs()
    theirs = TheirCrossEncoder(str(folder), device="cpu")
    wanted = theirs.predict(list(zip(queries, documents, strict=True)))
    found = CrossEncoder(read_reranker(folder, KEY), precision="fp32")(queries, documents)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)
    assert wanted.std() > 1e-3, "scores that do not differ prove nothing"
    logits = CrossEncoder(read_reranker(folder, KEY), precision="fp32", logits=True)
    wanted = theirs.predict(
        list(zip(queries, documents, strict=True)), activation_fn=torch.nn.Identity()
    )
    np.testing.assert_allclose(logits(queries, documents), wanted, rtol=0, atol=1e-5)


def test_scores_do_not_depend_on_the_other_pairs(bert):
    queries, documents = pairs()
    score = CrossEncoder(read_reranker(bert, KEY), precision="fp32")
    together = score(queries, documents)
    alone = [score([query], [text])[0] for query, text in zip(queries, documents, strict=True)]
    np.testing.assert_allclose(together, alone, rtol=0, atol=1e-5)
    assert score([], []).shape == (0,)


@pytest.mark.parametrize(
    ("fields", "is_probability"),
    [
        ({}, True),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, False),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, False),
        (
            {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}},
            True,
        ),
    ],
)
def test_the_activation_is_that_of_the_folder(bert, tmp_path, fields, is_probability):
    folder = changed(bert, tmp_path, **fields)
    reranker = read_reranker(folder, KEY)
    assert reranker.is_probability == is_probability
    queries, documents = pairs()
    found = CrossEncoder(reranker, precision="fp32")(queries, documents)
    wanted = TheirCrossEncoder(str(folder), device="cpu").predict(
        list(zip(queries, documents, strict=True))
    )
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)


def changed(folder: Path, to: Path, **fields: object) -> Path:
    """Copies a folder with other fields in its config.json; None leaves one out."""
    copy = shutil.copytree(folder, to / "changed")
    config = json.loads((copy / "config.json").read_text()) | fields
    kept = {name: value for name, value in config.items() if value is not None}
    (copy / "config.json").write_text(json.dumps(kept))
    return copy


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"architectures": ["BertModel"]}, "holds BertModel, which gives no score for a pair"),
        ({"architectures": None}, "holds another model, which gives no score"),
        ({"id2label": {"0": "a", "1": "b"}}, "gives 2 scores for a pair. Name one with one label"),
        (
            {"sentence_transformers": {"activation_fn": "mine.Steps"}},
            "has the activation mine.Steps. Name one with Sigmoid or Identity",
        ),
    ],
)
def test_a_folder_of_another_model_is_refused(bert, tmp_path, fields, problem):
    with pytest.raises(InputError) as refused:
        read_reranker(changed(bert, tmp_path, **fields), KEY)
    assert refused.value.key == KEY
    assert problem in str(refused.value)


def test_a_damaged_folder_is_refused(bert, tmp_path):
    with pytest.raises(InputError, match=r"there is no folder .*missing\. Name a folder that"):
        read_reranker(tmp_path / "missing", KEY)
    copy = changed(bert, tmp_path)
    (copy / "config.json").write_text("{")
    with pytest.raises(InputError, match=r"has no readable config\.json"):
        read_reranker(copy, KEY)
    (copy / "config.json").write_text("[]")
    with pytest.raises(InputError, match=r"config\.json of .* is no object"):
        read_reranker(copy, KEY)
    other = changed(bert, tmp_path / "other")
    (other / "modules.json").write_text('[{"idx": 0}, {"idx": 1}]')
    with pytest.raises(InputError, match=r"has modules behind its transformer"):
        read_reranker(other, KEY)
