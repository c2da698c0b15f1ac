"""Settings, as text and as overrides, and addresses of stores: values, or one line with the key."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from mutations import ODD_JSON, damaged, fuzzed, limited_memory, odd_json

from pipelines.errors import InputError, PipelineError
from pipelines.files.locations import location
from pipelines.settings import Config
from pipelines.settings.base import NotLocalError, stored_path
from pipelines.settings.fields import fields
from pipelines.settings.load import dump, load, parse

KEYS = sorted(field.key.removesuffix(".*") for field in fields())
WHOLE = {
    "corpus": {"inputs": ["a.csv", "b.csv"], "format": "csv", "evaluation_share": 0.1},
    "prepared": {"folder": "/tmp/x"},
    "encoder": {"start": "random", "layers": 1, "hidden": 32, "heads": 2},
    "objective": {"name": "in_batch_negatives", "temperature": 0.05},
    "training": {"workers": 2, "engine": "torch", "learning_rate": 2e-3, "schedule": "constant"},
    "spark": {"executor.memory": "2g"},
    "evaluation": {"every": 10},
    "storage": {"s3_region": "eu-north-1"},
}
# Values that some setting understands, in the place of all others.
VALUES = [
    *ODD_JSON,
    "[1, 2]",
    "{x: 1}",
    "2026-01-01",
    "0x1F",
    "1:30",
    "a.b",
    "~",
    "s3://b/x",
    "!!binary x",
]
VALUES += [
    "file:///x",
    "file://host/x",
    "~nobody/x",
    "x://y@z/..",
    "' '",
    "-",
    "&a [*a]",
    "yes",
    "1_000",
]


def loads(read) -> Config | None:
    """The settings; None if they were refused in one line that names a key."""
    try:
        with limited_memory():
            found = read()
    except InputError as error:
        said = str(error)
        assert said.splitlines() == [said], said
        assert len(said) < 2000, said[:300]
        assert error.key
        return None
    assert parse(yaml.safe_load(dump(found))) == found
    return found


@fuzzed
@given(content=damaged(yaml.safe_dump(WHOLE).encode()) | odd_json(WHOLE))
def test_any_file_is_settings_or_refused(tmp_path, content):
    path = tmp_path / "settings.yaml"
    path.write_bytes(content)
    loads(lambda: load(path))


@fuzzed
@given(key=st.sampled_from(KEYS), value=st.sampled_from(VALUES) | st.text(max_size=12))
@example(key="spark.executor.memory", value="\ud800")
def test_any_value_of_a_setting_is_taken_or_refused(key, value):
    loads(lambda: load(overrides=[f"{key}={value}"]))


# Long ones take long to parse, and are no more at odds with others.
SHORT = [value for value in VALUES if len(value) < 100]


@fuzzed
@given(st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from(SHORT)), min_size=2, max_size=6))
def test_settings_that_contradict_one_another_are_refused(pairs):
    loads(lambda: load(overrides=[f"{key}={value}" for key, value in pairs]))


@fuzzed
@given(st.text(max_size=30))
def test_an_override_is_one_or_refused(text):
    loads(lambda: load(overrides=[text]))


ADDRESS_PARTS = ["s3", "gs", "abfss", "hdfs", "memory", "file", "://", ":", "/", "//", "..", "@"]
ADDRESS_PARTS += [
    "bucket",
    "a b",
    "?x=1",
    "#",
    "%2e%2e",
    "[",
    "]",
    "\0",
    "\n",
    "é",
    "user:pw@h",
    "~",
]


def joined(parts: list[str]) -> str:
    """As an address in a store."""
    return f"s3://bucket/{'/'.join(parts)}"


PARTS = st.lists(st.sampled_from(ADDRESS_PARTS), max_size=8)


@fuzzed
@given(PARTS.map("".join) | PARTS.map(joined))
def test_an_address_is_a_place_or_refused(text):
    try:
        taken = stored_path(text)
    except NotLocalError as error:
        assert text.splitlines() != [text] or str(error).splitlines() == [str(error)]
        return
    try:
        place = location(taken)
    except (PipelineError, ValueError):
        pytest.fail(f"{text!r} was accepted, and is no place")
    assert ".." not in str(place).split("/") or "://" not in str(place)
