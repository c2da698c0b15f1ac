"""What is done to a training, by name, and what a user may expect of it then."""

from __future__ import annotations

import math
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from engine_cases import EngineCase
from hosts import Host

from faults import processes
from faults.disk import Disk
from faults.moments import MOMENTS, Watched
from faults.network import delayed, lossy, slow

ANY = tuple(MOMENTS)
STEPS_ALONE = ("first step", "in a step", "checkpoint")
AWAY_SECONDS, GONE_SECONDS = 10.0, 60.0
SLOW_SHARE, SLICE_SECONDS = 0.1, 0.1
CLOCK_SECONDS = -3600
PORTS = (2222, 4000, 5000, 29500)
"""At which TensorFlow, Elephas, Flask and torchrun listen unless they are told where."""


@dataclass
class Scene:
    """A training and all that something can be done to.

    Attributes:
        watched: The training.
        driver: The process that this machine started for it.
        disk: Of its folder.
        lanes: Folder of what it trains on, a copy of its own.
        clock: The file that says by how many seconds the clock of the last host is off.
        undoing: What ends the fault; run when the outcome is known.
        victim: The host that it was done to, once it was, if to one.
        left: What should have ended while the fault lasted.
    """

    watched: Watched
    driver: subprocess.Popen[bytes]
    disk: Disk
    lanes: Path
    clock: Path
    undoing: ExitStack = field(default_factory=ExitStack)
    victim: Host | None = None
    left: list[str] = field(default_factory=list)

    @property
    def driver_host(self) -> Host:
        return self.watched.cluster.driver_host

    @property
    def last_host(self) -> Host:
        return self.watched.cluster.hosts[-1]

    @property
    def workers_hosts(self) -> Sequence[Host]:
        """The last one first."""
        return tuple(reversed(self.watched.cluster.hosts[1:]))


Inject = Callable[[Scene], None]


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong.

    Attributes:
        label: What it is, for the page.
        inject: Does it.
        prepare: Looks for what it needs before the moment comes, which may be short.
        moments: When it can be.
        needs: `watched` where workers are processes of ours, `servers` where there are parameter
            servers on executors; empty for every engine.
        finishes: Whether the training must end well.
        blames: Whether an error must name the host that it was done to.
        cause: What an error must say, as a regular expression.
        ends_driver: Whether the driver is gone with it, and says nothing more.
        cuts: Whether a host cannot end what it runs before the fault is over.
        lasts: Seconds for which nobody can do anything.
        unreported: How many steps at most may have been made, and saved in a checkpoint, that the
            driver has not heard of, so that its log lacks them.
    """

    label: str
    inject: Inject
    moments: tuple[str, ...] = ANY
    needs: str = ""
    finishes: bool = False
    blames: bool = True
    cause: str = ""
    ends_driver: bool = False
    cuts: bool = False
    lasts: float = 0.0
    unreported: float = 0

    def meets(self, case: EngineCase) -> bool:
        """Whether trainings of an engine have what it is done to."""
        has_server = case.training.get("mode") == "async" and case.launch == "tensorflowonspark"
        return {"": True, "watched": case.watched, "servers": has_server}[self.needs]


def _send(find: Callable[[Host], list[psutil.Process]], number: int) -> Inject:
    """Sends a signal to processes of the last host that has some."""

    def inject(scene: Scene) -> None:
        for host in scene.workers_hosts:
            if found := find(host):
                scene.victim = host
                for one in found:
                    with suppress(psutil.NoSuchProcess):
                        one.send_signal(number)
                scene.undoing.callback(_wake, found)
                return
        raise LookupError("there is nothing of the kind on any host")

    return inject


def _wake(found: Sequence[psutil.Process]) -> None:
    for one in found:
        with suppress(psutil.NoSuchProcess):
            one.send_signal(signal.SIGCONT)


def _workers(host: Host) -> list[psutil.Process]:
    """Those that train; before they have begun, what is to become them."""
    serving = {one.pid for one in processes.servers(host)}
    others = {one.pid for one in processes.trainers(host)}
    trainers = [one for one in processes.trainers(host) if one.pid not in serving]
    return (trainers or processes.trainers(host)) if others else processes.python_workers(host)


def _driver_tree(scene: Scene) -> list[psutil.Process]:
    """Its Python and its JVM; what waits for them on this machine is none of it."""
    found = scene.driver_host.processes("pipelines.cli")
    return found + [child for one in found for child in one.children(recursive=True)]


def _kill_driver(scene: Scene) -> None:
    for one in scene.driver_host.processes("pipelines.cli"):
        one.kill()


def _stop_driver(scene: Scene) -> None:
    """For a minute, in which its workers end."""
    found = _driver_tree(scene)
    for one in found:
        one.suspend()
    scene.undoing.callback(_wake, found)
    time.sleep(GONE_SECONDS)
    scene.left = [
        f"{host.name}: a worker" for host in scene.workers_hosts for _ in processes.trainers(host)
    ]
    _wake(found)


def _cut_off(choose: Callable[[Scene], Host]) -> Inject:
    def inject(scene: Scene) -> None:
        scene.victim = choose(scene)
        scene.victim.cut_off()
        scene.undoing.callback(scene.victim.join)

    return inject


def _cut_off_for_a_while(scene: Scene) -> None:
    scene.last_host.cut_off()
    time.sleep(AWAY_SECONDS)
    scene.last_host.join()


def _bad_cable(kind: Callable[[Host], object]) -> Inject:
    def inject(scene: Scene) -> None:
        scene.undoing.enter_context(kind(scene.last_host))  # type: ignore[arg-type]

    return inject


def _lane_files(scene: Scene) -> list[Path]:
    return sorted(one for one in scene.lanes.rglob("*.arrow") if one.is_file())


def _truncate_lanes(scene: Scene) -> None:
    for one in _lane_files(scene):
        one.write_bytes(one.read_bytes()[: one.stat().st_size // 2])


def _change_lanes(scene: Scene) -> None:
    """Flips a bit of every thousandth byte, in place, as disks do."""
    for one in _lane_files(scene):
        with one.open("r+b") as file:
            content = bytearray(file.read())
            content[500::1000] = bytes(value ^ 1 for value in content[500::1000])
            file.seek(0)
            file.write(content)


def _fill_disk(scene: Scene) -> None:
    scene.undoing.callback(scene.disk.empty)
    scene.disk.fill()


def _freeze_disk(scene: Scene) -> None:
    scene.disk.freeze()
    try:
        time.sleep(GONE_SECONDS)
    finally:
        scene.disk.thaw()


def _tear_checkpoint(scene: Scene) -> None:
    """The newest checkpoint is short, and the driver gone: as after a loss of power."""
    _kill_driver(scene)
    whole = sorted((scene.watched.run / "checkpoints").glob("step-*/model.safetensors"))
    for one in whole[1:][-1:]:
        one.write_bytes(one.read_bytes()[:-100])


def _set_clock(scene: Scene) -> None:
    scene.clock.write_bytes(CLOCK_SECONDS.to_bytes(8, "little", signed=True))


def _take_ports(scene: Scene) -> None:
    listen = f"import socket, time; a = [{processes.LISTENER}(('', p)) for p in {PORTS}]"
    for host in scene.watched.cluster.hosts:
        command = ["python3", "-ISE", "-c", f"{listen}; time.sleep(3600)"]
        listener = host.start(command, scene.watched.log.with_name("listener.log"))
        scene.undoing.callback(listener.kill)
        scene.undoing.callback(host.signal, processes.LISTENER)


def _slow_down(scene: Scene) -> None:
    """Has the executor of the last host run for a tenth of the time, by turns."""
    is_over = threading.Event()

    def by_turns() -> None:
        while not is_over.wait(SLICE_SECONDS * SLOW_SHARE):
            found = [*processes.executors(scene.last_host), *_workers(scene.last_host)]
            for one in found:
                with suppress(psutil.NoSuchProcess):
                    one.suspend()
            is_over.wait(SLICE_SECONDS * (1 - SLOW_SHARE))
            _wake(found)

    turning = threading.Thread(target=by_turns, daemon=True)
    turning.start()
    scene.undoing.callback(turning.join)
    scene.undoing.callback(is_over.set)


def _exhaust_memory(scene: Scene) -> None:
    """Leaves a worker no address space beyond what it has."""
    for host in scene.workers_hosts:
        if found := _workers(host):
            scene.victim = host
            for one in found:
                with suppress(psutil.NoSuchProcess):
                    one.rlimit(psutil.RLIMIT_AS, (1 << 20, 1 << 20))
            return


SILENT = r"nothing was heard of it for |the worker's process died|its executor has ended"
DIED = r"the worker's process died|its executor has ended|was lost|was killed"
NO_ROOM = r"No space left|is full|no room"

FAULTS = {
    "worker killed": Fault(
        "a worker's process is killed (`-9`)",
        _send(_workers, signal.SIGKILL),
        needs="watched",
        unreported=1,
    ),
    "worker stopped": Fault(
        "a worker's process hangs (`-STOP`)",
        _send(_workers, signal.SIGSTOP),
        needs="watched",
        unreported=1,
    ),
    "executor killed": Fault(
        "an executor's JVM is killed (`-9`)",
        _send(processes.executors, signal.SIGKILL),
        unreported=1,
    ),
    "executor stopped": Fault(
        "an executor hangs, JVM and Python (`-STOP`)",
        _send(lambda host: [*processes.executors(host), *_workers(host)], signal.SIGSTOP),
        unreported=1,
    ),
    "server killed": Fault(
        "a parameter server on an executor is killed (`-9`)",
        _send(processes.servers, signal.SIGKILL),
        needs="servers",
    ),
    "driver killed": Fault(
        "the driver is killed (`-9`)", _kill_driver, ends_driver=True, unreported=math.inf
    ),
    "driver stopped": Fault(
        "the driver hangs for a minute (`-STOP`)",
        _stop_driver,
        blames=False,
        lasts=GONE_SECONDS,
        unreported=math.inf,
    ),
    "host cut off": Fault(
        "a worker's host loses its network for good",
        _cut_off(lambda at: at.last_host),
        cuts=True,
        unreported=1,
    ),
    "host away 10 s": Fault(
        "a worker's host has no network for 10 s", _cut_off_for_a_while, finishes=True
    ),
    "driver's host cut off": Fault(
        "the driver's host loses its network for good",
        _cut_off(lambda at: at.driver_host),
        blames=False,
        cuts=True,
        unreported=math.inf,
    ),
    "5 % loss": Fault("a host's network loses 5 % of the frames", _bad_cable(lossy), finishes=True),
    "200 ms delay": Fault(
        "a host is 200 ms away, there and back", _bad_cable(delayed), finishes=True
    ),
    "1 Mbit/s": Fault("a host has 1 Mbit/s", _bad_cable(slow), finishes=True),
    "lanes truncated": Fault(
        "the lane files are cut to half",
        _truncate_lanes,
        moments=("starting", *STEPS_ALONE),
        blames=False,
        cause=r"lane|\.arrow",
    ),
    "lanes changed": Fault(
        "bytes of the lane files change",
        _change_lanes,
        moments=("starting", *STEPS_ALONE),
        blames=False,
        cause=r"lane|\.arrow",
    ),
    "disk full": Fault("the run's disk gets full", _fill_disk, blames=False, cause=NO_ROOM),
    "checkpoint torn": Fault(
        "the driver is killed, and its newest checkpoint is short",
        _tear_checkpoint,
        moments=("in a step", "checkpoint", "last step"),
        ends_driver=True,
        unreported=math.inf,
    ),
    "clock set back": Fault("a host's clock is set back by an hour", _set_clock, finishes=True),
    "ports taken": Fault(
        "somebody listens at the libraries' usual ports",
        _take_ports,
        moments=("starting",),
        finishes=True,
    ),
    "slow executor": Fault(
        "an executor is ten times slower than the other", _slow_down, finishes=True
    ),
    "no memory": Fault(
        "a worker gets no more memory", _exhaust_memory, moments=STEPS_ALONE, needs="watched"
    ),
    "folder gone 60 s": Fault(
        "the run's file system does not answer for 60 s",
        _freeze_disk,
        blames=False,
        lasts=GONE_SECONDS,
    ),
}
