"""The section `corpus` of the settings."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from pipelines.catalog import FORMATS
from pipelines.errors import InputError
from pipelines.settings.base import (
    CsvEscape,
    CsvSeparator,
    FollowLinks,
    InputPath,
    Settings,
    StoredPath,
    choice_of,
)
from pipelines.settings.objective import AnyObjective

_ELEMENT = re.compile(r"(?P<column>.+)\[(?P<place>\d+)\]")
_ELEMENTS = re.compile(r"(?P<column>.+)\[(?P<first>\d*):(?P<end>\d+)\]")


def spelled_out(names: Iterable[str]) -> Iterator[str]:
    """Yield column names, with `wrong[0:3]` as `wrong[0]`, `wrong[1]` and `wrong[2]`."""
    for name in names:
        found = _ELEMENTS.fullmatch(name)
        if found is None:
            yield name
            continue
        for place in range(int(found["first"] or 0), int(found["end"])):
            yield f"{found['column']}[{place}]"


def element_of(name: str, columns: Collection[str]) -> tuple[str, int] | None:
    """Return the list column and the index of a name such as `wrong[0]`, or None.

    A column may itself have such a name.
    """
    found = None if name in columns else _ELEMENT.fullmatch(name)
    return None if found is None else (found["column"], int(found["place"]))


def column_of(name: str, columns: Collection[str]) -> str:
    """Return the column to read for a name."""
    element = element_of(name, columns)
    return name if element is None else element[0]


def _spelled_out(names: Any) -> Any:
    # Pydantic refuses anything else, and names the setting.
    is_text = isinstance(names, Sequence) and all(isinstance(name, str) for name in names)
    return tuple(spelled_out(names)) if is_text and not isinstance(names, str) else names


Names = Annotated[tuple[str, ...], BeforeValidator(_spelled_out)]
"""Names of columns, and of elements of list columns."""
SIDES = ("anchor", "positive", "negatives")
"""Texts of an example that may have prompts of their own."""


class SourceForm(Settings):
    """The texts of a corpus or of one of its sources, and how they become examples."""

    format: Annotated[str, choice_of(FORMATS)] = "docstrings"
    """[Format](../concepts/corpus.md#formats) of the inputs. `docstrings`: installed Python
    packages; `documents`: `text`, `markdown` and `wikiextractor`, detected by name and first bytes;
    `table`, `iceberg`: tables by name; `delta`: [folders or
    addresses](../concepts/corpus.md#delta-and-iceberg)."""
    inputs: tuple[InputPath, ...] = ()
    """Files, folders, globs or tables. Only `docstrings` needs none."""
    pairs: Literal[
        "summary", "adjacent", "title", "document", "columns", "triplets", "group", "single"
    ] = "summary"
    """How texts become examples; see [pairs](../concepts/corpus.md#pairs)."""
    sentences: bool = False
    """Split texts of `pairs: single` into sentences."""
    text_column: str = "text"
    """Text column."""
    pair_columns: tuple[str, str] = ("sentence1", "sentence2")
    """Columns of `pairs: columns`."""
    triplet_columns: Names = ("anchor", "positive", "negative")
    """Columns of `pairs: triplets`: anchor, positive, one or more negatives. `wrong[0:5]` is the
    first five texts of a list column."""
    title_column: str | None = "title"
    """Title column of `pairs: title` and `document`. Null: documents have no titles."""
    group_column: str | None = None
    """Rows of one group never share a granule (a fixed micro-batch). `pairs: group` needs it."""
    key_column: str | None = None
    """Owner of a row, for `delete`. With it, `prepare` keeps no excerpts of unreadable or removed
    text."""
    score_column: str | None = None
    """Similarity or label of a pair, for [losses](losses.md) on scores."""
    score_columns: Names = ()
    """Teacher scores, of any range, of the positive and each negative of `pairs: triplets`, in the
    order of `triplet_columns`."""
    score_range: tuple[float, float] = (0.0, 1.0)
    """Lowest and highest value in `score_column`."""
    pairs_per_group: int = Field(default=10, ge=1)
    """Most pairs per group."""
    csv_multiline: bool = True
    """Allow line ends in quoted CSV fields. `false`: tasks share large files, and quarantine lines
    with open quotes."""
    csv_separator: CsvSeparator = None
    csv_escape: CsvEscape = None
    min_characters: int = Field(default=10, ge=1)
    """Drop shorter texts."""
    max_characters: int = Field(default=5000, ge=1)
    """Drop longer texts; `pairs: document` truncates them."""
    max_symbols: float = Field(default=0.4, ge=0, le=1)
    """Largest share of characters other than letters, marks, digits and spaces."""
    max_repeated: float = Field(default=0.5, ge=0, le=1)
    """Largest share of words in repeated three-word sequences."""
    languages: tuple[str, ...] = ()
    """Languages to keep (ISO 639 codes). Empty: all."""
    prompts: Mapping[str, str] | None = None
    """Training prompts of `anchor`, `positive` and `negatives`; the saved model keeps its own.
    Null: the model's."""

    @property
    def hard_negatives(self) -> int:
        """Return the number of hard negatives in an example."""
        return len(self.triplet_columns) - 2 if self.pairs == "triplets" else 0

    def check_form(self) -> None:
        """Refuse missing inputs, and pairs without columns; errors name keys of `corpus`."""
        if self.format != "docstrings" and not self.inputs:
            raise InputError(
                "corpus.inputs", "it is empty", f"Name the {self.format} files to read"
            )
        for language in self.languages:
            if re.fullmatch("[a-z]{2,3}", language) is None:
                raise InputError(
                    "corpus.languages",
                    f"`{language}` is no ISO 639 code",
                    "Write codes such as en, de or ko",
                )
        if self.sentences and self.pairs != "single":
            raise InputError(
                "corpus.sentences",
                f"`pairs: {self.pairs}` does not use it",
                "Leave it out, or set corpus.pairs to single",
            )
        self._check_triplets()
        if self.pairs == "title" and self.title_column is None:
            raise InputError("corpus.title_column", "`pairs: title` needs it", "Name the column")
        if self.pairs == "group" and self.group_column is None:
            raise InputError("corpus.group_column", "`pairs: group` needs it", "Name the column")
        if self.min_characters > self.max_characters:
            raise InputError(
                "corpus.min_characters",
                f"{self.min_characters} is more than corpus.max_characters",
                f"Set it to at most {self.max_characters}",
            )
        for side in self.prompts or ():
            if side not in SIDES:
                raise InputError(
                    "corpus.prompts", f"`{side}` is no side", f"Choose one of {', '.join(SIDES)}"
                )

    def _check_triplets(self) -> None:
        """Refuse too few columns of triplets, and scores of other texts."""
        if len(self.triplet_columns) < 3:
            raise InputError(
                "corpus.triplet_columns",
                f"it names {len(self.triplet_columns)} columns",
                "Name an anchor, a positive and at least one negative",
            )
        candidates = self.triplet_columns[1:] if self.pairs == "triplets" else ()
        if self.score_columns and len(self.score_columns) != len(candidates):
            raise InputError(
                "corpus.score_columns",
                f"it names {len(self.score_columns)} columns for {len(candidates)} candidates",
                f"Name one for each of {', '.join(candidates)}"
                if candidates
                else "Set corpus.pairs to triplets",
            )


class SourceSettings(SourceForm):
    """A source: its own keys of `corpus`, and how it is trained on."""

    name: str
    """Name of the source: letters, digits, `_`, `-`."""
    weight: float | None = Field(default=None, gt=0)
    """Share of an epoch's steps relative to other weights: small sources repeat, large ones span
    several epochs. Null, for all sources: by size."""
    objective: AnyObjective | None = None
    """Loss of the source, with all keys of `objective`. Null: that section."""


def completed(corpus: Any) -> Any:
    """Return the section with each source completed by the section's keys.

    Records of a run then hold complete sources. Anything but a section stays as it is.
    """
    if not isinstance(corpus, Mapping) or not isinstance(corpus.get("sources"), (list, tuple)):
        return corpus
    shared = {key: value for key, value in corpus.items() if key in SourceForm.model_fields}
    sources = [
        {**shared, **source} if isinstance(source, Mapping) else source
        for source in corpus["sources"]
    ]
    return {**corpus, "sources": sources}


class CorpusSettings(SourceForm):
    """The texts to read, and how they become pairs."""

    follow_links: FollowLinks = False
    near_duplicates: float | None = Field(default=None, ge=0, le=1)
    """Drop texts with at least this Jaccard similarity (5-character shingles) to an earlier one.
    0: off. Null: 0.8 for sentences, otherwise 0."""
    redact: str | None = None
    """`module:function` from text to text. Executors apply it before they split, hash or write a
    text."""
    max_record_megabytes: int = Field(default=16, ge=1, le=512)
    """Longest line or record. `prepare` quarantines longer ones unread."""
    max_quarantined: float = Field(default=0.01, ge=0, le=1)
    """Largest share of unreadable rows; beyond it, `prepare` fails."""
    max_dropped: float | None = Field(default=None, ge=0, le=1)
    """Largest share of rows without a usable score, text, group or title; beyond it, `prepare`
    fails. Null: 0.1 for scores, otherwise 0.5."""
    report_examples: int = Field(default=3, ge=0, le=20)
    """Example texts per drop reason, and held-out queries per kind, in reports. 0: no text in
    statistics, quarantine, samples and reports."""
    evaluation_share: float = Field(default=0.05, ge=0.0, lt=1.0)
    """Share of groups (for docstrings, of packages) held out by hash for retrieval evaluation."""
    evaluation_pairs: int = Field(default=2000, ge=1)
    """Most held-out pairs for evaluation."""
    evaluation_documents: int = Field(default=20_000, ge=0)
    """Most training documents, drawn by hash, that held-out queries also search. Few documents
    flatter retrieval."""
    exclude: tuple[StoredPath, ...] = ()
    """Files (Parquet, CSV, JSON lines) of texts to keep out of training. A match, or near
    duplicate, drops its group, or a document's sentence."""
    exclude_columns: tuple[str, ...] = ("sentence1", "sentence2")
    """Text columns of `exclude`."""
    sources: tuple[SourceSettings, ...] = ()
    """[Several corpora](../guides/several-corpora.md), one per batch: mappings with `name`,
    `weight`, `objective`, and any keys from `format` to `prompts` that differ from this section."""

    @model_validator(mode="before")
    @classmethod
    def _complete_sources(cls, given: Any) -> Any:
        return completed(given)

    def check(self) -> None:
        """Refuse a corpus without texts, and pairs without their columns."""
        # `Config` checks each of several sources as the only corpus.
        if not self.sources:
            self.check_form()
        if self.redact is not None and re.fullmatch(r"[\w.]+:\w+", self.redact) is None:
            raise InputError(
                "corpus.redact",
                f"`{self.redact}` is no module with a function",
                "Name it as `module:function`",
            )
