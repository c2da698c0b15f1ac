"""Read the configuration files beside a model's weights: each key is honoured or refused.

sentence-transformers acts on these keys, so each may change vectors. Every file has a table of the
keys that are known, and of the values that they may have here. A key that is read elsewhere in this
package may have any value, as may one that no vector depends on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pipelines.errors import InputError
from pipelines.files import records

KEY = "encoder.start"
TRANSFORMER = "Transformer"
"""The class of the first module of most models."""
LENGTH_FILE = "sentence_bert_config.json"
"""Of the transformer in a sentence-transformers folder."""
LENGTH_FILES = (
    LENGTH_FILE,
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
)
"""Its names since release 0.3, in the order of the library: it reads the first that has content."""
ADAPTER_FILE = "adapter_config.json"
TOKENIZER_ARGUMENTS = ("tokenizer_args", "tokenizer_kwargs", "processor_kwargs")
"""What the first module hands to its tokenizer, by the names of several releases."""

_SHOWN = 60
"""Characters of a value in a message."""

Check = Callable[[Any], bool]
Known = Mapping[str, Check]


def anything(value: Any) -> bool:
    """Accept a value that is read elsewhere, or that no vector depends on."""
    return True


def one_of(*values: Any) -> Check:
    """Accept these values, and null."""
    return lambda value: (
        value is None or any(value == known and type(value) is type(known) for known in values)
    )


def nothing(value: Any) -> bool:
    """Accept null, and a list or a mapping without entries."""
    return value is None or value in ([], {})


def flag(value: Any) -> bool:
    """Accept true, false and null."""
    return value is None or isinstance(value, bool)


def length(value: Any) -> bool:
    """Accept a number of tokens; some libraries write huge ones as floats."""
    if value is None:
        return True
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number of tokens")
    return value >= 1


def text(value: Any) -> bool:
    """Accept a string, and null."""
    return value is None or isinstance(value, str)


ATTENTIONS = (
    "eager",
    "sdpa",
    "flash_attention_2",
    "flash_attention_3",
    "flash_attention_4",
    "flex_attention",
)
"""Implementations that `transformers` carries itself; other names are of kernels to download."""
_COMPUTING: Known = {
    "add_pooling_layer": anything,  # of a layer behind the embeddings
    "attn_implementation": one_of(*ATTENTIONS),
    "device_map": anything,
    "dtype": anything,
    "low_cpu_mem_usage": anything,
    "torch_dtype": anything,
    "trust_remote_code": anything,  # the library takes it out: folders cannot set it
    "use_cache": anything,
    "use_safetensors": anything,
}
"""Arguments of a model that say how it is computed, and not what."""
_TEXT_ALONE = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}


def _computing(value: Any) -> bool:
    return value is None or (
        isinstance(value, Mapping)
        and all(key in _COMPUTING and _COMPUTING[key](said) for key, said in value.items())
    )


def _mapping(value: Any) -> bool:
    return value is None or isinstance(value, Mapping)


LENGTH_KEYS: Known = {
    "max_seq_length": length,
    "do_lower_case": flag,
    **dict.fromkeys(TOKENIZER_ARGUMENTS, _mapping),
    **dict.fromkeys(("model_args", "model_kwargs", "config_args", "config_kwargs"), _computing),
    "transformer_task": one_of("feature-extraction"),
    "modality_config": one_of(_TEXT_ALONE),
    "module_output_name": one_of("token_embeddings"),
    "processing_kwargs": nothing,
    "unpad_inputs": flag,
    "query_length": nothing,
    "document_length": nothing,
    "query_expansion": nothing,
    "tokenizer_name_or_path": nothing,
}
PROMPT_KEYS: Known = {
    "__version__": anything,
    "requirements": anything,
    "model_type": one_of("SentenceTransformer"),
    "prompts": anything,
    "default_prompt_name": anything,
    "similarity_fn_name": one_of("cosine", "dot", "euclidean", "manhattan"),
    "truncate_dim": nothing,
}
MODULE_KEYS: Known = {
    "idx": anything,
    "name": anything,
    "path": text,
    "type": text,
    "kwargs": nothing,
}
POOLING_KEYS: Known = {
    "word_embedding_dimension": anything,
    "embedding_dimension": anything,
    "pooling_mode": anything,
    "pooling_mode_cls_token": flag,
    "pooling_mode_mean_tokens": flag,
    "pooling_mode_max_tokens": flag,
    "pooling_mode_mean_sqrt_len_tokens": flag,
    "pooling_mode_weightedmean_tokens": flag,
    "pooling_mode_lasttoken": flag,
    "include_prompt": one_of(True),
}
DENSE_KEYS: Known = {
    "in_features": anything,
    "out_features": anything,
    "bias": flag,
    "activation_function": text,
    "module_input_name": one_of("sentence_embedding"),
    "module_output_name": one_of("sentence_embedding"),
    "use_residual": one_of(False),
}
NORMALIZE_KEYS: Known = {
    "module_input_name": one_of("sentence_embedding"),
    "module_output_name": one_of("sentence_embedding"),
}


def check_keys(path: Path, values: Mapping[str, Any], known: Known, key: str = KEY) -> None:
    """Refuse what a file sets and this package does not do.

    Args:
        path: Of the file.
        values: In it.
        known: Its keys, and what their values may be.
        key: The setting that names the model.

    Raises:
        InputError: With the setting.
        TypeError: A value is of another type than its key takes.
    """
    for name, value in values.items():
        if name not in known:
            raise InputError(
                key,
                f"{path} sets `{name}`, which is not known here and may change embeddings",
                "remove that key if no embedding depends on it, or name another model",
            )
        try:
            fits = known[name](value)
        except TypeError as error:
            raise TypeError(f"{name} in {path.name}: {error}") from None
        if not fits:
            raise InputError(
                key,
                f"{path} sets `{name}` to {_shown(value)}, which is not supported here",
                "remove that key if embeddings are right without it, or name another model",
            )


def read_known(path: Path, known: Known, key: str = KEY) -> dict[str, Any]:
    """Read a file whose keys are all known; an empty mapping if there is no such file.

    Raises:
        InputError: See :func:`check_keys`.
        DamagedFileError: It holds no mapping.
    """
    values = records.read_object(path) if path.is_file() else {}
    check_keys(path, values, known, key)
    return values


def read_length_file(home: Path, key: str = KEY) -> dict[str, Any]:
    """Read what the library keeps beside a transformer under one of :data:`LENGTH_FILES`.

    Raises:
        InputError: See :func:`check_keys`.
        DamagedFileError: It holds no mapping.
    """
    for name in LENGTH_FILES:
        if values := read_known(home / name, LENGTH_KEYS, key):
            return values
    return {}


def tokenizer_arguments(home: Path, key: str = KEY) -> dict[str, Any]:
    """Return the options of a tokenizer that stand in the file of its transformer."""
    values = read_length_file(home, key)
    told = (values.get(name) or {} for name in TOKENIZER_ARGUMENTS)
    found = {name: value for options in told for name, value in options.items()}
    found.pop("trust_remote_code", None)
    return found


def _shown(value: Any) -> str:
    told = " ".join(records.to_text(value).split())
    if len(told) > _SHOWN and isinstance(value, Mapping):
        told = f"a mapping of {', '.join(value)}"
    return told if len(told) <= _SHOWN else f"{told[:_SHOWN]}…"
