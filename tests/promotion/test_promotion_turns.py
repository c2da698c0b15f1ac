"""Promotions and ways back at the same time, one after the other, and with parts lost."""

import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from pathlib import Path

import pytest
from run_factory import IN_ORDER, content_of, names, settings, write_run

from pipelines.errors import InputError, PipelineError, PromotionRefused
from pipelines.files import storage
from pipelines.models.identity import model_digest
from pipelines.promotion import served
from pipelines.promotion.stage import promote, roll_back


@pytest.fixture
def target(tmp_path) -> Path:
    return tmp_path / "served"


@pytest.fixture
def run(tmp_path, target):
    """Promotes a run with a model of that content."""

    def promoted(content: str, ndcg: float = 50.0, keep: int = 3) -> str:
        folder = write_run(tmp_path / content, content, ndcg)
        return promote(settings(target, folder, keep)).version.name

    return promoted


@pytest.fixture
def while_copying(monkeypatch):
    """Does something while the next promotion copies its model."""

    def set_up(happens) -> None:
        copy = shutil.copy2

        def copies(*args, **options):
            monkeypatch.setattr(shutil, "copy2", copy)
            happens()
            return copy(*args, **options)

        monkeypatch.setattr(shutil, "copy2", copies)

    return set_up


def turns(target: Path) -> list[tuple[str, str | None, str]]:
    lines = [json.loads(line) for line in (target / "history.jsonl").read_text().splitlines()]
    return [(line["what"], line["before"], line["version"]) for line in lines]


@pytest.mark.parametrize("first", [True, False], ids=["none in service", "one in service"])
def test_of_two_promotions_the_one_that_comes_later_is_told(run, target, while_copying, first):
    if not first:
        run("in service")
    while_copying(lambda: run("B", ndcg=60.0))
    with pytest.raises(PipelineError, match=r"another promotion to .* took place\. Run it again"):
        run("A", ndcg=55.0)
    assert content_of(served.served_model(target)) == "B"
    kept = served.versions(target)
    assert kept == (["00001"] if first else ["00001", "00002"])
    assert names(target / "versions") == kept
    assert names(target) == IN_ORDER
    # What it says is true: run again it is compared with B, which is better.
    with pytest.raises(PromotionRefused, match=r"is 55.0000, and the model in service has"):
        run("A", ndcg=55.0)


def test_a_way_back_while_a_model_is_copied_stays(run, target, while_copying):
    for content in "abc":
        run(content)
    while_copying(lambda: roll_back(settings(target), "00001"))
    with pytest.raises(PipelineError, match="another promotion"):
        run("d")
    assert content_of(served.served_model(target)) == "a"
    assert turns(target)[-1] == ("rolled back", "00003", "00001")
    # There and back again while it is copied: it was compared with what is in service.
    while_copying(lambda: [roll_back(settings(target), to) for to in ("00003", "00001")])
    assert run("d", keep=1) == "00004"
    assert served.versions(target) == ["00001", "00004"]


@pytest.mark.slow
def test_promotions_and_ways_back_at_the_same_time_are_in_some_order(tmp_path, target):
    runs = {name: write_run(tmp_path / name, name) for name in map(str, range(24))}
    promote(settings(target, runs["0"]))
    done = threading.Event()

    def read() -> int:
        count = 0
        while not done.is_set():
            assert served.served_model(target) is not None
            count += 1
        return count

    def tries(calls) -> int:
        told = 0
        for call in calls:
            try:
                call()
            except PipelineError as error:
                assert "another promotion" in str(error) or "--to" in str(error)
                told += 1
        return told

    def back() -> None:
        roll_back(settings(target), served.versions(target)[0])

    def promotions(numbers):
        return [lambda n=n: promote(settings(target, runs[str(n)], keep=1)) for n in numbers]

    with ThreadPoolExecutor(4) as pool:
        reader = pool.submit(read)
        try:
            jobs = [promotions(range(1, 12)), promotions(range(12, 24)), [back] * 12]
            told = [job.result(60) for job in [pool.submit(tries, calls) for calls in jobs]]
        finally:
            done.set()
        assert reader.result(120) > 0
    happened = turns(target)
    assert len(happened) == 1 + 11 + 12 + 12 - sum(told)
    # Each turn began from what the one before it had put in service.
    assert [before for _, before, _ in happened[1:]] == [version for *_, version in happened[:-1]]
    promoted = [version for what, _, version in happened if what == "promoted"]
    assert promoted == [f"{number:05d}" for number in range(1, len(promoted) + 1)]
    assert served.served_name(target) == happened[-1][2]
    content_of(served.served_model(target))
    assert names(target) == IN_ORDER
    assert names(target / "versions") == served.versions(target)


def test_waits_for_another_promotion_but_not_forever(run, target, monkeypatch):
    run("a")
    run("b")
    before = (turns(target), served.versions(target))
    monkeypatch.setattr(served, "WAIT_SECONDS", 0.3)
    with served.exclusive(target):
        for turn in (lambda: roll_back(settings(target)), lambda: run("b"), lambda: run("c")):
            with pytest.raises(PipelineError, match=r"another promotion is running in .*\. Run it"):
                # Of nothing that the caller holds.
                Context().run(turn)
    assert (turns(target), served.versions(target)) == before
    assert names(target / "versions") == before[1]
    monkeypatch.setattr(served, "WAIT_SECONDS", 30.0)
    with ThreadPoolExecutor(1) as pool:
        with served.exclusive(target):
            waiting = pool.submit(roll_back, settings(target))
            with pytest.raises(TimeoutError):
                waiting.result(0.5)
        assert waiting.result(120).name == "00001"


def test_copies_that_go_on_are_left_alone(tmp_path, run, target):
    run("a")
    model = write_run(tmp_path / "other", "other") / "model"
    record = {"run": "run", "model_digest": model_digest(model), "replaces": "00001"}
    with served.copied(target, model, record, {}) as copy:
        run("b")
        roll_back(settings(target))
        assert copy.is_dir()
    assert names(target / "versions") == ["00001", "00002"]


@pytest.mark.parametrize("by_hand", [False, True], ids=["rollback", "a link turned by hand"])
def test_a_job_run_again_does_not_bring_back_what_was_gone_back_from(
    tmp_path, run, target, by_hand
):
    for content in "abc":
        run(content)
    if by_hand:
        (target / "current").unlink()
        (target / "current").symlink_to("versions/00002")
    else:
        roll_back(settings(target))
    before = names(target / "versions")
    with pytest.raises(PromotionRefused, match=r"is 00003, .*`rollback --to 00003` to put it in"):
        run("c")
    assert content_of(served.served_model(target)) == "b"
    assert names(target / "versions") == before
    verdict = storage.read_json(tmp_path / "c" / "promotion.json")
    assert verdict["promoted"] is False
    assert "`rollback --to 00003` to put it in service again" in verdict["refusals"][0]
    assert roll_back(settings(target), "00003").name == run("c") == "00003"
    # A model that was promoted before, and replaced since by a better one, is judged as any other.
    assert run("a") == "00004"


def test_a_model_gone_back_from_while_its_copy_goes_on_is_refused(run, target, while_copying):
    run("a")

    def elsewhere() -> None:
        run("b")
        roll_back(settings(target))

    while_copying(elsewhere)
    with pytest.raises(PromotionRefused, match="is 00002, which was rolled back"):
        run("b")
    assert served.served_name(target) == "00001"
    assert names(target / "versions") == ["00001", "00002"]


def test_without_its_link_the_folder_is_not_taken_for_a_new_one(run, target):
    for content, ndcg in (("a", 50.0), ("b", 60.0)):
        run(content, ndcg)
    (target / "current").unlink()
    lost = r"current is missing, .* `rollback --to`: 00001, 00002\.$"
    with pytest.raises(InputError, match=lost):
        run("worse", ndcg=1.0)
    with pytest.raises(InputError, match=r"nothing is in service in .*--to: 00001, 00002\.$"):
        roll_back(settings(target))
    (target / "history.jsonl").rename(target / "moved")
    with pytest.raises(InputError, match=lost):
        run("worse", ndcg=1.0)
    (target / "moved").rename(target / "history.jsonl")
    assert roll_back(settings(target), "00002").name == "00002"
    assert turns(target)[-1] == ("rolled back", None, "00002")
    with pytest.raises(PromotionRefused):
        run("worse", ndcg=1.0)


def test_a_folder_that_is_none_of_ours_is_left_without_a_trace(tmp_path, target):
    for folder in (target, tmp_path):
        with pytest.raises(InputError, match=r"nothing is in service in .*\. Promote a model"):
            roll_back(settings(folder), "00001")
    assert list(tmp_path.iterdir()) == []
