"""Every setting: typed, with its unit, range and default.

One YAML file and dotted overrides on top (``training.workers=4``) give one frozen
:class:`Config`. Whatever is wrong is refused here, before Spark starts, as an
:class:`~pipelines.errors.InputError` that names the key.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipelines.errors import InputError


class Settings(BaseModel):
    """A section of the configuration: frozen, and unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class CorpusSettings(Settings):
    """Which text is read, and how it becomes pairs."""

    inputs: tuple[str, ...] = Field(
        default=(), description="Files, folders or globs; empty only with format `docstrings`."
    )
    format: Literal["docstrings", "text", "jsonl", "csv", "parquet"] = Field(
        default="docstrings",
        description="What the inputs are. `docstrings` reads the installed Python packages.",
    )
    pairs: Literal["summary", "columns", "group", "single"] = Field(
        default="summary",
        description=(
            "`summary`: a text's first sentence with the paragraph after it; `columns`: the two "
            "`pair_columns`; `group`: any two texts of one `group_column`; `single`: texts alone."
        ),
    )
    text_column: str = Field(default="text", description="Column that holds the text.")
    pair_columns: tuple[str, str] = Field(
        default=("sentence1", "sentence2"), description="The two columns of `pairs: columns`."
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
            "Parquet files whose texts must not be trained on; a match drops its whole group."
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


class TokenSettings(Settings):
    """Vocabulary and token ids."""

    vocabulary: str = Field(
        default="start",
        description="`start`: the start checkpoint's; `train`: a new WordPiece one; or a folder.",
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
        default=2, ge=1, description="Granules of one update; a multiple of `workers`."
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
    precision: Literal["fp32", "bf16"] = Field(
        default="fp32", description="Of the matrix products; weights stay fp32."
    )
    seed: int = Field(default=17, ge=0, description="Decides step order, noise, random weights.")
    log_every: int = Field(default=10, ge=1, description="Steps between two metrics lines.")
    checkpoint_every: int = Field(default=500, ge=1, description="Steps between two checkpoints.")
    keep_checkpoints: int = Field(default=2, ge=1, description="Older ones are deleted.")
    resume: bool = Field(default=False, description="Go on from the newest checkpoint, if any.")
    start_seconds: int = Field(
        default=60, ge=5, description="Deadline for all workers to be ready to train."
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


def load(path: str | Path | None = None, overrides: Sequence[str] = ()) -> Config:
    """Reads the YAML file and applies the overrides.

    Args:
        path: YAML file; None gives the defaults.
        overrides: ``key=value`` with a dotted key; the value is read as YAML.

    Raises:
        InputError: Naming the key, its value, and what would be right.
    """
    tree: dict[str, Any] = {}
    for key, value in _leaves(_read_yaml(path) if path is not None else {}):
        _put(tree, key, value)
    for override in overrides:
        key, separator, text = override.partition("=")
        if not separator or not key:
            raise InputError(
                "--set", f"`{override}` is not KEY=VALUE", "for example training.workers=2"
            )
        _put(tree, key.strip(), _parse_value(key, text))
    return parse(tree)


def parse(tree: Mapping[str, Any]) -> Config:
    """Validates a nested mapping; see :func:`load` for the errors."""
    try:
        config = Config.model_validate(tree)
    except ValidationError as error:
        raise _input_error(error) from None
    _check_together(config)
    return config


def dump(config: Config) -> str:
    """The configuration as YAML that :func:`load` reads back to an equal value."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def fields() -> Iterator[tuple[str, str, str, str]]:
    """Yields (key, type, default, description) of every setting, for the reference page."""
    for section, section_field in Config.model_fields.items():
        model = section_field.annotation
        if not (isinstance(model, type) and issubclass(model, Settings)):
            yield f"{section}.*", "text", "", section_field.description or ""
            continue
        schema = model.model_json_schema()["properties"]
        for name, field in model.model_fields.items():
            default = yaml.safe_dump(
                _plain(field.default), default_flow_style=True, allow_unicode=True
            )
            kind = _type_name(schema[name])
            yield (
                f"{section}.{name}",
                kind,
                default.removesuffix("...\n").strip(),
                field.description or "",
            )


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _type_name(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if "anyOf" in schema:
        return " or ".join(_type_name(option) for option in schema["anyOf"])
    names = {
        "string": "text",
        "integer": "whole number",
        "number": "number",
        "boolean": "true | false",
        "array": "list",
        "null": "nothing",
    }
    return names[schema["type"]]


def _read_yaml(path: str | Path) -> Mapping[str, Any]:
    try:
        tree = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(
            "--config", f"there is no file {path}", "name an existing YAML file"
        ) from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        summary = " ".join(str(error).split())
        raise InputError(
            "--config", f"{path} is not readable YAML ({summary})", "mend the file"
        ) from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise InputError(
            "--config", f"{path} holds no mapping", "write `section: {key: value}` in it"
        )
    return tree


def _parse_value(key: str, text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise InputError(key, f"`{text}` is not a YAML value", "quote it") from None


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{name}.")
        else:
            yield name, value


def _put(tree: dict[str, Any], key: str, value: Any) -> None:
    section, _, rest = key.partition(".")
    if section == "spark" and rest:
        tree.setdefault("spark", {})[rest.removeprefix("spark.")] = _conf_text(value)
    elif not rest:
        tree[section] = value
    else:
        branch = tree.setdefault(section, {})
        if not isinstance(branch, dict):
            raise InputError(
                section, f"`{branch}` is not a section", f"write `{section}: {{key: value}}`"
            )
        branch[rest] = value


def _conf_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _input_error(error: ValidationError) -> InputError:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"] if not isinstance(part, int))
    if first["type"] == "extra_forbidden":
        known = [name.removesuffix(".*") for name, *_ in fields()]
        close = difflib.get_close_matches(key, known, n=1)
        remedy = f"did you mean {close[0]}?" if close else "see docs/settings.md for all of them"
        return InputError(key, "there is no such setting", remedy)
    message = first["msg"][0].lower() + first["msg"][1:]
    return InputError(key, f"`{first['input']}` does not fit", message)


def _check_together(config: Config) -> None:
    """What no single field can know."""
    corpus, encoder, training = config.corpus, config.encoder, config.training
    if corpus.format != "docstrings" and not corpus.inputs:
        raise InputError("corpus.inputs", "it is empty", f"name the {corpus.format} files to read")
    if corpus.pairs == "group" and corpus.group_column is None:
        raise InputError("corpus.group_column", "`pairs: group` needs it", "name the column")
    if corpus.min_characters > corpus.max_characters:
        raise InputError(
            "corpus.min_characters",
            f"{corpus.min_characters} is more than corpus.max_characters",
            f"at most {corpus.max_characters}",
        )
    if encoder.hidden % encoder.heads:
        raise InputError(
            "encoder.heads",
            f"{encoder.heads} does not divide encoder.hidden",
            f"{encoder.hidden} is to be divided",
        )
    if training.granules_per_step % training.workers:
        raise InputError(
            "training.granules_per_step",
            f"{training.granules_per_step} granules cannot be shared by {training.workers} workers",
            f"a multiple of {training.workers}",
        )
    if config.objective.name == "twins" and training.dropout == 0:
        raise InputError("training.dropout", "`twins` differ by dropout alone", "for example 0.1")
    if config.objective.name == "cosine_regression" and corpus.score_column is None:
        raise InputError("corpus.score_column", "`cosine_regression` needs it", "name the column")
    if config.objective.name == "twins" and corpus.pairs != "single":
        raise InputError("corpus.pairs", f"`twins` cannot use `{corpus.pairs}`", "set it to single")
    if config.objective.name != "twins" and corpus.pairs == "single":
        raise InputError("objective.name", "single texts have no partner", "set it to twins")
