"""Apply the files beside tokenizer.json to a tokenizer: `transformers` reads them too.

The library makes some tokenizers anew from the vocabulary and the options of tokenizer_config.json,
whatever tokenizer.json says of letters and accents, and adds the tokens that other files name. What
can be done to the tokenizer here is done; what cannot is refused, with the command that writes one
file that says it all.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

from tokenizers import AddedToken, Tokenizer, normalizers

from pipelines.errors import InputError
from pipelines.files import records
from pipelines.tokens.model_files import (
    Known,
    anything,
    check_keys,
    flag,
    length,
    nothing,
    one_of,
    text,
    tokenizer_arguments,
)

logger = logging.getLogger(__name__)

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
SPECIAL_TOKENS_FILE = "special_tokens_map.json"
ADDED_TOKENS_FILE = "added_tokens.json"
VOCABULARY_FILE = "vocab.txt"
MODEL_FILE = "config.json"

PLAIN_CLASS = "PreTrainedTokenizerFast"
"""The class that takes tokenizer.json as it is."""
_WORD_PIECES = (
    *("Bert", "DistilBert", "Electra", "MPNet", "MobileBert", "ConvBert", "SqueezeBert", "Funnel"),
    *("LayoutLM", "Lxmert", "Splinter", "RetriBert", "DPRQuestionEncoder", "DPRContextEncoder"),
)
"""Classes that make BERT's normaliser anew from their options."""
_OTHER_ENDS = ("MPNet", "Funnel", "Splinter")
"""Those of them that put other tokens around a text than BERT's."""
_BYTE_PAIRS = ("Roberta", "GPT2", "Longformer", "Bart")
_SENTENCE_PIECES = ("XLMRoberta", "Camembert")
_REBUILT = (*_WORD_PIECES, *_BYTE_PAIRS, *_SENTENCE_PIECES)
_STEPS: Mapping[str, Mapping[str, bool]] = {
    "Albert": {"Lowercase": True, "StripAccents": True},
    "RemBert": {"Lowercase": False, "StripAccents": False},
    "XLNet": {"Lowercase": False},
    "DebertaV2": {"Lowercase": False},
}
"""Steps of a normaliser that further classes make by options, and whether they do by default."""
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
"""By the type of a model whose tokenizer tells no class."""
_LETTERS = ("do_lower_case", "strip_accents", "tokenize_chinese_chars")
_NAMED = "_token"
"""What the names of options end with that are special tokens."""
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

    Args:
        home: The folder of its files.
        key: The setting that names it.
        of_transformer: Whether it is the first module of sentence-transformers, whose own file may
            hold further options.

    Raises:
        InputError: With the setting, for an option that is not known.
        DamagedFileError: A file holds no mapping.
    """
    path = home / CONFIG_FILE
    options = records.read_object(path) if path.is_file() else {}
    if of_transformer:
        options |= tokenizer_arguments(home, key)
    named = _named(options)
    others = {name: value for name, value in options.items() if name not in named}
    check_keys(path, others, _KNOWN, key)
    return options


def applied(tokenizer: Tokenizer, home: Path, options: Mapping[str, Any], key: str) -> None:
    """Change a tokenizer to what `transformers` makes of its folder.

    Args:
        tokenizer: As tokenizer.json or vocab.txt has it.
        home: Its folder.
        options: Those beside it.
        key: The setting that names it.

    Raises:
        InputError: With the setting: the files contradict one another.
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
    if options.get("add_bos_token") and not _special(parts):
        _refuse(key, home, f"{CONFIG_FILE} sets `add_bos_token`, and {TOKENIZER_FILE} adds none")
    truncation = parts["truncation"] or {}
    if truncation.get("direction") == "left" and options.get("truncation_side") != "right":
        raise InputError(
            key,
            f"{home / TOKENIZER_FILE} cuts texts on the left, which is not supported here",
            "set `direction` of its `truncation` to Right, or name another model",
        )
    _add_tokens(tokenizer, home, kind, options, key)
    _check_vocabularies(tokenizer, parts, home, key)


def check_word_pieces(home: Path, options: Mapping[str, Any], key: str) -> None:
    """Refuse a vocab.txt that is not alone what makes the tokens.

    Raises:
        InputError: With the setting.
    """
    kind = tokenizer_class(home, options)
    told = (options.get(f"{name}_token") for name in ("cls", "sep", "unk"))
    named = {value["content"] if isinstance(value, Mapping) else value for value in told}
    is_bert = kind in (*_WORD_PIECES, "", "PreTrained") and kind not in _OTHER_ENDS
    if not is_bert or named - {"[CLS]", "[SEP]", "[UNK]", None}:
        kind = kind or "PreTrained"
        raise InputError(
            key,
            f"the tokenizer in {home} is a {kind}Tokenizer without {TOKENIZER_FILE}",
            "save it with transformers (AutoTokenizer.from_pretrained, save_pretrained)",
        )


def lower_case(tokenizer: Tokenizer) -> None:
    """Lower-case texts before all else, as `do_lower_case` of a transformer's file asks for."""
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
    """Return the options to write beside a tokenizer that :func:`applied` has changed.

    Those that say where it came from, and name code, are left out.
    """
    left_out = ("name_or_path", "_name_or_path", "auto_map", "max_len", "added_tokens_decoder")
    kept = {name: value for name, value in options.items() if name not in left_out}
    found = tokenizer.normalizer
    if kind in _WORD_PIECES and isinstance(found, normalizers.BertNormalizer):
        told = (found.lowercase, found.strip_accents, found.handle_chinese_chars)
        return kept | dict(zip(_LETTERS, told, strict=True))
    parts = _parts(tokenizer)
    if "Lowercase" in _kinds(parts["normalizer"]) or _is_misnamed(parts, kind):
        # Other classes would leave the step out, or make another model.
        kept["tokenizer_class"] = PLAIN_CLASS
    return kept


def tokenizer_class(home: Path, options: Mapping[str, Any]) -> str:
    """Return the class of `transformers` that reads the folder, without `Tokenizer` and `Fast`."""
    path = home / MODEL_FILE
    model = records.read_object(path) if path.is_file() else {}
    told = options.get("tokenizer_class") or model.get("tokenizer_class")
    if isinstance(told, str):
        return told.removesuffix("Fast").removesuffix("Tokenizer")
    return _CLASSES.get(str(model.get("model_type")), "")


def _make_letters(
    tokenizer: Tokenizer, parts: Mapping[str, Any], home: Path, options: Mapping[str, Any], key: str
) -> None:
    """Make BERT's normaliser anew, as the classes of WordPiece do."""
    kinds = {*_kinds(parts["normalizer"])} - {"Lowercase", "BertNormalizer"}
    others = {*_kinds(parts["pre_tokenizer"])} - {"BertPreTokenizer"}
    if parts["model"].get("type", "WordPiece") != "WordPiece" or kinds or others:
        told = options.get("tokenizer_class")
        if told is None:
            # A file of its own, of which the library would make something else.
            told = "the class of its model"
        _refuse(key, home, f"{told} makes other tokens than {TOKENIZER_FILE}")
    lower, accents, chinese = (options.get(name) for name in _LETTERS)
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=lower is not False,
        strip_accents=accents,
        handle_chinese_chars=chinese is not False,
    )


def _is_misnamed(parts: Mapping[str, Any], kind: str) -> bool:
    """Whether a class of WordPiece stands beside a vocabulary of SentencePiece.

    BERT models with the vocabulary of XLM-RoBERTa are saved so: paraphrase-multilingual-MiniLM-L12
    and what is trained of it. They learnt from tokenizer.json as it is: before release 5,
    transformers changed nothing of it.
    """
    return kind in _WORD_PIECES and parts["model"].get("type") == "Unigram"


@lru_cache(maxsize=64)
def _warn_of_class(home: str, kind: str) -> None:
    """Say once in a process that a class is not that of its tokenizer."""
    logger.warning(
        "%s has SentencePiece tokens in %s: they are read as they are there, and not by %sTokenizer"
        " (transformers 5 does, and makes most words unknown)",
        *(home, TOKENIZER_FILE, kind),
    )


def _check_rebuilt(parts: Mapping[str, Any], home: Path, kind: str, key: str) -> None:
    """Refuse what a class that makes its tokenizer anew would leave out of tokenizer.json."""
    expected = "BPE" if kind in _BYTE_PAIRS else "Unigram"
    model = parts["model"].get("type", expected)
    if model != expected:
        _refuse(key, home, f"{kind}Tokenizer makes other tokens than {TOKENIZER_FILE} ({model})")
    letters = {"Lowercase", "StripAccents", "BertNormalizer"} & {*_kinds(parts["normalizer"])}
    if letters:
        _refuse(key, home, f"{kind}Tokenizer leaves {min(letters)} of {TOKENIZER_FILE} out")


def _check_steps(
    parts: Mapping[str, Any], home: Path, kind: str, options: Mapping[str, Any], key: str
) -> None:
    """Refuse options of letters that ask for other steps than tokenizer.json has."""
    told = {"Lowercase": options.get("do_lower_case")}
    if options.get("keep_accents") is not None:
        told["StripAccents"] = not options["keep_accents"]
    names = {"Lowercase": "do_lower_case", "StripAccents": "keep_accents"}
    steps = _kinds(parts["normalizer"])
    for step, default in _STEPS.get(kind, {}).items():
        asked = told.get(step)
        if (default if asked is None else asked) != (step in steps):
            _refuse(key, home, f"`{names[step]}` of {CONFIG_FILE} differs from {TOKENIZER_FILE}")


def _check_prefix(
    parts: Mapping[str, Any], home: Path, kind: str, options: Mapping[str, Any], key: str
) -> None:
    """Refuse a blank before texts in one file and none in the other."""
    asked = options.get("add_prefix_space", False if kind in _BYTE_PAIRS else None)
    for step in _steps(parts["pre_tokenizer"]):
        own = step.get("add_prefix_space")
        if step.get("type") == "Metaspace":
            own = step.get("prepend_scheme", "always") != "never"
        if asked is not None and own is not None and own != asked:
            _refuse(key, home, f"`add_prefix_space` of {CONFIG_FILE} differs from {TOKENIZER_FILE}")


def _add_tokens(
    tokenizer: Tokenizer, home: Path, kind: str, options: Mapping[str, Any], key: str
) -> None:
    """Find special tokens in texts as tokens of their own; refuse those that have another id."""
    known = {token.content: token for token in tokenizer.get_added_tokens_decoder().values()}
    named = dict(_named_tokens(home, options))
    for content, told in named.items():
        if tokenizer.token_to_id(content) is None:
            _refuse(key, home, f"{TOKENIZER_FILE} has no token {content}, which another file names")
        if content not in known:
            flags = {name: bool(told.get(name)) for name in _FLAGS}
            tokenizer.add_special_tokens([AddedToken(content, special=True, **flags)])
    decoder = _decoder(options)
    for number, told in sorted((decoder or _added(home)).items()):
        content = told["content"]
        if content not in known and content not in named:
            tokenizer.add_tokens([_token(told)])
        if tokenizer.token_to_id(content) != number:
            _refuse(key, home, f"{TOKENIZER_FILE} lacks the added token {content} ({number})")
        token = known.get(content)
        if token and any(told.get(name, False) != getattr(token, name) for name in _flags(told)):
            _refuse(key, home, f"{TOKENIZER_FILE} finds the token {content} in another way")
    left_out = known.keys() - {told["content"] for told in decoder.values()} - named.keys()
    if decoder and kind in _REBUILT and left_out:
        _refuse(key, home, f"{CONFIG_FILE} lacks the added token {min(left_out)}")


def _check_vocabularies(
    tokenizer: Tokenizer, parts: Mapping[str, Any], home: Path, key: str
) -> None:
    """Refuse a vocab.txt of another tokenizer than tokenizer.json."""
    path = home / VOCABULARY_FILE
    is_both = path.is_file() and (home / TOKENIZER_FILE).is_file()
    # Other models have other things in a file of this name.
    if not is_both or parts["model"].get("type") != "WordPiece":
        return
    lines = path.read_text(encoding="utf-8").split("\n")
    # Of a piece that is there twice the last place counts.
    for piece, place in {piece: place for place, piece in enumerate(lines)}.items():
        if tokenizer.token_to_id(piece) not in (None, place):
            _refuse(key, home, f"{VOCABULARY_FILE} and {TOKENIZER_FILE} are of two tokenizers")


def _parts(tokenizer: Tokenizer) -> dict[str, Any]:
    """The parts of a tokenizer as its file has them, without the words, which may be many."""
    names = ("normalizer", "pre_tokenizer", "post_processor")
    found = {name: getattr(tokenizer, name) for name in names}
    return {
        **{name: json.loads(part.__getstate__()) if part else None for name, part in found.items()},
        "model": {"type": type(tokenizer.model).__name__},
        "truncation": tokenizer.truncation,
    }


def _named(options: Mapping[str, Any]) -> set[str]:
    """The options that are special tokens."""
    return {
        name
        for name, value in options.items()
        if name.endswith(_NAMED) and (value is None or isinstance(value, str | Mapping))
    }


def _named_tokens(
    home: Path, options: Mapping[str, Any]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Contents of the special tokens that the files name, with how they are found."""
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
            told = value if isinstance(value, Mapping) else {"content": value}
            if told.get("content"):
                yield told["content"], told


def _added(home: Path) -> dict[int, Mapping[str, Any]]:
    """The tokens of added_tokens.json, by id."""
    path = home / ADDED_TOKENS_FILE
    found = records.read(path, dict[str, int]) if path.is_file() else {}
    return {number: {"content": content} for content, number in found.items()}


def _decoder(options: Mapping[str, Any]) -> dict[int, Mapping[str, Any]]:
    """The tokens of `added_tokens_decoder`, by id."""
    return {
        int(number): told for number, told in (options.get("added_tokens_decoder") or {}).items()
    }


def _token(told: Mapping[str, Any]) -> AddedToken:
    """A token as the library adds it, with the defaults of what is not told."""
    return AddedToken(**{name: value for name, value in told.items() if name != "__type"})


def _flags(told: Mapping[str, Any]) -> Sequence[str]:
    """What is told of how a token is found in a text."""
    # Of special tokens this says nothing: they are looked for in the text as it is.
    further = () if told.get("special", True) else ("normalized",)
    return [name for name in (*_FLAGS, *further) if name in told]


def _steps(part: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    """The steps of a normaliser or a pre-tokenizer, of which there may be one or none."""
    if part:
        nested = part.get("normalizers", part.get("pretokenizers"))
        if nested is None:
            yield part
        for step in nested or ():
            yield from _steps(step)


def _kinds(part: Mapping[str, Any] | None) -> list[str]:
    return [str(step.get("type")) for step in _steps(part)]


def _special(parts: Mapping[str, Any]) -> bool:
    """Whether a token is put around texts."""
    return bool(parts["post_processor"])


def _refuse(key: str, home: Path, problem: str) -> NoReturn:
    raise InputError(
        key,
        f"the tokenizer files in {home} contradict one another: {problem}",
        "write them anew with transformers (AutoTokenizer.from_pretrained, save_pretrained)",
    )
