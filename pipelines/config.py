"""From a YAML file and overrides to settings.

One YAML file and dotted overrides on top (``training.workers=4``) give one frozen
:class:`~pipelines.settings.Config`. Whatever is wrong is refused here, before Spark starts, as an
:class:`~pipelines.errors.InputError` that names the key.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_origin

import yaml
from pydantic import ValidationError

from pipelines.errors import InputError
from pipelines.settings import Config, Settings

HIDDEN = "(hidden)"
_SECRET = re.compile(
    r"secret|passw|passphrase|token|credential|private|sas\b|(access|account|api)[._-]?key",
    re.IGNORECASE,
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


def without_secrets(config: Config) -> Config:
    """The configuration for others to see.

    Spark settings whose key or value looks like a secret are hidden, as Spark's own pages do it,
    and the tracking server's address is shown without a password.
    """
    conf = {
        key: HIDDEN if _SECRET.search(key) or _SECRET.search(value) else value
        for key, value in config.spark.items()
    }
    tracking = config.tracking
    if tracking.mlflow_uri is not None:
        uri = without_password(tracking.mlflow_uri)
        tracking = tracking.model_copy(update={"mlflow_uri": uri})
    return config.model_copy(update={"spark": conf, "tracking": tracking})


def without_password(uri: str) -> str:
    """An address without the user and the password that may stand before its host."""
    scheme, separator, rest = uri.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{separator}{host.rpartition('@')[2]}{slash}{path}" if separator else uri


def fields() -> Iterator[tuple[str, str, str, str]]:
    """Yields (key, type, default, description) of every setting, for the reference page."""
    for section, section_field in Config.model_fields.items():
        model = section_field.annotation
        if not (isinstance(model, type) and issubclass(model, Settings)):
            yield f"{section}.*", "text", "", section_field.description or ""
            continue
        schema = model.model_json_schema()["properties"]
        for name, field in model.model_fields.items():
            value = _plain(field.get_default(call_default_factory=True))
            default = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True)
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
        "object": "mapping",
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
        name, _, entry = rest.partition(".")
        if entry and _is_mapping(section, name):
            entries = branch.setdefault(name, {})
            if not isinstance(entries, dict):
                raise InputError(
                    f"{section}.{name}",
                    f"`{entries}` is no mapping",
                    f"write `{{{entry}: {value}}}`",
                )
            entries[entry] = value
        else:
            branch[rest] = value


def _is_mapping(section: str, name: str) -> bool:
    """Whether a setting takes names of the user's own, which may have dots in them."""
    known = Config.model_fields.get(section)
    model = known.annotation if known else None
    if not (isinstance(model, type) and issubclass(model, Settings)):
        return False
    field = model.model_fields.get(name)
    return field is not None and get_origin(field.annotation) is Mapping


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
    for language in corpus.languages:
        if re.fullmatch("[a-z]{2,3}", language) is None:
            raise InputError(
                "corpus.languages", f"`{language}` is no ISO 639 code", "for example en, de or ko"
            )
    if corpus.sentences and corpus.pairs != "single":
        raise InputError(
            "corpus.sentences", f"`{corpus.pairs}` does not ask for it", "leave it out, or single"
        )
    if corpus.pairs == "group" and corpus.group_column is None:
        raise InputError("corpus.group_column", "`pairs: group` needs it", "name the column")
    if corpus.min_characters > corpus.max_characters:
        raise InputError(
            "corpus.min_characters",
            f"{corpus.min_characters} is more than corpus.max_characters",
            f"at most {corpus.max_characters}",
        )
    if encoder.kind == "bag" and encoder.start == "default":
        raise InputError(
            "encoder.kind", "encoder.start `default` is no `bag`", "set encoder.start: random"
        )
    if encoder.kind == "transformer" and encoder.hidden % encoder.heads:
        raise InputError(
            "encoder.heads",
            f"{encoder.heads} does not divide encoder.hidden",
            f"{encoder.hidden} is to be divided",
        )
    if training.activation_checkpointing and training.framework != "torch":
        raise InputError(
            "training.activation_checkpointing",
            f"`{training.framework}` keeps all activations",
            "leave it out, or training.framework: torch",
        )
    if training.mode == "sync" and training.granules_per_step % training.workers:
        raise InputError(
            "training.granules_per_step",
            f"{training.granules_per_step} granules cannot be shared by {training.workers} workers",
            f"a multiple of {training.workers}",
        )
    _check_objective(config)
    _check_promotion(config)
    _check_tracking(config)


def _check_tracking(config: Config) -> None:
    tracking = config.tracking
    for name in tracking.trackers:
        if tracking.trackers.count(name) > 1:
            raise InputError("tracking.trackers", f"{name} is named twice", "name it once")
    for key, value in tracking:
        tracker = key.partition("_")[0]
        if tracker in ("mlflow", "tensorboard") and value and tracker not in tracking.trackers:
            raise InputError(
                f"tracking.{key}",
                f"nothing is told to {tracker}",
                f"add {tracker} to tracking.trackers",
            )


def _check_promotion(config: Config) -> None:
    promotion = config.promotion
    for name in promotion.metrics:
        if not all(name.rpartition(".")):
            raise InputError(
                "promotion.metrics",
                f"`{name}` names no evaluation",
                "for example retrieval.ndcg@10",
            )
    for key, by_metric in (("tolerance", promotion.tolerance), ("minimum", promotion.minimum)):
        for name in by_metric:
            if name not in promotion.metrics:
                raise InputError(
                    f"promotion.{key}",
                    f"`{name}` is not one of promotion.metrics",
                    f"one of {', '.join(promotion.metrics)}, or add it there",
                )


def _check_objective(config: Config) -> None:
    corpus, training = config.corpus, config.training
    if config.objective.name == "twins" and training.dropout == 0:
        raise InputError("training.dropout", "`twins` differ by dropout alone", "for example 0.1")
    if config.objective.name == "cosine_regression" and corpus.score_column is None:
        raise InputError("corpus.score_column", "`cosine_regression` needs it", "name the column")
    if config.objective.name == "twins" and corpus.pairs != "single":
        raise InputError("corpus.pairs", f"`twins` cannot use `{corpus.pairs}`", "set it to single")
    if config.objective.name != "twins" and corpus.pairs == "single":
        raise InputError("objective.name", "single texts have no partner", "set it to twins")
