"""JSON lines: an object a line. Runs on executors, over lines of any encoding."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pipelines.corpus.readers.formats import (
    FileNames,
    Form,
    Format,
    Line,
    Probe,
    Reading,
    record_of,
    text_lines,
)
from pipelines.corpus.readers.rows import Found, Record, quarantined_record
from pipelines.corpus.readers.streams import UnreadableError, last_line_end
from pipelines.settings.corpus import element_of

SUFFIXES = (".jsonl", ".ndjson", ".json")
NOT_JSON = "not JSON"
NOT_AN_OBJECT = "not a JSON object"

_KINDS: Mapping[type, str] = {list: "a list", dict: "an object"}


def json_records(reading: Reading) -> Iterator[Found]:
    """Yield a record a line; quarantine lines without an object or a wanted plain value."""
    for found in text_lines(reading):
        yield _json_record(*found, reading) if isinstance(found, tuple) else found


def _json_record(line: Line, text: str, reading: Reading) -> Record:
    columns = reading.wanted.columns
    try:
        fields = parse_object(text)
        if reading.wanted.as_rows:
            return Record(*line[:2], (text,))
        values = {name: plain_value(fields, name) for name in columns.names}
    except ValueError as error:
        return quarantined_record(*line, reading.encoding.codec, str(error))
    return record_of(*line[:2], values, columns)


def parse_object(text: str) -> dict[str, Any]:
    """Return the object in a line of JSON; a `ValueError` has the reason for the quarantine."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(NOT_JSON) from None
    if not isinstance(value, dict):
        raise ValueError(NOT_AN_OBJECT)  # noqa: TRY004 - a value of the data, not of the program
    return value


def plain_value(fields: Mapping[str, Any], name: str) -> str | None:
    """Return a column, or an element of a column of lists, as text.

    Null is None, and so is an element behind the end of a list. A missing column, or one of several
    values, raises a `ValueError` with the reason for the quarantine.
    """
    column, place = element_of(name, fields) or (name, None)
    if column not in fields:
        raise ValueError(f"no column `{column}`")
    value = fields[column]
    if place is not None:
        if not isinstance(value, list):
            raise ValueError(f"column `{column}` holds no list")
        value = value[place] if place < len(value) else None
    if (kind := _KINDS.get(type(value))) is not None:
        raise ValueError(f"column `{name}` holds {kind}")
    if not isinstance(value, str):
        return None if value is None else json.dumps(value)
    try:
        value.encode()
    except UnicodeEncodeError:
        # JSON can spell half a surrogate pair, and UTF-8 cannot hold it: it becomes U+FFFD.
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return value


def shown_columns(probed: Probe) -> tuple[str, ...] | None:
    """Return the names in the objects of the first bytes; None if no whole line is there."""
    # In a longer file the last line is cut off, and perhaps the only one.
    seen = probed.head if probed.is_whole else probed.head[: max(last_line_end(probed.head), 0)]
    lines = [line for line in seen.splitlines() if line.strip()]
    found: dict[str, None] = {}
    for line in lines:
        try:
            found |= dict.fromkeys(parse_object(line.decode(probed.encoding.codec, "replace")))
        except ValueError:
            continue
    if lines and not found:
        raise UnreadableError("no JSON object in its first lines")
    return tuple(found) or None


_FORM = Form(json_records, columns=shown_columns)

JSON_LINES = Format(
    files=FileNames(SUFFIXES),
    form=lambda file, head: _FORM,
    rows=lambda file, head: _FORM,
    columns=True,
)
