"""The folder in which the workers of a local cluster work.

Spark has them work in ``SPARK_HOME/work``, which no conf changes. That is a folder of the
environment: it may be read-only, nobody empties it, and sessions that begin in the same second meet
in it. So the JVM is given a SPARK_HOME of its own: links to what the installed one holds, and an
empty ``work``, which it deletes when it ends.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipelines.spark.class_archive import spark_home

_HOME = "SPARK_HOME"
_WORK = "work"


@contextmanager
def own_work_folder() -> Iterator[None]:
    """Gives the driver's JVM, which is started inside the block, a work folder of its own.

    Raises:
        OSError: There is no room for temporary files.
    """
    from pyspark import SparkContext

    theirs = os.environ.get(_HOME)
    home = _linked(Path(theirs or spark_home()))
    os.environ[_HOME] = str(home)
    try:
        yield
        jvm = SparkContext._jvm
        assert jvm is not None, "the block starts it"
        # In the JVM, which has ended its executors by then, and outlives a driver that is killed.
        hooks = jvm.org.apache.spark.util.ShutdownHookManager
        hooks.registerShutdownDeleteDir(jvm.java.io.File(str(home)))
    except BaseException:
        shutil.rmtree(home, ignore_errors=True)
        raise
    finally:
        if theirs is None:
            del os.environ[_HOME]
        else:
            os.environ[_HOME] = theirs


def _linked(home: Path) -> Path:
    """A temporary folder that holds what a folder does, with an empty work folder."""
    linked = Path(tempfile.mkdtemp(prefix="sentence-pipelines-", suffix="-spark"))
    for entry in home.resolve().iterdir():
        if entry.name != _WORK:
            (linked / entry.name).symlink_to(entry)
    (linked / _WORK).mkdir()
    return linked
