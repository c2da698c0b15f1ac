"""The section `questions`: documents, the language model that asks about them, and the filters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, field_validator

from pipelines.catalog import GENERATORS, TABLE_FORMATS
from pipelines.errors import InputError
from pipelines.settings.base import (
    CsvEscape,
    CsvSeparator,
    FollowLinks,
    InputPath,
    NameOrPath,
    Settings,
    StoredPath,
    choice_of,
    refusal,
)

PACKAGED_PROMPTS = ("question", "keywords", "claim")
"""Prompts of the package, by name."""

# English only: questions in other languages pass, unless you name their phrases.
META_PHRASES = (
    r"\b(the|this|that) (text|document|passage|article|paper|paragraph|excerpt|abstract|author)",
    r"\b(according to|as (stated|mentioned|described|discussed) in|mentioned (above|in the))\b",
    r"\bwhich of the following\b|\btrue or false\b|\bfill in the\b|\bmultiple[- ]choice\b",
    r"\b(the|this|these) (authors?|stud(y|ies)|researchers?|findings)\b",
)
"""Regular expressions of exam-style questions, and of questions about the document itself."""


def _as_json(value: Any) -> Any:
    """Return a value of a YAML file as JSON has it; `no` is false."""
    if isinstance(value, Mapping):
        return {str(name): _as_json(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(one) for one in value]
    return getattr(value, "truth", value)


class QuestionSettings(Settings):
    """The documents, the language model that `ask` asks for their questions, and the filters."""

    format: Annotated[str, choice_of(TABLE_FORMATS)] = "parquet"
    """Type of the inputs. `text`: a document per line, in `text_column`."""
    inputs: tuple[InputPath, ...] = ()
    """Documents: files, folders, globs or tables."""
    follow_links: FollowLinks = False
    csv_separator: CsvSeparator = None
    csv_escape: CsvEscape = None
    text_column: str = "text"
    """Text column. Equal texts count as one document."""
    title_column: str | None = None
    """Title column, for the prompt and for the filter of copied titles. Null: no titles."""
    key_column: str | None = None
    """Column to copy as `key`: the owner of a row."""
    output: StoredPath = "questions"
    """Folder of the table of questions and documents, shared by driver and executors."""
    overwrite: bool = False
    """Ask again for a table that another model, prompt or sampling has made. An unfinished table of
    the same settings continues."""
    generator: Annotated[str, choice_of(GENERATORS)] = "endpoint"
    """`endpoint`: a server with OpenAI's API, such as vLLM, Ollama, Azure or Databricks;
    `transformers`: a model folder, on the executors; `vllm`: a folder in vLLM, for GPUs that Spark
    gives to the tasks."""
    address: NameOrPath | None = None
    """Base URL of the `endpoint`: `http://host:8000/v1`."""
    model: NameOrPath | None = None
    """Name of the model at the endpoint, or its folder for `transformers` and `vllm`."""
    key_variable: str = "QUESTIONS_API_KEY"
    """Environment variable of the driver with the API key of the endpoint, if it needs one. The
    driver sends it to the executors."""
    prompts: tuple[NameOrPath, ...] = ("question",)
    """What to ask for: `question`, `keywords` (a query of a few words), `claim`, or your own prompt
    files. Each document gets a request for each."""
    per_prompt: int = Field(default=3, ge=1, le=20)
    """Questions for each document and prompt."""
    examples: StoredPath | None = None
    """File of real queries, one per line, as examples in the prompts. Do not name queries that
    later measure the model. Null: none."""
    examples_shown: int = Field(default=4, ge=1, le=50)
    """Queries of `examples` in each prompt, drawn anew for each document."""
    language: str | None = None
    """Language of the questions (ISO 639 code). Null: that of the document."""
    document_characters: int = Field(default=4000, ge=100)
    """Longest beginning of a document in a prompt."""
    max_tokens: int = Field(default=256, ge=8)
    """Longest reply, in tokens."""
    temperature: float | None = Field(default=0.7, ge=0, le=2)
    """Randomness of the replies. 0: the most probable words. Null: the model's own."""
    seed: int = Field(default=1, ge=0)
    """Seed of examples and replies. Servers may ignore it; where one refuses it, only examples
    have it."""
    extra_body: Annotated[Mapping[str, Any] | None, BeforeValidator(_as_json)] = None
    """Further fields of each request to the `endpoint`. Without thoughts in vLLM:
    `{chat_template_kwargs: {enable_thinking: false}}`. Null: none."""
    requests: int = Field(default=16, ge=1, le=10_000)
    """Most requests to the `endpoint` at a time, of all executors together."""
    timeout_seconds: float = Field(default=120.0, gt=0)
    """Time limit of a request."""
    retries: int = Field(default=8, ge=0, le=100)
    """Repetitions of a request that failed for the moment: a busy server, a cut connection, an
    unreadable answer. The server's `Retry-After` is heeded up to two minutes."""
    token_budget: int | None = Field(default=None, ge=1)
    """Most tokens of prompts and replies of one update. The table then has the documents asked
    about so far, and the next `ask` goes on. Null: no limit."""
    price_input: float | None = Field(default=None, ge=0)
    """Price of a million prompt tokens, for the costs in the output."""
    price_output: float | None = Field(default=None, ge=0)
    """Price of a million reply tokens."""
    least_kept: float = Field(default=0.2, ge=0, le=1)
    """Least portion of questions that must pass the filters. Below it `recipe: questions` does not
    train."""
    part_documents: int | None = Field(default=None, ge=1, le=65_536)
    """Documents of a part, a file of replies. Null: 16 to 256, by the number of documents."""
    min_characters: int = Field(default=8, ge=1)
    """Drop shorter questions."""
    max_characters: int = Field(default=300, ge=1)
    """Drop longer questions."""
    meta_phrases: tuple[str, ...] = META_PHRASES
    """Drop questions that match one of these regular expressions, whatever their case."""
    title_overlap: float | None = Field(default=0.8, gt=0, le=1)
    """Drop questions that share at least this portion of words with the title (Jaccard). Null:
    off."""
    copied_words: int | None = Field(default=8, ge=1)
    """Drop questions of at least so many words that the document has in one piece. Null: off."""
    same_language: bool = True
    """Drop questions in another language than asked for, where both are identified. Needs the extra
    `languages`."""
    round_trip: int | None = Field(default=20, ge=1, le=1000)
    """Drop questions whose document is not among so many found for them by `round_trip_model` and
    BM25 together. Null: off."""
    round_trip_model: StoredPath = "default"
    """A sentence-transformers folder, or `default` (the packaged all-MiniLM-L6-v2)."""

    @field_validator("meta_phrases")
    @classmethod
    def _check_phrases(cls, phrases: tuple[str, ...]) -> tuple[str, ...]:
        for phrase in phrases:
            try:
                re.compile(phrase)
            except re.error as error:
                raise refusal(
                    f"`{phrase}` is no regular expression ({error})", "Correct it"
                ) from None
        return phrases

    def check(self) -> None:
        """Refuse contradictions between keys."""
        if self.min_characters > self.max_characters:
            raise InputError(
                "questions.min_characters",
                f"{self.min_characters} is more than questions.max_characters",
                f"Set it to at most {self.max_characters}",
            )
        if not self.prompts:
            raise InputError(
                "questions.prompts",
                "it is empty",
                f"Name one of {', '.join(PACKAGED_PROMPTS)}, or a file",
            )
        repeated = next((one for one in self.prompts if self.prompts.count(one) > 1), None)
        if repeated is not None:
            raise InputError(
                "questions.prompts", f"it names {repeated} twice", "Raise questions.per_prompt"
            )
        if self.language is not None and re.fullmatch("[a-z]{2,3}", self.language) is None:
            raise InputError(
                "questions.language",
                f"`{self.language}` is no ISO 639 code",
                "Write a code such as en, de or ko",
            )
