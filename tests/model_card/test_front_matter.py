"""What the hub reads of a card."""

from __future__ import annotations

from dataclasses import replace

import pytest
from huggingface_hub import ModelCard
from hypothesis import HealthCheck, given, settings
from markup_texts import TEXTS

from pipelines.catalog import EVALUATIONS
from pipelines.files import storage
from pipelines.model_card.card import model_card
from pipelines.model_card.front_matter import (
    MEASURES,
    PACKAGED,
    CardFacts,
    base_model,
    front_matter,
    hub_license,
    read_facts,
)
from pipelines.models.bert.spec import BertSpec
from pipelines.report.comparison import Comparison, shown
from pipelines.settings.load import load, parse
from pipelines.tokens.start import Prompts

SPEC = BertSpec(vocabulary=9, layers=1, hidden=8, heads=2, intermediate=8, positions=16)


def test_it_is_read_by_the_hubs_own_parser_as_it_was_meant(made_run, tmp_path) -> None:
    tree = {
        "card": {
            "name": "Support: FAQ",
            "license": "Apache-2.0",
            "languages": ["en"],
            "datasets": ["BeIR/scifact"],
        }
    }
    run, spec = made_run(tmp_path, tree)
    facts = read_facts(run, parse(tree), spec)
    data = ModelCard(model_card(facts)).data
    assert data.to_dict() == front_matter(facts).to_dict()
    assert (data.license, data.language, data.datasets) == ("apache-2.0", ["en"], ["BeIR/scifact"])
    assert data.base_model == PACKAGED
    assert data.library_name == "sentence-transformers"
    assert data.pipeline_tag == "sentence-similarity"
    tags = {"sentence-transformers", "dataset_size:960", "loss:in_batch_negatives"}
    assert tags <= set(data.tags)
    (result,) = data.eval_results
    assert (result.task_type, result.dataset_name) == ("information-retrieval", "retrieval")
    assert (result.metric_type, result.metric_value) == ("cosine_mrr@10", 0.3875)
    assert data.model_name == "Support: FAQ"


def test_each_set_keeps_its_figures(made_run, tmp_path) -> None:
    run, spec = made_run(tmp_path, {})
    known = storage.read_json(run.metrics)
    for name, role, value in (
        ("retrieval", "held_out", 90.0),
        ("scifact", "judged", 60.0),
        ("scifact+bm25", "variant", 70.0),
    ):
        known["after"][name] = {"queries": 50, "ndcg@10": value}
        known["sets"][name] = {"evaluation": "retrieval", "role": role}
    storage.write_json(run.metrics, known)
    data = ModelCard(model_card(read_facts(run, parse({}), spec))).data
    found = {(one.dataset_name, one.metric_type): one.metric_value for one in data.eval_results}
    assert found == {("retrieval", "cosine_ndcg@10"): 0.9, ("scifact", "cosine_ndcg@10"): 0.6}


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(TEXTS, TEXTS, TEXTS.filter(str.strip))
def test_no_text_breaks_it(path, text, name) -> None:
    given_settings = parse({"card": {"license": text, "license_link": path, "name": name}})
    card = given_settings.card.model_copy(update={"data_license": text, "data_description": path})
    corpus = given_settings.corpus.model_copy(update={"inputs": (path, text)})
    facts = CardFacts(
        name=name,
        config=given_settings.model_copy(update={"card": card, "corpus": corpus}),
        spec=replace(SPEC, prompts=Prompts((("query", path), (name, text or "x")), name)),
        comparisons=[Comparison(text or "set", path, "MRR@10", 1.0, 2.0)],
        environment={"python": text},
        verdict=text,
    )
    written = model_card(facts)
    written.encode()
    read = ModelCard(written)
    assert read.data.to_dict() == front_matter(facts).to_dict()
    assert read.data.model_name == shown(name)
    assert read.data.license_link == shown(path)
    assert read.text.lstrip().startswith("# ")


@pytest.mark.parametrize(
    ("given_license", "told"),
    [
        (None, (None, None)),
        ("MIT", ("mit", None)),
        ("CC BY-SA 4.0", ("cc-by-sa-4.0", None)),
        ("Our own, 2026", ("other", "our-own-2026")),
        ("…", ("other", "other")),
    ],
)
def test_a_licence_is_one_of_the_hubs_or_named(given_license, told) -> None:
    assert hub_license(given_license) == told


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["encoder.start=random"], None),
        ([], (PACKAGED, PACKAGED, None)),
        (["encoder.start=/models/mine"], ("mine", None, None)),
        (["encoder.start=/models/mine", "card.start_name=me/mine"], ("me/mine", "me/mine", None)),
        (
            [f"encoder.start=/hub/models--BAAI--bge-small-en/snapshots/{'5c38ec7' * 5}"],
            ("BAAI/bge-small-en", "BAAI/bge-small-en", "5c38ec7" * 5),
        ),
    ],
)
def test_a_start_is_named_where_its_name_is_known(overrides, told) -> None:
    found = base_model(load(None, overrides))
    assert told == (found and (found.shown, found.hub_name, found.revision))


def test_every_figure_that_a_better_model_has_higher_has_a_name_on_the_hub() -> None:
    labels = {
        figure.label
        for evaluation in map(EVALUATIONS.load, EVALUATIONS)
        for figure in evaluation.figures
        if figure.better == "higher"
    }
    assert labels == set(MEASURES)
