"""BigDL's jars on the class paths of driver and executors."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from pipelines.errors import EngineUnavailable
from pipelines.spark.session import in_one_process

CLASS_PATHS = ("spark.driver.extraClassPath", "spark.executor.extraClassPath")
_EXECUTOR_OPTIONS = "spark.executor.extraJavaOptions"
# A log4j2-test.xml in dllib's jar would send the executors' log to a file in their temporary
# folder. With this name, of Spark's own file, log4j does not search the jars.
LOGGING = "-Dlog4j2.configurationFile=classpath:org/apache/spark/log4j2-defaults.properties"
FRAMEWORKS = ("bigdl", "torch")
"""Of BigDL's training: its dllib, and PyTorch in its Orca."""
SPARK_MAJORS = (3,)
"""The releases of Spark for BigDL's jars."""
# A part of the name of dllib's jar.
_DLLIB = "bigdl-dllib"


def jars() -> list[Path]:
    """Return the jars in BigDL's Python packages.

    Raises:
        EngineUnavailable: The packages are not installed.
    """
    spec = find_spec("bigdl")
    roots = [] if spec is None else list(spec.submodule_search_locations or ())
    found = sorted(path for root in roots for path in Path(root).glob("share/*/lib/*.jar"))
    if not any(path.name.startswith(_DLLIB) for path in found):
        raise EngineUnavailable(
            "training.engine",
            "bigdl-dllib-spark3 is not installed",
            'Run `pip install "sentence-pipelines[bigdl]"` on the driver',
        )
    return found


def class_paths(conf: Mapping[str, str]) -> dict[str, str]:
    """Return the missing conf of a new session; `conf` is by whole key, and its values stay."""
    found_jars = os.pathsep.join(map(str, jars()))
    added = {
        key: os.pathsep.join(filter(None, (conf.get(key), found_jars)))
        for key in CLASS_PATHS
        if not _brings_dllib(conf.get(key, ""))
    }
    options = conf.get(_EXECUTOR_OPTIONS, "")
    if CLASS_PATHS[1] in added and "log4j2.configurationFile" not in options:
        added[_EXECUTOR_OPTIONS] = f"{options} {LOGGING}".strip()
    return added


def check_class_paths(conf: Mapping[str, str], *, on_driver: bool) -> None:
    """Refuse a running session without dllib; `on_driver`: the driver's JVM finds it.

    Raises:
        EngineUnavailable: Names the key of the class path.
    """
    everywhere = any(
        _brings_dllib(conf.get(key, "")) for key in ("spark.jars", "spark.executor.extraClassPath")
    )
    if on_driver and (everywhere or in_one_process(conf.get("spark.master"))):
        return
    found_jars = os.pathsep.join(map(str, jars()))
    key = CLASS_PATHS[1] if on_driver else CLASS_PATHS[0]
    raise EngineUnavailable(
        key,
        "engine bigdl does not find its jars there",
        f"Start the session with {CLASS_PATHS[0]} and {CLASS_PATHS[1]} set to {found_jars}",
    )


def _brings_dllib(paths: str) -> bool:
    """Return whether dllib may be among jars and folders; true for a folder not seen here."""
    return any(
        _DLLIB in path
        or (path.endswith("*") and (not (folder := Path(path).parent).is_dir() or _has_jar(folder)))
        for path in re.split("[:,]", paths)
    )


def _has_jar(folder: Path) -> bool:
    return any(folder.glob(f"{_DLLIB}*.jar"))
