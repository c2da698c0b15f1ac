"""Whether the stages of a preparation are of one another, whatever died between them."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from pipelines.errors import InputError
from pipelines.files import storage
from pipelines.files.prepared_folder import PreparedFolder, StageRecord, read_stage_record

AGAIN = r"Run `sentence-pipelines prepare` with the same settings first\."
STAGES = {
    "corpus": (),
    "tokens": ("corpus",),
    "teacher": ("corpus",),
    "lanes": ("tokens", "teacher"),
}


@pytest.fixture
def prepared(tmp_path) -> PreparedFolder:
    """All stages, each of those before it."""
    folder = PreparedFolder(tmp_path)
    for stage, before in STAGES.items():
        after = {one: f"{one} 1" for one in before}
        write(folder, stage, StageRecord("f", 1.0, f"{stage} 1", after))
    folder.check_in_step()
    return folder


def write(folder: PreparedFolder, stage: str, record: StageRecord) -> None:
    storage.write_json(folder.stage_record(stage), asdict(record))


def record(folder: PreparedFolder, stage: str) -> StageRecord:
    found = read_stage_record(folder.stage_record(stage))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("made_anew", "told"),
    [("corpus", "tokens"), ("tokens", "lanes"), ("teacher", "lanes")],
)
def test_stages_of_other_ones_are_refused(prepared, made_anew, told):
    write(prepared, made_anew, replace(record(prepared, made_anew), made="2"))
    with pytest.raises(InputError, match=rf"^prepared\.folder: the stage `{told}` in .* {AGAIN}$"):
        prepared.check_in_step()


@pytest.mark.parametrize("stage", ["corpus", "tokens"])
def test_a_stage_that_was_killed_before_its_record_is_refused(prepared, stage):
    prepared.stage_record(stage).unlink()
    with pytest.raises(InputError, match=rf"was not made from the present stage `{stage}`"):
        prepared.check_in_step()


def test_lanes_that_were_killed_before_their_record_are_refused(prepared):
    # Whether a later preparation died before it came to them cannot be known.
    prepared.stage_record("lanes").unlink()
    with pytest.raises(
        InputError, match=r"`lanes` in .* was not made from the present stage `tokens`"
    ):
        prepared.check_in_step()


def test_a_teacher_that_the_lanes_do_not_read_may_be_older(prepared):
    # As a preparation without one leaves it, of another corpus.
    for stage, before in STAGES.items():
        after = {one: f"{one} 2" for one in before if one != "teacher"}
        if stage != "teacher":
            write(prepared, stage, StageRecord("g", 1.0, f"{stage} 2", after))
    prepared.check_in_step()


def test_a_record_that_was_altered_is_no_endless_way(prepared):
    write(prepared, "lanes", replace(record(prepared, "lanes"), after={"lanes": "x", "own": "y"}))
    prepared.check_in_step()


def test_lanes_alone_are_trained_on(prepared):
    for stage in ("corpus", "tokens", "teacher"):
        storage.remove_folder(prepared.path / stage)
    prepared.check_in_step()


def test_rows_that_a_killed_deletion_has_left_are_not_learnt(prepared):
    storage.write_json(prepared.deleted_keys, {"column": "key", "keys": [1]})
    with pytest.raises(
        InputError, match=rf"^prepared\.folder: .* holds rows of deleted keys, .*{AGAIN}$"
    ):
        prepared.check_in_step()
    corpus = replace(record(prepared, "corpus"), deleted=prepared.deleted_digest)
    write(prepared, "corpus", corpus)
    prepared.check_in_step()
    storage.write_json(prepared.deleted_keys, {"column": "key", "keys": [1, 2]})
    with pytest.raises(InputError, match="still holds rows of deleted keys"):
        prepared.check_in_step()


@pytest.fixture
def earlier(tmp_path) -> PreparedFolder:
    """What an earlier release has prepared, whose records name nothing."""
    folder = PreparedFolder(tmp_path)
    for stage in STAGES:
        storage.write_json(folder.stage_record(stage), {"fingerprint": "f", "seconds": 1.0})
    storage.write_json(folder.deleted_keys, {"column": "key", "keys": [1]})
    return folder


def test_what_an_earlier_release_has_prepared_is_trained_on(earlier):
    earlier.check_in_step()
    earlier.name_stages()
    earlier.check_in_step()
    named = {stage: record(earlier, stage) for stage in STAGES}
    assert all(one.fingerprint == "f" and one.made for one in named.values())
    assert named["lanes"].after == {
        "tokens": named["tokens"].made,
        "teacher": named["teacher"].made,
    }
    earlier.name_stages()
    assert {stage: record(earlier, stage) for stage in STAGES} == named


def test_a_stage_that_is_made_anew_over_those_of_an_earlier_release_is_noticed(earlier):
    earlier.name_stages()
    write(earlier, "corpus", StageRecord("g", 1.0, "new", {}, earlier.deleted_digest))
    with pytest.raises(InputError, match="the stage `tokens` in"):
        earlier.check_in_step()


def test_stages_are_named_by_the_next_one_where_that_was_killed(earlier, monkeypatch):
    write_json, written = storage.write_json, []

    def killed(path: Path, value: object) -> None:
        if written:
            raise KeyboardInterrupt
        written.append(path)
        write_json(path, value)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(storage, "write_json", killed)
        earlier.name_stages()
    earlier.name_stages()
    assert record(earlier, "tokens").after == {"corpus": record(earlier, "corpus").made}
    assert record(earlier, "lanes").made


def test_a_damaged_record_is_of_a_stage_that_is_made_again(prepared, caplog):
    Path(prepared.stage_record("corpus")).write_text("{")
    with pytest.raises(InputError, match="the stage `tokens` in"):
        prepared.check_in_step()
    assert "Its stage runs again" in caplog.text
