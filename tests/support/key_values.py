"""A format that nobody has: a record a line, of `key=value` with semicolons between.

It follows the recipe of :mod:`pipelines.corpus.readers.formats`, and stands for a format that is
added some day.
"""

from __future__ import annotations

import json

from pipelines.corpus.readers.formats import FileNames, Form, Format, record_of, text_lines
from pipelines.corpus.readers.rows import Record, quarantined_record


def values_of(text):
    """The values of a line by their names; fails where something is no `key=value`."""
    return dict(field.split("=", 1) for field in text.strip().split(";"))


def records(reading):
    wanted = reading.wanted
    for found in text_lines(reading):
        if not isinstance(found, tuple):
            yield found
            continue
        line, text = found
        try:
            values = values_of(text)
        except ValueError:
            yield quarantined_record(*line, reading.encoding.codec, "no key=value")
            continue
        if wanted.as_rows:
            yield Record(*line[:2], (json.dumps(values),))
        else:
            named = {name: values.get(name) for name in wanted.columns.names}
            yield record_of(*line[:2], named, wanted.columns)


def shown(probed):
    lines = probed.head.decode(probed.encoding.codec).splitlines()
    return tuple(values_of(lines[0])) if lines else None


FORM = Form(records, columns=shown)
KEY_VALUES = Format(
    files=FileNames((".kv",)),
    form=lambda file, head: FORM,
    rows=lambda file, head: FORM,
    columns=True,
)
