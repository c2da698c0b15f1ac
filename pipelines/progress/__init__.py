"""Progress for people: a live display in terminals and notebooks, lines elsewhere.

A job of several stages has one display from its first moment to its last, with a row for each stage
that has begun; what the stages show by themselves otherwise is then a part of their rows.

Where output is not a terminal (a log of a scheduler, a file) a line says what begins, and further
lines follow after 30 seconds, then ever more rarely: a job of ten hours writes some hundred.
Commands that are mostly short say nothing in their first five seconds.
"""

from pipelines.progress.display import MessageHandler, WorkProgress, activity, job, next_part, say

__all__ = ["MessageHandler", "WorkProgress", "activity", "job", "next_part", "say"]
