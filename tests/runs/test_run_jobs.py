"""What is known of the jobs that have worked on a run."""

from datetime import UTC, datetime

from pipelines.files import storage
from pipelines.provenance import given_on_command_line
from pipelines.runs.job_records import (
    PreparedStage,
    Start,
    begin_job,
    end_job,
    keep_preparation,
    prepared_folder_of,
    read_jobs,
)

MOMENT = datetime(2026, 11, 23, 20, 47, 17, 123456, tzinfo=UTC)


def test_each_job_is_noted_and_says_how_long_it_took(tmp_path):
    killed, start = Start(MOMENT), Start(MOMENT)
    with given_on_command_line(["train", "--config", "my job.yaml"]):
        begin_job(tmp_path, "train", killed)
        begin_job(tmp_path, "train", start)
        end_job(tmp_path, start)
    begin_job(tmp_path, "evaluate", Start())
    first, second, third = read_jobs(tmp_path).jobs
    assert first.seconds is None
    assert second.seconds is not None
    assert 0 <= second.seconds < 60
    assert first.began == "2026-11-23T20:47:17+00:00"
    assert first.command == "sentence-pipelines train --config 'my job.yaml'"
    assert (third.name, third.command) == ("evaluate", None)
    assert first.host


def test_no_secret_of_a_command_line_is_noted(tmp_path):
    secret = "sesame-" + "1234"
    with given_on_command_line(["train", "--set", f"spark.hadoop.fs.s3a.secret.key={secret}"]):
        begin_job(tmp_path, "train", Start())
    assert secret not in (tmp_path / "jobs.json").read_text()


def test_a_run_knows_its_preparation_wherever_both_are_moved(tmp_path):
    run, prepared = tmp_path / "here" / "runs" / "a", tmp_path / "here" / "prepared"
    stages = [{"stage": "corpus", "seconds": 1.5, "kept": True}]
    storage.write_json(prepared / "stages.json", stages)
    assert prepared_folder_of(run) is None
    keep_preparation(run, prepared)
    assert read_jobs(run).preparation == (PreparedStage("corpus", 1.5, is_kept=True),)
    assert prepared_folder_of(run) == prepared
    (tmp_path / "here").rename(tmp_path / "there")
    moved = tmp_path / "there"
    assert prepared_folder_of(moved / "runs" / "a") == moved / "prepared"


def test_nothing_is_known_of_a_run_of_an_earlier_release(tmp_path):
    assert read_jobs(tmp_path).jobs == ()
    keep_preparation(tmp_path, tmp_path / "prepared")
    assert read_jobs(tmp_path).preparation == ()
