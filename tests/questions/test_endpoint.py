"""An endpoint with OpenAI's API: bounded requests, and what faults of the server come to."""

from __future__ import annotations

import time
from contextlib import closing

import pytest
from language_server import KEY, MODEL, questions_about

from pipelines.errors import InputError, PipelineError
from pipelines.questions.endpoint import Endpoint
from pipelines.questions.generator import GeneratorOptions, Reply, Request


def options(server, **changed) -> GeneratorOptions:
    known = {
        "model": MODEL,
        "address": server["address"],
        "secret": KEY,
        "requests": 4,
        "max_tokens": 64,
        "temperature": 0.5,
        "timeout": 10.0,
        "retries": 2,
    }
    return GeneratorOptions(**known | changed)


def prompt_of(document: str) -> str:
    return f"write 2 different questions.\nDocument:\n{document}"


def replies(server, documents, **changed) -> list[Reply]:
    requests = [Request(prompt_of(text), 7) for text in documents]
    with closing(Endpoint(options(server, **changed))) as endpoint:
        found = dict(endpoint.replies(iter(requests)))
    return [found[request] for request in requests]


def test_replies_are_those_of_their_requests_with_their_tokens(language_server):
    documents = [f"alpha{number} beta{number} gamma{number}" for number in range(20)]
    found = replies(language_server, documents)
    for text, reply in zip(documents, found, strict=True):
        (question,) = questions_about(text, 2)
        assert reply.text == f"1. {question}"
        assert (reply.prompt_tokens, reply.problem) == (len(prompt_of(text).split()), None)
        assert reply.tokens == reply.prompt_tokens + reply.reply_tokens
    asked = language_server["seen"][0]
    assert (asked["max_tokens"], asked["temperature"], asked["seed"]) == (64, 0.5, 7)


def test_a_slow_reply_holds_up_no_other(language_server):
    language_server["faults"].append("slow")
    requests = [Request(prompt_of(f"alpha{number} beta"), 7) for number in range(20)]
    with closing(Endpoint(options(language_server))) as endpoint:
        found = [request for request, _ in endpoint.replies(iter(requests))]
    assert {*found} == {*requests}
    assert found[-1] in requests[:4]


def test_requests_are_read_a_few_ahead_only(language_server):
    read = 0

    def requests():
        nonlocal read
        for number in range(100):
            read += 1
            yield Request(prompt_of(f"document{number} words{number}"), number)

    with closing(Endpoint(options(language_server, requests=2))) as endpoint:
        found = endpoint.replies(requests())
        next(found)
        assert read <= 5
        found.close()


@pytest.mark.parametrize("fault", [429, 500, 503, "cut", "page", "json", "form"])
def test_a_fault_that_passes_costs_no_reply(language_server, fault):
    language_server["faults"] += [fault, fault]
    (reply,) = replies(language_server, ["alpha beta"], requests=1)
    assert reply.problem is None
    assert language_server["counts"]["requests"] == 3


def test_a_pause_that_the_server_asks_for_is_made(language_server):
    language_server["faults"].append((429, 2))
    began = time.monotonic()
    (reply,) = replies(language_server, ["alpha beta"])
    assert reply.problem is None
    # Without the header the first pause is half a second at most.
    assert time.monotonic() - began > 1.5


def test_the_limit_of_a_reply_has_the_name_that_the_server_knows(language_server):
    language_server["limits"].append("max_completion_tokens")
    documents = [f"alpha{number} beta{number}" for number in range(40)]
    found = replies(language_server, documents, requests=16)
    assert [reply.problem for reply in found] == [None] * 40


def test_a_server_may_count_no_tokens(language_server):
    language_server["counts_tokens"].clear()
    (reply,) = replies(language_server, ["alpha beta"])
    assert (reply.problem, reply.tokens) == (None, 0)


def test_a_prompt_at_which_the_server_fails_costs_that_reply_alone(language_server):
    language_server["broken"].append("poison")
    documents = ["alpha beta", "a poison", "gamma delta", "more poison", "epsilon zeta"]
    found = replies(language_server, documents, retries=0, requests=1)
    problems = [reply.problem and reply.problem.partition(":")[0] for reply in found]
    assert problems == [None, "failed", None, "failed", None]
    # A later job has only these left.
    found = replies(language_server, ["poison"] * 20, retries=0, requests=1)
    assert [reply.problem.partition(":")[0] for reply in found] == ["failed"] * 20


def test_replies_on_their_way_come_before_the_error(language_server):
    # Each failure has a probe behind it, before it is an error.
    language_server["faults"] += [*[None] * 6, *[500] * 90]
    documents = [f"alpha{number} beta{number}" for number in range(36)]
    with closing(Endpoint(options(language_server, retries=0, requests=2))) as endpoint:
        found = endpoint.replies(Request(prompt_of(text), 7) for text in documents)
        seen = []
        with pytest.raises(PipelineError, match="fails again and again"):
            seen.extend(found)  # One by one: those before the error stay.
    assert sum(reply.problem is None for _, reply in seen) == 6
    assert 7 <= len(seen) <= 36


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        (429, r"fails again and again \(Error code: 429 .*\)\. Lower questions\.requests"),
        (500, r"fails again and again \(Error code: 500 .*\)\. Check questions\.model, lower"),
        ("page", r"^questions\.address: .* answers in another form than OpenAI's\. Name the base"),
        ("form", r"^questions\.address: .* answers in another form than OpenAI's\."),
        ("json", r"^questions\.address: .* answers in another form than OpenAI's\."),
        ("cut", r"^questions\.address: there is no answer from http://127\.0\.0\.1:\d+/v1 \("),
    ],
)
def test_a_fault_that_stays_is_told_in_one_line(language_server, fault, problem):
    language_server["faults"] += [fault] * 60
    with pytest.raises(PipelineError, match=problem) as failed:
        replies(language_server, ["alpha beta"] * 20, requests=1, retries=1)
    assert "\n" not in str(failed.value)


def test_a_slow_server_is_waited_for_as_long_as_asked(language_server):
    language_server["faults"] += ["slow"] * 40
    with pytest.raises(InputError, match=r"\(Request timed out.*raise questions\.timeout_seconds"):
        replies(language_server, ["alpha beta"] * 20, timeout=0.3, requests=8, retries=0)
    language_server["faults"][:] = ["slow"]
    (reply,) = replies(language_server, ["alpha beta"], timeout=30.0)
    assert reply.problem is None


def test_a_wrong_key_model_or_address_is_the_users(language_server):
    with pytest.raises(InputError) as refused:
        replies(language_server, ["alpha beta"], secret="wrong-key-of-mine")
    assert refused.value.key == "questions.key_variable"
    assert "wrong-key-of-mine" not in str(refused.value)
    with pytest.raises(InputError, match=r"^questions\.model: .* does not know `other`"):
        replies(language_server, ["alpha beta"], model="other")
    with pytest.raises(InputError, match=r"^questions\.address: there is no answer from"):
        replies(language_server, ["alpha beta"], address="http://127.0.0.1:9/v1", retries=0)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"error": {"message": "no such model"}}, "Error code: 404 - no such model"),
        ({"object": "error", "message": "no such model"}, "Error code: 404 - no such model"),
        ({"error": "no such model"}, "Error code: 404 - no such model"),
        ({"detail": "no such\nmodel"}, "Error code: 404 - no such model"),
        ({"detail": [{"loc": "model"}]}, 'Error code: 404 - [{"loc": "model"}]'),
        (b"no such model", "Error code: 404 - no such model"),
        (b"", "Error code: 404"),
    ],
)
def test_an_error_is_told_in_the_words_of_the_server(language_server, body, told):
    # A short prompt has the same answer.
    language_server["faults"] += [(404, body)] * 2
    with pytest.raises(InputError) as refused:
        replies(language_server, ["alpha beta"])
    assert f"does not know `{MODEL}` ({told}). Name its model" in str(refused.value)


def completion(content, **choice) -> dict:
    """A completion of six tokens, for the server to send."""
    message = {"role": "assistant", "content": content}
    usage = {"prompt_tokens": 4, "completion_tokens": 2, "total_tokens": 6}
    chosen = {"index": 0, "finish_reason": "stop", "message": message, **choice}
    known = {"id": "one", "object": "chat.completion", "created": 0, "model": MODEL}
    return {**known, "choices": [chosen], "usage": usage}


@pytest.mark.parametrize(
    ("body", "reply"),
    [
        (
            # As Databricks documents replies of reasoning models.
            completion([{"type": "reasoning", "summary": []}, {"type": "text", "text": "What?"}]),
            Reply("What?", 4, 2),
        ),
        (completion([{"type": "reasoning", "summary": []}]), Reply(None, 4, 2, "empty")),
        (completion(["Wh", {"text": "at?"}]), Reply("What?", 4, 2)),
        (completion(None), Reply(None, 4, 2, "empty")),
        (completion(" \n"), Reply(None, 4, 2, "empty")),
        (completion("What?\nHo", finish_reason="length"), Reply("What?\nHo", 4, 2, "cut off")),
        (
            {**completion(""), "choices": []},
            Reply(None, 4, 2, "refused: the answer has no choice"),
        ),
    ],
)
def test_a_reply_has_its_text_and_what_is_wrong_with_it(language_server, body, reply):
    language_server["faults"].append((200, body))
    assert replies(language_server, ["alpha beta"], requests=1) == [reply]
    assert language_server["counts"]["requests"] == 1


def test_an_error_under_status_200_is_repeated_and_told_in_its_words(language_server):
    overloaded = (200, {"error": {"message": "overloaded"}})
    language_server["faults"] += [overloaded] * 2
    (reply,) = replies(language_server, ["alpha beta"], requests=1, retries=2)
    assert reply.problem is None
    language_server["faults"] += [None, overloaded]
    found = replies(language_server, ["alpha beta", "gamma delta"], requests=1, retries=0)
    assert [reply.problem for reply in found] == [None, "failed: overloaded"]
    language_server["faults"] += [overloaded] * 60
    with pytest.raises(PipelineError, match=r"fails again and again \(overloaded\)\. Lower"):
        replies(language_server, ["alpha beta"] * 20, requests=1, retries=0)


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_prompt_that_the_server_bars_ends_no_job(language_server, status):
    language_server["faults"].append((status, {"error": {"message": "flagged"}}))
    found = replies(language_server, ["alpha beta", "gamma delta"], requests=1)
    assert [reply.problem for reply in found] == [f"refused: Error code: {status} - flagged", None]


def test_a_server_may_refuse_a_seed_and_be_told_more(language_server):
    unknown = {"detail": [{"type": "extra_forbidden", "loc": ["body", "seed"]}]}
    language_server["faults"].append((422, unknown))
    extra = {"chat_template_kwargs": {"enable_thinking": False}}
    documents = ["alpha beta", "gamma delta"]
    found = replies(language_server, documents, requests=1, extra_body=extra)
    assert [reply.problem for reply in found] == [None, None]
    asked = [*language_server["seen"]]
    assert ["seed" in one for one in asked] == [True, False, False]
    # A message with the word, from a prompt about sunflower seed, is no reason.
    language_server["faults"] += [(400, {"detail": "too long: sunflower seed"})] * 2
    found = replies(language_server, [*documents, "delta"], requests=1, retries=0)
    assert [reply.problem is None for reply in found] == [False, True, True]
    assert "seed" in language_server["seen"][-1]
    assert all(one["chat_template_kwargs"] == {"enable_thinking": False} for one in asked)


def test_a_prompt_that_the_model_refuses_costs_that_reply_alone(language_server):
    language_server["refused"].append("secret")
    found = replies(language_server, ["a secret document", "alpha beta", "another secret one"])
    problems = [reply.problem and reply.problem.partition(":")[0] for reply in found]
    assert problems == ["refused", None, "refused"]
    assert "too long for the context" in found[0].problem
    assert (found[0].text, found[0].tokens) == (None, 0)
    found = replies(language_server, ["a secret document"] * 20)
    assert {reply.problem.partition(":")[0] for reply in found} == {"refused"}
    language_server["refused"].append("")  # Any prompt.
    with pytest.raises(InputError, match=r"^questions\.model: .* refuses the request"):
        replies(language_server, ["a secret document"] * 20)
