"""The locks name the sha256 of every file that may be installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import build_horovod
import lock
import pytest
from packages import locked_versions

FOLDER = Path(__file__).resolve().parents[2] / "environment"
LOCKS = [FOLDER.parent / "requirements.lock", *sorted(FOLDER.glob("*.lock"))]
ONE, TWO, THREE = ("1" * 64, "2" * 64, "3" * 64)
TEXT = f"""# A comment
a-b==1.0 \\
    --hash=sha256:{TWO} \\
    --hash=sha256:{ONE}
c==2
"""


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_every_release_of_a_lock_has_hashes_and_no_address(path):
    text = path.read_text()
    pins = list(lock.pins(text))
    assert pins
    assert all(pin.hashes for pin in pins)
    assert len({pin.name for pin in pins}) == len(pins)
    assert "://" not in text
    # Nothing is behind comments that pip would read in another way than we do.
    names = re.findall(r"^[\w.-]+(?===)", text, re.MULTILINE)
    assert names == [pin.name for pin in pins]


def test_horovod_is_locked_in_the_version_that_is_patched():
    versions = {pin.name: pin.version for pin in lock.pins(build_horovod.LOCK.read_text())}
    assert versions["horovod"] == build_horovod.VERSION


def test_versions_are_read_from_a_lock_with_hashes(tmp_path):
    (tmp_path / "a.lock").write_text(TEXT)
    assert locked_versions(tmp_path / "a.lock") == {"a-b": "1.0", "c": "2"}


def test_hashes_are_written_anew_and_comments_stay():
    first, second = lock.pins(TEXT)
    assert (first.name, first.version, first.hashes) == ("a-b", "1.0", (ONE, TWO))
    written = lock.written(TEXT, {first: (ONE, THREE), second: (TWO,)})
    assert written == (
        f"# A comment\na-b==1.0 \\\n    --hash=sha256:{ONE} \\\n    --hash=sha256:{THREE}\n"
        f"c==2 \\\n    --hash=sha256:{TWO}\n"
    )
    assert [pin.hashes for pin in lock.pins(written)] == [(ONE, THREE), (TWO,)]


def test_files_of_other_releases_and_of_no_use_are_left_out():
    files = {
        "a_b-1.0-py3-none-any.whl": ONE,
        "a_b-1.0.tar.gz": TWO,
        "a_b-1.0.0-cp311-cp311-manylinux_2_17_aarch64.whl": THREE,
        "a_b-1.0.1.tar.gz": "4" * 64,
        "a_b-1.0-py2.7.egg": "5" * 64,
        "a-b-1.0.exe": "6" * 64,
    }
    page = {"files": [{"filename": name, "hashes": {"sha256": sha}} for name, sha in files.items()]}
    (pin, _) = lock.pins(TEXT)
    assert lock.release_hashes(page, pin) == (ONE, TWO, THREE)


@pytest.mark.parametrize(
    ("hashes", "is_check", "fault"),
    [
        ((), False, "a-b==1.0: the registry has no file of it, name another version"),
        ((THREE,), False, None),
        ((ONE, TWO, THREE), True, None),
        ((ONE, THREE), True, f"a-b==1.0: the registry has no file of sha256 {TWO}, find out why"),
    ],
)
def test_what_is_said_of_a_release(hashes, is_check, fault):
    (pin, _) = lock.pins(TEXT)
    assert lock.fault_of(pin, hashes, is_check) == fault


@pytest.fixture
def html_registry():
    """The address of a registry that has pages for people alone."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<!DOCTYPE html><html><body>a-b</body></html>")

        def log_message(self, format: str, *arguments: object) -> None:
            """Nothing: what a test prints is looked at."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/simple"
    server.shutdown()
    thread.join(120)
    server.server_close()


def test_a_registry_without_json_is_told_in_one_line(html_registry, monkeypatch, tmp_path, capsys):
    (tmp_path / "a.lock").write_text(TEXT)
    monkeypatch.setattr(lock, "LOCKS", (tmp_path / "a.lock",))
    monkeypatch.setenv("PIP_INDEX_URL", html_registry)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert lock.main(["--check"]) == 2
    assert capsys.readouterr().err == (
        "error: the registry at 127.0.0.1 has no JSON of a-b, take another registry\n"
    )


def test_a_pip_that_does_not_tell_its_registry_is_told_in_one_line(monkeypatch, tmp_path, capsys):
    (tmp_path / "a.lock").write_text(TEXT)
    (tmp_path / "pip.conf").write_text("no section")
    monkeypatch.setattr(lock, "LOCKS", (tmp_path / "a.lock",))
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    assert lock.main([]) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: `pip config list` fails: ")
    assert told.count("\n") == 1
    monkeypatch.setattr(lock, "SECONDS", 0.0)
    assert lock.main([]) == 2
    assert capsys.readouterr().err == "error: `pip config list` did not end within 0 s\n"
    assert (tmp_path / "a.lock").read_text() == TEXT


def test_another_source_of_horovod_is_refused(tmp_path):
    (tmp_path / "horovod-0.28.1.tar.gz").write_bytes(b"something else")
    done = subprocess.run(
        build_horovod.fetch_command(tmp_path / "fetched"),
        env={**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode
    assert "DO NOT MATCH THE HASHES" in done.stderr
    assert sys.executable in map(str, build_horovod.fetch_command(tmp_path))
