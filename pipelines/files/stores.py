"""Object stores: their clients by the scheme of an address, and requests with retries.

:mod:`pyarrow.fs` reads and writes: its file systems for S3, Google Cloud Storage, Azure and HDFS
find credentials as each store's SDK does. Other stores go through fsspec. Conditional writes go
through obstore, with credentials from the environment, from the machine's role, and by boto3 from
profiles.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast
from urllib.parse import urlsplit

import tenacity

from pipelines.libraries import check_installed
from pipelines.settings.base import STORES
from pipelines.settings.spark import StorageSettings

if TYPE_CHECKING:
    from obstore.store import ObjectStore
    from pyarrow.fs import FileSystem

logger = logging.getLogger(__name__)

T = TypeVar("T")

_LONGEST_PAUSE_SECONDS = 10.0
_CONNECT_SECONDS = 10.0
# The SDK's own attempts are for a request that is lost; ours are for a store that is away.
_SDK_ATTEMPTS = 4

_WARNED_ATTEMPT = 4

_AWAY: set[Store] = set()
"""Stores that stayed away for their whole retry time in this process, and are not back since."""

_DEFINITE = re.compile(
    r"ACCESS_DENIED|AccessDenied|NO_SUCH_BUCKET|NoSuchBucket|INVALID_ACCESS_KEY|INVALID_CLIENT_TOKEN"
    r"|SIGNATURE|EXPIRED|ExpiredToken|UNRECOGNIZED_CLIENT|INVALID_TOKEN|InvalidToken"
    r"|PERMISSION_DENIED|UNAUTHENTICATED|Authenti?cation|Authorization|ContainerNotFound"
    # 408, 409, 425 and 429 (timeout, conflict, too early, too many) pass; other 4xx are permanent.
    r"|HTTP status 4(?!08|09|25|29)\d\d",
    re.IGNORECASE,
)
"""Errors of requests that fail however often they are made."""

_REFUSED = re.compile(
    r"ACCESS_DENIED|AccessDenied|EXPIRED|INVALID_TOKEN|InvalidToken|INVALID_ACCESS_KEY"
    r"|INVALID_CLIENT_TOKEN|SIGNATURE|UNRECOGNIZED_CLIENT|PERMISSION_DENIED|UNAUTHENTICATED"
    r"|Authenti?cation|Authorization|HTTP status 40[13]",
    re.IGNORECASE,
)
"""Errors that other credentials would resolve."""

_ANSWER = re.compile(r"<Code>([^<]+)</Code>(?:.*?<Message>([^<]+)</Message>)?", re.DOTALL)
"""Code and message in the XML answers of S3 and Azure."""


@dataclass(frozen=True)
class Store:
    """The part of an address before the first slash of its path.

    ``authority`` is a bucket, a container and its account, or a host; it may be empty.
    """

    scheme: str
    authority: str
    options: StorageSettings = field(default_factory=StorageSettings)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}"

    @property
    def identity(self) -> tuple[str, str]:
        """The same for all addresses of one store, such as `s3://b` and `s3a://b`."""
        return self.kind, self.authority

    @property
    def kind(self) -> str:
        """The common name of all schemes of one kind of store, such as `s3`."""
        return STORES[self.scheme].kind if self.scheme in STORES else self.scheme

    def open(self) -> OpenStore:
        """Return the file system, one for the whole process."""
        # By process: a client does not survive a fork, which ends its threads.
        return _opened(self, os.getpid())

    def conditional(self) -> ObjectStore | None:
        """Return the client for conditional writes; None if this kind of store has none."""
        return _opened_conditional(self, os.getpid()) if self.conditions else None

    @property
    def conditions(self) -> bool:
        """Whether this kind of store has conditional writes."""
        return self.kind in _CLIENTS and _CLIENTS[self.kind].conditional is not None

    def retried(self, what: str, attempt: Callable[[], T]) -> T:
        """Make a request until it succeeds, fails for good, or time is up.

        Args:
            what: The request, for the log.
            attempt: Must be idempotent.

        Raises:
            OSError: The store refuses, or is away for ``storage.retry_seconds``. From then until
                the next success each request is made once: a job's clean-up and Spark's repeated
                tasks do not wait for the same time again.
        """
        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_delay(0 if self in _AWAY else self.options.retry_seconds),
            wait=tenacity.wait_random_exponential(multiplier=0.2, max=_LONGEST_PAUSE_SECONDS),
            retry=tenacity.retry_if_exception(is_transient),
            before_sleep=lambda state: _tell(what, state),
            reraise=True,
        )
        try:
            found = retrying(attempt)
        except OSError as error:
            if is_transient(error):
                _AWAY.add(self)
            raise
        _AWAY.discard(self)
        return found


@dataclass(frozen=True)
class OpenStore:
    """A file system, and the root of a store in it.

    ``base`` is the path of that root: the bucket, or nothing. ``lists_folders`` says whether
    listings include folders without an object of their own.
    """

    files: FileSystem
    base: str
    lists_folders: bool = True


def is_transient(error: BaseException) -> bool:
    """Return whether a repetition of the failed request may succeed."""
    if isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError | FileExistsError):
        return False
    return isinstance(error, OSError) and not _DEFINITE.search(str(error))


def credentials_remedy(error: OSError) -> str:
    """Return the remedy for a request refused for its credentials; empty for other errors."""
    if error.errno is not None or not _REFUSED.search(str(error)):
        return ""
    return "; renew the store's credentials, or let them read and write there, and run it again"


def _tell(what: str, state: tenacity.RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    # Most requests succeed the second time. A request that does not may take minutes, so one
    # attempt warns.
    level = logging.WARNING if state.attempt_number == _WARNED_ATTEMPT else logging.INFO
    logger.log(level, "%s: attempt %d failed (%s)", what, state.attempt_number, first_line(error))


def first_line(error: BaseException | None) -> str:
    """Return an error in one line: code and message of an answer in XML."""
    text = str(error)
    line = next(iter(text.splitlines()), "") or type(error).__name__
    answer = _ANSWER.search(text)
    if answer is None:
        return line
    before = re.split(r"<\?xml|<Error", line, maxsplit=1)[0].rstrip(" \ufeff")
    return " ".join([before, ": ".join(filter(None, answer.groups()))]).splitlines()[0]


class _Clients(NamedTuple):
    """The clients of a kind of store; see :data:`_CLIENTS`."""

    files: Callable[[Store], OpenStore]
    conditional: Callable[[Store], ObjectStore] | None = None


@lru_cache(maxsize=64)
def _opened(store: Store, _process: int) -> OpenStore:
    check_installed(str(store), "pyarrow", "object-stores")
    known = _CLIENTS.get(store.kind)
    return known.files(store) if known else _by_fsspec(store)


@lru_cache(maxsize=64)
def _opened_conditional(store: Store, _process: int) -> ObjectStore:
    client = _CLIENTS[store.kind].conditional
    assert client is not None, "only stores with conditional writes are asked for them"
    return client(store)


def _obstore_options(store: Store, endpoint: str | None) -> dict[str, Any]:
    """Return obstore's options for every kind of store."""
    timeout = timedelta(seconds=store.options.timeout_seconds)
    http = bool(endpoint and endpoint.startswith("http://"))
    return {
        "client_options": {"allow_http": http, "timeout": timeout},
        # Time is the bound. The default of ten retries with random pauses may end in a second.
        "retry_config": {"retry_timeout": timeout, "max_retries": 1000},
    }


def _s3_endpoint(options: StorageSettings) -> str | None:
    """Return a server other than AWS's, by the settings or by variables unknown to Arrow."""
    named = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
    known = next((os.environ[name] for name in named if os.environ.get(name)), None)
    return options.s3_endpoint or known


def _s3(store: Store) -> OpenStore:
    from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem

    options = store.options
    endpoint = _s3_endpoint(options)
    if endpoint:
        # Servers other than AWS's may not know a checksum behind a body: Ceph 16 refuses it. Arrow
        # has no other way to turn it off.
        os.environ.setdefault("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
    files = S3FileSystem(
        endpoint_override=endpoint,
        region=options.s3_region,
        anonymous=options.anonymous,
        connect_timeout=min(_CONNECT_SECONDS, options.timeout_seconds),
        request_timeout=options.timeout_seconds,
        retry_strategy=AwsStandardS3RetryStrategy(max_attempts=_SDK_ATTEMPTS),
    )
    return OpenStore(files, store.authority)


def _s3_conditional(store: Store) -> ObjectStore:
    from obstore.store import S3Store
    from pyarrow.fs import resolve_s3_region

    endpoint = _s3_endpoint(store.options)
    regions = (store.options.s3_region, *map(os.environ.get, ("AWS_REGION", "AWS_DEFAULT_REGION")))
    region = next(filter(None, regions), None)
    given: dict[str, Any] = {"skip_signature": True} if store.options.anonymous else {}
    if endpoint:
        given["endpoint"] = endpoint
        region = region or "us-east-1"
    given["region"] = region or str(resolve_s3_region(store.authority))
    return S3Store(
        store.authority,
        config=cast(Any, given),
        credential_provider=_aws_profile(store),
        **_obstore_options(store, endpoint),
    )


def _aws_profile(store: Store) -> Any:
    """Return a profile's credentials, by boto3, if the environment holds none."""
    if store.options.anonymous or os.environ.get("AWS_ACCESS_KEY_ID"):
        return None
    if importlib.util.find_spec("boto3") is None:
        return None
    import boto3
    from obstore.auth.boto3 import Boto3CredentialProvider

    session = boto3.Session()
    return None if session.get_credentials() is None else Boto3CredentialProvider(session)


def _google(store: Store) -> OpenStore:
    from pyarrow.fs import GcsFileSystem

    endpoint = urlsplit(store.options.gs_endpoint or "")
    files = GcsFileSystem(
        anonymous=store.options.anonymous,
        scheme=endpoint.scheme or None,
        endpoint_override=endpoint.netloc or None,
        retry_time_limit=timedelta(seconds=store.options.timeout_seconds),
    )
    return OpenStore(files, store.authority, lists_folders=False)


def _google_conditional(store: Store) -> ObjectStore:
    from obstore.store import GCSStore

    endpoint = store.options.gs_endpoint
    given: dict[str, Any] = {"base_url": endpoint} if endpoint else {}
    if store.options.anonymous:
        # With `skip_signature` alone, obstore still asks for a token.
        account = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
        given["service_account_key"] = json.dumps({**account, "disable_oauth": True})
    options = _obstore_options(store, endpoint)
    return GCSStore(store.authority, config=cast(Any, given), **options)


def _azure_account(store: Store, sas_name: str) -> tuple[str, str, dict[str, Any]]:
    """Return container, account and `az`'s key or token of an address or the environment.

    The address is `abfss://container@account.dfs.core.windows.net`.
    """
    container, _, host = store.authority.partition("@")
    account = host.split(".")[0] or os.environ.get("AZURE_STORAGE_ACCOUNT", "")
    secrets = {
        "account_key": os.environ.get("AZURE_STORAGE_KEY"),
        sas_name: os.environ.get("AZURE_STORAGE_SAS_TOKEN"),
    }
    return container, account, {name: value for name, value in secrets.items() if value}


def _azure(store: Store) -> OpenStore:
    from pyarrow.fs import AzureFileSystem

    container, account, given = _azure_account(store, "sas_token")
    endpoint = urlsplit(store.options.azure_endpoint or "")
    for kind in ("blob", "dfs") if endpoint.netloc else ():
        given[f"{kind}_storage_authority"] = endpoint.netloc
        given[f"{kind}_storage_scheme"] = endpoint.scheme
    return OpenStore(AzureFileSystem(account, **given), container)


def _azure_conditional(store: Store) -> ObjectStore:
    from obstore.store import AzureStore

    container, account, given = _azure_account(store, "sas_key")
    endpoint = store.options.azure_endpoint
    if endpoint:
        given["endpoint"] = f"{endpoint}/{account}"
    if store.options.anonymous:
        given["skip_signature"] = True
    options = _obstore_options(store, endpoint)
    return AzureStore(container, account_name=account, config=cast(Any, given), **options)


def _hadoop(store: Store) -> OpenStore:
    """Open HDFS by the native library of the machine's Hadoop installation."""
    from pyarrow.fs import HadoopFileSystem

    host, _, port = store.authority.partition(":")
    # A name service has no port, and no authority means the file system of core-site.xml.
    address = f"{store.scheme}://{host}" if host else "default"
    return OpenStore(HadoopFileSystem(address, int(port) if port else 0), "")


def _by_fsspec(store: Store) -> OpenStore:
    import fsspec
    from pyarrow.fs import FSSpecHandler, PyFileSystem

    files = fsspec.filesystem(store.scheme)
    base = files._strip_protocol(str(store)).rstrip("/")
    return OpenStore(PyFileSystem(FSSpecHandler(files)), base)


_CLIENTS: Mapping[str, _Clients] = {
    "s3": _Clients(_s3, _s3_conditional),
    "gs": _Clients(_google, _google_conditional),
    "abfss": _Clients(_azure, _azure_conditional),
    "hdfs": _Clients(_hadoop),
    "viewfs": _Clients(_hadoop),
}
"""By the kind of a store (:data:`pipelines.settings.base.STORES`); all others are fsspec's."""
