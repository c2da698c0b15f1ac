"""Token ids of a column of texts: the ids of the library `tokenizers`, computed faster.

BERT's normaliser and pre-tokenizer work character by character, except that they decompose a
character together with the marks behind it. They always separate ASCII white space and punctuation
from their surroundings, and in UTF-8 those bytes occur in no other character. So texts can be cut
there before normalisation, with a few passes over the bytes of a whole column, and the words of the
chunks in order are the words of the text. Each distinct chunk is encoded once.
"""

from __future__ import annotations

import json
import string
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import Tokenizer

from pipelines.arrow_columns import text_bytes
from pipelines.tokens.vocabulary import special_ends

WHITE_SPACE = b" \t\n\r"
"""Begins a chunk; the library handles rarer white space, inside a chunk."""

SLICE_BYTES = 8 * 2**20
"""Text that is cut at a time; its arrays take about twenty times as much memory."""

_SPACE, _PUNCTUATION = 2, 1
# ASCII letters only: the other bytes are parts of characters, left to the normaliser.
_LOWER = bytes(range(256)).lower()
_CLASSES = bytes(
    _SPACE * (byte in WHITE_SPACE) + _PUNCTUATION * (byte in string.punctuation.encode())
    for byte in range(256)
)


@dataclass(frozen=True)
class Chunks:
    """The chunks of a column of texts, each distinct chunk once.

    Attributes:
        distinct: Binary array; at most one byte of white space, then a run of other bytes without
            ASCII punctuation, or one byte of it.
        numbers: int32 [chunks]; index into `distinct`.
        rows: int64 [texts + 1]; the first chunk of each text, and the end.
    """

    distinct: pa.BinaryArray
    numbers: np.ndarray
    rows: np.ndarray


def slices(texts: pa.StringArray) -> Iterator[pa.StringArray]:
    """Yield a column in slices of about :data:`SLICE_BYTES`, with at least one row each."""
    if texts.nbytes <= SLICE_BYTES and len(texts):
        yield texts
        return
    sizes = pc.fill_null(pc.binary_length(texts), 0)
    offsets = _sums(sizes.to_numpy(zero_copy_only=False))
    first = 0
    while first < len(texts):
        last = int(np.searchsorted(offsets, offsets[first] + SLICE_BYTES, side="right")) - 1
        last = max(last, first + 1)
        yield texts.slice(first, last - first)
        first = last


def split(texts: pa.StringArray, *, lowercase: bool) -> Chunks:
    """Cut texts into chunks; a null counts as an empty text.

    With `lowercase`, lower-case ASCII letters, as the normaliser would.
    """
    data, offsets = text_bytes(pc.fill_null(texts, ""))
    if lowercase:
        data = data.translate(_LOWER)
    starts = np.flatnonzero(_begins_chunk(data, offsets))
    # 32 bits suffice: a column of strings has offsets of 32 bits itself.
    bounds = np.append(starts, len(data)).astype(np.int32)
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    encoded = pa.Array.from_buffers(pa.binary(), len(starts), buffers).dictionary_encode()
    return Chunks(
        distinct=encoded.dictionary,
        numbers=encoded.indices.to_numpy(),
        rows=np.searchsorted(starts, offsets),
    )


def plain_word(chunk: bytes) -> str | None:
    """Return the chunk's word if it is all ASCII letters and digits, else None.

    Normaliser and pre-tokenizer at most lower-case such a word.
    """
    word = chunk.strip(WHITE_SPACE)
    return word.decode() if word.isalnum() else None


def _begins_chunk(data: bytes, offsets: np.ndarray) -> np.ndarray:
    """Return whether a chunk begins at each byte, bool [bytes]."""
    classes = np.frombuffer(data.translate(_CLASSES), np.uint8)
    space = (classes >> 1).view(np.bool_)
    punctuation = (classes & _PUNCTUATION).view(np.bool_)
    begins = space | punctuation
    # Punctuation joins the white space before it, and ends its chunk.
    begins[1:] &= ~space[:-1] | space[1:]
    begins[1:] |= punctuation[:-1]
    begins[offsets[offsets < len(data)]] = True
    return begins


CACHE_BYTES = 32 * 2**20
"""Text of the remembered chunks; with their ids they take about ten times as much."""

NO_TOKEN = 0
"""Stands for a text without tokens, since an encoder needs one."""

_MODELS = ("WordPiece", "BPE", "Unigram", "WordLevel")


@dataclass(frozen=True)
class Encoded:
    """Token ids of a column.

    Attributes:
        ids: Binary array of little-endian int32 ids, null where the text is null.
        lengths: int32 [rows]; number of ids, zero for a null.
        full_lengths: int32 [rows]; number of ids before truncation.
    """

    ids: pa.BinaryArray
    lengths: np.ndarray
    full_lengths: np.ndarray

    @property
    def cut(self) -> np.ndarray:
        """Whether a text was truncated; bool [rows]."""
        is_cut: np.ndarray = self.full_lengths > self.lengths
        return is_cut


class TextEncoder(Protocol):
    """Turns texts into token ids, with the special tokens around them."""

    def encode(self, texts: pa.StringArray) -> Encoded:
        """Return the ids of each text; truncate longer ones before their closing special tokens.

        A text has at least one id: :data:`NO_TOKEN` where a tokenizer gives none.
        """


def open_encoder(tokenizer: Tokenizer, max_length: int) -> TextEncoder:
    """Return the fastest encoder with the ids of a tokenizer without truncation or padding.

    It encodes chunks if normaliser and pre-tokenizer are known to allow it: `BertNormalizer`,
    `BertPreTokenizer` (also with a `Metaspace` behind it to mark the start of each word), a
    deterministic model, and one special token at either end. Otherwise the library does all the
    work. `max_length` counts ids.
    """
    library_encoder = LibraryEncoder(tokenizer, max_length)
    rules = _chunk_rules(json.loads(tokenizer.to_str()))
    if rules is None or special_ends(tokenizer) != (1, 1):
        return library_encoder
    ends = tokenizer.encode("").ids
    return ChunkEncoder(tokenizer, max_length, rules, (ends[0], ends[1]), library_encoder)


@dataclass(frozen=True)
class PromptedEncoder:
    """Encodes texts with a prompt, possibly empty, before each."""

    encoder: TextEncoder
    prompt: str

    def encode(self, texts: pa.StringArray) -> Encoded:
        """See :class:`TextEncoder`."""
        if self.prompt:
            texts = pc.binary_join_element_wise(self.prompt, texts, "")
        return self.encoder.encode(texts)


def shortened(
    ids: pa.BinaryArray, max_length: int, behind: int
) -> tuple[pa.BinaryArray, np.ndarray]:
    """Truncate ids, with `behind` special tokens at the end, as an encoder of ``max_length`` would.

    Takes a binary column of :class:`Encoded`; returns it with the previous length of each text,
    int32 [rows].
    """
    present = ids.is_valid().to_numpy(zero_copy_only=False)
    sizes = pc.fill_null(pc.binary_length(ids), 0).to_numpy(zero_copy_only=False)
    lengths = (sizes // 4).astype(np.int32)
    if not (lengths > max_length).any():
        return ids, lengths
    flat = np.frombuffer(b"".join(ids.drop_null().to_pylist()), "<i4")
    kept, kept_lengths = _cut(flat, lengths, max_length, behind)
    return _binary(kept, kept_lengths, present), lengths


class LibraryEncoder:
    """Encodes every text by the library; the tokenizer neither truncates nor pads."""

    def __init__(self, tokenizer: Tokenizer, max_length: int) -> None:
        self._tokenizer = tokenizer
        self._max_length = max_length
        self._behind = special_ends(tokenizer).behind

    def encode(self, texts: pa.StringArray) -> Encoded:
        """See :class:`TextEncoder`."""
        present = _present(texts)
        # The fast form leaves out offsets in the text.
        encodings = self._tokenizer.encode_batch_fast(texts.drop_null().to_pylist())
        rows = [encoding.ids or [NO_TOKEN] for encoding in encodings]
        lengths = np.zeros(len(texts), np.int32)
        lengths[present] = np.fromiter(map(len, rows), np.int32, len(rows))
        ids = np.fromiter(chain.from_iterable(rows), "<i4", int(lengths.sum()))
        full_lengths = lengths
        if (full_lengths > self._max_length).any():
            ids, lengths = _cut(ids, full_lengths, self._max_length, self._behind)
        return Encoded(_binary(ids, lengths, present), lengths, full_lengths)


@dataclass(frozen=True)
class ChunkRules:
    """The properties of a tokenizer for chunk encoding.

    `word_start` is the pre-tokenizer's mark before each word; `added` are tokens for the tokenizer
    to find in a text before any split.
    """

    lowercase: bool
    word_start: str
    added: tuple[str, ...]


class ChunkEncoder:
    """Encodes each distinct chunk once, then gathers the ids of the texts.

    The tokenizer neither truncates nor pads. `ends` are the first and the last id of every text;
    `library_encoder` encodes the texts with an added token.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        max_length: int,
        rules: ChunkRules,
        ends: tuple[int, int],
        library_encoder: LibraryEncoder,
    ) -> None:
        self._rules = rules
        self._ends = ends
        self._most = max_length - len(ends)
        self._library_encoder = library_encoder
        self._cache = ChunkCache(_chunk_ids(tokenizer, rules))

    def encode(self, texts: pa.StringArray) -> Encoded:
        """See :class:`TextEncoder`."""
        parts = [self._encode(part) for part in slices(texts)]
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return Encoded(pa.array([], pa.binary()), *np.zeros((2, 0), np.int32))
        ids, lengths, full_lengths = zip(
            *((part.ids, part.lengths, part.full_lengths) for part in parts), strict=True
        )
        return Encoded(pa.concat_arrays(ids), np.concatenate(lengths), np.concatenate(full_lengths))

    def _encode(self, texts: pa.StringArray) -> Encoded:
        encoded = self._encode_chunks(texts)
        rows = self._with_added_token(texts)
        if not len(rows):
            return encoded
        by_library = self._library_encoder.encode(texts.take(pa.array(rows)))
        order = np.arange(len(texts))
        order[rows] = len(texts) + np.arange(len(rows))
        encoded.lengths[rows] = by_library.lengths
        encoded.full_lengths[rows] = by_library.full_lengths
        ids = pa.concat_arrays([encoded.ids, by_library.ids]).take(pa.array(order))
        return Encoded(ids, encoded.lengths, encoded.full_lengths)

    def _with_added_token(self, texts: pa.StringArray) -> np.ndarray:
        """Return the rows whose text contains an added token."""
        found = np.zeros(len(texts), np.bool_)
        data, _ = text_bytes(texts)
        for token in self._rules.added:
            if token.encode() in data:
                holds = pc.fill_null(pc.match_substring(texts, token), False)
                found |= holds.to_numpy(zero_copy_only=False)
        return np.flatnonzero(found)

    def _encode_chunks(self, texts: pa.StringArray) -> Encoded:
        chunks = split(texts, lowercase=self._rules.lowercase)
        first, count, pool = self._cache.ragged(chunks.distinct)
        first, count = first[chunks.numbers], count[chunks.numbers]
        before = _sums(count)
        present = _present(texts)
        lengths = np.diff(before[chunks.rows])
        full_lengths = np.where(present, lengths + 2, 0).astype(np.int32)
        if (lengths > self._most).any():
            place = before[:-1] - np.repeat(before[chunks.rows[:-1]], np.diff(chunks.rows))
            count = np.clip(self._most - place, 0, count)
            before = _sums(count)
            lengths = np.diff(before[chunks.rows])
        source = np.repeat(first - before[:-1], count) + np.arange(before[-1])
        lengths = np.where(present, lengths + 2, 0).astype(np.int32)
        ids = _binary(self._between_ends(pool[source], lengths), lengths, present)
        return Encoded(ids, lengths, full_lengths)

    def _between_ends(self, inner: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Put the first and the last id around the ids of each text."""
        ids = np.empty(int(lengths.sum()), "<i4")
        is_inner = np.ones(len(ids), np.bool_)
        ends = np.cumsum(lengths)[lengths > 0]
        starts = ends - lengths[lengths > 0]
        for place, token in ((starts, self._ends[0]), (ends - 1, self._ends[1])):
            ids[place] = token
            is_inner[place] = False
        ids[is_inner] = inner
        return ids


class ChunkCache:
    """Remembers the ids of distinct chunks; starts afresh beyond `most_bytes` of chunk text."""

    def __init__(
        self,
        encode: Callable[[Sequence[bytes]], Iterable[Sequence[int]]],
        most_bytes: int = CACHE_BYTES,
    ) -> None:
        self._encode = encode
        self._most_bytes = most_bytes
        self._clear()

    def _clear(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._first = array("q")
        self._count = array("q")
        self._pool = array("i")
        self._bytes = 0

    def ragged(self, distinct: pa.BinaryArray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return start and size of each chunk's ids, int64 [chunks], and the int32 pool of ids."""
        chunks = distinct.to_pylist()
        if self._bytes > self._most_bytes:
            self._clear()
        # One look for each chunk: nearly all are known after the first few texts.
        found = map(self._numbers.get, chunks, repeat(-1))
        numbers = np.fromiter(found, np.int64, len(chunks))
        new = np.flatnonzero(numbers < 0)
        numbers[new] = np.arange(len(self._first), len(self._first) + len(new))
        self._add([chunks[place] for place in new.tolist()])
        # The arrays cannot grow while a view of them is alive: what leaves here is a copy.
        return (
            np.frombuffer(self._first, np.int64)[numbers],
            np.frombuffer(self._count, np.int64)[numbers],
            np.array(self._pool, np.int32),
        )

    def _add(self, chunks: Sequence[bytes]) -> None:
        for chunk, ids in zip(chunks, self._encode(chunks), strict=True):
            self._numbers[chunk] = len(self._first)
            self._first.append(len(self._pool))
            self._count.append(len(ids))
            self._pool.extend(ids)
        self._bytes += sum(map(len, chunks))


def _chunk_rules(parts: Mapping[str, Any]) -> ChunkRules | None:
    """Return the rules in a tokenizer's JSON form; None if it does not allow chunks."""
    normalizer = parts["normalizer"] or {}
    word_start = _word_start(parts["pre_tokenizer"] or {})
    model = parts["model"]
    added = parts["added_tokens"]
    fits = (
        normalizer.get("type") == "BertNormalizer"
        and word_start is not None
        and model.get("type") in _MODELS
        # Dropout draws other pieces for the same word each time.
        and not model.get("dropout")
        # Such a token is looked for in the normalised text.
        and not any(token["normalized"] for token in added)
        and _adds_two_ends(parts["post_processor"] or {})
    )
    if not fits or word_start is None:
        return None
    contents = tuple(token["content"] for token in added)
    return ChunkRules(bool(normalizer["lowercase"]), word_start, contents)


def _word_start(pre_tokenizer: Mapping[str, Any]) -> str | None:
    """Return the word prefix of a pre-tokenizer; None if its words are not BERT's."""
    steps = pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    kinds = [step.get("type") for step in steps]
    if kinds == ["BertPreTokenizer"]:
        return ""
    if kinds == ["BertPreTokenizer", "Metaspace"] and steps[1]["prepend_scheme"] == "always":
        return str(steps[1]["replacement"])
    return None


def _adds_two_ends(post_processor: Mapping[str, Any]) -> bool:
    if post_processor.get("type") == "BertProcessing":
        return True
    single = [next(iter(piece)) for piece in post_processor.get("single", [])]
    return single == ["SpecialToken", "Sequence", "SpecialToken"]


def _chunk_ids(
    tokenizer: Tokenizer, rules: ChunkRules
) -> Callable[[Sequence[bytes]], Iterable[Sequence[int]]]:
    """Return a function that gives the ids of distinct chunks."""
    model, word_start = tokenizer.model, rules.word_start

    def encode(chunks: Sequence[bytes]) -> Iterable[Sequence[int]]:
        words = [plain_word(chunk) for chunk in chunks]
        texts = [chunk.decode() for chunk, word in zip(chunks, words, strict=True) if word is None]
        encodings = iter(tokenizer.encode_batch_fast(texts, add_special_tokens=False))
        for word in words:
            if word is None:
                yield next(encodings).ids
            else:
                # Neither normaliser nor pre-tokenizer would change a plain word.
                yield [token.id for token in model.tokenize(word_start + word)]

    return encode


def _present(texts: pa.StringArray) -> np.ndarray:
    present: np.ndarray = texts.is_valid().to_numpy(zero_copy_only=False)
    return present


def _sums(counts: np.ndarray) -> np.ndarray:
    """Return the exclusive prefix sums, with the total at the end."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def _cut(
    ids: np.ndarray, lengths: np.ndarray, most: int, behind: int
) -> tuple[np.ndarray, np.ndarray]:
    """Keep ``most`` ids of a longer row: the first ones, and the last ``behind``."""
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    place = np.arange(len(ids)) - starts
    from_end = np.repeat(lengths, lengths) - place
    kept = (place < most - behind) | (from_end <= behind)
    return ids[kept], np.minimum(lengths, most)


def _binary(ids: np.ndarray, lengths: np.ndarray, present: np.ndarray) -> pa.BinaryArray:
    """Return rows of ids as a binary column, null where not present."""
    offsets = (4 * _sums(lengths)).astype(np.int32)
    validity = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(ids)]
    return pa.Array.from_buffers(pa.binary(), len(lengths), buffers)
