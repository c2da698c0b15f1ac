"""What the shell hands to a session is looked at, and named where it leads astray."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from pyspark import SparkConf

from pipelines.errors import InputError, PipelineError
from pipelines.settings import Config
from pipelines.spark import shell
from pipelines.spark.errors import executor_failures
from pipelines.spark.session import spark_session
from pipelines.spark.shell import encrypting_key


@pytest.fixture(autouse=True)
def clean_shell(monkeypatch):
    for name in ("PYSPARK_PYTHON", "JAVA_HOME", "SPARK_HOME", "SPARK_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name in ("PYSPARK_SUBMIT_ARGS", "SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS"):
        monkeypatch.delenv(name, raising=False)


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("name", ["JAVA_HOME", "SPARK_HOME"])
def test_a_home_that_is_not_there_is_named_before_spark_starts(monkeypatch, tmp_path, name):
    monkeypatch.setenv(name, str(tmp_path / "gone"))
    with pytest.raises(InputError, match=rf"{name}: {tmp_path}/gone has no .*bin/\S+.*[Uu]nset it"):
        shell.check_homes()


def test_a_spark_of_another_release_is_refused(monkeypatch, tmp_path):
    script(tmp_path / "bin" / "spark-submit", "true")
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core_2.12-3.3.1.jar").touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    with pytest.raises(InputError, match=r"SPARK_HOME: .* is Spark 3\.3\.1, and this Python has"):
        shell.check_homes()


def test_the_installed_spark_may_be_named(monkeypatch):
    import pyspark

    monkeypatch.setenv("SPARK_HOME", str(Path(pyspark.__file__).parent))
    shell.check_homes()


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ("echo 2.7; echo more; exit 1", r"is Python 2\.7, and the driver's is 3\."),
        ("echo 'no such version' >&2; exit 127", r"does not run \(no such version\)"),
        (
            f"echo {sys.version_info[0]}.{sys.version_info[1]}; echo 'No module x' >&2; exit 1",
            r"cannot import a package that tasks need \(No module x\)",
        ),
    ],
)
@pytest.mark.parametrize("key", ["PYSPARK_PYTHON", "spark.pyspark.python"])
def test_a_python_that_runs_no_tasks_is_refused(monkeypatch, tmp_path, key, answer, says):
    python = str(script(tmp_path / "python", answer))
    conf = {key: python}
    if key == "PYSPARK_PYTHON":
        monkeypatch.setenv(key, python)
        conf = {}
    with pytest.raises(InputError, match=rf"^{key}: {python} {says}"):
        shell.check_pythons(conf, local=True)
    shell.check_pythons(conf, local=False)


def test_a_python_that_is_not_there_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("PYSPARK_PYTHON", str(tmp_path / "python"))
    with pytest.raises(InputError, match=r"PYSPARK_PYTHON: .* does not run \(No such file"):
        shell.check_pythons({}, local=True)


def test_the_conf_names_the_python_of_executors_before_the_shell(monkeypatch):
    monkeypatch.setenv("PYSPARK_PYTHON", "/shell/python")
    assert shell.executors_python({"spark.pyspark.python": "/conf/python"}) == "/conf/python"
    assert shell.executors_python({}) == "/shell/python"
    monkeypatch.delenv("PYSPARK_PYTHON")
    assert shell.executors_python({}) == sys.executable


def test_executors_of_this_machine_find_a_python_that_is_named_from_the_drivers_folder(
    monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYSPARK_PYTHON", "./venv/bin/python")
    local = {"spark.master": "local-cluster[2,1,1024]"}
    assert shell.executors_python(local) == f"{tmp_path}/venv/bin/python"
    archive = {**local, "spark.archives": "venv.tar.gz#venv"}
    assert shell.executors_python(archive) == "./venv/bin/python"
    assert shell.executors_python({"spark.master": "yarn"}) == "./venv/bin/python"
    monkeypatch.setenv("PYSPARK_PYTHON", "python3")
    assert shell.executors_python(local) == "python3"


class Builder:
    """Of a session that is there already."""

    def __getattr__(self, name):
        return lambda *_: self

    def getOrCreate(self):  # noqa: N802 - PySpark's
        return "session"


def test_the_homes_of_a_node_are_no_matter_under_spark_submit(monkeypatch, tmp_path):
    from pyspark.sql import SparkSession

    monkeypatch.setattr(SparkSession, "builder", Builder())
    monkeypatch.setattr("pipelines.spark.session.active_context", lambda: None)
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    monkeypatch.setenv("PYSPARK_PYTHON", "./environment/bin/python")
    for name in ("JAVA_HOME", "SPARK_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "gone"))
    assert spark_session(Config(), "none") == "session"


def failed(cause: str) -> None:
    from py4j.protocol import Py4JError

    with executor_failures("preparing"):
        raise Py4JError(cause)


def test_a_python_that_executors_could_not_run_is_no_failure_to_try_again(monkeypatch):
    cause = "x.SparkException: EOFException occurred while reading the port number from a's stdout"
    with pytest.raises(PipelineError, match="preparing failed in Spark") as caught:
        failed(cause)
    assert caught.value.exit_code == 1
    monkeypatch.setenv("PYSPARK_PYTHON", "/usr/bin/other")
    with pytest.raises(InputError, match="PYSPARK_PYTHON: executors cannot run /usr/bin/other"):
        failed(cause)
    with pytest.raises(PipelineError, match="preparing failed in Spark"):
        failed("x.SparkException: another one")


def test_a_java_that_is_too_new_for_arrow_is_named():
    with pytest.raises(InputError, match=r"JAVA_HOME: the Arrow of Spark \S+ does not run on this"):
        failed("sun.misc.Unsafe or java.nio.DirectByteBuffer.<init>(long, int) not available")


GONE = "[JAVA_GATEWAY_EXITED] Java gateway process exited"
PRINTED = """Picked up JAVA_TOOL_OPTIONS: -Dx
:: loading settings ::
Exception in thread "main" org.apache.spark.SparkException: When running with master 'yarn'
\tat org.apache.spark.deploy.SparkSubmit$.main(SparkSubmit.scala:1134)
"""


def test_the_variable_and_the_cause_are_in_the_error_of_a_start(monkeypatch, tmp_path):
    log = tmp_path / "spark.log"
    alone = shell.start_failure(GONE, PRINTED, log, {"spark.master": "yarn"})
    assert str(alone) == (
        "spark.master: Spark starts no session on yarn (SparkException: When running with master "
        f"'yarn'). Correct the section `spark` (Spark's own log: {log})."
    )
    monkeypatch.setenv("SPARK_CONF_DIR", "/etc/spark")
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--master yarn pyspark-shell")
    assert str(shell.start_failure(GONE, PRINTED, log, {})) == (
        "PYSPARK_SUBMIT_ARGS: Spark does not start with it (SparkException: When running with "
        "master 'yarn'). Unset or correct it, or SPARK_CONF_DIR "
        f"(Spark's own log: {log})."
    )


def test_what_a_jvm_prints_that_does_not_start_is_in_the_log(monkeypatch, tmp_path):
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    # As in a process that has no JVM yet; that of the tests is left alone.
    for name in ("_jvm", "_gateway", "_active_spark_context"):
        monkeypatch.setattr(SparkContext, name, None)
    monkeypatch.setattr(SparkSession, "_instantiatedSession", None)
    monkeypatch.setattr("pipelines.spark.session._LOGS", [])
    script(tmp_path / "bin" / "java", "echo 'Error: no such thing: -Xodd' >&2; exit 1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr("pipelines.spark.session.check_java", lambda: None)
    with pytest.raises(InputError, match="no such thing: -Xodd") as caught:
        spark_session(Config(), "none")
    assert caught.value.key == "JAVA_HOME"
    log = Path(str(caught.value).rpartition("log: ")[2].removesuffix(")."))
    assert "no such thing: -Xodd" in log.read_text()
    log.unlink()


class Context:
    def __init__(self, conf):
        self._conf = SparkConf(loadDefaults=False).setAll(list(conf.items()))

    def getConf(self):  # noqa: N802 - as PySpark calls it
        return self._conf


@pytest.mark.parametrize(
    ("conf", "key"),
    [
        ({}, None),
        ({"spark.authenticate": "true"}, None),
        ({"spark.ssl.enabled": "false"}, None),
        ({"spark.ssl.enabled": "true"}, "spark.ssl.enabled"),
        ({"spark.ssl.rpc.enabled": "true"}, "spark.ssl.rpc.enabled"),
        ({"spark.network.crypto.enabled": "TRUE"}, "spark.network.crypto.enabled"),
        (
            {"spark.ssl.enabled": "true", "spark.network.crypto.enabled": "true"},
            "spark.network.crypto.enabled",
        ),
    ],
)
def test_any_key_that_asks_for_encryption_is_enough(conf, key):
    assert encrypting_key(Context(conf)) == key
