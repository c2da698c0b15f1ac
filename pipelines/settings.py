"""Every setting: typed, with its unit, range and default; see :mod:`pipelines.config`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Settings(BaseModel):
    """A section of the configuration: frozen, and unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class CorpusSettings(Settings):
    """Which text is read, and how it becomes pairs."""

    inputs: tuple[str, ...] = Field(
        default=(), description="Files, folders or globs; empty only with format `docstrings`."
    )
    format: Literal[
        "docstrings",
        "documents",
        "text",
        "markdown",
        "wikiextractor",
        "jsonl",
        "csv",
        "parquet",
        "delta",
        "iceberg",
        "table",
    ] = Field(
        default="docstrings",
        description=(
            "What the inputs are. `docstrings`: the installed Python packages; `documents`: text, "
            "Markdown and WikiExtractor files, told apart by name and first bytes; `table`, "
            "`iceberg`: tables by name; `delta`: table folders."
        ),
    )
    pairs: Literal["summary", "adjacent", "title", "columns", "triplets", "group", "single"] = (
        Field(
            default="summary",
            description=(
                "`summary`: a text's first sentence with the paragraph after it; `adjacent`: two "
                "sentences of a document that follow one another; `title`: a document's title with "
                "its first paragraph; `columns`: the two `pair_columns`; `triplets`: the three "
                "`triplet_columns`; `group`: any two texts of one `group_column`; `single`: texts "
                "alone."
            ),
        )
    )
    sentences: bool = Field(
        default=False, description="Cut the texts of `pairs: single` into their sentences."
    )
    text_column: str = Field(default="text", description="Column that holds the text.")
    pair_columns: tuple[str, str] = Field(
        default=("sentence1", "sentence2"), description="The two columns of `pairs: columns`."
    )
    triplet_columns: tuple[str, str, str] = Field(
        default=("anchor", "positive", "negative"),
        description="The three columns of `pairs: triplets`.",
    )
    title_column: str = Field(
        default="title",
        description="Column of the titles of `pairs: title`, where there are columns.",
    )
    group_column: str | None = Field(
        default=None,
        description="Rows that share its value never meet in one granule; `pairs: group` needs it.",
    )
    score_column: str | None = Field(
        default=None, description="Similarity of a pair, for `objective.name: cosine_regression`."
    )
    score_range: tuple[float, float] = Field(
        default=(0.0, 1.0), description="Lowest and highest value in `score_column`."
    )
    pairs_per_group: int = Field(
        default=10, ge=1, description="At most so many pairs are made of one group."
    )
    min_characters: int = Field(default=10, ge=1, description="Shorter texts are dropped.")
    max_characters: int = Field(default=5000, ge=1, description="Longer texts are dropped.")
    max_symbols: float = Field(
        default=0.4,
        ge=0,
        le=1,
        description="Largest share of characters that are neither letter, mark, digit nor space.",
    )
    max_repeated: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="Largest share of words in three-word sequences that the text repeats.",
    )
    languages: tuple[str, ...] = Field(
        default=(), description="Texts in other languages are dropped (ISO 639 codes); empty: none."
    )
    near_duplicates: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description=(
            "Jaccard similarity of 5-character shingles from which a text is a near duplicate of "
            "an earlier one and dropped; 0: none are. Unset: 0.8 for sentences, 0 otherwise."
        ),
    )
    max_record_megabytes: int = Field(
        default=16, ge=1, le=512, description="Longer lines and records are quarantined unread."
    )
    max_quarantined: float = Field(
        default=0.01,
        ge=0,
        le=1,
        description="Largest share of the rows that may be unreadable; more of them is an error.",
    )
    evaluation_share: float = Field(
        default=0.05,
        ge=0.0,
        lt=1.0,
        description=(
            "Share of the groups (of the pairs, for docstrings: whole packages) that is held "
            "out, by hash, for the retrieval evaluation."
        ),
    )
    evaluation_pairs: int = Field(
        default=2000, ge=1, description="At most so many held-out pairs are kept for evaluation."
    )
    exclude: tuple[str, ...] = Field(
        default=(),
        description=(
            "Files (Parquet, CSV or JSON lines) whose texts must not be trained on, nor near "
            "duplicates of them; a match drops its whole group, or the sentence in a document."
        ),
    )
    exclude_columns: tuple[str, ...] = Field(
        default=("sentence1", "sentence2"), description="Text columns of the `exclude` files."
    )


class PreparedSettings(Settings):
    """Where the prepared corpus lives."""

    folder: str = Field(
        default="prepared", description="Folder that the driver and every executor can reach."
    )
    reuse: bool = Field(
        default=True, description="Keep a stage whose inputs and settings have not changed."
    )


class TokenSettings(Settings):
    """Vocabulary and token ids."""

    vocabulary: str = Field(
        default="start",
        description="`start`: the start checkpoint's; `train`: a new one; or a folder.",
    )
    model: Literal["wordpiece", "bpe", "unigram"] = Field(
        default="wordpiece", description="Kind of vocabulary, when trained."
    )
    vocabulary_size: int = Field(default=30522, ge=100, description="Entries, when trained.")
    lowercase: bool = Field(default=True, description="Lower-case, when trained.")
    max_length: int = Field(
        default=64, ge=8, le=512, description="Tokens a text, [CLS] and [SEP] included; cut after."
    )


class LaneSettings(Settings):
    """The batch plan's fixed part."""

    count: int = Field(
        default=48, ge=1, description="Lanes; a divisor of it is taken for a small corpus."
    )
    granule: int = Field(default=64, ge=2, description="Examples in a granule.")
    bucket: int = Field(default=8, ge=1, description="Tokens between two length buckets.")
    seed: int = Field(default=17, ge=0, description="Decides which examples meet in a granule.")


class EncoderSettings(Settings):
    """What is trained. The shape keys count only with `start: random`."""

    start: str = Field(
        default="default",
        description="A checkpoint folder, `random`, or `default` (the packaged all-MiniLM-L6-v2).",
    )
    kind: Literal["transformer", "bag"] = Field(
        default="transformer",
        description=(
            "`transformer`: of the BERT family; `bag`: the mean of static token embeddings, for "
            "which of the shape keys only `hidden` and `normalise` count."
        ),
    )
    layers: int = Field(default=4, ge=1, description="Transformer layers.")
    hidden: int = Field(default=256, ge=8, description="Width.")
    heads: int = Field(default=4, ge=1, description="Attention heads; a divisor of `hidden`.")
    intermediate: int | None = Field(
        default=None, ge=8, description="Feed-forward width; 4 x `hidden` unless set."
    )
    pooling: Literal["mean", "cls"] = Field(default="mean", description="Tokens to sentence.")
    normalise: bool = Field(default=True, description="Embeddings of length 1.")


class ObjectiveSettings(Settings):
    """What is minimised."""

    name: Literal["in_batch_negatives", "cosine_regression", "twins"] = Field(
        default="in_batch_negatives", description="The loss."
    )
    temperature: float = Field(default=0.05, gt=0, description="Divides cosine similarities.")
    negatives: Literal["granule", "step"] = Field(
        default="granule", description="Where negatives come from: the granule, or the whole step."
    )


class TrainingSettings(Settings):
    """How it is trained."""

    engine: str = Field(default="tensorflowonspark", description="A name in the engine table.")
    mode: Literal["sync", "async", "hogwild"] = Field(default="sync", description="Update rule.")
    framework: Literal["tensorflow", "torch", "bigdl"] = Field(
        default="tensorflow", description="Who computes the gradients."
    )
    feed: Literal["lanes", "spark", "memory"] = Field(
        default="lanes",
        description=(
            "`lanes`: executors read lane files in place; `spark`: partitions are fed; "
            "`memory`: all is read before the first step."
        ),
    )
    workers: int = Field(default=2, ge=1, description="Processes that train, one an executor.")
    threads: int = Field(default=1, ge=1, description="CPU threads a worker.")
    granules_per_step: int = Field(
        default=2, ge=1, description="Granules of one update; with `sync` a multiple of `workers`."
    )
    max_staleness: int | None = Field(
        default=None,
        ge=0,
        description=(
            "`async`, `hogwild`: a step waits for all that are more than so many before it; "
            "0: in step; unset: it never waits."
        ),
    )
    parameter_servers: int = Field(
        default=1,
        ge=1,
        description="`async` of `tensorflowonspark`: executors that share the parameters.",
    )
    transport: Literal["http", "socket"] = Field(
        default="http", description="How workers of `elephas` reach its parameter server."
    )
    sharding: Literal["none", "optimizer", "gradients", "parameters"] = Field(
        default="none",
        description=(
            "`torch`, `deepspeed`: what is split between the workers instead of being held by "
            "each; each value includes those before it."
        ),
    )
    compression: Literal["none", "fp16"] = Field(
        default="none",
        description=(
            "`horovod`, `bigdl`: what gradients travel as. `fp16`: half the bytes, and three "
            "digits; what is below 6e-8 is lost (`bigdl`: two digits of any size, and the weights "
            "too)."
        ),
    )
    elastic: bool = Field(
        default=False,
        description=(
            "`horovod`: when a worker is lost, fewer of them go on from the newest checkpoint. "
            "The steps since then are made again: see `checkpoint_every`."
        ),
    )
    round_steps: int = Field(
        default=8, ge=1, description="`sync` of `elephas`: steps between two averagings."
    )
    epochs: int = Field(default=1, ge=1, description="Passes over the lanes.")
    max_steps: int | None = Field(default=None, ge=1, description="Stop after so many steps.")
    learning_rate: float = Field(default=5e-5, gt=0, description="At its highest.")
    schedule: Literal["linear", "cosine", "constant"] = Field(
        default="linear", description="Decay after warm-up, to zero at the last step."
    )
    warmup: float = Field(default=0.1, ge=0, lt=1, description="Share of the steps.")
    weight_decay: float = Field(default=0.01, ge=0, description="Decoupled (AdamW).")
    clip_norm: float = Field(
        default=1.0, ge=0, description="Largest gradient norm; 0: no clipping."
    )
    dropout: float = Field(
        default=0.0, ge=0, lt=1, description="Share of activations; `twins` needs it."
    )
    precision: Literal["auto", "fp32", "bf16"] = Field(
        default="auto",
        description=(
            "Of the matrix products; weights stay fp32. `auto`: bf16 on a GPU, fp32 on a CPU, "
            "which without the instructions for it takes many times as long in bf16."
        ),
    )
    activation_checkpointing: bool = Field(
        default=False,
        description=(
            "`torch`: keep the input of each layer only, and compute the layer once more for its "
            "gradient: less memory, a third more time."
        ),
    )
    seed: int = Field(default=17, ge=0, description="Decides step order, noise, random weights.")
    log_every: int = Field(default=10, ge=1, description="Steps between two metrics lines.")
    checkpoint_every: int = Field(default=500, ge=1, description="Steps between two checkpoints.")
    keep_checkpoints: int = Field(default=2, ge=1, description="Older ones are deleted.")
    resume: bool = Field(default=False, description="Go on from the newest checkpoint, if any.")
    start_seconds: int = Field(
        default=60,
        ge=5,
        description=(
            "Deadline for the executors to be there, for the engine to start its processes on "
            "them, and for all workers to be ready to train; for each of these."
        ),
    )
    stall_seconds: int = Field(
        default=300,
        ge=5,
        description="Deadline for a step; a silent worker is given up after 30 s.",
    )


class EvaluationSettings(Settings):
    """What is measured before and after training."""

    retrieval: bool = Field(default=True, description="On the held-out pairs of the corpus.")
    similarity: tuple[str, ...] = Field(
        default=(), description="Files of scored pairs (Parquet, CSV or JSON lines)."
    )
    similarity_columns: tuple[str, str, str] = Field(
        default=("sentence1", "sentence2", "score"), description="Two texts and their score."
    )


class RunSettings(Settings):
    """Where the results go."""

    folder: str = Field(
        default="runs/default", description="Folder that the driver and every executor can reach."
    )
    overwrite: bool = Field(
        default=False, description="Delete a run that the folder holds, and begin anew."
    )


class Config(Settings):
    """The whole configuration; ``Config()`` is the embedded default job."""

    corpus: CorpusSettings = CorpusSettings()
    prepared: PreparedSettings = PreparedSettings()
    tokens: TokenSettings = TokenSettings()
    lanes: LaneSettings = LaneSettings()
    encoder: EncoderSettings = EncoderSettings()
    objective: ObjectiveSettings = ObjectiveSettings()
    training: TrainingSettings = TrainingSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    run: RunSettings = RunSettings()
    spark: Mapping[str, str] = Field(
        default_factory=dict,
        description="Spark conf: `spark.master`, `spark.executor.memory`, any other `spark.*` key.",
    )
