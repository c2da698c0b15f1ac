"""Questions by a real server with a real language model, which dies and comes back."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from question_documents import write_documents
from small_server import CONTEXT, FOLDER, KEY, MODEL, NEEDS_MODEL, PARALLEL, SmallServer
from transformers import AutoTokenizer

import pipelines
from pipelines.errors import InputError, PipelineError
from pipelines.files.begun import next_folder
from pipelines.questions.endpoint import Endpoint
from pipelines.questions.generator import GeneratorOptions, Reply, Request
from pipelines.questions.parsing import questions_of
from pipelines.settings import Config
from pipelines.settings.load import parse

pytestmark = [pytest.mark.slow, NEEDS_MODEL]

DOCUMENTS = (
    "The bridge over the river was closed for repairs in May 2021.",
    "A recipe for bread: flour, water, salt and yeast.",
    "Kangaroos hop across Australian grasslands, and carry their young in a pouch.",
    "Spark reads each file once; executors never wait without a deadline.",
    "The aircraft of 1938 has two engines of 1,234.5 horsepower.",
    "Bees dance to tell the others where flowers are.",
    "Café, naïve, Zürich and ÅNGSTRÖM keep their accents.",
    "Open the settings, choose Security, and click on Reset password.",
)
PROMPT = "Write $count questions, one per line, that this text answers: $document"


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[SmallServer]:
    """The server; tests that kill it start it again."""
    made = SmallServer(tmp_path_factory.mktemp("server") / "log")
    made.start()
    try:
        yield made
    finally:
        made.kill()


def options(server: SmallServer, **changed) -> GeneratorOptions:
    known = {
        "model": MODEL,
        "address": server.address,
        "secret": KEY,
        "requests": PARALLEL,
        "max_tokens": 16,
        "temperature": 0.0,
        "timeout": 60.0,
        "retries": 1,
    }
    return GeneratorOptions(**known | changed)


def replies(server: SmallServer, prompts: list[str], **changed) -> list[Reply]:
    with closing(Endpoint(options(server, **changed))) as endpoint:
        requests = [Request(prompt, 7) for prompt in prompts]
        found = dict(endpoint.replies(requests))
    return [found[request] for request in requests]


def chat(server: SmallServer, prompt: str) -> dict:
    asked = {
        "model": MODEL,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": 16,
        "temperature": 0.0,
        "seed": 7,
    }
    return server.ask("/v1/chat/completions", asked)


def test_replies_and_tokens_are_those_of_the_server(server):
    prompts = [f"Write a question about this text: {text}" for text in DOCUMENTS[3:7]]
    found = replies(server, prompts)
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    for prompt, reply in zip(prompts, found, strict=True):
        message = [{"role": "user", "content": prompt}]
        text = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
        # The folder and the file are one model.
        assert reply.prompt_tokens == len(tokenizer(text, add_special_tokens=False).input_ids)
        assert 1 <= reply.reply_tokens <= 16
        assert questions_of(reply.text, 3)
    alone = chat(server, prompts[1])
    assert (found[1].prompt_tokens, found[1].reply_tokens) == (
        alone["usage"]["prompt_tokens"],
        alone["usage"]["completion_tokens"],
    )
    is_cut = alone["choices"][0]["finish_reason"] == "length"
    assert found[1].problem == ("cut off" if is_cut else None)


def test_the_server_computes_as_many_requests_at_a_time_as_asked(server):
    seen = [0]
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(0.01):
            seen.append(server.at_work())

    for wanted in (1, PARALLEL):
        seen[:] = [0]
        is_over.clear()
        watching = threading.Thread(target=watch)
        watching.start()
        try:
            replies(server, [*DOCUMENTS], requests=wanted, max_tokens=8)
        finally:
            is_over.set()
            watching.join()
        assert max(seen) == wanted


def test_a_prompt_beyond_the_context_costs_that_reply_alone(server):
    long = "word " * CONTEXT
    found = replies(server, [DOCUMENTS[0], long, DOCUMENTS[1]])
    assert [reply.text is not None for reply in found] == [True, False, True]
    assert found[1].problem.startswith("refused: Error code: 400 - request (")
    assert "exceeds the available context size (512 tokens)" in found[1].problem
    assert "\n" not in found[1].problem
    found = replies(server, [long] * 3)
    assert ["available context size" in reply.problem for reply in found] == [True] * 3


def test_a_wrong_key_is_told_with_the_words_of_the_server(server):
    with pytest.raises(InputError, match=r"^questions\.key_variable: .*Invalid API Key") as refused:
        replies(server, [DOCUMENTS[0]], secret="wrong-key-of-mine")
    assert "wrong-key-of-mine" not in str(refused.value)


@pytest.fixture
def asking(server, tmp_path, monkeypatch) -> Config:
    """A job about all documents; so small a model's questions pass no filter."""
    monkeypatch.setenv("QUESTIONS_API_KEY", KEY)
    prompt = tmp_path / "short.txt"
    prompt.write_text(PROMPT)
    texts = [f"{text} Part {part}." for text in DOCUMENTS for part in range(3)]
    settings = {
        "inputs": [str(write_documents(tmp_path / "documents.parquet", texts))],
        "output": str(tmp_path / "questions"),
        "address": server.address,
        "model": MODEL,
        "prompts": [str(prompt)],
        "max_tokens": 16,
        "temperature": 0.0,
        "requests": PARALLEL,
        "retries": 1,
        "part_documents": 4,
        "round_trip": None,
        "min_characters": 1,
        "max_characters": 10_000,
        "meta_phrases": [],
        "title_overlap": None,
        "copied_words": None,
        "same_language": False,
    }
    return parse({"questions": settings})


@pytest.mark.matrix
def test_a_killed_server_is_named_and_the_next_job_asks_only_the_rest(spark, asking, server):
    documents, killed_at = 3 * len(DOCUMENTS), []
    begun = next_folder(Path(asking.questions.output))
    before = server.asked()

    def kill() -> None:
        while server.asked() < before + documents // 2:
            time.sleep(0.02)
        server.kill()
        killed_at.append(time.monotonic())

    killing = threading.Thread(target=kill)
    killing.start()
    with pytest.raises(PipelineError, match=r"^questions\.address: there is no answer from") as end:
        pipelines.ask(asking)
    # A retry, after a pause of a second at most; the rest is Spark's.
    assert time.monotonic() - killed_at[0] < 60
    killing.join()
    assert "replies are kept" in str(end.value)
    answers = begun / "_answers"
    files = chain(answers.glob("part-*.parquet"), answers.glob("_kept/part-*.parquet"))
    tables = [pq.read_table(file) for file in files]
    known = sum(len(table) - table["reply"].null_count for table in tables)
    assert documents // 4 <= known < documents
    server.start()
    before = server.asked()
    summary = pipelines.ask(asking)
    assert server.asked() - before == documents - known
    assert (summary.asked_documents, summary.requests) == (documents, documents)
    assert summary.rows > 0
    rows = pq.read_table(Path(summary.folder) / "_answers").to_pylist()
    assert summary.prompt_tokens == sum(row["prompt_tokens"] for row in rows)
    assert summary.reply_tokens == sum(row["reply_tokens"] for row in rows)
