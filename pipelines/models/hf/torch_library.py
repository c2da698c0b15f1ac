"""Models of the library `transformers`: built without memory for their weights, read and written.

Code from a checkpoint's folder is never run.
"""

from __future__ import annotations

import json
import logging
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
from pipelines.models.checkpoint_files import checkpoint_shapes
from pipelines.models.hf.spec import HfSpec, config_text
from pipelines.models.model_config import (
    check_implementations,
    check_layers,
    check_numbers,
    check_positions,
    check_size,
)
from pipelines.models.sentence_modules import WHOLE_COPY, refusal, refuse
from pipelines.models.torch_pickle import NOT_WEIGHTS_ALONE
from pipelines.models.weights import WORDS, Weights

logger = logging.getLogger(__name__)

_UNBOUNDED = -1
"""Of XLNet's positions."""
UNUSED = "pooler."
"""What begins the names of weights that no hidden state depends on."""


class Shape(NamedTuple):
    """What other parts must know of a model.

    Attributes:
        vocabulary: Rows of the word embedding.
        hidden: Width of the hidden states.
        pad_token_id: Fills short texts.
        positions: Tokens that it knows places for; None if there is no bound.
        dropout: The largest share that it drops anywhere in training.
    """

    vocabulary: int
    hidden: int
    pad_token_id: int
    positions: int | None
    dropout: float


def read_shape(folder: Path, config: Mapping[str, Any]) -> Shape:
    """What config.json tells.

    Raises:
        InputError: With the key ``encoder.start``: it is of no text encoder or decoder that the
            library knows.
    """
    found = _config(folder, config)
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
    """Tokens that a model knows places for; None if there is no bound."""
    positions = getattr(config, "max_position_embeddings", None)
    return positions if isinstance(positions, int) and positions > 0 else None


def _config(folder: Path, config: Mapping[str, Any]) -> Any:
    model_type = config.get("model_type")
    if model_type not in CONFIG_MAPPING:
        own = " but by code in its folder, which is never run" if "auto_map" in config else ""
        version = transformers.__version__
        refuse(folder, f"has `model_type: {model_type}`, unknown to transformers {version}{own}")
    check_implementations(folder, config)
    check_numbers(folder, config)
    try:
        found = config_of(config_text(config))
    except Exception as error:
        # Each type has errors of its own for what it does not like.
        told = f"has a config.json that is refused: {_line(error)}"
        raise refusal(folder, told, WHOLE_COPY) from error
    if type(found) not in MODEL_MAPPING:
        refuse(folder, f"has `model_type: {model_type}`, which transformers has no AutoModel for")
    if getattr(found, "is_encoder_decoder", False):
        refuse(folder, f"has `model_type: {model_type}`, an encoder with a decoder")
    if config.get("quantization_config"):
        refuse(folder, "is quantised: its weights cannot be trained")
    _check_sizes(folder, found.get_text_config())
    return found


def _check_sizes(folder: Path, config: Any) -> None:
    """Refuse sizes that the weights in a folder do not have, before a model of them is built.

    Raises:
        InputError: With the key ``encoder.start``.
    """
    shapes = checkpoint_shapes(folder)
    for key in ("hidden_size", "vocab_size", "num_attention_heads"):
        check_size(folder, key, getattr(config, key, 1))
    check_layers(folder, "num_hidden_layers", getattr(config, "num_hidden_layers", 1), shapes)
    if (positions := getattr(config, "max_position_embeddings", None)) not in (None, _UNBOUNDED):
        check_size(folder, "max_position_embeddings", positions)
    check_positions(folder, _positions(config), shapes)


def config_of(text: str) -> Any:
    """The library's configuration of a config.json."""
    config = json.loads(text)
    return CONFIG_MAPPING[config["model_type"]].from_dict(config)


def empty_model(text: str, dropout: float | None = 0.0) -> Any:
    """A model whose parameters have no memory and whose buffers have.

    Args:
        text: A config.json.
        dropout: Share that is dropped wherever the model drops anything; None: its own.
    """
    config = config_of(text)
    config.use_cache = False
    if dropout is not None:
        for key in _dropouts(config):
            # Dropping whole layers is no dropout of activations.
            setattr(config, key, 0.0 if "layer" in key else dropout)
    with init_empty_weights(include_buffers=False):
        return AutoModel.from_config(config, trust_remote_code=False)


def _dropouts(config: Any) -> dict[str, float]:
    """The shares that a configuration says are dropped, by its keys."""
    return {
        key: value
        for key, value in config.to_dict().items()
        if "drop" in key and isinstance(value, float | int) and not isinstance(value, bool)
    }


_SEE_ALL = frozenset({"bert-generation", "cpmant", "xlnet"})
"""Of the types that the library has as causal models alone, those whose tokens see later ones."""


def is_decoder(text: str) -> bool:
    """Whether each token sees those before it alone.

    Args:
        text: A config.json.
    """
    config = config_of(text)
    kind, own = type(config), config.get_text_config()
    # The library has encoders as language models too, if they are told that they are decoders.
    is_causal = kind in MODEL_FOR_CAUSAL_LM_MAPPING and kind not in MODEL_FOR_MASKED_LM_MAPPING
    sees_all = (
        config.model_type in _SEE_ALL
        or getattr(own, "use_bidirectional_attention", False)
        or getattr(own, "is_causal", None) is False
    )
    return is_causal and not sees_all


def own_names(model: Any) -> dict[str, str]:
    """The model's names of the weights that embeddings depend on, by canonical names.

    They are the same but for the word embedding, which comes first.
    """
    names = [name for name, _ in model.named_parameters() if not name.startswith(UNUSED)]
    inputs = model.get_input_embeddings()
    words = next(f"{name}.weight" for name, module in model.named_modules() if module is inputs)
    return {WORDS: words} | {name: name for name in names if name != words}


def weight_shapes(text: str) -> Shapes:
    """Shapes by canonical names."""
    model = empty_model(text)
    shapes = {name: tuple(value.shape) for name, value in model.named_parameters()}
    return {canonical: shapes[name] for canonical, name in own_names(model).items()}


def read_weights(folder: Path, spec: HfSpec) -> Weights:
    """The weights under canonical names, as the library loads them.

    Raises:
        InputError: With the key ``encoder.start``: some are missing, or of another shape.
    """
    if not any(folder.glob("*.safetensors")):
        logger.warning("%s has no safetensors: it is read by torch.load(weights_only=True)", folder)
    try:
        model, told = _loaded(folder, spec)
    except Exception as error:
        # Nothing narrower is promised by the library, or by those that it reads files with.
        problem = f"cannot be read by transformers: {_line(error)}"
        if isinstance(error, UnpicklingError) or "weights_only" in problem:
            # The advice of that message is to run what the pickle holds.
            problem = f"has a pickle that {NOT_WEIGHTS_ALONE}"
        raise refusal(folder, problem, WHOLE_COPY) from error
    missing = sorted(name for name in told["missing_keys"] if not name.startswith(UNUSED))
    if missing:
        problem = f"does not fit its config.json: the weight {missing[0]} is missing"
        refuse(folder, problem, WHOLE_COPY)
    own = {name: value.detach().numpy() for name, value in model.named_parameters()}
    for name, value in model.state_dict().items():
        if name not in own and value.is_floating_point():
            refuse(folder, f"keeps {name} beside its weights, which would be lost")
    return {canonical: own[name] for canonical, name in own_names(model).items()}


def write_weights(folder: Path, spec: HfSpec, weights: Mapping[str, np.ndarray]) -> str:
    """Writes the weights as the library names them in files; returns the class of the model.

    What no embedding depends on is written as zeros, since the library would miss it.
    """
    model = empty_model(spec.config)
    names = own_names(model)
    state = {names[name]: torch.from_numpy(weights[name]) for name in names}
    for name, value in model.named_parameters():
        if name not in state:
            state[name] = torch.zeros(value.shape)
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
    """Keeps the library's bars and reports to itself."""
    bars, level = library_logging.is_progress_bar_enabled(), library_logging.get_verbosity()
    library_logging.disable_progress_bar()
    library_logging.set_verbosity_error()
    try:
        yield
    finally:
        library_logging.set_verbosity(level)
        if bars:
            library_logging.enable_progress_bar()
