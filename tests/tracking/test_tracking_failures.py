"""Trackers that cannot be reached: the run neither waits nor fails, and says so in one line."""

import http.server
import socket
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from relays import free_port
from test_tracking_mlflow import tracked, until, warnings
from test_tracking_tensorboard import events, scalars

from pipelines.errors import InputError
from pipelines.settings import StorageSettings, TrackingSettings
from pipelines.tracking import check_trackers
from pipelines.tracking import run_tracking as link
from pipelines.tracking.base import RunStart
from pipelines.tracking.run_tracking import RunTracking

pytestmark = pytest.mark.slow

WAIT = 4


@contextmanager
def closed_port():
    yield f"http://127.0.0.1:{free_port()}"


@contextmanager
def silent_server():
    """Accepts every connection, and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@contextmanager
def broken_server():
    """Answers everything with an error of its own."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_error(503)

        do_POST = do_PUT = do_GET  # noqa: N815 - names of the library

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.parametrize("server", [closed_port, silent_server, broken_server])
def test_a_server_that_does_not_serve_costs_no_more_than_the_wait(server, tmp_path, caplog):
    with server() as address:
        with RunTracking(tracked(address, wait_seconds=WAIT), tmp_path, 0) as tracking:
            began = time.monotonic()
            for step in range(2 * link.MAX_WAITING):
                tracking.log(step, {"training/loss": 1.0})
            took = time.monotonic() - began
            left = time.monotonic()
        waited = time.monotonic() - left
    # Far below what any request could take, on any machine.
    assert took < 40
    assert waited < WAIT + 40
    (warning,) = warnings(caplog)
    assert warning.startswith("mlflow is behind or unreachable (")
    assert Path(warning.rsplit("see ", 1)[1]).is_file()
    assert not [thread for thread in threading.enumerate() if "tracker" in thread.name]


def test_a_tracker_whose_process_is_killed_is_started_again(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(link, "RETRY_SECONDS", 0.1)
    settings = {"trackers": ["tensorboard"], "mlflow_uri": None}
    with RunTracking(tracked("", **settings), tmp_path, 0) as tracking:
        tracking.log(1, {"training/loss": 1.0})
        (only,) = tracking._proxies
        until(lambda: scalars(events(tmp_path / "tensorboard")))
        only._process._process.kill()
        only._process._process.wait()
        tracking.log(2, {"training/loss": 1.0})
        until(lambda: not only._points)
    found = scalars(events(tmp_path / "tensorboard"))
    assert [step for step, name, _ in found if name == "training/loss"] == [1, 2]
    assert len(warnings(caplog)) <= 1


def test_a_process_that_cannot_be_ended_holds_nobody_up(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(link, "LEAVE_SECONDS", 0.5)
    settings = tracked("", trackers=["tensorboard"], mlflow_uri=None).tracking
    start = RunStart(
        storage=StorageSettings(),
        run_folder=str(tmp_path),
        settings=settings,
        parameters={},
        config="",
        program="job.py",
        first_step=0,
    )
    process = link.TrackerProcess("tensorboard", start)
    # As if the system did not let it go: nobody is told that it has ended.
    with process._process._waitpid_lock:
        process.kill()
    (warning,) = warnings(caplog)
    assert "was killed and is still there" in warning
    process.kill()
    assert not process.is_alive
    assert len(warnings(caplog)) == 1


def test_trackers_that_are_not_there_are_refused(monkeypatch):
    with pytest.raises(InputError, match=r"tracking.trackers: there is no tracker `wandb`\. C"):
        check_trackers(TrackingSettings(trackers=("wandb",)))
    monkeypatch.setattr("pipelines.libraries.find_spec", lambda name: None)
    with pytest.raises(
        InputError, match=r'is not installed\. Run `pip install "sentence-pipelines\[ten'
    ):
        check_trackers(TrackingSettings(trackers=("tensorboard",)))
