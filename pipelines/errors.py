"""Errors for callers to catch, each with its remedy."""

from __future__ import annotations

from typing import Any, ClassVar
from unicodedata import category

_HARMLESS = "\n\t\u200c\u200d"
_SHOWN = 200
"""Characters of a library's message in an error."""


def one_line(text: str) -> str:
    """Return a text with escapes for line breaks, cursor moves and unprintable characters.

    Texts of users, and of libraries about them, may hold any character.
    """
    return "".join(
        sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text
    )


def printable(text: str) -> str:
    """Return a text with escapes for commands to a terminal: ESC, C1, direction marks.

    Lines and blanks stay, and so do the joiners of scripts and emoji.
    """
    return "".join(
        sign if sign in _HARMLESS or category(sign) == "Zs" else one_line(sign) for sign in text
    )


def in_sentences(problem: str, remedy: str) -> str:
    """Join a problem and its remedy, and add missing full stops."""
    parts = (problem, remedy)
    return " ".join(part if part.endswith((".", "?", "!")) else f"{part}." for part in parts)


class PipelineError(Exception):
    """Any deliberate error of this package; its job exits with `exit_code`."""

    exit_code: ClassVar[int] = 1


class InputError(PipelineError):
    """A fault for the user to correct: a setting, a file, a corpus. Jobs exit with 2.

    Args:
        key: The setting at fault, as written in the YAML file (``lanes.granule``).
        problem: A sentence about the fault, with the value and without its full stop.
        remedy: A sentence that begins with a verb: ``Use at most 4``.
    """

    exit_code = 2

    def __init__(self, key: str, problem: str, remedy: str) -> None:
        super().__init__(one_line(f"{key}: {in_sentences(problem, remedy)}"))
        self.key = key
        self.problem = problem
        self.remedy = remedy


class DamagedFileError(PipelineError, ValueError):
    """A file of this package with other content than written. Jobs exit with 1."""

    def __init__(self, path: str, problem: str) -> None:
        # A library's message may show a whole value, over several lines.
        short = " ".join(problem.split())
        short = short if len(short) <= _SHOWN else f"{short[:_SHOWN]}…"
        message = f"{path} is damaged ({short}): restore it from a copy, or make it again"
        super().__init__(one_line(message))
        self.path = path
        self.problem = short


class EngineUnavailable(InputError):  # noqa: N818 - the state of the engine, as users know it
    """The engine cannot run here; the remedy is a command or a conf key."""


class EngineError(PipelineError):
    """A failed training run on the cluster. Jobs exit with 1.

    Args:
        engine: Name of the engine in the registry.
        cause: The reason, with the executor's traceback if there is one.
        rank: Rank of the first failed worker, if known. Place, host and lane are of this worker.
        place: Its place among the workers of one copy of the encoder, for people.
        lane: Its first lane.
    """

    def __init__(
        self,
        engine: str,
        cause: str,
        *,
        rank: int | None = None,
        place: str | None = None,
        host: str | None = None,
        lane: int | None = None,
    ) -> None:
        known = {"rank": rank, "": place, "host": host, "lane": lane}
        parts = [f"{name} {value}".strip() for name, value in known.items() if value is not None]
        super().__init__(f"{', '.join([f'engine {engine}', *parts])}: {cause}")
        self.engine = engine
        self.cause = cause
        self.rank = rank
        self.place = place
        self.host = host
        self.lane = lane


class WorkerLostError(EngineError):
    """A worker's process or its host is gone; nothing in the run itself went wrong.

    `began` tells whether all workers had been ready to train; `where` holds rank, place, host and
    lane of :class:`EngineError`.
    """

    def __init__(self, engine: str, cause: str, *, began: bool, **where: Any) -> None:
        super().__init__(engine, cause, **where)
        self.began = began

    def since(self, reason: str) -> WorkerLostError:
        """Return the same error, with a reason behind its cause."""
        return self._with(cause=f"{self.cause} ({reason})")

    def at(self, host: str | None) -> WorkerLostError:
        """Return the same error, with a host if it names none."""
        return self._with(host=self.host or host)

    def _with(self, **changes: Any) -> WorkerLostError:
        names = ("engine", "cause", "began", "rank", "place", "host", "lane")
        return WorkerLostError(**{name: getattr(self, name) for name in names} | changes)


class PromotionRefused(PipelineError):  # noqa: N818 - what the gate says, as users know it
    """The quality gate keeps a model out of service; nothing has failed. Jobs exit with 3.

    `key` is the failed setting; `problem` is the metric with its figures.
    """

    exit_code = 3

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"{key}: {problem}")
        self.key = key
        self.problem = problem


class NothingNew(PipelineError):  # noqa: N818 - an answer, as users know it
    """An incremental job found nothing new. Jobs exit with 4."""

    exit_code = 4
