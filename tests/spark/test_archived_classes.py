"""The archive of Spark's classes that JVMs of local sessions start from."""

import os
import subprocess

import pytest

from pipelines.spark import java as class_archive
from pipelines.spark.java import archive_options, archive_path, spark_home


def test_without_an_archive_a_jvm_has_no_options(tmp_path, monkeypatch):
    monkeypatch.setattr(class_archive, "FOLDER", tmp_path)
    assert archive_options() == ()
    archive_path().touch()
    assert archive_options()[0] == f"-XX:SharedArchiveFile={archive_path()}"


def test_a_jvm_takes_classes_from_the_archive_of_this_environment(tmp_path):
    if not archive_path().is_file():
        pytest.skip("this environment has no archive: `make environment` writes it")
    loaded = tmp_path / "loaded.txt"
    options = [*archive_options(), f"-Xlog:class+load:file={loaded}"]
    environment = os.environ | {"SPARK_SUBMIT_OPTS": " ".join(options)}
    command = [spark_home() / "bin" / "spark-submit", "--version"]
    subprocess.run(command, env=environment, check=True, timeout=300, capture_output=True)
    assert loaded.read_text().count("shared objects file (top)") > 1000


def test_a_jvm_starts_where_its_archive_is_damaged(tmp_path, monkeypatch):
    monkeypatch.setattr(class_archive, "FOLDER", tmp_path)
    archive_path().write_bytes(b"no archive")
    environment = os.environ | {"SPARK_SUBMIT_OPTS": " ".join(archive_options())}
    command = [spark_home() / "bin" / "spark-submit", "--version"]
    done = subprocess.run(
        command, env=environment, check=True, timeout=300, capture_output=True, text=True
    )
    assert done.stdout == ""
