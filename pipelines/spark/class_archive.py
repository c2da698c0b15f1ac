"""An archive of Spark's Java classes, from which the JVMs of a local session start faster.

Starting Spark means loading and checking some ten thousand classes. A JVM can map them from a file
that another one has written; see "Class Data Sharing" in the guide of the Java virtual machine, and
JEP 350. It finds out by itself whether an archive fits to it and to its class path, and loads the
classes as ever where it does not. `environment/build_class_archive.py` writes the archive into the
environment.
"""

from __future__ import annotations

import hashlib
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

FOLDER = Path(sys.prefix) / "share" / "sentence-pipelines"
"""Of the environment: who removes it removes the archive."""
# Where an archive does not fit, a JVM would print warnings to standard output.
_QUIET = "-Xlog:cds*=off"


def archive_options() -> tuple[str, ...]:
    """The options of a JVM that starts from the archive; none where there is no archive."""
    found = archive_path()
    if not found.is_file():
        return ()
    return (shlex.quote(f"-XX:SharedArchiveFile={found}"), _QUIET)


def archive_path() -> Path:
    """Where the archive for the installed Spark is, if there is one.

    Its name says for which files: a JVM takes no archive of classes of others.
    """
    jars = sorted((spark_home() / "jars").glob("*.jar"))
    stats = [(jar, jar.stat()) for jar in jars]
    stamps = [f"{jar} {stat.st_size} {stat.st_mtime_ns}" for jar, stat in stats]
    digest = hashlib.sha256("\n".join(stamps).encode()).hexdigest()[:16]
    return FOLDER / f"spark-{digest}.jsa"


def spark_home() -> Path:
    """The folder of the installed Spark, found without importing it."""
    spec = find_spec("pyspark")
    assert spec is not None and spec.origin is not None, "sessions are Spark's"
    return Path(spec.origin).parent
