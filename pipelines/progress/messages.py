"""Lines for people: results of a command, and log messages beside a live display."""

from __future__ import annotations

import logging
import sys
from typing import IO, Any

from pipelines.errors import printable


def say(text: str, file: IO[str] | None = None) -> None:
    """Prints a line of which no part steers the terminal.

    Args:
        text: With whatever users and files have given.
        file: Standard output by default.
    """
    print(printable(text), file=file)


class MessageHandler(logging.StreamHandler[Any]):
    """Writes messages to the present standard error, so that they appear above a progress bar.

    Interruptions are reported at the end of the job, and not by the libraries at work.
    """

    def format(self, record: logging.LogRecord) -> str:
        """See :class:`logging.Handler`."""
        return printable(super().format(record))

    def emit(self, record: logging.LogRecord) -> None:
        """See :class:`logging.Handler`."""
        error = record.exc_info[0] if record.exc_info else None
        if error is not None and issubclass(error, KeyboardInterrupt):
            return
        self.stream = sys.stderr
        super().emit(record)
