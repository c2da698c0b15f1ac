"""Scores that a loss takes for labels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from pipelines.errors import InputError
from pipelines.files.locations import Location, arrow_source
from pipelines.losses import LOSSES
from pipelines.spark.parquet_parts import data_files

if TYPE_CHECKING:
    from pipelines.settings import Config


def check_labels(config: Config, examples: Location) -> None:
    """Refuses scores other than 0 and 1 where the loss takes them for labels.

    Args:
        examples: What the lanes are made of; of its files only this column is read.

    Raises:
        InputError: There is one.
    """
    name = config.objective.name
    if not LOSSES.load(name).labels:
        return
    for path in data_files(examples):
        with pq.ParquetFile(arrow_source(path)) as file:
            for batch in file.iter_batches(columns=["score"]):
                scores = batch.column("score").to_numpy(zero_copy_only=False)
                others = scores[(scores != 0) & (scores != 1)]
                if len(others):
                    raise InputError(
                        "corpus.score_column",
                        f"`{name}` needs labels, 0 or 1, and {others[0]:g} is among the scores",
                        "name a column of labels, or another loss",
                    )
