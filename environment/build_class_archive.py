"""Writes the archive of Java classes that local Spark sessions start from, into the environment.

See `pipelines/spark/class_archive.py`. A small preparation runs all its tasks in the JVM of the
driver, which so loads what drivers and executors load, and writes it down when it ends. Exit code
3, with the reason, where this Java writes no archive: everything works without.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from pipelines import workflow
from pipelines.settings import Config
from pipelines.settings.load import parse
from pipelines.spark.class_archive import FOLDER, archive_path, spark_home
from pipelines.spark.session import stopped_at_the_end

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


def main() -> int:
    """Writes the archive, and puts it in place once a JVM has started from it."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    target = archive_path()
    aside = target.with_suffix(f".{os.getpid()}")
    try:
        with tempfile.TemporaryDirectory() as folder:
            problem = _dump_classes(Path(folder), aside) or _problem_of(aside, Path(folder))
        if problem is not None:
            print(f"Spark starts without an archive of its classes: {problem}", file=sys.stderr)
            return NO_ARCHIVE
        for former in FOLDER.glob("spark-*.jsa"):
            former.unlink()
        aside.rename(target)
    finally:
        aside.unlink(missing_ok=True)
    print(f"Spark's classes are archived in {target} ({target.stat().st_size >> 20} MB)")
    return 0


def _dump_classes(folder: Path, archive: Path) -> str | None:
    """Has a JVM write the archive; returns the problem, if any."""
    from pyspark import SparkContext

    with stopped_at_the_end():
        workflow.prepare(_config(folder, archive))
        gateway: Any = SparkContext._gateway
    # The JVM ends with its standard input, and writes the archive then.
    process = gateway.proc
    process.stdin.close()
    try:
        process.wait(WAIT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return f"Java did not end within {WAIT_SECONDS:.0f} s"
    return None if archive.is_file() else "this Java has not written one"


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


def _problem_of(archive: Path, folder: Path) -> str | None:
    """Starts a JVM from the archive; returns the problem, if any."""
    loaded = folder / "loaded.txt"
    options = f"-XX:SharedArchiveFile={archive} -Xlog:class+load:file={loaded}"
    command = [str(spark_home() / "bin" / "spark-submit"), "--version"]
    environment = {**os.environ, "SPARK_SUBMIT_OPTS": options}
    tried = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False
    )
    if tried.returncode != 0:
        return f"Java does not start from it ({tried.stdout.strip()} {tried.stderr.strip()})"
    from_archive = loaded.read_text().count("shared objects file (top)")
    if from_archive < FEWEST_CLASSES:
        return f"a new JVM takes only {from_archive} classes from it"
    return None


if __name__ == "__main__":
    sys.exit(main())
