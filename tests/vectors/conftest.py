"""Fixtures that embedding, search and mining share."""

from embedding_fixtures import (
    embedded,
    embedded_table,
    job,
    lines,
    minilm_folder,
    sentence_file,
    small_model,
)
from lake_tables import lake
from mining_fixtures import mined, mining_job, pair_file

__all__ = [
    "embedded",
    "embedded_table",
    "job",
    "lake",
    "lines",
    "mined",
    "minilm_folder",
    "mining_job",
    "pair_file",
    "sentence_file",
    "small_model",
]
