"""Runs whose models have a card."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from logged_runs import write_run

from pipelines.files import storage
from pipelines.files.run_folder import RunFolder
from pipelines.models.bert.spec import BertSpec
from pipelines.models.folder import write_encoder
from pipelines.models.identity import model_digest
from pipelines.models.spec import EncoderSpec
from pipelines.models.weights import random_weights
from pipelines.settings.load import dump, parse
from pipelines.tokens.start import NO_PROMPTS, Prompts
from pipelines.tokens.vocabulary import learn_wordpieces, save_wordpieces, vocabulary_size

WORDS = "how do i reset my password the museum opens at nine choose a new on page of account"
TOKENS = {"examples": 960, "max_length": 32, "texts": 200, "cut": 3, "tokens": 900, "dropped": 100}
ENVIRONMENT = {"python": "3.11.7", "platform": "Linux|x", "cores": "2", "torch": "not installed"}


def small_spec(vocabulary: int, prompts: Prompts = NO_PROMPTS) -> BertSpec:
    return BertSpec(
        vocabulary=vocabulary,
        layers=1,
        hidden=16,
        heads=2,
        intermediate=32,
        positions=64,
        max_length=64,
        prompts=prompts,
    )


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    pieces = learn_wordpieces(dict.fromkeys(WORDS.split(), 3), 120)
    save_wordpieces(folder, pieces, 64, lowercase=True)
    return folder


@pytest.fixture
def made_run(tokenizer) -> Callable[..., tuple[RunFolder, EncoderSpec]]:
    """Makes the folder of a run with a model of random weights, which was measured."""

    def make(parent: Path, settings: dict, prompts: Prompts = NO_PROMPTS):
        parent.mkdir(parents=True, exist_ok=True)
        run = RunFolder(write_run(parent))
        spec = small_spec(vocabulary_size(tokenizer), prompts)
        write_encoder(run.model, spec, random_weights(spec, 5), tokenizer, "no card yet")
        storage.write_text(run.config, dump(parse(settings)))
        storage.write_json(run.environment, ENVIRONMENT)
        storage.write_json(run.tokens, TOKENS)
        funnel = parent / "prepared" / "corpus" / "funnel.json"
        storage.write_json(run.funnel, storage.read_json(funnel))
        known = storage.read_json(run.metrics)
        known["training"]["cpu_seconds"] = 7200.0
        known["model"] = {"step": 120, "early_end": 120}
        ends = {"low": -1.75, "high": -0.75, "detectable": 0.7}
        known["interval"] = {"retrieval": {"mrr@10": ends}}
        known["sets"] = {"retrieval": {"evaluation": "retrieval", "role": "held_out"}}
        known["measured"] = {"model_digest": model_digest(run.model)}
        storage.write_json(run.metrics, known)
        return run, spec

    return make
