"""pgvector: tables of PostgreSQL with a column of vectors.

A collection is a table, and its state the table's comment. The alias is a view, replaced in a
transaction, so readers see one collection or the other. Rows come by COPY: straight into a new
table, otherwise into a temporary one, from which they replace those of the same keys.

PostgreSQL indexes vectors of at most 2,000 numbers, and since pgvector 0.7 those of 4,000 as half
floats. Wider ones have no index, and queries compare all rows.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, LiteralString

import psycopg
import pyarrow as pa
from pgvector.psycopg import register_vector
from psycopg import errors, sql
from psycopg.conninfo import conninfo_to_dict

from pipelines.errors import InputError
from pipelines.publishing.servers import SECRET, brief, is_ours, unreachable
from pipelines.publishing.store import (
    ADDRESS,
    COLUMNS,
    Layout,
    StoreKind,
    Target,
    check_names,
    unreadable,
    values_of,
    vectors_of,
)
from pipelines.settings.redaction import without_password

logger = logging.getLogger(__name__)

SCHEMES = ("postgresql://", "postgres://")
MOST_INDEXED, MOST_INDEXED_AS_HALVES = 2000, 4000
INDEX_SECONDS = 86_400
"""The longest time to build an index or to count; that of a request would end large ones."""
GRACE_SECONDS = 10
"""Time for the server to report that a statement took too long, before the connection is cut."""
KEEPALIVES = {
    "keepalives": "1",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
}
LONGEST_NAME = 63
"""Bytes of a name; PostgreSQL cuts longer ones."""
SYSTEM_COLUMNS = frozenset({"cmax", "cmin", "ctid", "tableoid", "xmax", "xmin"})
OPERATORS = {"cosine": "cosine_ops", "dot": "ip_ops", "euclidean": "l2_ops"}
TYPES = {
    pa.bool_(): "bool",
    pa.int64(): "int8",
    pa.float64(): "float8",
    pa.string(): "text",
    pa.date32(): "date",
    pa.timestamp("us"): "timestamp",
    pa.timestamp("us", "UTC"): "timestamptz",
}

_TABLES = """
    SELECT c.relname, c.relkind, obj_description(c.oid, 'pg_class')
    FROM pg_class c
    WHERE c.relnamespace = current_schema()::regnamespace
      AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
      AND starts_with(c.relname, %s)
"""
_TABLES_OF_VIEW = """
    SELECT DISTINCT t.relname
    FROM pg_rewrite r
    JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
    JOIN pg_class t ON d.refclassid = 'pg_class'::regclass AND d.refobjid = t.oid
    WHERE r.ev_class = to_regclass(%s) AND t.oid <> r.ev_class
"""
_GRANTS = """
    SELECT a.privilege_type, CASE WHEN a.grantee <> 0 THEN pg_get_userbyid(a.grantee) END
    FROM pg_class c, aclexplode(c.relacl) a
    WHERE c.oid = to_regclass(%s) AND a.grantee <> c.relowner
"""
# Answers at login have no code, only a text.
_REFUSED_LOGIN = ("authentication failed", "no password supplied", "no pg_hba.conf entry")
_FULL = ("too many clients", "connection slots", "too many connections")
_ABSENT = ("does not exist", "could not translate host name", "Name or service not known")


class _Connection(psycopg.Connection[Any]):
    """A connection that is cut when no answer comes, not even that of the server's own limit."""

    limit: float | None = None

    def wait(self, *arguments: Any, **options: Any) -> Any:
        """Wait for the server, ``limit`` seconds at most; psycopg comes here for all its waits."""
        if self.limit is None:
            return super().wait(*arguments, **options)
        timer = threading.Timer(self.limit, self._cut)
        timer.daemon = True
        timer.start()
        try:
            return super().wait(*arguments, **options)
        finally:
            timer.cancel()

    def _cut(self) -> None:
        with (
            suppress(OSError, psycopg.Error),
            socket.socket(fileno=os.dup(self.fileno())) as ours,
        ):
            ours.shutdown(socket.SHUT_RDWR)


class PgvectorStore:
    """A connection to PostgreSQL; see :class:`pipelines.publishing.store.Store`."""

    def __init__(self, target: Target) -> None:
        self._target = target
        seconds = max(2, round(target.timeout))
        watched: dict[str, Any] = {**KEEPALIVES, "tcp_user_timeout": str(1000 * seconds)}
        given = conninfo_to_dict(target.address)
        self._connection = _Connection.connect(
            target.address,
            autocommit=True,
            **{name: value for name, value in watched.items() if name not in given},
            connect_timeout=seconds,
            user=target.user,
            password=target.secret,
        )
        try:
            self._limit(target.timeout)
            if self._do("SELECT to_regtype('vector')").fetchone() != (None,):
                register_vector(self._connection)
        except BaseException:
            self._connection.close()
            raise

    def _do(
        self, statement: LiteralString | sql.Composed, values: Sequence[Any] = ()
    ) -> psycopg.Cursor[Any]:
        return self._connection.execute(statement, values or None)

    def _limit(self, seconds: float) -> None:
        limit = sql.Literal(round(1000 * seconds))
        self._connection.limit = seconds + GRACE_SECONDS
        self._do(sql.SQL("SET statement_timeout = {}").format(limit))

    def collections(self) -> Mapping[str, str | None]:
        """Return the comments of tables by name."""
        alias = self._target.collection
        found = self._do(_TABLES, [alias]).fetchall()
        has_alias = self.current() not in (None, alias)
        return {
            name: comment
            for name, kind, comment in found
            if is_ours(self._target, name)
            and not (name == alias and has_alias)
            and (kind != "v" or name == alias)
        }

    def current(self) -> str | None:
        """Return the table behind the view; the alias itself for a table or another view."""
        alias = self._target.collection
        kinds = {name: kind for name, kind, _ in self._do(_TABLES, [alias])}
        if alias not in kinds:
            return None
        behind = [name for (name,) in self._do(_TABLES_OF_VIEW, [alias])]
        is_alias = kinds[alias] == "v" and len(behind) == 1 and is_ours(self._target, behind[0])
        return behind[0] if is_alias else alias

    def create(self, name: str, layout: Layout, state: str) -> None:
        """Create a table with its comment, in a transaction; and the extension before it."""
        check_names(self._target, layout, _refused_names(layout).__contains__)
        self._do("CREATE EXTENSION IF NOT EXISTS vector")
        register_vector(self._connection)
        key, vector = sql.Identifier(layout.key.name), sql.Identifier(layout.vector.name)
        columns = [
            sql.SQL("{} {} PRIMARY KEY").format(key, sql.SQL(_type(layout.key.type))),
            sql.SQL("{} vector({}) NOT NULL").format(vector, sql.Literal(layout.width)),
            *(
                sql.SQL("{} {}").format(sql.Identifier(column.name), sql.SQL(_type(column.type)))
                for column in layout.payload
            ),
        ]
        with self._connection.transaction():
            self._do(
                sql.SQL("CREATE TABLE {} ({})").format(
                    sql.Identifier(name), sql.SQL(", ").join(columns)
                )
            )
            self.write_state(name, state)

    def write_state(self, name: str, state: str) -> None:
        """Replace the comment of a table."""
        self._do(
            sql.SQL("COMMENT ON TABLE {} IS {}").format(sql.Identifier(name), sql.Literal(state))
        )

    def upsert(
        self, name: str, layout: Layout, rows: pa.RecordBatch, *, may_exist: bool = True
    ) -> None:
        """Copy rows into a table, all or none of them."""
        if not may_exist:
            try:
                with self._connection.transaction():
                    self._copy(sql.Identifier(name), layout, rows)
            except errors.UniqueViolation:
                pass  # An attempt that counted as failed has written them.
            else:
                return
        held, table = sql.Identifier("sentence_pipelines_rows"), sql.Identifier(name)
        names = [sql.Identifier(column) for column in layout.schema.names]
        others = [sql.SQL("{0} = excluded.{0}").format(column) for column in names[1:]]
        with self._connection.transaction():
            self._do(
                sql.SQL("CREATE TEMPORARY TABLE {} (LIKE {}) ON COMMIT DROP").format(held, table)
            )
            self._copy(held, layout, rows)
            self._do(
                sql.SQL(
                    "INSERT INTO {} ({}) SELECT {} FROM {} ON CONFLICT ({}) DO UPDATE SET {}"
                ).format(
                    table,
                    sql.SQL(", ").join(names),
                    sql.SQL(", ").join(names),
                    held,
                    names[0],
                    sql.SQL(", ").join(others),
                )
            )

    def _copy(self, table: sql.Identifier, layout: Layout, rows: pa.RecordBatch) -> None:
        names = sql.SQL(", ").join(map(sql.Identifier, layout.schema.names))
        statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT BINARY)").format(table, names)
        fields = (layout.key, *layout.payload)
        types = [_type(field.type) for field in fields]
        vectors = list(vectors_of(layout, rows))
        others = [values_of(field.name, rows.column(field.name)) for field in fields]
        with self._connection.cursor() as cursor, cursor.copy(statement) as copy:
            copy.set_types([types[0], "vector", *types[1:]])
            for row in zip(others[0], vectors, *others[1:], strict=True):
                copy.write_row(row)

    def delete(self, name: str, layout: Layout, keys: pa.Array) -> None:
        """Delete rows by key."""
        statement = sql.SQL("DELETE FROM {} WHERE {} = ANY(%s)").format(
            # A statement with values reads a single % as the place of one.
            sql.Identifier(name),
            sql.Identifier(layout.key.name.replace("%", "%%")),
        )
        self._do(statement, [keys.to_pylist()])

    def finish(self, name: str, layout: Layout) -> None:
        """Build missing indexes, of vectors and filters, and count values for the planner."""
        table = sql.Identifier(name)
        with self._without_limit():
            wanted = [self._vector_index(layout), *_filter_indexes(layout)]
            for number, index in enumerate(wanted):
                if index is not None:
                    named = sql.Identifier(f"{name}_index_{number}")
                    statement = sql.SQL("CREATE INDEX IF NOT EXISTS {} ON {} USING {}")
                    self._do(statement.format(named, table, index))
            self._do(sql.SQL("ANALYZE {}").format(table))

    @contextmanager
    def _without_limit(self) -> Iterator[None]:
        self._limit(INDEX_SECONDS)
        try:
            yield
        finally:
            if not self._connection.broken:
                self._limit(self._target.timeout)

    def _vector_index(self, layout: Layout) -> sql.Composed | None:
        column, operators = sql.Identifier(layout.vector.name), OPERATORS[layout.metric]
        if layout.width <= MOST_INDEXED:
            return sql.SQL("hnsw ({} {})").format(column, _words(f"vector_{operators}"))
        has_halves = self._do("SELECT to_regtype('halfvec')").fetchone() != (None,)
        if layout.width <= MOST_INDEXED_AS_HALVES and has_halves:
            return sql.SQL("hnsw (({}::halfvec({})) {})").format(
                column, sql.Literal(layout.width), _words(f"halfvec_{operators}")
            )
        logger.warning(
            "publishing: PostgreSQL has no index for vectors of %d numbers. Queries compare all "
            "rows",
            layout.width,
        )
        return None

    def count(self, name: str) -> int:
        """Return the number of rows."""
        statement = sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(name))
        with self._without_limit():
            found = self._do(statement).fetchone()
        assert found is not None
        return int(found[0])

    def switch(self, name: str) -> None:
        """Replace the view, in a transaction; its grants stay."""
        alias = self._target.collection
        view = sql.SQL("VIEW {} AS SELECT * FROM {}").format(
            sql.Identifier(alias), sql.Identifier(name)
        )
        try:
            with self._connection.transaction():
                self._do(sql.SQL("CREATE OR REPLACE {}").format(view))
        except errors.InvalidTableDefinition:
            # Its columns change, which PostgreSQL allows in a new view only.
            with self._connection.transaction():
                grants = self._do(_GRANTS, [alias]).fetchall()
                self._do(sql.SQL("DROP VIEW {}").format(sql.Identifier(alias)))
                self._do(sql.SQL("CREATE {}").format(view))
                for right, role in grants:
                    grantee = sql.SQL("PUBLIC") if role is None else sql.Identifier(role)
                    self._do(
                        sql.SQL("GRANT {} ON {} TO {}").format(
                            _words(right), sql.Identifier(alias), grantee
                        )
                    )

    def drop(self, name: str) -> None:
        """Drop a table."""
        self._do(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(name)))

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def _refused_names(layout: Layout) -> set[str]:
    """Return names of PostgreSQL's own columns, and of those that are equal once they are cut."""
    cut = Counter(name.encode()[:LONGEST_NAME] for name in layout.schema.names)
    return {
        name
        for name in layout.schema.names
        if name in SYSTEM_COLUMNS or cut[name.encode()[:LONGEST_NAME]] > 1
    }


def _type(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return f"{_type(kind.value_type)}[]"
    return TYPES[kind]


def _words(text: str) -> sql.SQL:
    """Return the name of an operator class or a right, which is no identifier of the user's."""
    return sql.SQL(text)


def _filter_indexes(layout: Layout) -> list[sql.Composed]:
    kinds = {column.name: column.type for column in layout.payload}
    return [
        sql.SQL("{} ({})").format(
            _words("gin" if pa.types.is_list(kinds[name]) else "btree"), sql.Identifier(name)
        )
        for name in layout.filters
    ]


def _open(target: Target) -> PgvectorStore:
    if not target.address.startswith(SCHEMES):
        raise InputError(
            ADDRESS,
            "it is no address of PostgreSQL",
            "Write postgresql://user@host:port/database",
        )
    try:
        given = conninfo_to_dict(target.address)
    except psycopg.ProgrammingError:
        # Its message has a part of the password.
        raise unreadable() from None
    port = str(given.get("port") or "").replace(",", "")
    if any("@" in str(given.get(name)) for name in ("host", "dbname")) or port.strip("0123456789"):
        raise unreadable()  # The password ended at an unescaped sign.
    return PgvectorStore(target)


def _is_temporary(error: Exception) -> bool:
    passing = (
        errors.OperationalError,
        errors.InterfaceError,
        errors.LockNotAvailable,
        errors.QueryCanceled,
    )
    lasting = (
        errors.DiskFull,
        errors.InsufficientResources,
        errors.InvalidPassword,
        errors.ProgramLimitExceeded,
        errors.UndefinedFile,
    )
    said = str(error)
    is_login = any(sign in said for sign in (*_REFUSED_LOGIN, *_ABSENT))
    return isinstance(error, passing) and not isinstance(error, lasting) and not is_login


def _refusal(error: Exception, target: Target) -> InputError | None:
    found = (
        refusal
        for kinds, signs, refusal in _refusals(target, brief(error))
        if isinstance(error, kinds) and any(sign in str(error) for sign in signs)
    )
    refusal = next(found, None)
    if refusal is None and isinstance(error, psycopg.OperationalError):
        return unreachable(target, error)
    return refusal


def _refusals(
    target: Target, said: str
) -> Iterator[tuple[tuple[type[Exception], ...], Sequence[str], InputError]]:
    """Yield errors of PostgreSQL, words of their messages, and what to say instead."""
    shown = without_password(target.address)
    yield (
        (psycopg.OperationalError,),
        _REFUSED_LOGIN,
        InputError(
            SECRET,
            f"PostgreSQL at {shown} refuses user or password",
            "Set the variable to the password of the user",
        ),
    )
    yield (
        (psycopg.OperationalError,),
        _FULL,
        InputError(
            "publish.connections",
            f"PostgreSQL at {shown} takes no more connections ({said})",
            "Use fewer connections",
        ),
    )
    yield (
        (errors.ProgramLimitExceeded,),
        ("index row",),
        InputError(
            "publish.filters",
            f"a key or a filter is too long for an index of PostgreSQL ({said})",
            "Take the column out of publish.filters, or use shorter keys",
        ),
    )
    yield (
        (errors.DiskFull,),
        ("",),
        InputError(
            ADDRESS,
            f"PostgreSQL at {shown} has no space left ({said})",
            "Free space on the disk of the server",
        ),
    )
    yield (
        (errors.UndefinedFile, errors.FeatureNotSupported),
        ("vector",),
        InputError(
            ADDRESS,
            f"the PostgreSQL server at {shown} has no extension `vector`",
            "Install pgvector on the server",
        ),
    )
    yield (
        (errors.InsufficientPrivilege,),
        ("",),
        InputError(
            ADDRESS,
            f"PostgreSQL at {shown} refuses the user ({said})",
            "Grant the right; an administrator can run CREATE EXTENSION vector",
        ),
    )
    yield (
        (errors.DependentObjectsStillExist,),
        ("",),
        InputError(
            "publish.collection",
            f"other views depend on {target.collection}, whose columns change",
            "Drop them, or choose another name",
        ),
    )
    yield (
        (psycopg.DataError,),
        ("0x00",),
        InputError(
            COLUMNS,
            "PostgreSQL takes no text with a NUL character",
            "Leave the column out, or remove the character",
        ),
    )


STORE = StoreKind(
    open=_open,
    is_temporary=_is_temporary,
    refusal=_refusal,
    most_numbers=16_000,
    batch_rows=2000,
)
