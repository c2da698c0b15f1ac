"""The choice of `training.engine: auto`: the first engine of a table that fits.

An engine fits if its libraries are installed, it supports all requested settings, and the Spark
conf keeps its rules. A resumed run keeps its first engine.
"""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import dataclass

from pipelines.catalog import LOSSES
from pipelines.engines.base import Engine, check_conf, check_fit, load_engine
from pipelines.errors import EngineUnavailable, InputError
from pipelines.files.run_folder import RunFolder
from pipelines.libraries import check_installed
from pipelines.runs.job_records import last_settings
from pipelines.settings import Config
from pipelines.settings.capabilities import check_limits
from pipelines.settings.training import AUTO
from pipelines.spark.java import SUBMITTED, defaults
from pipelines.spark.shell import ENCRYPTING

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Candidate:
    """A line of the table, with the reason for its rank; `modes` is None for all of the engine."""

    engine: str
    framework: str
    why: str
    modes: tuple[str, ...] | None = None

    def __str__(self) -> str:
        return f"{self.engine} with {self.framework}"


CANDIDATES = (
    Candidate("torch", "torch", "97, the fastest"),
    Candidate("horovod", "torch", "75; also with dynamic allocation"),
    Candidate("deepspeed", "torch", "49; if `training.sharding` needs it"),
    Candidate("tensorflowonspark", "tensorflow", "57, `async` 68; also with encryption"),
    Candidate("horovod", "tensorflow", "51"),
    Candidate("elephas", "tensorflow", "69", ("async", "hogwild")),
    Candidate("bigdl", "bigdl", "only with `training.framework: bigdl`"),
)
"""In the order of their rates in docs/measurements/strategies.md, PyTorch's before TensorFlow's.
The table leaves out Mesh TensorFlow, Megatron-Core, and averaging modes with their other result."""


def with_engine(config: Config) -> Config:
    """Set the engine and its framework, where ``training.engine`` is `auto`.

    Raises:
        InputError: None fits; gives the reason for the best one that supports the settings.
    """
    training = config.training
    if training.engine != AUTO:
        return config
    asked = None if training.chooses_framework else training.framework
    recorded = last_settings(RunFolder.of(config).path) if training.resume else {}
    if recorded.get("training.engine", AUTO) != AUTO:
        began = Candidate(recorded["training.engine"], recorded["training.framework"], "")
        if asked in (None, began.framework):
            logger.info("engine %s continues its run (training.engine: auto)", began)
            return _taking(config, began)
    fitting, refusals = [], []
    for candidate in CANDIDATES:
        if asked in (None, candidate.framework):
            try:
                _check(candidate, _taking(config, candidate))
                fitting.append(candidate)
            except InputError as error:
                refusals.append(error)
    if not fitting:
        # An engine that supports the settings needs the fewest changes.
        raise min(refusals, key=lambda error: not isinstance(error, EngineUnavailable))
    further = ", ".join(map(str, fitting[1:])) or "none"
    logger.info(
        "engine %s is taken (training.engine: auto); others that fit: %s", fitting[0], further
    )
    return _taking(config, fitting[0])


def _taking(config: Config, candidate: Candidate) -> Config:
    chosen = {"engine": candidate.engine, "framework": candidate.framework}
    training = config.training.model_copy(update=chosen)
    return config.model_copy(update={"training": training})


def _check(candidate: Candidate, config: Config) -> None:
    """Refuse an engine that does not fit.

    Raises:
        EngineUnavailable: Libraries are missing, or the conf does not fit.
        InputError: It does not support a setting.
    """
    engine = load_engine(candidate.engine, candidate.framework)
    if candidate.modes is not None and config.training.mode not in candidate.modes:
        raise InputError(
            "training.mode",
            f"engine {engine.name} has no `{config.training.mode}`",
            f"Choose one of {', '.join(candidate.modes)}",
        )
    check_fit(engine, config)
    check_limits(config.asked)
    for source_config in config.by_source():
        LOSSES.load(source_config.objective.name).form(candidate.framework)
    engine.check_libraries(config)
    check_installed("training.engine", "pyspark", candidate.engine)
    _check_conf(engine, config)


def _check_conf(engine: Engine, config: Config) -> None:
    """Refuse an engine if the session's conf, as far as known, breaks its rules."""
    conf = _running_conf() or {**_given_conf(), **config.stage_conf("train")}
    check_conf(conf, engine.name, engine.rules)
    is_set = {key for key, value in conf.items() if value.lower() == "true"}
    accepted = any(rule.unless in is_set for rule in engine.rules)
    if engine.clear_text and not accepted and (asking := is_set.intersection(ENCRYPTING)):
        raise EngineUnavailable(
            min(asking),
            f"engine {engine.name} sends in clear text: {engine.clear_text}",
            "Name it in training.engine if you accept that",
        )


def _running_conf() -> dict[str, str]:
    """Return the conf of the SparkContext of this process; empty if there is none."""
    if "pyspark" not in sys.modules:
        return {}
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    return {} if context is None else dict(context.getConf().getAll())


def _given_conf() -> dict[str, str]:
    """Return the conf of a new session: that of spark-submit, or Spark's defaults."""
    if SUBMITTED not in os.environ:
        return defaults()
    from pyspark import SparkConf, SparkContext

    # The JVM of spark-submit has the whole conf, with the file of defaults.
    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())
