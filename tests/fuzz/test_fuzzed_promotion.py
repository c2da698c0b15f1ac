"""The folder that models are served from, and the figures of a run, with any record damaged."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mutations import damaged_file, fuzzed, read_or_refused
from run_factory import settings, write_run

from pipelines.errors import InputError
from pipelines.promotion import served
from pipelines.promotion.stage import check_new, kept_runs, promote, roll_back


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Two models that were promoted, a third one's run, and the link as a file."""
    folder = tmp_path_factory.mktemp("whole")
    for number, content in enumerate("abc"):
        run = write_run(folder / f"run-{content}", content, ndcg=50.0 + number)
        if content != "c":
            promote(settings(folder / "served", run))
    link = folder / "served" / "current"
    content = str(link.readlink())
    link.unlink()
    link.write_text(content)
    return folder


def actions(folder: Path) -> Iterator[Callable[[], object]]:
    """What jobs do there, each apart: an earlier one may be refused."""
    target = folder / "served"
    config = settings(target, folder / "run-c")
    yield lambda: served.current(target)
    yield lambda: served.read_history(target)
    yield lambda: kept_runs(config)
    yield lambda: check_new(config, "another")
    yield lambda: served.rolled_back_version(target, folder / "another")
    yield lambda: promote(config)
    yield lambda: roll_back(config)
    yield lambda: served.prune(target, 1)


@pytest.fixture(scope="module", autouse=True)
def _without_spark():
    """A model whose figures are of other texts would be measured anew, which takes a cluster."""

    def refuse(*_: object, **_named: object):
        raise InputError("promotion.target", "the model in service is measured anew", "elsewhere")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipelines.spark.session.spark_session", refuse)
        yield


NAMED = ("target", "metrics", "tolerance", "minimum")
"""Settings by which a promotion is refused, for a figure that another number replaced too."""


def records_in(folder: Path) -> list[Path]:
    names = ("promotion.json", "history.jsonl", "current", "metrics.json")
    return sorted(path for path in folder.rglob("*") if path.name in names)


@fuzzed
@given(data=st.data())
def test_a_damaged_record_of_a_promotion_ends_in_one_line(whole, tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("copies")
    shutil.copytree(whole, folder / "copy")
    path = data.draw(st.sampled_from(records_in(folder / "copy")), label="file")
    path.write_bytes(data.draw(damaged_file(path)))
    names = (str(folder), "run.folder", *(f"promotion.{key}" for key in NAMED))
    try:
        for act in actions(folder / "copy"):
            read_or_refused(act, *names)
    finally:
        shutil.rmtree(folder)


def test_what_is_whole_is_promoted_and_rolled_back(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "copy")
    done = [act() for act in actions(tmp_path / "copy")]
    assert [one["version"] for one in done[1]] == ["00001", "00002"]
    assert [path.name for path in (done[5].version, done[6])] == ["00003", "00002"]
