"""Options of the JVMs of a local session, which live for minutes and spend most of them starting.

A JVM compiles what runs often twice: at once, and once more with all optimisations (C2) when it has
run thousands of times. In a short session the second compiler takes as much CPU time as all else
together, for code that is not run again.
"""

from __future__ import annotations

from pipelines.spark.class_archive import archive_options

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


def brief_options(heap_mb: float, *, runs_tasks: bool) -> str:
    """The options of a JVM of a local session.

    Args:
        heap_mb: Its largest heap, in MiB.
        runs_tasks: Whether it works on data.
    """
    collector = ("-XX:+UseSerialGC",) if heap_mb <= SMALL_HEAP_MB else ()
    compiler = _LATE_C2 if runs_tasks else _NO_C2
    return " ".join((*collector, *compiler, *archive_options()))
