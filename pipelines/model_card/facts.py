"""What a card is made of: the files of a run, read once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pipelines.files import storage
from pipelines.files.run_folder import RunFolder
from pipelines.model_card.base_model import BaseModel, base_model
from pipelines.models.digest import digest_model
from pipelines.models.spec import EncoderSpec
from pipelines.report.comparison import Comparison, compare
from pipelines.report.page_parts import read_if_there
from pipelines.report.verdict import verdict
from pipelines.settings import Config
from pipelines.settings import load as configuration
from pipelines.settings.redaction import without_secrets


@dataclass(frozen=True, kw_only=True)
class CardFacts:
    """All that a card says.

    Attributes:
        name: Of the model.
        config: The settings of the run, without secrets, with the section `card` of now.
        spec: Its shape.
        base: What its training began with; None where that was random.
        place: The model folder on this machine; None where it is in a store.
        model: Which state of the training it is, as ``metrics.json`` has it.
        training: Figures of the training, as there.
        comparisons: What was measured, before and after; empty where nothing was.
        tokens: The manifest of the tokens that it was trained on.
        funnel: The lines of ``funnel.json``.
        environment: Versions and machine of the driver.
        verdict: What the figures come to, in a sentence; empty where nobody has said.
    """

    name: str
    config: Config
    spec: EncoderSpec
    base: BaseModel | None = None
    place: Path | None = None
    model: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    comparisons: Sequence[Comparison] = ()
    tokens: Mapping[str, Any] = field(default_factory=dict)
    funnel: Sequence[Mapping[str, Any]] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    verdict: str = ""

    @property
    def languages(self) -> tuple[str, ...]:
        """Of the texts, as far as anything says so."""
        corpus = self.config.corpus
        filtered = [one.languages for one in corpus.sources or (corpus,)]
        known = [name for names in filtered for name in names] if all(filtered) else []
        return self.config.card.languages or tuple(dict.fromkeys(known))


def read_facts(run: RunFolder, config: Config, spec: EncoderSpec) -> CardFacts:
    """Reads what a card says.

    Figures of another model than the one in the folder, or of one that is not there yet, are left
    out.

    Args:
        run: The folder; ``config.yaml``, ``environment.json``, ``metrics.json``, ``tokens.json``
            and ``funnel.json`` are read as far as they are there.
        config: The settings of now, for what they say of the card.
        spec: The shape of the model.
    """
    recorded = read_if_there(run.config, partial(configuration.load, recorded=True)) or config
    own = without_secrets(recorded.model_copy(update={"card": config.card}))
    metrics: Mapping[str, Any] = read_if_there(run.metrics, storage.read_json) or {}
    measured = metrics if _is_measured(run, metrics) else {}
    return CardFacts(
        name=config.card.name or run.path.name,
        config=own,
        spec=spec,
        base=base_model(own),
        place=run.path / "model" if isinstance(run.path, Path) else None,
        model=metrics.get("model", {}),
        training=metrics.get("training", {}),
        comparisons=compare(measured),
        tokens=read_if_there(run.tokens, storage.read_json) or {},
        funnel=read_if_there(run.funnel, storage.read_json) or (),
        environment=read_if_there(run.environment, storage.read_json) or {},
        verdict=str(verdict(measured) or ""),
    )


def _is_measured(run: RunFolder, metrics: Mapping[str, Any]) -> bool:
    """Whether the figures are of the model that is in the folder."""
    known = metrics.get("measured", {}).get("model")
    return known is not None and run.model.is_dir() and known == digest_model(run.model)
