"""The front matter of a card, of which the hub makes its page of a model, and its search."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pipelines.evaluation.sets import Role
from pipelines.model_card.facts import CardFacts
from pipelines.model_card.licenses import hub_license
from pipelines.report.comparison import Comparison
from pipelines.report.text import shown

if TYPE_CHECKING:
    from huggingface_hub import EvalResult, ModelCardData

LIBRARY = "sentence-transformers"
TASK = "sentence-similarity"
TAGS = (LIBRARY, TASK, "feature-extraction", "sentence-pipelines")
DATASET_TYPE = "unknown"
"""Of a set that is not named on the hub, as sentence-transformers writes it."""


class _Measure(NamedTuple):
    """A metric as sentence-transformers' cards have it.

    Attributes:
        task: What it is measured for.
        task_name: The same for people.
        metric: Its type.
    """

    task: str
    task_name: str
    metric: str


def _retrieval(metric: str) -> _Measure:
    return _Measure("information-retrieval", "Information Retrieval", metric)


def _similarity(metric: str) -> _Measure:
    return _Measure("semantic-similarity", "Semantic Similarity", metric)


def _classification(metric: str) -> _Measure:
    return _Measure("binary-classification", "Binary Classification", metric)


MEASURES: Mapping[str, _Measure] = {
    "nDCG@10": _retrieval("cosine_ndcg@10"),
    "MRR@10": _retrieval("cosine_mrr@10"),
    "Recall@1": _retrieval("cosine_recall@1"),
    "Recall@10": _retrieval("cosine_recall@10"),
    "Spearman": _similarity("spearman_cosine"),
    "Pearson": _similarity("pearson_cosine"),
    "Average precision": _classification("cosine_ap"),
    "F1": _classification("cosine_f1"),
    "Accuracy": _classification("cosine_accuracy"),
}
"""By the label of a figure; others, such as alignment, are in the text of the card only."""


def front_matter(facts: CardFacts) -> ModelCardData:
    """The front matter of a card."""
    from huggingface_hub import ModelCardData

    card = facts.config.card
    license_, license_name = hub_license(card.license)
    results = [_result(line, MEASURES[line.metric]) for line in _measured(facts)]
    optional: dict[str, Any] = {
        "license_name": license_name,
        "license_link": None if card.license_link is None else shown(card.license_link),
    }
    return ModelCardData(
        language=list(facts.languages) or None,
        license=license_,
        **{key: value for key, value in optional.items() if value is not None},
        library_name=LIBRARY,
        pipeline_tag=TASK,
        tags=[*TAGS, *_tags(facts)],
        base_model=facts.base.hub_name if facts.base else None,
        datasets=list(card.datasets) or None,
        metrics=list(dict.fromkeys(result.metric_type for result in results)) or None,
        model_name=shown(facts.name),
        eval_results=results or None,
    )


def _tags(facts: CardFacts) -> Iterator[str]:
    """What sentence-transformers adds about a training, and what the hub serves such models by."""
    if "examples" in facts.tokens:
        yield f"dataset_size:{facts.tokens['examples']}"
    corpus = facts.config.corpus
    objectives = [one.objective or facts.config.objective for one in corpus.sources]
    names = [one.name for one in objectives or [facts.config.objective]]
    yield from dict.fromkeys(f"loss:{name}" for name in names)


def _measured(facts: CardFacts) -> Iterator[Comparison]:
    """The figures of whole embeddings, by cosine, that the hub has a name for."""
    for line in facts.comparisons:
        if line.metric in MEASURES and line.after is not None and line.role != Role.VARIANT:
            yield line


def _result(line: Comparison, measure: _Measure) -> EvalResult:
    from huggingface_hub import EvalResult

    assert line.after is not None, "a figure of the model"
    return EvalResult(
        task_type=measure.task,
        task_name=measure.task_name,
        dataset_type=DATASET_TYPE,
        dataset_name=shown(line.evaluation),
        # The hub tells sets apart by type and configuration, not by name.
        dataset_config=shown(line.evaluation),
        metric_type=measure.metric,
        metric_name=line.metric,
        # Here figures are times 100, there shares of 1.
        metric_value=round(line.after / 100, 6),
    )
