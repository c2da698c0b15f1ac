"""Replies of unfinished parts: what a kill at any moment leaves, and what the next attempt asks."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from forks import forks
from language_server import KEY, MODEL
from question_documents import DOCUMENTS

from pipelines.errors import InputError, PipelineError
from pipelines.files.begun import next_folder
from pipelines.files.locations import Location, arrow_source, listed
from pipelines.questions import answers, kept
from pipelines.questions.answers import (
    AskingWork,
    Failure,
    ask_parts,
    figures_of,
    holds_paid,
    tokens_of,
)
from pipelines.questions.generator import GeneratorOptions, Reply
from pipelines.questions.kept import (
    KEPT,
    Keeper,
    answer_row,
    answers_schema,
    kept_replies,
    remove_remains,
    write_rows,
)
from pipelines.questions.prompts import Asking
from pipelines.settings import QuestionSettings
from pipelines.settings.load import dump
from pipelines.settings.spark import StorageSettings
from pipelines.vectors.parts import RowRange

ROWS = 100
PART = "part-0000-00000-00000"
KILLS = 2
SECONDS = 0.3
"""Between the files of kept replies, in tests."""
DEADLINE_SECONDS = 120
SLACK = 1.5
"""For the file, on a busy machine."""
NAMES = ("question", "keywords")


@pytest.fixture(params=["disk", "s3"])
def folder(request, tmp_path) -> Location:
    """A folder of answers."""
    if request.param == "disk":
        return tmp_path / "answers"
    return request.getfixturevalue("s3_bucket").root / "answers"


@pytest.fixture(scope="module")
def exit_code() -> Iterator[Callable[..., int]]:
    """Does something in a child, and returns the child's exit code."""
    with forks() as found:
        yield found


@pytest.fixture
def part(tmp_path) -> RowRange:
    """A part of all documents."""
    texts = [f"alpha{number} beta{number} gamma{number}" for number in range(ROWS)]
    nothing = pa.nulls(ROWS, pa.string())
    path = tmp_path / "documents.parquet"
    pq.write_table(pa.table({"text": texts, "title": nothing, "key": range(ROWS)}), path)
    return RowRange(PART, path, 0, ROWS)


def work_of(server: dict[str, Any], folder: Location, **changed: Any) -> AskingWork:
    """The work of a task with two prompts for each document."""
    options = GeneratorOptions(
        model=MODEL,
        address=server["address"],
        secret=KEY,
        requests=4,
        max_tokens=64,
        temperature=0.5,
        timeout=30.0,
        retries=0,
    )
    work = AskingWork(
        generator="endpoint",
        options=options,
        asking=Asking.of(QuestionSettings(prompts=NAMES), StorageSettings()),
        folder=folder,
        known=None,
        key_type=pa.int64(),
        budget=float("inf"),
        paid={},
    )
    return replace(work, **changed)


def attempts_in(folder: Location) -> Location:
    attempts = folder / "_attempts/one"
    attempts.mkdir(parents=True, exist_ok=True)
    return attempts


def asked(part: RowRange, work: AskingWork) -> list[int | Failure]:
    """Asks about a part, in this process."""
    return list(ask_parts([part], work=work, attempts=attempts_in(work.folder)))


def ask_and_die(part: RowRange, work: AskingWork, replies: int, seconds: float) -> None:
    """Asks about a part, and dies so long after its first new replies are in files; in a child."""
    kept.KEPT_SECONDS = SECONDS
    wanted = len(kept_replies(work.folder, PART)[0]) + replies
    taken = 0

    def in_files() -> int:
        try:
            return len(kept_replies(work.folder, PART)[0])
        except (OSError, PipelineError):
            # Files were joined while they were read.
            return 0

    def die() -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while in_files() < wanted:
            if time.monotonic() > deadline:
                os._exit(1)
            time.sleep(0.2)
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGKILL)

    class Dying(Keeper):
        def add(self, part: str, row: dict[str, Any]) -> None:
            nonlocal taken
            super().add(part, row)
            taken += 1
            # No part is whole before its kill, however late the files are.
            while taken >= replies + 30:
                time.sleep(1)

    answers.Keeper = Dying
    threading.Thread(target=die, daemon=True).start()
    asked(part, work)


def prompts_seen(server: dict[str, Any]) -> list[str]:
    return [one["messages"][0]["content"] for one in server["seen"]]


def answers_in(folder: Location) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(arrow_source(folder / f"{PART}.parquet")).to_pylist()
    return rows


@pytest.mark.slow
def test_replies_come_into_files_before_their_part_is_whole_and_survive_kills(
    language_server, part, folder, exit_code
):
    drawn = random.Random(str(folder))
    work = work_of(language_server, folder)
    # Some 13 replies a second: a kill falls between the first and the last.
    language_server["pauses"].append(0.3)
    sent, known, lost = language_server["sent"], set[tuple[str, str]](), 0
    for _ in range(KILLS):
        before = len(prompts_seen(language_server))
        replies_kept = drawn.randint(10, 30)
        code = exit_code(ask_and_die, part, work, replies_kept, drawn.uniform(0.0, 0.6))
        assert code == -signal.SIGKILL
        assert figures_of(folder / f"{PART}.parquet") is None
        replies, files = kept_replies(folder, PART)
        # Nothing is asked again, and nothing is lost that was in a file.
        asked_now = prompts_seen(language_server)[before:]
        assert len(asked_now) == len({*asked_now})
        assert known < replies.keys()
        assert len(replies) >= len(known) + replies_kept
        assert len(files) <= 10 * KILLS
        known = {*replies}
        # Requests on their way at the kill end before the next attempt.
        time.sleep(0.5)
        lost = len(sent) - len(known)
    language_server["pauses"].clear()
    assert exit_code(asked, part, work) == 0
    assert len(sent) == 2 * ROWS + lost
    rows = answers_in(folder)
    assert [row["key"] for row in rows] == [number for number in range(ROWS) for _ in NAMES]
    assert all(row["reply"] for row in rows)
    assert listed(folder / KEPT, "*") == []


@pytest.mark.parametrize("folder", ["disk"], indirect=True)
def test_two_attempts_at_a_task_do_not_harm_each_other(language_server, part, folder, monkeypatch):
    monkeypatch.setattr(kept, "KEPT_SECONDS", 0.05)
    language_server["pauses"].append(0.1)
    work = work_of(language_server, folder)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(asked, part, work)
        ends = time.monotonic() + 60
        while not listed(folder / KEPT, "*"):
            assert time.monotonic() < ends
            time.sleep(0.02)
        second = pool.submit(asked, part, work)
        assert (first.result(60), second.result(60)) == ([2 * ROWS], [2 * ROWS])
    assert len(answers_in(folder)) == 2 * ROWS
    assert listed(folder / KEPT, "*") == []
    # The second has taken over what the first had by then.
    assert len(language_server["sent"]) < 4 * ROWS


def test_an_attempt_counts_what_an_earlier_one_has_spent(language_server, part, folder):
    language_server["faults"] += [*[False] * 40, *[500] * 400]
    work = work_of(language_server, folder, budget=8000.0)
    (failure,) = asked(part, work)
    assert isinstance(failure, Failure)
    spent = tokens_of(folder, PART)
    assert 0 < spent < 8000
    language_server["faults"].clear()
    asked(part, work)
    assert spent < tokens_of(folder, PART) <= 8000
    # The driver of another job takes them off its budget.
    paid = {PART: tokens_of(folder, PART)}
    asked(part, replace(work, budget=1000.0, paid=paid))
    assert paid[PART] + 700 < tokens_of(folder, PART) <= paid[PART] + 1000
    figures = figures_of(folder / f"{PART}.parquet")
    assert figures is not None
    assert figures.tokens == tokens_of(folder, PART)


@pytest.mark.parametrize("folder", ["disk"], indirect=True)
def test_an_empty_reply_is_paid_for_once_and_counted(language_server, part, folder):
    language_server["endless"].append("alpha7 ")
    language_server["faults"] += [*[False] * 40, *[500] * 400]
    work = work_of(language_server, folder, budget=8000.0)
    asked(part, work)
    # The part ends at its budget, and later a second time.
    language_server["faults"].clear()
    asked(part, work)
    ended = figures_of(folder / f"{PART}.parquet")
    assert ended is not None
    assert ended.problems == {"empty": len(NAMES)}
    paid = {PART: tokens_of(folder, PART)}
    asked(part, replace(work, budget=1000.0, paid=paid))
    endless = [prompt for prompt in prompts_seen(language_server) if "alpha7 " in prompt]
    assert len(endless) == len(NAMES)
    figures = figures_of(folder / f"{PART}.parquet")
    assert figures is not None
    assert figures.problems == ended.problems
    assert figures.tokens == tokens_of(folder, PART) > paid[PART]


@pytest.mark.parametrize(
    ("reply", "is_paid"),
    [
        (Reply("---", 0, 0), True),
        (Reply(None, 9, 9, "empty"), True),
        (Reply(None, 0, 0, "refused: too long"), False),
    ],
)
def test_a_reply_is_paid_for_whether_the_server_counts_tokens_or_not(tmp_path, reply, is_paid):
    row = answer_row({"text": "text", "title": None, "key": 1}, "question", reply)
    file = tmp_path / "part-0000.parquet"
    write_rows([row], answers_schema(pa.int64()), file, tmp_path)
    assert holds_paid(file) is is_paid


def rows_to_keep(count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        document = {"text": f"text {number}", "title": None, "key": number}
        yield answer_row(document, "question", Reply("1. Why?", 10, 3))


def test_files_are_few_and_can_be_read_while_they_are_joined(tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "KEPT_REPLIES", 3)
    folder, ended = tmp_path / "answers", threading.Event()

    def keep(keeper: Keeper) -> None:
        for row in rows_to_keep(400):
            keeper.add(PART, row)
            time.sleep(0.002)
        ended.set()

    with Keeper(folder, answers_schema(pa.int64()), attempts_in(folder)) as keeper:
        assert keeper.begin(PART) == {}
        thread = threading.Thread(target=keep, args=(keeper,))
        thread.start()
        seen, most = 0, 0
        while not ended.is_set():
            replies, files = kept_replies(folder, PART)
            assert len(replies) >= seen
            seen, most = len(replies), max(most, len(files))
        thread.join(60)
    assert 2 < most <= 20
    assert len(kept_replies(folder, PART)[0]) == 400
    # The next attempt takes them over, and removes them with its own.
    with Keeper(folder, answers_schema(pa.int64()), attempts_in(folder)) as keeper:
        assert len(keeper.begin(PART)) == 400
        keeper.end(PART)
    assert listed(folder / KEPT, "*") == []


def test_a_folder_that_takes_no_file_ends_the_task(tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "KEPT_SECONDS", 0.05)

    def keep() -> None:
        with Keeper(tmp_path / "answers", answers_schema(pa.int64()), tmp_path / "gone") as keeper:
            keeper.begin(PART)
            for row in rows_to_keep(1000):
                keeper.add(PART, row)
                time.sleep(0.02)

    began = time.monotonic()
    with pytest.raises(OSError, match="gone"):
        keep()
    assert time.monotonic() - began < 15


def test_what_could_not_be_written_is_written_at_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "KEPT_SECONDS", 0.05)
    folder, attempts, added = tmp_path / "answers", tmp_path / "attempts", list[Any]()
    with (
        pytest.raises(OSError, match="attempts"),
        Keeper(folder, answers_schema(pa.int64()), attempts) as keeper,
    ):
        keeper.begin(PART)
        try:
            for row in rows_to_keep(1000):
                added.append(row)
                keeper.add(PART, row)
                time.sleep(0.02)
        except OSError:
            attempts.mkdir()
            raise
    assert 0 < len(added) < 1000
    assert len(kept_replies(folder, PART)[0]) == len(added)


def test_an_error_of_the_settings_is_told_even_if_no_reply_can_be_written(tmp_path):
    with (
        pytest.raises(InputError, match=r"^questions\.address: "),
        Keeper(tmp_path / "answers", answers_schema(pa.int64()), tmp_path / "gone") as keeper,
    ):
        keeper.begin(PART)
        keeper.add(PART, next(rows_to_keep(1)))
        raise InputError("questions.address", "there is no answer", "Start the server")


def test_files_that_vanish_again_and_again_are_no_end_of_the_replies(tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "listed", lambda *_: [tmp_path / f"{PART}-gone.parquet"])
    with pytest.raises(PipelineError, match=rf"files of {PART} in .* vanish while they are read"):
        kept_replies(tmp_path, PART)


@pytest.mark.parametrize("folder", ["disk"], indirect=True)
def test_no_reply_waits_for_the_parts_beyond_the_budget(language_server, part, folder, monkeypatch):
    added, waiting = 0, list[int]()

    class Counting(Keeper):
        def begin(self, part: str) -> Any:
            waiting.append(len(language_server["seen"]) - added)
            return super().begin(part)

        def add(self, part: str, row: dict[str, Any]) -> None:
            nonlocal added
            super().add(part, row)
            added += 1

    monkeypatch.setattr(answers, "Keeper", Counting)
    language_server["pauses"].append(0.05)
    work = work_of(language_server, folder, budget=2000.0)
    parts = [
        replace(part, name=f"{PART}-{start}", start=start, stop=start + 25)
        for start in range(0, ROWS, 25)
    ]
    list(ask_parts(parts, work=work, attempts=attempts_in(folder)))
    assert waiting == [0] * 4
    assert 1600 < tokens_of(folder, parts[0].name) <= 2000


@pytest.mark.parametrize("folder", ["disk"], indirect=True)
def test_refused_requests_foretell_no_tokens(language_server, part, folder):
    language_server["refused"] += ["alpha0 ", "alpha1 "]
    work = work_of(language_server, folder, budget=1000.0)
    asked(part, replace(work, options=replace(work.options, requests=16)))
    assert 700 < tokens_of(folder, PART) <= 1000


@pytest.mark.parametrize("folder", ["disk"], indirect=True)
def test_a_late_attempt_replaces_no_fuller_part(language_server, part, folder, monkeypatch):
    work = work_of(language_server, folder)

    class Overtaken(Keeper):
        def add(self, part_name: str, row: dict[str, Any]) -> None:
            if answers.Keeper is Overtaken:
                answers.Keeper = Keeper
                asked(part, work)
                language_server["broken"].append("alpha50 ")
            super().add(part_name, row)

    monkeypatch.setattr(answers, "Keeper", Overtaken)
    asked(part, work)
    assert len(language_server["seen"]) > 3 * ROWS
    assert all(row["reply"] for row in answers_in(folder))


def test_a_failed_request_and_the_remains_of_an_upload_are_no_replies(tmp_path):
    folder, schema = tmp_path / "answers", answers_schema(pa.int64())
    document = {"text": "text", "title": None, "key": 1}
    for reply in (Reply(None, 0, 0, "failed: busy"), Reply("1. Why?", 10, 3)):
        with Keeper(folder, schema, attempts_in(folder)) as keeper:
            keeper.begin(PART)
            keeper.add(PART, answer_row(document, "question", reply))
    whole = listed(folder / KEPT, "*")[0].read_bytes()
    (folder / KEPT / f"{PART}-torn.parquet").write_bytes(whole[:-7])
    replies, files = kept_replies(folder, PART)
    assert replies == {("text", "question"): Reply("1. Why?", 10, 3)}
    # Spark reads the folder when documents have changed.
    remove_remains(folder / KEPT)
    assert len(listed(folder / KEPT, "*")) == len(files) - 1 == 2


@pytest.mark.slow
@pytest.mark.matrix
def test_a_whole_job_killed_before_its_first_part_is_whole_goes_on(
    language_server, asking, tmp_path
):
    drawn = random.Random(7)
    # Some 7 replies a second, so a part takes ten seconds or more.
    language_server["pauses"].append(0.3)
    config = asking(round_trip=None, requests=2, part_documents=DOCUMENTS)
    config = config.changed("spark", master="local[2]")
    path = tmp_path / "job.yaml"
    path.write_text(dump(config))
    sent, known = language_server["sent"], 0
    for _ in range(KILLS):
        before = len(sent)
        process = started(path)
        while len(sent) < before + 8:
            assert process.poll() is None
            time.sleep(0.05)
        time.sleep(drawn.uniform(0.0, 4.0))
        killed(process)
        died = time.time()
        # Requests on their way.
        time.sleep(1.0)
        answers = next_folder(tmp_path / "questions") / "_answers"
        assert not [*answers.glob("part-*")]
        replies, _ = kept_replies(answers, "part")
        late = sum(moment >= died - kept.KEPT_SECONDS - SLACK for moment, _ in sent[before:])
        assert len(replies) >= known + len(sent) - before - late
        known = len(replies)
    language_server["pauses"].clear()
    before = len(sent)
    process = started(path)
    assert process.wait(300) == 0
    assert len(sent) - before == DOCUMENTS - known
    assert not (tmp_path / "questions/_answers" / KEPT).exists()


def started(job: Path) -> subprocess.Popen[bytes]:
    """The command in a process of its own."""
    main = "import sys; from pipelines.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", main, "ask", "--config", str(job)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL)


def killed(process: subprocess.Popen[bytes]) -> None:
    """Kills a command and all that it started, as the loss of its machine does."""
    family = [psutil.Process(process.pid)]
    family += family[0].children(recursive=True)
    for one in family:
        with suppress(psutil.NoSuchProcess):
            one.send_signal(signal.SIGKILL)
    psutil.wait_procs(family, timeout=120)
