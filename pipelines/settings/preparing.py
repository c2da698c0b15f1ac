"""The sections of the results of `prepare`: tokens, lanes, and a teacher's vectors."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pipelines.settings.base import Settings, StoredPath


class PreparedSettings(Settings):
    """Where the prepared corpus lives."""

    folder: StoredPath = "prepared"
    """Folder of the prepared corpus, shared by driver and executors."""
    reuse: bool = True
    """Keep stages with unchanged inputs and settings."""
    cache_gigabytes: float = Field(default=20.0, ge=0)
    """Disk space per machine for lanes (shards) from object stores, in 10^9 bytes. 0: fetch
    granules each epoch. Folder: `storage.cache_folder`."""
    keep_units: bool = True
    """Keep cleaned texts per input file (the corpus's size). `prepare` then reads only new and
    changed files."""


SHORTEST_TEXT, LONGEST_TEXT = 8, 32_768
"""Bounds of ``tokens.max_length``, in tokens, if the model reads so many."""
LONGEST_UNASKED = 512
"""The longest text that training reads where no length is set, in tokens: a user must ask for the
memory of longer ones."""


class TokenSettings(Settings):
    """Vocabulary and token ids."""

    vocabulary: StoredPath = "start"
    """`start`: that of the start checkpoint; `train`: a new one; or a folder."""
    model: Literal["wordpiece", "bpe", "unigram"] = "wordpiece"
    """Algorithm of a trained vocabulary."""
    vocabulary_size: int = Field(default=30522, ge=100)
    """Entries of a trained vocabulary."""
    lowercase: bool = True
    """Lower-case texts in a trained vocabulary."""
    max_length: int | None = Field(
        default=None,
        ge=SHORTEST_TEXT,
        le=LONGEST_TEXT,
        description=(
            "Tokens of a text in training, [CLS] and [SEP] included, within the model's length; "
            "longer texts are truncated. Null: enough for 99 % of the examples, up to "
            f"{LONGEST_UNASKED}. Memory and time grow with it: lower it for short texts (64), and "
            "see `training.tokens_per_forward` for long ones."
        ),
    )


class LaneSettings(Settings):
    """How examples are dealt into granules and lanes, for any number of workers."""

    count: int = Field(default=48, ge=1)
    """Number of lanes (shards); small corpora get a divisor."""
    granule: int = Field(default=64, ge=2)
    """Examples per granule."""
    bucket: int = Field(default=8, ge=1)
    """Width of a length bucket, in tokens."""
    bucket_growth: float = Field(default=1.05, ge=1, le=2)
    """Ratio of consecutive bucket ends from 512 tokens on. 1: constant width."""
    seed: int = Field(default=17, ge=0)
    """Seed of the distribution of examples to granules."""


Precision = Literal["fp16", "fp32"]
START = "start"
"""The value of `teacher.model` for the start itself."""


class TeacherSettings(Settings):
    """The teacher of objectives with teacher vectors; the lanes hold them."""

    model: StoredPath | None = None
    """A sentence-transformers folder, or `start` for `encoder.start`. `prepare` embeds each text
    once, anchors as queries, others as documents, with `embedding.backend`, `precision` and
    `batch_tokens`."""
    vectors: tuple[StoredPath, ...] = ()
    """Folders of tables from `embed`, instead of `teacher.model`."""
    dimensions: int | None = Field(default=None, ge=1)
    """Leading values of a vector to keep, for Matryoshka models. Null: all."""
    precision: Precision = "fp16"
    """Number format of vectors in the lanes."""

    @property
    def is_asked(self) -> bool:
        """Tell whether a teacher is set."""
        return self.model is not None or bool(self.vectors)
