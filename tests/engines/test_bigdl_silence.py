"""Executors of dllib that fall silent, which Spark itself notices much later."""

import os
import re
import signal
import socket
import time

import pytest
from test_bigdl import executors_process, trained
from test_contract import ENDLESS, PROMPT_SECONDS, STALL_SECONDS

from pipelines.errors import WorkerLostError


@pytest.mark.matrix
def test_an_executor_that_is_stopped_ends_the_run(spark, make_run):
    """Spark itself waits two minutes and more for it."""
    run = make_run(ENDLESS, workers=2, framework="bigdl", stall_seconds=STALL_SECONDS)
    stopped = []

    def stop_once(line):
        if line["step"] == 6 and not stopped:
            stopped.extend((executors_process(spark, 1), time.monotonic()))
            os.kill(stopped[0], signal.SIGSTOP)

    named = rf"rank 1, host {re.escape(socket.gethostname())}, lane 1: nothing was heard of it for"
    try:
        with pytest.raises(WorkerLostError, match=named):
            trained(spark, run, stop_once)
        assert time.monotonic() - stopped[1] < PROMPT_SECONDS
    finally:
        os.kill(stopped[0], signal.SIGKILL)
    assert spark.range(3).count() == 3, "the session lives on"
