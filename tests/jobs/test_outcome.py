"""What came of a job is in the file that a scheduler has named, however the job ended."""

from __future__ import annotations

import json
import logging

import pytest

from pipelines.cli import main
from pipelines.errors import InputError, NothingNew, PipelineError, PromotionRefused
from pipelines.jobs.outcome import noted


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (InputError("a.key", "it is wrong", "Repair it"), 2, "a.key: it is wrong. Repair it."),
        (PromotionRefused("promotion.minimum", "too low"), 3, "promotion.minimum: too low"),
        (NothingNew("run.only_new: nothing"), 4, "run.only_new: nothing"),
        (PipelineError("the disk is full"), 1, "the disk is full"),
        (ZeroDivisionError(), 1, "ZeroDivisionError()"),
        (PipelineError("s3://me:secret@lake/a is gone"), 1, "s3://lake/a is gone"),
    ],
)
def test_a_failure_is_noted_with_its_exit_code(tmp_path, error, code, said):
    file = tmp_path / "new" / "outcome.json"
    with pytest.raises(type(error)), noted(str(file)):
        raise error
    assert json.loads(file.read_text()) == {"exit_code": code, "error": said, "results": {}}


def test_results_are_noted(tmp_path):
    file = tmp_path / "outcome.json"
    with noted(str(file)) as note:
        note({"version": "00002"})
    assert json.loads(file.read_text())["results"] == {"version": "00002"}


def test_a_killed_job_leaves_no_outcome_and_none_of_an_earlier_one(tmp_path):
    file = tmp_path / "outcome.json"
    with noted(str(file)):
        pass
    with pytest.raises(KeyboardInterrupt), noted(str(file)):
        raise KeyboardInterrupt
    assert not file.exists()


def test_an_empty_file_may_be_there(tmp_path):
    file = tmp_path / "outcome.json"
    file.touch()
    with noted(str(file)):
        pass
    assert json.loads(file.read_text())["exit_code"] == 0
    with pytest.raises(InputError, match="/dev/null is no outcome"), noted("/dev/null"):
        pytest.fail("the job began")


def test_a_file_that_no_job_has_written_stays(tmp_path):
    file = tmp_path / "notes.json"
    file.write_text('{"mine": 1}')
    with (
        pytest.raises(InputError, match=r"^--outcome: .* is no outcome of a job"),
        noted(str(file)),
    ):
        pytest.fail("the job began")
    assert file.read_text() == '{"mine": 1}'


def test_a_file_that_cannot_be_written_is_refused_before_the_job_begins(tmp_path):
    (tmp_path / "file").touch()
    said = r"^--outcome: .* cannot be written \(.*\)\. Name a file"
    file = str(tmp_path / "file" / "outcome.json")
    with pytest.raises(InputError, match=said), noted(file):
        pytest.fail("the job began")


def test_an_outcome_that_is_lost_does_not_hide_the_error(tmp_path, caplog):
    file = tmp_path / "folder" / "outcome.json"
    caplog.set_level(logging.WARNING)
    with pytest.raises(PipelineError, match="the cause"), noted(str(file)):
        file.mkdir()
        raise PipelineError("the cause")
    assert "cannot be written" in caplog.text


def test_settings_that_are_refused_are_noted_too(tmp_path):
    file = tmp_path / "outcome.json"
    assert main(["train", "--set", "training.sead=3", "--outcome", str(file)]) == 2
    noted = json.loads(file.read_text())
    assert noted["exit_code"] == 2
    assert noted["error"].startswith("training.sead: there is no such setting")


@pytest.mark.parametrize("mistake", ["training.sead=3", "training.workers=["], ids=["key", "YAML"])
def test_an_outcome_in_a_store_is_reached_as_the_job_reaches_it(s3_bucket, monkeypatch, mistake):
    file = s3_bucket.root / "outcomes" / "train.json"
    stores = [f"storage.s3_endpoint={s3_bucket.options.s3_endpoint}", "storage.retry_seconds=0"]
    if mistake.endswith("["):
        # Where the settings cannot be read at all, as the environment says.
        monkeypatch.setenv("AWS_ENDPOINT_URL", s3_bucket.options.s3_endpoint)
    given = [part for setting in (mistake, *stores) for part in ("--set", setting)]
    assert main(["train", *given, "--outcome", str(file)]) == 2
    assert json.loads(file.read_text())["exit_code"] == 2


def test_an_outcome_may_lie_in_the_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    with noted("~/new/outcome.json"):
        pass
    assert (tmp_path / "new" / "outcome.json").is_file()
    for path in ("$OUT/outcome.json", "dbfs:/outcome.json"):
        with pytest.raises(InputError, match=r"^--outcome: "), noted(path):
            pytest.fail("the job began")
