"""Spark's Java: matching releases, its options, and the folders of a session.

With an archive of Spark's classes in the environment, a session starts from it. At its start Spark
loads and checks about ten thousand classes. A JVM can map them from the file of an earlier one
(`environment/build_class_archive.py`); see "Class Data Sharing" in the guide of the Java virtual
machine, and JEP 350. A JVM checks whether an archive fits to it and to its class path, and
otherwise loads the classes as ever.

JVMs of a local session live for minutes. They compile hot code at once, and once more with all
optimisations (C2). In a short session the second compiler takes as much CPU time as all else.

Spark's workers work in ``SPARK_HOME/work``, and no conf changes it. This folder of the environment
may be read-only, nobody empties it, and sessions with a start in the same second collide in it. So
the JVM gets a temporary SPARK_HOME: links to the content of the installed one, and an empty
``work``. A home directory would not do: it may be on NFS, read-only or short of room. systemd
removes temporary files after ten days without use, unless their folder is locked
(https://systemd.io/TEMPORARY_DIRECTORIES), so this process locks it.

The driver's blocks and shuffles lie right in `spark.local.dir`, mostly `/tmp`, in folders and files
readable by every user of the machine. So a session has its own folder there, of mode 700.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.errors import EngineUnavailable, InputError
from pipelines.variables import variable_set

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession


_JAVA_SECONDS = 30.0
FOLDER = Path(sys.prefix) / "share" / "sentence-pipelines"
"""A part of the environment, so removing the environment removes the archive."""
# Where an archive does not fit, a JVM would print warnings to standard output.
_QUIET = "-Xlog:cds*=off"
SMALL_HEAP_MB = 2048
"""One thread collects heaps up to this size: other collectors' threads need CPU, too."""
# Twenty times HotSpot's thresholds: a job of hours still gets code with all optimisations.
_LATE_C2 = (
    "-XX:Tier4InvocationThreshold=100000",
    "-XX:Tier4MinInvocationThreshold=12000",
    "-XX:Tier4CompileThreshold=300000",
    "-XX:Tier4BackEdgeThreshold=800000",
)
# A driver without tasks only plans jobs, and no method of it reaches the thresholds.
_NO_C2 = ("-XX:TieredStopAtLevel=1",)
# Otherwise a JVM collects all its heap each time that its classes outgrow 21 MB, 36 MB and so on.
_ROOM_FOR_CLASSES = ("-XX:MetaspaceSize=192m",)
_DEFAULT = re.compile(r"^[ \t]*([^\s=:#]+)[ \t=:]+(.*\S)", re.MULTILINE)
SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""The environment variable by which spark-submit tells the process that it starts of its JVM."""
_COLLECTOR = re.compile(r"-XX:\+Use\w+GC\b")
_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
_HOME = "SPARK_HOME"
_WORK = "work"
_LOCAL = "spark.local.dir"
_LOCAL_FOLDERS = "SPARK_LOCAL_DIRS"
_locked: list[int] = []
"""Descriptors of this process's locked folders, open as long as it lives."""


@dataclass(frozen=True)
class Release:
    """The common properties of a major release.

    ``scala`` is the version of its jars and extensions. ``java`` is the oldest to start on.
    """

    major: int
    scala: str
    java: int


# Source: the page "Overview" of the documentation of 3.5.9, and of 4.0.5.
RELEASES = (Release(3, scala="2.12", java=8), Release(4, scala="2.13", java=17))


def release_of(version: str) -> Release:
    """Return the release of a Spark version such as `4.0.5` or `3.5.0-amzn-1`.

    A later version than any here counts as the last.
    """
    major = int(version.partition(".")[0])
    known = (release for release in RELEASES if release.major <= major)
    return max(known, key=lambda release: release.major)


def installed_version() -> str:
    """Return the version of this process's Spark."""
    import pyspark

    return str(pyspark.__version__)


def valid_text(column: Column) -> Column:
    """Return a string column with U+FFFD for invalid UTF-8; Spark itself leaves it in place.

    Spark 4 has a function for it, and its `decode` refuses invalid bytes; 3.5's replaces them.
    """
    from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

    make_valid: Callable[[Column], Column] | None = getattr(F, "make_valid_utf8", None)
    return F.decode(column.cast("binary"), "UTF-8") if make_valid is None else make_valid(column)


def check_spark(engine: str, majors: Iterable[int]) -> None:
    """Refuse an engine compiled for other major releases of Spark than the installed one.

    Raises:
        EngineUnavailable: Naming both, and what to install.
    """
    version = installed_version()
    found = release_of(version)
    wanted = [release for release in RELEASES if release.major in majors]
    if found in wanted:
        return
    listed = " or ".join(f"Spark {release.major} (Scala {release.scala})" for release in wanted)
    raise EngineUnavailable(
        "training.engine",
        f"engine {engine} runs only on {listed}, and this is Spark {version} (Scala {found.scala})",
        "Choose another engine, such as torch, or run "
        f'`pip install "pyspark<{wanted[-1].major + 1}"`',
    )


def check_python() -> None:
    """Refuse a Python without `distutils` if the installed Spark imports it.

    Raises:
        InputError: The module has left the standard library, and no package brings it.
    """
    version = installed_version()
    if release_of(version).major < 4 and find_spec("distutils") is None:
        python = ".".join(map(str, sys.version_info[:2]))
        raise InputError(
            "spark.master",
            f"Spark {version} imports distutils, which Python {python} does not have",
            "Run `pip install setuptools` on the driver and every executor",
        )


def check_java() -> None:
    """Refuse a Java too old for the installed Spark.

    Called after a failed start: a JVM only for this question would delay every session.

    Raises:
        InputError: It is too old, naming both.
    """
    found, version = java_version(), installed_version()
    needed = release_of(version).java
    if found is not None and found < needed:
        raise InputError(
            "spark.master",
            f"Spark {version} needs Java {needed}, and this is Java {found}",
            "Set JAVA_HOME to a newer one",
        )


def java_version() -> int | None:
    """Return the major version of Spark's Java; None if unknown."""
    home = os.environ.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else Path("java")
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_JAVA_SECONDS, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    # Java 8 calls itself 1.8.
    number = re.search(r'version "(?:1\.)?(\d+)', answer.stderr)
    return int(number[1]) if number else None


def has_connector(session: SparkSession, provider: str) -> bool:
    """Return whether a session can read tables of a kind: `delta` or `iceberg`."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        # There is nothing to read: with a connector, Spark reports that by another error. A session
        # of Spark Connect reports errors only when asked for the columns.
        _ = session.read.format(provider).load("file:///sentence-pipelines/no-table").schema
    except (PySparkException, Py4JJavaError) as error:
        return not lacks_connector(error)
    return True


def lacks_connector(error: Exception) -> bool:
    """Return whether Spark failed because it knows no such kind of table."""
    return "DATA_SOURCE_NOT_FOUND" in str(error) or "ClassNotFound" in str(error)


def delta_connector(version: str) -> str:
    """Return the remedy for a cluster of a Spark version without Delta tables."""
    return (
        f"Add the package io.delta:delta-spark_{release_of(version).scala} to "
        "spark.jars.packages, and set "
        "spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension and "
        "spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog"
    )


def iceberg_connector(version: str) -> str:
    """Return the remedy for a cluster of a Spark version without Iceberg tables."""
    numbers = ".".join(version.split(".")[:2])
    return (
        "Add the package org.apache.iceberg:iceberg-spark-runtime-"
        f"{numbers}_{release_of(version).scala} to spark.jars.packages, and set "
        "spark.sql.extensions=org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions "
        "and spark.sql.catalog.<catalog>=org.apache.iceberg.spark.SparkCatalog"
    )


def archive_options() -> tuple[str, ...]:
    """Return the options to start a JVM from the archive; none without an archive."""
    found = archive_path()
    if not found.is_file():
        return ()
    return (shlex.quote(f"-XX:SharedArchiveFile={found}"), _QUIET)


def archive_path() -> Path:
    """Return the path of the archive for the installed Spark, present or not.

    Its name has a digest of the jars: a JVM takes no archive of other files' classes.
    """
    jars = sorted((spark_home() / "jars").glob("*.jar"))
    stats = [(jar, jar.stat()) for jar in jars]
    stamps = [f"{jar} {stat.st_size} {stat.st_mtime_ns}" for jar, stat in stats]
    digest = hashlib.sha256("\n".join(stamps).encode()).hexdigest()[:16]
    return FOLDER / f"spark-{digest}.jsa"


def spark_home() -> Path:
    """Return the folder of the installed Spark, found without importing it."""
    spec = find_spec("pyspark")
    assert spec is not None and spec.origin is not None, "sessions are Spark's"
    return Path(spec.origin).parent


def brief_options(heap_mb: float, *, runs_tasks: bool, any_collector: bool) -> str:
    """Return the options of a JVM of a local session."""
    is_small = any_collector and heap_mb <= SMALL_HEAP_MB
    collector = ("-XX:+UseSerialGC",) if is_small else ()
    compiler = _LATE_C2 if runs_tasks else _NO_C2
    return " ".join((*collector, *compiler, *_ROOM_FOR_CLASSES, *archive_options()))


def names_collector(conf: Mapping[str, str]) -> bool:
    """Return whether the user names a garbage collector: a JVM with two does not start.

    Looks at the session's conf, the environment and Spark's file of defaults.
    """
    options = [value for key, value in conf.items() if key.endswith("JavaOptions")]
    options += [os.environ.get(name, "") for name in _VARIABLES]
    return any(_COLLECTOR.search(text) for text in (*options, defaults_file()))


def defaults_file() -> str:
    """Return the content of Spark's `spark-defaults.conf`; empty without one."""
    home = Path(os.environ.get("SPARK_HOME") or spark_home())
    file = Path(os.environ.get("SPARK_CONF_DIR") or home / "conf", "spark-defaults.conf")
    return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""


def default_of(key: str) -> str | None:
    """Return the value of a key in Spark's file of defaults; None without one."""
    return defaults().get(key)


def defaults() -> dict[str, str]:
    """Return the conf in Spark's file of defaults."""
    return dict(_DEFAULT.findall(defaults_file()))


@contextmanager
def own_work_folder() -> Iterator[None]:
    """Give the driver's JVM, started inside the block, its own work folder.

    Raises:
        OSError: There is no room for temporary files.
    """
    home = str(_linked(Path(os.environ.get(_HOME) or spark_home())))
    with _deleted_with_the_jvm([home]), variable_set(_HOME, home):
        yield


@contextmanager
def own_local_folders(conf: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Give a session, started inside the block, private places for its blocks.

    Yields additions to its conf; none if Spark can write to none of its places.
    """
    from pyspark import SparkContext

    # For Spark, the variable comes before the conf; a JVM that runs has read it already.
    variable = os.environ.get(_LOCAL_FOLDERS)
    configured = variable or conf.get(_LOCAL) or default_of(_LOCAL)
    places = (configured or tempfile.gettempdir()).split(",")
    is_late = variable is not None and SparkContext._jvm is not None
    made = [] if is_late else [folder for place in places for folder in _private(place.strip())]
    joined = ",".join(made)
    replaced = variable_set(_LOCAL_FOLDERS, joined) if made and variable else nullcontext()
    with _deleted_with_the_jvm(made), replaced:
        yield {_LOCAL: joined} if made and not variable else {}


@contextmanager
def _deleted_with_the_jvm(folders: Sequence[str]) -> Iterator[None]:
    """Let the block's new JVM delete folders at its end; delete them after an error.

    By then it has ended its executors, and it outlives a killed driver.
    """
    from pyspark import SparkContext

    try:
        yield
        jvm = SparkContext._jvm
        assert jvm is not None, "the block starts it"
        for folder in folders:
            hooks = jvm.org.apache.spark.util.ShutdownHookManager
            hooks.registerShutdownDeleteDir(jvm.java.io.File(folder))
    except BaseException:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _private(place: str) -> Iterator[str]:
    """Yield a new folder of mode 700; none without room."""
    with suppress(OSError):
        Path(place).mkdir(parents=True, exist_ok=True)
        yield tempfile.mkdtemp(prefix="spark-", dir=place)


def _linked(home: Path) -> Path:
    """Return a temporary folder of links to a folder's content, with an empty work folder."""
    linked = Path(tempfile.mkdtemp(prefix="sentence-pipelines-", suffix="-spark"))
    for entry in home.resolve().iterdir():
        if entry.name != _WORK:
            (linked / entry.name).symlink_to(entry)
    (linked / _WORK).mkdir()
    _lock(linked)
    return linked


def _lock(folder: Path) -> None:
    """Keep systemd from emptying a folder until this process ends."""
    descriptor = os.open(folder, os.O_RDONLY)
    _locked.append(descriptor)
    with suppress(OSError):  # On a file system without locks the folder ages as before.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
