"""One cell: a stage on hosts of its own that something is done to, and what became of it."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from host_cluster import HostCluster, host_cluster
from hosts import end

from faults import job
from faults.disk import Disk, made_disk
from faults.injection import FAULTS, Fault, Scene, send
from faults.moments import Watched
from faults.outcome import PROMISED_SECONDS, Outcome, judge_end, wait_for_none_left
from faults.processes import executors, leftovers, python_workers
from faults.stages.kinds import EMBEDDED, PREPARED, RUN, SERVED, STAGES, Stage, is_same, settings_of
from pipelines.settings import Config
from pipelines.settings import load as configuration

STALL_SECONDS = 30
STALLED = r"spark\.stall_seconds"
SPARKS_SECONDS = 180.0
"""In which Spark gives up an executor that is silent (`spark.network.timeout`), and tries again."""
STAGE_SECONDS, MOMENT_SECONDS = 600.0, 240.0
PLACES = (PREPARED, RUN, EMBEDDED, SERVED)


def _freeze_for_good(scene: Scene) -> None:
    scene.disk.freeze()
    scene.undoing.callback(scene.disk.thaw)


STAGE_FAULTS: dict[str, Fault] = {
    "worker killed": replace(
        FAULTS["worker killed"],
        inject=send(python_workers, signal.SIGKILL),
        label="Python of an executor is killed (`-9`)",
        finishes=True,
    ),
    "worker stopped": Fault(
        "Python of an executor hangs (`-STOP`)",
        send(python_workers, signal.SIGSTOP),
        cause=STALLED,
    ),
    "executor killed": replace(FAULTS["executor killed"], finishes=True),
    "executor stopped": replace(
        FAULTS["executor stopped"],
        inject=send(lambda host: [*executors(host), *python_workers(host)], signal.SIGSTOP),
        finishes=True,
    ),
    "driver killed": FAULTS["driver killed"],
    "host cut off": replace(FAULTS["host cut off"], finishes=True),
    "host away 10 s": FAULTS["host away 10 s"],
    "disk full": FAULTS["disk full"],
    "folder gone 60 s": replace(FAULTS["folder gone 60 s"], finishes=True),
}
"""By name; `finishes` where Spark tries again what was lost."""


@dataclass(frozen=True)
class StageCell:
    """What is done to a stage as soon as the executors work for it, or at its beginning.

    Attributes:
        stage: A key of :data:`faults.stages.kinds.STAGES`.
        fault: A key of :data:`STAGE_FAULTS`.
    """

    stage: str
    fault: str


def stage_cells() -> list[StageCell]:
    """All there are: what is done to executors meets stages that have some."""
    alone = ("driver killed", "disk full", "folder gone 60 s")
    return [
        StageCell(stage, fault)
        for fault in STAGE_FAULTS
        for stage, kind in STAGES.items()
        if (kind.tasks or fault in alone) and not (stage == "search" and fault == "disk full")
    ]


@dataclass(frozen=True)
class Materials:
    """What stages need and make, each made once where nothing happens.

    Attributes:
        folder: A disk with all of it.
        texts: The corpus.
        results: By stage.
    """

    folder: Path
    texts: Path
    results: dict[str, object]


def make_materials(work: Path) -> Materials:
    """Runs all stages once, each in one process, unless they have run there before."""
    folder, texts = work / "stages", work / "docstrings.jsonl"
    job.make_prepared(work / "prepared")
    kept = work / "stages.json"
    if not kept.exists():
        kept.write_text(json.dumps(_made(work, folder, settings_of(folder, texts))))
    return Materials(folder, texts, json.loads(kept.read_text()))


def _made(work: Path, folder: Path, config: Config) -> dict[str, object]:
    """Runs the stages one after the other, and gives what each has made."""
    results = {}
    for name, stage in STAGES.items():
        log = work / f"{name}.log"
        if name == "evaluate":
            _run_alone(("train",), config, work / "train.log")
        _run_alone(stage.arguments, config, log)
        results[name] = stage.result(folder, log.read_text())
    return results


def _run_alone(arguments: Sequence[str], config: Config, log: Path) -> None:
    code = job.run_here(arguments, config, log.with_suffix(".yaml"), log, STAGE_SECONDS)
    assert code == 0, log.read_text()[-500:]


def run_stage_cell(cell: StageCell, materials: Materials, folder: Path) -> Outcome:
    """Runs a cell in a folder, which is removed when nothing was wrong."""
    stage, fault = STAGES[cell.stage], STAGE_FAULTS[cell.fault]
    outcome = Outcome(cell.stage, cell.fault, "a task" if stage.tasks else "beginning")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with ExitStack() as stack:
        disk = stack.enter_context(made_disk(folder / "disk", folder / "disk.image"))
        for name in stage.needs:
            unmade = shutil.ignore_patterns(*stage.makes)
            shutil.copytree(
                materials.folder / name, disk.folder / name, symlinks=True, ignore=unmade
            )
        cluster = stack.enter_context(host_cluster(folder, cores=2, seen=[materials.texts.parent]))
        config = settings_of(disk.folder, materials.texts)
        log = folder / "driver.log"
        command = _command(stage, fault, config, folder / "job.yaml", cluster)
        driver = cluster.start(command, log)
        stack.callback(end, driver)
        scene = Scene(
            Watched(cluster, disk.folder / RUN, log, 0), driver, disk, folder, folder / "clock"
        )
        stack.callback(scene.undoing.close)
        _bring_about(stage, fault, scene, outcome)
        _look_for_leftovers(fault, cluster, outcome)
        scene.undoing.close()
        if outcome.end != "hang":
            expected = materials.results[cell.stage]
            _check_again(stage, config, cluster, disk, folder, expected, outcome)
    if not outcome.failings:
        shutil.rmtree(folder, ignore_errors=True)
    return outcome


def _command(
    stage: Stage, fault: Fault, config: Config, path: Path, cluster: HostCluster
) -> list[str | Path]:
    path.write_text(configuration.dump(config))
    spark = cluster.settings(2)
    if fault.cause == STALLED:
        # Not where Spark has a deadline of its own, which would come later.
        spark = spark | {"stall_seconds": str(STALL_SECONDS)}
    given = [f"--set=spark.{key}={value}" for key, value in spark.items()]
    return [*job.CLI, *stage.arguments, "--config", path, *given]


def _bring_about(stage: Stage, fault: Fault, scene: Scene, outcome: Outcome) -> None:
    """Waits until executors work, does what is to be done, and waits for the end of the stage."""
    driver = scene.driver
    if not _has_begun(stage, scene):
        outcome.end, outcome.message = "not reached", scene.watched.log.read_text()[-300:]
        outcome.failings.append("the moment did not come")
        return
    began = time.monotonic()
    fault.inject(scene)
    began += fault.lasts
    allowed = SPARKS_SECONDS + (STAGE_SECONDS if fault.finishes else PROMISED_SECONDS)
    while driver.poll() is None and time.monotonic() - began < allowed:
        time.sleep(0.1)
    outcome.seconds = round(max(time.monotonic() - began, 0.0), 1)
    if driver.poll() is None:
        outcome.end = "hang"
        outcome.failings.append(f"hang: no end after {allowed:.0f} s")
        return
    judge_end(fault, driver.returncode, scene.watched.log.read_text(), outcome, STALL_SECONDS)


def _has_begun(stage: Stage, scene: Scene) -> bool:
    deadline = time.monotonic() + MOMENT_SECONDS
    while time.monotonic() < deadline and scene.driver.poll() is None:
        if not stage.tasks and scene.driver_host.processes("pipelines.cli"):
            return True
        if stage.tasks and any(map(python_workers, scene.workers_hosts)):
            return True
        time.sleep(0.01)
    return False


def _look_for_leftovers(fault: Fault, cluster: HostCluster, outcome: Outcome) -> None:
    if fault.cuts:
        return  # Spark's own processes wait for Spark's own deadlines there.
    wait_for_none_left(
        lambda: [line for host in cluster.hosts for line in leftovers(host)], outcome
    )


def _check_again(
    stage: Stage,
    config: Config,
    cluster: HostCluster,
    disk: Disk,
    folder: Path,
    expected: object,
    outcome: Outcome,
) -> None:
    """Runs the stage once more, where its driver was, and compares what it has made.

    As a scheduler does: what a process has left is swept by one that can know that it is gone.
    """
    path, log = folder / "again.yaml", folder / "again.log"
    path.write_text(configuration.dump(config))
    command = [*job.CLI, *stage.arguments, "--config", path, "--set=spark.master=local[2]"]
    if cluster.start(command, log).wait(STAGE_SECONDS) != 0:
        outcome.failings.append(f"it cannot be run again: {log.read_text()[-300:]}")
        return
    if not is_same(stage.result(disk.folder, log.read_text()), expected):
        outcome.failings.append("what it has made is not what it makes undisturbed")
    places = (one for name in PLACES for one in (disk.folder / name).rglob(".*"))
    asides = [one.name for one in places if one.name.endswith((".part", ".gone"))]
    outcome.failings.extend(f"left on the disk: {name}" for name in asides)
