"""The parts of an architecture, and the frameworks that can compute it.

The module `architecture` of a folder or family declares an :class:`Architecture`. It names its
forms, so a framework is imported when one of its forms is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from pipelines.catalog import ARCHITECTURES
from pipelines.errors import InputError
from pipelines.models.spec import EncoderSpec
from pipelines.settings import Config, EncoderSettings, TrainingSettings

Modules: TypeAlias = Sequence[tuple[str, str]]
"""Class and path of a sentence-transformers folder's modules; empty for a plain checkpoint."""
NORMALISING = "Normalize"
"""The module that scales embeddings to length 1; it may follow any architecture."""
Shapes: TypeAlias = dict[str, tuple[int, ...]]
TokenNeed: TypeAlias = Literal["tokens", "decoder"]
"""The needs of losses over hidden states among an architecture's abilities."""

TRAINING_FRAMEWORKS = ("tensorflow", "torch", "bigdl")
"""Values of ``training.framework``."""
ENGINES_WITH_FORMS = ("megatron", "mesh")
"""Values of ``training.engine`` that are forms too."""


class Lengths(NamedTuple):
    """A model's length and its upper limit, in tokens, [CLS] and [SEP] included."""

    length: int
    limit: int


@dataclass(frozen=True, kw_only=True)
class FolderFormat:
    """The sentence-transformers folders of an architecture.

    Attributes:
        recognises: Whether a folder, with its modules, is of this architecture.
        read: Returns spec and weights. Raises InputError with the key ``encoder.start``.
        write: Writes spec, weights and the tokenizer of another folder into an existing one;
            returns its modules. Normalising, prompts and the card are written elsewhere.
        lengths: Tokens that the model in a folder reads; needs no weights.
        stored_name: The name in the files of a layer's weight, by its canonical name.
        to_embed: Returns the weights for embedding, from the stored ones.
    """

    recognises: Callable[[Path, Modules], bool]
    read: Callable[[Path, Modules], tuple[Any, dict[str, np.ndarray]]]
    write: Callable[[Path, Any, Mapping[str, np.ndarray], Path], list[tuple[str, str]]]
    lengths: Callable[[Path, Modules], Lengths]
    stored_name: Callable[[str], str] = str
    to_embed: Callable[[Path, Modules, Any, dict[str, np.ndarray]], dict[str, np.ndarray]] = (
        lambda folder, modules, spec, weights: weights
    )


@dataclass(frozen=True, kw_only=True)
class Division:
    """The division of an architecture's weights among workers.

    Attributes:
        axes: The axis along which the members of a stage divide a weight, by name; each member
            holds the others whole.
        evenly: Numbers, by name, of which the number of members must be a divisor.
        layers: The number of layers to divide into stages.
        layer_of: The layer of a weight; None before the first.
        check: Refuses an encoder without divided training; the InputError has the given key.
        check_stages: The reason against stages, as a sentence; None without one.
    """

    axes: Callable[[Any], Mapping[str, int]]
    evenly: Callable[[Any], Mapping[str, int]]
    layers: Callable[[Any], int]
    layer_of: Callable[[str], int | None]
    check: Callable[[Any, str, TrainingSettings], None] = lambda spec, key, training: None
    check_stages: Callable[[Any], str | None] = lambda spec: None


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """One kind of encoder.

    Attributes:
        spec: The class of its spec, with its name.
        models: Well-known models that start from it, for the documentation.
        check_settings: Refuses incompatible settings of a random start.
        shape: Its own fields of a random start's spec.
        random_lengths: Tokens that a random start reads, given ``tokens.max_length``.
        weight_shapes: Shape of every weight, in canonical order; matrices are [out, in]. The word
            embedding, :data:`pipelines.models.weights.WORDS`, is among them.
        random_weights: Fresh weights from a seed, the same on every machine.
        described: The spec for people, as an addition to "a sentence encoder".
        described_settings: The settings of a random start for people.
        forms: `module:attribute` by framework. For `torch`, `tensorflow`, `bigdl` and `openvino`
            see ``Form`` in the module of that name in :mod:`pipelines.models.frameworks`, or in
            :mod:`pipelines.engines.bigdl.form`. `torch_module` is for sharded training; without it
            the encoder is one unit, and has no `division`. `megatron` and `mesh` are for the
            engines of these names. `bigdl_memory` gives the heap of a step beside `bigdl`.
        division: How workers divide it; None if they cannot.
        token_losses: What its form in PyTorch offers losses over hidden states: `tokens` if these
            describe each token, `decoder` if its layers also form a decoder, see
            :meth:`pipelines.models.bert.torch.BertEncoder.decode`.
        leaves_ends_out: Whether it leaves out the first and the last token of every text, as
            special ones; otherwise a tokenizer may add any number, or none.
        packs: Whether its form in PyTorch takes texts of several segments without padding, each
            with its own noise. Otherwise it gets texts of similar length together, and with dropout
            one segment at a time.
        compiles: Whether its form in PyTorch compiles parts of its layers, if asked to.
    """

    spec: type[EncoderSpec]
    models: str
    check_settings: Callable[[EncoderSettings], None]
    shape: Callable[[EncoderSettings], dict[str, Any]]
    random_lengths: Callable[[int | None], Lengths]
    weight_shapes: Callable[[Any], Shapes]
    random_weights: Callable[[Any, int], dict[str, np.ndarray]]
    folder: FolderFormat
    described: Callable[[Any], str]
    described_settings: Callable[[EncoderSettings], str]
    forms: Mapping[str, str]
    division: Division | None = None
    token_losses: tuple[TokenNeed, ...] = ()
    leaves_ends_out: bool = False
    packs: bool = False
    compiles: bool = False

    def __post_init__(self) -> None:
        if "bigdl" in self.forms and "bigdl_memory" not in self.forms:
            raise ValueError(f"architecture {self.spec.kind}: the form bigdl needs bigdl_memory")

    def form(self, name: str) -> Any:
        """Return the form of a framework, importing it."""
        module, _, attribute = self.forms[name].partition(":")
        return getattr(import_module(module), attribute)

    def check_form(self, name: str, key: str, choices: Iterable[str]) -> None:
        """Refuse a framework without a form; the setting `key` chose it of `choices`."""
        if name not in self.forms:
            known = ", ".join(choice for choice in choices if choice in self.forms)
            raise InputError(
                key,
                f"architecture {self.spec.kind} has no implementation in {name}",
                f"Choose one of {known}",
            )


def architecture_of(spec: EncoderSpec) -> Architecture:
    """Return the architecture of a spec."""
    found: Architecture = ARCHITECTURES.load(spec.kind)
    return found


def form_of(spec: EncoderSpec, name: str) -> Any:
    """Return the form of a spec's architecture in a framework; see :attr:`Architecture.forms`."""
    return architecture_of(spec).form(name)


def check_framework(architecture: Architecture, config: Config) -> None:
    """Refuse a framework, or an engine with layers of its own, without a form; and its compiler."""
    framework, engine = config.training.framework, config.training.engine
    architecture.check_form(framework, "training.framework", TRAINING_FRAMEWORKS)
    if not has_form_of_engine(architecture, engine):
        raise InputError(
            "training.engine",
            f"architecture {architecture.spec.kind} has no implementation in {engine}",
            "Set it to torch",
        )
    if config.training.compile and not architecture.compiles:
        raise InputError(
            "training.compile",
            f"architecture {architecture.spec.kind} has no parts to compile",
            "Set it to false",
        )


def has_form_of_engine(architecture: Architecture, engine: str) -> bool:
    """Return whether an architecture has an engine's form, if the engine needs its own."""
    return engine not in ENGINES_WITH_FORMS or engine in architecture.forms
