"""The texts on which an export is compared with its model: real ones, short and long.

They are the user's own, from the prepared corpus, if there is one; otherwise docstrings of Python's
standard library. Sentences in many scripts are always among them, with texts of hardly any token.
"""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pyarrow.parquet as pq

from pipelines.files.locations import Location, arrow_source, listed
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.settings import Config

MOST = 256
"""Texts of the corpus or of the documentation."""
SHORT = 1000
"""Characters kept of them: some 250 tokens, so that a batch of many fits into memory."""
LONGEST = 2048
"""Tokens of the longest texts, if a model reads so many."""
_CHARACTERS_A_TOKEN = 6
_SIDES = ("anchor", "positive")

# ruff: noqa: RUF001 - letters of many scripts are the purpose
SENTENCES = (
    *("", " ", "\n\t", "a", "?", "42", "...", "-", "🙂", "🚀🚀🚀", "e\u0301", "\u200b", "x" * 300),
    "How do I reset my password?",
    "THE LIBRARY IS CLOSED ON MONDAYS.",
    "It costs 12.50 EUR (about $14) a month, 20 % less than in 2019!",
    "def area(width, height): return width * height",
    "See https://example.org/a?b=c#d or write to info@example.org.",
    "Great work 👍🏽, see you at the 🏖️ next week 👨‍👩‍👧!",
    "Der Zug nach München fährt heute später ab, weil die Strecke gesperrt ist.",
    "L'été dernier, nous avons mangé des crêpes près de la forêt.",
    "¿Dónde está la estación de autobuses más cercana?",
    "A reunião começa às nove e termina antes do almoço.",
    "Łódź leży w środkowej Polsce, a Gdańsk nad morzem.",
    "Yarın sabah erkenden İstanbul'a gideceğiz.",
    "Hôm nay trời mưa nên chúng tôi ở nhà.",
    "Вчера вечером мы читали книгу о звёздах.",
    "Το πλοίο φεύγει από το λιμάνι στις οκτώ.",
    "המוזיאון נפתח בשעה תשע בבוקר.",
    "تصل الحافلة إلى المدينة بعد ساعة.",
    "मुझे चाय के साथ थोड़ी चीनी चाहिए।",
    "วันนี้อากาศดีมาก",
    "今天下午我们去图书馆看书。",
    "明日は早く起きて、海へ行きます。",
    "오늘 저녁에 친구를 만나서 영화를 봅니다.",
)


@dataclass(frozen=True)
class CheckTexts:
    """Texts to compare: the short ones fit into large batches. The origin is for people."""

    own: tuple[str, ...]
    given: tuple[str, ...]
    long: tuple[str, ...]
    origin: str

    @property
    def short(self) -> tuple[str, ...]:
        """Sentences of this module, and the beginnings of the given texts."""
        return self.own + self.given

    @property
    def every(self) -> tuple[str, ...]:
        """The short texts, then the long ones."""
        return self.short + self.long


def check_texts(config: Config, max_length: int) -> CheckTexts:
    """Return the texts for a model that reads `max_length` tokens.

    The long ones reach its maximum, or :data:`LONGEST`.
    """
    found, origin = _corpus_texts(PreparedFolder.of(config).corpus.pairs), "of the corpus"
    if not found:
        found = [*islice(_documentation(), MOST)]
        origin = "of Python's documentation"
    limit = min(max_length, LONGEST) * _CHARACTERS_A_TOKEN
    whole = " ".join(found)
    whole *= -(-2 * limit // max(len(whole), 1))
    longs = (whole[:limit], whole[limit : limit + limit // 2], whole[-limit // 4 :])
    return CheckTexts(SENTENCES, tuple(text[:SHORT] for text in found), longs, origin)


def _corpus_texts(pairs: Location) -> list[str]:
    """Return texts of a prepared corpus, from the first rows: these lie in the order of hashes."""
    texts: list[str] = []
    for path in listed(pairs, "*.parquet") if pairs.is_dir() else ():
        file = pq.ParquetFile(arrow_source(path))
        columns = [name for name in _SIDES if name in file.schema_arrow.names]
        for batch in islice(file.iter_batches(batch_size=MOST // len(_SIDES), columns=columns), 1):
            texts += (text for name in columns for text in batch[name].to_pylist() if text)
        if len(texts) >= MOST:
            break
    return texts[:MOST]


def _documentation() -> Iterator[str]:
    """Yield docstrings of the standard library."""
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                text = ast.get_docstring(node)
                if text:
                    yield text
