"""A local cluster works in a folder of its own, and writes nothing into the environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from pipelines.spark import java as work_folder
from pipelines.spark.java import spark_home
from pipelines.spark.shell import has_workers


def test_only_a_local_cluster_has_workers_here():
    assert has_workers({"spark.master": "local-cluster[2,1,1024]"})
    assert not any(has_workers({"spark.master": one}) for one in ("local[2]", "spark://h:7077"))


def test_executors_work_where_no_other_session_does(spark):
    folders = spark.sparkContext.parallelize([1], 1).map(lambda _: str(Path.cwd())).collect()
    home = Path(spark.sparkContext._jvm.System.getenv("SPARK_HOME"))
    assert Path(folders[0]).is_relative_to(home / "work")
    assert (home / "jars").resolve() == (spark_home() / "jars").resolve()


@pytest.mark.skipif(shutil.which("systemd-tmpfiles") is None, reason="it is not installed")
def test_what_the_system_removes_from_temporary_files_is_not_the_work_folder(tmp_path, monkeypatch):
    temporary = tmp_path / "temporary"
    left = temporary / "left"
    left.mkdir(parents=True)
    (left / "jars").symlink_to(spark_home() / "jars")
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    home = work_folder._linked(spark_home())
    rules = tmp_path / "rules.conf"
    rules.write_text(f"d {temporary} - - - 1s\n")
    time.sleep(1.1)
    subprocess.run(["systemd-tmpfiles", "--clean", str(rules)], check=True, timeout=60)
    assert list(temporary.iterdir()) == [home], "what nobody has locked is gone"
    assert (home / "jars" / "..").resolve() == spark_home().resolve()
    assert (home / "work").is_dir()
    os.close(work_folder._locked.pop())
