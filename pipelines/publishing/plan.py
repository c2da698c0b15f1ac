"""The plan of `publish`: which collection of the store to write, and from which part of the table.

Each collection that `publish` has made has a :class:`State`. Together with the table's place among
its versions it decides: nothing to do, an update from the logs of changes, or a new collection from
the whole table. The state also says how far a killed job had come.

Names of parts are never used twice for other rows, and those of later versions come last. So the
name of the last written part is enough to go on, even with a later version of the table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from pipelines.errors import InputError
from pipelines.vectors.changes import ChangeLog, Lineage

COLLECTION = "publish.collection"
DIGITS = 8
"""Digits of a model's digest in a collection's name."""

Logs = tuple[ChangeLog, ...]


@dataclass(frozen=True)
class Content:
    """What a collection holds, apart from its rows; collections of other content are never mixed.

    ``table`` is the id of the table, ``model`` the digest of the model, ``prompt`` the name of the
    prompt before its texts, and ``layout`` is that of
    :meth:`~pipelines.publishing.store.Layout.described`.
    """

    table: str
    model: str
    prompt: str | None
    layout: Mapping[str, Any]

    def difference(self, other: Content) -> str | None:
        """Return the first difference to another content of the same table in words, if any."""
        mine, others = asdict(self), asdict(other)
        different = (words for name, words in _DIFFERENCES.items() if mine[name] != others[name])
        return next(different, None)


_DIFFERENCES = {
    "model": "vectors of another model",
    "prompt": "vectors of texts with another prompt",
    "layout": "other columns, or another metric or filters",
}


@dataclass(frozen=True)
class State:
    """The state of a collection, kept by the store.

    ``collection`` is the alias. ``number`` counts its collections, in the order in which they serve
    readers. Once the collection ``is_complete``, its rows are those of the table's ``version``. An
    interrupted job has written all parts up to the one named ``through``; if that was an update to
    another version, ``towards``, any of its changes may be there. ``made`` and ``towards_made`` are
    the ids of the two versions.
    """

    collection: str
    number: int
    content: Content
    version: int
    is_complete: bool = False
    towards: int | None = None
    through: str | None = None
    made: str | None = None
    towards_made: str | None = None

    def text(self) -> str:
        """Return the state as the store keeps it."""
        return json.dumps({"sentence_pipelines": 1, **asdict(self)}, separators=(",", ":"))


_STATES = TypeAdapter(State)


def parse_state(text: str | None, collection: str) -> State | None:
    """Return the state in a text; None for a text of others, or of another alias."""
    try:
        known = json.loads(text or "null")
        if not isinstance(known, dict) or known.pop("sentence_pipelines", None) != 1:
            return None
        state = _STATES.validate_python(known)
    except (ValueError, ValidationError):
        return None
    return state if state.collection == collection else None


@dataclass(frozen=True)
class Plan:
    """The work of a job.

    ``name`` is the collection to write, with its ``state`` before; it ``is_new`` if the store has
    none of that name. ``whole_from`` names the part after which parts are to be written whole, ""
    for all of them and None for none; then the keys of ``logs`` are written. ``reason`` says in
    words why there is a new collection.
    """

    name: str
    state: State
    is_new: bool = False
    whole_from: str | None = None
    logs: Logs = ()
    switches: bool = False
    reason: str = ""

    @property
    def is_done(self) -> bool:
        """Whether there is nothing to do."""
        return self.whole_from is None and not self.logs and not self.switches


def make_plan(
    collection: str,
    content: Content,
    lineage: Lineage,
    states: Mapping[str, str | None],
    current: str | None,
    logs_after: Callable[[int, str | None], Logs | None],
    *,
    overwrite: bool = False,
) -> Plan:
    """Return the work that brings a store up to a version of a table.

    Args:
        states: Those of the store's collections by name; see
            :meth:`~pipelines.publishing.store.Store.collections`.
        current: The collection behind the alias.
        logs_after: Returns the logs since a version, by number and id; see
            :func:`~pipelines.vectors.changes.logs_after`.
        overwrite: Whether a complete collection is to be replaced, even by an equal one, or by one
            of another table.

    Raises:
        InputError: Something else has the name of the collection, or another table.
    """
    known = {name: parse_state(text, collection) for name, text in states.items()}
    if current is not None and known.get(current) is None:
        raise InputError(
            COLLECTION,
            f"the store has a collection `{collection}` that `publish` has not made",
            "Choose another name, or remove it from the store yourself",
        )
    ours = {name: state for name, state in known.items() if state is not None}
    served = 0 if current is None else ours[current].number
    if current is not None and ours[current].content.table != content.table and not overwrite:
        raise InputError(
            COLLECTION,
            f"`{collection}` has the rows of another table",
            "Choose another name, or set publish.overwrite=true to replace them",
        )
    number = 1 + max((state.number for state in ours.values()), default=0)
    # A collection for readers is taken before others, and the newest of these first.
    for name in sorted(ours, key=lambda name: (name != current, -ours[name].number)):
        state = ours[name]
        is_replaced = state.is_complete and state.number <= served
        logs = logs_after(state.version, state.made) if state.content == content else None
        if logs is None or (overwrite and is_replaced):
            continue
        # A killed update to a version that is none of this chain has left rows of it.
        if state.towards is not None and logs_after(state.towards, state.towards_made) is None:
            continue
        if all(log.model_digest == content.model for log in logs):
            if name != current and is_replaced:
                state = replace(state, number=number)
            whole_from = None if state.is_complete else state.through or ""
            return Plan(name, state, False, whole_from, logs, name != current)
    name = _free_name(f"{collection}_{content.model[:DIGITS]}", known)
    reason = "" if current is None or overwrite else _reason(ours[current], content)
    state = State(collection, number, content, lineage.version, made=lineage.made)
    return Plan(name, state, True, "", (), switches=True, reason=reason)


def _free_name(name: str, taken: Mapping[str, object]) -> str:
    count = 1
    while (found := name if count == 1 else f"{name}_{count}") in taken:
        count += 1
    return found


def _reason(state: State, content: Content) -> str:
    difference = state.content.difference(content)
    if difference is not None:
        return f"the store has {difference}"
    return f"the table has no log of all changes since version {state.version} of the store"


def updating(state: State, lineage: Lineage) -> State:
    """Return the state of a collection before an update to a version."""
    version, made = lineage.version, lineage.made
    goes_on = not state.is_complete or (state.towards, state.towards_made) == (version, made)
    through = state.through if goes_on else None
    return replace(state, towards=version, towards_made=made, through=through)


def is_written(state: State, part: str) -> bool:
    """Return whether an interrupted update of a complete collection has written a part."""
    return state.is_complete and state.through is not None and part <= state.through


def finished(state: State, lineage: Lineage) -> State:
    """Return the state of a collection with all rows of a version."""
    collection, number, content = state.collection, state.number, state.content
    version, made = lineage.version, lineage.made
    return State(collection, number, content, version, is_complete=True, made=made)


def to_drop(
    collection: str, states: Mapping[str, str | None], current: str, keep_old: int
) -> list[str]:
    """Return the collections to drop once ``current`` is the one for readers.

    These are unfinished ones of the same table, copies of the current one, and all but the newest
    ``keep_old`` of those that it has replaced. Collections of others stay: a job may be filling the
    unfinished one of another table.
    """
    known = {name: parse_state(text, collection) for name, text in states.items()}
    ours = {name: state for name, state in known.items() if state is not None and name != current}
    served = known[current]
    assert served is not None, "it has just been written"
    replaced = [
        name for name, state in ours.items() if state.is_complete and state.number < served.number
    ]
    replaced.sort(key=lambda name: -ours[name].number)
    kept = {*replaced[:keep_old]}
    return [
        name
        for name, state in ours.items()
        if name not in kept and (state.is_complete or state.content.table == served.content.table)
    ]
