"""Options of the JVMs of a local session, which live for minutes and spend most of them starting.

A JVM compiles what runs often twice: at once, and once more with all optimisations (C2) when it has
run thousands of times. In a short session the second compiler takes as much CPU time as all else
together, for code that is not run again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from pipelines.spark.class_archive import archive_options, spark_home

SMALL_HEAP_MB = 2048
"""Heaps up to this size are collected by one thread: those of other collectors need CPU, too."""

# Twenty times HotSpot's thresholds: a job of hours still gets code with all optimisations.
_LATE_C2 = (
    "-XX:Tier4InvocationThreshold=100000",
    "-XX:Tier4MinInvocationThreshold=12000",
    "-XX:Tier4CompileThreshold=300000",
    "-XX:Tier4BackEdgeThreshold=800000",
)
# A driver that runs no tasks plans jobs, and never comes to the thresholds with anything.
_NO_C2 = ("-XX:TieredStopAtLevel=1",)
_COLLECTOR = re.compile(r"-XX:\+Use\w+GC\b")
_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")


def brief_options(heap_mb: float, *, runs_tasks: bool, any_collector: bool) -> str:
    """The options of a JVM of a local session.

    Args:
        heap_mb: Its largest heap, in MiB.
        runs_tasks: Whether it works on data.
        any_collector: Whether the collector may be chosen; see :func:`names_collector`.
    """
    is_small = any_collector and heap_mb <= SMALL_HEAP_MB
    collector = ("-XX:+UseSerialGC",) if is_small else ()
    compiler = _LATE_C2 if runs_tasks else _NO_C2
    return " ".join((*collector, *compiler, *archive_options()))


def names_collector(conf: Mapping[str, str]) -> bool:
    """Whether the user names a garbage collector: a JVM that is told two does not start.

    Args:
        conf: Of the session; the environment and Spark's file of defaults are looked at as well.
    """
    said = [value for key, value in conf.items() if key.endswith("JavaOptions")]
    said += [os.environ.get(name, "") for name in _VARIABLES]
    return any(_COLLECTOR.search(text) for text in (*said, defaults_file()))


def defaults_file() -> str:
    """The content of Spark's file of defaults, `spark-defaults.conf`; empty without one."""
    home = Path(os.environ.get("SPARK_HOME") or spark_home())
    file = Path(os.environ.get("SPARK_CONF_DIR") or home / "conf", "spark-defaults.conf")
    return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""


def default_of(key: str) -> str | None:
    """What Spark's file of defaults says of a key; None where it says nothing."""
    found = re.search(rf"^[ \t]*{re.escape(key)}[ \t=:]+(.*\S)", defaults_file(), re.MULTILINE)
    return found[1] if found else None
