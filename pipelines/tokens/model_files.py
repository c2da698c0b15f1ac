"""The configuration files of a model and its tokenizer: each key is honoured or refused.

sentence-transformers acts on the keys beside a model's weights, so each may change vectors. A table
per file lists the known keys and their allowed values. Keys without effect on vectors, and keys for
another module, may have any value.

`transformers` rebuilds some tokenizers from the vocabulary and the options of
tokenizer_config.json, whatever tokenizer.json says of letters and accents. It also adds the tokens
of other files. This module does the same where it can. It refuses the rest, and names the command
for one complete file.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

from tokenizers import AddedToken, Tokenizer, normalizers

from pipelines.errors import InputError
from pipelines.files import records

logger = logging.getLogger(__name__)

KEY = "encoder.start"
TRANSFORMER = "Transformer"
"""The class of the first module of most models."""
LENGTH_FILE = "sentence_bert_config.json"
"""The transformer's own file in a sentence-transformers folder."""
LENGTH_FILES = (
    LENGTH_FILE,
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
)
"""Its names since release 0.3, in the library's order: it reads the first that has content."""
ADAPTER_FILE = "adapter_config.json"
TOKENIZER_ARGUMENTS = ("tokenizer_args", "tokenizer_kwargs", "processor_kwargs")
"""What the first module hands to its tokenizer; the name changed between releases."""

_SHOWN = 60
"""Longest value that a message shows, in characters."""

Check = Callable[[Any], bool]
Known = Mapping[str, Check]


def anything(value: Any) -> bool:
    """Accept any value, for a key of another module or one without effect on vectors."""
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
        raise TypeError(f"{value!r} is not a number of tokens")
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
"""Implementations inside `transformers`; other names are kernels to download."""
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
"""Arguments that change how a model is computed, not its results."""
_TEXT_ALONE = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}


def _computing(value: Any) -> bool:
    return value is None or (
        isinstance(value, Mapping)
        and all(key in _COMPUTING and _COMPUTING[key](option) for key, option in value.items())
    )


LENGTH_KEYS: Known = {
    "max_seq_length": length,
    "do_lower_case": flag,
    **dict.fromkeys(TOKENIZER_ARGUMENTS, lambda value: value is None or isinstance(value, Mapping)),
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
    """Refuse the unsupported keys and values of a file.

    Raises:
        InputError: Names the setting.
        TypeError: A value has another type than its key takes.
    """
    for name, value in values.items():
        if name not in known:
            raise InputError(
                key,
                f"{path} sets the unknown key `{name}`, which may change embeddings",
                "Remove that key if no embedding depends on it, or name another model",
            )
        try:
            fits = known[name](value)
        except TypeError as error:
            raise TypeError(f"{name} in {path.name}: {error}") from None
        if not fits:
            raise InputError(
                key,
                f"{path} sets `{name}` to {_shown(value)}, which is not supported",
                "Remove that key if embeddings are right without it, or name another model",
            )


def read_known(path: Path, known: Known, key: str = KEY) -> dict[str, Any]:
    """Read a file of known keys; return an empty mapping if it does not exist.

    Raises:
        InputError: See :func:`check_keys`.
        DamagedFileError: The file holds no mapping.
    """
    values = records.read_object(path) if path.is_file() else {}
    check_keys(path, values, known, key)
    return values


def read_length_file(home: Path, key: str = KEY) -> dict[str, Any]:
    """Read the library's file beside a transformer, under one of :data:`LENGTH_FILES`.

    Raises:
        InputError: See :func:`check_keys`.
        DamagedFileError: The file holds no mapping.
    """
    for name in LENGTH_FILES:
        if values := read_known(home / name, LENGTH_KEYS, key):
            return values
    return {}


def tokenizer_arguments(home: Path, key: str = KEY) -> dict[str, Any]:
    """Return the tokenizer options in the file of its transformer."""
    values = read_length_file(home, key)
    arguments = (values.get(name) or {} for name in TOKENIZER_ARGUMENTS)
    found = {name: value for options in arguments for name, value in options.items()}
    # The library takes it out too: folders cannot set it.
    found.pop("trust_remote_code", None)
    return found


def _shown(value: Any) -> str:
    shown = " ".join(records.to_text(value).split())
    if len(shown) > _SHOWN and isinstance(value, Mapping):
        shown = f"a mapping of {', '.join(value)}"
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"


TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
SPECIAL_TOKENS_FILE = "special_tokens_map.json"
ADDED_TOKENS_FILE = "added_tokens.json"
VOCABULARY_FILE = "vocab.txt"
MODEL_FILE = "config.json"

PLAIN_CLASS = "PreTrainedTokenizerFast"
"""The class without changes to tokenizer.json."""
_END_OPTIONS = ("add_bos_token", "add_eos_token")
_WORD_PIECES = (
    *("Bert", "DistilBert", "Electra", "MPNet", "MobileBert", "ConvBert", "SqueezeBert", "Funnel"),
    *("LayoutLM", "Lxmert", "Splinter", "RetriBert", "DPRQuestionEncoder", "DPRContextEncoder"),
)
"""Classes with BERT's normaliser, rebuilt from their options."""
_OTHER_ENDS = ("MPNet", "Funnel", "Splinter")
"""Those of them with other tokens around a text than BERT's."""
_BYTE_PAIRS = ("Roberta", "GPT2", "Longformer", "Bart")
_SENTENCE_PIECES = ("XLMRoberta", "Camembert")
_REBUILT = (*_WORD_PIECES, *_BYTE_PAIRS, *_SENTENCE_PIECES)
_STEPS: Mapping[str, Mapping[str, bool]] = {
    "Albert": {"Lowercase": True, "StripAccents": True},
    "RemBert": {"Lowercase": False, "StripAccents": False},
    "XLNet": {"Lowercase": False},
    "DebertaV2": {"Lowercase": False},
}
"""Optional normaliser steps of further classes, with the default of each."""
_CLASSES = {
    "bert": "Bert",
    "distilbert": "DistilBert",
    "electra": "Electra",
    "mpnet": "MPNet",
    "roberta": "Roberta",
    "xlm-roberta": "XLMRoberta",
    "camembert": "Camembert",
    "albert": "Albert",
    "rembert": "RemBert",
    "xlnet": "XLNet",
    "deberta-v2": "DebertaV2",
}
"""By model type, for a tokenizer without a named class."""
_LETTERS = ("do_lower_case", "strip_accents", "tokenize_chinese_chars")
_NAMED = "_token"
"""Suffix of the options for special tokens."""
_MORE_TOKENS = ("additional_special_tokens", "extra_special_tokens")
_FLAGS = ("lstrip", "rstrip", "single_word")

_KNOWN: Known = {
    **dict.fromkeys(_LETTERS, flag),
    "tokenizer_class": text,
    "model_max_length": length,
    "max_len": length,
    "truncation_side": one_of("right"),
    "clean_text": one_of(True),
    "do_basic_tokenize": one_of(True),
    "split_special_tokens": one_of(False),
    "fix_mistral_regex": one_of(False),
    "never_split": nothing,
    "split_by_punct": one_of(False),
    "vocab_type": one_of("spm"),
    "wordpieces_prefix": one_of("##"),
    "sp_model_kwargs": nothing,
    "add_prefix_space": flag,
    "add_bos_token": flag,
    "add_eos_token": flag,
    "keep_accents": flag,
    "model_input_names": lambda value: value is None or "attention_mask" in value,
    **dict.fromkeys(
        (
            *(*_MORE_TOKENS, "added_tokens_decoder", "model_specific_special_tokens"),
            # Of where it comes from, and of the software that wrote it.
            *("name_or_path", "_name_or_path", "_commit_hash", "special_tokens_map_file"),
            *("tokenizer_file", "vocab_file", "merges_file", "full_tokenizer_file", "backend"),
            *("is_local", "local_files_only", "use_fast", "from_slow", "auto_map", "legacy"),
            *("processor_class", "slow_tokenizer_class", "transformers_version", "torch_dtype"),
            *("init_inputs", "max_model_input_sizes", "device_map", "use_cache", "revision"),
            # Of decoding, of chats, of pairs and of batches.
            *("clean_up_tokenization_spaces", "spaces_between_special_tokens", "errors"),
            *("chat_template", "use_default_system_prompt", "response_schema", "trim_offsets"),
            *("padding", "padding_side", "pad_to_multiple_of", "pad_token_id", "remove_space"),
            *("pad_token_type_id", "truncation", "truncation_strategy", "stride", "max_length"),
            *("return_token_type_ids", "return_tensors", "verbose", "unk_id"),
        ),
        anything,
    ),
}
"""The options of tokenizer_config.json, beside the names of special tokens."""


def read_options(home: Path, key: str, *, of_transformer: bool) -> dict[str, Any]:
    """Read the options beside a tokenizer.

    With `of_transformer`, the file of the first module of sentence-transformers may add options.

    Raises:
        InputError: An option is unknown; names the setting.
        DamagedFileError: A file holds no mapping.
    """
    path = home / CONFIG_FILE
    options = records.read_object(path) if path.is_file() else {}
    if of_transformer:
        options |= tokenizer_arguments(home, key)
    named = _named(options)
    plain_options = {name: value for name, value in options.items() if name not in named}
    check_keys(path, plain_options, _KNOWN, key)
    return options


def applied(tokenizer: Tokenizer, home: Path, options: Mapping[str, Any], key: str) -> None:
    """Change a tokenizer to what `transformers` makes of its folder.

    Raises:
        InputError: The files contradict one another; names the setting.
    """
    kind = tokenizer_class(home, options)
    parts = _parts(tokenizer)
    if _is_misnamed(parts, kind):
        _warn_of_class(str(home), kind)
        kind = ""
    if kind in _WORD_PIECES:
        _make_letters(tokenizer, parts, home, options, key)
    elif kind in _REBUILT:
        _check_rebuilt(parts, home, kind, key)
    _check_steps(parts, home, kind, options, key)
    _check_prefix(parts, home, kind, options, key)
    if options.get("add_bos_token") and not parts["post_processor"]:
        _refuse(key, home, f"{CONFIG_FILE} sets `add_bos_token`, and {TOKENIZER_FILE} adds none")
    truncation = parts["truncation"] or {}
    if truncation.get("direction") == "left" and options.get("truncation_side") != "right":
        raise InputError(
            key,
            f"{home / TOKENIZER_FILE} truncates texts on the left, which is not supported",
            "Set `direction` of its `truncation` to Right, or name another model",
        )
    _add_tokens(tokenizer, home, kind, options, key)
    _check_vocabularies(tokenizer, parts, home, key)


def check_word_pieces(home: Path, options: Mapping[str, Any], key: str) -> None:
    """Refuse a vocab.txt if it alone does not determine the tokens.

    Raises:
        InputError: Names the setting.
    """
    kind = tokenizer_class(home, options)
    values = (options.get(f"{name}_token") for name in ("cls", "sep", "unk"))
    named = {value["content"] if isinstance(value, Mapping) else value for value in values}
    is_bert = kind in (*_WORD_PIECES, "", "PreTrained") and kind not in _OTHER_ENDS
    if not is_bert or named - {"[CLS]", "[SEP]", "[UNK]", None}:
        kind = kind or "PreTrained"
        raise InputError(
            key,
            f"the tokenizer in {home} is a {kind}Tokenizer without {TOKENIZER_FILE}",
            "Save it with transformers (AutoTokenizer.from_pretrained, save_pretrained)",
        )


def lower_case(tokenizer: Tokenizer) -> None:
    """Lower-case texts before any other step, as `do_lower_case` of a transformer's file asks."""
    found = tokenizer.normalizer
    if isinstance(found, normalizers.BertNormalizer):
        if not found.lowercase:
            # Accents stay unless they were dropped before: null would now drop them.
            found.strip_accents = bool(found.strip_accents)
            found.lowercase = True
            tokenizer.normalizer = found
    elif "Lowercase" not in _kinds(_parts(tokenizer)["normalizer"]):
        steps = [] if found is None else [found]
        tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *steps])


def written_options(tokenizer: Tokenizer, options: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return the options to write beside a tokenizer after :func:`applied`.

    Leaves out the options for its origin and for code.
    """
    left_out = ("name_or_path", "_name_or_path", "auto_map", "max_len", "added_tokens_decoder")
    kept = {name: value for name, value in options.items() if name not in left_out}
    found = tokenizer.normalizer
    if kind in _WORD_PIECES and isinstance(found, normalizers.BertNormalizer):
        letters = (found.lowercase, found.strip_accents, found.handle_chinese_chars)
        return kept | dict(zip(_LETTERS, letters, strict=True))
    parts = _parts(tokenizer)
    is_pieces = parts["model"].get("type", "WordPiece") == "WordPiece"
    if kind in ("", "PreTrained") and is_pieces and "Lowercase" not in _kinds(parts["normalizer"]):
        return kept
    # By their class, releases from 5 on rebuild the steps before the words, and each of these
    # options a step behind them: a text would get other tokens there than by the file.
    kept = {name: value for name, value in kept.items() if name not in _END_OPTIONS}
    kept["tokenizer_class"] = PLAIN_CLASS
    for step in _steps(parts["pre_tokenizer"]):
        if "add_prefix_space" in step:
            kept["add_prefix_space"] = step["add_prefix_space"]
    # The class names a third input, which many models refuse. It is zeros for single texts.
    return {"model_input_names": ["input_ids", "attention_mask"], **kept}


def tokenizer_class(home: Path, options: Mapping[str, Any]) -> str:
    """Return the folder's `transformers` class, without `Tokenizer` and `Fast`."""
    path = home / MODEL_FILE
    model = records.read_object(path) if path.is_file() else {}
    name = options.get("tokenizer_class") or model.get("tokenizer_class")
    if isinstance(name, str):
        return name.removesuffix("Fast").removesuffix("Tokenizer")
    return _CLASSES.get(str(model.get("model_type")), "")


def _make_letters(
    tokenizer: Tokenizer, parts: Mapping[str, Any], home: Path, options: Mapping[str, Any], key: str
) -> None:
    """Rebuild BERT's normaliser, as the WordPiece classes do."""
    kinds = {*_kinds(parts["normalizer"])} - {"Lowercase", "BertNormalizer"}
    splits = {*_kinds(parts["pre_tokenizer"])} - {"BertPreTokenizer"}
    if parts["model"].get("type", "WordPiece") != "WordPiece" or kinds or splits:
        name = options.get("tokenizer_class")
        if name is None:
            # A custom file, of which the library would make another tokenizer.
            name = "the class of its model"
        _refuse(key, home, f"{name} makes other tokens than {TOKENIZER_FILE}")
    lower, accents, chinese = (options.get(name) for name in _LETTERS)
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=lower is not False,
        strip_accents=accents,
        handle_chinese_chars=chinese is not False,
    )


def _is_misnamed(parts: Mapping[str, Any], kind: str) -> bool:
    """Return whether a WordPiece class stands beside a SentencePiece vocabulary.

    paraphrase-multilingual-MiniLM-L12 and its descendants are such: BERT with XLM-RoBERTa's
    vocabulary. They learnt from an unchanged tokenizer.json, as transformers read it before
    release 5.
    """
    return kind in _WORD_PIECES and parts["model"].get("type") == "Unigram"


@lru_cache(maxsize=64)
def _warn_of_class(home: str, kind: str) -> None:
    """Warn once per process about a class of another kind of tokenizer."""
    logger.warning(
        "%s has SentencePiece tokens in %s. That file decides the tokens, not %sTokenizer: with"
        " that class, transformers 5 makes most words unknown",
        *(home, TOKENIZER_FILE, kind),
    )


def _check_rebuilt(parts: Mapping[str, Any], home: Path, kind: str, key: str) -> None:
    """Refuse a tokenizer.json with parts that its class would drop."""
    expected = "BPE" if kind in _BYTE_PAIRS else "Unigram"
    model = parts["model"].get("type", expected)
    if model != expected:
        _refuse(key, home, f"{kind}Tokenizer makes other tokens than {TOKENIZER_FILE} ({model})")
    letters = {"Lowercase", "StripAccents", "BertNormalizer"} & {*_kinds(parts["normalizer"])}
    if letters:
        _refuse(key, home, f"{kind}Tokenizer drops {min(letters)} of {TOKENIZER_FILE}")


def _check_steps(
    parts: Mapping[str, Any], home: Path, kind: str, options: Mapping[str, Any], key: str
) -> None:
    """Refuse contradictions between letter options and the steps of tokenizer.json."""
    asked_of = {"Lowercase": options.get("do_lower_case")}
    if options.get("keep_accents") is not None:
        asked_of["StripAccents"] = not options["keep_accents"]
    names = {"Lowercase": "do_lower_case", "StripAccents": "keep_accents"}
    steps = _kinds(parts["normalizer"])
    for step, default in _STEPS.get(kind, {}).items():
        asked = asked_of.get(step)
        if (default if asked is None else asked) != (step in steps):
            _refuse(key, home, f"`{names[step]}` of {CONFIG_FILE} differs from {TOKENIZER_FILE}")


def _check_prefix(
    parts: Mapping[str, Any], home: Path, kind: str, options: Mapping[str, Any], key: str
) -> None:
    """Refuse contradicting files about a blank before texts."""
    asked = options.get("add_prefix_space", False if kind in _BYTE_PAIRS else None)
    for step in _steps(parts["pre_tokenizer"]):
        adds_blank = step.get("add_prefix_space")
        if step.get("type") == "Metaspace":
            adds_blank = step.get("prepend_scheme", "always") != "never"
        if asked is not None and adds_blank is not None and adds_blank != asked:
            _refuse(key, home, f"`add_prefix_space` of {CONFIG_FILE} differs from {TOKENIZER_FILE}")


def _add_tokens(
    tokenizer: Tokenizer, home: Path, kind: str, options: Mapping[str, Any], key: str
) -> None:
    """Match special tokens in texts as whole tokens; refuse those with another id."""
    known = {token.content: token for token in tokenizer.get_added_tokens_decoder().values()}
    named = dict(_named_tokens(home, options))
    for content, entry in named.items():
        if tokenizer.token_to_id(content) is None:
            _refuse(key, home, f"{TOKENIZER_FILE} has no token {content}, which another file names")
        if content not in known:
            flags = {name: bool(entry.get(name)) for name in _FLAGS}
            tokenizer.add_special_tokens([AddedToken(content, special=True, **flags)])
    listed: Mapping[str, Mapping[str, Any]] = options.get("added_tokens_decoder") or {}
    decoder = {int(number): entry for number, entry in listed.items()}
    for number, entry in sorted((decoder or _added(home)).items()):
        content = entry["content"]
        if content not in known and content not in named:
            # Missing flags get the library's defaults.
            arguments = {name: value for name, value in entry.items() if name != "__type"}
            tokenizer.add_tokens([AddedToken(**arguments)])
        if tokenizer.token_to_id(content) != number:
            _refuse(key, home, f"{TOKENIZER_FILE} lacks the added token {content} ({number})")
        token = known.get(content)
        if token and any(entry.get(name, False) != getattr(token, name) for name in _flags(entry)):
            _refuse(key, home, f"{TOKENIZER_FILE} matches the token {content} by other flags")
    left_out = known.keys() - {entry["content"] for entry in decoder.values()} - named.keys()
    if decoder and kind in _REBUILT and left_out:
        _refuse(key, home, f"{CONFIG_FILE} lacks the added token {min(left_out)}")


def _check_vocabularies(
    tokenizer: Tokenizer, parts: Mapping[str, Any], home: Path, key: str
) -> None:
    """Refuse a vocab.txt of another tokenizer than tokenizer.json."""
    path = home / VOCABULARY_FILE
    is_both = path.is_file() and (home / TOKENIZER_FILE).is_file()
    # Other models keep other content in a file of this name.
    if not is_both or parts["model"].get("type") != "WordPiece":
        return
    lines = path.read_text(encoding="utf-8").split("\n")
    # The last place of a repeated piece counts, and a dict keeps it.
    for piece, place in {piece: place for place, piece in enumerate(lines)}.items():
        if tokenizer.token_to_id(piece) not in (None, place):
            _refuse(key, home, f"{VOCABULARY_FILE} and {TOKENIZER_FILE} are of two tokenizers")


def _parts(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the tokenizer's JSON form without its words."""
    names = ("normalizer", "pre_tokenizer", "post_processor")
    found = {name: getattr(tokenizer, name) for name in names}
    return {
        **{name: json.loads(part.__getstate__()) if part else None for name, part in found.items()},
        "model": {"type": type(tokenizer.model).__name__},
        "truncation": tokenizer.truncation,
    }


def _named(options: Mapping[str, Any]) -> set[str]:
    return {
        name
        for name, value in options.items()
        if name.endswith(_NAMED) and (value is None or isinstance(value, str | Mapping))
    }


def _named_tokens(
    home: Path, options: Mapping[str, Any]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each special token in the files, with its matching flags."""
    path = home / SPECIAL_TOKENS_FILE
    # The library reads the older files only where the newer one does not list all tokens.
    is_read = path.is_file() and not options.get("added_tokens_decoder")
    further = records.read_object(path) if is_read else {}
    for source in (options, further):
        values = [source[name] for name in _named(source)]
        for name in (*_MORE_TOKENS, "model_specific_special_tokens"):
            found = source.get(name) or []
            values += found.values() if isinstance(found, Mapping) else found
        for value in values:
            entry = value if isinstance(value, Mapping) else {"content": value}
            if entry.get("content"):
                yield entry["content"], entry


def _added(home: Path) -> dict[int, Mapping[str, Any]]:
    path = home / ADDED_TOKENS_FILE
    found = records.read(path, dict[str, int]) if path.is_file() else {}
    return {number: {"content": content} for content, number in found.items()}


def _flags(entry: Mapping[str, Any]) -> Sequence[str]:
    """Return the flags of an entry that decide how texts match its token."""
    # `normalized` has no effect on special tokens: the tokenizer seeks them in the raw text.
    further = () if entry.get("special", True) else ("normalized",)
    return [name for name in (*_FLAGS, *further) if name in entry]


def _steps(part: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    """Yield the steps of a normaliser or pre-tokenizer: none, one or a sequence."""
    if part:
        nested = part.get("normalizers", part.get("pretokenizers"))
        if nested is None:
            yield part
        for step in nested or ():
            yield from _steps(step)


def _kinds(part: Mapping[str, Any] | None) -> list[str]:
    return [str(step.get("type")) for step in _steps(part)]


def _refuse(key: str, home: Path, problem: str) -> NoReturn:
    raise InputError(
        key,
        f"the tokenizer files in {home} contradict one another: {problem}",
        "Write them anew with transformers (AutoTokenizer.from_pretrained, save_pretrained)",
    )
