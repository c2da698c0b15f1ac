"""The errors that callers may catch; each says what to do about it."""

from __future__ import annotations

from typing import Any, ClassVar
from unicodedata import category

_HARMLESS = "\n\t\u200c\u200d"
_SHOWN = 200
"""Characters of a library's message in an error."""


def one_line(text: str) -> str:
    """Return a text with escapes for what breaks a line, moves a cursor, or cannot be written.

    Texts of users, and of libraries about them, may hold any character.
    """
    return "".join(
        sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text
    )


def printable(text: str) -> str:
    """Return a text with escapes for what a terminal would obey: ESC, C1, direction marks.

    Lines and blanks stay, and so do the joiners of scripts and emoji.
    """
    return "".join(
        sign if sign in _HARMLESS or category(sign) == "Zs" else one_line(sign) for sign in text
    )


def in_sentences(problem: str, remedy: str) -> str:
    """Join a problem and its remedy, each a sentence that may lack its full stop."""
    parts = (problem, remedy)
    return " ".join(part if part.endswith((".", "?", "!")) else f"{part}." for part in parts)


class PipelineError(Exception):
    """Any error that this package raises on purpose; a job that it ends exits with `exit_code`."""

    exit_code: ClassVar[int] = 1


class InputError(PipelineError):
    """Something that the user can mend: a setting, a file, a corpus. Jobs exit with 2.

    Args:
        key: The setting at fault, as written in the YAML file (``lanes.granule``).
        problem: What is wrong, with the value, as a sentence without its full stop.
        remedy: What to do, as a sentence that begins with a verb: ``Use at most 4``.
    """

    exit_code = 2

    def __init__(self, key: str, problem: str, remedy: str) -> None:
        super().__init__(one_line(f"{key}: {in_sentences(problem, remedy)}"))
        self.key = key
        self.problem = problem
        self.remedy = remedy


class DamagedFileError(PipelineError, ValueError):
    """A file of this package that does not hold what was written into it. Jobs exit with 1."""

    def __init__(self, path: str, problem: str) -> None:
        # What a library says of a value shows it, and may be of several lines.
        told = " ".join(problem.split())
        told = told if len(told) <= _SHOWN else f"{told[:_SHOWN]}…"
        said = f"{path} is damaged ({told}): put it back from a copy, or make it anew"
        super().__init__(one_line(said))
        self.path = path
        self.problem = told


class EngineUnavailable(InputError):  # noqa: N818 - the state of the engine, as users know it
    """The engine cannot run here; the remedy is the command or conf key that makes it run."""


class EngineError(PipelineError):
    """A training run that failed on the cluster. Jobs exit with 1.

    Args:
        engine: Name of the engine in the registry.
        cause: What happened, with the executor's traceback where there is one.
        rank: Rank of the worker that failed first, where one is known. Place, host and lane are
            those of this worker.
        place: Where it stands among those that hold the encoder together, for people.
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
        parts = [f"{name} {one}".strip() for name, one in known.items() if one is not None]
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
        """Return the same error, with a host where it names none."""
        return self._with(host=self.host or host)

    def _with(self, **changes: Any) -> WorkerLostError:
        own = ("engine", "cause", "began", "rank", "place", "host", "lane")
        return WorkerLostError(**{name: getattr(self, name) for name in own} | changes)


class PromotionRefused(PipelineError):  # noqa: N818 - what the gate says, as users know it
    """The quality gate keeps a model out of service; nothing has failed. Jobs exit with 3.

    `key` is the setting that the model did not pass; `problem` is the metric with its figures.
    """

    exit_code = 3

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"{key}: {problem}")
        self.key = key
        self.problem = problem


class NothingNew(PipelineError):  # noqa: N818 - an answer, as users know it
    """A job that was asked to work only on what is new found nothing. Jobs exit with 4."""

    exit_code = 4
