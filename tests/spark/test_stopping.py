"""That a session is stopped in time, even where Java does not answer."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil

WITH_A_JVM_THAT_HANGS = """
import signal
from pyspark import SparkContext
from pipelines.settings.load import parse
from pipelines.spark import session
session.STOP_SECONDS = 2.0
config = parse({"spark": {"master": "local[1]"}})
with session.stopped_at_the_end():
    context = session.spark_session(config).sparkContext
    # So Spark has connected to this process's server of accumulators.
    context.parallelize([1], 1).map(str).collect()
    java = SparkContext._gateway.proc
    print(java.pid, flush=True)
    java.send_signal(signal.SIGSTOP)
"""


def test_a_session_that_does_not_stop_is_killed(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WITH_A_JVM_THAT_HANGS],
        # Nobody deletes what it has there.
        env=os.environ | {"TMPDIR": str(tmp_path), "SPARK_LOCAL_DIRS": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Spark did not stop within 2 s; this process kills it" in done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    assert not psutil.pid_exists(int(done.stdout.split()[-1]))
