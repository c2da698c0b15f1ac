"""Commands with a deadline."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from errors import PackageError

MOMENT = 120.0
"""Seconds for commands that take less than one, even on a busy machine."""
_SHOWN = 80


def ended(
    command: Sequence[str | Path],
    seconds: float = MOMENT,
    *,
    env: dict[str, str] | None = None,
    log: IO[Any] | None = None,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end; whatever it started ends with it.

    Args:
        command: With its arguments.
        seconds: That it may take.
        env: Its environment variables; those of this process unless given.
        log: Takes what it says, which is in the result otherwise.
        cwd: Where it runs; where this process does unless given.

    Raises:
        PackageError: It takes longer.
    """
    out, errors = (subprocess.PIPE, subprocess.PIPE) if log is None else (log, subprocess.STDOUT)
    # In a group of its own: what pip has started would go on without it.
    process = subprocess.Popen(
        command, env=env, cwd=cwd, stdout=out, stderr=errors, text=True, start_new_session=True
    )
    try:
        said, complaints = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        raise PackageError(f"{shown(command)} has not ended after {seconds:g} s") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
    return subprocess.CompletedProcess(list(command), process.returncode, said, complaints)


def shown(command: Sequence[str | Path]) -> str:
    """A command in a line that is not long."""
    text = " ".join(str(part) for part in command).partition("\n")[0]
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
