"""The vocabulary: a tokenizer folder that transformers and sentence-transformers load."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from tokenizers import Tokenizer
from tokenizers.implementations import BertWordPieceTokenizer
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from pipelines import storage
from pipelines.errors import InputError
from pipelines.settings import Config
from pipelines.tokens.start import check_vocabulary, default_start, start_folder
from pipelines.tokens.wordpiece import SPECIAL_TOKENS, learn_wordpieces

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
VOCABULARY_FILE = "vocab.txt"
OTHER_FILES = (VOCABULARY_FILE, "special_tokens_map.json")

MAX_WORDS = 1_000_000
"""Distinct words, most frequent first, that a vocabulary is learnt from on the driver."""
LONGEST_WORD = 100
"""Characters; WordPiece makes [UNK] of longer words, so nothing is learnt from them."""


def write_tokenizer(folder: Path, config: Config, pairs: DataFrame) -> None:
    """Writes the tokenizer that ``tokens.vocabulary`` asks for.

    Args:
        folder: Existing and empty.
        config: The configuration.
        pairs: Has the columns `left` and `right`; read only to train a vocabulary.

    Raises:
        InputError: There is no such tokenizer, or it does not fit the start checkpoint.
    """
    check_vocabulary(config)
    tokens = config.tokens
    if tokens.vocabulary == "train":
        pieces = learn_wordpieces(
            count_words(pairs, lowercase=tokens.lowercase), tokens.vocabulary_size
        )
        save_wordpieces(folder, pieces, tokens.max_length, lowercase=tokens.lowercase)
        return
    key, source = "tokens.vocabulary", Path(tokens.vocabulary)
    if tokens.vocabulary == "start":
        key, source = "encoder.start", start_folder(config) or default_start()
    if not _read_tokenizer(key, source).num_special_tokens_to_add(is_pair=False):
        raise InputError(
            key, f"the tokenizer in {source} adds no [CLS] or [SEP]", "one of a BERT-family model"
        )
    copy_tokenizer(source, folder, tokens.max_length)


def load_tokenizer(folder: Path) -> Tokenizer:
    """The folder's tokenizer, which neither cuts nor pads."""
    return _read_tokenizer("tokens.vocabulary", folder)


def vocabulary_size(folder: Path) -> int:
    """Rows of a word embedding for the folder's tokenizer: one more than its largest id."""
    return max(load_tokenizer(folder).get_vocab().values()) + 1


def copy_tokenizer(source: Path, target: Path, max_length: int) -> None:
    """Copies a tokenizer's files, without the padding and cutting that they may carry.

    Args:
        source: A tokenizer folder.
        target: Existing folder.
        max_length: Tokens of a text, told to transformers.
    """
    _read_tokenizer("tokens.vocabulary", source).save(str(target / TOKENIZER_FILE))
    for name in OTHER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)
    if (source / CONFIG_FILE).is_file():
        shutil.copyfile(source / CONFIG_FILE, target / CONFIG_FILE)
    _set_max_length(target, max_length)


def save_wordpieces(
    folder: Path, pieces: Sequence[str], max_length: int, *, lowercase: bool
) -> None:
    """Writes the files of a BERT tokenizer with this vocabulary.

    Args:
        folder: Existing folder.
        pieces: Vocabulary by id; starts with
            :data:`~pipelines.tokens.wordpiece.SPECIAL_TOKENS`.
        max_length: Tokens of a text, told to transformers.
        lowercase: Whether the tokenizer lower-cases and drops accents.
    """
    names = dict(zip(("pad", "unk", "cls", "sep", "mask"), SPECIAL_TOKENS, strict=True))
    special = {f"{name}_token": token for name, token in names.items()}
    _bert_tokenizer(pieces, lowercase).save(str(folder / TOKENIZER_FILE))
    storage.write_text(folder / VOCABULARY_FILE, "".join(f"{piece}\n" for piece in pieces))
    storage.write_json(folder / "special_tokens_map.json", special)
    storage.write_json(
        folder / CONFIG_FILE,
        {
            **special,
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": lowercase,
            "strip_accents": None,
            "tokenize_chinese_chars": True,
            "model_max_length": max_length,
        },
    )


def count_words(pairs: DataFrame, *, lowercase: bool) -> dict[str, int]:
    """Counts words as BERT's pre-tokenizer sees them, on the executors.

    Args:
        pairs: Has the string columns `left` and `right`, with nulls in `right`.
        lowercase: Whether upper and lower case are one.

    Returns:
        Word to count: the most frequent ones, by falling count, then by code points.
    """
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark users know

    words = pairs.select("left", "right").mapInArrow(
        partial(words_of_batches, lowercase=lowercase), "word string, count long"
    )
    rows = (
        words.groupBy("word")
        .agg(F.sum("count").alias("count"))
        .orderBy(F.desc("count"), "word")
        .limit(MAX_WORDS)
        .collect()
    )
    return {row["word"]: row["count"] for row in rows}


def words_of_batches(
    batches: Iterator[pa.RecordBatch], *, lowercase: bool
) -> Iterator[pa.RecordBatch]:
    """Words of all columns, with their counts in each batch. Runs on an executor."""
    normalise = BertNormalizer(lowercase=lowercase).normalize_str
    split = BertPreTokenizer().pre_tokenize_str
    for batch in batches:
        texts = chain.from_iterable(column.drop_null().to_pylist() for column in batch.columns)
        counts = Counter(
            word
            for text in texts
            for word, _ in split(normalise(text))
            if len(word) <= LONGEST_WORD
        )
        yield pa.RecordBatch.from_pydict(
            {
                "word": pa.array(counts.keys(), pa.string()),
                "count": pa.array(counts.values(), pa.int64()),
            }
        )


def _read_tokenizer(key: str, folder: Path) -> Tokenizer:
    if (folder / TOKENIZER_FILE).is_file():
        tokenizer = Tokenizer.from_file(str(folder / TOKENIZER_FILE))
    elif (folder / VOCABULARY_FILE).is_file():
        # Not `splitlines`: some vocabularies hold characters that it takes for line ends.
        lines = (folder / VOCABULARY_FILE).read_text(encoding="utf-8").split("\n")
        path = folder / CONFIG_FILE
        options: Mapping[str, Any] = storage.read_json(path) if path.is_file() else {}
        tokenizer = _bert_tokenizer(
            lines[:-1] if lines[-1] == "" else lines, bool(options.get("do_lower_case", True))
        )
    else:
        raise InputError(
            key,
            f"there is no {TOKENIZER_FILE} or {VOCABULARY_FILE} in {folder}",
            "a tokenizer folder",
        )
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _bert_tokenizer(pieces: Sequence[str], lowercase: bool) -> Tokenizer:
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    whole = BertWordPieceTokenizer(vocabulary, lowercase=lowercase)
    return Tokenizer.from_str(whole.to_str())


def _set_max_length(folder: Path, max_length: int) -> None:
    path = folder / CONFIG_FILE
    options = storage.read_json(path) if path.is_file() else {"tokenizer_class": "BertTokenizer"}
    # The name of where it was copied from would be looked up by some releases.
    options.pop("name_or_path", None)
    storage.write_json(path, options | {"model_max_length": max_length})
