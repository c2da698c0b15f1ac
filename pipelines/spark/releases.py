"""What differs between the releases of Spark that sessions run on: 3.5 and 4."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.errors import EngineUnavailable, InputError

if TYPE_CHECKING:
    from pyspark.sql import Column

_JAVA_SECONDS = 30.0


@dataclass(frozen=True)
class Release:
    """What is the same in all releases of one major number.

    Attributes:
        major: The number.
        scala: For which its jars, and those of its extensions, are compiled.
        java: The oldest that it starts on.
    """

    major: int
    scala: str
    java: int


# Source: the page "Overview" of the documentation of 3.5.9, and of 4.0.5.
RELEASES = (Release(3, scala="2.12", java=8), Release(4, scala="2.13", java=17))


def release_of(version: str) -> Release:
    """What is known of a version of Spark; a later one than any here is taken for the last.

    Args:
        version: As Spark tells it, such as `4.0.5` or `3.5.0-amzn-1`.
    """
    major = int(version.partition(".")[0])
    return max((one for one in RELEASES if one.major <= major), key=lambda one: one.major)


def installed_version() -> str:
    """The version of the Spark that sessions of this process are of."""
    import pyspark

    return str(pyspark.__version__)


def valid_text(column: Column) -> Column:
    """A column of strings with U+FFFD for what is no UTF-8: Spark passes such bytes on as they are.

    Spark 4 has a function for it, and refuses to decode them, as 3.5 does not.
    """
    from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

    make_valid: Callable[[Column], Column] | None = getattr(F, "make_valid_utf8", None)
    return F.decode(column.cast("binary"), "UTF-8") if make_valid is None else make_valid(column)


def check_spark(engine: str, majors: Iterable[int]) -> None:
    """Refuses an engine whose libraries are compiled for another Spark than the installed one.

    Args:
        engine: Its name.
        majors: Of the releases that the libraries are compiled for.

    Raises:
        EngineUnavailable: Naming both, and what to install.
    """
    version = installed_version()
    found, wanted = release_of(version), [one for one in RELEASES if one.major in majors]
    if found in wanted:
        return
    listed = " or ".join(f"Spark {one.major} (Scala {one.scala})" for one in wanted)
    raise EngineUnavailable(
        "training.engine",
        f"engine {engine} runs on {listed} alone, and this is Spark {version}"
        f" (Scala {found.scala})",
        f'take another engine, such as torch, or pip install "pyspark<{wanted[-1].major + 1}"',
    )


def check_python() -> None:
    """Refuses a Python in which the installed Spark does not find all that it imports.

    Raises:
        InputError: A module of the standard library has left it, and nothing brings it.
    """
    version = installed_version()
    if release_of(version).major < 4 and find_spec("distutils") is None:
        python = ".".join(map(str, sys.version_info[:2]))
        raise InputError(
            "spark.master",
            f"Spark {version} imports distutils, which Python {python} does not have",
            "pip install setuptools on the driver and every executor",
        )


def check_java() -> None:
    """Refuses a Java that the installed Spark does not start on.

    Asked when a session could not be started: to start a JVM only to ask takes its time.

    Raises:
        InputError: It is too old, naming both.
    """
    found, version = java_version(), installed_version()
    needed = release_of(version).java
    if found is not None and found < needed:
        raise InputError(
            "spark.master",
            f"Spark {version} needs Java {needed} and this is Java {found}",
            "set JAVA_HOME to a newer one",
        )


def java_version() -> int | None:
    """The major version of the Java that Spark takes; None where it does not tell."""
    home = os.environ.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else Path("java")
    try:
        told = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_JAVA_SECONDS, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    # Java 8 tells that it is 1.8.
    number = re.search(r'version "(?:1\.)?(\d+)', told.stderr)
    return int(number[1]) if number else None


def delta_connector(version: str) -> str:
    """What a cluster of a version of Spark needs for Delta tables."""
    return (
        f"Delta needs the package io.delta:delta-spark_{release_of(version).scala} in "
        "spark.jars.packages, "
        "spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension and "
        "spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog"
    )


def iceberg_connector(version: str) -> str:
    """What a cluster of a version of Spark needs for Iceberg tables."""
    numbers = ".".join(version.split(".")[:2])
    return (
        "Iceberg needs the package org.apache.iceberg:iceberg-spark-runtime-"
        f"{numbers}_{release_of(version).scala} in spark.jars.packages, "
        "spark.sql.extensions=org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions "
        "and spark.sql.catalog.<catalog>=org.apache.iceberg.spark.SparkCatalog"
    )
