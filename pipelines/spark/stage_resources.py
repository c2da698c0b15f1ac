"""What one stage has of a session that others have not: resources of its tasks and executors.

A session's executors are as they were when it started. Spark's stage-level scheduling (`Job
Scheduling` in its documentation) has tasks of other sizes on them; with dynamic allocation it has
Spark start other executors for a stage, and give them back behind it. What else a stage asks for
is set while it runs where Spark lets that be, and otherwise refused.
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
_SUPPORTED = ("spark://", "local-cluster", "yarn", "k8s://")


@dataclass(frozen=True)
class StageResources:
    """What a stage is to have that its session has not.

    Attributes:
        conf: What holds of the Spark conf while the stage runs, by whole keys.
        tasks: The keys of resources of tasks that differ from the session's.
        executors: The same of resources of executors.
        others: The rest of what differs.
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
    """Compare what a stage asks for with what its session has.

    Args:
        session_conf: Of the session, by whole keys.
        asked: Of the stage.
    """
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
    """Refuse what Spark cannot give a stage within its session.

    Raises:
        InputError: Naming the first key, and the way out.
    """
    asked, master = (*found.tasks, *found.executors), found.conf.get("spark.master", "")
    if asked and not master.startswith(_SUPPORTED):
        raise InputError(
            f"stages.{stage}.{asked[0]}",
            f"a session on `{master}` has tasks of one size",
            f"leave it out, or run `{stage}` on a cluster",
        )
    if found.executors and not found.dynamic:
        raise InputError(
            f"stages.{stage}.{found.executors[0]}",
            "the executors of a session stay as they are without dynamic allocation",
            f"set spark.dynamicAllocation.enabled true, or run `{stage}` as a job of its own",
        )


def check_stages(session: SparkSession, config: Config, stages: Iterable[StageName]) -> None:
    """Refuse what stages ask for that the session which they share cannot give them.

    What a training asks for of tasks and executors depends on the engine, which checks it.

    Raises:
        InputError: See :func:`stage_settings`.
    """
    for stage in stages:
        _modifiable(session, stage, resources_in(session, config, stage))


def _modifiable(session: SparkSession, stage: StageName, found: StageResources) -> list[str]:
    """Return the keys that are set in the session while a stage runs.

    Raises:
        InputError: Others differ, which are fixed when a session starts.
    """
    conf, others = session.conf, found.others
    if stage != "train":
        # Spark has profiles for RDDs, and these stages work with data frames.
        others = (*found.tasks, *found.executors, *others)
    for key in others:
        if not conf.isModifiable(key) and not (found.dynamic and key in _FOLLOWING):
            raise InputError(
                f"stages.{stage}.{key}",
                "it is fixed when a session starts, and this session has it otherwise",
                f"run `{stage}` as a job of its own, or set it for all stages",
            )
    return [key for key in others if conf.isModifiable(key)]


@contextmanager
def stage_settings(session: SparkSession, config: Config, stage: StageName) -> Iterator[None]:
    """Set what can be set of a running session while a stage runs, as the stage asks for it.

    Raises:
        InputError: It asks for what is fixed when a session starts.
    """
    found = resources_in(session, config, stage)
    set_here = _modifiable(session, stage, found)
    with settings_set(session, {key: found.conf[key] for key in set_here}):
        yield


def resources_in(session: SparkSession, config: Config, stage: StageName) -> StageResources:
    """Return what a stage is to have that a running session has not."""
    asked = getattr(config.stages, stage)
    if is_connected():
        told = {key: conf_value(session, key) for key in asked}
        return resources_of({key: value for key, value in told.items() if value}, asked)
    return resources_of(dict(session.sparkContext.getConf().getAll()), asked)


def resource_profile(found: StageResources) -> ResourceProfile | None:
    """Return the profile of a stage's tasks, registered with Spark; None where they need none.

    A session is running, in which two stages that ask for the same get the same profile: otherwise
    Spark would start executors for each.
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
    """Return all that executors have: what a profile does not name comes from Spark's defaults."""
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
    for name, of in resources.items():
        script, vendor = of.get("discoveryScript", ""), of.get("vendor", "")
        requests.resource(name, int(of.get("amount", "0")), script, vendor)
    return requests


def _is_same(key: str, there: str | None, asked: str) -> bool:
    there = _DEFAULTS.get(key) if there is None else there
    if there is None:
        return False
    if key in _EXECUTOR_MEMORY:
        return memory_mb(there, key) == memory_mb(asked, key)
    return there.strip().lower() == asked.strip().lower()
