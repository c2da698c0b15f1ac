"""Replies by a server with OpenAI's API (`chat/completions`), through its client.

Source: https://platform.openai.com/docs/api-reference/chat. The client repeats requests to a busy
server, with growing pauses or after the server's `Retry-After`.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import islice
from typing import Any

import openai

from pipelines.errors import InputError, PipelineError
from pipelines.questions.generator import (
    FAILED,
    UNANSWERED,
    GeneratorOptions,
    Reply,
    Request,
)
from pipelines.settings.redaction import HIDDEN, without_password

ADDRESS = "questions.address"
MODEL = "questions.model"
SECRET = "questions.key_variable"
_AHEAD = 2
"""Requests read and not yet answered, as a multiple of those at a time."""
_PAUSE, _LONGEST_PAUSE = 0.5, 8.0
"""Seconds before an unreadable answer is asked for again: the client's pauses, which double."""
_SHOWN = 200
_NO_KEY = "none"
"""The key for servers that need none: the client insists on one."""
_OF_THE_PROMPT = frozenset({400, 413, 422})
"""Statuses of a prompt that the server refuses, such as one that is too long."""
_OF_THE_SETTINGS = frozenset({401, 403, 404})
"""Statuses of a wrong key or model, and of some servers for a prompt that they bar."""
_MOST_FAILED = 8
"""Requests in a row without a reply, after which a short prompt tells whether any gets one."""
_PROBE = Request("Reply with one word: yes", 1)
_WORDS = ("message", "detail", "error")
"""Fields of a server's error with a text for people."""
_LIMITS = ("max_tokens", "max_completion_tokens")
"""The limit of a reply; newer models of OpenAI know the second name only."""


class Endpoint:
    """A server with OpenAI's API; see :class:`~pipelines.questions.generator.Generator`."""

    def __init__(self, options: GeneratorOptions) -> None:
        self._options = options
        self._client = openai.OpenAI(
            base_url=options.address,
            api_key=options.secret or _NO_KEY,
            timeout=options.timeout,
            max_retries=options.retries,
        )
        self._pool = ThreadPoolExecutor(options.requests, thread_name_prefix="requests")
        self._failed = threading.Event()
        # Since the last reply, in all threads.
        self._failures = 0
        self._has_answered = False
        self._limit = _LIMITS[0]
        self._sends_seed = True

    def replies(self, requests: Iterable[Request]) -> Iterator[tuple[Request, Reply]]:
        """Send several requests at a time; see the interface."""
        unread = iter(requests)
        waiting: dict[Future[Reply], Request] = {}
        error: PipelineError | None = None
        while True:
            # After an error no more: the others on their way may be paid for, too.
            left = 0 if error else _AHEAD * self._options.requests - len(waiting)
            for request in islice(unread, left):
                waiting[self._pool.submit(self._reply, request)] = request
            if not waiting:
                break
            # Each request has a time limit.
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                reply, failed = _result(future)
                error = error or failed
                yield waiting.pop(future), reply
        if error is not None:
            raise error

    def close(self) -> None:
        """End the connections, and do not wait for replies."""
        self._failed.set()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    def _reply(self, request: Request) -> Reply:
        if self._failed.is_set():
            return UNANSWERED
        try:
            return self._asked(request)
        except BaseException:
            self._failed.set()
            raise

    def _asked(self, request: Request) -> Reply:
        told = ""
        for tries in range(self._options.retries + 1):
            # The client pauses before it repeats a request, but not after an unreadable answer.
            if tries and self._failed.wait(min(_LONGEST_PAUSE, _PAUSE * 2.0 ** (tries - 1))):
                return UNANSWERED
            try:
                found = self._completion(request)
            except openai.APIStatusError as error:
                status = error.status_code
                # A key that is wrong must not cost the replies of a single document.
                is_of_settings = status in _OF_THE_SETTINGS
                if not self._answers() if is_of_settings else self._fails_at_all():
                    raise self._refusal(error) from None
                word = "refused" if is_of_settings or status in _OF_THE_PROMPT else FAILED
                return Reply(None, 0, 0, f"{word}: {self._told(error)}")
            except openai.APITimeoutError as error:
                if self._fails_at_all():
                    raise self._unreachable(error) from None
                return Reply(None, 0, 0, f"{FAILED}: {self._told(error)}")
            except openai.APIConnectionError as error:
                raise self._unreachable(error) from None
            except ValueError:
                continue  # Not JSON: a proxy's page, or an answer cut off.
            if (reply := _read(found)) is not None:
                self._failures, self._has_answered = 0, True
                return reply
            told = self._shortened(_words(getattr(found, "error", None)))
        if self._fails_at_all():
            raise self._unreadable(told)
        return Reply(None, 0, 0, f"{FAILED}: {told or 'the answer has another form'}")

    def _fails_at_all(self) -> bool:
        """Count a request without a reply, and return whether any other would have none either.

        A job may have only prompts left at which the server fails, so failures alone do not tell.
        """
        self._failures += 1
        if self._has_answered and self._failures < _MOST_FAILED:
            return False
        return not self._answers()

    def _answers(self) -> bool:
        """Return whether a short prompt has a reply."""
        try:
            answers = _read(self._completion(_PROBE)) is not None
        except (openai.OpenAIError, ValueError):
            answers = False
        if answers:
            self._failures, self._has_answered = 0, True
        return answers

    def _completion(self, request: Request) -> Any:
        """Send a request; rename or leave out a field that the server does not know."""
        limit, seed = self._limit, request.seed if self._sends_seed else None
        try:
            return self._sent(request, limit, seed)
        except openai.APIStatusError as error:
            words = _message(error)
            if limit == _LIMITS[0] and _LIMITS[1] in words:
                self._limit = _LIMITS[1]
                return self._completion(request)
            if seed is None or not _refuses_seed(error.status_code, words):
                raise
        # The word may be one of the prompt, too.
        found = self._sent(request, limit, None)
        self._sends_seed = False
        return found

    def _sent(self, request: Request, limit: str, seed: int | None) -> Any:
        options = self._options
        return self._client.chat.completions.create(
            model=str(options.model),
            messages=[{"role": "user", "content": request.prompt}],
            seed=openai.omit if seed is None else seed,
            extra_body={limit: options.max_tokens, **options.extra_body},
            temperature=openai.omit if options.temperature is None else options.temperature,
        )

    def _refusal(self, error: openai.APIStatusError) -> PipelineError:
        """Return the error for a status of the server."""
        shown, status = without_password(str(self._options.address)), error.status_code
        told = self._told(error)
        if status in (401, 403):
            return InputError(
                SECRET,
                f"{shown} refuses the key ({told})",
                "Set the variable to a valid key of the endpoint",
            )
        if status == 404:
            return InputError(
                MODEL, f"{shown} does not know `{self._options.model}` ({told})", "Name its model"
            )
        if status in _OF_THE_PROMPT:
            return InputError(
                MODEL,
                f"{shown} refuses the request ({told})",
                "Correct questions.model or its keys",
            )
        remedy = "Lower questions.requests, or run the command again later"
        if status >= 500:
            # Some servers fail at a model that they do not know.
            remedy = "Check questions.model, lower questions.requests, or read the server's log"
        return PipelineError(f"{shown} fails again and again ({told}). {remedy}")

    def _unreadable(self, told: str) -> PipelineError:
        """Return the error for answers without a reply; ``told`` are the server's own words."""
        shown = without_password(str(self._options.address))
        if told:
            remedy = "Lower questions.requests, or run the command again later"
            return PipelineError(f"{shown} fails again and again ({told}). {remedy}")
        return InputError(
            ADDRESS,
            f"{shown} answers in another form than OpenAI's",
            "Name the base URL of the API, most often with /v1 at its end",
        )

    def _unreachable(self, error: openai.APIConnectionError) -> InputError:
        shown, reason = without_password(str(self._options.address)), self._told(error)
        cause = error.__cause__
        if cause is not None:
            reason = f"{reason} {self._told(cause)}"
        return InputError(
            ADDRESS,
            f"there is no answer from {shown} ({reason})",
            "Start the server, correct the address, or raise questions.timeout_seconds",
        )

    def _told(self, error: BaseException) -> str:
        """Return an error's message in one line, without the key."""
        return self._shortened(_message(error))

    def _shortened(self, words: str) -> str:
        """Return a server's words in one line, without the key."""
        text = without_password(" ".join(words.split()).rstrip("."))
        secret = self._options.secret
        # h11 shows a header that it refuses.
        for known in {secret, secret.strip()} - {""} if secret else ():
            text = text.replace(known, HIDDEN)
        return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _message(error: BaseException) -> str:
    """Return an error's message; that of a server by its status and its own words.

    The client has words for OpenAI's form of errors only. Others answer with `detail`, as FastAPI
    does, or with a text alone.
    """
    if not isinstance(error, openai.APIStatusError):
        return str(error)
    status, words = f"Error code: {error.status_code}", _words(error.body)
    return f"{status} - {words}" if words else status


def _words(body: object) -> str:
    """Return a server's own words in the body of an error; empty without any."""
    words = body
    if isinstance(body, dict):
        words = next((body[name] for name in _WORDS if body.get(name)), body)
    if not words:
        return ""
    return words if isinstance(words, str) else json.dumps(words)


def _refuses_seed(status: int, words: str) -> bool:
    """Return whether a server refuses the field `seed`, as some do with each unknown field."""
    return status in _OF_THE_PROMPT and re.search(r"\bseed\b", words) is not None


def _read(found: Any) -> Reply | None:
    """Return the reply of a completion; None for any other answer."""
    if not isinstance(found, openai.types.chat.ChatCompletion) or found.choices is None:
        return None
    if not found.choices and getattr(found, "error", None):
        return None
    usage = found.usage
    # Some servers count nothing, or only some of it.
    counted = (usage.prompt_tokens, usage.completion_tokens) if usage else (0, 0)
    read, written = (count or 0 for count in counted)
    if not found.choices:
        # So do servers answer that block a prompt.
        return Reply(None, read, written, "refused: the answer has no choice")
    chosen = found.choices[0]
    if chosen.message is None:
        return None
    return Reply.of(
        _text(chosen.message.content), read, written, is_cut=chosen.finish_reason == "length"
    )


def _text(content: object) -> str:
    """Return the text of a message: some servers send parts, thoughts among them."""
    parts = content if isinstance(content, list) else [content]
    kinds = (part if isinstance(part, dict) else {"text": part} for part in parts)
    texts = (part.get("text") for part in kinds if part.get("type", "text") == "text")
    return "".join(text for text in texts if isinstance(text, str))


def _result(future: Future[Reply]) -> tuple[Reply, PipelineError | None]:
    """Return a reply, or that there is none and why."""
    try:
        return future.result(), None
    except PipelineError as error:
        return UNANSWERED, error
