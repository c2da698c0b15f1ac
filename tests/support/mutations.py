"""Damage for fuzz tests: files and messages that are nearly what real code has written."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from pipelines.errors import PipelineError

T = TypeVar("T")

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "25"))
"""Of each test: a few in the suite, more by `make fuzz`."""

fuzzed = settings(
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
"""Settings of every fuzz test; all others are those of the profile."""

_MARK = "--here--"

# What stands where a value was, as JSON text: of other types, too large, too deep, no text at all.
ODD_JSON = [
    *("null", "true", "-1", "0", "1", "1.5", "1e999", "NaN", "-Infinity", "9" * 400, "9" * 5000),
    *(
        '""',
        '"x"',
        '"../../../etc/passwd"',
        '"\\ud800"',
        '"\\u0000"',
        '"a\\nb"',
        '"' + "x" * 300 + '"',
    ),
    *(
        "[]",
        "{}",
        "[[]]",
        "[null]",
        '["x", 1]',
        '{"a": 1, "a": 2}',
        '{"": {}}',
        "18446744073709551615",
    ),
    "[" * 3000 + "]" * 3000,
    '{"a":' * 3000 + "1" + "}" * 3000,
]


def _places(value: Any, path: tuple = ()) -> Iterator[tuple]:
    """Where values are inside a value."""
    yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _places(inner, (*path, key))
    elif isinstance(value, list):
        # All entries of a list are alike.
        for index, inner in enumerate(value[:3]):
            yield from _places(inner, (*path, index))


def _with(value: Any, path: tuple, change: Callable[[Any, Any], None]) -> Any:
    """A copy in which something has been done to what holds the value at a place."""
    whole = {"whole": json.loads(json.dumps(value))}
    *way, last = ("whole", *path)
    inner: Any = whole
    for key in way:
        inner = inner[key]
    change(inner, last)
    return whole.get("whole")


@st.composite
def odd_json(draw: st.DrawFn, value: Any) -> bytes:
    """The text of a JSON value with one to three values replaced, left out or called otherwise."""
    filled = []
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(list(_places(value))))
        action = draw(st.sampled_from(["replace", "replace", "leave out", "rename", "add"]))
        if action == "replace" or not path:
            filled.append(draw(st.sampled_from(ODD_JSON)))
            mark = f"{_MARK}{len(filled) - 1}"
            value = _with(value, path, lambda inner, key, mark=mark: inner.__setitem__(key, mark))
        elif action == "leave out":
            value = _with(value, path, lambda inner, key: inner.pop(key))
        elif action == "rename" and isinstance(path[-1], str):
            value = _with(value, path, lambda inner, key: inner.update({f"{key}_": inner.pop(key)}))
        elif isinstance(path[-1], str):
            value = _with(value, path, lambda inner, _: inner.update({"new": 1}))
        else:
            value = _with(value, path, lambda inner, _: inner.append(None))
    text = json.dumps(value)
    for number, odd in reversed(list(enumerate(filled))):
        text = text.replace(f'"{_MARK}{number}"', odd)
    return text.encode("utf-8", "surrogatepass")


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """Bytes that are cut, changed, repeated, left out, or replaced."""
    kind = draw(st.sampled_from(["flip", "flip", "cut", "splice", "fill", "replace"]))
    if kind == "replace" or not content:
        odd = [
            b"",
            b"\0",
            b"[]",
            b"{}",
            b"null",
            b"7",
            b"\xff\xfe",
            b"PAR1",
            b"ARROW1\0\0",
            b"[" * 3000,
        ]
        return draw(st.sampled_from(odd) | st.binary(max_size=64))
    place = st.integers(0, len(content) - 1)
    if kind == "flip":
        changed = bytearray(content)
        for _ in range(draw(st.integers(1, 4))):
            changed[draw(place)] ^= 1 << draw(st.integers(0, 7))
        return bytes(changed)
    if kind == "cut":
        return content[: draw(place)]
    start, stop = sorted((draw(place), draw(place)))
    if kind == "fill":
        stop = min(stop, start + 16)
        return (
            content[:start]
            + draw(st.sampled_from([b"\0", b"\xff"])) * (stop - start)
            + content[stop:]
        )
    other = draw(place)
    return content[:start] + content[other : other + stop - start] + content[stop:]


@st.composite
def damaged_file(draw: st.DrawFn, path: Path) -> bytes:
    """What a file may hold in its own place: damaged bytes, or, if it is JSON, odd values."""
    content = path.read_bytes()
    if path.suffix == ".json" and draw(st.booleans()):
        return draw(odd_json(json.loads(content)))
    if path.suffix == ".jsonl" and draw(st.booleans()):
        lines = content.splitlines()
        number = draw(st.integers(0, len(lines) - 1))
        lines[number] = draw(odd_json(json.loads(lines[number])))
        return b"\n".join(lines) + b"\n"
    return draw(damaged(content))


def read_or_refused(read: Callable[[], T], *named: str) -> T | None:
    """What is read of something damaged; None if it was refused as it should be.

    Any error but those of the package ends the test, and so does one of them that has several
    lines, or holds none of the names.
    """
    try:
        with limited_memory():
            return read()
    except PipelineError as error:
        said = str(error)
        assert said.splitlines() == [said], said
        assert any(name in said for name in named), said
        return None


@contextmanager
def limited_memory(more: int = 4 << 30) -> Iterator[None]:
    """Refuses this process memory that nothing of a few kilobytes should need."""
    with Path("/proc/self/statm").open() as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
