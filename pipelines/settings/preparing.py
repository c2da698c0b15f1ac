"""The sections of what `prepare` makes of a corpus: tokens, lanes, and a teacher's vectors."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pipelines.settings.base import Settings, StoredPath


class PreparedSettings(Settings):
    """Where the prepared corpus lives."""

    folder: StoredPath = "prepared"
    """Folder that the driver and every executor can reach."""
    reuse: bool = True
    """Keep a stage whose inputs and settings have not changed."""
    cache_gigabytes: float = Field(default=20.0, ge=0)
    """What a machine keeps on its disk of lanes in an object store, for all runs on it together, in
    units of 10^9 bytes; 0 fetches granules anew in each epoch. The folder is
    `storage.cache_folder`."""
    keep_units: bool = True
    """Keep the cleaned texts of each input file beside the corpus, so that the next preparation
    reads new and changed files alone; about as large as the corpus."""


SHORTEST_TEXT, LONGEST_TEXT = 8, 32_768
"""Bounds of ``tokens.max_length``, in tokens, if the model reads so many."""
LONGEST_UNASKED = 512
"""The longest text that training reads where no length is set, in tokens: a user must ask for the
memory of longer ones."""


class TokenSettings(Settings):
    """Vocabulary and token ids."""

    vocabulary: StoredPath = "start"
    """`start`: the start checkpoint's; `train`: a new one; or a folder."""
    model: Literal["wordpiece", "bpe", "unigram"] = "wordpiece"
    """Algorithm of a vocabulary that is trained."""
    vocabulary_size: int = Field(default=30522, ge=100)
    """Entries of a vocabulary that is trained."""
    lowercase: bool = True
    """Whether a vocabulary that is trained lower-cases texts."""
    max_length: int | None = Field(
        default=None,
        ge=SHORTEST_TEXT,
        le=LONGEST_TEXT,
        description=(
            "Tokens of a text that training reads, [CLS] and [SEP] included; cut after. At most as "
            "many as the model reads. Unset: as many as leave 99 % of the examples whole, up to "
            f"{LONGEST_UNASKED}. Memory and time of a granule grow with it: set it, to 64 for "
            "example, where texts are short; `training.tokens_per_micro_batch` is for long ones."
        ),
    )


class LaneSettings(Settings):
    """How examples are dealt into granules and lanes, for any number of workers."""

    count: int = Field(default=48, ge=1)
    """Number of lanes; a small corpus gets a divisor of it."""
    granule: int = Field(default=64, ge=2)
    """Examples in a granule."""
    bucket: int = Field(default=8, ge=1)
    """Width of a length bucket, in tokens."""
    bucket_growth: float = Field(default=1.05, ge=1, le=2)
    """From 512 tokens on, each bucket ends at so many times the length of the one before; 1: all
    have one width."""
    seed: int = Field(default=17, ge=0)
    """Seed of the order that decides which examples share a granule."""


Precision = Literal["fp16", "fp32"]
START = "start"
"""The value of `teacher.model` for the start itself."""


class TeacherSettings(Settings):
    """The teacher whose vectors the lanes hold, for objectives that learn from them."""

    model: StoredPath | None = None
    """A sentence-transformers folder, or `start`: that of `encoder.start`. `prepare` has it embed
    each text of the corpus once, anchors as queries and the others as documents; it computes as
    `embedding.backend`, `precision` and `batch_tokens` say."""
    vectors: tuple[StoredPath, ...] = ()
    """Folders of tables that `embed` wrote of the texts, instead of `teacher.model`."""
    dimensions: int | None = Field(default=None, ge=1)
    """Values of a vector to keep, of models trained for it; unset: all."""
    precision: Precision = "fp16"
    """How a value of a vector is stored in the lanes."""

    @property
    def is_asked(self) -> bool:
        """Tell whether a teacher is set."""
        return self.model is not None or bool(self.vectors)
