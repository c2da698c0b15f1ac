"""Log messages beside a live display."""

from __future__ import annotations

import logging
import sys
from typing import Any


class MessageHandler(logging.StreamHandler[Any]):
    """Writes messages to the present standard error, so that they appear above a progress bar.

    Interruptions are reported at the end of the job, and not by the libraries at work.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """See :class:`logging.Handler`."""
        error = record.exc_info[0] if record.exc_info else None
        if error is not None and issubclass(error, KeyboardInterrupt):
            return
        self.stream = sys.stderr
        super().emit(record)
