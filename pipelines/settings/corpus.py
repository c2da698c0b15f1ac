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
    """Return the list column and the index that a name stands for, or None.

    A name that is in `columns` itself stands for that column.
    """
    found = None if name in columns else _ELEMENT.fullmatch(name)
    return None if found is None else (found["column"], int(found["place"]))


def column_of(name: str, columns: Collection[str]) -> str:
    """Return the column to read for a name."""
    element = element_of(name, columns)
    return name if element is None else element[0]


def _spelled_out(names: Any) -> Any:
    is_text = isinstance(names, Sequence) and all(isinstance(name, str) for name in names)
    return tuple(spelled_out(names)) if is_text and not isinstance(names, str) else names


Names = Annotated[tuple[str, ...], BeforeValidator(_spelled_out)]
"""Names of columns, and of elements of list columns."""
SIDES = ("anchor", "positive", "negatives")
"""Texts of an example that may have prompts of their own."""


class SourceForm(Settings):
    """The texts of a corpus or of one of its sources, and how they become examples."""

    format: Annotated[str, choice_of(FORMATS)] = "docstrings"
    """What the inputs are. `docstrings`: the installed Python packages; `documents`: text, Markdown
    and WikiExtractor files, told apart by name and first bytes; `table`, `iceberg`: tables by name;
    `delta`: table folders."""
    inputs: tuple[InputPath, ...] = ()
    """Files, folders or globs; empty only with format `docstrings`."""
    pairs: Literal[
        "summary", "adjacent", "title", "document", "columns", "triplets", "group", "single"
    ] = "summary"
    """`summary`: a text's first sentence with the paragraph after it; `adjacent`: two sentences of
    a document that follow one another; `title`: a document's title with its first paragraph;
    `document`: its title with its text, or without a title a piece of its text with what is around
    it; `columns`: the two `pair_columns`; `triplets`: the `triplet_columns`; `group`: any two texts
    of one `group_column`; `single`: texts alone."""
    sentences: bool = False
    """Cut the texts of `pairs: single` into their sentences."""
    text_column: str = "text"
    """Column that holds the text."""
    pair_columns: tuple[str, str] = ("sentence1", "sentence2")
    """The two columns of `pairs: columns`."""
    triplet_columns: Names = ("anchor", "positive", "negative")
    """The columns of `pairs: triplets`: anchor, positive, one or more negatives. Of a column of
    lists, `wrong[0:5]` are the first five texts."""
    title_column: str | None = "title"
    """Column of the titles of `pairs: title` and `document`, where there are columns; null:
    documents have none."""
    group_column: str | None = None
    """Rows that share its value never meet in one granule; `pairs: group` needs it."""
    key_column: str | None = None
    """Column that says whose a row is; `delete` removes rows by its values. With it, no excerpt is
    kept of what could not be read, nor of what is cut out of a text."""
    score_column: str | None = None
    """Similarity of a pair, or its label, for [losses](losses.md) on them."""
    score_columns: Names = ()
    """Scores that a teacher gives the positive and each negative of `pairs: triplets`, in the order
    of `triplet_columns`; as they are, of any range."""
    score_range: tuple[float, float] = (0.0, 1.0)
    """Lowest and highest value in `score_column`."""
    pairs_per_group: int = Field(default=10, ge=1)
    """Most pairs that are made of one group."""
    csv_multiline: bool = True
    """Whether quoted fields of CSV files may hold line ends. If not, several tasks read a large
    file, and a line in which a quote stays open goes to the quarantine."""
    csv_separator: CsvSeparator = None
    csv_escape: CsvEscape = None
    min_characters: int = Field(default=10, ge=1)
    """Shorter texts are dropped."""
    max_characters: int = Field(default=5000, ge=1)
    """Longer texts are dropped, of `pairs: document` cut."""
    max_symbols: float = Field(default=0.4, ge=0, le=1)
    """Largest share of characters that are neither letter, mark, digit nor space."""
    max_repeated: float = Field(default=0.5, ge=0, le=1)
    """Largest share of words in three-word sequences that the text repeats."""
    languages: tuple[str, ...] = ()
    """Texts in other languages are dropped (ISO 639 codes); empty: all are kept."""
    prompts: Mapping[str, str] | None = None
    """Text before each side of an example in training, by `anchor`, `positive` and `negatives`;
    unset: the model's own prompts. The model keeps its own."""

    @property
    def hard_negatives(self) -> int:
        """Return the number of hard negatives in an example."""
        return len(self.triplet_columns) - 2 if self.pairs == "triplets" else 0

    def check_form(self) -> None:
        """Refuse missing inputs, and pairs that lack columns; errors name keys of `corpus`."""
        if self.format != "docstrings" and not self.inputs:
            raise InputError(
                "corpus.inputs", "it is empty", f"name the {self.format} files to read"
            )
        for language in self.languages:
            if re.fullmatch("[a-z]{2,3}", language) is None:
                raise InputError(
                    "corpus.languages",
                    f"`{language}` is no ISO 639 code",
                    "for example en, de or ko",
                )
        if self.sentences and self.pairs != "single":
            raise InputError(
                "corpus.sentences", f"`{self.pairs}` does not ask for it", "leave it out, or single"
            )
        self._check_triplets()
        if self.pairs == "title" and self.title_column is None:
            raise InputError("corpus.title_column", "`pairs: title` needs it", "name the column")
        if self.pairs == "group" and self.group_column is None:
            raise InputError("corpus.group_column", "`pairs: group` needs it", "name the column")
        if self.min_characters > self.max_characters:
            raise InputError(
                "corpus.min_characters",
                f"{self.min_characters} is more than corpus.max_characters",
                f"at most {self.max_characters}",
            )
        for side in self.prompts or ():
            if side not in SIDES:
                raise InputError(
                    "corpus.prompts", f"`{side}` is no side", f"one of {', '.join(SIDES)}"
                )

    def _check_triplets(self) -> None:
        """Refuse too few columns of triplets, and scores of other texts."""
        if len(self.triplet_columns) < 3:
            raise InputError(
                "corpus.triplet_columns",
                f"it names {len(self.triplet_columns)} columns",
                "an anchor, a positive and at least one negative",
            )
        candidates = self.triplet_columns[1:] if self.pairs == "triplets" else ()
        if self.score_columns and len(self.score_columns) != len(candidates):
            raise InputError(
                "corpus.score_columns",
                f"it names {len(self.score_columns)} columns for {len(candidates)} candidates",
                f"one for each of {', '.join(candidates)}" if candidates else "set pairs=triplets",
            )


class SourceSettings(SourceForm):
    """A source: its own keys of `corpus`, and how it is trained on."""

    name: str
    """What tells the source from others: letters, digits, `_`, `-`."""
    weight: float | None = Field(default=None, gt=0)
    """Its share of the steps of an epoch, beside the weights of the others: a small source is read
    several times, a large one over several epochs. Unset, for all sources: as many steps as it
    has."""
    objective: AnyObjective | None = None
    """Its own loss, with all keys of `objective`; unset: that section."""


def completed(corpus: Any) -> Any:
    """Return the section with each source completed by the section's keys that it leaves out.

    This makes a source whole wherever it is recorded. Anything but a section stays as it is.
    """
    if not isinstance(corpus, Mapping) or not isinstance(corpus.get("sources"), (list, tuple)):
        return corpus
    shared = {key: value for key, value in corpus.items() if key in SourceForm.model_fields}
    sources = [{**shared, **one} if isinstance(one, Mapping) else one for one in corpus["sources"]]
    return {**corpus, "sources": sources}


class CorpusSettings(SourceForm):
    """The texts to read, and how they become pairs."""

    follow_links: FollowLinks = False
    near_duplicates: float | None = Field(default=None, ge=0, le=1)
    """Jaccard similarity of 5-character shingles from which a text is a near duplicate of an
    earlier one and dropped; 0: none are. Unset: 0.8 for sentences, 0 otherwise."""
    redact: str | None = None
    """Function from text to text, as `module:function`, that each text goes through on the
    executors before it is cut, hashed or written."""
    max_record_megabytes: int = Field(default=16, ge=1, le=512)
    """Longest line or record; longer ones are quarantined unread."""
    max_quarantined: float = Field(default=0.01, ge=0, le=1)
    """Largest share of the rows that may be unreadable; more of them is an error."""
    max_dropped: float | None = Field(default=None, ge=0, le=1)
    """Largest share of the rows that may lack a usable value of a column: a score that is no number
    or out of `score_range`; a text, group or title that is not there. More of them is an error.
    Unset: 0.1 for scores, 0.5 for the others."""
    report_examples: int = Field(default=3, ge=0, le=20)
    """Texts that reports show of each reason why some are dropped, and held-out queries of each
    kind; 0: no text is in statistics, quarantine, samples and reports."""
    evaluation_share: float = Field(default=0.05, ge=0.0, lt=1.0)
    """Share of the groups (of the pairs, for docstrings: whole packages) that is held out, by hash,
    for the retrieval evaluation."""
    evaluation_pairs: int = Field(default=2000, ge=1)
    """Most held-out pairs that are kept for evaluation."""
    evaluation_documents: int = Field(default=20_000, ge=0)
    """Most documents of the pairs for training, drawn by hash, that held-out queries search besides
    their own; with few, retrieval looks better than it is."""
    exclude: tuple[StoredPath, ...] = ()
    """Files (Parquet, CSV or JSON lines) whose texts must not be trained on, nor near duplicates of
    them; a match drops its whole group, or the sentence in a document."""
    exclude_columns: tuple[str, ...] = ("sentence1", "sentence2")
    """Text columns of the `exclude` files."""
    sources: tuple[SourceSettings, ...] = ()
    """Several corpora that are trained on together, a batch from one of them: a list of mappings
    with a `name`, the keys from `format` to `prompts` above that differ from this section's, and
    `weight` and `objective`."""

    @model_validator(mode="before")
    @classmethod
    def _complete_sources(cls, given: Any) -> Any:
        return completed(given)

    def check(self) -> None:
        """Refuse a corpus without texts, and kinds of pairs that lack what they need."""
        # Each of several sources is checked as if it were alone.
        if not self.sources:
            self.check_form()
        if self.redact is not None and re.fullmatch(r"[\w.]+:\w+", self.redact) is None:
            raise InputError(
                "corpus.redact",
                f"`{self.redact}` is no module with a function",
                "name it as `module:function`",
            )
