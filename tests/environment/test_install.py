"""The script by which make installs: what it shows, what uv is told, and pip where uv fails."""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path

import pytest
from install import Display, main, run, state_of, uv_variables


@pytest.mark.parametrize(
    ("line", "state"),
    [
        ("Collecting numpy==1.26.4\n", "looking for numpy==1.26.4"),
        ("  Downloading ruff-0.1.whl (10 MB)\n", "downloading ruff-0.1.whl 10 MB"),
        ("  Using cached torch-2.13.0.whl\n", "downloading torch-2.13.0.whl"),
        ("Downloading ruff (10.1MiB)", "downloading ruff 10.1MiB"),
        (" Downloaded tensorflow", "downloaded tensorflow"),
        ("   Building pyspark==3.5.9", "building pyspark==3.5.9"),
        ("Installing collected packages: six, numpy", "installing"),
        ("Prepared 206 packages in 29.74s", "Prepared 206 packages in 29.74s"),
        (" + six==1.17.0", None),
    ],
)
def test_what_is_worth_showing_of_pip_and_uv(line, state):
    assert state_of(line) == state


def test_uv_is_told_what_pip_is_configured_with():
    listed = (
        ":env:.find-links='/wheels'\n"
        "global.extra-index-url='https://a.example/simple\\nhttps://b.example/simple'\n"
        "global.find-links='/other'\n"
        "global.index-url='https://c.example/simple'\n"
        "install.no_index='false'\n"
    )
    assert uv_variables(listed) == {
        "UV_DEFAULT_INDEX": "https://c.example/simple",
        "UV_EXTRA_INDEX_URL": "https://a.example/simple https://b.example/simple",
        "UV_FIND_LINKS": "/wheels",
        "UV_NO_INDEX": "false",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
    }
    assert uv_variables("") == {}


def test_the_last_lines_of_an_installer_are_kept(capsys):
    display = Display(Path(".venv"), live=False)
    code, last = run(["sh", "-c", "echo Collecting six; seq 90; exit 3"], display, {"PATH": "/bin"})
    assert code == 3
    assert last[-2:] == ["89", "90"]
    assert len(last) == 20
    assert capsys.readouterr().err.startswith(".venv: ")


def test_a_terminal_has_one_line_that_changes(monkeypatch, tmp_path):
    shown = io.StringIO()
    monkeypatch.setattr(sys, "stderr", shown)
    display = Display(tmp_path, live=True)
    (tmp_path / "lib/python3.11/site-packages/six-1.17.0.dist-info").mkdir(parents=True)
    for package in ("six", "numpy"):
        display.show(f"downloading {package}")
    display.end("installed")
    *changing, last = shown.getvalue().split("\r\x1b[K")[1:]
    assert len(changing) == 2
    assert all(line.endswith("s, 1 packages there)") for line in changing)
    assert last.startswith(f"{tmp_path}: installed (")
    assert last.endswith("s)\n")


@pytest.mark.parametrize("uv", ["", shutil.which("false")])
def test_without_a_uv_that_works_pip_installs(uv, monkeypatch, capsys):
    monkeypatch.setenv("UV", uv)
    assert main([sys.prefix, "--no-index", "--no-deps", "--dry-run", "pip"]) == 0
    said = capsys.readouterr().err
    assert ("uv failed with exit code 1" in said) == bool(uv)
    assert "installed by pip: pip" in said


def test_what_neither_can_install_is_told_at_its_end(monkeypatch, capsys):
    monkeypatch.setenv("UV", "")
    assert main([sys.prefix, "--no-index", "--no-deps", "--dry-run", "no-such-name==1"]) == 1
    assert "no-such-name" in capsys.readouterr().err
