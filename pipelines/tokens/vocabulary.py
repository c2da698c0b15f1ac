"""The vocabulary: a tokenizer folder for transformers and sentence-transformers.

The library `tokenizers` trains WordPiece, byte pairs or unigrams from word counts. This module
chooses the alphabet and makes the result the same in every process.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ConfigDict
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from tokenizers.implementations import BertWordPieceTokenizer
from tokenizers.processors import TemplateProcessing
from typing_extensions import TypedDict

from pipelines.errors import InputError
from pipelines.files import records, storage
from pipelines.files.copies import local_folder
from pipelines.files.locations import Location, location
from pipelines.settings import Config
from pipelines.tokens.model_files import (
    CONFIG_FILE,
    SPECIAL_TOKENS_FILE,
    TOKENIZER_FILE,
    TRANSFORMER,
    VOCABULARY_FILE,
    applied,
    check_word_pieces,
    lower_case,
    read_length_file,
    read_options,
    tokenizer_class,
    written_options,
)
from pipelines.tokens.router import route_modules
from pipelines.tokens.start import default_start, start_folder

OTHER_FILES = (VOCABULARY_FILE, SPECIAL_TOKENS_FILE)
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""The first entries of a trained vocabulary."""
UNKNOWN = SPECIAL_TOKENS[1]
WORD_START = "▁"
"""Begins the first piece of a word in BPE and unigram vocabularies, as in SentencePiece."""
ALPHABET = 1000
"""Most distinct characters; words with a rarer one are not learnt from."""
MAX_WORDS_FED = 20_000_000
"""The trainer counts words itself, so each is fed as often as it occurs. Above this sum the counts
are scaled down, which keeps the time to seconds."""

_WORDS_A_LINE = 1000
_WORDPIECE_PREFIX = "##"
_UNIGRAM_DECIMALS = 6
_PROBES = 64
"""Vocabulary entries to try; the first nearly always works."""
_USUAL_MASKS = ("[MASK]", "<mask>")
_RARE_WORD = "\ua66e"
"""A letter written once, in the fifteenth century: hardly any vocabulary has it."""


@dataclass(frozen=True, kw_only=True)
class SpecialIds:
    """The ids of a vocabulary for text ends, padding and the like, not for words.

    `mask` replaces a word for prediction; None if there is no such id. `vocabulary` is the number
    of rows of a word embedding for all ids.
    """

    special: tuple[int, ...]
    mask: int | None
    vocabulary: int


def learn_wordpieces(counts: Mapping[str, int], size: int) -> list[str]:
    """Learn a WordPiece vocabulary; the same counts give the same vocabulary.

    Merges pairs by frequency, as the trainer of the library `tokenizers` does.

    Args:
        counts: Word to count, most frequent first; words as the pre-tokenizer splits them.
        size: Most entries: a small corpus may yield fewer.

    Returns:
        Pieces by id: special tokens, characters, ``##`` characters, then merged pieces.
    """
    alphabet, usable = _usable_words(counts, size)
    inner = sorted({character for word in usable for character in word[1:]})
    # As special tokens, the characters get their ids in this order. The trainer's own order is that
    # of its hash map, which changes from run to run and decides between equal pairs.
    first = [*SPECIAL_TOKENS, *alphabet, *(_WORDPIECE_PREFIX + character for character in inner)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        min_frequency=2,
        special_tokens=first,
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        continuing_subword_prefix=_WORDPIECE_PREFIX,
        show_progress=False,
    )
    tokenizer = _trained(models.WordPiece(unk_token=UNKNOWN), trainer, usable)
    pieces: dict[str, int] = tokenizer.get_vocab()
    return sorted(pieces, key=pieces.__getitem__)


def learn_bpe(counts: Mapping[str, int], size: int) -> models.BPE:
    """Learn byte pairs and their merges; the same counts give the same ones in every process.

    On characters, not on bytes (Sennrich et al. 2016, arXiv:1508.07909). The trainer orders
    characters by code point and equal pairs by id, so the order of its hash maps does not matter.
    Arguments as for :func:`learn_wordpieces`.

    Returns:
        A model of special tokens, characters and merged pieces, in this order; words begin with
        :data:`WORD_START`.
    """
    alphabet, usable = _usable_words(_with_word_start(counts), size)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=2,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    tokenizer = _trained(models.BPE(unk_token=UNKNOWN), trainer, usable)
    learnt = json.loads(tokenizer.to_str())["model"]
    merges = [(first, second) for first, second in learnt["merges"]]
    return models.BPE(learnt["vocab"], merges, unk_token=UNKNOWN)


def learn_unigram(counts: Mapping[str, int], size: int) -> models.Unigram:
    """Learn pieces and their log probabilities: a unigram language model (arXiv:1804.10959).

    Unlike WordPiece and BPE, this vocabulary may differ between processes. The trainer sums in the
    order of a hash map, which varies, so the last digits differ. Rounding the sums here and sorting
    the pieces by them gives the same model, unless two pieces at the edge of the vocabulary tie to
    within those digits. Arguments as for :func:`learn_wordpieces`.

    Returns:
        A model of special tokens, then pieces from the most to the least probable; words begin with
        :data:`WORD_START`.
    """
    alphabet, usable = _usable_words(_with_word_start(counts), size)
    trainer = trainers.UnigramTrainer(
        vocab_size=size,
        special_tokens=list(SPECIAL_TOKENS),
        unk_token=UNKNOWN,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    learnt = json.loads(_trained(models.Unigram(), trainer, usable).to_str())["model"]["vocab"]
    special = [(token, 0.0) for token in SPECIAL_TOKENS]
    pieces = [(piece, round(score, _UNIGRAM_DECIMALS)) for piece, score in learnt[len(special) :]]
    pieces.sort(key=lambda entry: (-entry[1], entry[0]))
    return models.Unigram([*special, *pieces], unk_id=SPECIAL_TOKENS.index(UNKNOWN))


def _usable_words(counts: Mapping[str, int], size: int) -> tuple[list[str], dict[str, int]]:
    """Return the most frequent characters by code point, and the words of these characters alone.

    The alphabet takes at most half of the `size` entries of the vocabulary.
    """
    characters: Counter[str] = Counter()
    for word, count in counts.items():
        for character in word:
            characters[character] += count
    by_frequency = sorted(characters, key=lambda character: (-characters[character], character))
    alphabet = sorted(by_frequency[: min(ALPHABET, (size - len(SPECIAL_TOKENS)) // 2)])
    known = set(alphabet)
    return alphabet, {word: count for word, count in counts.items() if known.issuperset(word)}


def _trained(model: Any, trainer: Any, counts: Mapping[str, int]) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.train_from_iterator(_lines(counts), trainer)
    return tokenizer


def _with_word_start(counts: Mapping[str, int]) -> dict[str, int]:
    """Return the words with the mark of the BPE and unigram pre-tokenizers."""
    return {WORD_START + word: count for word, count in counts.items()}


def _lines(counts: Mapping[str, int]) -> Iterator[str]:
    """Yield each word as often as it occurs, scaled; at least once while that fits."""
    scale = min(1.0, MAX_WORDS_FED / max(sum(counts.values()), 1))
    for word, count in counts.items():
        repeats = max(round(count * scale), 1)
        while repeats > 0:
            yield " ".join([word] * min(repeats, _WORDS_A_LINE))
            repeats -= _WORDS_A_LINE


class _Token(TypedDict):
    """A token with its matching flags."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc] # as pydantic has it

    content: str


class _Options(TypedDict, total=False):
    """The known options in files beside ``tokenizer.json``; the files hold more."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc] # as pydantic has it

    mask_token: str | _Token | None
    do_lower_case: bool


def write_tokenizer(
    folder: Path, config: Config, count_words: Callable[[], Mapping[str, int]], max_length: int
) -> None:
    """Write the tokenizer of ``tokens.vocabulary`` into an empty folder.

    Only a trained vocabulary calls `count_words`, for the corpus's words with their counts, most
    frequent first. `max_length`, in tokens, is written for transformers.

    Raises:
        InputError: There is no such tokenizer, or it does not fit the start checkpoint.
    """
    tokens = config.tokens
    if tokens.vocabulary != "train":
        copy_tokenizer(named_tokenizer(config), folder, max_length)
        return
    words, size = count_words(), tokens.vocabulary_size
    if tokens.model == "wordpiece":
        pieces = learn_wordpieces(words, size)
        save_wordpieces(folder, pieces, max_length, lowercase=tokens.lowercase)
    else:
        model = (learn_bpe if tokens.model == "bpe" else learn_unigram)(words, size)
        save_subwords(folder, model, max_length, lowercase=tokens.lowercase)


class SpecialEnds(NamedTuple):
    """The numbers of special tokens around a text, such as [CLS] before and [SEP] behind it."""

    before: int
    behind: int


def special_ends(tokenizer: Tokenizer) -> SpecialEnds:
    """Return how many special tokens a tokenizer puts before and behind a text.

    Raises:
        ValueError: The tokenizer makes no token of any text.
    """
    for probe in ("a", *islice(tokenizer.get_vocab(), _PROBES)):
        mask = tokenizer.encode(probe).special_tokens_mask
        if not all(mask):
            return SpecialEnds(mask.index(0), mask[::-1].index(0))
    raise ValueError("it makes no token of any text")


def checked_ends(key: str, source: Path) -> SpecialEnds:
    """Return how many special tokens a tokenizer puts around a text.

    Raises:
        InputError: The tokenizer cannot be used; names the setting `key`.
    """
    tokenizer, _ = _read_files(key, source)
    try:
        return special_ends(tokenizer)
    except Exception as error:
        # The library raises nothing narrower where a text cannot be encoded.
        raise InputError(
            key, f"the tokenizer in {source} cannot be used: {error}", "Name another folder"
        ) from error


def named_tokenizer(config: Config) -> Path:
    """Return the local folder of the tokenizer in the settings."""
    if config.tokens.vocabulary == "start":
        return start_folder(config) or default_start()
    return local_folder(location(config.tokens.vocabulary, config.storage))


def load_tokenizer(
    folder: Location,
    key: str = "tokens.vocabulary",
    modules: Sequence[tuple[str, str]] | None = None,
) -> Tokenizer:
    """Return the tokenizer of a tokenizer or model folder; it neither truncates nor pads.

    ``modules`` are those of a Router's route; by default all of the folder.

    Raises:
        InputError: There is none, or its files contradict one another; names the setting `key`.
    """
    tokenizer, _ = _read_files(key, local_folder(folder), modules)
    return tokenizer


def changed_tokenizer(folder: Location) -> str | None:
    """Return tokenizer.json as the files beside it change it; None if they change nothing.

    Raises:
        InputError: As for :func:`load_tokenizer`.
    """
    local = local_folder(folder)
    tokenizer, file = load_tokenizer(local), _home(local) / TOKENIZER_FILE
    if not file.is_file():
        return None
    plain = Tokenizer.from_file(str(file))
    plain.no_truncation()
    plain.no_padding()
    read: str = tokenizer.to_str()
    return None if read == plain.to_str() else read


def rows_needed(tokenizer: Tokenizer) -> int:
    """Return the rows of a word embedding for a tokenizer: one more than its largest id."""
    return max(tokenizer.get_vocab().values(), default=-1) + 1


def vocabulary_size(folder: Location) -> int:
    """Return the rows of a word embedding for the folder's tokenizer."""
    return rows_needed(load_tokenizer(folder))


def read_special_ids(folder: Location) -> SpecialIds:
    """Return the ids of a tokenizer for other tokens than words.

    The folder's files name the mask token, unless it is one of the usual ones.
    """
    tokenizer = load_tokenizer(folder)
    known = tokenizer.get_added_tokens_decoder()
    home = _home(local_folder(folder))
    files = (path for path in (home / CONFIG_FILE, home / SPECIAL_TOKENS_FILE) if path.is_file())
    masks = (_read_options(path).get("mask_token") for path in files)
    names = (mask["content"] if isinstance(mask, Mapping) else mask for mask in masks)
    found = (tokenizer.token_to_id(name) for name in (*names, *_USUAL_MASKS) if name)
    return SpecialIds(
        special=tuple(sorted(number for number, token in known.items() if token.special)),
        mask=next((number for number in found if number is not None), None),
        vocabulary=vocabulary_size(folder),
    )


def copy_tokenizer(source: Path, target: Path, max_length: int) -> None:
    """Copy a tokenizer's files, without their padding and truncation.

    `max_length`, in tokens, is written for transformers.

    Raises:
        InputError: There is no tokenizer, or it is damaged.
        DamagedFileError: A file beside it is damaged.
    """
    tokenizer, options = _read_files("tokens.vocabulary", source)
    tokenizer.save(str(target / TOKENIZER_FILE))
    home = _home(source)
    # Refuses damage here, with the name of the source: later readers would name the copy.
    for name in (CONFIG_FILE, SPECIAL_TOKENS_FILE):
        if (home / name).is_file():
            _read_options(home / name)
    for name in OTHER_FILES:
        if (home / name).is_file():
            shutil.copyfile(home / name, target / name)
    kind = tokenizer_class(home, options)
    written = written_options(tokenizer, options, kind) or {"tokenizer_class": "BertTokenizer"}
    storage.write_json(target / CONFIG_FILE, written | {"model_max_length": max_length})


def save_wordpieces(
    folder: Path, pieces: Sequence[str], max_length: int, *, lowercase: bool
) -> None:
    """Write the files of a BERT tokenizer with this vocabulary.

    `pieces` are in the order of their ids, :data:`SPECIAL_TOKENS` first. `max_length`, in tokens,
    is written for transformers; `lowercase` also drops accents.
    """
    _bert_tokenizer(pieces, lowercase).save(str(folder / TOKENIZER_FILE))
    storage.write_text(folder / VOCABULARY_FILE, "".join(f"{piece}\n" for piece in pieces))
    options = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": lowercase,
        "strip_accents": None,
        "tokenize_chinese_chars": True,
    }
    _save_options(folder, options, max_length)


def save_subwords(
    folder: Path, model: models.BPE | models.Unigram, max_length: int, *, lowercase: bool
) -> None:
    """Write the files of a tokenizer with BERT's pre-tokenizer and another model.

    The model has special tokens first; its words begin with :data:`WORD_START`. For the rest see
    :func:`save_wordpieces`.
    """
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    mark_words = pre_tokenizers.Metaspace(replacement=WORD_START, prepend_scheme="always")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.BertPreTokenizer(), mark_words]
    )
    tokenizer.decoder = decoders.Metaspace(replacement=WORD_START, prepend_scheme="always")
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    )
    first, last = SPECIAL_TOKENS[2:4]
    tokenizer.post_processor = TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {last} $B:1 {last}:1",
        special_tokens=[(token, SPECIAL_TOKENS.index(token)) for token in (first, last)],
    )
    tokenizer.save(str(folder / TOKENIZER_FILE))
    options = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    _save_options(folder, options, max_length)


def _save_options(folder: Path, options: Mapping[str, Any], max_length: int) -> None:
    names = dict(zip(("pad", "unk", "cls", "sep", "mask"), SPECIAL_TOKENS, strict=True))
    special = {f"{name}_token": token for name, token in names.items()}
    storage.write_json(folder / SPECIAL_TOKENS_FILE, special)
    storage.write_json(folder / CONFIG_FILE, {**special, **options, "model_max_length": max_length})


def _home(folder: Path) -> Path:
    """Return the folder of the files: in a sentence-transformers folder, its first module."""
    modules = route_modules(folder, None)
    return folder / modules[0][1] if modules else folder


def _read_files(
    key: str, folder: Path, modules: Sequence[tuple[str, str]] | None = None
) -> tuple[Tokenizer, dict[str, Any]]:
    """Return the tokenizer in a folder, and the options beside it."""
    try:
        named = route_modules(folder, None) if modules is None else modules
        return _tokenizer_in(key, folder, named)
    except InputError:
        raise
    except Exception as error:
        # The library raises nothing narrower.
        problem = f"the tokenizer in {folder} is damaged ({' '.join(str(error).split())})"
        raise InputError(key, problem, "Repair it, or name another folder") from error


def _tokenizer_in(
    key: str, folder: Path, modules: Sequence[tuple[str, str]]
) -> tuple[Tokenizer, dict[str, Any]]:
    home = folder / modules[0][1] if modules else folder
    options: dict[str, Any] = {}
    # A module without layers takes tokenizer.json as it is.
    of_transformer = bool(modules) and modules[0][0] == TRANSFORMER
    if of_transformer or not modules:
        options = read_options(home, key, of_transformer=of_transformer)
    if (home / TOKENIZER_FILE).is_file():
        tokenizer = Tokenizer.from_file(str(home / TOKENIZER_FILE))
    elif (home / VOCABULARY_FILE).is_file():
        check_word_pieces(home, options, key)
        # Not `splitlines`: some vocabularies hold characters that it takes for line ends.
        lines = (home / VOCABULARY_FILE).read_text(encoding="utf-8").split("\n")
        tokenizer = _bert_tokenizer(
            lines[:-1] if lines[-1] == "" else lines, bool(options.get("do_lower_case", True))
        )
    else:
        problem = f"there is no {TOKENIZER_FILE} or {VOCABULARY_FILE} in {home}"
        raise InputError(key, problem, "Name a tokenizer folder")
    # Fails here, not at a text of the corpus, if there is no token for unknown words.
    tokenizer.encode(_RARE_WORD)
    if of_transformer or not modules:
        applied(tokenizer, home, options, key)
    if of_transformer and read_length_file(home, key).get("do_lower_case"):
        lower_case(tokenizer)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer, options


def _read_options(path: Path) -> _Options:
    """Return the options in a file beside ``tokenizer.json``."""
    options: _Options = records.read(path, _Options)
    return options


def _bert_tokenizer(pieces: Sequence[str], lowercase: bool) -> Tokenizer:
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    wrapper = BertWordPieceTokenizer(vocabulary, lowercase=lowercase)
    return Tokenizer.from_str(wrapper.to_str())
