"""The section `scoring`: pairs or triplets, and the model that scores them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pipelines.catalog import SCORERS, TABLE_FORMATS
from pipelines.errors import InputError
from pipelines.settings.base import (
    CsvEscape,
    CsvSeparator,
    FollowLinks,
    InputPath,
    Settings,
    StoredPath,
    choice_of,
)
from pipelines.settings.corpus import Names


class ScoringSettings(Settings):
    """The texts to score, and the teacher of `score`."""

    format: Annotated[str, choice_of(TABLE_FORMATS)] = "parquet"
    """Type of the inputs."""
    inputs: tuple[InputPath, ...] = ()
    """Pairs or triplets: files, folders, globs or tables. Empty: `mining.output`."""
    follow_links: FollowLinks = False
    csv_separator: CsvSeparator = None
    csv_escape: CsvEscape = None
    anchor_column: str = "anchor"
    """Anchor column."""
    positive_column: str = "positive"
    """Positive column."""
    negative_columns: Names = ()
    """Columns of negatives. Empty: `negative_0`, `negative_1` and so on, as `mine` writes them."""
    output: StoredPath = "scored"
    """Folder of the table: the inputs with a column `NAME_score` for the positive and each
    negative. Columns of these names are replaced."""
    overwrite: bool = False
    """Rebuild a finished table, and replace it at the end. An unfinished one of the same settings
    continues."""
    scorer: Annotated[str, choice_of(SCORERS)] = "cross_encoder"
    """`cross_encoder`: scores of `model`; `bi_encoder`: cosines by `encoder`; `fusion`: a weighted
    sum of both."""
    model: StoredPath | None = None
    """Folder of a cross-encoder for sentence-transformers' `CrossEncoder`."""
    logits: bool = False
    """Leave out the sigmoid of a cross-encoder. Losses on margins then see differences between
    scores near 0 and 1."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Precision of the cross-encoder. `auto`: bf16 where the hardware has it."""
    encoder: StoredPath | None = None
    """A sentence-transformers folder, or `default`; embeds with `embedding.backend`, `precision`
    and `batch_tokens`."""
    weight: float = Field(default=0.5, gt=0, lt=1)
    """Share of the cross-encoder's probability in `fusion`; the cosine has the rest."""
    keep_negatives: int | None = Field(default=None, ge=1)
    """Negatives to keep of each row: the first ones that score at least `margin` below the
    positive. Rows with fewer are left out. Null: all, whatever their scores."""
    margin: float = Field(default=0.0, ge=0)
    """Least distance of a kept negative's score from the positive's, as a filter of false
    negatives."""
    part_megabytes: int = Field(default=16, ge=1)
    """Approximate size of an output file, the unit of work and resuming."""
    part_rows: int | None = Field(default=512, ge=1)
    """Most rows of an output file. Null: any number."""

    def check(self) -> None:
        """Refuse a fusion of logits, which have no common scale with cosines, and a lone margin."""
        if self.margin and self.keep_negatives is None:
            raise InputError(
                "scoring.margin",
                "it filters negatives, and scoring.keep_negatives keeps all",
                "Set scoring.keep_negatives, or leave it out",
            )
        if self.scorer == "fusion" and self.logits:
            raise InputError(
                "scoring.logits",
                "logits and cosines have no common scale",
                "Leave it out, or set scoring.scorer to cross_encoder",
            )
