"""Recipes: settings that fit together, for one kind of corpus.

Keys of a file or of the command line take precedence over those of the recipe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pipelines.catalog import RECIPES

Tree = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Recipe:
    """Settings for one kind of corpus.

    Attributes:
        purpose: What a user has and wants, in a sentence.
        evidence: The measurements behind it, Markdown.
        settings: By section and key, as in YAML.
        derived: Further settings that follow from those of the user and of the recipe.
    """

    purpose: str
    evidence: str
    settings: Tree
    derived: Callable[[Tree], Tree] = lambda given: {}


PAIRS = Recipe(
    "Pairs of questions and answers, or of any two related texts.",
    "On three collections, four directions were the best objective or close to it "
    "([objectives](../measurements/objectives.md)). Half of the start was measured on the "
    "documents of six collections ([documents](../measurements/documents.md)), not on pairs of "
    "questions and answers.",
    {
        "objective": {
            "name": "in_batch_negatives",
            "directions": ["query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc"],
        },
        "training": {"dropout": 0.0, "start_share": 0.5},
    },
)
DOMAIN = Recipe(
    "Documents alone, with or without titles, for search by questions.",
    "Training changes the encoder where most documents have titles, and otherwise keeps it. Every "
    "reader of sentence-transformers folders serves the model. On six English collections with "
    "judged questions, nDCG@10 rises by 1.2 points on average over the start, and by 4.1 with "
    "hybrid search, vectors and BM25 together. It falls on none beyond its interval. "
    "`encoder.lsa.dimensions: 128` adds "
    "[lexical (LSA) features](../concepts/training.md#lexical-features-lsa): 3.4 points without "
    "hybrid search, 4.8 with it, but only sentence-transformers serves such a model. "
    "[Documents](../measurements/documents.md) measures all of them.",
    {
        "corpus": {"pairs": "document"},
        "tokens": {"max_length": 128},
        "encoder": {"max_length": "corpus"},
        "objective": PAIRS.settings["objective"],
        "training": {
            "epochs": 24,
            "max_steps": 24,
            "learning_rate": 3e-5,
            "dropout": 0.0,
            "start_share": "titles",
        },
    },
)
STATIC = Recipe(
    "Raw text alone, for a static encoder on CPUs that learns from the start.",
    "Include the texts that you will search in the training texts: without them, the encoder "
    "loses much of the start "
    "([smaller encoders](../measurements/objectives.md#smaller-encoders)).",
    {
        "corpus": {"pairs": "single", "max_repeated": 0.8, "evaluation_share": 0.0},
        "tokens": {"max_length": 256},
        "teacher": {"model": "start"},
        "encoder": {"keep_layers": 0},
        "objective": {"name": "embedding_distillation"},
        "training": {
            "granules_per_step": 4,
            "learning_rate": 0.01,
            "epochs": 5,
            "dropout": 0.0,
        },
        "evaluation": {"retrieval": False, "geometry": False},
    },
)


ASKS = "questions"
"""The recipe whose `run` asks a language model first."""
_NEGATIVES = 4


def _of_questions(given: Tree) -> Tree:
    """Return the sections that read what the section before them writes."""

    def value(section: str, key: str, default: Any) -> Any:
        found = given.get(section)
        known = found.get(key) if isinstance(found, Mapping) else None
        return default if known is None else known

    is_scored = bool(value("scoring", "model", None) or value("scoring", "encoder", None))
    kept = value("scoring", "keep_negatives", None) if is_scored else None
    count = str(value("mining", "negatives", _NEGATIVES) if kept is None else kept)
    # Anything but a number is refused with its key, once the settings are read.
    names = [f"negative_{number}" for number in range(int(count) if count.isdecimal() else 1)]
    start = value("encoder", "start", "default")
    corpus = {
        "format": "parquet",
        "inputs": [
            value("scoring", "output", "scored")
            if is_scored
            else value("mining", "output", "mined")
        ],
        "pairs": "triplets",
        "triplet_columns": ["anchor", "positive", *names],
        "group_column": "group",
        "min_characters": 1,
    }
    if is_scored:
        columns = [f"{name}_score" for name in ("positive", *names)]
        corpus |= {"score_columns": columns}
    loss = "listwise_kl" if is_scored else "in_batch_negatives"
    reranker, encoder = (bool(value("scoring", name, None)) for name in ("model", "encoder"))
    scorers = {(True, True): "fusion", (True, False): "cross_encoder"}
    scorer = value("scoring", "scorer", scorers.get((reranker, encoder), "bi_encoder"))
    return {
        "questions": {"round_trip_model": start},
        "mining": {
            "inputs": [value("questions", "output", "questions")],
            "group_column": "group",
            "model": start,
        },
        "scoring": {"scorer": scorer, "logits": scorer == "cross_encoder"} if is_scored else {},
        "corpus": corpus,
        "objective": {"name": loss},
    }


QUESTIONS = Recipe(
    "Documents alone, and a language model that writes questions about them.",
    "`run` asks (`questions`), mines hard negatives, scores them where `scoring.model` or "
    "`scoring.encoder` names a teacher, and trains. Where the evaluation shows no gain, the model "
    "keeps the start's weights. [Questions](../guides/questions.md) says what it needs. The "
    "sections `mining`, `scoring` and `corpus` follow from those before them.",
    {
        "mining": {"negatives": _NEGATIVES},
        # Half of the recipe's texts are questions; the documents decide.
        "encoder": {"max_length": "corpus"},
        "training": {"learning_rate": 2e-5, "epochs": 1, "dropout": 0.0, "start_share": 0.5},
        "run": {"keep_start": True},
    },
    _of_questions,
)


def with_recipe(given: Any) -> Any:
    """Return settings completed by their recipe; without one they stay as they are.

    Each loss has keys of its own, so a recipe's objective is taken as a whole or, if the settings
    name another loss, not at all.
    """
    name = given.get("recipe") if isinstance(given, Mapping) else None
    if not isinstance(name, str) or name not in RECIPES:
        return given
    recipe: Recipe = RECIPES.load(name)
    completed = _completed(given, recipe.settings)
    return _completed(completed, recipe.derived(completed))


def _completed(given: Mapping[str, Any], settings: Tree) -> dict[str, Any]:
    """Return settings with those of a recipe below them."""
    completed = dict(given)
    for section, keys in settings.items():
        asked = given.get(section, {})
        if isinstance(asked, Mapping) and asked.get("name", keys.get("name")) == keys.get("name"):
            completed[section] = {**keys, **asked}
    return completed
