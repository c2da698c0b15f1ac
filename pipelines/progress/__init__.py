"""Progress for people: a live display in terminals and notebooks, lines elsewhere.

A job of several stages has one display throughout, with a row for each begun stage; displays within
a stage become parts of its row.

Without a terminal (a scheduler's log, a file) a line names each beginning. Further lines follow
after 30 seconds, then ever more rarely: a job of ten hours writes about a hundred. Mostly short
commands say nothing in their first five seconds.
"""

from pipelines.progress.display import MessageHandler, WorkProgress, activity, job, next_part, say

__all__ = ["MessageHandler", "WorkProgress", "activity", "job", "next_part", "say"]
