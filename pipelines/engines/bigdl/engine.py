"""Engine `bigdl`: dllib or Orca, by the framework. Runs on the driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from pipelines.engines.base import ConfRule, Engine, Mode
from pipelines.engines.bigdl.dllib_engine import DllibEngine
from pipelines.engines.bigdl.jars import SPARK_MAJORS
from pipelines.engines.orca.engine import OrcaEngine
from pipelines.runs.run import TrainingOutcome, TrainingRun
from pipelines.runs.step_metrics import OnMetrics, StepMetrics
from pipelines.settings import Config

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipelines.engines.bigdl.dllib import OnStep


_DLLIB, _ORCA = DllibEngine.modes["sync"], OrcaEngine.modes["sync"]


class BigDLEngine(Engine):
    """Trains by BigDL: by its dllib in Spark's executors, or by its Orca in PyTorch.

    Args:
        on_step: Called with dllib's times of each step.
    """

    name = "bigdl"
    modes: ClassVar = {
        "sync": Mode(
            guarantee=_DLLIB.guarantee,
            choose_when=f"{_DLLIB.choose_when} {_ORCA.choose_when}",
            needs=f"{_DLLIB.needs} {_ORCA.needs}",
        )
    }
    frameworks = ("bigdl", "torch")
    options = ("compression",)
    needs_spark = True
    spark_majors = SPARK_MAJORS

    def __init__(self, on_step: OnStep = lambda times: None) -> None:
        self._engines: Mapping[str, Engine] = {"bigdl": DllibEngine(on_step), "torch": OrcaEngine()}

    def _chosen(self, config: Config) -> Engine:
        return self._engines[config.training.framework]

    @override
    def executors(self, config: Config) -> int:
        return self._chosen(config).executors(config)

    @override
    def conf_rules(self, config: Config) -> Sequence[ConfRule]:
        return self._chosen(config).conf_rules(config)

    @override
    def session_conf(self, config: Config, conf: Mapping[str, str]) -> Mapping[str, str]:
        return self._chosen(config).session_conf(config, conf)

    @override
    def extra_submit_conf(self, config: Config) -> Mapping[str, str]:
        return self._chosen(config).extra_submit_conf(config)

    @override
    def preloads(self, config: Config) -> tuple[str, ...]:
        return self._chosen(config).preloads(config)

    @override
    def check_libraries(self, config: Config) -> None:
        self._chosen(config).check_libraries(config)

    @override
    def check_session(self, session: SparkSession, config: Config) -> None:
        self._chosen(config).check_session(session, config)

    @override
    def check(self, session: SparkSession | None, config: Config) -> None:
        self._chosen(config).check(session, config)

    @override
    def train(
        self, session: SparkSession | None, run: TrainingRun, on_metrics: OnMetrics
    ) -> TrainingOutcome:
        return self._chosen(run.config).train(session, run, on_metrics)

    @override
    def attempt(
        self, session: SparkSession | None, run: TrainingRun, step_metrics: StepMetrics
    ) -> TrainingOutcome:
        return self._chosen(run.config).attempt(session, run, step_metrics)

    @override
    def room(
        self, session: SparkSession | None, config: Config, wanted: int, seconds: float
    ) -> int:
        return self._chosen(config).room(session, config, wanted, seconds)
