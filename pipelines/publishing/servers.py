"""Servers of stores: their addresses, errors in one line, and requests of a bounded size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit, urlunsplit

import pyarrow as pa

from pipelines.errors import InputError
from pipelines.publishing.store import ADDRESS, Layout, Target, unreadable
from pipelines.settings.redaction import without_password

CA_FILE = "sslrootcert"
"""Parameter of an address with the file of a certificate authority, as in PostgreSQL's."""
SECRET = "publish.password_variable"
TEMPORARY_STATUSES = frozenset({408, 429, 502, 503, 504})
"""HTTP statuses of servers that are busy, restart or are out of reach."""
NOT_AUTHENTICATED, NOT_PERMITTED = 401, 403

_UNTRUSTED = "CERTIFICATE_VERIFY_FAILED"
_REQUEST_BYTES = 8 * 2**20
"""Size of a request; Amazon's small OpenSearch domains take 10 MB."""
_NUMBER_BYTES = 22
"""A float32 in JSON, with all digits of its float64, and a comma."""


@dataclass(frozen=True)
class Server:
    """A server: its address without user and parameters, and what opens it.

    ``ca_file`` is on the driver and on every executor.
    """

    url: str
    user: str | None
    secret: str | None = field(repr=False)
    ca_file: str | None


def is_server(target: Target) -> bool:
    """Tell whether an address is that of a server, and not a path."""
    return "://" in target.address


def server_of(target: Target, *schemes: str) -> Server:
    """Return the server of an address; `publish.user` and the secret go before those in it.

    Raises:
        InputError: It cannot be parsed, has another scheme, no host, an unknown parameter, or a
            file that is absent.
    """
    shown, parts = without_password(target.address), _parts_of(target.address)
    if parts.scheme not in schemes or not parts.hostname:
        forms = " or ".join(f"{scheme}://host:port" for scheme in schemes)
        raise InputError(ADDRESS, f"{shown} is no address of {target.store}", f"Write {forms}")
    parameters = dict(parse_qsl(parts.query))
    if unknown := sorted({*parameters} - {CA_FILE}):
        raise InputError(
            ADDRESS,
            f"{shown} has the parameter `{unknown[0]}`, which {target.store} does not know",
            f"Leave it out; {CA_FILE} is the only one",
        )
    ca_file = parameters.get(CA_FILE)
    if ca_file is not None and not Path(ca_file).is_file():
        problem = f"{CA_FILE} names {ca_file}, which is no file"
        raise InputError(ADDRESS, problem, "Put it on the driver and every executor")
    place = parts.netloc.rpartition("@")[2]
    return Server(
        url=urlunsplit((parts.scheme, place, parts.path, "", "")),
        user=target.user or (unquote(parts.username) if parts.username else None),
        secret=target.secret or (unquote(parts.password) if parts.password else None),
        ca_file=ca_file,
    )


def _parts_of(address: str) -> SplitResult:
    try:
        parts = urlsplit(address)
        _ = parts.port
    except ValueError:
        # Its message has a part of the password.
        raise unreadable() from None
    if "@" in parts.path + parts.query + parts.fragment:
        raise unreadable()  # The password ended at an unescaped sign.
    return parts


def unreachable(target: Target, error: object) -> InputError:
    """Return the error for a server that does not answer."""
    shown, reason = without_password(target.address), brief(error)
    if _UNTRUSTED in reason:
        return InputError(
            ADDRESS,
            f"{shown} has a certificate of an unknown authority",
            f"Add ?{CA_FILE}=FILE with the authority's certificate to the address",
        )
    return InputError(
        ADDRESS,
        f"{target.store} does not answer at {shown} ({reason})",
        "Start it, correct the address, or raise publish.timeout_seconds",
    )


def refused(target: Target, status: int | None) -> InputError | None:
    """Return the error for a status that says who may write; None for other statuses."""
    shown = without_password(target.address)
    if status == NOT_AUTHENTICATED:
        problem = f"{target.store} at {shown} refuses the user, password or key"
        return InputError(SECRET, problem, "Set the variable to a valid password or API key")
    if status == NOT_PERMITTED:
        problem = f"{target.store} at {shown} refuses this user the request"
        return InputError(
            SECRET, problem, f"Let the user create and write {target.collection} and {ours(target)}"
        )
    return None


def ours(target: Target) -> str:
    """Return the pattern of the names of our collections."""
    return f"{target.collection}_*"


def is_ours(target: Target, name: str) -> bool:
    """Tell whether a collection has the alias's own name or a name from it."""
    return name == target.collection or name.startswith(f"{target.collection}_")


def brief(reason: object) -> str:
    """Return the first 200 characters of a library's message, in one line."""
    text = without_password(" ".join(str(reason).split())) or type(reason).__name__
    return text if len(text) <= 200 else f"{text[:200]}…"


def requests_of(layout: Layout, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut rows into requests of some megabytes, of one row at least."""
    row_bytes = layout.width * _NUMBER_BYTES + 2 * rows.nbytes // max(1, rows.num_rows)
    count = max(1, _REQUEST_BYTES // row_bytes)
    for start in range(0, rows.num_rows, count):
        yield rows.slice(start, count)
