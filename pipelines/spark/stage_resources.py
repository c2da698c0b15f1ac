"""Resources of tasks and executors for one stage, apart from the rest of its session.

A session's executors keep the sizes of its start. Spark's stage-level scheduling (`Job Scheduling`
in its documentation) runs tasks of other sizes on them. With dynamic allocation it also starts
other executors for a stage, and gives them back afterwards. All other requests hold while the stage
runs, if Spark allows it, and are refused otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipelines.errors import InputError
from pipelines.settings import Config
from pipelines.settings.spark import StageName
from pipelines.spark.capacity import conf_value, is_connected, settings_set
from pipelines.spark.session import in_one_process, memory_mb

if TYPE_CHECKING:
    from pyspark.resource import ResourceProfile
    from pyspark.sql import SparkSession

_TASK_CPUS = "spark.task.cpus"
_TASK_AMOUNT = re.compile(r"spark\.task\.resource\.(?P<name>[\w-]+)\.amount")
_EXECUTOR_RESOURCE = re.compile(
    r"spark\.executor\.resource\.(?P<name>[\w-]+)\.(?P<what>amount|discoveryScript|vendor)"
)
_EXECUTOR_CORES = "spark.executor.cores"
# By the name of a profile's request, in MiB.
_EXECUTOR_MEMORY: Mapping[str, str] = {
    "spark.executor.memory": "memory",
    "spark.executor.memoryOverhead": "memoryOverhead",
    "spark.executor.pyspark.memory": "pysparkMemory",
    "spark.memory.offHeap.size": "offheapMemory",
}
_DEFAULTS: Mapping[str, str] = {_TASK_CPUS: "1", "spark.executor.memory": "1g"}
# With dynamic allocation there are as many executors as the tasks of a stage need.
_FOLLOWING = ("spark.executor.instances",)
# Masters with Spark's stage-level scheduling.
_SUPPORTED = ("spark://", "local-cluster", "yarn", "k8s://")


@dataclass(frozen=True)
class StageResources:
    """A stage's requests, compared with its session.

    Attributes:
        conf: The Spark conf while the stage runs, by whole keys.
        tasks: The differing keys of task resources.
        executors: The differing keys of executor resources.
        others: The other differing keys.
    """

    conf: Mapping[str, str]
    tasks: tuple[str, ...] = ()
    executors: tuple[str, ...] = ()
    others: tuple[str, ...] = ()

    @property
    def dynamic(self) -> bool:
        """Whether Spark starts executors as tasks need them; in one process it never does."""
        enabled = self.conf.get("spark.dynamicAllocation.enabled", "false").lower() == "true"
        return enabled and not in_one_process(self.conf.get("spark.master"))


def resources_of(session_conf: Mapping[str, str], asked: Mapping[str, str]) -> StageResources:
    """Compare a stage's requests with its session's conf, both by whole keys."""
    changed = [key for key in asked if not _is_same(key, session_conf.get(key), asked[key])]
    tasks = [key for key in changed if key == _TASK_CPUS or _TASK_AMOUNT.fullmatch(key)]
    executors = [
        key
        for key in changed
        if key == _EXECUTOR_CORES or key in _EXECUTOR_MEMORY or _EXECUTOR_RESOURCE.fullmatch(key)
    ]
    known = {*tasks, *executors}
    others = tuple(key for key in changed if key not in known)
    return StageResources({**session_conf, **asked}, tuple(tasks), tuple(executors), others)


def check_resources(stage: StageName, found: StageResources) -> None:
    """Refuse requests that Spark cannot meet within a stage's session.

    Raises:
        InputError: Naming the first key, and the way out.
    """
    asked, master = (*found.tasks, *found.executors), found.conf.get("spark.master", "")
    if asked and not master.startswith(_SUPPORTED):
        raise InputError(
            f"stages.{stage}.{asked[0]}",
            f"a session on `{master}` has tasks of one size",
            f"Leave it out, or run `{stage}` on a cluster",
        )
    if found.executors and not found.dynamic:
        raise InputError(
            f"stages.{stage}.{found.executors[0]}",
            "a session without dynamic allocation cannot change its executors",
            f"Set spark.dynamicAllocation.enabled to true, or run `{stage}` as a job of its own",
        )


def check_stages(session: SparkSession, config: Config, stages: Iterable[StageName]) -> None:
    """Refuse requests of stages that their shared session cannot meet.

    A training's requests for tasks and executors depend on the engine; it checks them.

    Raises:
        InputError: See :func:`stage_settings`.
    """
    for stage in stages:
        _modifiable(session, stage, resources_in(session, config, stage))


def _modifiable(session: SparkSession, stage: StageName, found: StageResources) -> list[str]:
    """Return the keys to set in the session while a stage runs; refuse keys fixed at its start."""
    conf, others = session.conf, found.others
    if stage != "train":
        # Spark has profiles for RDDs, and these stages work with data frames.
        others = (*found.tasks, *found.executors, *others)
    for key in others:
        if not conf.isModifiable(key) and not (found.dynamic and key in _FOLLOWING):
            raise InputError(
                f"stages.{stage}.{key}",
                "Spark fixes it when a session starts, and this session has another value",
                f"Run `{stage}` as a job of its own, or set it for all stages",
            )
    return [key for key in others if conf.isModifiable(key)]


@contextmanager
def stage_settings(session: SparkSession, config: Config, stage: StageName) -> Iterator[None]:
    """Set a stage's requests in the running session, if possible, while the stage runs.

    Raises:
        InputError: A request is fixed when a session starts.
    """
    found = resources_in(session, config, stage)
    set_here = _modifiable(session, stage, found)
    with settings_set(session, {key: found.conf[key] for key in set_here}):
        yield


def resources_in(session: SparkSession, config: Config, stage: StageName) -> StageResources:
    """Return a stage's requests, compared with a running session."""
    asked = getattr(config.stages, stage)
    if is_connected():
        values = {key: conf_value(session, key) for key in asked}
        return resources_of({key: value for key, value in values.items() if value}, asked)
    return resources_of(dict(session.sparkContext.getConf().getAll()), asked)


def resource_profile(found: StageResources) -> ResourceProfile | None:
    """Return the registered profile of a stage's tasks; None if they need none.

    A session is running. Two stages with the same requests get the same profile: otherwise Spark
    would start executors for each.
    """
    if not (found.tasks or found.executors):
        return None
    from pyspark import SparkContext
    from pyspark.resource import ResourceProfile, ResourceProfileBuilder

    builder = ResourceProfileBuilder()
    builder.require(_task_requests(found.conf))
    if found.executors:
        builder.require(_executor_requests(found.conf))
    profile = builder.build
    context: Any = SparkContext._active_spark_context
    profiles = context._jsc.sc().resourceProfileManager()
    known = profiles.getEquivalentProfile(profile._java_resource_profile)
    if known.isDefined():
        return ResourceProfile(_java_resource_profile=known.get())
    profiles.addResourceProfile(profile._java_resource_profile)
    return profile


def _task_requests(conf: Mapping[str, str]) -> Any:
    from pyspark.resource import TaskResourceRequests

    requests = TaskResourceRequests()
    requests.cpus(int(conf.get(_TASK_CPUS, _DEFAULTS[_TASK_CPUS])))
    for key, value in conf.items():
        if found := _TASK_AMOUNT.fullmatch(key):
            requests.resource(found["name"], float(value))
    return requests


def _executor_requests(conf: Mapping[str, str]) -> Any:
    """Request all resources of executors: Spark fills gaps in a profile with its defaults."""
    from pyspark.resource import ExecutorResourceRequests

    requests = ExecutorResourceRequests()
    if _EXECUTOR_CORES in conf:
        requests.cores(int(conf[_EXECUTOR_CORES]))
    for key, name in _EXECUTOR_MEMORY.items():
        if key in conf:
            getattr(requests, name)(f"{max(round(memory_mb(conf[key], key)), 1)}m")
    resources: dict[str, dict[str, str]] = {}
    for key, value in conf.items():
        if found := _EXECUTOR_RESOURCE.fullmatch(key):
            resources.setdefault(found["name"], {})[found["what"]] = value
    for name, request in resources.items():
        script, vendor = request.get("discoveryScript", ""), request.get("vendor", "")
        requests.resource(name, int(request.get("amount", "0")), script, vendor)
    return requests


def _is_same(key: str, present: str | None, asked: str) -> bool:
    present = _DEFAULTS.get(key) if present is None else present
    if present is None:
        return False
    if key in _EXECUTOR_MEMORY:
        return memory_mb(present, key) == memory_mb(asked, key)
    return present.strip().lower() == asked.strip().lower()
