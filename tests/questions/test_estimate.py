"""The price of a job from its sample: what counts, and what is told."""

from __future__ import annotations

from pipelines.questions.estimate import Estimate, Sampled
from pipelines.questions.filters import Filters
from pipelines.questions.generator import Reply
from pipelines.settings import QuestionSettings


def lines(*replies: Reply, prices=(1.0, 4.0)) -> list[str]:
    document = {"text": "alpha beta gamma", "title": None}
    return Estimate(
        documents=10_000,
        without_text=0,
        known=0,
        prompts=1,
        sampled=tuple(Sampled(document, "question", reply) for reply in replies),
        prices=prices,
        count=3,
        filters=Filters(QuestionSettings(), knows_languages=False),
    ).lines()


def test_empty_replies_cost_and_refused_ones_do_not():
    text = Reply("How do lanes work?\nHow wide are rows?\nWhy", 50, 50, "cut off")
    empty, refused = Reply(None, 50, 250, "empty"), Reply(None, 0, 0, "refused: too long")
    failed = Reply(None, 0, 0, "failed: busy")
    told = lines(*[text] * 8, *[empty] * 8, *[refused] * 4, failed)
    assert told[0] == "10,000 documents, 10,000 requests; sample of 20:"
    assert told[1].startswith("  400,000 (±")
    assert told[2].startswith("  1,200,000 (±")
    assert told[3].startswith("  cost 5.2000 (±")
    assert told[4] == "  16 of 16 questions pass the filters (without the round trip)"
    problems = "8 cut off; 8 empty; 4 refused: too long; 1 failed: busy"
    assert told[5] == f"  problems: {problems}"


def test_a_server_that_counts_no_tokens_has_no_price():
    told = lines(*[Reply("How do lanes work?", 0, 0)] * 3)
    assert told[1] == "  the server does not count tokens"
    assert not any("cost" in line for line in told)


def test_without_any_reply_the_problem_is_told():
    told = lines(*[Reply(None, 0, 0, "refused: too long")] * 2)
    assert told == ["no reply to 2 requests: 2 refused: too long"]
