"""Installs packages into an environment with uv if it is there, otherwise with pip, and shows it.

The Makefile calls it with what it would give to ``pip install``:

    python environment/install.py .venv --require-hashes --no-deps -r requirements.lock

uv takes the same pins in the same order, in a fraction of the time. It does not read pip's
configuration, so the registries, the certificate and the proxy of pip are handed to it. Where uv
fails, pip tries. ``UV=`` in the environment leaves uv out, ``UV=/path/to/uv`` names one.

In a terminal one line shows what is downloaded or installed now. In a log, and where make runs
several recipes at once, a line is printed every few seconds.
"""

from __future__ import annotations

import ast
import os
import queue
import re
import shutil
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

SECONDS_BETWEEN_LINES = 5.0
_TICK_SECONDS = 0.5
_KEPT_LINES = 20
_WIDTH = 79

# What the lines of pip and of uv are about; the others are not shown.
_STATES = (
    (re.compile(r"Collecting (\S+)"), "looking for {0}"),
    (re.compile(r"(?:Using cached|Downloading) (\S+)(?: \((.+)\))?"), "downloading {0} {1}"),
    (re.compile(r"Downloaded (\S+)"), "downloaded {0}"),
    (re.compile(r"Building (?:wheels? for [\w ]*: |wheel for )?(\S+)"), "building {0}"),
    (re.compile(r"Installing collected packages"), "installing"),
    (re.compile(r"(Prepared .*)"), "{0}"),
)
# By the names of pip's settings, which variables of uv have the same meaning.
_UV_VARIABLES = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_EXTRA_INDEX_URL", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "no-index": ("UV_NO_INDEX", " "),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "cert": ("SSL_CERT_FILE", " "),
    "proxy": ("ALL_PROXY", " "),
}
# Later ones win, as pip has it.
_SECTIONS = ("global", "install", ":env:")


class Display:
    """One line that changes in a terminal, and lines now and then elsewhere.

    Args:
        folder: Of the environment; in front of each line.
        live: Whether the line may be written over.
    """

    def __init__(self, folder: Path, *, live: bool) -> None:
        self._folder, self._live = folder, live
        self._began = time.monotonic()
        self._told = -SECONDS_BETWEEN_LINES

    def show(self, state: str) -> None:
        """Shows what is done now."""
        elapsed = time.monotonic() - self._began
        between = 0.0 if self._live else SECONDS_BETWEEN_LINES
        if elapsed - self._told < between:
            return
        self._told = elapsed
        there = sum(1 for _ in self._folder.glob("lib/*/site-packages/*.dist-info"))
        behind = f" ({elapsed:.0f} s, {there} packages there)"
        line = f"{self._folder}: {state}"[: _WIDTH - len(behind)] + behind
        start, end = ("\r\x1b[K", "") if self._live else ("", "\n")
        print(start + line, end=end, file=sys.stderr, flush=True)

    def end(self, state: str) -> None:
        """Shows how it ended, in a line that stays."""
        elapsed = time.monotonic() - self._began
        start = "\r\x1b[K" if self._live else ""
        print(f"{start}{self._folder}: {state} ({elapsed:.0f} s)", file=sys.stderr, flush=True)


def state_of(line: str) -> str | None:
    """What a line of pip or uv says that is worth showing."""
    for pattern, text in _STATES:
        if found := pattern.match(line.strip()):
            return text.format(*(group or "" for group in found.groups())).strip()
    return None


def uv_variables(listed: str) -> dict[str, str]:
    """Variables that give uv what pip is configured with.

    Args:
        listed: What ``pip config list`` prints.
    """
    settings: dict[str, dict[str, str]] = {section: {} for section in _SECTIONS}
    for line in listed.splitlines():
        key, separator, value = line.partition("=")
        section, _, name = key.rpartition(".")
        if separator and section in settings:
            settings[section][name.replace("_", "-")] = str(ast.literal_eval(value))
    merged: dict[str, str] = {}
    for section in _SECTIONS:
        merged |= settings[section]
    variables = {
        variable: joint.join(merged[name].split())
        for name, (variable, joint) in _UV_VARIABLES.items()
        if merged.get(name)
    }
    if "UV_EXTRA_INDEX_URL" in variables:
        # As pip looks: among what all registries have, and not in the first that has any.
        variables["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    return variables


def run(command: Sequence[str], display: Display, env: Mapping[str, str]) -> tuple[int, list[str]]:
    """Runs an installer; returns its exit code and its last lines."""
    process = subprocess.Popen(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert process.stdout is not None
    lines: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=_read, args=(process.stdout, lines), daemon=True).start()
    last, state = deque[str](maxlen=_KEPT_LINES), "starting"
    try:
        while True:
            try:
                line = lines.get(timeout=_TICK_SECONDS)
            except queue.Empty:
                display.show(state)
                continue
            if line is None:
                return process.wait(), list(last)
            last.append(line.rstrip())
            state = state_of(line) or state
            display.show(state)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()


def _read(stream: Iterable[str], lines: queue.Queue[str | None]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)


def main(arguments: Sequence[str]) -> int:
    """Installs; returns the installer's exit code."""
    folder, wanted = Path(arguments[0]), list(arguments[1:])
    python = str(folder / "bin" / "python")
    together = "jobserver" in os.environ.get("MAKEFLAGS", "")
    display = Display(folder, live=sys.stderr.isatty() and not together)
    display.show("starting")
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    commands = [[*pip, "install", "--progress-bar", "off", *wanted]]
    uv = os.environ.get("UV", shutil.which("uv"))
    if uv:
        # As pip does: otherwise each first start of a library compiles it.
        command = [uv, "pip", "install", "--compile-bytecode", "--python", python, *wanted]
        commands.insert(0, command)
    env = dict(os.environ)
    if uv:
        listed = subprocess.run(
            [*pip, "config", "list"], capture_output=True, text=True, check=False
        ).stdout
        env = uv_variables(listed) | env
    code = 1
    for command in commands:
        name = "uv" if command[0] == uv else "pip"
        code, last = run(command, display, env)
        if code == 0:
            display.end(f"installed by {name}: {wanted[-1]}")
            break
        display.end(f"{name} failed with exit code {code}")
        print("\n".join(last), file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
