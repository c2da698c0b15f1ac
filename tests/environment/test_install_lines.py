"""Commands to install this package, in pages, notebooks and messages."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from pipelines.catalog import ENGINES

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
PATTERNS = (
    "*.md",
    "docs/**/*.md",
    "notebooks/*.ipynb",
    "pipelines/**/*.py",
    "jobs/**/*.py",
    "jobs/**/*.yaml",
)
# A checkout, the package by its name, or a wheel; the brackets may hold a placeholder.
INSTALL = re.compile(r"pip install [^\n`]*?(?:\.|sentence-pipelines|\.whl\)?)\[([\w,-]+)\]")
# What brings an engine is half an installation; what adds to one is none.
WHOLE = {"default-encoder", "report", "notebooks"}
PLACEHOLDERS = {"EXTRA"}


def lines() -> dict[str, list[str]]:
    """The extras of each command, by its place."""
    found: dict[str, list[str]] = {}
    for path in {path for pattern in PATTERNS for path in ROOT.glob(pattern) if path.is_file()}:
        if path.name == "CHANGELOG.md":
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            for extras in INSTALL.findall(line):
                found[f"{path.relative_to(ROOT)}:{number}"] = extras.split(",")
    return found


def test_each_extra_that_is_named_exists() -> None:
    named = lines()
    assert len(named) > 12
    unknown = {
        place: extra
        for place, extras in named.items()
        for extra in extras
        if extra not in EXTRAS and extra not in PLACEHOLDERS
    }
    assert unknown == {}


def test_an_installation_for_a_machine_of_ones_own_brings_spark() -> None:
    without = [
        place
        for place, extras in lines().items()
        if WHOLE & {*extras} and {*ENGINES} & {*extras} and "spark" not in extras
    ]
    assert without == []


@pytest.mark.parametrize("engine", [*ENGINES])
def test_an_engine_brings_what_jobs_need_and_a_cluster_keeps_its_spark(engine) -> None:
    # `auto` is a choice among the others.
    if engine in EXTRAS:
        assert "sentence-pipelines[jobs]" in EXTRAS[engine]
        assert "sentence-pipelines[spark]" not in EXTRAS[engine]
