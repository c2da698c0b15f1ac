"""What the shell hands to a session: variables that name another Python, Java, Spark or conf.

What can be looked at is refused before Spark starts, with the name of the variable. Where Spark
does not start all the same, the error has the cause from what its JVM has printed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from pipelines.errors import InputError
from pipelines.spark.network import is_local
from pipelines.spark.releases import installed_version

PYTHON, JAVA, SPARK = "PYSPARK_PYTHON", "JAVA_HOME", "SPARK_HOME"
_SUBMIT_ARGS, _CONF_DIR = "PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR"
_AT_LAUNCH = (
    *(_SUBMIT_ARGS, "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"),
    *("SPARK_SUBMIT_OPTS", _CONF_DIR, SPARK, JAVA),
)
"""Variables that a JVM of Spark follows when it starts, those that few shells have first."""
_SPARK_PYTHON = "spark.pyspark.python"
_ARCHIVES = "spark.archives"
_SECONDS = 120
_ASK = "import sys; print('%d.%d' % sys.version_info[:2]); import pipelines, pyspark, pyarrow"
_NO_WORKER = re.compile(
    r"reading the port number from|Cannot run program \"[^\"]*python|PYTHON_VERSION_MISMATCH"
)
# Java 21 has no constructor of that name, by which the Arrow of Spark 3.5 makes its buffers.
_NO_ARROW = "java.nio.DirectByteBuffer.<init>(long, int) not available"
_THROWN = re.compile(r"^(?:Exception in thread \"\S+\" |Error: )?(?:[\w.]+\.)?(\w+Exception: .+)$")
_NOISE = re.compile(r"\s+at |WARNING: |Picked up |\d\d/\d\d/\d\d |.*bad array subscript")


def check_homes() -> None:
    """Refuses a Java or a Spark that variables name and that is not there.

    Raises:
        InputError: Naming the variable.
    """
    java, spark = os.environ.get(JAVA), os.environ.get(SPARK)
    if java and not os.access(Path(java, "bin", "java"), os.X_OK):
        raise InputError(
            JAVA,
            f"{java} has no bin/java that runs",
            "name the folder of a Java 17, or unset it: the java on the PATH is taken then",
        )
    if not spark:
        return
    if not Path(spark, "bin", "spark-submit").is_file():
        problem = f"{spark} has no bin/spark-submit"
        raise InputError(SPARK, problem, "unset it: the Spark of this Python is taken then")
    found = {
        name[1] for jar in Path(spark, "jars").glob("spark-core_*.jar") if (name := _release(jar))
    }
    version = installed_version()
    if found and _minor(version) not in map(_minor, found):
        raise InputError(
            SPARK,
            f"{spark} is Spark {min(found)}, and this Python has pyspark {version}",
            "unset it: the Spark of this Python is taken then",
        )


def executors_python(conf: Mapping[str, str]) -> str:
    """The Python that executors are to run: of the conf, of the shell, or that of the driver.

    Args:
        conf: Of the session, by whole keys.
    """
    python = conf.get(_SPARK_PYTHON) or os.environ.get(PYTHON) or sys.executable
    # Executors on this machine work in folders of their own, in which archives are unpacked.
    is_of_driver = is_local(conf) and "/" in python and not conf.get(_ARCHIVES)
    return str(Path(python).absolute()) if is_of_driver else python


def check_pythons(conf: Mapping[str, str], *, local: bool) -> None:
    """Refuses a Python of executors that cannot run tasks, as far as that can be seen from here.

    Args:
        conf: Of the session, by whole keys.
        local: Whether executors run on this machine.

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
            f"leave it out: executors then run the driver's, {sys.executable}",
        )


def _python_problem(python: str) -> str:
    """Why a Python cannot run tasks; empty where it can."""
    try:
        asked = subprocess.run(
            [python, "-c", _ASK], capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"does not run ({getattr(error, 'strerror', None) or error})"
    version = asked.stdout.strip().partition("\n")[0]
    said = asked.stderr.strip().splitlines() or ["no word of why"]
    own = ".".join(map(str, sys.version_info[:2]))
    if not version:
        return f"does not run ({said[0]})"
    if version != own:
        return f"is Python {version}, and the driver's is {own}"
    return f"lacks what tasks need ({said[-1]})" if asked.returncode else ""


def check_worker(cause: str) -> None:
    """Refuses the Python or the Java that the shell names, once an executor has not run on it.

    Args:
        cause: Of the failure, as Spark says it.

    Raises:
        InputError: The failure is of a Python that does not start, and the shell names one; or of a
            Java that is too new.
    """
    if _NO_ARROW in cause:
        raise InputError(
            JAVA,
            f"the Arrow of Spark {installed_version()} does not run on this Java ({cause})",
            "set it to the folder of a Java 17",
        )
    python = os.environ.get(PYTHON, sys.executable)
    if python != sys.executable and _NO_WORKER.search(cause):
        raise InputError(
            PYTHON,
            f"executors cannot run {python} ({cause})",
            "unset it (and spark.pyspark.python), or name a Python that has this package, in the "
            "version of the driver's",
        )


def start_failure(cause: str, said: str, log: Path | None, conf: Mapping[str, str]) -> InputError:
    """The error of a session that could not be started.

    Args:
        cause: Of what PySpark raises.
        said: What the JVM has printed.
        log: Where that is.
        conf: What the user set, by whole keys.
    """
    has_jvm = "JAVA_GATEWAY_EXITED" not in cause
    cause = cause if has_jvm else _cause(said) or cause
    given = [name for name in _AT_LAUNCH if os.environ.get(name)]
    master = conf.get("spark.master", "the default")
    where = "" if log is None else f"; Spark's own log: {log}"
    if has_jvm or not given:
        problem = f"no session on {master} ({cause})"
        return InputError("spark.master", problem, f"correct the section `spark`{where}")
    others = f", or {', '.join(given[1:])}" if given[1:] else ""
    refusal = f"Spark does not start with it ({cause})"
    return InputError(given[0], refusal, f"unset or correct it{others}{where}")


def _cause(said: str) -> str:
    """The cause among what a JVM that has not started printed; empty where it printed nothing."""
    lines = [line.strip() for line in said.splitlines() if line.strip() and not _NOISE.match(line)]
    thrown = (found[1] for line in lines if (found := _THROWN.match(line)))
    return next(thrown, lines[-1] if lines else "")


def _release(jar: Path) -> re.Match[str] | None:
    return re.search(r"-(\d+\.\d+\.\d+)[^/]*\.jar$", jar.name)


def _minor(version: str) -> tuple[str, ...]:
    return tuple(version.split(".")[:2])
