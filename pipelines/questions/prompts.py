"""Prompts for a language model.

A prompt is a text file with `$document`, `$count`, `$language` and `$examples`. The package has one
for each kind of query; users may name their own files.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from string import Template
from typing import Any

from pipelines.errors import InputError
from pipelines.files.locations import location
from pipelines.settings import QuestionSettings, StorageSettings
from pipelines.settings.questions import PACKAGED_PROMPTS

KEY = "questions.prompts"
EXAMPLES = "questions.examples"
_KNOWN = frozenset({"document", "count", "language", "examples"})
_OF_DOCUMENT = "the language of the document"


@dataclass(frozen=True)
class Prompt:
    """A prompt: its name in the table, and its template; plain values, sent to executors."""

    name: str
    template: str

    @property
    def placeholders(self) -> frozenset[str]:
        """The names of what the template asks for."""
        return frozenset(Template(self.template).get_identifiers())

    def text(self, document: str, *, count: int, language: str, examples: Sequence[str]) -> str:
        """Return the prompt of a document; ``examples`` may be empty."""
        shown = ""
        if examples:
            lines = "\n".join(f"- {example}" for example in examples)
            shown = f"\nReal queries, as examples of their style:\n{lines}\n"
        # Signs of the document are no placeholders: only the template is parsed.
        return Template(self.template).substitute(
            document=document, count=count, language=language, examples=shown
        )


def read_prompts(settings: QuestionSettings, stores: StorageSettings) -> tuple[Prompt, ...]:
    """Return the prompts of the settings.

    Raises:
        InputError: A file cannot be read, or is no prompt.
    """
    prompts = tuple(_prompt(name, stores) for name in settings.prompts)
    names = [prompt.name for prompt in prompts]
    for name in names:
        if names.count(name) > 1:
            raise InputError(KEY, f"two prompts have the name {name}", "Rename one of the files")
    for prompt in prompts:
        if settings.examples is not None and "examples" not in prompt.placeholders:
            problem = f"the prompt {prompt.name} has no $examples"
            raise InputError(EXAMPLES, problem, "Add it to the prompt, or leave the file out")
    return prompts


def _prompt(name: str, stores: StorageSettings) -> Prompt:
    if name in PACKAGED_PROMPTS:
        file = resources.files("pipelines.questions") / "prompts" / f"{name}.txt"
        return Prompt(name, file.read_text(encoding="utf-8"))
    path = location(name, stores).expanduser()
    try:
        template = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            KEY,
            f"{path} cannot be read ({error})",
            f"Name a text file, or one of {', '.join(PACKAGED_PROMPTS)}",
        ) from None
    return Prompt(path.stem, _checked(template, str(path)))


def _checked(template: str, path: str) -> str:
    parsed = Template(template)
    if not parsed.is_valid():
        raise InputError(KEY, f"{path} has a single $ sign", "Write $$ for the sign itself")
    names = set(parsed.get_identifiers())
    if unknown := sorted(names - _KNOWN):
        shown = ", ".join(f"${name}" for name in sorted(_KNOWN))
        raise InputError(KEY, f"{path} has ${unknown[0]}", f"Use {shown}, or write $$")
    if "document" not in names:
        raise InputError(KEY, f"{path} has no $document", "Add it where the document belongs")
    return template


def read_examples(settings: QuestionSettings, stores: StorageSettings) -> tuple[str, ...]:
    """Return the example queries of the settings, each once; none without a file.

    Raises:
        InputError: The file cannot be read, or holds no query.
    """
    if settings.examples is None:
        return ()
    path = location(settings.examples, stores).expanduser()
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(EXAMPLES, f"{path} cannot be read ({error})", "Name a text file") from None
    found = tuple(dict.fromkeys(line.strip() for line in lines if line.strip()))
    if not found:
        raise InputError(EXAMPLES, f"{path} is empty", "Write a query on each line")
    return found


@dataclass(frozen=True)
class Asking:
    """What a document is asked, but for its text; plain values, sent to executors.

    ``shown`` of the ``examples`` are drawn for each document by ``seed``.
    """

    prompts: tuple[Prompt, ...]
    examples: tuple[str, ...]
    shown: int
    count: int
    language: str | None
    characters: int
    seed: int

    @classmethod
    def of(cls, settings: QuestionSettings, stores: StorageSettings) -> Asking:
        """Read prompts and examples of the settings.

        Raises:
            InputError: One of them cannot be used.
        """
        return cls(
            prompts=read_prompts(settings, stores),
            examples=read_examples(settings, stores),
            shown=settings.examples_shown,
            count=settings.per_prompt,
            language=settings.language,
            characters=settings.document_characters,
            seed=settings.seed,
        )

    @property
    def identity(self) -> dict[str, Any]:
        """What the requests depend on, by setting, as JSON values."""
        prompts = [vars(prompt) for prompt in self.prompts]
        return {
            KEY: _digest(prompts),
            EXAMPLES: _digest(self.examples) if self.examples else None,
            "questions.examples_shown": self.shown if self.examples else None,
            "questions.per_prompt": self.count,
            "questions.language": self.language,
            "questions.document_characters": self.characters,
            "questions.seed": self.seed,
        }

    def requests(self, text: str, title: str | None) -> Iterator[tuple[str, str, int]]:
        """Yield the name of each prompt, its text for a document, and the request's seed."""
        language = _OF_DOCUMENT
        if self.language is not None:
            language = f"the language with the ISO 639 code `{self.language}`"
        beginning = shortened(text, self.characters)
        document = f"{title.strip()}\n\n{beginning}" if title and title.strip() else beginning
        for prompt in self.prompts:
            seed = _seed(self.seed, prompt.name, text)
            shown = self.examples
            if len(shown) > self.shown:
                shown = tuple(random.Random(seed).sample(shown, self.shown))
            yield (
                prompt.name,
                prompt.text(document, count=self.count, language=language, examples=shown),
                seed,
            )


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def shortened(text: str, characters: int) -> str:
    """Return the beginning of a text, up to the last blank before so many characters."""
    if len(text) <= characters:
        return text
    start, _, rest = text[:characters].rpartition(" ")
    return start if len(rest) < characters // 2 and start else text[:characters]


def _seed(*parts: object) -> int:
    digest = hashlib.sha256(json.dumps(parts).encode()).digest()
    # Servers take signed integers of 32 bits.
    return int.from_bytes(digest[:4], "big") >> 1
