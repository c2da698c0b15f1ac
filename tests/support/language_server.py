"""A server with the part of OpenAI's API that `ask` uses, and with faults to order.

It stands in for a language model where a test is about requests: its questions are words of the
document. `make generator` sets up a real server with a real model.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from typing import Any

KEY = "key-of-the-tests"
MODEL = "words"
LIMITS = ("max_tokens", "max_completion_tokens")
TALK = "Sure, here are the questions:"
PAGE = b"<html><body>502</body></html>"


def questions_about(document: str, count: int) -> list[str]:
    """Questions that only this document answers, as far as its longest words are its own."""
    words = sorted({*re.findall(r"\w{4,}", document)}, key=lambda word: (-len(word), word))
    rounds = (words[place : place + 3] for place in range(0, 3 * count, 3))
    return [f"How do {' and '.join(three)} work together?" for three in rounds if three]


def document_in(prompt: str) -> str:
    """The document of a prompt of the package."""
    return prompt.rpartition("Document:\n")[2]


class LanguageServer(BaseHTTPRequestHandler):
    """Answers `chat/completions`; ``faults`` are taken first, one for each request.

    A fault is a status, a status with seconds of `Retry-After` or with a body, or one of `cut`,
    `page`, `json`, `form`, `talk` and `slow`. ``refused`` are words of documents that the model
    does not take, ``broken`` those that it fails at. Without ``counts_tokens`` there is no `usage`.
    If there are ``limits``, they are the names of the limit of a reply that the server knows.
    ``pauses`` holds the seconds of each reply, if they count; ``sent`` the time of each reply, and
    its document. Documents with an ``endless`` word get no text for their tokens, as if the model
    had reasoned up to the limit.
    """

    faults: list[Any]
    seen: list[dict[str, Any]]
    counts: Counter[str]
    refused: list[str]
    broken: list[str]
    counts_tokens: list[bool]
    limits: list[str]
    endless: list[str]
    pauses: list[float]
    sent: list[tuple[float, str]]
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.seen.append(asked)
        self.counts["requests"] += 1
        if self.headers["Authorization"] != f"Bearer {KEY}":
            self._send(401, {"error": {"message": "Incorrect API key provided"}})
            return
        if asked["model"] != MODEL:
            message = f"The model `{asked['model']}` does not exist"
            self._send(404, {"error": {"message": message}})
            return
        if self.limits and not {*self.limits} & {*asked}:
            message = f"Unsupported parameter: use '{self.limits[0]}' instead"
            self._send(400, {"error": {"message": message}})
            return
        prompt = asked["messages"][0]["content"]
        if any(word in prompt for word in self.broken):
            self._send(500, {"error": {"message": "it hurts"}})
            return
        if any(word in prompt for word in self.refused):
            self._send(400, {"error": {"message": "the prompt is too long for the context"}})
            return
        fault = self.faults.pop(0) if self.faults else None
        if fault and self._failed(fault, asked):
            return
        if self.pauses:
            time.sleep(self.pauses[0])
        # The client may have been killed meanwhile.
        with suppress(ConnectionError):
            self._send(200, self._completion(asked, self._content(prompt)))
            self.sent.append((time.time(), document_in(prompt)))

    def _failed(self, fault: Any, asked: dict[str, Any]) -> bool:
        """Sends a fault; a slow answer is none."""
        status, after = fault if isinstance(fault, tuple) else (fault, None)
        if isinstance(status, int):
            headers = {"Retry-After": str(after)} if isinstance(after, int) else {}
            told = after if isinstance(after, bytes | dict) else {"error": {"message": "try again"}}
            self._send(status, told, headers)
        elif fault == "cut":
            self.send_response(200)
            self.send_header("Content-Length", "4000")
            self.end_headers()
            self.wfile.write(b'{"choices": [{"mess')
            self.close_connection = True
        elif fault == "page":
            self._send(200, PAGE, kind="text/html")
        elif fault == "json":
            self._send(200, b'{"choices": [{"message": {"content": "How')
        elif fault == "talk":
            self._send(200, self._completion(asked, TALK))
        elif fault == "form":
            self._send(200, {"answer": "How?"})
        else:
            time.sleep(2.0)
            return False
        return True

    def _content(self, prompt: str) -> str:
        content = "yes"
        if asked := re.search(r"write (\d+) different", prompt):
            found = questions_about(document_in(prompt), int(asked[1]))
            content = "\n".join(f"{place}. {one}" for place, one in enumerate(found, start=1))
        return content

    def _completion(self, asked: dict[str, Any], content: str) -> dict[str, Any]:
        """The answer to a request: each word is a token, and there is a limit of them."""
        prompt = asked["messages"][0]["content"]
        limit = next(asked[name] for name in LIMITS if name in asked)
        words = [*re.finditer(r"\S+", content)]
        is_cut = len(words) > limit
        content = content[: words[limit - 1].end()] if is_cut else content
        usage = {"prompt_tokens": len(prompt.split()), "completion_tokens": len(content.split())}
        if any(word in prompt for word in self.endless):
            content = ""
        return {
            "id": "one",
            "object": "chat.completion",
            "created": 0,
            "model": MODEL,
            "choices": [
                {
                    "index": 0,
                    "finish_reason": "length" if is_cut else "stop",
                    "message": {"role": "assistant", "content": content},
                }
            ],
            **(
                {"usage": usage | {"total_tokens": sum(usage.values())}}
                if self.counts_tokens
                else {}
            ),
        }

    def _send(
        self,
        status: int,
        body: Any,
        headers: dict[str, str] | None = None,
        kind: str = "application/json",
    ) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_arguments: Any) -> None:
        """Says nothing."""
