"""Every setting, with its type, unit, range and default; see :mod:`pipelines.settings.load`.

A module of the package holds a section and the checks of its keys.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

from pydantic import Field, field_validator, model_validator

from pipelines.catalog import LOSSES, RECIPES
from pipelines.errors import InputError
from pipelines.settings.base import Settings
from pipelines.settings.capabilities import Asked, check_limits
from pipelines.settings.checks import (
    check_dimensions,
    check_encoder,
    check_kept_start,
    check_key_column,
    check_sources,
    check_teacher,
    check_tokens,
    check_training,
)
from pipelines.settings.corpus import CorpusSettings, SourceForm
from pipelines.settings.encoder import EncoderSettings
from pipelines.settings.evaluation import EvaluationSettings
from pipelines.settings.objective import AnyObjective, ObjectiveSettings, objective
from pipelines.settings.preparing import (
    LaneSettings,
    PreparedSettings,
    TeacherSettings,
    TokenSettings,
)
from pipelines.settings.promotion import PromotionSettings
from pipelines.settings.publishing import PublishSettings
from pipelines.settings.questions import QuestionSettings
from pipelines.settings.recipes import with_recipe
from pipelines.settings.running import CardSettings, RunSettings, TrackingSettings
from pipelines.settings.scoring import ScoringSettings
from pipelines.settings.spark import (
    PREFIX,
    SparkSettings,
    StageName,
    StageSettings,
    StorageSettings,
)
from pipelines.settings.training import TrainingSettings
from pipelines.settings.vectors import EmbeddingSettings, MiningSettings

__all__ = [
    "CardSettings",
    "Config",
    "CorpusSettings",
    "EmbeddingSettings",
    "EncoderSettings",
    "EvaluationSettings",
    "LaneSettings",
    "MiningSettings",
    "ObjectiveSettings",
    "PreparedSettings",
    "PromotionSettings",
    "PublishSettings",
    "QuestionSettings",
    "RunSettings",
    "ScoringSettings",
    "Settings",
    "SparkSettings",
    "StageSettings",
    "StorageSettings",
    "TeacherSettings",
    "TokenSettings",
    "TrackingSettings",
    "TrainingSettings",
]


class Config(Settings):
    """The whole configuration; ``Config()`` is the embedded default job."""

    recipe: str | None = Field(default=None, json_schema_extra={"enum": [*RECIPES]})
    """Settings for one kind of corpus; your own settings override them. See [recipes](recipes.md).
    Null: the defaults below."""
    corpus: CorpusSettings = CorpusSettings()
    prepared: PreparedSettings = PreparedSettings()
    tokens: TokenSettings = TokenSettings()
    teacher: TeacherSettings = TeacherSettings()
    lanes: LaneSettings = LaneSettings()
    encoder: EncoderSettings = EncoderSettings()
    # Not made before the losses can be imported, which import this package.
    objective: AnyObjective = Field(default_factory=objective)
    training: TrainingSettings = TrainingSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    tracking: TrackingSettings = TrackingSettings()
    embedding: EmbeddingSettings = EmbeddingSettings()
    questions: QuestionSettings = QuestionSettings()
    mining: MiningSettings = MiningSettings()
    scoring: ScoringSettings = ScoringSettings()
    publish: PublishSettings = PublishSettings()
    promotion: PromotionSettings = PromotionSettings()
    run: RunSettings = RunSettings()
    card: CardSettings = CardSettings()
    spark: SparkSettings = SparkSettings()
    stages: StageSettings = StageSettings()
    storage: StorageSettings = StorageSettings()

    @field_validator("recipe")
    @classmethod
    def _check_recipe(cls, name: str | None) -> str | None:
        return name if name is None else RECIPES.check(name)

    @model_validator(mode="before")
    @classmethod
    def _with_recipe(cls, given: Any) -> Any:
        return with_recipe(given)

    @model_validator(mode="after")
    def _check_sections(self) -> Config:
        for _, section in self:
            if isinstance(section, Settings):
                section.check()
        check_tokens(self.tokens, self.encoder)
        check_teacher(self.teacher, self.encoder)
        check_encoder(self.encoder)
        check_dimensions(self.objective)
        check_limits(self.asked)
        if self.corpus.sources:
            self._check_sources()
        else:
            LOSSES.load(self.objective.name).check_with(self)
        check_training(self.training, self.encoder, self.evaluation)
        check_kept_start(self.run, self.encoder)
        return self

    def _check_sources(self) -> None:
        """Refuse contradictions between the sources, or within one as the only corpus."""
        sources, configs = self.corpus.sources, self.by_source()
        objectives = [config.objective for config in configs]
        check_sources(sources, objectives, self.teacher)
        for source, config in zip(sources, configs, strict=True):
            try:
                check_key_column(source, self.corpus.key_column)
                config.corpus.check()
                check_dimensions(config.objective)
                LOSSES.load(config.objective.name).check_with(config)
            except InputError as error:
                problem = f"source {source.name}: {error.problem}"
                raise InputError(error.key, problem, error.remedy) from None

    @property
    def asked(self) -> Asked:
        """Return the settings that limits of engines and modes depend on."""
        objectives = [config.objective for config in self.by_source()]
        return Asked(self.training, self.encoder, self.corpus, objectives)

    def by_source(self) -> tuple[Config, ...]:
        """Return a configuration for each source, as if the source were the whole corpus."""
        keys = [*SourceForm.model_fields]
        return tuple(
            self.model_copy(
                update={
                    "corpus": self.corpus.model_copy(
                        update={**{key: getattr(source, key) for key in keys}, "sources": ()}
                    ),
                    "objective": source.objective or self.objective,
                }
            )
            for source in self.corpus.sources
        ) or (self,)

    def changed(self, section: str, **values: Any) -> Config:
        """Return a copy with other values in a section; the values are not validated."""
        return self.model_copy(update={section: getattr(self, section).model_copy(update=values)})

    def trained_widths(self) -> tuple[int, ...]:
        """Return the widths in `objective.dimensions` of any source."""
        return tuple(dict.fromkeys(chain.from_iterable(self._widths())))

    def common_widths(self) -> tuple[int, ...]:
        """Return the widths in `objective.dimensions` of every source."""
        by_source = self._widths()
        return tuple(
            width for width in by_source[0] if all(width in widths for widths in by_source)
        )

    def _widths(self) -> list[tuple[int, ...]]:
        return [config.objective.dimensions for config in self.by_source()]

    def stage_conf(self, stage: StageName) -> dict[str, str]:
        """Return the Spark conf to submit for a stage, by whole keys.

        It holds settings only; :func:`pipelines.engines.overview.submit_conf` adds the engine's.
        """
        shared = {f"{PREFIX}{key}": value for key, value in self.spark.conf.items()}
        return shared | dict(getattr(self.stages, stage))

    def for_stage(self, stage: StageName) -> Config:
        """Return the settings of an application for this stage only, with its Spark conf."""
        conf = {key.removeprefix(PREFIX): text for key, text in self.stage_conf(stage).items()}
        return self.model_copy(update={"spark": self.spark.with_conf(conf)})
