"""Routers: queries go through one encoder, all other texts through another."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from routers import write_pair
from tiny_checkpoints import edit

import pipelines
from pipelines.errors import InputError
from pipelines.files.locations import location
from pipelines.models.folder import check_start, encoder_kinds, read_encoder, read_model, read_specs
from pipelines.models.identity import (
    EXPORT_FILE,
    documents_digest,
    has_embedded,
    model_digest,
)
from pipelines.models.inference.embedder import load_embedder
from pipelines.settings.load import parse
from pipelines.tokens.router import ROUTER_FILE, route_modules
from pipelines.tokens.start import read_prompts
from pipelines.vectors.embedding import embedding_options
from pipelines.vectors.teacher import check_teacher

TEXTS = ["return the value of the model", "", "a longer text about the files of a program"]


@pytest.fixture(scope="module")
def pair(small_folder, tmp_path_factory):
    return write_pair(tmp_path_factory.mktemp("pair"), small_folder)


@pytest.fixture
def router(pair, tmp_path):
    return shutil.copytree(pair.router, tmp_path / "router")


def test_each_side_has_the_encoder_and_the_prompt_of_its_model(pair):
    embed = load_embedder(pair.router)
    queries, documents = load_embedder(pair.queries), load_embedder(pair.documents)
    np.testing.assert_allclose(embed.queries(TEXTS), queries.queries(TEXTS), atol=1e-6)
    np.testing.assert_allclose(embed.documents(TEXTS), documents.documents(TEXTS), atol=1e-6)
    # Any other text goes the way of documents.
    np.testing.assert_allclose(embed(TEXTS), documents(TEXTS), atol=1e-6)
    np.testing.assert_allclose(embed(TEXTS, "query"), queries(TEXTS, "query"), atol=1e-6)
    assert np.abs(embed.queries(TEXTS) - embed.documents(TEXTS)).max() > 1e-3
    assert embed.hidden == 64
    assert embed.prompts.asking(None) == "query"


def test_a_side_is_loaded_for_its_first_text(pair, router):
    shutil.rmtree(router / "document_0_Transformer")
    embed = load_embedder(router)
    np.testing.assert_allclose(
        embed.queries(TEXTS), load_embedder(pair.queries).queries(TEXTS), atol=1e-6
    )
    with pytest.raises(InputError, match=r"router"):
        embed.documents(TEXTS)


def test_both_encoders_are_read(pair):
    specs = read_specs(pair.router)
    assert [len(spec.dense) for spec in specs] == [1, 0]
    assert encoder_kinds(pair.router) == ("bert", "bert")
    assert encoder_kinds(pair.queries) == ("bert",)
    assert embedding_options(pair.router).kinds == ("bert", "bert")


def test_who_needs_one_encoder_refuses_two(pair, router):
    refused = r"is a Router of two encoders\. Name one of the two models it was made of"
    for read in (read_encoder, read_model):
        with pytest.raises(InputError, match=refused):
            read(pair.router)
    start = {"start": str(pair.router)}
    with pytest.raises(InputError, match=rf"^encoder\.start: .*{refused}"):
        check_start(parse({"encoder": start, "tokens": {"vocabulary": "start"}}))
    with pytest.raises(InputError, match=r"^teacher\.model: .* is a Router of two encoders"):
        check_teacher(parse({"teacher": {"model": str(pair.router)}}))
    with pytest.raises(InputError, match=r"^embedding\.precision: .* is a Router of two encoders"):
        embedding_options(pair.router, precision="int8")


@pytest.mark.parametrize(
    ("structure", "said"),
    [
        ({"query": ["query_0_Transformer"], "image": []}, r"has the routes query, image"),
        ({"query": [], "document": []}, r"has the modules none for a query"),
        ({"query": ["query_1_Pooling"], "document": []}, r"has the modules Pooling for a query"),
        ({"query": ["elsewhere"], "document": []}, r"has no type of elsewhere"),
    ],
)
def test_other_routes_are_refused(router, structure, said):
    edit(router / ROUTER_FILE, structure=structure)
    with pytest.raises(InputError, match=said):
        route_modules(router, "query")


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"default_route": "query"}, r"embeds any text by its route `query`\. Set default_route"),
        ({"route_mappings": {"('query', None)": "document"}}, r"sets `route_mappings` to"),
        ({"temperature": 2}, r"sets the unknown key `temperature`"),
    ],
)
def test_other_ways_to_a_route_are_refused(router, parameters, said):
    edit(router / ROUTER_FILE, parameters=parameters)
    with pytest.raises(InputError, match=said):
        load_embedder(router).documents(TEXTS)


def test_the_first_route_is_not_the_default_unawares(router):
    edit(router / ROUTER_FILE, parameters={"default_route": None, "allow_empty_key": True})
    with pytest.raises(InputError, match="embeds any text by its route `query`"):
        route_modules(router, "document")
    edit(router / ROUTER_FILE, parameters={"default_route": None, "allow_empty_key": False})
    assert route_modules(router, "document")


def test_modules_of_other_code_or_outside_are_refused(router):
    known = json.loads((router / ROUTER_FILE).read_text())
    name = "query_0_Transformer"
    edit(router / ROUTER_FILE, types={**known["types"], name: "mine.Transformer"})
    with pytest.raises(InputError, match="whose code is never run"):
        route_modules(router, "query")
    outside = {"query": ["../x"], "document": ["../x"]}
    edit(router / ROUTER_FILE, types={"../x": known["types"][name]}, structure=outside)
    with pytest.raises(InputError, match="outside of its folder"):
        route_modules(router, "query")
    sparse = {name: "sentence_transformers.sparse_encoder.modules.SpladePooling"}
    edit(router / ROUTER_FILE, types=known["types"] | sparse, structure=known["structure"])
    with pytest.raises(InputError, match="has the modules SpladePooling"):
        read_encoder(router, "query")


def test_the_damaged_file_is_named(router):
    (router / "modules.json").write_text("{")
    with pytest.raises(
        InputError, match=r"^encoder\.start: .*/modules\.json is damaged \(.*\)\. Re"
    ):
        read_prompts(router)


def test_widths_that_differ_are_refused(pair, router):
    known = json.loads((router / ROUTER_FILE).read_text())
    narrow = {"in_features": 64, "out_features": 8, "bias": False}
    (router / "query_1_Dense").mkdir()
    edit(router / "query_1_Dense" / "config.json", **narrow)
    spec, weights = read_encoder(pair.queries)
    assert spec.embedding_width == 64
    from pipelines.models.weights import save_weights

    layer = {"linear.weight": weights["dense.0.weight"][:8]}
    save_weights(router / "query_1_Dense" / "model.safetensors", layer)
    route = ["query_0_Transformer", "query_1_Pooling", "query_1_Dense"]
    edit(
        router / ROUTER_FILE,
        types={**known["types"], "query_1_Dense": "sentence_transformers.models.Dense"},
        structure={**known["structure"], "query": route},
    )
    refused = r"the encoders of the Router .*router give 8 and 64 numbers\. Name a Router whose"
    with pytest.raises(InputError, match=refused):
        read_specs(router)
    # Also where a job would load one of them alone.
    for prompt in ("query", "document"):
        with pytest.raises(InputError, match=rf"^embedding\.model: {refused}"):
            embedding_options(router, prompt_name=prompt)
    embed = load_embedder(router)
    embed.queries(TEXTS)
    with pytest.raises(InputError, match=refused):
        embed.documents(TEXTS)
    # Before a cluster is asked for anything.
    router.rename(router.with_name("model"))
    run = {"folder": str(router.parent)}
    with pytest.raises(InputError, match=r"^run\.folder: the encoders of the Router .* 8 and 64"):
        pipelines.evaluate(parse({"run": run, "spark": {"master": "spark://nowhere:7077"}}))


def test_widths_are_compared_without_weights(router):
    (router / "document_0_Transformer" / "model.safetensors").write_bytes(b"")
    assert embedding_options(router, prompt_name="query").hidden == 64
    pooling = router / "document_1_Pooling" / "config.json"
    known = json.loads(pooling.read_text())
    pooling.write_text(json.dumps({key: known[key] for key in known if "dimension" not in key}))
    with pytest.raises(InputError, match=r"^embedding\.model: .* has a damaged model\.safetensors"):
        embedding_options(router, prompt_name="query")


def test_documents_have_the_digest_of_their_model_until_a_file_differs(pair, router):
    of_documents, of_router = model_digest(pair.documents), model_digest(router)
    assert documents_digest(router) == of_documents
    assert embedding_options(router).made_by == of_documents
    assert embedding_options(router, prompt_name="query").made_by == of_router
    assert has_embedded(of_documents, location(router), "document")
    assert not has_embedded(of_documents, location(router), "query")
    assert not has_embedded(model_digest(pair.queries), location(router), "document")
    for side in ("document", "query"):
        assert has_embedded(of_router, location(router), side)
    # Another model of queries changes nothing for documents.
    edit(router / "query_0_Transformer" / "config.json", note=1)
    assert documents_digest(router) == of_documents
    edit(router / "document_0_Transformer" / "config.json", note=1)
    assert documents_digest(router) is None
    assert embedding_options(pair.documents).made_by == of_documents


def test_a_record_of_that_name_in_a_plain_model_is_the_users(pair, tmp_path):
    plain = shutil.copytree(pair.documents, tmp_path / "plain")
    (plain / EXPORT_FILE).write_text("[]")
    assert documents_digest(plain) is None
    assert embedding_options(plain).made_by == model_digest(plain)


@pytest.fixture(scope="module")
def by_library(pair, tmp_path_factory):
    """A Router as sentence-transformers saves it: normalised in its routes, and again behind."""
    library = pytest.importorskip("sentence_transformers")
    from sentence_transformers.sentence_transformer.modules import Normalize, Router

    models = [
        library.SentenceTransformer(str(folder), device="cpu")
        for folder in (pair.queries, pair.documents)
    ]
    routes = [[*model.children(), Normalize()] for model in models]
    prompts = {"query": "ask: ", "document": "say: "}
    model = library.SentenceTransformer(
        modules=[Router.for_query_document(*routes), Normalize()], device="cpu", prompts=prompts
    )
    folder = tmp_path_factory.mktemp("library") / "router"
    model.save(str(folder), create_model_card=False)
    return folder, model


@pytest.mark.slow
def test_a_router_of_the_library_is_read(by_library):
    folder, model = by_library
    assert read_prompts(folder).routed
    embed = load_embedder(folder)
    for found, expected in (
        (embed.queries(TEXTS), model.encode_query(TEXTS)),
        (embed.documents(TEXTS), model.encode_document(TEXTS)),
        (embed(TEXTS), model.encode(TEXTS)),
    ):
        np.testing.assert_allclose(found, expected, atol=1e-5)
    # No export has vouched for the model of its documents.
    assert documents_digest(folder) is None
    assert embedding_options(folder).made_by == model_digest(folder)
