"""Which processes of a host are what, while a training goes on."""

from __future__ import annotations

from contextlib import suppress

import psutil
from host_sockets import serves_other_hosts
from hosts import Host

EXECUTOR, DAEMON, WATCHDOG = "CoarseGrainedExecutorBackend", "spark.daemon", "watchdog.py"
SPARKS_OWN = ("org.apache.spark.deploy.",)
"""What is there before and after a job."""
_SPAWNER = "/jspawnhelper "
"""A JVM starts others by it; killed meanwhile, it may leave it waiting. Source: JDK-8307990."""
LISTENER = "socket.create_server"
"""In the command line of what a fault starts."""


def python_workers(host: Host) -> list[psutil.Process]:
    """The processes that Spark's daemons on a host have forked, and what these have started."""
    found = []
    for one in host.processes(DAEMON):
        with suppress(psutil.Error):
            if DAEMON in " ".join(one.parent().cmdline()):
                found.append(one)
    return found


def trainers(host: Host) -> list[psutil.Process]:
    """The workers that train and the parameter servers: a watchdog is beside each of them."""
    found = []
    for one in host.processes(WATCHDOG):
        with suppress(psutil.Error):
            found.append(one.parent())
    return [one for one in found if one is not None]


def servers(host: Host) -> list[psutil.Process]:
    """Those of them at which others of other hosts connect."""
    return [one for one in trainers(host) if serves_other_hosts(host, one)]


def executors(host: Host) -> list[psutil.Process]:
    """The JVMs of executors."""
    return host.processes(EXECUTOR)


def leftovers(host: Host) -> list[str]:
    """What runs on a host that is not Spark's own, the host's or a fault's, in a line each."""
    found = []
    for one in host.processes():
        with suppress(psutil.Error):
            line = " ".join(one.cmdline())
            if line and not any(part in line for part in (*SPARKS_OWN, LISTENER, _SPAWNER)):
                found.append(f"{host.name}: {one.pid} {_short(line)}")
    return found


def _short(line: str) -> str:
    for part in (EXECUTOR, WATCHDOG, DAEMON, "SparkSubmit"):
        if part in line:
            return part
    return line[:80]
