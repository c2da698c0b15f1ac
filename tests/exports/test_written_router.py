"""The Router of two models: one folder, whose sides have the vectors and prompts of either."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from routers import source_of, write_pair

import pipelines
from pipelines.cli import main
from pipelines.errors import InputError
from pipelines.exports.pairs import FoundTexts, check_found, found_texts
from pipelines.exports.router import check_pair, joined_prompts
from pipelines.exports.stage import export_model
from pipelines.exports.texts import CheckTexts
from pipelines.files.ownership import EXPORT, check_ours
from pipelines.models.folder import named_width, read_encoder, write_encoder
from pipelines.models.identity import documents_digest, model_digest
from pipelines.models.inference.embedder import load_embedder
from pipelines.models.spec import Dense
from pipelines.tokens.router import SIDES, route_modules
from pipelines.tokens.start import DOCUMENT, QUERY, Prompts

TEXTS = ["the model reads text", "", "return the value of a file", "日本語"]


@pytest.fixture(scope="module")
def pair(model, tmp_path_factory):
    return write_pair(tmp_path_factory.mktemp("pair"), model("static"))


@pytest.fixture
def few(monkeypatch):
    """Texts that take little time to compare."""
    texts = CheckTexts(("", "a b"), ("the model", "return text"), ("value " * 40,), "of the test")
    lengths = []

    def check_texts(config, length):
        lengths.append(length)
        return texts

    monkeypatch.setattr("pipelines.exports.stage.check_texts", check_texts)
    return lengths


@pytest.fixture
def lexical(pair, model, tmp_path):
    """A model of queries as wide as a model of documents with lexical features, and that one."""
    documents = model("mpnet+lsa")
    width = read_encoder(documents)[0].embedding_width
    spec, weights = read_encoder(pair.documents)
    layer = np.random.default_rng(1).standard_normal((width, spec.hidden)).astype(np.float32)
    wider = replace(spec, dense=(Dense(width=width, bias=False, activation="identity"),))
    weights = {**weights, "dense.0.weight": layer}
    write_encoder(tmp_path / "wider", wider, weights, pair.documents, "")
    return tmp_path / "wider", documents


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["static", "lexical"])
def test_the_library_sends_each_side_through_its_model(
    kind, pair, lexical, settings, tmp_path, few
):
    from sentence_transformers import SentenceTransformer

    queries, documents = lexical if kind == "lexical" else (pair.queries, pair.documents)
    out = tmp_path / "out"
    made = export_model(settings, queries, out, "router", documents=documents)
    assert [file.partition("_")[0] for file in made.files] == [QUERY, DOCUMENT]
    assert all(facts["least_cosine"] > 0.9999 for facts in made.files.values())
    assert "2 texts find themselves among the documents" in made.notes[0]
    by_library, embed = SentenceTransformer(str(out), device="cpu"), load_embedder(out)
    for found, ours, alone in (
        (by_library.encode_query(TEXTS), embed.queries, load_embedder(queries).queries),
        (by_library.encode_document(TEXTS), embed.documents, load_embedder(documents).documents),
        (by_library.encode(TEXTS), embed, load_embedder(documents)),
    ):
        np.testing.assert_allclose(ours(TEXTS), found, atol=1e-5)
        np.testing.assert_allclose(ours(TEXTS), alone(TEXTS), atol=1e-5)

    record = json.loads((out / "export.json").read_text())
    assert record["model_digest"] == model_digest(queries)
    assert record["documents"]["model_digest"] == model_digest(documents)
    assert documents_digest(out) == model_digest(documents)
    card = (out / "README.md").read_text()
    assert model_digest(documents) in card
    # Long texts are compared, too, where only documents are read to their end.
    long = read_encoder(documents)[0].max_length
    assert record["documents"]["max_length"] == long
    assert few == [max(record["max_length"], long)]
    named = "whole texts" if kind == "static" else f"{long} tokens"
    assert f"It reads whole texts of a query and {named} of a document, and gives " in card
    assert "model.encode_query" in card
    # It may replace itself.
    check_ours("--output", out, EXPORT, whole=True)
    # As the library saves it again, it is a Router still, whose documents nobody vouches for.
    by_library.save(str(tmp_path / "again"), create_model_card=False)
    again = load_embedder(tmp_path / "again")
    np.testing.assert_allclose(again.queries(TEXTS), embed.queries(TEXTS), atol=1e-5)
    np.testing.assert_allclose(again.documents(TEXTS), embed.documents(TEXTS), atol=1e-5)
    assert documents_digest(tmp_path / "again") is None


def test_modules_name_the_width_of_their_model(pair, lexical):
    wider, words = lexical
    widths = [
        (named_width(folder, route_modules(folder, side)), read_encoder(folder, side)[0])
        for folder in (pair.queries, pair.documents, pair.router, wider, words)
        for side in SIDES
    ]
    assert [named for named, _ in widths] == [spec.embedding_width for _, spec in widths]


def test_prompts_are_of_the_side(pair):
    queries = Prompts((("query", "ask: "), ("topic", "t: ")), "topic")
    documents = Prompts((("query", "q: "), ("passage", "say: "), ("other", "o: ")), "other")
    joined = joined_prompts(queries, documents)
    assert [joined.before(name) for name in (QUERY, DOCUMENT, "other", None)] == [
        *("ask: ", "say: ", "o: ", "o: ")
    ]
    # A default of that name would have become the other model's.
    joined = joined_prompts(queries, replace(documents, default="query"))
    assert (joined.before(), joined.before(QUERY)) == ("q: ", "ask: ")
    assert not any(joined_prompts(Prompts(), Prompts()).to_json()["prompts"].values())
    # A model without prompts of sides reads queries by its default.
    joined = joined_prompts(Prompts((("any", "a: "),), "any"), documents)
    assert (joined.before(QUERY), joined.before()) == ("a: ", "o: ")


def test_models_that_do_not_fit_are_refused(pair, lexical):
    queries, wider, words = map(source_of, (pair.queries, *lexical))
    with pytest.raises(InputError, match=r"^--documents: .* gives 30 numbers, and .* gives 16\. T"):
        check_pair(queries, wider)
    with pytest.raises(InputError, match=r"^--model: .* lexical \(LSA\) features, which no docu"):
        check_pair(words, wider)
    check_pair(wider, words)
    documents = source_of(pair.documents)
    unnamed = replace(documents.spec, prompts=Prompts((("any", "a: "),), "any"))
    with pytest.raises(InputError, match=r"^--documents: .* has only a default prompt, and .*Add"):
        check_pair(queries, replace(documents, spec=unnamed))


def test_unrelated_vectors_are_refused():
    vectors = np.random.default_rng(1).standard_normal((60, 24)).astype(np.float32)
    others = np.random.default_rng(2).standard_normal((60, 24)).astype(np.float32)
    near = found_texts(vectors + others / 8, vectors)
    assert (near.found, near.texts) == (60, 60)
    assert near.mean_cosine > 0.9
    check_found(near)
    far = found_texts(others, vectors)
    with pytest.raises(InputError, match=r"^--documents: .* of 60 texts find themselves .*unrel"):
        check_found(far)
    # Too few texts to tell, and equal texts, which find one another.
    check_found(FoundTexts(0, 49, 0.0))
    assert found_texts(np.ones_like(vectors), np.ones_like(vectors)).found == 60


def test_the_model_of_documents_is_named_or_the_teacher(pair, lexical, settings, tmp_path):
    asked = {"model": str(pair.queries), "output": str(tmp_path / "out")}
    with pytest.raises(InputError, match=r"^--documents: a Router holds a model for documents, to"):
        pipelines.export(settings, "router", **asked)
    with pytest.raises(InputError, match=r"^--documents: there is no model in .*elsewhere"):
        pipelines.export(settings, "router", documents=str(tmp_path / "elsewhere"), **asked)
    with pytest.raises(InputError, match=r"^--documents: `onnx` holds one model\. Leave it out"):
        pipelines.export(settings, "onnx", documents=str(pair.documents), **asked)
    with pytest.raises(InputError, match=r"^--int8: a Router holds the weights in fp32"):
        pipelines.export(settings, "router", int8=True, **asked)
    wide = settings.changed("teacher", model=str(lexical[0]))
    with pytest.raises(InputError, match=r"^teacher\.model: .* gives 30 numbers, and .*gives 16\."):
        pipelines.export(wide, "router", **asked)
    taught = settings.changed("teacher", model=str(tmp_path / "gone"))
    with pytest.raises(InputError, match=r"^teacher\.model: there is no model in .*gone"):
        pipelines.export(taught, "router", **asked)
    inside = {**asked, "output": str(pair.documents / "out")}
    with pytest.raises(InputError, match=r"^--output: .* lies in the model .*documents"):
        pipelines.export(settings, "router", documents=str(pair.documents), **inside)


def test_a_router_is_no_model_to_export(pair, settings, tmp_path):
    refused = r"is a Router of two encoders"
    with pytest.raises(InputError, match=refused):
        export_model(settings, pair.router, tmp_path / "out", "onnx")
    with pytest.raises(InputError, match=refused):
        export_model(settings, pair.queries, tmp_path / "out", "router", documents=pair.router)
    assert [*tmp_path.glob("out*")] == []


@pytest.mark.slow
@pytest.mark.usefixtures("few")
def test_the_command_takes_the_teacher(pair, tmp_path, capsys):
    out = tmp_path / "out"
    named = [f"teacher.model={pair.documents}", f"prepared.folder={tmp_path / 'none'}"]
    sets = [part for setting in named for part in ("--set", setting)]
    given = ["export", "--to", "router", "--model", str(pair.queries), "--output", str(out)]
    assert main([*given, *sets]) == 0
    said = capsys.readouterr().out
    assert "note    embedded as queries, 2 of 2 texts find themselves among the documents" in said
    assert f"export  {out}" in said
