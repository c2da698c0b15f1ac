"""The interface of a vector store: what each module of this package does for `publish`.

A module declares a :class:`StoreKind`; the catalog (``STORES``) names it. It imports its client,
and nothing else imports the module before the store is chosen. Errors are those of the client:
:attr:`StoreKind.is_temporary` and :attr:`StoreKind.refusal` say what they mean.

Readers use the name of ``publish.collection``, an alias. Behind it is a collection with another
name, given by `publish`: `documents_0f3a9c1d`. Each of those has a short text, its state, that the
store keeps with it. A collection without a state belongs to somebody else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from pipelines.errors import InputError, PipelineError
from pipelines.settings.redaction import HIDDEN

ADDRESS = "publish.address"
COLUMNS = "publish.columns"

Metric = Literal["cosine", "dot", "euclidean"]


@dataclass(frozen=True)
class Target:
    """A store and the name of a collection in it; plain values, sent to executors.

    ``address`` is a URL or a folder. ``secret`` is a password, a token or an API key;
    ``timeout`` bounds a request, in seconds.
    """

    store: str
    address: str = field(repr=False)
    collection: str
    user: str | None = None
    secret: str | None = field(default=None, repr=False)
    timeout: float = 60.0

    @property
    def secrets(self) -> frozenset[str]:
        """The secret and the password of the address, in both spellings."""
        login = self.address.partition("://")[2].rpartition("@")[0]
        password = login.partition(":")[2]
        return frozenset({self.secret or "", password, unquote(password)} - {""})


@dataclass(frozen=True)
class Layout:
    """The columns of a collection.

    ``schema`` has the key (int64 or string), then the vector (a fixed-size list of float32, or
    int8), then the payload. Payload columns are bool, int64, float64, string, date32,
    timestamp[us] with or without a zone, or lists of these. ``filters`` are payload columns for an
    index.
    """

    schema: pa.Schema
    metric: Metric
    filters: tuple[str, ...] = ()

    @property
    def key(self) -> pa.Field:
        """The column of keys."""
        return self.schema.field(0)

    @property
    def vector(self) -> pa.Field:
        """The column of vectors."""
        return self.schema.field(1)

    @property
    def payload(self) -> list[pa.Field]:
        """The other columns."""
        return [*self.schema][2:]

    @property
    def width(self) -> int:
        """The numbers of a vector."""
        return int(self.vector.type.list_size)

    @property
    def is_int8(self) -> bool:
        """Whether vectors are stored as int8."""
        return bool(pa.types.is_int8(self.vector.type.value_type))

    def described(self) -> dict[str, Any]:
        """Return the layout as JSON values, to be compared."""
        columns = {column.name: str(column.type) for column in self.schema}
        return {"columns": columns, "metric": self.metric, "filters": list(self.filters)}


class Store(Protocol):
    """An open connection to a store; it belongs to one thread.

    Names are those of collections, not the alias, unless a method says otherwise. All writes may be
    repeated, and the last one counts.
    """

    def collections(self) -> Mapping[str, str | None]:
        """Return the states of collections by name; None for a collection without a state.

        It lists the collection behind the alias, any with the alias's own name, and those whose
        name begins with it and an underscore.
        """

    def current(self) -> str | None:
        """Return the collection behind the alias, or one with the alias's own name, if any."""

    def create(self, name: str, layout: Layout, state: str) -> None:
        """Create an empty collection with its state, in one step where the store can."""

    def write_state(self, name: str, state: str) -> None:
        """Replace the state of a collection; it has at most a few thousand characters."""

    def upsert(
        self, name: str, layout: Layout, rows: pa.RecordBatch, *, may_exist: bool = True
    ) -> None:
        """Insert rows, or replace those of the same keys; keys are unique, and no vector is null.

        Without ``may_exist`` none of the keys is in the collection, so a store may take a faster
        way. A client with a limit on the size of a request cuts the batch.
        """

    def delete(self, name: str, layout: Layout, keys: pa.Array) -> None:
        """Delete rows by key; unknown keys are no error."""

    def finish(self, name: str, layout: Layout) -> None:
        """Make all writes visible, and build missing indexes; called before each count."""

    def count(self, name: str) -> int:
        """Return the number of rows, exactly."""

    def switch(self, name: str) -> None:
        """Point the alias to a collection, in one step for readers.

        A store without aliases replaces the content of the collection with the alias's name, and
        its state, by those of ``name``, and drops ``name``.
        """

    def drop(self, name: str) -> None:
        """Drop a collection of ours; an absent one is no error."""

    def close(self) -> None:
        """Close the connection."""


@dataclass(frozen=True)
class StoreKind:
    """A kind of store.

    Attributes:
        open: Connects to a store, or raises the client's error.
        is_temporary: Whether an error may pass: a lost connection, a full queue, a timeout.
        refusal: The error of one line for a fault of the user's: no such host, a wrong password, a
            missing right or extension. None for other errors.
        is_of_one_process: Whether only one process at a time may have the store open. The driver
            then writes by itself.
        has_int8: Whether it stores and compares signed int8 vectors.
        most_numbers: The widest vector, if there is a limit.
        batch_rows: Rows of a request, unless the settings name another number.
    """

    open: Callable[[Target], Store]
    is_temporary: Callable[[Exception], bool]
    refusal: Callable[[Exception, Target], InputError | None]
    is_of_one_process: Callable[[Target], bool] = lambda _: False
    has_int8: bool = False
    most_numbers: int | None = None
    batch_rows: int = 1000


@contextmanager
def refusals(kind: StoreKind, target: Target) -> Iterator[None]:
    """Turn the client's errors in the block into errors of one line, without the secret.

    Raises:
        InputError: The user can correct the failure.
        PipelineError: Another failure, whose message has the secret.
    """
    try:
        yield
    except PipelineError:
        raise
    except Exception as error:
        refused = kind.refusal(error, target)
        if refused is not None:
            raise refused from None
        told = str(error)
        for secret in sorted(target.secrets, key=len, reverse=True):
            told = told.replace(secret, HIDDEN)
        if told != str(error):
            raise PipelineError(f"{target.store} failed: {told}") from None
        raise


def unreadable() -> InputError:
    """Return the error for an address that cannot be parsed; any part may be of its password."""
    return InputError(
        ADDRESS,
        "it cannot be parsed",
        "Write special signs of its password as %XX, or set publish.password_variable instead",
    )


def check_names(target: Target, layout: Layout, is_refused: Callable[[str], bool]) -> None:
    """Refuse columns that a store has no names for.

    Raises:
        InputError: There is such a column.
    """
    refused = next(filter(is_refused, layout.schema.names), None)
    if refused is not None:
        raise InputError(
            COLUMNS,
            f"{target.store} has no column of the name `{refused}`",
            "Rename the column in the table, or leave it out",
        )


@contextmanager
def opened(kind: StoreKind, target: Target) -> Iterator[Store]:
    """Open a store for the block, without a second attempt; raises as :func:`refusals`."""
    with refusals(kind, target):
        store = kind.open(target)
        try:
            yield store
        finally:
            store.close()


def vectors_of(layout: Layout, rows: pa.RecordBatch) -> np.ndarray:
    """Return the vectors of rows, without copying: [rows, width], float32 or int8."""
    values: np.ndarray = rows.column(1).flatten().to_numpy()
    return values.reshape(rows.num_rows, layout.width)


def values_of(name: str, column: pa.Array) -> list[Any]:
    """Return the values of a column for Python.

    Raises:
        InputError: It has a date that Python's calendar lacks.
    """
    try:
        values: list[Any] = column.to_pylist()
    except OverflowError:
        problem = f"`{name}` has a date outside of the years 1 to 9999"
        raise InputError(COLUMNS, problem, "Leave the column out, or correct its dates") from None
    return values


def payload_of(rows: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return the payload of each row as JSON values: times in ISO 8601, NaN and infinity as null.

    Null values are left out.
    """
    names, columns = rows.schema.names[2:], rows.columns[2:]
    lists = [
        [_as_json(value) for value in values_of(name, column)]
        for name, column in zip(names, columns, strict=True)
    ]
    return [
        {name: value for name, value in zip(names, values, strict=True) if value is not None}
        for values in (zip(*lists, strict=True) if lists else [()] * rows.num_rows)
    ]


def _as_json(value: Any) -> Any:
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    if isinstance(value, list):
        return [_as_json(item) for item in value]
    return value.isoformat() if hasattr(value, "isoformat") else value
