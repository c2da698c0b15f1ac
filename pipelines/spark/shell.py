"""The shell's influence on a session: variables for another Python, Java, Spark or conf.

Visible problems are refused before Spark starts, with the name of the variable. If Spark still does
not start, the error takes the cause from its JVM's output.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.errors import InputError
from pipelines.settings.redaction import is_secret
from pipelines.spark.java import installed_version, own_work_folder

if TYPE_CHECKING:
    from pyspark import SparkContext


LOOPBACK = "127.0.0.1"
PROBE_SECONDS = 5.0
_LOCAL_ADDRESS = "SPARK_LOCAL_IP"
_AUTHENTICATE = "spark.authenticate"
_SECRET = "spark.authenticate.secret"
ENCRYPTING = (
    "spark.network.crypto.enabled",
    "spark.ssl.rpc.enabled",
    "spark.ssl.enabled",
    "spark.authenticate.enableSaslEncryption",
)
_AT_START = ("spark.master", "spark.driver.", "spark.jars", "spark.submit.")
"""Conf that only the JVM's own start can set."""


PYTHON, JAVA, SPARK = "PYSPARK_PYTHON", "JAVA_HOME", "SPARK_HOME"
_SUBMIT_ARGS, _CONF_DIR = "PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR"
_AT_LAUNCH = (
    *(_SUBMIT_ARGS, "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"),
    *("SPARK_SUBMIT_OPTS", _CONF_DIR, SPARK, JAVA),
)
"""Variables that Spark's JVM follows when it starts, the rarest first."""
_SPARK_PYTHON = "spark.pyspark.python"
_ARCHIVES = "spark.archives"
_SECONDS = 120
_ASK = "import sys; print('%d.%d' % sys.version_info[:2]); import pipelines, pyspark, pyarrow"
# Spark's messages about Python workers that did not start.
_NO_WORKER = re.compile(
    r"reading the port number from|Cannot run program \"[^\"]*python|PYTHON_VERSION_MISMATCH"
)
# The Arrow of Spark 3.5 makes its buffers by a constructor that Java 21 lacks.
_NO_ARROW = "java.nio.DirectByteBuffer.<init>(long, int) not available"
_THROWN = re.compile(r"^(?:Exception in thread \"\S+\" |Error: )?(?:[\w.]+\.)?(\w+Exception: .+)$")
# Lines of a JVM's output that name no cause: frames, warnings, log lines, and bash's complaints.
_NOISE = re.compile(r"\s+at |WARNING: |Picked up |\d\d/\d\d/\d\d |.*bad array subscript")


def is_local(conf: Mapping[str, str]) -> bool:
    """Return whether a session is entirely local: `local[...]` and `local-cluster[...]`."""
    return conf.get("spark.master", "").startswith("local")


def has_workers(conf: Mapping[str, str]) -> bool:
    """Return whether a session starts Spark workers on this machine: `local-cluster[...]`."""
    return conf.get("spark.master", "").startswith("local-cluster")


def private_conf(conf: Mapping[str, str]) -> dict[str, str]:
    """Return conf to close a local session to other users; empty for another session.

    Its driver listens on loopback, and its processes authenticate with a secret of this session.
    Keys in ``conf`` stay.
    """
    if not is_local(conf):
        return {}
    private = {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
    if conf.get(_AUTHENTICATE, "true") == "true":
        private |= {_AUTHENTICATE: "true", _SECRET: secrets.token_hex(32)}
    return {key: value for key, value in private.items() if key not in conf}


def encrypting_key(context: SparkContext) -> str | None:
    """Return the cluster's conf key for encryption; None without one."""
    conf = context.getConf()
    return next((key for key in ENCRYPTING if str(conf.get(key, "")).lower() == "true"), None)


def start_jvm(conf: Mapping[str, str], log: Path) -> None:
    """Start the driver's JVM, if this process has none yet.

    The master, workers and executors of a local session listen on loopback, unless the user's
    environment names another address; no conf sets it. Workers have their own folder. The session
    hands secrets to the JVM: everybody on this machine can read arguments. The JVM's output goes to
    ``log``; no line of it is for the user.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._jvm is not None:
        return
    shown = [
        (key, value)
        for key, value in conf.items()
        if key.startswith(_AT_START) or not is_secret(key, value)
    ]
    sets_address = is_local(conf) and _LOCAL_ADDRESS not in os.environ
    if sets_address:
        os.environ[_LOCAL_ADDRESS] = LOOPBACK
    work_folder = own_work_folder() if has_workers(conf) else nullcontext()
    try:
        with work_folder, log.open("ab") as printed:
            asked = SparkConf(loadDefaults=False).setAll(shown)
            gateway = launch_gateway(asked, {"stderr": printed})  # type: ignore[no-untyped-call]
            SparkContext._ensure_initialized(gateway=gateway, conf=asked)
    finally:
        if sets_address:
            del os.environ[_LOCAL_ADDRESS]


def check_master(master: str) -> None:
    """Refuse a silent standalone master; leave other masters unchecked.

    Spark itself tries for minutes, with a session but without executors. Several addresses of one
    cluster are separated by commas.

    Raises:
        InputError: No address answers within a few seconds.
    """
    if not master.startswith("spark://"):
        return
    problems = []
    for address in master.removeprefix("spark://").split(","):
        found = re.fullmatch(r"\[?([^\[\]/]+?)\]?:(\d{1,5})", address.strip())
        if found is None:
            raise InputError("spark.master", f"`{master}` is no address", "Write spark://HOST:7077")
        try:
            with socket.create_connection((found[1], int(found[2])), timeout=PROBE_SECONDS):
                return
        except (OSError, OverflowError) as error:
            problems.append(f"{address}: {error}")
    raise InputError(
        "spark.master",
        f"nothing answers at {master} ({'; '.join(problems)})",
        "Start the cluster, or correct the address",
    )


def check_homes() -> None:
    """Refuse variables for an absent Java or Spark.

    Raises:
        InputError: Naming the variable.
    """
    java, spark = os.environ.get(JAVA), os.environ.get(SPARK)
    if java and not os.access(Path(java, "bin", "java"), os.X_OK):
        raise InputError(
            JAVA,
            f"{java} has no executable bin/java",
            "Name the folder of a Java 17, or unset it to use the java on the PATH",
        )
    if not spark:
        return
    if not Path(spark, "bin", "spark-submit").is_file():
        problem = f"{spark} has no bin/spark-submit"
        raise InputError(SPARK, problem, "Unset it to use the Spark of this Python")
    found = {
        name[1] for jar in Path(spark, "jars").glob("spark-core_*.jar") if (name := _release(jar))
    }
    version = installed_version()
    if found and _minor(version) not in map(_minor, found):
        raise InputError(
            SPARK,
            f"{spark} is Spark {min(found)}, and this Python has pyspark {version}",
            "Unset it to use the Spark of this Python",
        )


def executors_python(conf: Mapping[str, str]) -> str:
    """Return the executors' Python: the conf's, the shell's, or the driver's."""
    python = conf.get(_SPARK_PYTHON) or os.environ.get(PYTHON) or sys.executable
    # Executors on this machine work in folders of their own, in which archives are unpacked.
    is_of_driver = is_local(conf) and "/" in python and not conf.get(_ARCHIVES)
    return str(Path(python).absolute()) if is_of_driver else python


def check_pythons(conf: Mapping[str, str], *, local: bool) -> None:
    """Refuse an executors' Python that cannot run tasks, on this machine only.

    Raises:
        InputError: Naming the variable or the key.
    """
    python = executors_python(conf)
    if not local or python == sys.executable or conf.get(_ARCHIVES):
        return
    problem = _python_problem(python)
    if problem:
        key = _SPARK_PYTHON if conf.get(_SPARK_PYTHON) else PYTHON
        raise InputError(
            key,
            f"{python} {problem}",
            f"Leave it out; executors then run the driver's Python, {sys.executable}",
        )


def _python_problem(python: str) -> str:
    """Return why a Python cannot run tasks; empty if it can."""
    try:
        answer = subprocess.run(
            [python, "-c", _ASK], capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"does not run ({getattr(error, 'strerror', None) or error})"
    version = answer.stdout.strip().partition("\n")[0]
    errors = answer.stderr.strip().splitlines() or ["it gives no reason"]
    expected = ".".join(map(str, sys.version_info[:2]))
    if not version:
        return f"does not run ({errors[0]})"
    if version != expected:
        return f"is Python {version}, and the driver's is {expected}"
    return f"cannot import a package that tasks need ({errors[-1]})" if answer.returncode else ""


def check_worker(cause: str) -> None:
    """Refuse the shell's Python or Java after a failed task, by Spark's message.

    Raises:
        InputError: The Python does not start, and the shell names one; or the Java is too new.
    """
    if _NO_ARROW in cause:
        raise InputError(
            JAVA,
            f"the Arrow of Spark {installed_version()} does not run on this Java ({cause})",
            "Set it to the folder of a Java 17",
        )
    python = os.environ.get(PYTHON, sys.executable)
    if python != sys.executable and _NO_WORKER.search(cause):
        raise InputError(
            PYTHON,
            f"executors cannot run {python} ({cause})",
            "Unset it (and spark.pyspark.python), or name a Python of the driver's version with "
            "this package",
        )


def start_failure(cause: str, output: str, log: Path | None, conf: Mapping[str, str]) -> InputError:
    """Return the error of a session that did not start.

    Args:
        cause: From PySpark's error.
        output: The JVM's output.
        log: The file with it.
        conf: The user's, by whole keys.
    """
    has_jvm = "JAVA_GATEWAY_EXITED" not in cause
    cause = cause if has_jvm else _cause(output) or cause
    given = [name for name in _AT_LAUNCH if os.environ.get(name)]
    master = conf.get("spark.master", "the default")
    where = "" if log is None else f" (Spark's own log: {log})"
    if has_jvm or not given:
        problem = f"Spark starts no session on {master} ({cause})"
        return InputError("spark.master", problem, f"Correct the section `spark`{where}")
    others = f", or {', '.join(given[1:])}" if given[1:] else ""
    refusal = f"Spark does not start with it ({cause})"
    return InputError(given[0], refusal, f"Unset or correct it{others}{where}")


def _cause(output: str) -> str:
    """Return the cause from the output of a JVM that did not start; else nothing."""
    lines = [
        line.strip() for line in output.splitlines() if line.strip() and not _NOISE.match(line)
    ]
    thrown = (found[1] for line in lines if (found := _THROWN.match(line)))
    return next(thrown, lines[-1] if lines else "")


def _release(jar: Path) -> re.Match[str] | None:
    return re.search(r"-(\d+\.\d+\.\d+)[^/]*\.jar$", jar.name)


def _minor(version: str) -> tuple[str, ...]:
    return tuple(version.split(".")[:2])
