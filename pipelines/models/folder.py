"""Encoders as folders: sentence-transformers folders in and out, plain checkpoints in.

All architectures share modules.json, normalising, prompts, the card and the settings of a start,
which are here. An architecture's own part is in its package.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

import numpy as np
import yaml
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer

from pipelines.catalog import ARCHITECTURES
from pipelines.errors import InputError
from pipelines.files import records, storage
from pipelines.files.copies import local_folder
from pipelines.files.locations import Location, location
from pipelines.files.records import DAMAGED
from pipelines.models.adaptation import (
    check_names,
    exports_adapter,
    fresh_names,
    split,
)
from pipelines.models.architecture import (
    NORMALISING,
    Architecture,
    Modules,
    architecture_of,
    check_framework,
)
from pipelines.models.checkpoint_files import checkpoint_shapes
from pipelines.models.identity import CARD_FILE
from pipelines.models.lsa.modules import (
    hide_transformer,
    part_modules,
    read_terms,
    terms_width,
    with_terms,
    without_terms,
    write_terms,
)
from pipelines.models.sentence_modules import (
    CONFIG_FILE,
    DENSE,
    POOLING,
    WHOLE_COPY,
    read_dense,
)
from pipelines.models.smaller import static_spec, static_weights, with_fewer_layers, with_layers
from pipelines.models.spec import UNLIMITED, Dense, EncoderSpec
from pipelines.models.start import folder_architecture, model_length
from pipelines.models.weights import (
    TERMS,
    WEIGHT_FILE,
    Weights,
    check_weights,
    fresh_arrays,
    random_weights,
    weight_shapes,
)
from pipelines.settings import Config, EncoderSettings
from pipelines.tokens.model_files import PROMPT_KEYS, read_known
from pipelines.tokens.router import SIDES, route_modules
from pipelines.tokens.start import (
    MODULES_FILE,
    PROMPTS_FILE,
    WITHOUT_LAYERS,
    check_vocabulary,
    configured_prompts,
    default_start,
    is_router,
    start_folder,
)
from pipelines.tokens.vocabulary import load_tokenizer, rows_needed

_CARD_BYTES = 1 << 20
_FRONT_MATTER = re.compile(r"\ufeff?---\r?\n(?P<yaml>.*?\n)---\s*?(?:\r?\n|\Z)", re.DOTALL)


class Licence(NamedTuple):
    """A model's licence, by the fields of a card's front matter on the hub."""

    license: str | None = None
    license_name: str | None = None
    license_link: str | None = None


NO_LICENCE = Licence()


def start_card(spec: EncoderSpec, licence: Licence = NO_LICENCE) -> str:
    """Return the card of a start, as Markdown; a trained model has :mod:`pipelines.model_card`."""
    known = {key: value for key, value in licence._asdict().items() if value is not None}
    matter = f"---\n{yaml.safe_dump(known)}---\n\n" if known else ""
    length = "all tokens" if spec.max_length == UNLIMITED else f"{spec.max_length} tokens"
    return (
        f"{matter}A sentence encoder {architecture_of(spec).described(spec)}, the start of a "
        f"training with sentence-pipelines.\nIt reads {length} of a text.\n"
    )


def read_licence(folder: Location) -> Licence:
    """Return the licence in the front matter of a folder's card, as far as it is known."""
    path = folder / CARD_FILE
    if not path.is_file():
        return NO_LICENCE
    with path.open("rb") as file:
        text = file.read(_CARD_BYTES).decode(errors="replace")
    found = _FRONT_MATTER.match(text)
    try:
        known = yaml.safe_load(found["yaml"]) if found else None
    except (yaml.YAMLError, ValueError, RecursionError):
        known = None
    if not isinstance(known, dict) or not isinstance(known.get("license"), str):
        return NO_LICENCE
    return Licence(*(str(known[key]) if known.get(key) else None for key in Licence._fields))


def start_licence(config: Config) -> Licence:
    """Return the licence of the start in the settings, as far as its card is here and names it."""
    with suppress(InputError, OSError):
        folder = start_folder(config)
        return NO_LICENCE if folder is None else read_licence(folder)
    return NO_LICENCE


__all__ = [
    "Licence",
    "check_start",
    "default_start",
    "read_encoder",
    "read_licence",
    "read_model",
    "start_encoder",
    "start_licence",
    "weight_change",
    "write_encoder",
]

logger = logging.getLogger(__name__)

KEY = "encoder.start"

COSINE = "cosine"
"""The similarity of embeddings."""
_SPARE_ROWS = 1024
"""Rows of a word embedding beyond its tokens that a model may have, to reach a round number."""
_RESIZE = "Save it again with a row for each token of its tokenizer, or name another model"
_COMPARED = 2**20
"""Numbers of an array that are compared at a time."""
_SENTENCE_MODULES = "sentence_transformers.models"
LITTLE_KNOWN = ("weightedmean",)
"""Poolings in place of which a server may take another one without a word, as vLLM does."""
_HEAD = ("pooling", "normalise")
"""Fields that the settings give a plain checkpoint."""
_OUTPUT_STREAM = 2
"""Of the random numbers of a seed: those of the layer of ``encoder.output_width``."""

Spec = TypeVar("Spec", bound=EncoderSpec)


def start_encoder(config: Config, vocabulary_size: int) -> tuple[EncoderSpec, Weights]:
    """Return the encoder that training starts from.

    A checkpoint folder gives the shape, and a sentence-transformers folder the pooling too;
    ``encoder.pooling`` and ``encoder.normalise`` decide for others. Length and prompts are the
    folder's unless the settings say otherwise; see :func:`~pipelines.models.start.model_length` and
    :func:`~pipelines.tokens.start.configured_prompts`.

    Raises:
        InputError: The checkpoint cannot be read, or does not fit the vocabulary of the prepared
            corpus.
    """
    folder = start_folder(config)
    if folder is None:
        spec = _random_start(config, vocabulary_size)
        return spec, random_weights(spec, config.training.seed)
    start, weights = _read_start(config, folder)
    spec = _trained_spec(config, folder, start, vocabulary_size)
    kept = _kept_weights(config, folder, start, weights)
    return spec, {**kept, **_fresh_output(config, spec)}


def start_spec(config: Config, vocabulary_size: int) -> EncoderSpec:
    """Return the spec of :func:`start_encoder`, without making weights, which may take long."""
    folder = start_folder(config)
    if folder is None:
        return _random_start(config, vocabulary_size)
    start, _ = _read_start(config, folder)
    return _trained_spec(config, folder, start, vocabulary_size)


def check_start(config: Config) -> None:
    """Check the start, as far as that is possible without a vocabulary.

    Raises:
        InputError: It cannot be read, the framework does not know its architecture, or it lacks
            parts or the width named in the settings.
    """
    folder = start_folder(config)
    if folder is None:
        check_framework(ARCHITECTURES.load(config.encoder.kind), config)
        return
    start, weights = _read_start(config, folder)
    if config.tokens.vocabulary == "start":
        check_rows(folder, start)
    spec = with_output(config.encoder, _smaller(config, start))
    check_framework(architecture_of(spec), config)
    if spec is not start:
        # Names and shapes decide about the trained weights, so zeros without memory will do.
        weights = {
            name: np.broadcast_to(np.float32(0), shape)
            for name, shape in weight_shapes(spec).items()
        }
    trained, _ = split(config.encoder, weights, config.training.seed)
    if exports_adapter(config.encoder):
        check_names(architecture_of(spec).folder.stored_name, trained)
    for source in config.by_source():
        source.objective.check_width(spec.embedding_width)


def read_encoder(folder: str | Location, side: str | None = None) -> tuple[EncoderSpec, Weights]:
    """Read a sentence-transformers folder or a plain Hugging Face checkpoint.

    A plain checkpoint gets mean pooling and normalised embeddings. Of a Router it is the encoder of
    a side, one of :data:`~pipelines.tokens.router.SIDES`; None refuses a Router.

    Raises:
        InputError: With the key ``encoder.start``: the folder is of no registered architecture, is
            damaged, or holds numbers that are not finite.
    """
    folder = local_folder(location(folder))
    try:
        modules, of_terms = part_modules(route_modules(folder, side))
        spec, weights = folder_architecture(folder, modules).folder.read(folder, modules)
        if of_terms:
            spec, weights = with_terms(spec, weights, read_terms(folder, of_terms))
    except SafetensorError as error:
        _refuse(folder, f"has a damaged {WEIGHT_FILE} ({error})")
    except (OSError, *DAMAGED) as error:
        _refuse(folder, f"cannot be read ({' '.join(str(error).split())})")
    for name, array in weights.items():
        if not np.isfinite(array).all():
            _refuse(folder, f"has numbers in {name} that are not finite")
    return spec, weights


def read_specs(folder: str | Location) -> list[EncoderSpec]:
    """Read the encoder in a folder, or both of a Router; see :func:`read_encoder`."""
    local = local_folder(location(folder))
    specs = [read_encoder(local, side)[0] for side in _sides(local)]
    check_one_width(local, [spec.embedding_width for spec in specs])
    return specs


def check_sides(folder: str | Location) -> None:
    """Refuse a Router whose encoders have several widths, see :func:`check_one_width`.

    Weights are read only if the other files name no width, or several.
    """
    local = local_folder(location(folder))
    if is_router(local):
        named = {named_width(local, route_modules(local, side)) for side in SIDES}
        if None in named or len(named) > 1:
            read_specs(local)


def named_width(folder: Path, modules: Modules) -> int | None:
    """Return the width of embeddings by the modules' own files, perhaps None; reads no weights."""
    encoder, of_terms = part_modules(modules)
    homes = {kind: folder / path for kind, path in encoder}
    # A damaged file is told by who reads the encoder.
    with suppress(OSError, SafetensorError, *DAMAGED):
        terms = terms_width(folder, of_terms)
        if DENSE in homes:
            return read_dense(folder, encoder)[-1].width + terms
        if POOLING in homes:
            pooling = records.read_object(homes[POOLING] / CONFIG_FILE)
            named = pooling.get("word_embedding_dimension", pooling.get("embedding_dimension"))
            return None if named is None else int(named) + terms
        # Static embeddings: the one matrix of their file.
        shapes = checkpoint_shapes(folder / encoder[0][1])
        matrices = [shape for shape in shapes.values() if len(shape) > 1]
        return matrices[0][1] + terms
    return None


def encoder_kinds(folder: str | Location) -> tuple[str, ...]:
    """Return the architecture of a model, or of a Router's encoders; reads no weights."""
    local = local_folder(location(folder))
    modules = (route_modules(local, side) for side in _sides(local))
    return tuple(folder_architecture(local, of_side).spec.kind for of_side in modules)


def _sides(folder: Path) -> tuple[str | None, ...]:
    return SIDES if is_router(folder) else (None,)


def check_one_width(folder: Path, widths: Sequence[int]) -> None:
    """Refuse a Router of encoders whose embeddings cannot be compared.

    Raises:
        InputError: Their embeddings have several widths.
    """
    if len({*widths}) > 1:
        raise InputError(
            KEY,
            f"the encoders of the Router {folder} give {' and '.join(map(str, widths))} numbers",
            "Name a Router whose encoders have the same width",
        )


def read_model(
    folder: str | Location, side: str | None = None
) -> tuple[EncoderSpec, Weights, Tokenizer]:
    """Read an encoder and its tokenizer; see :func:`read_encoder` and :func:`check_rows`."""
    folder = local_folder(location(folder))
    spec, weights = read_encoder(folder, side)
    named = read_known(folder / PROMPTS_FILE, PROMPT_KEYS).get("similarity_fn_name") or COSINE
    if named != COSINE and not spec.normalise:
        logger.warning(
            "%s compares embeddings by %s, but sentence-pipelines by %s", folder, named, COSINE
        )
    modules, _ = part_modules(route_modules(folder, side))
    to_embed = architecture_of(spec).folder.to_embed(folder, modules, spec, weights)
    return spec, to_embed, check_rows(folder, spec, modules)


def check_rows(folder: Path, spec: EncoderSpec, modules: Modules | None = None) -> Tokenizer:
    """Return the tokenizer of a folder, or of a route; refuse tokens without a word embedding."""
    tokenizer = load_tokenizer(folder, KEY, modules)
    tokens = rows_needed(tokenizer)
    if tokens > spec.vocabulary:
        raise InputError(
            KEY,
            f"{folder} has {spec.vocabulary} word embeddings for a tokenizer of {tokens} tokens",
            _RESIZE,
        )
    if spec.vocabulary - tokens > _SPARE_ROWS:
        message = "%s has %d word embeddings for a tokenizer of %d tokens: is it of another model?"
        logger.warning(message, folder, spec.vocabulary, tokens)
    return tokenizer


def weight_change(folder: Location, start: Location) -> float | None:
    """Return the distance of a model's weights from its start, relative to the start's length.

    Arrays are compared by module and name, some rows at a time. None: the two share no array.
    """
    moved = length = 0.0
    new_files, old_files = (_files_of_arrays(local_folder(place)) for place in (folder, start))
    for array in sorted(set(new_files) & set(old_files)):
        _, name = array
        with (
            safe_open(str(new_files[array]), framework="numpy") as new,
            safe_open(str(old_files[array]), framework="numpy") as old,
        ):
            first, second = old.get_slice(name), new.get_slice(name)
            shape = first.get_shape()
            if not shape or shape != second.get_shape() or first.get_dtype() != "F32":
                continue
            rows = max(_COMPARED // max(math.prod(shape[1:]), 1), 1)
            for begin in range(0, shape[0], rows):
                end = min(begin + rows, shape[0])
                was = first[begin:end].astype(np.float64).ravel()
                step = second[begin:end].ravel() - was
                length += float(was @ was)
                moved += float(step @ step)
    return math.sqrt(moved / length) if length else None


def _files_of_arrays(folder: Path) -> dict[tuple[str, str], Path]:
    """Return the file of each array, by module and name."""
    files: dict[tuple[str, str], Path] = {}
    for path in sorted(folder.rglob("*.safetensors")):
        module = path.parent.relative_to(folder).as_posix()
        # The first module stands in the folder itself, or in one of its own.
        module = "." if module.startswith("0_") else module
        with safe_open(str(path), framework="numpy") as file:
            files.update({(module, name): path for name in file.keys()})  # noqa: SIM118 - no mapping
    return files


def write_encoder(
    folder: Location,
    spec: EncoderSpec,
    weights: Mapping[str, np.ndarray],
    tokenizer_folder: Location,
    card: str,
) -> None:
    """Write a sentence-transformers folder, whole or not at all; replace an existing one.

    It has the older key names: releases since 3 read them, a StaticEmbedding's since 3.2. The
    weights are fp32, in canonical names; the card is Markdown.
    """
    check_weights(spec, weights)
    with storage.built_folder(folder) as aside:
        modules = write_encoder_modules(aside, spec, weights, local_folder(tokenizer_folder))
        storage.write_json(aside / MODULES_FILE, list(_listed(modules)))
        storage.write_json(
            aside / PROMPTS_FILE, spec.prompts.to_json() | {"similarity_fn_name": COSINE}
        )
        storage.write_text(aside / CARD_FILE, card)


def write_encoder_modules(
    folder: Path,
    spec: EncoderSpec,
    weights: Mapping[str, np.ndarray],
    tokenizer_folder: Path,
    *,
    hidden: bool = False,
) -> list[tuple[str, str]]:
    """Write the modules of an encoder into an empty folder; return class and path of each.

    ``hidden`` moves a transformer out of the folder's root; see :func:`hide_transformer`.
    """
    encoder, encoder_weights = without_terms(spec, weights)
    write = architecture_of(spec).folder.write
    modules = write(folder, encoder, encoder_weights, tokenizer_folder)
    if hidden or spec.lsa or getattr(spec, "pooling", None) in LITTLE_KNOWN:
        modules = hide_transformer(folder, modules)
    if spec.lsa:
        modules += write_terms(folder, spec, weights[TERMS], len(modules))
    if spec.normalise:
        modules.append((NORMALISING, f"{len(modules)}_{NORMALISING}"))
        (folder / modules[-1][1]).mkdir()
    return modules


def _read_start(config: Config, folder: Path) -> tuple[EncoderSpec, Weights]:
    """Return the encoder in a folder; the settings give the pooling if the folder does not."""
    spec, weights = read_encoder(folder)
    if spec.lsa:
        raise InputError(
            KEY,
            f"{folder} has lexical (LSA) features beside its encoder",
            "Name the start of its run, and set encoder.lsa.dimensions as it was there",
        )
    head: dict[str, Any] = {}
    if not (folder / MODULES_FILE).is_file():
        head = {name: getattr(config.encoder, name) for name in _HEAD if hasattr(spec, name)}
    return replace(spec, **head), weights


def _trained_spec(
    config: Config, folder: Path, start: EncoderSpec, vocabulary_size: int
) -> EncoderSpec:
    """Return the trained shape of the encoder in a folder."""
    encoder = config.encoder
    check_vocabulary(config)
    # The setting's default says nothing of a checkpoint, which knows what it is.
    if encoder.kind not in (EncoderSettings.model_fields["kind"].default, start.kind):
        raise InputError(
            "encoder.kind",
            f"{folder} is no `{encoder.kind}`",
            "Leave it out, or set encoder.start to random",
        )
    # Some checkpoints have more rows than words, to make a round number.
    tokens = vocabulary_size
    if tokens > start.vocabulary and config.tokens.vocabulary != "start":
        raise InputError(
            "tokens.vocabulary",
            f"{folder} has {start.vocabulary} word embeddings for a tokenizer of {tokens} tokens",
            "Set it to `start`, or encoder.start to random",
        )
    if tokens > start.vocabulary:
        raise InputError(
            "tokens.vocabulary",
            f"{folder} has {start.vocabulary} word embeddings for a tokenizer of {tokens} tokens",
            _RESIZE,
        )
    length, prompts = model_length(config), configured_prompts(config)
    spec = with_output(config.encoder, _smaller(config, start))
    return replace(spec, max_length=length, prompts=prompts)


def with_output(encoder: EncoderSettings, spec: Spec) -> Spec:
    """Return a shape with the layer of ``encoder.output_width``, if it is set."""
    if encoder.output_width is None:
        return spec
    layer = Dense(width=encoder.output_width, activation="identity")
    return replace(spec, dense=(*spec.dense, layer))


def without_output(
    encoder: EncoderSettings, spec: EncoderSpec, weights: Mapping[str, np.ndarray]
) -> tuple[EncoderSpec, Mapping[str, np.ndarray]]:
    """Return an encoder as its start has it, without the layer of ``encoder.output_width``."""
    fresh = fresh_names(encoder, weights)
    if not fresh:
        return spec, weights
    kept = {name: value for name, value in weights.items() if name not in fresh}
    return replace(spec, dense=spec.dense[:-1]), kept


def _fresh_output(config: Config, spec: EncoderSpec) -> Weights:
    """Return the weights of the layer of ``encoder.output_width``, if it is set."""
    shapes = weight_shapes(spec)
    fresh = {name: shapes[name] for name in shapes if name in fresh_names(config.encoder, shapes)}
    return fresh_arrays(fresh, config.training.seed, _OUTPUT_STREAM) if fresh else {}


def _smaller(config: Config, start: EncoderSpec) -> EncoderSpec:
    """Return the shape of the encoder with the kept layers."""
    count = config.encoder.keep_layers
    if count is None:
        return start
    if count == 0 and start.kind != WITHOUT_LAYERS:
        return static_spec(start)
    return with_fewer_layers(start, count)


def _kept_weights(config: Config, folder: Path, start: EncoderSpec, weights: Weights) -> Weights:
    """Return the weights of the kept layers, or of words without layers."""
    count = config.encoder.keep_layers
    if count is None:
        return weights
    if count == 0:
        return static_weights(start, weights, folder)
    return with_layers(start, weights, count)[1]


def _random_start(config: Config, vocabulary_size: int) -> EncoderSpec:
    encoder = config.encoder
    architecture: Architecture = ARCHITECTURES.load(encoder.kind)
    spec = architecture.spec(
        vocabulary=vocabulary_size,
        hidden=encoder.hidden,
        normalise=encoder.normalise,
        max_length=model_length(config),
        prompts=configured_prompts(config),
        **architecture.shape(encoder),
    )
    return with_output(encoder, spec)


def _refuse(folder: Path, problem: str) -> NoReturn:
    raise InputError(KEY, f"{folder} {problem}", WHOLE_COPY)


def _listed(modules: Modules) -> Iterator[dict[str, Any]]:
    """Yield the entries of modules.json."""
    for index, (kind, path) in enumerate(modules):
        yield {
            "idx": index,
            "name": str(index),
            "path": path,
            "type": f"{_SENTENCE_MODULES}.{kind}",
        }
