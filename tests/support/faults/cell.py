"""One cell: a job on hosts of its own that something is done to, and what became of it."""

from __future__ import annotations

import ctypes
import re
import shutil
import signal
import subprocess
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
from engine_cases import EngineCase
from host_cluster import HostCluster, host_cluster
from hosts import Style, end

from faults import job
from faults.disk import made_disk
from faults.injection import FAULTS, Fault, Scene
from faults.matrix import CASES, Cell
from faults.moments import EVALUATION, Watched, wait_for
from faults.outcome import (
    PROMISED_SECONDS,
    TOLD_TO_END,
    Outcome,
    judge_end,
    wait_for_none_left,
)
from faults.processes import WATCHDOG, leftovers
from pipelines.models.folder import read_encoder
from pipelines.runs.attempts import accepted_checkpoints
from pipelines.runs.checkpoint import load_checkpoint, newest_whole_checkpoint

PR_SET_PDEATHSIG = 1
MOMENT_SECONDS, FINISH_SECONDS, HANG_SECONDS = 240.0, 600.0, 240.0
MORE, STEPS_MADE = 30, 20
STEPS_LOOKED_AT, PAUSE_SECONDS = 10, 0.1
SPARKS_SECONDS, WAIT_SECONDS = 120.0, 60.0
"""In which Spark gives up executors that are silent (`spark.network.timeout`), and in which an
evaluation that has none left gets others (`spark.wait_seconds`)."""
BLAME = r"engine (\S+?)(?:, rank (\d+))?(?:, host (\S+?))?(?:, lane \d+)?: "
CLOSE = {"rtol": 2e-3, "atol": 2e-4}


@dataclass(frozen=True)
class Setting:
    """Where a cell takes place, and what the job is."""

    cell: Cell
    case: EngineCase
    fault: Fault
    cluster: HostCluster
    scene: Scene
    config: job.Config
    prepared: Path
    pristine: Path
    folder: Path
    steps: int

    @property
    def run(self) -> Path:
        return self.scene.watched.run

    def said(self) -> str:
        return self.scene.watched.log.read_text(errors="replace")


def run_cell(
    cell: Cell,
    pristine: Path,
    folder: Path,
    style: Style = "good",
    look: Callable[[HostCluster], object] | None = None,
) -> Outcome:
    """Runs a cell in a folder, which is removed when nothing was wrong.

    Args:
        pristine: A prepared corpus, of which the job gets a copy.
        style: Of the hosts; see :func:`hosts.some_hosts`.
        look: Is given the cluster again and again until the job has made some steps.
    """
    outcome = Outcome(cell.case, cell.fault, cell.moment)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with ExitStack() as stack:
        setting = _begun(cell, pristine, folder, style, stack)
        if look is not None:
            _look_until_it_steps(setting, look)
        _bring_about(setting, outcome)
        _look_for_leftovers(setting, outcome)
        setting.scene.undoing.close()
        _restore_lanes(setting)
        if outcome.end != "hang":
            (_check_model if outcome.end == "finished" else _go_on)(setting, outcome)
    if not outcome.failings:
        shutil.rmtree(folder, ignore_errors=True)
    return outcome


def end_with_parent() -> None:
    """Has the kernel kill this process of a pool when the one that started it is gone."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def run_in_time(cell: Cell, pristine: Path, folder: Path, deadline: float) -> Outcome | None:
    """Runs a cell unless it is too late: then there is no outcome. Runs in a process of a pool.

    Args:
        deadline: By the clock of `time.monotonic`.
    """
    if time.monotonic() > deadline:
        return None
    try:
        return run_cell(cell, pristine, folder)
    except Exception as error:  # noqa: BLE001 - the other cells are to be run
        # Of this one nothing is known.
        traceback.print_exception(error)
        failing = f"the cell itself failed: {type(error).__name__}: {error}"
        return Outcome(cell.case, cell.fault, cell.moment, end="broken", failings=[failing])


def _begun(cell: Cell, pristine: Path, folder: Path, style: Style, stack: ExitStack) -> Setting:
    """Starts the job of a cell; what it runs on ends with the stack."""
    case, fault = CASES[cell.case], FAULTS[cell.fault]
    prepared = folder / "prepared"
    shutil.copytree(pristine, prepared)
    disk = stack.enter_context(made_disk(folder / "disk", folder / "disk.image"))
    clock = folder / "clock"
    clock.write_bytes(bytes(8))
    variables = _with_clock(folder, clock) if cell.fault == "clock set back" else {}
    cluster = stack.enter_context(
        host_cluster(folder, style, cores=2, seen=[pristine], variables=variables)
    )
    slow_network = cell.fault in ("200 ms delay", "1 Mbit/s", "5 % loss", "slow executor")
    steps = job.steps_of(case, cell.moment, finishes=fault.finishes, slow_network=slow_network)
    config = job.settings_of(case, pristine, prepared, disk.folder / "run", steps, cell.moment)
    spark = cluster.settings(case.make().executors(config))
    if cell.moment == EVALUATION:
        spark |= {"wait_seconds": f"{WAIT_SECONDS:.0f}"}
    command = job.command_of(config, folder / "job.yaml", cell.moment, spark)
    log = folder / "driver.log"
    driver = cluster.start(command, log)
    stack.callback(end, driver)
    watched = Watched(cluster, disk.folder / "run", log, steps)
    scene = Scene(watched, driver, disk, prepared / "lanes", clock)
    stack.callback(scene.undoing.close)
    return Setting(cell, case, fault, cluster, scene, config, prepared, pristine, folder, steps)


def _with_clock(folder: Path, clock: Path) -> dict[int, dict[str, str]]:
    """The environment of the last host's processes, whose clock can be set."""
    library = folder / "clock.so"
    source = Path(__file__).with_name("clock.c")
    command = ["gcc", "-shared", "-fPIC", "-O2", "-o", library, source, "-ldl"]
    subprocess.run(command, check=True, timeout=PROMISED_SECONDS)
    return {2: {"LD_PRELOAD": str(library), "CLOCK_OFFSET": str(clock)}}


def _look_until_it_steps(setting: Setting, look: Callable[[HostCluster], object]) -> None:
    scene, deadline = setting.scene, time.monotonic() + MOMENT_SECONDS
    while scene.watched.logged() < STEPS_LOOKED_AT and scene.driver.poll() is None:
        if time.monotonic() > deadline:
            return  # The moment will not come either.
        look(setting.cluster)
        time.sleep(PAUSE_SECONDS)


def _bring_about(setting: Setting, outcome: Outcome) -> None:
    """Waits for the moment, does what is to be done, and waits for the end of the job."""
    driver, fault, scene = setting.scene.driver, setting.fault, setting.scene
    arrived = wait_for(
        setting.cell.moment, scene.watched, lambda: driver.poll() is not None, MOMENT_SECONDS
    )
    if not arrived:
        outcome.failings.append("the moment did not come")
        outcome.end = "not reached"
        outcome.message = setting.said()[-300:]
        return
    began = time.monotonic()
    fault.inject(scene)
    began += fault.lasts
    outcome.failings.extend(f"left while it lasted: {one}" for one in scene.left)
    allowed = FINISH_SECONDS if fault.finishes else PROMISED_SECONDS + HANG_SECONDS
    first, logged = time.monotonic(), scene.watched.logged()
    while driver.poll() is None and time.monotonic() - began < allowed:
        time.sleep(0.1)
        since = time.monotonic() - first
        if since > PROMISED_SECONDS and scene.watched.logged() > logged + STEPS_MADE:
            # It survived, and has so many steps to make that nobody waits for the last.
            _tell_to_end(driver)
            outcome.end = TOLD_TO_END
            return
    if driver.poll() is None:
        outcome.end = "hang"
        outcome.failings.append(f"hang: no end after {allowed:.0f} s")
        return
    outcome.seconds = round(max(time.monotonic() - began, 0.0), 1)
    evaluates = setting.cell.moment == EVALUATION
    more = SPARKS_SECONDS + WAIT_SECONDS if evaluates else 0.0
    judge_end(fault, driver.returncode, setting.said(), outcome, more)
    if outcome.end == "error":
        _judge_blame(setting, outcome)


def _tell_to_end(driver: subprocess.Popen[bytes]) -> None:
    """Ends a job as a scheduler does."""
    for one in psutil.Process(driver.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if "pipelines.cli" in " ".join(one.cmdline()) and one.name().startswith("python"):
                one.terminate()
    driver.wait(PROMISED_SECONDS)


def _judge_blame(setting: Setting, outcome: Outcome) -> None:
    """Whom the error names."""
    if setting.cell.moment == EVALUATION and "engine " not in outcome.message:
        return
    named = re.search(BLAME, outcome.message)
    if named is None or named[1] != setting.case.make().name:
        if setting.fault.blames:
            outcome.failings.append("the engine is not named")
        return
    victim = setting.scene.victim
    if not setting.fault.blames or victim is None:
        return
    if named[3] is None:
        outcome.failings.append("no host is named")
    elif named[3] != victim.name:
        outcome.failings.append(f"host {named[3]} is named, and it was {victim.name}")
    elif named[2] is None and not _has_no_rank(setting, outcome.message):
        outcome.failings.append("no rank is named")


def _has_no_rank(setting: Setting, message: str) -> bool:
    """Whether it is a server, or there are no ranks yet: dllib gives them with its first step."""
    is_before_ranks = setting.case.loop in job.DLLIB and setting.cell.moment == "starting"
    return is_before_ranks or "parameter server" in message


def _look_for_leftovers(setting: Setting, outcome: Outcome) -> None:
    hosts = setting.cluster.hosts

    def left() -> list[str]:
        found = [line for host in hosts for line in leftovers(host)]
        if setting.fault.cuts:
            # Spark's own processes wait for Spark's own deadlines there.
            return [line for line in found if line.endswith(WATCHDOG)]
        return found

    wait_for_none_left(left, outcome)


def _restore_lanes(setting: Setting) -> None:
    shutil.rmtree(setting.prepared / "lanes")
    shutil.copytree(setting.pristine / "lanes", setting.prepared / "lanes")


def _go_on(setting: Setting, outcome: Outcome) -> None:
    """Resumes a run with another engine, on one worker, and compares all of its steps."""
    newest = newest_whole_checkpoint(setting.run) or 0 if setting.run.is_dir() else 0
    outcome.resumed = newest
    steps = newest + MORE
    config = job.alone(setting.config, setting.pristine, steps)
    log = setting.folder / "resumed.log"
    command = job.command_of(config, setting.folder / "resumed.yaml", "in a step", {})
    code = setting.cluster.start(command, log).wait(FINISH_SECONDS)
    if code != 0:
        outcome.failings.append(f"it cannot be resumed: {log.read_text()[-300:]}")
        return
    _check_losses(setting, outcome, steps)
    _check_folder(setting, outcome, steps)


def _check_model(setting: Setting, outcome: Outcome) -> None:
    """Compares a run that has finished with what it is without a fault."""
    _check_losses(setting, outcome, setting.steps)
    _check_folder(setting, outcome, setting.steps)


def _check_losses(setting: Setting, outcome: Outcome, steps: int) -> None:
    made, losses = job.losses_of(setting.run)
    missing = sorted(set(range(1, steps + 1)) - set(made))
    reported = (outcome.resumed or 0) - len(missing)
    is_last = missing == [*range(reported + 1, reported + len(missing) + 1)]
    # Of a run that is told to end, the driver does not hear what each worker has just made.
    told = setting.config.training.workers if outcome.end == TOLD_TO_END else 0
    unreported = max(setting.fault.unreported, told)
    if made != sorted(set(made)) or not is_last or len(missing) > unreported:
        outcome.failings.append(f"steps are missing or twice there: {len(made)} of {steps}")
        return
    if not np.isfinite(losses).all():
        outcome.failings.append("a loss is not finite")
    if setting.case.equivalent and setting.case.repeats:
        framework = job.framework_of(setting.config)
        expected = job.reference_losses(setting.pristine, framework, steps)
        compared = [place for place, step in enumerate(made) if step <= len(expected)]
        wanted = expected[[made[place] - 1 for place in compared]]
        apart = np.abs(losses[compared] - wanted)
        if not np.allclose(losses[compared], wanted, **CLOSE):
            outcome.failings.append(f"wrong losses: up to {apart.max():.2g} apart")


def _check_folder(setting: Setting, outcome: Outcome, steps: int) -> None:
    """The model is that of the last checkpoint, and nothing unfinished lies beside it."""
    _, exported = read_encoder(setting.run / "model")
    last = load_checkpoint(setting.run, steps).encoder_weights
    same = all(np.array_equal(value, exported.get(name)) for name, value in last.items())
    if not same:
        outcome.failings.append("the model is not that of the last checkpoint")
    asides = [one.name for one in setting.run.rglob(".*") if one.name.endswith((".part", ".gone"))]
    outcome.failings.extend(f"left in the run folder: {name}" for name in asides)
    if list(accepted_checkpoints(setting.run))[-1] != steps:
        outcome.failings.append("another checkpoint than the last one counts")
