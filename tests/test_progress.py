"""What a user sees of work that goes on, on a screen and in a log."""

import io
import logging
import math
import threading
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from pipelines.cli import main
from pipelines.errors import printable
from pipelines.progress import MessageHandler, WorkProgress, activity, display, job, next_part, say
from pipelines.progress import display as work
from pipelines.progress.display import LINE_SECONDS, line_interval

STAGES = ("starting", "corpus", "training")


@pytest.fixture
def impatient(monkeypatch):
    """Lines and looks follow one another at once."""
    monkeypatch.setattr(display, "LINE_SECONDS", 0.0)
    monkeypatch.setattr(display, "LINES_PER_DOUBLING", 1e9)
    monkeypatch.setattr(display, "_TICK_SECONDS", 0.001)


@pytest.fixture
def screen(monkeypatch):
    """Standard error is a terminal."""
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")


def test_where_there_is_no_screen_a_line_says_what_begins(capsys):
    with activity("corpus", "reading texts"):
        assert capsys.readouterr().err == "corpus: reading texts\n"
        next_part("pairs")
    assert capsys.readouterr().err == ""


def test_lines_go_on_with_what_is_done_by_then(capsys, impatient):
    looked, enough, turned = [], threading.Event(), threading.Event()

    def detail() -> str:
        # Else the thread that asks may be quicker than the next part.
        assert turned.wait(120)
        looked.append("")
        if len(looked) > 3:
            enough.set()
        return f"{len(looked)} of 9 tasks"

    with activity("corpus", detail=detail):
        next_part("pairs")
        turned.set()
        assert enough.wait(120)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "corpus"
    assert lines[1].startswith("corpus: pairs, 1 of 9 tasks")
    assert lines[2].startswith("corpus: pairs, 2 of 9 tasks")


def test_a_short_command_is_silent_until_it_turns_out_to_be_long(capsys, impatient):
    with activity("searching", quiet=60):
        time.sleep(0.05)
    assert capsys.readouterr().err == ""
    with activity("searching", quiet=0.05):
        assert _lines_until(capsys, lambda lines: len(lines) >= 1)[0] == "searching"


@pytest.mark.parametrize("command", ["promote", "rollback", "search"])
def test_what_is_refused_at_once_is_one_line(command, tmp_path, capsys):
    nowhere = tmp_path / "nowhere"
    keys = ("promotion.target", "run.folder", "embedding.output")
    settings = [f"{key}={nowhere}" for key in keys]
    asked = ["--query", "a"] if command == "search" else []
    given = [part for setting in settings for part in ("--set", setting)]
    assert main([command, *asked, *given]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")


def test_work_that_stands_still_says_so(capsys, impatient):
    with WorkProgress("training", 40, 0, "step {done}/{total}  {text}", "workers start") as bar:
        still = _lines_until(capsys, lambda lines: len(lines) >= 3)
        bar.move(1)
        _lines_until(capsys, lambda lines: "step 1/40" in lines)
    assert still[:3] == ["step 0/40  workers start"] * 3


def _lines_until(capsys, are_enough: Callable[[list[str]], bool]) -> list[str]:
    """The lines that are written from now on, until they are enough."""
    lines: list[str] = []
    end = time.monotonic() + 120
    while not are_enough(lines):
        assert time.monotonic() < end, f"only {lines[-3:]} in 30 seconds"
        time.sleep(0.001)
        lines += capsys.readouterr().err.splitlines()
    return lines


def test_a_file_has_a_line_at_each_tenth_and_no_signs_of_a_terminal(monkeypatch):
    file = io.StringIO()
    monkeypatch.setattr("sys.stderr", file)
    with WorkProgress("training", 40, 0, "step {done}/{total}  {text}") as bar:
        for step in range(1, 41):
            bar.move(step)
            bar.show(step, "loss 1")
    lines = file.getvalue().splitlines()
    assert lines == ["step 0/40", "step 1/40  loss 1"] + [
        f"step {step}/40  loss 1" for step in range(4, 41, 4)
    ]


@given(st.floats(0, 1e6))
def test_a_long_work_fills_no_log(elapsed):
    now, lines = 0.0, 0
    while now < elapsed:
        now += line_interval(now)
        lines += 1
    assert line_interval(elapsed) >= LINE_SECONDS
    # 20 in the first ten minutes, and after that for each growth by a factor of e.
    assert lines <= 21 + 21 * max(0.0, 1 + math.log(max(elapsed, 1.0) / 600))


def test_on_a_screen_messages_stand_above_what_moves(capsys, screen):
    handler = MessageHandler()
    logger = logging.getLogger("pipelines.test_progress")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        with activity("corpus", "reading"):
            logger.info("a message")
    finally:
        logger.removeHandler(handler)
    shown = capsys.readouterr().err
    assert "corpus" in shown
    assert "reading" in shown
    assert "0:00:00" in shown
    # It has a line of its own, from its beginning to its end.
    assert "a message" in [line.rpartition("\x1b[2K")[2] for line in shown.splitlines()]


def test_a_bar_fits_a_screen_of_eighty_columns(capsys, screen):
    with WorkProgress("training", 120, 0, "") as bar:
        bar.show(37, "loss 1.0661  60.8 examples/s")
    lines = [line for line in capsys.readouterr().err.splitlines() if "loss" in line]
    assert "37/120 loss 1.0661  60.8 examples/s 0:00:00" in _plain(lines[-1])
    assert len(_plain(lines[-1])) <= 80


def _rows(capsys, name: str) -> list[str]:
    """What a row of the display showed, from first to last."""
    drawn = capsys.readouterr().err.replace("\r", "\n").splitlines()
    return [line for line in map(_plain, drawn) if line.startswith(name)]


def _plain(line: str) -> str:
    return Text.from_ansi(line).plain


def test_an_activity_in_another_one_is_a_part_of_it(capsys, screen):
    with activity("run"), activity("corpus"):
        pass
    assert any("corpus" in row for row in _rows(capsys, "run"))


def test_what_an_activity_raises_is_not_kept(capsys):
    with pytest.raises(ValueError, match="odd"), activity("corpus"):
        raise ValueError("odd")
    assert work._CURRENT.get() is None


def test_the_lines_of_a_job_say_which_stage_of_how_many_it_is(capsys):
    with job("run", STAGES):
        with activity("starting Spark"):
            next_part("its web page")
        with activity("corpus", "reading"):
            pass
        with activity("drawing"):
            pass
        with WorkProgress("training", 2, 0, "step {done}/{total}  {text}", "workers start") as bar:
            bar.show(2, "loss 1")
    assert capsys.readouterr().err.splitlines() == [
        "1/3 starting",
        "1/3 starting Spark",
        "2/3 corpus: reading",
        "2/3 corpus: drawing",
        "3/3 training: step 0/2  workers start",
        "3/3 training: step 2/2  loss 1",
    ]


def test_a_job_has_a_row_for_each_stage_and_one_for_all(capsys, screen):
    with job("run", STAGES):
        with activity("corpus", "reading"):
            pass
        with WorkProgress("training", 40, 0, "") as bar:
            bar.show(40, "loss 1")
        with activity("training", "writing the model"):
            pass
    shown = capsys.readouterr().err
    drawn = [line for line in map(_plain, shown.replace("\r", "\n").splitlines()) if line.strip()]
    last = drawn[-4:]
    assert [row.split(" \u2501")[0].strip() for row in last] == [
        "run",
        "1/3 starting",
        "2/3 corpus",
        "3/3 training",
    ]
    assert "3 of 3 stages" in last[0]
    assert any("2/3 corpus" in row and "reading" in row for row in drawn)
    assert any("3/3 training" in row and "40/40 loss 1" in row for row in drawn)
    assert any("3/3 training" in row and "writing the model" in row for row in drawn)
    assert "writing" not in last[3]


def test_a_stage_may_be_left_out_and_a_job_in_another_one_is_a_part_of_it(capsys):
    with job("run", STAGES), WorkProgress("training", 2, 0, "step {done}/{total}"):
        pass
    assert capsys.readouterr().err.splitlines() == ["1/3 starting", "3/3 training: step 0/2"]
    with job("run", STAGES), job("preparing", ("starting", "corpus")), activity("corpus"):
        pass
    assert capsys.readouterr().err.splitlines() == ["1/3 starting", "2/3 corpus"]


def test_a_job_that_fails_leaves_how_far_it_was(capsys, screen):
    with pytest.raises(ValueError, match="odd"), job("run", STAGES):
        with activity("corpus", "reading"):
            pass
        with WorkProgress("training", 100, 0, "") as bar:
            bar.show(57, "loss 0.5")
            raise ValueError("odd")
    shown = _plain(capsys.readouterr().err.replace("\r", "\n"))
    lines = [line for line in shown.splitlines() if line.strip()]
    assert "57/100 loss 0.5" in lines[-1]
    assert "2 of 3 stages" in [line for line in lines if line.startswith("run")][-1]
    assert work._JOB.get() is None


def test_work_goes_on_after_work_that_was_a_part_of_it(capsys):
    with job("run", STAGES), WorkProgress("training", 2, 0, "step {done}/{total} {text}") as bar:
        with activity("starting Spark"):
            pass
        bar.show(1, "loss 1")
    assert capsys.readouterr().err.splitlines()[-1] == "3/3 training: step 1/2 loss 1"


def test_the_time_left_of_a_stage_is_shown_once_steps_are_made(capsys, screen, impatient):
    with job("run", STAGES), WorkProgress("training", 10_000, 0, "") as bar:
        shown, end = "", time.monotonic() + 120
        for step in range(1, 10_000):
            bar.show(step, "loss 1")
            time.sleep(0.01)
            shown += capsys.readouterr().err
            if " left" in shown:
                break
            assert time.monotonic() < end, "no time left in 30 seconds"
    assert " left" in shown


def test_the_time_left_of_a_job_is_shown_where_later_stages_are_known(capsys, screen, impatient):
    for expected, is_known in (({"training": 7000}, True), ({}, False)):
        with job("run", STAGES, expected):
            with activity("corpus"):
                # Of this stage nothing is known.
                assert not any(" left" in row for row in _rows(capsys, "run"))
            with activity("training"):
                pass
        assert any(" left" in row for row in _rows(capsys, "run")) == is_known


def test_a_job_notes_the_seconds_of_its_stages():
    with job("run", STAGES) as seconds:
        with activity("corpus"):
            assert list(seconds) == ["starting"]
        with activity("training"), job("preparing", STAGES) as inside:
            pass
    assert list(seconds) == list(STAGES)
    assert min(seconds.values()) >= 0
    assert inside == {}


STEERING = "\x1b[2J \x9b \u202e \u2067 \x08 \r \ufeff"


def test_no_line_steers_the_terminal(capsys):
    say(f"model   {STEERING}")
    with activity(f"work {STEERING}", f"part {STEERING}"):
        handler = MessageHandler()
        handler.emit(logging.LogRecord("a", logging.INFO, "", 0, "%s\n[red]", (STEERING,), None))
    told = capsys.readouterr()
    assert told.out == "model   \\x1b[2J \\x9b \\u202e \\u2067 \\x08 \\r \\ufeff\n"
    assert "[red]" in told.err
    assert all(one.isprintable() or one == "\n" for one in told.err)


def test_what_people_write_is_shown():
    text = "naïve 日本\u3000語 \U0001f469\u200d\U0001f52c क्\u200dष a\u00a0b\tc\nd"
    assert printable(text) == text


def test_a_row_of_the_display_steers_no_terminal(capsys, screen):
    with activity(f"work {STEERING}", f"part {STEERING}"):
        pass
    drawn = capsys.readouterr().err
    assert "\\x1b[2J" in drawn
    assert not {"\x1b[2J", "\x9b", "\u202e", "\u2067", "\x08"} & set(drawn)
    assert "\x1b[2J" not in drawn
