"""The job `ask`, from a table of documents to pairs of a question and its document."""

from __future__ import annotations

import json
import logging
import re
import shutil
from itertools import chain
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from language_server import KEY, MODEL, questions_about
from question_documents import DOCUMENTS, write_documents

import pipelines
from pipelines.cli import main
from pipelines.corpus.stage import prepare_corpus
from pipelines.errors import InputError, PipelineError
from pipelines.files.begun import next_folder
from pipelines.jobs.ask import estimate_asking
from pipelines.libraries import is_installed
from pipelines.questions.ask import AskingJob
from pipelines.questions.filters import REASONS, plain_form
from pipelines.settings.load import dump


def rows_of(folder: str | Path) -> list[dict]:
    return pq.read_table(folder).to_pylist()


def bytes_of(folder: str | Path) -> dict[str, bytes]:
    files = (*Path(folder).glob("part-*"), *Path(folder).glob("_answers/part-*"))
    return {path.name: path.read_bytes() for path in files}


def requests(server) -> int:
    return server["counts"]["requests"]


def expected(documents: Path) -> set[tuple[str, str]]:
    """Questions with their documents, without those that several documents share."""
    texts = [row["text"] for row in rows_of(documents)]
    found = {(question, text) for text in texts for question in questions_about(text, 3)}
    owners: dict[str, set[str]] = {}
    for question, text in found:
        owners.setdefault(plain_form(question), set()).add(text)
    return {one for one in found if len(owners[plain_form(one[0])]) == 1}


def begin_with(whole, config) -> None:
    """Has a job find the table that another one has made of documents at another place."""
    shutil.copytree(whole.summary.folder, config.questions.output)


def test_pairs_of_a_question_and_its_document(spark, whole, caplog, tmp_path):
    summary, server, document_file = whole.summary, whole.server, whole.documents
    rows = rows_of(summary.folder)
    assert list(rows[0]) == ["anchor", "positive", "prompt", "group", "rank", "title", "key"]
    assert {(row["anchor"], row["positive"]) for row in rows} == expected(document_file)
    documents = {row["text"]: row for row in rows_of(document_file)}
    for row in rows:
        document = documents[row["positive"]]
        assert (row["title"], row["key"]) == (document["title"], document["id"])
        assert 1 <= row["rank"] <= DOCUMENTS
    groups = {row["positive"]: row["group"] for row in rows}
    assert len({*groups.values()}) == len(groups)

    # Every question is accounted for, and every token.
    assert summary.questions == summary.rows + sum(summary.dropped.values())
    assert {*summary.dropped} <= {*REASONS}
    assert (summary.documents, summary.asked_documents) == (DOCUMENTS, DOCUMENTS)
    assert (summary.requests, summary.known) == (DOCUMENTS, 0) == (requests(server), 0)
    sent = (len(one["messages"][0]["content"].split()) for one in server["seen"])
    assert summary.prompt_tokens == sum(sent)
    assert summary.cost == pytest.approx((summary.prompt_tokens + 10 * summary.reply_tokens) / 1e6)
    manifest = json.loads(Path(summary.folder, "_manifest.json").read_text())
    assert manifest["rows"] == summary.rows
    assert manifest["kept_share"] == pytest.approx(summary.kept_share, abs=1e-4)
    names = {path.name for path in Path(summary.folder).iterdir()}
    assert {name for name in names if not name.startswith("part-")} == {
        *("_answers", "_asking.json", "_manifest.json")
    }

    # The same job again has nothing to ask.
    with caplog.at_level(logging.INFO):
        again = pipelines.ask(whole.config)
    assert "nothing to ask" in caplog.text
    assert (again.requests, again.rows) == (0, summary.rows)
    assert requests(server) == DOCUMENTS

    # The next training takes the table as it is.
    trained = whole.config.changed(
        "corpus",
        format="parquet",
        inputs=(summary.folder,),
        pairs="columns",
        pair_columns=("anchor", "positive"),
        group_column="group",
        min_characters=1,
    ).changed("prepared", folder=str(tmp_path / "prepared"))
    prepare_corpus(spark, trained)


def test_the_second_job_asks_about_new_documents_only(
    spark, whole, asking, document_file, language_server
):
    config = asking(round_trip=None)
    begin_with(whole, config)
    texts = [row["text"] for row in rows_of(document_file)]
    changed = [*texts[2:], "Kangaroos hop across Australian grasslands", texts[5]]
    write_documents(document_file, changed)
    second = pipelines.ask(config)
    assert (second.documents, second.requests, second.known) == (DOCUMENTS - 1, 1, DOCUMENTS - 2)
    assert requests(language_server) == 1
    kept = {row["positive"] for row in rows_of(second.folder)}
    assert kept <= {*changed}
    assert "Kangaroos hop across Australian grasslands" in kept


def test_other_filters_need_no_further_request(spark, whole, asking, language_server):
    begin_with(whole, asking())
    second = pipelines.ask(asking(round_trip=None, max_characters=45))
    assert requests(language_server) == 0
    assert second.questions == whole.summary.questions
    assert second.rows < whole.summary.rows
    assert max(len(row["anchor"]) for row in rows_of(second.folder)) <= 45
    third = pipelines.ask(asking(round_trip=1))
    assert requests(language_server) == 0
    assert {row["rank"] for row in rows_of(third.folder)} == {1}
    assert third.dropped["document not found"] > 0


def test_a_killed_job_goes_on_and_ends_with_the_same_bytes(
    spark, whole, asking, language_server, monkeypatch, caplog
):
    config = asking(round_trip=DOCUMENTS)

    def dies(*_: object, **__: object) -> None:
        raise PipelineError("the driver is killed here")

    for place in ("_Making._stage", "_Making._filter", "write_pairs", "take_place"):
        with monkeypatch.context() as patched:
            patched.setattr(f"pipelines.questions.ask.{place}", dies)
            with pytest.raises(PipelineError, match="killed here"):
                pipelines.ask(config)
        assert not Path(config.questions.output).exists()
    begun = next_folder(Path(config.questions.output))
    # A lost part is asked about again, and no other.
    lost = sorted((begun / "_answers").glob("part-*"))[2]
    answers = pq.read_table(lost).num_rows
    lost.unlink()
    (begun / "_manifest.json").unlink()
    with caplog.at_level(logging.INFO):
        summary = pipelines.ask(config)
    assert "resuming the table in" in caplog.text
    assert requests(language_server) == DOCUMENTS + answers
    assert summary.requests == DOCUMENTS
    assert bytes_of(summary.folder) == bytes_of(whole.summary.folder)
    assert not begun.exists()


def test_other_answers_are_replaced_only_if_asked(spark, whole, asking, language_server):
    config = asking(round_trip=None)
    begin_with(whole, config)
    made = bytes_of(config.questions.output)
    changes = [{"temperature": 0.1}, {"per_prompt": 2}, {"seed": 4}]
    for change in changes:
        other = asking(round_trip=None, **change)
        with pytest.raises(InputError, match=r"were made with another value of this setting\. Set"):
            pipelines.ask(other)
    assert bytes_of(config.questions.output) == made
    again = pipelines.ask(asking(round_trip=None, temperature=0.1, overwrite=True))
    assert requests(language_server) == DOCUMENTS
    assert again.known == 0
    notes = Path(config.questions.output, "notes.txt")
    notes.write_text("mine")
    with pytest.raises(InputError, match=r"^questions\.output: .* holds other files \(notes\.txt"):
        pipelines.ask(asking(overwrite=True))
    assert notes.read_text() == "mine"


def test_a_budget_ends_the_asking_and_the_next_job_goes_on(
    spark, whole, asking, monkeypatch, caplog
):
    monkeypatch.setattr("pipelines.questions.ask._TASK_TOKENS", 4000)
    budget = (whole.summary.prompt_tokens + whole.summary.reply_tokens) // 2
    config = asking(round_trip=None, token_budget=budget)
    with caplog.at_level(logging.INFO):
        first = pipelines.ask(config)
    assert 0.8 * budget < first.prompt_tokens + first.reply_tokens <= budget
    left = DOCUMENTS - first.asked_documents
    assert 0 < left < DOCUMENTS
    assert f"{left} documents were not asked about: questions.token_budget" in caplog.text
    assert first.rows < whole.summary.rows
    second = pipelines.ask(config)
    assert second.known == first.requests
    last = pipelines.ask(config) if second.asked_documents < DOCUMENTS else second
    assert (last.asked_documents, last.rows) == (DOCUMENTS, whole.summary.rows)
    assert pipelines.ask(config).requests == 0


def test_a_server_that_fails_is_told_in_one_line_and_answers_are_kept(
    spark, asking, language_server
):
    config = asking(round_trip=None, requests=1, retries=0)
    language_server["faults"] += [*[False] * 40, *[500] * 10]
    with pytest.raises(PipelineError, match=r"fails again and again .*; replies are kept"):
        pipelines.ask(config)
    begun = next_folder(Path(config.questions.output))
    whole = sum(pq.read_metadata(path).num_rows for path in (begun / "_answers").glob("part-*"))
    replies = pq.read_table([*(begun / "_answers/_kept").glob("part-*")])["reply"]
    assert (whole, len(replies) - replies.null_count) == (32, 8)
    language_server["faults"].clear()
    before = requests(language_server)
    summary = pipelines.ask(config)
    # Paid once, and counted.
    assert requests(language_server) == before + DOCUMENTS - 40
    assert (summary.asked_documents, summary.requests) == (DOCUMENTS, DOCUMENTS)
    assert not (Path(summary.folder) / "_answers/_kept").exists()


def test_a_document_at_which_the_server_fails_is_asked_about_again_by_the_next_job(
    spark, asking, document_file, language_server, caplog
):
    texts = [row["text"] for row in rows_of(document_file)]
    write_documents(document_file, [*texts[:9], f"{texts[9]} poison"])
    language_server["broken"].append("poison")
    config = asking(round_trip=None, retries=0)
    with caplog.at_level(logging.INFO):
        first = pipelines.ask(config)
    assert first.problems == {"failed": 1}
    assert "1 requests failed. The same command repeats them" in caplog.text
    language_server["broken"].clear()
    second = pipelines.ask(config)
    assert (second.requests, second.known, second.problems) == (1, 9, {})
    assert pipelines.ask(config).requests == 0


def test_answers_of_an_unfinished_table_are_kept_when_documents_change(
    spark, asking, document_file, language_server, monkeypatch
):
    config = asking(round_trip=None)

    def dies(*_: object, **__: object) -> None:
        raise PipelineError("the driver is killed here")

    with monkeypatch.context() as patched:
        patched.setattr("pipelines.questions.ask._Making._filter", dies)
        with pytest.raises(PipelineError, match="killed here"):
            pipelines.ask(config)
    # Neither does a model that refuses other documents cost them.
    texts = [row["text"] for row in rows_of(document_file)]
    write_documents(document_file, ["Kangaroos hop across Australian grasslands"])
    language_server["refused"].append("Kangaroos")
    with pytest.raises(
        InputError, match=r"^questions\.model: the replies to 1 requests hold no question"
    ):
        pipelines.ask(config)
    language_server["refused"].clear()
    before = requests(language_server)
    write_documents(document_file, [*texts[1:], "Kangaroos hop across Australian grasslands"])
    with pytest.raises(InputError, match=r"another value of this setting.* Or remove the unfini"):
        pipelines.ask(asking(round_trip=None, temperature=0.1))
    summary = pipelines.ask(config)
    assert (summary.requests, summary.known) == (1, DOCUMENTS - 1)
    assert requests(language_server) == before + 1
    assert {row["positive"] for row in rows_of(summary.folder)} <= {
        *texts[1:],
        "Kangaroos hop across Australian grasslands",
    }


def test_a_job_that_dies_at_its_budget_forgets_no_answer(spark, whole, asking, monkeypatch):
    monkeypatch.setattr("pipelines.questions.ask._TASK_TOKENS", 4000)
    tokens = whole.summary.prompt_tokens + whole.summary.reply_tokens

    def dies(*_: object, **__: object) -> None:
        raise PipelineError("the driver is killed here")

    with monkeypatch.context() as patched:
        patched.setattr("pipelines.questions.ask.write_pairs", dies)
        with pytest.raises(PipelineError, match="killed here"):
            pipelines.ask(asking(round_trip=None, token_budget=tokens // 2))
    summary = pipelines.ask(asking(round_trip=None))
    assert (summary.asked_documents, summary.rows) == (DOCUMENTS, whole.summary.rows)


def test_a_job_that_dies_at_its_budget_keeps_to_it_in_the_next_run(
    spark, asking, language_server, monkeypatch
):
    monkeypatch.setattr("pipelines.questions.ask._TASK_TOKENS", 2000)
    budget = 9000

    def dies(*_: object, **__: object) -> None:
        raise PipelineError("the driver is killed here")

    with monkeypatch.context() as patched:
        patched.setattr("pipelines.questions.ask.write_pairs", dies)
        with pytest.raises(PipelineError, match="killed here"):
            pipelines.ask(asking(round_trip=None, token_budget=budget))
    before = requests(language_server)
    summary = pipelines.ask(asking(round_trip=None, token_budget=budget))
    assert 0 < summary.asked_documents < DOCUMENTS
    assert 0.8 * budget < summary.prompt_tokens + summary.reply_tokens <= budget
    assert summary.requests == requests(language_server) >= before


def test_a_budget_needs_a_server_that_counts(spark, asking, language_server):
    language_server["counts_tokens"].clear()
    with pytest.raises(InputError, match=r"^questions\.token_budget: the server does not count"):
        pipelines.ask(asking(round_trip=None, token_budget=1000))


def test_a_key_from_a_mounted_file_ends_with_a_line(asking, language_server, monkeypatch):
    monkeypatch.setenv("QUESTIONS_API_KEY", f"{KEY}\n")
    assert AskingJob.of(asking()).plan.replies["questions.model"] == MODEL
    for secret in ("two words", "schl\u00fcssel"):
        monkeypatch.setenv("QUESTIONS_API_KEY", secret)
        with pytest.raises(InputError, match=r"^questions\.key_variable: the key in QUEST") as told:
            AskingJob.of(asking())
        assert secret not in str(told.value)


def test_an_output_among_the_documents_is_refused(asking, document_file):
    for output in (document_file.parent, document_file.parent / "questions"):
        with pytest.raises(InputError, match=r"^questions\.output: "):
            AskingJob.of(asking(inputs=[str(document_file.parent)], output=str(output)))


def test_documents_that_the_model_refuses_are_asked_about_again_and_empty_replies_are_paid(
    spark, asking, document_file, language_server
):
    texts = [row["text"] for row in rows_of(document_file)]
    texts[:2] = f"{texts[0]} xylophone", f"{texts[1]} walrus"
    write_documents(document_file, texts)
    language_server["refused"].append("xylophone")
    language_server["endless"].append("walrus")
    config = asking(round_trip=None)
    first = pipelines.ask(config)
    assert first.problems == {"refused": 1, "empty": 1}
    assert first.asked_documents == DOCUMENTS
    language_server["refused"].clear()
    write_documents(document_file, [*texts, "Kangaroos hop"])
    second = pipelines.ask(config)
    assert (second.requests, second.problems) == (2, {})


def test_a_model_that_refuses_all_is_told_in_its_words_and_asked_again(
    spark, asking, language_server
):
    language_server["refused"].append("Document:")
    config = asking(round_trip=None)
    refused = (
        rf"^questions\.model: the replies to {DOCUMENTS} requests hold no question \(refused: "
    )
    with pytest.raises(InputError, match=refused):
        pipelines.ask(config)
    before = requests(language_server)
    language_server["refused"].clear()
    summary = pipelines.ask(config)
    assert requests(language_server) == before + DOCUMENTS
    assert (summary.requests, summary.problems) == (DOCUMENTS, {})


def test_empty_replies_are_paid_for_once(spark, asking, language_server):
    language_server["endless"].append("Document:")
    config = asking(round_trip=None)
    for _ in range(2):
        with pytest.raises(InputError, match=r"\(empty\)\. Correct .*\.max_tokens\. To pay for"):
            pipelines.ask(config)
        assert requests(language_server) == DOCUMENTS


def long_texts(documents: Path) -> list[str]:
    """Documents whose replies have more than 12 words: they are about two questions or more."""
    texts = [row["text"] for row in rows_of(documents)]
    return [text for text in texts if len(questions_about(text, 3)) > 1]


def test_more_tokens_repeat_only_what_ended_at_the_limit(
    spark, asking, document_file, language_server, caplog
):
    long = long_texts(document_file)
    # The first question of each reply is whole.
    half = pipelines.ask(asking(round_trip=None, max_tokens=12))
    assert half.problems == {"cut off": len(long)}
    for limit in (8, 12):
        again = pipelines.ask(asking(round_trip=None, max_tokens=limit))
        assert (again.requests, again.known, again.questions) == (0, DOCUMENTS, half.questions)
    for text, name in zip(long, ("broken", "refused", "endless"), strict=False):
        language_server[name].append(text)
    more = pipelines.ask(asking(round_trip=None, max_tokens=64))
    assert (more.requests, more.known) == (len(long), DOCUMENTS - len(long))
    assert more.problems == {"failed": 1, "refused": 1, "cut off": 1}
    assert more.questions > half.questions
    # Where no better reply came, the earlier one stays.
    assert documents_of(more.folder) >= documents_of(half.folder)
    for name in ("broken", "refused", "endless"):
        language_server[name].clear()
    language_server["faults"].append("talk")
    with caplog.at_level(logging.INFO):
        last = pipelines.ask(asking(round_trip=None, max_tokens=64))
    assert (last.requests, last.known, last.problems) == (1, DOCUMENTS - 1, {})
    assert "1 replies hold no question" in caplog.text


def documents_of(folder: str) -> set[str]:
    return {row["positive"] for row in rows_of(folder)}


def test_a_budget_leaves_half_replies_for_the_next_job(
    spark, asking, document_file, language_server, monkeypatch
):
    half = pipelines.ask(asking(round_trip=None, max_tokens=12))
    known = documents_of(half.folder)
    limits = {"round_trip": None, "requests": 1}
    limits["token_budget"] = (half.prompt_tokens + half.reply_tokens) // 4

    def dies(*_: object, **__: object) -> None:
        raise PipelineError("the driver is killed here")

    with monkeypatch.context() as patched:
        patched.setattr("pipelines.questions.ask._Making._filter", dies)
        with pytest.raises(PipelineError, match="killed here"):
            pipelines.ask(asking(max_tokens=63, **limits))
    asked = requests(language_server) - DOCUMENTS
    # A begun table whose limit rises keeps the replies that have not come to the lower one.
    first = pipelines.ask(asking(max_tokens=64, **limits))
    left = len(long_texts(document_file)) - asked - first.requests
    assert min(asked, first.requests, left) > 0
    assert (first.known, first.asked_documents) == (DOCUMENTS - first.requests, DOCUMENTS - left)
    assert documents_of(first.folder) >= known
    last = pipelines.ask(asking(round_trip=None, max_tokens=64))
    assert (last.requests, last.known) == (left, DOCUMENTS - left)


def test_several_prompts_and_requests_at_a_time(spark, asking, language_server, monkeypatch):
    monkeypatch.setattr("pipelines.questions.ask.default_parallelism", lambda session: 7)
    config = asking(round_trip=None, prompts=("question", "keywords"), requests=3)
    summary = pipelines.ask(config)
    assert (summary.requests, summary.asked_documents) == (2 * DOCUMENTS, DOCUMENTS)
    rows = rows_of(summary.folder)
    # Both prompts get the same questions from this server, and each is kept once.
    assert {(row["anchor"], row["positive"]) for row in rows} == expected(
        Path(config.questions.inputs[0])
    )
    assert summary.dropped["repeated"] >= len(rows)

    # A dry run counts a reply in two tables once.
    output = Path(summary.folder)
    # One of two prompts has replies, in the table and in an unfinished one.
    for file in output.glob("_answers/part-*"):
        replies = pq.read_table(file)
        pq.write_table(replies.filter(pc.equal(replies["prompt"], "question")), file)
    begun = next_folder(output)
    shutil.copytree(output, begun)
    # Files that another job joins meanwhile are not read.
    (begun / "_answers/_kept").mkdir()
    (begun / "_answers/_kept/part-0000-gone.parquet").write_bytes(b"PAR1")
    assert estimate_asking(config)[0].startswith(
        f"{DOCUMENTS} documents, {2 * DOCUMENTS} requests; sample of 40"
    )


def test_a_dry_run_prices_the_job_and_writes_nothing(
    spark, asking, document_file, language_server, capsys, tmp_path
):
    texts = [row["text"] for row in rows_of(document_file)]
    write_documents(document_file, [*texts, texts[0], "", " "])
    config = asking(price_input=2.0)
    path = tmp_path / "job.yaml"
    path.write_text(dump(config))
    assert main(["ask", "--config", str(path), "--dry-run"]) == 0
    told = capsys.readouterr().out
    empty = "(2 rows without text)"
    assert f"{DOCUMENTS} documents {empty}, {DOCUMENTS} requests; sample of 20:" in told
    found = re.search(r"([\d,]+) \(±([\d,]+)\) tokens of prompts", told)
    estimate, half = (float(one.replace(",", "")) for one in found.groups())
    assert requests(language_server) == 20
    assert not Path(config.questions.output).exists()
    assert not next_folder(Path(config.questions.output)).exists()
    asked = pipelines.ask(config)
    assert abs(asked.prompt_tokens - estimate) < 2 * half
    assert "cost" in told
    assert told.count("question for: ") == 3


FAULTS = [
    ({"model": None}, "questions.model", "it is empty. Name the model at the endpoint"),
    ({"address": None}, "questions.address", "it is empty. Write http://HOST:PORT/v1"),
    ({"address": "localhost:80"}, "questions.address", "`localhost:80` is no URL"),
    ({"inputs": []}, "questions.inputs", "it is empty"),
    ({"inputs": ["/nowhere"]}, "questions.inputs", "/nowhere"),
    ({"text_column": "body"}, "questions.text_column", "has no column `body`"),
    ({"title_column": "id"}, "questions.title_column", "holds no text"),
    ({"round_trip_model": "/nowhere"}, "questions.round_trip_model", "there is no folder"),
    ({"prompts": ["/nowhere.txt"]}, "questions.prompts", "cannot be read"),
    ({"examples": "/nowhere.txt"}, "questions.examples", "cannot be read"),
]


@pytest.mark.parametrize(("changed", "key", "problem"), FAULTS, ids=[key for _, key, _ in FAULTS])
def test_what_cannot_be_asked_is_refused_before_spark(asking, changed, key, problem, monkeypatch):
    monkeypatch.setattr(
        "pipelines.jobs.ask.spark_session", lambda *_, **__: pytest.fail("Spark was started")
    )
    with pytest.raises(InputError) as refused:
        pipelines.ask(asking(**changed))
    assert refused.value.key == key
    assert problem in str(refused.value)


def test_a_local_generator_needs_a_folder_and_no_address(asking, tmp_path):
    with pytest.raises(InputError, match=r"^questions\.model: there is no folder"):
        pipelines.ask(asking(generator="transformers", address=None, model="/nowhere"))
    with pytest.raises(InputError, match=r"^questions\.address: .* asks no server"):
        pipelines.ask(asking(generator="transformers", model=MODEL))
    if not is_installed("vllm"):
        with pytest.raises(
            InputError, match=r"^questions\.generator: vllm is not installed\. Run "
        ):
            pipelines.ask(asking(generator="vllm", address=None, model=str(tmp_path)))


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"min_characters": 400}, "questions.min_characters: 400 is more than"),
        ({"prompts": []}, "questions.prompts: it is empty"),
        ({"prompts": ["claim", "claim"]}, "questions.prompts: it names claim twice"),
        ({"language": "English"}, "questions.language: `English` is no ISO 639 code"),
        ({"meta_phrases": ["("]}, "questions.meta_phrases: `(` is no regular expression"),
        ({"generator": "oracle"}, "questions.generator: there is no generator `oracle`"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(asking, changed, problem):
    with pytest.raises(InputError) as refused:
        asking(**changed)
    assert problem in str(refused.value)


def test_documents_without_a_text_and_an_empty_table(spark, asking, document_file):
    texts = [row["text"] for row in rows_of(document_file)]
    write_documents(document_file, [*texts[:3], texts[0], "  ", ""])
    summary = pipelines.ask(asking(round_trip=None))
    assert (summary.read, summary.without_text, summary.documents) == (6, 2, 3)
    write_documents(document_file, ["", " "])
    with pytest.raises(InputError, match=r"^questions\.inputs: none of 2 rows has a text"):
        pipelines.ask(asking(round_trip=None))
    assert len({*chain(row["positive"] for row in rows_of(summary.folder))}) == 3
