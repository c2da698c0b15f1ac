"""Event files, read as TensorBoard reads them: records of a length, and what restarts purge."""

import struct
import subprocess
import sys
from pathlib import Path

import pytest
from tensorboardX.proto.event_pb2 import Event

from pipelines.settings.load import parse
from pipelines.tracking.run_tracking import RunTracking
from pipelines.tracking.tensorboard import MARKER

pytestmark = pytest.mark.slow


def tracked(**tracking):
    return parse({"tracking": {"trackers": ["tensorboard"], **tracking}})


def events(folder: Path) -> list[Event]:
    """All events, in the order of the files' names, which begin with their time."""
    found = []
    for file in sorted(folder.glob("events.out.tfevents.*")):
        data, place = file.read_bytes(), 0
        while place < len(data):
            (size,) = struct.unpack_from("<Q", data, place)
            # A record: its length, the checksum of that, the data, and the checksum of that.
            found.append(Event.FromString(data[place + 12 : place + 12 + size]))
            place += 12 + size + 4
    return found


def scalars(found: list[Event]) -> list[tuple[int, str, float]]:
    """The scalars that TensorBoard shows: a session's start purges the steps from its own on."""
    shown: list[tuple[int, str, float]] = []
    for event in found:
        if event.HasField("session_log"):
            shown = [scalar for scalar in shown if scalar[0] < event.step]
        for value in event.summary.value:
            if value.HasField("simple_value"):
                shown.append((event.step, value.tag, value.simple_value))
    return shown


def test_a_resumed_run_replaces_the_steps_that_it_makes_again(tmp_path):
    with RunTracking(tracked(), tmp_path, 0) as tracking:
        for step in range(1, 101):
            tracking.log(step, {"training/loss": 1.0, "training/learning_rate": 0.5})
    with RunTracking(tracked(), tmp_path, 60) as tracking:
        for step in range(61, 121):
            tracking.log(step, {"training/loss": 2.0})
        # A worker was lost, and the run goes back.
        tracking.log(110, {"training/loss": 3.0})
    with RunTracking(tracked(), tmp_path) as tracking:
        tracking.log(110, {"after/retrieval/ndcg_at_10": 50.0})
    found = scalars(events(tmp_path / "tensorboard"))
    losses = [(step, value) for step, name, value in found if name == "training/loss"]
    assert losses == [
        *((step, 1.0) for step in range(1, 61)),
        *((step, 2.0) for step in range(61, 110)),
        (110, 3.0),
    ]
    assert (110, "after/retrieval/ndcg_at_10", 50.0) in found


def test_the_folder_can_be_one_that_runs_share(tmp_path):
    config = tracked(tensorboard_folder=str(tmp_path / "shared"))
    with RunTracking(config, tmp_path / "runs" / "captions", 0) as tracking:
        tracking.log(1, {"training/loss": 1.0})
    found = events(tmp_path / "shared" / "captions")
    assert scalars(found) == [(1, "training/loss", pytest.approx(1.0))]
    texts = [value for event in found for value in event.summary.value if value.tensor.string_val]
    assert b"learning_rate: 5.0e-05" in texts[0].tensor.string_val[0]


def losses_in(folder: Path) -> list[float]:
    return [value for _, name, value in scalars(events(folder)) if name == "training/loss"]


def test_runs_of_one_name_do_not_share_a_folder(tmp_path):
    shared = tmp_path / "shared"
    config = tracked(tensorboard_folder=str(shared))
    for step in (1, 2):
        for number, parent in enumerate(("a", "b")):
            with RunTracking(config, tmp_path / parent / "run", step - 1) as tracking:
                tracking.log(step, {"training/loss": float(number)})
    first, second = sorted(shared.iterdir())
    assert first.name == "run"
    assert second.name.startswith("run-")
    assert (first / MARKER).read_text() == f"{tmp_path / 'a' / 'run'}\n"
    assert (losses_in(first), losses_in(second)) == ([0.0, 0.0], [1.0, 1.0])


def test_files_that_nobody_knows_are_left_alone(tmp_path):
    unknown = tmp_path / "shared" / "run" / "events.out.tfevents.1.host"
    unknown.parent.mkdir(parents=True)
    unknown.touch()
    with RunTracking(
        tracked(tensorboard_folder=str(tmp_path / "shared")), tmp_path / "run", 0
    ) as tracking:
        tracking.log(1, {"training/loss": 1.0})
    assert list(unknown.parent.iterdir()) == [unknown]
    (own,) = set((tmp_path / "shared").iterdir()) - {unknown.parent}
    assert losses_in(own) == [1.0]


def test_no_framework_is_imported_to_write_events():
    """A library of it would take seconds, and the memory of a worker."""
    imported = "import pipelines.tracking.tensorboard, sys; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", imported], capture_output=True, text=True, timeout=100, check=True
    )
    assert done.stdout == "False\n"
