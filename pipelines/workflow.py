"""The jobs as functions."""

from pipelines.jobs.clean import clean
from pipelines.jobs.delete import delete
from pipelines.jobs.embed import embed
from pipelines.jobs.evaluate import evaluate
from pipelines.jobs.mine import mine
from pipelines.jobs.prepare import prepare
from pipelines.jobs.promote import promote
from pipelines.jobs.report import draw_report, report
from pipelines.jobs.roll_back import roll_back
from pipelines.jobs.run import run
from pipelines.jobs.search import search
from pipelines.jobs.train import train

__all__ = [
    "clean",
    "delete",
    "draw_report",
    "embed",
    "evaluate",
    "mine",
    "prepare",
    "promote",
    "report",
    "roll_back",
    "run",
    "search",
    "train",
]
