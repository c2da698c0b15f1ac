"""What a person reads of a model."""

from __future__ import annotations

import re
import runpy
import shutil
from dataclasses import replace

import pytest
from huggingface_hub import ModelCard

from pipelines.files import storage
from pipelines.files.run_folder import RunFolder
from pipelines.files.versions import put_file
from pipelines.model_card.card import model_card, write_card
from pipelines.model_card.front_matter import read_facts, watt_hours
from pipelines.models.folder import (
    NO_LICENCE,
    Licence,
    read_licence,
    start_card,
    start_licence,
)
from pipelines.models.identity import CARD_FILE, model_digest
from pipelines.models.static.architecture import StaticSpec
from pipelines.models.weights import random_weights
from pipelines.runs.checkpoint import Checkpoint, save_checkpoint
from pipelines.settings.load import parse
from pipelines.tokens.start import Prompts

PYTHON = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SECTIONS = ["Model", "Usage", "Evaluation", "Limits", "Training", "Citation"]


def test_a_card_holds_what_is_known_of_the_run(made_run, tmp_path) -> None:
    tree = {
        "corpus": {"inputs": ["a|b.csv"], "format": "csv", "pairs": "columns"},
        "training": {"workers": 3, "granules_per_step": 3, "resume": True},
        "card": {"data_license": "CC BY 4.0", "data_description": "Questions\nof customers."},
    }
    run, spec = made_run(tmp_path, tree)
    card = write_card(run, parse(tree), spec).read_text()
    assert re.findall(r"^## (.*)$", card, re.MULTILINE) == SECTIONS
    verdict = (
        "**The model is worse on held-out pairs of the corpus: MRR@10 on retrieval fell by 1.25 "
        "(-1.75 to -0.75)."
    )
    assert card.index(verdict) < card.index("This is a [sentence-transformers]")
    for told in (
        "| MRR@10 | 40.00 | 38.75 | -1.25 | -1.75 to -0.75, worse |",
        "by paired bootstrap",
        "Held-out pairs are of the same kind",
        "Questions of customers.\n",
        "- **Texts:** csv of a&#124;b.csv; examples by the rule columns",
        "- **Examples for training:** 960",
        "texts of up to 32 tokens, 3 of 200 (1.5 %) truncated, 10.0 % of the tokens dropped",
        "- **Licence of the texts:** CC BY 4.0",
        "| rows | dropped: &lt;too short&gt; | 200 |",
        "- **in_batch_negatives**; `temperature` 0.05; ",
        "| `training.workers` | 3 |",
        "with 3 workers",
        "Linux&#124;x and 2 cores",
        "- **Training time:** 1h 02m",
        "- **CPU time of the workers' steps:** 2h 00m",
        "7.68 Wh = CPU time x 3.84 W",
        "`python 3.11.7`",
        "on the first 32 tokens of texts",
        "The languages of its training texts are not stated.",
        "The model is the state after step 120, after an early end (`training.patience`).",
        "- **Licence:** apache-2.0, that of the base model",
    ):
        assert told in card, told
    assert "training.resume" not in card, "it decides nothing of a model"
    assert "not installed" not in card


def test_no_path_of_a_machine_is_in_a_card(made_run, tmp_path) -> None:
    start = tmp_path / "home" / "base"
    start.mkdir(parents=True)
    (start / CARD_FILE).write_text("---\nlicense: mit\ntags: [a]\n---\n# A base\n")
    places = {
        "corpus": {"inputs": [f"{tmp_path}/lake/a.csv", "s3://bucket/lake/b.csv"]},
        "encoder": {"start": str(start)},
        "teacher": {"vectors": [f"{tmp_path}/vectors"]},
        "evaluation": {"retrieval_sets": [f"{tmp_path}/beir/scifact"]},
    }
    places["corpus"] |= {"format": "csv", "pairs": "columns", "exclude": [f"{tmp_path}/no.txt"]}
    run, spec = made_run(tmp_path, places)
    known = storage.read_json(run.metrics)
    # Where short names would be equal, a set goes by its path.
    for place in ("a", "b"):
        name = f"{tmp_path}/{place}/scifact"
        known["after"][name] = {"queries": 50, "ndcg@10": 60.0}
        known["before"][name] = {"queries": 50, "ndcg@10": 60.0}
        known["sets"][name] = {"evaluation": "retrieval", "role": "judged"}
    storage.write_json(run.metrics, known)
    card = write_card(run, parse(places)).read_text()
    assert str(tmp_path) not in card
    assert "bucket" not in card
    for told in (
        "finetuned from base with",
        "csv of a.csv, b.csv;",
        "| `evaluation.retrieval_sets` | scifact |",
        "| a/scifact |",
        "- **Licence:** mit, that of the base model",
        f"- **Digest:** `{model_digest(run.model)}`",
        "- vLLM, Text Embeddings Inference and infinity,",
    ):
        assert told in card, told
    data = ModelCard(card).data
    assert (data.license, data.to_dict()["model_digest"]) == ("mit", model_digest(run.model))
    # A file beside the base model is on its page.
    (start / CARD_FILE).write_text("---\nlicense: other\nlicense_link: LICENSE\n---\n")
    assert "license_link" not in write_card(run, parse(places)).read_text()
    named = parse(places | {"card": {"start_name": "me/mine"}})
    link = "license_link: https://huggingface.co/me/mine/blob/main/LICENSE\n"
    assert link in write_card(run, named).read_text()
    (start / CARD_FILE).write_text("---\nlicense: mit\n---\n")
    # The run keeps it, though the start is gone.
    storage.write_text(run.start / CARD_FILE, start_card(spec, read_licence(start)))
    shutil.rmtree(start)
    assert "license: mit" in write_card(run, parse(places)).read_text()
    own = parse(places | {"card": {"license": "apache-2.0"}})
    card = write_card(run, own).read_text()
    assert "license: apache-2.0" in card
    assert "- **Licence:** apache-2.0\n" in card


def test_a_lexical_model_names_its_readers(made_run, tmp_path) -> None:
    run, spec = made_run(tmp_path, {})
    card = model_card(read_facts(run, parse({}), replace(spec, lsa=8)))
    assert "- sentence-transformers, release 5.4 or later\n" in card
    assert "- vLLM" not in card


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("---\nlicense: other\nlicense_name: gemma-2\n---\n", ("other", "gemma-2", None)),
        ("---\r\nlicense: mit\r\nlicense_link: LICENSE\r\n---\r\n#", ("mit", None, "LICENSE")),
        ("---\nlicense: [mit, bsd]\n---\n", NO_LICENCE),
        ("---\nlicense: {\n---\n", NO_LICENCE),
        ("# A card\n\n---\nlicense: mit\n---\n", NO_LICENCE),
        ("---\n- license\n---\n", NO_LICENCE),
        (None, NO_LICENCE),
    ],
)
def test_a_licence_is_read_where_a_card_names_it(tmp_path, text, found) -> None:
    if text is not None:
        (tmp_path / CARD_FILE).write_bytes(text.encode())
    assert read_licence(tmp_path) == found
    assert start_card(StaticSpec(vocabulary=9, hidden=8), Licence("mit")).startswith("---\nlicense")


def test_the_packaged_start_has_the_licence_of_its_model() -> None:
    # The package itself is under MIT, which is of its Python.
    assert start_licence(parse({})).license == "apache-2.0"


def test_what_is_not_known_is_left_out(made_run, tmp_path) -> None:
    tree = {"corpus": {"languages": ["en", "de"]}}
    run, spec = made_run(tmp_path, tree)
    known = storage.read_json(run.metrics)
    del known["training"]["cpu_seconds"]
    # Measured of another model, whose place this one has taken.
    known["measured"]["model_digest"] = "0" * 64
    storage.write_json(run.metrics, known)
    for path in (run.funnel, run.tokens, run.environment):
        path.unlink()
    card = model_card(read_facts(run, parse(tree), spec))
    for told in (
        "Energy",
        "MRR@10",
        "worse on",
        "model-index",
        "| rows |",
        "Versions",
        "tokens dropped",
    ):
        assert told not in card
    assert "This model has no evaluation yet." in card
    assert "- **Languages:** en, de" in card


def test_a_static_encoder_from_random_weights(made_run, tmp_path) -> None:
    tree = {"encoder": {"start": "random", "kind": "static"}}
    run, _ = made_run(tmp_path, tree)
    card = model_card(read_facts(run, parse(tree), StaticSpec(vocabulary=9, hidden=8)))
    assert "trained from random weights" in card
    assert "- **Licence:** not stated" in card
    assert "base_model:" not in card
    assert "- **Maximum sequence length:** all tokens" in card
    assert "It reads texts of any length" in card


def test_a_card_with_figures_leaves_the_model_what_it_is(made_run, tmp_path) -> None:
    run, _ = made_run(tmp_path, {})
    known = model_digest(run.model)
    # The shape is read from the folder.
    write_card(run, parse({}))
    assert "-1.75 to -0.75" in (run.model / CARD_FILE).read_text()
    assert model_digest(run.model) == known


def test_energy_is_the_product_that_the_card_tells() -> None:
    assert watt_hours(3600.0) == 3.84


@pytest.mark.slow
def test_the_snippets_run_as_they_stand(made_run, tmp_path, monkeypatch, capsys) -> None:
    """In the folder of the model, whose name needs care; no snippet asks the hub."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    prompts = Prompts((("query", 'ask "it": '), ("topic", "a\nb|c: ")), "topic")
    pieces, paths = [], []
    for name, tree, own in (
        ("prompts", {"objective": {"dimensions": [16, 8]}}, prompts),
        ('a "quoted" | `path` \\ é', {}, Prompts()),
    ):
        run, spec = made_run(tmp_path / name, tree, own)
        for piece in PYTHON.findall(write_card(run, parse(tree), spec).read_text()):
            paths.append(run.model / f"piece_{len(pieces)}.py")
            paths[-1].write_text(piece)
            pieces.append(piece)
    assert len(pieces) == 3
    capsys.readouterr()
    for path in paths:
        # The dot is the folder of the model.
        monkeypatch.chdir(path.parent)
        runpy.run_path(str(path))
    told = capsys.readouterr().out
    assert told.count("tensor(") == 2
    # What the comments say of the shapes is so.
    shapes = re.findall(r"^# (\(.*\))$", "\n".join(pieces), re.MULTILINE)
    assert shapes == re.findall(r"^\(.*\)$", told, re.MULTILINE) == ["(1, 8)", "(4, 16)"]


def test_a_card_in_a_store(made_run, tmp_path, s3_bucket) -> None:
    """There a folder is a version of it; the shape is read from the checkpoint."""
    here, spec = made_run(tmp_path, {})
    run = RunFolder(s3_bucket.root / "run")
    put_file(here.metrics, run.metrics)
    with storage.built_folder(run.path / "model") as folder:
        shutil.copytree(here.model, folder, dirs_exist_ok=True)
    save_checkpoint(run.path, Checkpoint(120, spec, random_weights(spec, 5), {}), 1)
    path = write_card(run, parse({}))
    assert path == run.model / CARD_FILE
    card = path.read_text()
    assert "-1.75 to -0.75" in card
    assert 'SentenceTransformer(".")' in card
    assert model_digest(run.model) == model_digest(here.model)
