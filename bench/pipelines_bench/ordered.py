"""Processes that work when they are told to, so that several can be measured in turn."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from pipelines.errors import PipelineError

DEADLINE_SECONDS = 600.0
END_SECONDS = 20.0


class OrderedProcess:
    """A process that reads orders as lines of JSON, and answers each with one.

    Args:
        name: For errors.
        process: With pipes for its standard input and output.
    """

    def __init__(self, name: str, process: subprocess.Popen[str]) -> None:
        self._name = name
        self._process = process

    def order(self, work: Any) -> None:
        """Has it do some work.

        Raises:
            PipelineError: It has ended.
        """
        orders = self._process.stdin
        assert orders is not None
        try:
            orders.write(f"{json.dumps(work)}\n")
            orders.flush()
        except OSError:
            raise self._ended() from None

    def answer(self) -> Mapping[str, float]:
        """What the work took.

        Raises:
            PipelineError: It has ended, or does not answer in time.
        """
        answers = self._process.stdout
        assert answers is not None
        ready, _, _ = select.select([answers], [], [], DEADLINE_SECONDS)
        line = answers.readline() if ready else ""
        if not line:
            raise self._ended()
        answer: Mapping[str, float] = json.loads(line)
        return answer

    def _ended(self) -> PipelineError:
        return PipelineError(
            f"{self._name} has not answered within {DEADLINE_SECONDS:.0f} s, or has ended; "
            "what it said is above"
        )


@contextmanager
def ordered_process(name: str, module: str, arguments: Sequence[str]) -> Iterator[OrderedProcess]:
    """Starts a module of this package on one thread, and ends it.

    Args:
        name: For errors.
        module: Its name.
        arguments: Of its command line.
    """
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    with subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        try:
            yield OrderedProcess(name, process)
        finally:
            _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    """Kindly at first, so that it removes its files."""
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.close()
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
