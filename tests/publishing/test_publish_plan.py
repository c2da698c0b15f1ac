"""The plan of a publishing job, without a store: which collection, which parts, which keys."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from vector_tables import VectorTables

from pipelines.errors import InputError
from pipelines.publishing.plan import (
    Content,
    State,
    finished,
    is_written,
    make_plan,
    parse_state,
    to_drop,
    updating,
)
from pipelines.publishing.publish import _cut, _pieces, _rounds
from pipelines.publishing.rows import among
from pipelines.publishing.write import changed_keys, deleted_keys
from pipelines.vectors.changes import ChangeLog, Lineage, logs_after
from pipelines.vectors.store import VectorFile

CONTENT = Content("t" * 32, "0123456789abcdef" * 4, None, {"columns": {"id": "int64"}})
OTHER = replace(CONTENT, model="fedcba9876543210" * 4)
CURRENT = State("docs", 1, CONTENT, 5, is_complete=True, made="v5")
NOW = Lineage(7, CONTENT.table, 6, "v7")


def log(version: int, since: int | None, model: str = CONTENT.model) -> ChangeLog:
    return ChangeLog(version, since, Path("log"), model, CONTENT.table)


def plan(states, current, logs=None, content=CONTENT, *, overwrite=False):
    """The plan for version 7; ``logs`` by the version that they follow."""
    known = {7: ()} | (logs or {})
    texts = {name: state and state.text() for name, state in states.items()}

    def after(version: int, made: str | None):
        # Versions of a table restored from a backup have other ids.
        return known.get(version) if made in (None, f"v{version}") else None

    return make_plan("docs", content, NOW, texts, current, after, overwrite=overwrite)


def test_an_empty_store_gets_the_whole_table():
    made = plan({}, None)
    assert (made.name, made.is_new, made.whole_from, made.switches) == (
        "docs_01234567",
        True,
        "",
        True,
    )
    assert (made.state.version, made.state.number, made.reason) == (7, 1, "")


def test_a_collection_of_this_version_is_done():
    states = {"docs_1": finished(CURRENT, NOW)}
    assert plan(states, "docs_1").is_done
    assert not plan(states, "docs_1", overwrite=True).is_done


def test_a_chain_of_logs_is_an_update():
    chain = (log(6, 5), log(7, 6))
    made = plan({"docs_1": CURRENT}, "docs_1", {5: chain})
    assert (made.name, made.logs, made.whole_from, made.switches) == ("docs_1", chain, None, False)


@pytest.mark.parametrize(
    ("logs", "content", "reason"),
    [
        (None, CONTENT, "the table has no log of all changes since version 5 of the store"),
        ({5: (log(7, 5),)}, OTHER, "the store has vectors of another model"),
        (
            {5: ()},
            replace(CONTENT, layout={}),
            "the store has other columns, or another metric or filters",
        ),
        (
            {5: ()},
            replace(CONTENT, prompt="query"),
            "the store has vectors of texts with another prompt",
        ),
    ],
)
def test_everything_else_is_a_new_collection(logs, content, reason):
    made = plan({"docs_01234567": CURRENT}, "docs_01234567", logs, content)
    assert made.is_new
    assert made.reason == reason
    assert made.name != "docs_01234567"
    assert (made.state.number, made.state.content) == (2, content)


def test_rows_of_another_table_are_replaced_on_request_alone():
    other = replace(CONTENT, table="u" * 32)
    refusal = (
        "publish.collection: `docs` has the rows of another table. "
        "Choose another name, or set publish.overwrite=true to replace them."
    )
    with pytest.raises(InputError) as raised:
        plan({"docs_1": CURRENT}, "docs_1", content=other)
    assert str(raised.value) == refusal
    # Another job may fill a collection of its own, and ends before its switch.
    begun = {"docs_1": CURRENT, "docs_2": State("docs", 2, other, 7, made="v7")}
    with pytest.raises(InputError):
        plan(begun, "docs_1", content=other)
    made = plan(begun, "docs_1", content=other, overwrite=True)
    assert (made.name, made.is_new, made.switches) == ("docs_2", False, True)


def test_logs_of_another_model_are_not_applied():
    chain = (log(6, 5, OTHER.model), log(7, 6))
    assert plan({"docs_1": CURRENT}, "docs_1", {5: chain}).is_new


def test_versions_that_a_restored_table_has_lost_are_not_followed():
    chain = {5: (log(6, 5), log(7, 6)), 6: (log(7, 6),)}
    lost = {"docs_1": replace(CURRENT, made="v5 before")}
    assert plan(lost, "docs_1", chain).is_new
    assert plan({"docs_1": replace(CURRENT, version=7, made="v7 before")}, "docs_1", chain).is_new
    # Nor is a collection with some rows of such a version.
    killed = replace(CURRENT, towards=6, towards_made="v6")
    assert plan({"docs_1": killed}, "docs_1", chain).logs == chain[5]
    assert plan({"docs_1": replace(killed, towards_made="v6 before")}, "docs_1", chain).is_new
    assert plan({"docs_1": replace(killed, towards=8, towards_made="v8")}, "docs_1", chain).is_new


def test_an_unfinished_collection_goes_on_even_to_a_later_version():
    begun = State("docs", 2, OTHER, 6, through="part-00006-00000-00003")
    chain = (log(7, 6, OTHER.model),)
    made = plan({"docs_1": CURRENT, "docs_2": begun}, "docs_1", {6: chain}, OTHER)
    assert (made.name, made.is_new, made.whole_from) == ("docs_2", False, begun.through)
    assert (made.logs, made.switches) == (chain, True)


def test_a_complete_collection_is_switched_to_after_a_kill():
    complete = State("docs", 2, OTHER, 7, is_complete=True)
    made = plan({"docs_1": CURRENT, "docs_2": complete}, "docs_1", None, OTHER)
    assert (made.name, made.whole_from, made.logs, made.switches) == ("docs_2", None, (), True)
    assert made.state.number == 2


def test_a_replaced_collection_of_the_same_model_serves_again():
    old = finished(CURRENT, NOW)
    served = State("docs", 2, OTHER, 7, is_complete=True)
    made = plan({"docs_1": old, "docs_2": served}, "docs_2")
    assert (made.name, made.switches, made.state.number) == ("docs_1", True, 3)
    assert plan({"docs_1": old, "docs_2": served}, "docs_2", overwrite=True).is_new


@pytest.mark.parametrize("name", ["docs", "docs_1"])
@pytest.mark.parametrize("text", [None, "", "{}", "[]", '{"sentence_pipelines": 1}', "a comment"])
def test_what_has_no_state_of_ours_is_refused(name, text):
    with pytest.raises(InputError, match=r"^publish\.collection: .*`docs` that `publish` has not"):
        make_plan("docs", CONTENT, NOW, {name: text}, name, lambda *_: ())


def test_a_name_of_others_is_left_alone():
    made = plan({"docs_01234567": None, "docs_01234567_2": None}, None)
    assert made.name == "docs_01234567_3"


def test_a_state_of_another_alias_is_none_of_ours():
    assert parse_state(CURRENT.text(), "docs") == CURRENT
    assert parse_state(CURRENT.text(), "doc") is None
    damaged = json.loads(CURRENT.text()) | {"version": "seven"}
    assert parse_state(json.dumps(damaged), "docs") is None


def test_the_newest_replaced_collections_are_kept():
    states = {
        "docs_1": replace(CURRENT, number=1),
        "docs_2": replace(CURRENT, number=2),
        "docs_3": replace(CURRENT, number=3, is_complete=False),
        "docs_4": replace(CURRENT, number=4),
        "docs_5": replace(CURRENT, number=4),
        # Another job may be filling it.
        "docs_6": State("docs", 5, replace(CONTENT, table="u"), 0),
    }
    texts = {name: state.text() for name, state in states.items()} | {"docs_old": "of others"}
    assert to_drop("docs", texts, "docs_4", 1) == ["docs_1", "docs_3", "docs_5"]
    assert to_drop("docs", texts, "docs_4", 0) == ["docs_1", "docs_2", "docs_3", "docs_5"]
    assert to_drop("docs", texts, "docs_4", 9) == ["docs_3", "docs_5"]


def test_an_interrupted_update_skips_written_parts_of_the_same_version_only():
    killed = replace(CURRENT, towards=7, towards_made="v7", through="part-2")
    state = updating(killed, NOW)
    assert state == killed
    assert is_written(state, "part-1")
    assert is_written(state, "part-2")
    assert not is_written(state, "part-3")
    for other in (replace(NOW, version=8), replace(NOW, made="v7 after")):
        assert not is_written(updating(killed, other), "part-1")
    assert finished(state, NOW) == replace(CURRENT, version=7, made="v7")
    # One that has never been complete has whole parts, and goes on behind them.
    begun = State("docs", 2, CONTENT, 5, through="part-2", made="v5")
    assert updating(begun, NOW).through == "part-2"
    assert not is_written(updating(begun, NOW), "part-1")


@given(
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=8),
    rows=st.integers(1, 40),
    tasks=st.integers(1, 5),
)
def test_rounds_and_tasks_have_every_row_once_in_order(sizes, rows, tasks):
    files = [VectorFile(Path(f"{number}"), 0, size) for number, size in enumerate(sizes)]
    rounds = list(_rounds(files, rows))
    assert [file for group in rounds for file in group] == files
    assert all(sum(file.rows for file in group) >= rows for group in rounds[:-1])
    for group in rounds:
        dealt = _pieces(group, tasks)
        found = [
            (piece.path, row)
            for pieces in dealt
            for piece in pieces
            for row in range(piece.start, piece.stop)
        ]
        assert found == [(file.path, row) for file in group for row in range(file.rows)]
        counts = [sum(piece.rows for piece in pieces) for pieces in dealt]
        assert len(counts) <= tasks
        assert not counts or max(counts) - min(counts) <= 1 or len(counts) < tasks


@pytest.mark.parametrize("kind", [pa.int64(), pa.string()])
def test_a_task_of_deletions_travels_with_its_own_keys_only(kind):
    keys = pa.array(range(10_000)).cast(kind)
    parts = _cut(keys, 100)
    assert pa.concat_arrays(parts) == keys
    assert max(len(pickle.dumps(part)) for part in parts) < 3000
    assert _cut(keys[:0], 3) == []


@given(
    keys=st.one_of(st.sets(st.integers(-(2**63), 2**63 - 1)), st.sets(st.text(max_size=3))),
    others=st.one_of(st.lists(st.integers(-3, 3)), st.lists(st.text(max_size=1))),
)
def test_keys_are_found_among_those_of_the_logs(keys, others):
    kind = pa.string() if any(isinstance(key, str) for key in keys) else pa.int64()
    column = [key for key in others if isinstance(key, str) == (kind == pa.string())] + [*keys]
    found = among(pa.array([*keys], kind))(pa.array(column, kind))
    assert found.to_pylist() == [key in keys for key in column]


VERSIONS = st.lists(
    st.dictionaries(st.integers(0, 12), st.sampled_from(["a", "b", None]), min_size=1),
    min_size=2,
    max_size=5,
)


@given(versions=VERSIONS, start=st.integers(0, 3))
def test_the_logs_name_the_keys_that_a_store_has_to_write(tmp_path_factory, versions, start):
    """Whatever a store knows of an earlier version, it knows of the current one afterwards."""
    table = VectorTables(tmp_path_factory.mktemp("table") / "embedded")
    start = min(start, len(versions) - 1)
    store: dict = {}
    for number, texts in enumerate(versions):
        table.write([{"id": key, "text": text} for key, text in texts.items()], part_rows=4)
        if number == start:
            store = {key: row["text"] for key, row in table.rows.items()}
    logs = logs_after(table.folder, start)
    assert logs is not None
    changed, deleted = {*changed_keys(logs).to_pylist()}, {*deleted_keys(logs).to_pylist()}
    files = sorted(table.folder.glob("part-*.parquet"))
    rows = pa.concat_tables([pq.read_table(file, columns=["id", "text"]) for file in files])
    current = dict(zip(rows["id"].to_pylist(), rows["text"].to_pylist(), strict=True))
    assert deleted <= changed
    assert deleted.isdisjoint(current)
    assert changed - deleted <= {*current}
    for key in deleted:
        store.pop(key, None)
    store |= {key: current[key] for key in changed - deleted}
    assert store == current
