"""The folders of a session on this machine: where its workers work, and where it keeps blocks.

Spark has workers work in ``SPARK_HOME/work``, which no conf changes. That is a folder of the
environment: it may be read-only, nobody empties it, and sessions that begin in the same second meet
in it. So the JVM is given a SPARK_HOME of its own: links to what the installed one holds, and an
empty ``work``, which it deletes when it ends.

It lies among the temporary files, since that is where every user may write, on a disk of this
machine; a home may be on NFS, read-only or short of room, and a notebook that is killed would leave
it there for good. But links do not age well: systemd removes from there what has not been touched
for ten days, and an executor that a notebook starts later would find no jars. Of a folder that
somebody has locked it removes nothing, see "Automatic clean-up" on
https://systemd.io/TEMPORARY_DIRECTORIES; so this process locks it.

Blocks and shuffles of the driver lie right in `spark.local.dir`, mostly `/tmp`, in folders and
files that every user of the machine may read. So a session has a folder of its own there, of mode
700.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from pipelines.spark.class_archive import spark_home
from pipelines.spark.jvm_options import default_of
from pipelines.variables import variable_set

_HOME = "SPARK_HOME"
_WORK = "work"
_LOCAL = "spark.local.dir"
_LOCAL_FOLDERS = "SPARK_LOCAL_DIRS"
_locked: list[int] = []
"""Descriptors of the folders of this process, which stay open as long as it lives."""


@contextmanager
def own_work_folder() -> Iterator[None]:
    """Gives the driver's JVM, which is started inside the block, a work folder of its own.

    Raises:
        OSError: There is no room for temporary files.
    """
    from pyspark import SparkContext

    theirs = os.environ.get(_HOME)
    home = _linked(Path(theirs or spark_home()))
    try:
        with variable_set(_HOME, str(home)):
            yield
        jvm = SparkContext._jvm
        assert jvm is not None, "the block starts it"
        # In the JVM, which has ended its executors by then, and outlives a driver that is killed.
        hooks = jvm.org.apache.spark.util.ShutdownHookManager
        hooks.registerShutdownDeleteDir(jvm.java.io.File(str(home)))
    except BaseException:
        shutil.rmtree(home, ignore_errors=True)
        raise


@contextmanager
def own_local_folders(conf: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Gives a session, which is started inside the block, places for blocks that nobody else reads.

    Args:
        conf: Of the session, by whole keys.

    Yields:
        What its conf is to have besides; nothing where Spark can write to none of its places.
    """
    from pyspark import SparkContext

    # For Spark, the variable comes before the conf; a JVM that runs has read it already.
    theirs = os.environ.get(_LOCAL_FOLDERS)
    said = theirs or conf.get(_LOCAL) or default_of(_LOCAL)
    places = (said or tempfile.gettempdir()).split(",")
    is_late = theirs is not None and SparkContext._jvm is not None
    made = [] if is_late else [folder for place in places for folder in _private(place.strip())]
    whole = ",".join(made)
    try:
        with variable_set(_LOCAL_FOLDERS, whole) if made and theirs else nullcontext():
            yield {_LOCAL: whole} if made and not theirs else {}
        jvm = SparkContext._jvm
        assert jvm is not None, "the block starts it"
        for folder in made:
            hooks = jvm.org.apache.spark.util.ShutdownHookManager
            hooks.registerShutdownDeleteDir(jvm.java.io.File(folder))
    except BaseException:
        for folder in made:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _private(place: str) -> Iterator[str]:
    """A new folder there that its owner alone can read; none where there is no room for one."""
    with suppress(OSError):
        Path(place).mkdir(parents=True, exist_ok=True)
        yield tempfile.mkdtemp(prefix="spark-", dir=place)


def _linked(home: Path) -> Path:
    """A temporary folder that holds what a folder does, with an empty work folder."""
    linked = Path(tempfile.mkdtemp(prefix="sentence-pipelines-", suffix="-spark"))
    for entry in home.resolve().iterdir():
        if entry.name != _WORK:
            (linked / entry.name).symlink_to(entry)
    (linked / _WORK).mkdir()
    _lock(linked)
    return linked


def _lock(folder: Path) -> None:
    """Keeps a folder from being emptied by systemd until this process ends."""
    descriptor = os.open(folder, os.O_RDONLY)
    _locked.append(descriptor)
    with suppress(OSError):  # A file system without locks: such a folder ages as before.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
