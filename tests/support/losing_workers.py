"""Ways in which a run loses a worker, for real. Each is given the monitor of the run."""

from __future__ import annotations

import ctypes
import os
import signal
import socket

import psutil
import pytest
from local_cluster import have_executors
from test_contract import connections

from pipelines.training.control.monitor import Monitor

# Of the system calls on 64-bit x86 and Arm.
PIDFD_GETFD = 438


def process_of(monitor: Monitor, rank: int) -> int:
    """The process of a worker on this machine."""
    there = monitor._shared.workers[rank].connection.getpeername()[1]
    # The field of the file descriptor holds the process.
    return next(c.fd for c in connections() if c.laddr.port == there)


def kill(spark, monitor, rank=1):
    """Kills a process, whose executor lives on."""
    os.kill(process_of(monitor, rank), signal.SIGKILL)


def stop(spark, monitor):
    """Stops a process, which is silent from then on."""
    os.kill(process_of(monitor, 1), signal.SIGSTOP)


def kill_the_one_that_saves(spark, monitor):
    """Kills the process that writes the checkpoints."""
    kill(spark, monitor, 0)


def tell_to_end(spark, monitor):
    """Tells a process to end, as machines do that are about to be taken away."""
    os.kill(process_of(monitor, 1), signal.SIGTERM)


def kill_the_executor(spark, monitor):
    """Kills a JVM, with which its Python workers end; Spark starts another, and the task again."""
    above = psutil.Process(process_of(monitor, 1)).parents()
    next(process for process in above if process.name() == "java").kill()


def take_executors(spark, monitor):
    """Ends all executors but one, for good."""
    have_executors(spark, 1)


def cut_between_ranks(spark, monitor):
    """Breaks the connections of a rank with the others, as a network does."""
    process = process_of(monitor, 1)
    handle = os.pidfd_open(process)
    for one in psutil.Process(process).net_connections("tcp"):
        if one.status == psutil.CONN_ESTABLISHED and one.raddr.port != monitor.address[1]:
            own = ctypes.CDLL(None).syscall(PIDFD_GETFD, handle, one.fd, 0)
            if own < 0:
                pytest.skip("this system gives no process another's connection")
            with socket.socket(fileno=own) as connection:
                connection.shutdown(socket.SHUT_RDWR)
    os.close(handle)
