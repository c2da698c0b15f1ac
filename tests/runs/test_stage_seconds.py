"""What is known of a run's time by the next one."""

from pipelines.runs.job_records import expected_seconds, keep_seconds
from pipelines.settings.load import parse

SECONDS = {"starting": 9.0, "training": 30.0, "evaluating": 12.5}


def config(folder, **sections):
    prepared, run = {"folder": str(folder / "prepared")}, {"folder": str(folder / "run")}
    return parse({"prepared": prepared, "run": run, **sections})


def test_the_next_run_of_the_same_settings_takes_as_long(tmp_path):
    (tmp_path / "prepared").mkdir()
    assert expected_seconds(config(tmp_path)) == {}
    keep_seconds(config(tmp_path), SECONDS)
    elsewhere = config(tmp_path, run={"folder": str(tmp_path / "other")})
    assert expected_seconds(elsewhere) == {"evaluating": 12.5}


def test_of_other_settings_nothing_is_known(tmp_path):
    (tmp_path / "prepared").mkdir()
    keep_seconds(config(tmp_path), SECONDS)
    assert expected_seconds(config(tmp_path, training={"workers": 1})) == {}


def test_what_is_kept_holds_no_secret(tmp_path):
    (tmp_path / "prepared").mkdir()
    keep_seconds(config(tmp_path, spark={"hadoop.fs.s3a.secret.key": "hidden-word"}), SECONDS)
    (file,) = (tmp_path / "prepared").iterdir()
    assert "hidden-word" not in file.read_text()
