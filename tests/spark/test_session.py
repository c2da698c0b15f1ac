"""The Spark conf of a new session."""

import ipaddress
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from namespaces import can_mount, read_only

from pipelines.errors import InputError
from pipelines.settings.load import parse
from pipelines.settings.redaction import SPARK_PATTERN, without_secrets
from pipelines.spark.java import spark_home
from pipelines.spark.session import session_conf
from pipelines.spark.shell import check_master, private_conf

OPTIONS = "spark.driver.extraJavaOptions"
DRIVER = "spark.driver.defaultJavaOptions"
EXECUTOR = "spark.executor.defaultJavaOptions"


def test_what_the_user_sets_wins():
    config = parse({"spark": {"master": "local[3]", "ui.enabled": "true"}})
    conf = session_conf(config, submitted=False)
    assert conf["spark.master"] == "local[3]"
    assert conf["spark.ui.enabled"] == "true"


def test_spark_hides_what_this_package_hides(monkeypatch, tmp_path):
    key = "spark.redaction.regex"
    assert session_conf(parse({}), submitted=False)[key] == SPARK_PATTERN
    assert key not in session_conf(parse({}), submitted=True), "what was submitted decides"
    own = parse({"spark": {"redaction.regex": "mine"}})
    assert session_conf(own, submitted=False)[key] == "mine"
    assert without_secrets(own) == own
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    for text in (f"{key} theirs\n", f"spark.a b\n  {key}=theirs\n"):
        (tmp_path / "spark-defaults.conf").write_text(text)
        assert key not in session_conf(parse({}), submitted=False)
    for text in (f"# {key} theirs\n", f"{key}.other theirs\n"):
        (tmp_path / "spark-defaults.conf").write_text(text)
        assert session_conf(parse({}), submitted=False)[key] == SPARK_PATTERN


def test_java_options_of_the_user_come_after_ours():
    ours = session_conf(parse({}), submitted=False)
    assert ours[OPTIONS].startswith("-Dlog4j2.configurationFile=")
    both = session_conf(parse({"spark": {"driver.extraJavaOptions": "-Xint"}}), submitted=False)
    assert both[OPTIONS] == f"{ours[OPTIONS]} -Xint"
    assert both[DRIVER] == ours[DRIVER], "Spark puts them before those"


def test_jvms_of_a_local_cluster_start_fast_and_others_are_left_alone(monkeypatch):
    monkeypatch.delenv("SPARK_SUBMIT_OPTS", raising=False)
    conf = session_conf(parse({}), submitted=False)
    assert "-XX:TieredStopAtLevel=1" in conf[DRIVER], "it runs no tasks"
    assert "-XX:TieredStopAtLevel=1" not in conf[EXECUTOR]
    assert "-XX:+UseSerialGC" in conf[EXECUTOR]
    large = session_conf(parse({"spark": {"executor.memory": "8g"}}), submitted=False)
    assert "-XX:+UseSerialGC" not in large[EXECUTOR]
    one_process = session_conf(parse({"spark": {"master": "local[4]"}}), submitted=False)
    assert "-XX:TieredStopAtLevel=1" not in one_process[DRIVER]
    cluster = session_conf(parse({"spark": {"master": "spark://host:7077"}}), submitted=False)
    assert cluster.keys().isdisjoint((DRIVER, EXECUTOR))
    submitted = session_conf(parse({}), submitted=True)
    assert submitted.keys().isdisjoint((DRIVER, EXECUTOR))


@pytest.mark.parametrize("said", ["variable", "conf", "file"])
def test_a_collector_of_the_users_is_the_only_one(said, monkeypatch, tmp_path):
    """A JVM that is told two collectors does not start."""
    monkeypatch.delenv("SPARK_SUBMIT_OPTS", raising=False)
    spark = {}
    if said == "variable":
        monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:+UseG1GC")
    elif said == "conf":
        spark = {"executor.extraJavaOptions": "-XX:+UseParallelGC"}
    else:
        monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
        options = "spark.executor.extraJavaOptions  -XX:+UseZGC"
        (tmp_path / "spark-defaults.conf").write_text(options)
    conf = session_conf(parse({"spark": spark}), submitted=False)
    assert "-XX:+UseSerialGC" not in conf[DRIVER] + conf[EXECUTOR]


def test_what_sparks_file_of_defaults_says_is_left_to_it(monkeypatch, tmp_path):
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    lines = [f"{DRIVER} -Xss4m", "spark.python.daemon.module pyspark.daemon"]
    (tmp_path / "spark-defaults.conf").write_text("\n".join(lines))
    conf = session_conf(parse({}), submitted=False)
    assert DRIVER not in conf
    assert "spark.python.daemon.module" not in conf


def test_a_wrong_size_names_its_key():
    with pytest.raises(InputError, match=r"^spark\.driver\.memory: `lots` is no memory size"):
        session_conf(parse({"spark": {"driver.memory": "lots"}}), submitted=False)


def test_a_session_that_trains_nothing_has_one_executor_for_as_many_tasks():
    training = {"workers": 3, "threads": 2, "granules_per_step": 3}
    conf = session_conf(parse({"training": training}), submitted=False, trains=False)
    assert conf["spark.master"] == "local-cluster[1,6,3072]"
    assert (conf["spark.executor.cores"], conf["spark.executor.memory"]) == ("6", "3072m")
    assert conf["spark.task.cpus"] == "2"
    sized = parse({"training": training, "spark": {"executor.memory": "2g"}})
    whole = session_conf(sized, submitted=False)
    assert session_conf(sized, submitted=False, trains=False) == whole


def test_under_spark_submit_its_conf_decides():
    conf = session_conf(parse({"spark": {"driver.extraJavaOptions": "-Xint"}}), submitted=True)
    assert conf[OPTIONS] == "-Xint"
    assert "spark.executor.cores" not in conf


def test_a_local_cluster_has_an_executor_for_each_worker_and_room_for_it():
    config = parse(
        {"training": {"workers": 3, "granules_per_step": 3}, "spark": {"executor.memory": "2g"}}
    )
    assert session_conf(config, submitted=False)["spark.master"] == "local-cluster[3,1,2048]"


def test_what_a_run_has_hidden_is_asked_for_again():
    config = parse({"spark": {"hadoop.fs.s3a.secret.key": "sesame"}})
    hidden = without_secrets(config)
    assert session_conf(config, submitted=True)["spark.hadoop.fs.s3a.secret.key"] == "sesame"
    with pytest.raises(InputError, match=r"^spark.hadoop.fs.s3a.secret.key: a run's"):
        session_conf(hidden, submitted=True)


CLUSTER = "local-cluster[1,1,1024]"
GONE_SECONDS = 60
ONE_SESSION = """
import json, os, sys
from pathlib import Path
import psutil
from pipelines.settings.load import parse
from pipelines.engines.torch import TorchEngine
from pipelines.errors import EngineUnavailable
from pipelines.spark.session import spark_session

def refusal(workers):
    training = config.training.model_copy(update={"workers": workers})
    spark = config.spark.model_copy(update={"wait_seconds": 0.5})
    asked = config.model_copy(update={"training": training, "spark": spark})
    try:
        TorchEngine().check_cluster(session, asked)
    except EngineUnavailable as error:
        return str(error)

conf = {"ui.enabled": "true", "hadoop.fs.s3a.secret.key": "sesame street"}
# Of a name that Spark's own pattern does not know.
conf |= {"db.pass": "sesame street", "eventLog.enabled": "true", "eventLog.dir": sys.argv[3]}
conf |= {"local.dir": sys.argv[2]}
config = parse({"spark": {"master": sys.argv[1], **conf}})
session = spark_session(config)
assert session.range(100, numPartitions=2).repartition(2).rdd.map(str).count() == 100
folders = session.sparkContext.parallelize([1], 1).map(lambda _: os.getcwd()).collect()
secret = session.sparkContext.getConf().get("spark.authenticate.secret")

def alive(process):
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE

family = [psutil.Process(), *psutil.Process().children(recursive=True)]
processes = [process for process in family if alive(process)]
found = {
    "listening": [
        connection.laddr.ip
        for process in processes
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ],
    "secret": len(secret),
    "shown": [
        line
        for line in (" ".join(process.cmdline()) for process in processes)
        if secret in line or ("sesame street" in line and "parse(" not in line)
    ],
    "handed on": session.sparkContext.getConf().get("spark.hadoop.fs.s3a.secret.key"),
    "too many": refusal(3),
    "modes": [oct(place.stat().st_mode & 0o777) for place in Path(sys.argv[2]).iterdir()],
    "blocks": len([*Path(sys.argv[2]).rglob("shuffle_*")]),
    "works in": folders[0],
    "home": os.environ.get("SPARK_HOME"),
}
session.sparkContext._jsc.sc().stop()
found["ended"] = refusal(1)
print("found", json.dumps(found))
session.stop()
"""


@pytest.fixture(
    scope="module", params=[CLUSTER, pytest.param("local[2]", marks=pytest.mark.matrix)]
)
def local_session(request, tmp_path_factory):
    """What is found in a local session that another process starts.

    Its environment is read-only, where this user may mount.
    """
    blocks, log = tmp_path_factory.mktemp("blocks"), tmp_path_factory.mktemp("log")
    command = [sys.executable, "-c", ONE_SESSION, request.param, str(blocks), str(log)]
    if can_mount():
        command = [*read_only(spark_home()), *command]
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
    done = subprocess.run(
        command, env=environment, check=False, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("found "))
    (events,) = (file for file in log.rglob("*") if file.is_file() and "status" not in file.name)
    left = [str(place) for place in blocks.iterdir()]
    return json.loads(line.removeprefix("found ")) | {"log": events.read_text(), "left": left}


def test_a_local_session_is_for_its_own_processes(local_session):
    listening = local_session["listening"]
    addresses = {ipaddress.ip_address(ip.removeprefix("::ffff:")) for ip in listening}
    assert len(listening) >= 3
    assert all(address.is_loopback for address in addresses), addresses
    assert local_session["secret"] == 64
    assert local_session["shown"] == []
    assert local_session["handed on"] == "sesame street"


def test_no_other_user_reads_the_blocks_of_a_local_session(local_session):
    assert local_session["blocks"] > 0
    assert set(local_session["modes"]) == {"0o700"}
    wait_until_gone(local_session["left"])


def wait_until_gone(places):
    deadline = time.monotonic() + GONE_SECONDS
    while any(Path(place).exists() for place in places):
        assert time.monotonic() < deadline, "the folder is deleted when the JVM has ended"
        time.sleep(0.2)


@pytest.mark.parametrize("local_session", [CLUSTER], indirect=True)
def test_a_local_cluster_starts_where_the_environment_is_read_only(local_session):
    if not can_mount():
        pytest.skip("this user may not mount in a namespace of its own")
    assert local_session["home"] is None, "the user's environment is as it was"
    wait_until_gone([Path(local_session["works in"]).parents[2]])


def test_the_event_log_of_a_session_holds_no_secret(local_session):
    assert '"spark.db.pass":"*********(redacted)"' in local_session["log"]
    assert "sesame street" not in local_session["log"]


def test_room_that_does_not_come_names_the_deadline(local_session):
    assert local_session["too many"].startswith("training.workers: engine torch needs 3 tasks")
    assert "raise spark.wait_seconds (0.5 s now)" in local_session["too many"]


def test_a_session_that_spark_has_ended_is_no_want_of_workers(local_session):
    assert local_session["ended"].startswith("spark.master: Spark has ended the session on local")


def test_a_secret_is_new_for_each_session_and_none_of_a_cluster():
    local = {"spark.master": "local-cluster[2,1,1024]"}
    first, second = private_conf(local), private_conf(local)
    assert first["spark.authenticate.secret"] != second["spark.authenticate.secret"]
    assert private_conf({"spark.master": "spark://host:7077"}) == {}


@pytest.mark.parametrize(
    ("own", "kept"),
    [
        ({"spark.authenticate": "false"}, {"spark.driver.host", "spark.driver.bindAddress"}),
        (
            {"spark.authenticate.secret": "sesame", "spark.driver.host": "10.0.0.1"},
            {"spark.authenticate", "spark.driver.bindAddress"},
        ),
    ],
)
def test_what_the_user_says_of_the_network_is_left(own, kept):
    assert set(private_conf({"spark.master": "local[2]"} | own)) == kept


def test_a_master_that_does_not_answer_is_named_before_spark_starts(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as there:
        port = there.getsockname()[1]
        check_master(f"spark://127.0.0.1:{port}")
        with socket.create_server(("127.0.0.1", 0)) as other:
            gone = other.getsockname()[1]
        check_master(f"spark://127.0.0.1:{gone},127.0.0.1:{port}")
    for master in (f"spark://127.0.0.1:{gone}", f"spark://localhost:{gone},[::1]:{gone}"):
        with pytest.raises(InputError, match=r"^spark.master: nothing answers at spark://"):
            check_master(master)
    # A process of its own, since there may be a session in this one.
    code = "import sys; from pipelines.cli import main; sys.exit(main())"
    asked = ["prepare", "--set", f"prepared.folder={tmp_path}", "--set", f"spark.master={master}"]
    job = subprocess.run(
        [sys.executable, "-c", code, *asked],
        stderr=subprocess.PIPE,
        text=True,
        timeout=300,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        check=False,
    )
    assert job.returncode == 2
    assert "\nerror: spark.master: nothing answers at spark://" in f"\n{job.stderr}"


@pytest.mark.parametrize("master", ["spark://", "spark://host", "spark://host:port"])
def test_a_master_that_is_no_address_is_refused(master):
    with pytest.raises(InputError, match=r"^spark.master: `spark://.* is no address"):
        check_master(master)


@pytest.mark.parametrize("master", ["yarn", "local[2]", "k8s://https://host:1"])
def test_masters_that_are_none_of_a_standalone_cluster_are_not_asked(master):
    check_master(master)
