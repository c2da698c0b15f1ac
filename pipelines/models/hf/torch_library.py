"""Models of the library `transformers`: built without memory, read, written and divided.

Code from a checkpoint's folder is never run. The library's tensor parallel plans divide the models.
By module path, a plan divides a linear layer by rows (``colwise``: its output is divided) or by
columns (``rowwise``: its input is divided). It also names weights with a gradient in parts, one a
member. A member's model is the library's with a part of each matrix: attention derives
its number of heads from its input.

Source: ``base_model_tp_plan`` of the library's configurations, and "Megatron-LM", see
:mod:`pipelines.models.frameworks.torch_division`.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from accelerate import init_empty_weights
from transformers import AutoModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    MODEL_MAPPING,
)
from transformers.utils import logging as library_logging

from pipelines.models.architecture import Shapes
from pipelines.models.checkpoint_files import NOT_WEIGHTS_ALONE, checkpoint_shapes
from pipelines.models.frameworks.torch import summed_linear
from pipelines.models.frameworks.torch_division import Members
from pipelines.models.hf.architecture import HfSpec, config_text
from pipelines.models.sentence_modules import (
    WHOLE_COPY,
    check_implementations,
    check_layers,
    check_numbers,
    check_positions,
    check_size,
    refusal,
    refuse,
)
from pipelines.models.weights import WORDS, Weights, part_shape

logger = logging.getLogger(__name__)

_UNBOUNDED = -1
"""XLNet's number of positions, which has no bound."""
UNUSED = "pooler."
"""The prefix of weights that no hidden state depends on."""


class Shape(NamedTuple):
    """The facts about a model for other modules.

    The vocabulary is the number of word embeddings, hidden the width of the states. Positions are
    None without a bound. Dropout is the largest share in training.
    """

    vocabulary: int
    hidden: int
    pad_token_id: int
    positions: int | None
    dropout: float


def read_shape(folder: Path, config: Mapping[str, Any]) -> Shape:
    """Return the shape of the model of a config.json.

    Raises:
        InputError: With the key ``encoder.start``: the library knows no such text model.
    """
    found = _config(folder, config)
    # Models of texts and images have the sizes of their text model here.
    text = found.get_text_config()
    pad = getattr(text, "pad_token_id", None)
    return Shape(
        vocabulary=text.vocab_size,
        hidden=text.hidden_size,
        pad_token_id=pad if isinstance(pad, int) and pad >= 0 else 0,
        positions=_positions(text),
        dropout=max(_dropouts(found).values(), default=0.0),
    )


def _positions(config: Any) -> int | None:
    """Return the number of positions of a model; None without a bound."""
    positions = getattr(config, "max_position_embeddings", None)
    return positions if isinstance(positions, int) and positions > 0 else None


def _config(folder: Path, config: Mapping[str, Any]) -> Any:
    model_type = config.get("model_type")
    if model_type not in CONFIG_MAPPING:
        code = "; sentence-pipelines never runs a folder's code" if "auto_map" in config else ""
        version = transformers.__version__
        refuse(folder, f"has `model_type: {model_type}`, unknown to transformers {version}{code}")
    check_implementations(folder, config)
    check_numbers(folder, config)
    try:
        found = config_of(config_text(config))
    except Exception as error:
        # Each type has errors of its own for what it does not like.
        problem = f"has a config.json that transformers refuses: {_line(error)}"
        raise refusal(folder, problem, WHOLE_COPY) from error
    if type(found) not in MODEL_MAPPING:
        refuse(folder, f"has `model_type: {model_type}`, which has no AutoModel in transformers")
    if getattr(found, "is_encoder_decoder", False):
        refuse(folder, f"has `model_type: {model_type}`, an encoder with a decoder")
    if config.get("quantization_config"):
        refuse(folder, "has quantised weights, which training cannot change")
    _check_sizes(folder, found.get_text_config())
    return found


def _check_sizes(folder: Path, config: Any) -> None:
    """Refuse sizes beyond a folder's weights, before a model is built."""
    shapes = checkpoint_shapes(folder)
    for key in ("hidden_size", "vocab_size", "num_attention_heads"):
        check_size(folder, key, getattr(config, key, 1))
    check_layers(folder, "num_hidden_layers", getattr(config, "num_hidden_layers", 1), shapes)
    if (positions := getattr(config, "max_position_embeddings", None)) not in (None, _UNBOUNDED):
        check_size(folder, "max_position_embeddings", positions)
    check_positions(folder, _positions(config), shapes)


def config_of(text: str) -> Any:
    """Return the library's configuration of a config.json."""
    config = json.loads(text)
    return CONFIG_MAPPING[config["model_type"]].from_dict(config)


def empty_model(text: str, dropout: float | None = 0.0) -> Any:
    """Return a model of a config.json, with memory for its buffers but not for its parameters.

    The share of dropout applies wherever the model drops anything; None keeps its own.
    """
    config = config_of(text)
    # An encoder reads a text once, and needs no cache of keys and values.
    config.use_cache = False
    if dropout is not None:
        for key in _dropouts(config):
            # Dropping whole layers is no dropout of activations.
            setattr(config, key, 0.0 if "layer" in key else dropout)
    # Buffers need memory: the library computes their values when it builds a model.
    with init_empty_weights(include_buffers=False):
        return AutoModel.from_config(config, trust_remote_code=False)


def _dropouts(config: Any) -> dict[str, float]:
    """Return the shares of dropout in a configuration, by its keys."""
    return {
        key: value
        for key, value in config.to_dict().items()
        if "drop" in key and isinstance(value, float | int) and not isinstance(value, bool)
    }


_SEE_ALL = frozenset({"bert-generation", "cpmant", "xlnet"})
"""Types that the library has only as causal models, whose tokens see later ones nonetheless."""


def is_decoder(text: str) -> bool:
    """Return whether each token of the model of a config.json sees only earlier ones."""
    config = config_of(text)
    kind, text_config = type(config), config.get_text_config()
    # The library has encoders as causal language models too, by a setting of their config.json.
    is_causal = kind in MODEL_FOR_CAUSAL_LM_MAPPING and kind not in MODEL_FOR_MASKED_LM_MAPPING
    sees_all = (
        config.model_type in _SEE_ALL
        or getattr(text_config, "use_bidirectional_attention", False)
        or getattr(text_config, "is_causal", None) is False
    )
    return is_causal and not sees_all


def own_names(model: Any) -> dict[str, str]:
    """Return the model's names of the weights behind embeddings, by canonical names.

    Only the word embedding, which comes first, has another name.
    """
    names = [name for name, _ in model.named_parameters() if not name.startswith(UNUSED)]
    inputs = model.get_input_embeddings()
    words = next(f"{name}.weight" for name, module in model.named_modules() if module is inputs)
    return {WORDS: words} | {name: name for name in names if name != words}


def weight_shapes(text: str) -> Shapes:
    """Return shapes by canonical names."""
    model = empty_model(text)
    shapes = {name: tuple(value.shape) for name, value in model.named_parameters()}
    return {canonical: shapes[name] for canonical, name in own_names(model).items()}


def read_weights(folder: Path, spec: HfSpec) -> Weights:
    """Return the weights under canonical names, as the library loads them.

    Raises:
        InputError: With the key ``encoder.start``: weights are missing, or of another shape.
    """
    if not any(folder.glob("*.safetensors")):
        logger.warning("%s has no safetensors, so torch.load(weights_only=True) reads it", folder)
    try:
        model, loading = _loaded(folder, spec)
    except Exception as error:
        # Neither the library nor its readers of files promise a narrower error.
        problem = f"cannot be read by transformers: {_line(error)}"
        if isinstance(error, UnpicklingError) or "weights_only" in problem:
            # The advice of that message is to run what the pickle holds.
            problem = f"has a pickle that {NOT_WEIGHTS_ALONE}"
        raise refusal(folder, problem, WHOLE_COPY) from error
    missing = sorted(name for name in loading["missing_keys"] if not name.startswith(UNUSED))
    if missing:
        problem = f"does not fit its config.json: the weight {missing[0]} is missing"
        refuse(folder, problem, WHOLE_COPY)
    arrays = {name: value.detach().numpy() for name, value in model.named_parameters()}
    for name, value in model.state_dict().items():
        if name not in arrays and value.is_floating_point():
            refuse(folder, f"keeps {name} beside its weights, and a trained model would lose it")
    return {canonical: arrays[name] for canonical, name in own_names(model).items()}


def write_weights(folder: Path, spec: HfSpec, weights: Mapping[str, np.ndarray]) -> str:
    """Write the weights under the library's names; return the class of the model.

    Weights unused by embeddings become zeros: the library would miss them.
    """
    model = empty_model(spec.config)
    names = own_names(model)
    state = {names[name]: torch.from_numpy(weights[name]) for name in names}
    for name, value in model.named_parameters():
        if name not in state:
            state[name] = torch.zeros(value.shape)
    # Not strict: the state has no buffers.
    model.load_state_dict(state, strict=False, assign=True)
    with _quiet():
        model.save_pretrained(folder)
    return type(model).__name__


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def _loaded(folder: Path, spec: HfSpec) -> tuple[Any, Mapping[str, Any]]:
    with _quiet():
        loaded: tuple[Any, Mapping[str, Any]] = AutoModel.from_pretrained(
            folder,
            config=config_of(spec.config),
            dtype=torch.float32,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    return loaded


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the library's progress bars and reports."""
    bars, level = library_logging.is_progress_bar_enabled(), library_logging.get_verbosity()
    library_logging.disable_progress_bar()
    library_logging.set_verbosity_error()
    try:
        yield
    finally:
        library_logging.set_verbosity(level)
        if bars:
            library_logging.enable_progress_bar()


BY_ROWS, BY_COLUMNS = "colwise", "rowwise"
"""The library's names of divisions, which speak of the transposed matrix."""
GRADIENT_IN_PARTS = "replicated_with_grad_allreduce"
_STYLES = frozenset({BY_ROWS, BY_COLUMNS, GRADIENT_IN_PARTS})
_NUMBER = re.compile(r"\.\d+\.")

DIVIDED_TYPES = (
    *("arcee", "cohere", "cohere2", "cwm", "ernie4_5", "eurobert", "exaone4", "gemma", "gemma2"),
    *("gemma3_text", "gpt_neox", "granite", "helium", "hyperclovax", "internlm3", "iquestcoder"),
    *("jais2", "llama", "ministral", "ministral3", "mistral", "nanochat", "nemotron", "olmo"),
    *("phi", "qwen2", "qwen3", "seed_oss", "smollm3", "starcoder2", "ultrabert", "vaultgemma"),
)
"""Types whose divided gradients were compared with the whole model's. The plan alone does not tell:
some types compute across numbers that members have parts of."""


def why_undivided(text: str) -> str | None:
    """Return why the model of a config.json cannot be divided; None if it can."""
    config = config_of(text)
    plan = getattr(config, "base_model_tp_plan", None) or {}
    kind = f"`model_type: {config.model_type}`"
    if not plan:
        return f"transformers has no tensor-parallel plan for {kind}"
    if config.model_type not in DIVIDED_TYPES:
        return f"{kind} is none of the divisible types: {', '.join(DIVIDED_TYPES)}"
    model = empty_model(text)
    styles = _styles(config, model)
    if {*plan} != {_generic(path) for path in styles} or {*styles.values()} - _STYLES:
        return f"this release of transformers has another tensor-parallel plan for {kind}"
    if any(name.startswith(UNUSED) for name, _ in model.named_parameters()):
        return f"{kind} has weights that no embedding depends on"
    if beside := sorted(_beside(model, styles)):
        return f"{kind} has {beside[0]} beside its divided matrices"
    return None


def division_axes(text: str) -> dict[str, int]:
    """Return the axis of each divided weight, by canonical name."""
    model = empty_model(text)
    return _axes(model, _styles(config_of(text), model))


def _axes(model: Any, styles: Mapping[str, str]) -> dict[str, int]:
    axes = {}
    for canonical, name in own_names(model).items():
        path, _, leaf = name.rpartition(".")
        style = styles.get(path)
        if model.get_submodule(path) is _divided_words(model) or style == BY_ROWS:
            axes[canonical] = 0
        elif style == BY_COLUMNS and leaf == "weight":
            axes[canonical] = 1
    return axes


def divided_numbers(text: str) -> dict[str, int]:
    """Return the numbers for members to share evenly, by name."""
    config = config_of(text).get_text_config()
    heads = config.num_attention_heads
    return {
        "attention heads": heads,
        "heads of keys and values": getattr(config, "num_key_value_heads", None) or heads,
        "numbers of the wide layer": config.intermediate_size,
    }


def divide(model: Any, text: str, members: Members) -> None:
    """Reduce a model of :func:`empty_model` to one member's, with a part of each matrix."""
    styles, names = _styles(config_of(text), model), own_names(model)
    axes = {names[canonical]: axis for canonical, axis in _axes(model, styles).items()}
    words = _divided_words(model)
    for path, style in styles.items():
        module = model.get_submodule(path)
        if style == BY_COLUMNS:
            module.__class__, module.members = _ColumnsLinear, members
        elif style == GRADIENT_IN_PARTS:
            kind = type(module)
            module.__class__ = type(kind.__name__, (_EnteredWeights, kind), {})
            module.members = members
    for path in _blocks(styles):
        enter = _Enter(members)
        model.get_submodule(path).register_forward_pre_hook(enter, with_kwargs=True)
    if words is not None:
        words.__class__, words.members = _DividedWords, members
    for name, parameter in list(model.named_parameters()):
        shape = part_shape(parameter.shape, axes.get(name), members.size, members.member)
        owner, _, leaf = name.rpartition(".")
        part = torch.nn.Parameter(torch.empty(shape, device="meta"))
        model.get_submodule(owner).register_parameter(leaf, part)


class _Enter:
    """A hook of a block of divided layers: it passes states to the members' joint computation.

    One exchange serves the whole block: the gradients of its layers are added up first.
    """

    def __init__(self, members: Members) -> None:
        self._members = members

    def __call__(
        self, module: torch.nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        # The library's types pass states by place or by name.
        if inputs:
            return (self._members.enter(inputs[0]), *inputs[1:]), named
        return inputs, named | {"hidden_states": self._members.enter(named["hidden_states"])}


class _ColumnsLinear(torch.nn.Linear):  # type: ignore[misc]
    """A layer with some columns of the matrix on each member."""

    members: Members

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return the product, the same on all members."""
        return summed_linear(self.members, states, self.weight, self.bias)


class _DividedWords(torch.nn.Embedding):  # type: ignore[misc]
    """The word embedding, with some rows on each member."""

    members: Members

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the words' vectors, the same on all members."""
        found = self.members.look_up(
            self.weight,
            ids.flatten(),
            self.num_embeddings,
            sparse=self.sparse,
            padding=self.padding_idx,
        )
        return found.view(*ids.shape, -1)


class _EnteredWeights:
    """A layer that each member holds whole, and applies only to its part of the states."""

    members: Members
    _parameters: dict[str, torch.Tensor | None]

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Run the layer with weights whose gradient is the sum of the members'."""
        before = dict(self._parameters)
        try:
            for name, weight in before.items():
                if weight is not None:
                    self._parameters[name] = self.members.enter(weight)
            return super().forward(*inputs, **named)  # type: ignore[misc]
        finally:
            # Libraries that split parameters look for their own after the layer has computed.
            self._parameters.update(before)


def _styles(config: Any, model: Any) -> dict[str, str]:
    """Return the plan's entries by the paths of modules."""
    plan: Mapping[str, str] = getattr(config, "base_model_tp_plan", None) or {}
    paths = (path for path, _ in model.named_modules())
    return {path: plan[_generic(path)] for path in paths if _generic(path) in plan}


def _generic(path: str) -> str:
    """Return a path in the notation of plans, for all layers."""
    return _NUMBER.sub(".*.", path)


def _blocks(styles: Mapping[str, str]) -> list[str]:
    """Return the paths of blocks whose layers take whole states and give parts."""
    of_rows = (path.rpartition(".")[0] for path, style in styles.items() if style == BY_ROWS)
    return list(dict.fromkeys(of_rows))


def _beside(model: Any, styles: Mapping[str, str]) -> set[str]:
    """Return the layers of the blocks with weights but without an entry in the plan."""
    return {
        f"{path}.{inner}"
        for path in _blocks(styles)
        for inner, module in model.get_submodule(path).named_modules()
        if [*module.parameters(recurse=False)] and f"{path}.{inner}".rstrip(".") not in styles
    }


def _divided_words(model: Any) -> torch.nn.Embedding | None:
    """Return the word embedding if it is PyTorch's class; each member holds any other whole."""
    words = model.get_input_embeddings()
    return words if type(words) is torch.nn.Embedding else None
