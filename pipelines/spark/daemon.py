"""Spark's Python daemon for engines, with their framework imported before workers are forked.

Runs on executors, by ``spark.python.daemon.module``. Spark starts one for each set of environment
variables of its Python workers, and forks these from it. Forking is safe before any computation:
TensorFlow and PyTorch start their threads, and look for GPUs, at their first operation instead of
their import.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path

from pipelines.quiet import quiet_import

MODULE = "pipelines.spark.daemon"
PRELOAD = "SENTENCE_PIPELINES_PRELOAD"
"""Environment variable with the modules to import, separated by spaces."""
LOOK_SECONDS = 4.0
IDLE_LOOKS = 4


def main() -> None:
    """Import the workers' modules, and become Spark's own daemon."""
    modules = os.environ.get(PRELOAD, "").split()
    _leave_archives()
    try:
        _import(modules)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a worker raises it again, and is heard
        print(f"{MODULE}: {' '.join(modules)}: {error!r}", file=sys.stderr, flush=True)
        # In a new process: a second import of some libraries gives another error than the first.
        os.execv(sys.executable, [sys.executable, "-m", "pyspark.daemon", *sys.argv[1:]])
    from pyspark.daemon import manager

    if modules:
        _end_when_idle()
    # Workers' garbage collections then skip the modules, and copy none of their pages.
    gc.collect()
    gc.freeze()
    manager()  # type: ignore[no-untyped-call]


def _leave_archives() -> None:
    """Import pyspark and py4j from their folders, if Spark's archives are of the same installation.

    Spark puts the archives in front, and its core's jar. At the start of each task a worker reads
    the directory of an archive again, once for every package imported from it; that of the jar
    takes 35 ms. Archives hold no compiled modules.
    """
    found = [PathFinder.find_spec(name, _without_archives()) for name in ("pyspark", "py4j")]
    if not all(spec is not None and spec.origin is not None for spec in found):
        return
    home = Path(str(found[0] and found[0].origin)).resolve().parent
    archives = {home / "python" / "lib", home / "jars"}
    path = [entry for entry in sys.path if Path(entry).resolve().parent not in archives]
    # With another installation's archives, its version counts.
    if path == _without_archives():
        left = tuple({*sys.path} - {*path})
        # And of the folders in them.
        for known in [known for known in sys.path_importer_cache if known.startswith(left)]:
            del sys.path_importer_cache[known]
        sys.path[:] = path


def _without_archives() -> list[str]:
    names = ("pyspark.zip", "py4j-", "spark-core_")
    return [entry for entry in sys.path if not Path(entry).name.startswith(names)]


def _end_when_idle() -> None:
    """End this process after a while without workers, to free its memory.

    Spark ends workers after an idle minute, and replaces an ended daemon.
    """
    idle = 0

    def look(*_: object) -> None:
        nonlocal idle
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            idle += 1
        else:
            idle = 0
        if idle > IDLE_LOOKS:
            os.kill(os.getpid(), signal.SIGTERM)

    # Forked workers inherit neither a timer nor a thread.
    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, LOOK_SECONDS, LOOK_SECONDS)


def _import(modules: list[str]) -> None:
    """Import modules, with nothing on standard output: Spark reads the daemon's port there."""
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        with quiet_import():
            for module in modules:
                import_module(module)
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


if __name__ == "__main__":
    main()
