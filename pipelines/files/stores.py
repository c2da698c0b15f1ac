"""Opens file systems of object stores, by the scheme of an address.

Everything is read and written by :mod:`pyarrow.fs`, whose file systems for S3, Google Cloud
Storage, Azure and HDFS find credentials as the SDK of each store does. What it has no file system
for goes through fsspec.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

import tenacity

from pipelines.settings.spark import StorageSettings

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

logger = logging.getLogger(__name__)

T = TypeVar("T")

_LONGEST_PAUSE_SECONDS = 10.0
_CONNECT_SECONDS = 10.0
# The SDK's own attempts are for a request that is lost; ours are for a store that is away.
_SDK_ATTEMPTS = 4

_TOLD_ATTEMPT = 4

_ALIASES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "abfss"}

_AWAY: set[Store] = set()
"""Stores that were away in this process for as long as they are waited for, and not back since."""

_DEFINITE = re.compile(
    r"ACCESS_DENIED|AccessDenied|NO_SUCH_BUCKET|NoSuchBucket|INVALID_ACCESS_KEY|INVALID_CLIENT_TOKEN"
    r"|SIGNATURE|EXPIRED|ExpiredToken|UNRECOGNIZED_CLIENT|INVALID_TOKEN|InvalidToken"
    r"|PERMISSION_DENIED|UNAUTHENTICATED|Authenti?cation|Authorization|ContainerNotFound"
    # Too slow, in each other's way, too early, too often: all others of this kind are for good.
    r"|HTTP status 4(?!08|09|25|29)\d\d",
    re.IGNORECASE,
)
"""What stores say of requests that fail however often they are made."""

_REFUSED = re.compile(
    r"ACCESS_DENIED|AccessDenied|EXPIRED|INVALID_TOKEN|InvalidToken|INVALID_ACCESS_KEY"
    r"|INVALID_CLIENT_TOKEN|SIGNATURE|UNRECOGNIZED_CLIENT|PERMISSION_DENIED|UNAUTHENTICATED"
    r"|Authenti?cation|Authorization|HTTP status 40[13]",
    re.IGNORECASE,
)
"""Those of them that other credentials would mend."""

_ANSWER = re.compile(r"<Code>([^<]+)</Code>(?:.*?<Message>([^<]+)</Message>)?", re.DOTALL)
"""What the document says that S3 and Azure answer with."""


@dataclass(frozen=True)
class Store:
    """What an address names before the first slash of its path.

    Attributes:
        scheme: Such as `s3`.
        authority: A bucket, a container and its account, or a host; may be empty.
        options: Endpoints and deadlines.
    """

    scheme: str
    authority: str
    options: StorageSettings = field(default_factory=StorageSettings)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}"

    @property
    def identity(self) -> tuple[str, str]:
        """The same for all addresses of one store, such as `s3://b` and `s3a://b`."""
        return _ALIASES.get(self.scheme, self.scheme), self.authority

    def open(self) -> OpenStore:
        """The file system; one for all of a process."""
        # A client does not survive a fork: its threads are gone.
        return _opened(self, os.getpid())

    def retried(self, what: str, attempt: Callable[[], T]) -> T:
        """Makes a request until it succeeds, fails for good, or time is up.

        Args:
            what: It does, for the log.
            attempt: The request; it must make no difference whether it is made once or twice.

        Raises:
            OSError: The store says no, or is away for ``storage.retry_seconds``. Once it was away
                for so long, each request is made once, until one succeeds: what a job then does to
                clean up, and Spark to repeat its tasks, does not take the same time again each.
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
    """A file system, and where in it a store begins.

    Attributes:
        files: The file system.
        base: The path in it of the store's own root: the bucket, or nothing.
        lists_folders: Whether it lists folders too that are there by what is in them alone.
    """

    files: FileSystem
    base: str
    lists_folders: bool = True


def is_transient(error: BaseException) -> bool:
    """Whether a request that failed so may succeed when it is made again."""
    if isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError | FileExistsError):
        return False
    return isinstance(error, OSError) and not _DEFINITE.search(str(error))


def credentials_remedy(error: OSError) -> str:
    """How a request goes through that was refused for its credentials; nothing of other errors."""
    if error.errno is not None or not _REFUSED.search(str(error)):
        return ""
    return "; renew the store's credentials, or let them read and write there, and run it again"


def _tell(what: str, state: tenacity.RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    # Most requests succeed the second time. Of one that does not, any program is told once, since
    # what follows may take minutes.
    level = logging.WARNING if state.attempt_number == _TOLD_ATTEMPT else logging.INFO
    logger.log(level, "%s: attempt %d failed (%s)", what, state.attempt_number, first_line(error))


def first_line(error: BaseException | None) -> str:
    """What an error says, in one line; of a store's answer in XML, its code and its message."""
    text = str(error)
    line = next(iter(text.splitlines()), "") or type(error).__name__
    answer = _ANSWER.search(text)
    if answer is None:
        return line
    before = re.split(r"<\?xml|<Error", line, maxsplit=1)[0].rstrip(" \ufeff")
    return " ".join([before, ": ".join(filter(None, answer.groups()))]).splitlines()[0]


@lru_cache(maxsize=64)
def _opened(store: Store, _process: int) -> OpenStore:
    return OPENERS.get(store.scheme, _by_fsspec)(store)


def s3_endpoint(options: StorageSettings) -> str | None:
    """Address of a server other than AWS's: by the settings, or by the variables of AWS's SDKs.

    Arrow's file system reads none of these.
    """
    named = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
    known = next((os.environ[name] for name in named if os.environ.get(name)), None)
    return options.s3_endpoint or known


def _s3(store: Store) -> OpenStore:
    from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem

    options = store.options
    endpoint = s3_endpoint(options)
    if endpoint:
        # Servers other than AWS's may know no checksum behind a body: Ceph 16 refuses it. Arrow
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


def _azure(store: Store) -> OpenStore:
    """Of `abfss://container@account.dfs.core.windows.net`, with a key or a token of `az`."""
    from pyarrow.fs import AzureFileSystem

    container, _, host = store.authority.partition("@")
    endpoint = urlsplit(store.options.azure_endpoint or "")
    servers = (
        {f"{kind}_storage_authority": endpoint.netloc for kind in ("blob", "dfs")}
        | {f"{kind}_storage_scheme": endpoint.scheme for kind in ("blob", "dfs")}
        if endpoint.netloc
        else {}
    )
    secrets = {
        "account_key": os.environ.get("AZURE_STORAGE_KEY"),
        "sas_token": os.environ.get("AZURE_STORAGE_SAS_TOKEN"),
    }
    account = host.split(".")[0] or os.environ.get("AZURE_STORAGE_ACCOUNT", "")
    given = {name: value for name, value in secrets.items() if value}
    return OpenStore(AzureFileSystem(account, **servers, **given), container)


def _hadoop(store: Store) -> OpenStore:
    """HDFS by the native library of an installation of Hadoop on the machine."""
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


OPENERS: Mapping[str, Callable[[Store], OpenStore]] = {
    **dict.fromkeys(("s3", "s3a", "s3n"), _s3),
    **dict.fromkeys(("gs", "gcs"), _google),
    **dict.fromkeys(("abfs", "abfss"), _azure),
    **dict.fromkeys(("hdfs", "viewfs"), _hadoop),
}
"""By the scheme of an address; all others are fsspec's."""
