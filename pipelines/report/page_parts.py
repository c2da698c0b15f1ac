"""Common parts of all pages: bars, formatted numbers, templates, errors of damaged records."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pipelines.errors import DamagedFileError, InputError, PipelineError
from pipelines.files import storage
from pipelines.files.locations import Location
from pipelines.report.comparison import shown
from pipelines.report.verdict import points, signed_points, told_interval

LOST = ("dropped", "quarantined")
"""Kinds of funnel lines with a reason for dropped rows."""
_SHORT = 10.0
"""Seconds below which tenths are shown."""
_UNITS = ("bytes", "kB", "MB", "GB", "TB")

Value = TypeVar("Value")


@dataclass(frozen=True)
class Chart:
    """A titled picture, as markup; ``note`` says how to read it.

    A ``wide`` one takes the whole width. ``narrow`` is the same picture for a narrow screen: the
    wide one's text would be too small.
    """

    title: str
    svg: str
    wide: bool = False
    narrow: str = ""
    note: str = ""


@dataclass(frozen=True)
class Bar:
    """A bar on a track.

    Attributes:
        start: Where it begins, as a share of the track.
        kind: Decides its colour: that of a funnel line, of a part of a worker's time, or `share`.
        share_text: Its share, for people; that of the track unless given.
    """

    name: str
    rows: str
    start: float
    length: float
    kind: str = "in"
    share_text: str | None = None

    @property
    def share(self) -> str:
        """Its share, for people."""
        return per_cent(self.length) if self.share_text is None else self.share_text

    @property
    def left(self) -> str:
        """Where it begins, for style sheets."""
        return f"{100 * self.start:.3f}%"

    @property
    def width(self) -> str:
        """How long it is, for style sheets."""
        return f"{100 * self.length:.3f}%"


def funnel_levels(
    lines: Sequence[Mapping[str, Any]], *, with_kinds: bool = True
) -> dict[str, list[Bar]]:
    """Return the bars of every level: losses are taken off the right end, the rest is left.

    ``lines`` are those of ``funnel.json``, see :mod:`pipelines.corpus.funnel`. With ``with_kinds``,
    the names of losses say their kind.
    """
    levels: dict[str, list[Bar]] = {}
    for level in dict.fromkeys(line["level"] for line in lines):
        of_level = [line for line in lines if line["level"] == level]
        entered = max(sum(line["rows"] for line in of_level if line["kind"] == "in"), 1)
        left, kept = entered, 0
        for line in of_level:
            kind, rows = line["kind"], line["rows"]
            name = line.get("reason") or line.get("stage", "")
            if kind in LOST:
                left -= rows
                name = f"{kind}: {name}" if with_kinds else name
            start = left if kind in LOST else kept if kind == "kept" else 0
            kept += rows if kind == "kept" else 0
            drawn = Bar(name, f"{rows:,}", start / entered, rows / entered, kind)
            levels.setdefault(level, []).append(drawn)
    return levels


def render(template: str, values: Mapping[str, Any]) -> str:
    """Fill a template of this folder, by its file name; all text is escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        # A misspelt name in a template raises, and leaves no gap in the page.
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {
        "points": points,
        "signed_points": signed_points,
        "told_interval": told_interval,
        "markup": Markup,
        "shown": shown,
    }
    page = templates.get_template(template).render(values)
    if _TRIAL.get():
        raise _DrawnError
    return page


def read_if_there(path: Location, reader: Callable[[Location], Value]) -> Value | None:
    """Return the content of a file; None where there is no such file."""
    read = _READ.get()
    if read is not None:
        read.add(path)
    if path in _TRIAL.get() or not path.is_file():
        return None
    try:
        return reader(path)
    except InputError as error:  # Of settings: it names a key, and not the file with it.
        raise DamagedFileError(str(path), str(error)) from error


def read_record(path: Location) -> Any:
    """Return the content of a JSON file; an empty object without such a file."""
    return read_if_there(path, storage.read_json) or {}


class _DrawnError(Exception):
    """A trial has drawn a page; nothing is written."""


_READ: ContextVar[set[Location] | None] = ContextVar("records that were read", default=None)
_TRIAL: ContextVar[frozenset[Location]] = ContextVar("records left out", default=frozenset())
# Errors of readers and templates on a record of another shape.
_SPOILED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError)


def drawn(draw: Callable[[], Value]) -> Value:
    """Draw a page, or blame a damaged record.

    People can edit records, and mounts can spoil them. Only their readers know valid content, so
    trials leave out one record after the other until the page can be drawn. ``draw`` reads records
    by :func:`read_if_there`, and writes a page made by :func:`render`.

    Raises:
        DamagedFileError: Naming the record.
    """
    from jinja2 import TemplateError

    read: set[Location] = set()
    token = _READ.set(read)
    try:
        return draw()
    except PipelineError:
        raise
    except (*_SPOILED, TemplateError) as error:
        for left_out in _tries(read):
            if _can_be_drawn_without(left_out, draw):
                problem = f"{type(error).__name__}: {error}"
                raise DamagedFileError(str(left_out[-1]), problem) from error
        raise
    finally:
        _READ.reset(token)


def _tries(read: Collection[Location]) -> Iterator[list[Location]]:
    """Yield records to leave out: first each by itself, then ever more of them.

    ``read`` grows meanwhile: without one record a page gets to the next.
    """
    for so_far in (False, True):
        tried: list[Location] = []
        while rest := sorted((path for path in read if path not in tried), key=str):
            tried.append(rest[0])
            if rest[0].is_file():
                yield tried if so_far else rest[:1]


def _can_be_drawn_without(left_out: Iterable[Location], draw: Callable[[], object]) -> bool:
    token = _TRIAL.set(frozenset(left_out))
    try:
        draw()
    except _DrawnError:
        return True
    except DamagedFileError:  # Another record is at fault too, and is named.
        raise
    except Exception:  # noqa: BLE001 - as without it
        return False
    finally:
        _TRIAL.reset(token)
    return False


def per_cent(share: float) -> str:
    """Format a share; any above 0 is shown as more than 0."""
    return "< 0.1 %" if 0 < share < 0.0005 else f"{100 * share:.1f} %"


def whole(value: float) -> str:
    """Format a number: three figures, or all before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """Format hours, minutes and seconds; from an hour on without seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours:,}h {minutes:02}m"
    return f"{minutes}m {rest:02}s" if minutes else f"{rest}s"


def short_duration(seconds: float) -> str:
    """Format as :func:`duration`; short ones to a tenth of a second."""
    return duration(seconds) if seconds >= _SHORT else f"{seconds:.1f}s"


def byte_size(count: float) -> str:
    """Format bytes in a decimal unit, with one to three figures before the point."""
    unit = 0
    # From 999.5 on, three figures would round to 1e+03.
    while count >= 999.5 and unit < len(_UNITS) - 1:
        count /= 1000
        unit += 1
    return f"{count:.3g} {_UNITS[unit]}"
