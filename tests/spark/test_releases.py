"""What differs between releases of Spark, and what is refused on one of them."""

from __future__ import annotations

import pyspark
import pytest

from pipelines.engines.base import engine_of
from pipelines.errors import EngineUnavailable, InputError
from pipelines.settings import Config
from pipelines.spark import java as releases
from pipelines.spark.java import (
    check_java,
    check_python,
    installed_version,
    java_version,
    release_of,
)


@pytest.mark.parametrize(
    ("version", "scala"),
    [("3.5.9", "2.12"), ("3.5.0-amzn-1", "2.12"), ("4.0.5", "2.13"), ("4.3.0", "2.13")],
)
def test_a_release_names_its_scala(version, scala):
    assert release_of(version).scala == scala


def test_a_later_release_is_taken_for_the_last():
    assert release_of("7.0.0") == releases.RELEASES[-1]


@pytest.mark.parametrize("framework", ["bigdl", "torch"])
def test_bigdl_is_refused_on_spark_4(monkeypatch, framework):
    if installed_version().startswith("3."):
        monkeypatch.setattr(pyspark, "__version__", "4.3.0")
    training = Config().training.model_copy(update={"engine": "bigdl", "framework": framework})
    config = Config().model_copy(update={"training": training})
    with pytest.raises(EngineUnavailable) as refused:
        engine_of(config).check_libraries(config)
    assert str(refused.value) == (
        "training.engine: engine bigdl runs only on Spark 3 (Scala 2.12), and this is Spark "
        f"{pyspark.__version__} (Scala 2.13). Choose another engine, such as torch, or run "
        '`pip install "pyspark<4"`.'
    )


def java(folder, monkeypatch, says: str) -> None:
    """A Java that says what it is asked to say."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{says}\nEND\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(folder))


@pytest.mark.parametrize(
    ("says", "version"),
    [
        ('java version "1.8.0_202"', 8),
        ('Picked up _JAVA_OPTIONS: -Xint\nopenjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ("no Java", None),
    ],
)
def test_a_java_tells_its_version(tmp_path, monkeypatch, says, version):
    java(tmp_path, monkeypatch, says)
    assert java_version() == version


def test_a_java_that_does_not_start_tells_none(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert java_version() is None


def test_a_java_that_is_too_old_is_named(tmp_path, monkeypatch):
    java(tmp_path, monkeypatch, 'openjdk version "11.0.13" 2021-10-19')
    monkeypatch.setattr(pyspark, "__version__", "4.0.5")
    with pytest.raises(InputError, match=r"Spark 4\.0\.5 needs Java 17, and this is Java 11\."):
        check_java()
    monkeypatch.setattr(pyspark, "__version__", "3.5.9")
    check_java()


def test_a_python_without_a_module_that_spark_imports_is_named(monkeypatch):
    monkeypatch.setattr(releases, "find_spec", lambda name: None)
    monkeypatch.setattr(pyspark, "__version__", "3.5.9")
    with pytest.raises(InputError, match=r"Spark 3\.5\.9 imports distutils, which Python 3\.\d+ d"):
        check_python()
    monkeypatch.setattr(pyspark, "__version__", "4.0.5")
    check_python()


def test_spark_finds_all_that_it_imports_here():
    check_python()
