"""One writer in a folder, on whichever host it is, and none that is dead."""

import subprocess
import sys
import time

import pytest

from pipelines.embedding import lock
from pipelines.embedding.lock import Holder, only_writer
from pipelines.errors import InputError, PipelineError


def test_a_lock_is_held_by_another_process_until_it_dies(tmp_path) -> None:
    folder = tmp_path / "new" / "table"
    code = (
        "import sys, time; from pathlib import Path\n"
        "from pipelines.embedding.lock import only_writer\n"
        "with only_writer(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)\n"
    )
    command = [sys.executable, "-c", code, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with (
            pytest.raises(InputError, match=rf"^embedding.output: process {other.pid} on "),
            only_writer(folder),
        ):
            pass
        other.kill()
    with only_writer(folder):
        assert len(list(folder.parent.glob(".table.lock"))) == 1
    assert not list(folder.parent.iterdir())


def test_a_lock_of_another_host_that_stands_still_is_taken_over(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(lock, "BEAT_SECONDS", 0.1)
    path = tmp_path / ".table.lock"
    path.write_bytes(Holder("elsewhere", 1, "a" * 32, 7).line())
    began = time.monotonic()
    with only_writer(tmp_path / "table", silent_seconds=1.0) as held:
        assert time.monotonic() - began >= 1.0
        held.check()
        # This process stood still in its turn, and somebody else came.
        path.write_bytes(Holder("elsewhere", 2, "b" * 32, 0).line())
        deadline = time.monotonic() + 10
        with pytest.raises(PipelineError, match="was taken over by another process"):
            while time.monotonic() < deadline:
                held.check()
                time.sleep(0.05)
    assert b"b" * 32 in path.read_bytes()


def test_a_folder_that_cannot_be_written(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(InputError, match=r"^embedding.output: .*file/table cannot be written"),
        only_writer(tmp_path / "file" / "table"),
    ):
        pass
