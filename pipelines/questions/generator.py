"""The interface of a generator: a language model that replies to prompts.

The catalog (``GENERATORS``) names each :class:`GeneratorKind`. Only the module of its class imports
the library.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Protocol

from pipelines.catalog import GENERATORS
from pipelines.errors import InputError
from pipelines.files.locations import Location


@dataclass(frozen=True, kw_only=True)
class GeneratorOptions:
    """Plain values that open a generator, sent to executors.

    ``model`` is a name at the ``address``, or a folder. ``requests`` bounds those of one task at a
    time, ``timeout`` is in seconds. ``extra_body`` are further fields of a request to the address.
    """

    model: str | Location
    address: str | None
    secret: str | None = field(repr=False)
    requests: int
    max_tokens: int
    temperature: float | None
    timeout: float
    retries: int
    threads: int = 1
    extra_body: Mapping[str, Any] = field(default_factory=dict)


def longest_prompt(context: int, options: GeneratorOptions) -> int:
    """Return the most tokens of a prompt that leave room for its reply.

    Raises:
        InputError: There are none.
    """
    longest = context - options.max_tokens
    if longest < 1:
        raise InputError(
            "questions.max_tokens",
            f"replies of {options.max_tokens:,} tokens leave no room for a prompt in the model's "
            f"context of {context:,}",
            "Lower it",
        )
    return longest


@dataclass(frozen=True, eq=False)
class Request:
    """A prompt, and the seed of its reply. No two requests are equal, not even with one prompt."""

    prompt: str
    seed: int


WITHOUT_THOUGHTS = {"enable_thinking": False}
"""Switches thoughts off in the chat templates that know it, such as Qwen3's."""
FAILED = "failed"
"""The problem of a request that is worth another try later."""
EMPTY = "empty"
"""The problem of a reply without a text, such as thoughts alone."""
CUT = "cut off"
"""The problem of a text that ends at ``max_tokens``, perhaps in a question or in thoughts."""


@dataclass(frozen=True)
class Reply:
    """A reply and its cost in tokens.

    ``text`` is None if the model has none for this prompt; ``problem`` says why, as a word and,
    after a colon, perhaps more. A text with a problem is :data:`CUT`. ``limit`` is the
    ``max_tokens`` of the request, as far as an answer keeps it.
    """

    text: str | None
    prompt_tokens: int
    reply_tokens: int
    problem: str | None = None
    limit: int = 0

    @classmethod
    def of(cls, text: str, prompt_tokens: int, reply_tokens: int, *, is_cut: bool) -> Reply:
        """Return what a model has written; ``is_cut`` if it came to ``max_tokens``."""
        if not text.strip():
            return cls(None, prompt_tokens, reply_tokens, EMPTY)
        return cls(text, prompt_tokens, reply_tokens, CUT if is_cut else None)

    @property
    def tokens(self) -> int:
        """Tokens of prompt and reply."""
        return self.prompt_tokens + self.reply_tokens

    @property
    def is_paid(self) -> bool:
        """Whether the model has replied, perhaps without a text: the request is not repeated."""
        return self.text is not None or self.tokens > 0

    def is_short(self, limit: int) -> bool:
        """Return whether a higher limit than its own may bring more."""
        return self.problem in (CUT, EMPTY) and self.limit < limit

    def is_better(self, other: Reply) -> bool:
        """Return whether this answer to a request is worth more than another one."""
        return self._worth > other._worth

    @property
    def _worth(self) -> tuple[bool, bool, bool, int]:
        is_text = self.text is not None
        return self.is_paid, is_text, is_text and self.problem is None, self.limit

    @property
    def has_failed(self) -> bool:
        """Whether the request is worth another try."""
        return self.problem is not None and self.problem.partition(":")[0] == FAILED


UNANSWERED = Reply(None, 0, 0, "unanswered")
"""In place of a reply that did not come before an error."""


class Generator(Protocol):
    """An open language model; it belongs to one task."""

    def replies(self, requests: Iterable[Request]) -> Iterator[tuple[Request, Reply]]:
        """Yield each request with its reply as soon as it comes, in any order.

        Requests are read a few ahead. Before an error come the replies to all requests that were
        read, or :data:`UNANSWERED`.

        Raises:
            InputError: The user can correct the failure, such as a wrong key.
            PipelineError: The model does not answer any more.
        """

    def close(self) -> None:
        """Give up connections and memory."""


@dataclass(frozen=True)
class GeneratorKind:
    """A kind of generator, as the driver knows it.

    Attributes:
        place: Its class, as ``module:attribute``. Only executors import it, with its library.
        library: The module that it needs.
        is_remote: Whether a server at ``questions.address`` does the work. Otherwise
            ``questions.model`` is a folder.
    """

    place: str
    library: str
    is_remote: bool

    def open(self, options: GeneratorOptions) -> Generator:
        """Open the model. Runs on an executor.

        Raises:
            InputError: There is no such model.
        """
        module, _, attribute = self.place.partition(":")
        generator: Generator = getattr(import_module(module), attribute)(options)
        return generator


ENDPOINT = GeneratorKind("pipelines.questions.endpoint:Endpoint", "openai", is_remote=True)
TRANSFORMERS = GeneratorKind(
    "pipelines.questions.local_model:LocalModel", "transformers", is_remote=False
)
VLLM = GeneratorKind("pipelines.questions.vllm:VllmModel", "vllm", is_remote=False)


@contextmanager
def opened(name: str, options: GeneratorOptions) -> Iterator[Generator]:
    """Open a generator of the catalog for the block. Runs on an executor.

    Raises:
        InputError: There is no such model.
    """
    generator = GENERATORS.load(name).open(options)
    try:
        yield generator
    finally:
        generator.close()
