"""Places of files: on a file system, or in an object store.

A :data:`Location` is a :class:`pathlib.Path` or a :class:`RemotePath`. The latter has the same
methods with the same meaning, so readers need not ask for the kind. Stores cannot rename, grow a
file, or map one into memory: :mod:`pipelines.files.storage` writes, and
:mod:`pipelines.files.copies` makes local copies.
"""

from __future__ import annotations

import glob
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path, PurePath, PurePosixPath
from typing import IO, TYPE_CHECKING, TypeAlias, TypeVar

from pipelines.files.stores import Store
from pipelines.settings.spark import StorageSettings

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo, FileSystem


class RangeReader(io.RawIOBase):
    """A file in a store; each read is one request, repeated when it is lost."""

    def __init__(self, path: RemotePath) -> None:
        super().__init__()
        self._path = path
        self._place = 0
        self._file = path.store.retried(
            f"opening {path}", lambda: path.files.open_input_file(path.fs_path)
        )

    @cached_property
    def _size(self) -> int:
        return int(self._file.size())

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the offset of the next byte."""
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to another byte, without a request."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}[whence]
        self._place = max(base + offset, 0)
        return self._place

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fill a buffer, as far as the file goes."""
        wanted = max(min(len(buffer), self._size - self._place), 0)
        if not wanted:
            return 0
        found = self._path.store.retried(
            f"reading {self._path}", lambda: self._file.read_at(wanted, self._place)
        )
        buffer[: len(found)] = found
        self._place += len(found)
        return len(found)

    def close(self) -> None:
        """Close the file."""
        if not self.closed:
            self._file.close()
        super().close()


ADDRESS = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]+)://(?P<authority>[^/]*)(?P<path>.*)", re.DOTALL | re.IGNORECASE
)
READ_AHEAD = 4 << 20
"""Bytes of one request when a file is read from its beginning to its end."""
_HERE = PurePosixPath()


@dataclass(frozen=True)
class Status:
    """Size and time of change of a file in a store, named as in :class:`os.stat_result`."""

    st_size: int
    st_mtime: float
    st_mtime_ns: int


@dataclass(frozen=True, repr=False)
class RemotePath:
    """A file or folder in an object store; a folder exists as long as anything is in it.

    ``key`` is the path below the root of the store. A version of a folder
    (:func:`pipelines.files.versions.current`) keeps the folder as its ``place``.
    """

    store: Store
    key: PurePosixPath
    place: RemotePath | None = field(default=None, compare=False)

    @classmethod
    def parse(cls, address: str, options: StorageSettings | None = None) -> RemotePath:
        """Return the place of an address.

        Raises:
            ValueError: It is no address, or its path goes up.
        """
        found = ADDRESS.fullmatch(address)
        if found is None or ".." in found["path"].split("/"):
            raise ValueError(f"{address} is no address")
        store = Store(found["scheme"].lower(), found["authority"], options or StorageSettings())
        return cls(store, PurePosixPath(re.sub("/+", "/", found["path"]).strip("/")))

    def __str__(self) -> str:
        return f"{self.store}/{self._key}"

    def __repr__(self) -> str:
        return f"RemotePath({str(self)!r})"

    def __lt__(self, other: RemotePath) -> bool:
        return str(self) < str(other)

    @property
    def _key(self) -> str:
        return "" if self.key == _HERE else str(self.key)

    @property
    def name(self) -> str:
        """The last part."""
        return self.key.name

    @property
    def stem(self) -> str:
        """The last part without its suffix."""
        return self.key.stem

    @property
    def suffix(self) -> str:
        """The suffix of the last part."""
        return self.key.suffix

    @property
    def suffixes(self) -> list[str]:
        """All suffixes of the last part."""
        return self.key.suffixes

    @property
    def parts(self) -> tuple[str, ...]:
        """The store and each part."""
        return (str(self.store), *self.key.parts)

    @property
    def parent(self) -> RemotePath:
        """The folder around it; a root is its own parent."""
        return RemotePath(self.store, self.key.parent)

    @property
    def parents(self) -> tuple[RemotePath, ...]:
        """All folders around it, innermost first."""
        return tuple(RemotePath(self.store, key) for key in self.key.parents)

    def __truediv__(self, name: str | PurePosixPath) -> RemotePath:
        key = self.key / name
        # For pathlib, an absolute name replaces the whole path.
        if key.is_absolute():
            raise ValueError(f"{name} is not below {self}")
        return RemotePath(self.store, key)

    def joinpath(self, *names: str) -> RemotePath:
        """Return the place below this one."""
        return RemotePath(self.store, self.key.joinpath(*names))

    def with_name(self, name: str) -> RemotePath:
        """Return the place beside this one."""
        return RemotePath(self.store, self.key.with_name(name))

    def with_suffix(self, suffix: str) -> RemotePath:
        """Return the place beside this one with another suffix."""
        return RemotePath(self.store, self.key.with_suffix(suffix))

    def relative_to(self, folder: Location) -> PurePosixPath:
        """Return the path below a folder.

        Raises:
            ValueError: It is not below the folder.
        """
        if not self.is_relative_to(folder):
            raise ValueError(f"{self} is not below {folder}")
        assert isinstance(folder, RemotePath)
        return self.key.relative_to(folder.key)

    def is_relative_to(self, folder: Location) -> bool:
        """Return whether it is the folder or below it."""
        return (
            isinstance(folder, RemotePath)
            and self.store.identity == folder.store.identity
            and self.key.is_relative_to(folder.key)
        )

    def absolute(self) -> RemotePath:
        """Return itself: an address is absolute."""
        return self

    def resolve(self) -> RemotePath:
        """Return itself: stores have no links."""
        return self

    def expanduser(self) -> RemotePath:
        """Return itself: stores have no homes."""
        return self

    def as_uri(self) -> str:
        """Return the address."""
        return str(self)

    def is_symlink(self) -> bool:
        """Return False: stores have no links."""
        return False

    def exists(self) -> bool:
        """Return whether it is a file, or has anything below it."""
        return bool(self._info.type)

    def is_file(self) -> bool:
        """Return whether it is a file."""
        return bool(self._info.is_file)

    def is_dir(self) -> bool:
        """Return whether it has anything below it."""
        from pyarrow.fs import FileType

        return bool(self._info.type == FileType.Directory)

    def stat(self) -> Status:
        """Return the size and the time of the last change."""
        info = self._info
        if not info.type:
            raise FileNotFoundError(f"there is no {self}")
        return _status(info)

    def lstat(self) -> Status:
        """Do as :meth:`stat`: stores have no links."""
        return self.stat()

    def mkdir(self, mode: int = 0, *, parents: bool = False, exist_ok: bool = False) -> None:
        """Do nothing: a folder exists by its content."""

    def iterdir(self) -> Iterator[RemotePath]:
        """Return its direct content, sorted; nothing if it is absent."""
        return (self / name for name, _ in self.entries(recursive=False))

    def glob(self, pattern: str) -> Iterator[RemotePath]:
        """Yield the matches of a pattern, at its depth; ``**`` stands for any depth."""
        wanted = pattern.split("/")
        for name, _ in self.entries(recursive=len(wanted) > 1 or "**" in wanted):
            if fits(name.split("/"), wanted):
                yield self / name

    def rglob(self, pattern: str) -> Iterator[RemotePath]:
        """Yield the matches of a pattern at any depth."""
        return self.glob(f"**/{pattern}")

    def entries(self, *, recursive: bool = True) -> list[tuple[str, Status | None]]:
        """List all content, sorted: relative paths with size and time, or None for a folder."""
        from pyarrow.fs import FileSelector

        # Without listed folders, a listing of all files is needed to derive them.
        lists_folders = self.store.open().lists_folders
        selector = FileSelector(
            self.fs_path, allow_not_found=True, recursive=recursive or not lists_folders
        )
        found: list[FileInfo] = self.store.retried(
            f"listing {self}", lambda: self.files.get_file_info(selector)
        )
        below = len(self.fs_path.rstrip("/")) + 1 if self.fs_path else 0
        named = {
            info.path[below:].rstrip("/"): _status(info) if info.is_file else None for info in found
        }
        if not lists_folders:
            named = _with_folders(named, recursive=recursive)
        # Some stores list the folder itself.
        return sorted((name, status) for name, status in named.items() if name)

    def open(self, mode: str = "r", buffering: int = READ_AHEAD, encoding: str = "") -> IO:
        """Open a file for reading, in mode `rb` or `r`.

        A request reads at least ``buffering`` bytes; with 0, each read is one request of its size.
        """
        if mode not in ("rb", "r", "rt"):
            raise io.UnsupportedOperation(f"{self} is not written in place")
        raw = RangeReader(self)
        if not buffering and mode == "rb":
            return raw  # type: ignore[return-value]
        buffered = io.BufferedReader(raw, buffering or READ_AHEAD)
        return io.TextIOWrapper(buffered, encoding or "utf-8") if mode != "rb" else buffered

    def read_bytes(self) -> bytes:
        """Return the content of a file."""

        def attempt() -> bytes:
            with self.files.open_input_stream(self.fs_path) as stream:
                return bytes(stream.read())

        return self.store.retried(f"reading {self}", attempt)

    def read_text(self, encoding: str | None = None, errors: str | None = None) -> str:
        """Return the content of a text file."""
        return self.read_bytes().decode(encoding or "utf-8", errors or "strict")

    def unlink(self, *, missing_ok: bool = False) -> None:
        """Delete a file."""
        is_retry = False

        def attempt() -> None:
            nonlocal is_retry
            was_tried, is_retry = is_retry, True
            try:
                self.files.delete_file(self.fs_path)
            except FileNotFoundError:
                # An earlier attempt may have deleted it, and its answer was lost.
                if not (missing_ok or was_tried):
                    raise

        self.store.retried(f"deleting {self}", attempt)

    @property
    def files(self) -> FileSystem:
        """The file system of its store."""
        return self.store.open().files

    @property
    def fs_path(self) -> str:
        """The path in :attr:`files`."""
        return "/".join(part for part in (self.store.open().base, self._key) if part)

    @property
    def _info(self) -> FileInfo:
        return self.store.retried(
            f"looking for {self}", lambda: self.files.get_file_info(self.fs_path)
        )


Location: TypeAlias = Path | RemotePath
"""A file or folder on a file system or in a store."""
P = TypeVar("P", Path, RemotePath, Path | RemotePath)
"""One kind of place, where the result is of the argument's kind."""


def location(given: str | Location, options: StorageSettings | None = None) -> Location:
    """Return the place of a setting: an address of a store, or a path.

    :data:`pipelines.settings.base.StoredPath` has checked it.
    """
    if not isinstance(given, str):
        return given
    if ADDRESS.fullmatch(given):
        return RemotePath.parse(given, options)
    return Path(given)


def is_remote(given: str) -> bool:
    """Return whether a setting names a place in a store."""
    return ADDRESS.fullmatch(given) is not None


def as_local(path: Location) -> Path | None:
    """Return the path on a file system, for its extra operations; None in a store.

    This module and :mod:`pipelines.files.storage` have functions for the common operations.
    """
    return path if isinstance(path, Path) else None


def as_remote(path: Location) -> RemotePath | None:
    """Return the place in a store; None on a file system. See :func:`as_local`."""
    return path if isinstance(path, RemotePath) else None


def matching(pattern: Location) -> list[Location]:
    """Return the matches of a glob; ``**`` stands for any depth."""
    if isinstance(pattern, Path):
        found = glob.glob(str(pattern), recursive=True)  # noqa: PTH207 - of an absolute pattern
        return [Path(match) for match in found]
    folder = fixed_folder(pattern)
    return list(folder.glob(str(pattern.relative_to(folder))))


def fixed_folder(pattern: P) -> P:
    """Return the folder above the first wildcard of a glob."""
    folder = pattern
    while glob.has_magic(str(folder)) and folder.name:
        folder = folder.parent
    return folder


def is_within(path: Location, folder: Location) -> bool:
    """Return whether a place is a folder or below it; False for places of different kinds."""
    if isinstance(path, Path) and isinstance(folder, Path):
        return path.is_relative_to(folder)
    return isinstance(path, RemotePath) and path.is_relative_to(folder)


def listed(folder: Location, pattern: str) -> list[Location]:
    """Return the matches of a pattern in a folder, at its depth, sorted by name."""
    found: list[Location] = list(folder.glob(pattern))
    return sorted(found, key=str)


def arrow_source(path: Location) -> Path | IO:
    """Return a file as an argument of pyarrow's readers."""
    # Without a buffer: Parquet readers ask for exact ranges, and read-ahead would be waste.
    return path if isinstance(path, Path) else path.open("rb", buffering=0)


def version_of(place: RemotePath, name: str) -> RemotePath:
    """Return a version of a folder, with the folder as its ``place``."""
    return replace(place / name, place=place)


def fits(names: Sequence[str], wanted: Sequence[str]) -> bool:
    """Return whether a relative path matches a pattern, part by part; ``**`` is any depth."""
    if not wanted:
        return not names
    if wanted[0] == "**":
        return any(fits(names[skip:], wanted[1:]) for skip in range(len(names) + 1))
    return bool(names) and fnmatchcase(names[0], wanted[0]) and fits(names[1:], wanted[1:])


def _with_folders(
    named: Mapping[str, Status | None], *, recursive: bool
) -> dict[str, Status | None]:
    """Add the folders of files found at any depth, or return only the top level."""
    folders = {str(path): None for name in named for path in PurePosixPath(name).parents[:-1]}
    all_named = folders | dict(named)
    return {name: found for name, found in all_named.items() if recursive or "/" not in name}


def _status(info: FileInfo) -> Status:
    changed = info.mtime_ns or 0
    return Status(info.size or 0, changed / 1e9, changed)


SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
"""Suffixes of compressed files; :mod:`pipelines.corpus.readers.streams` reads them."""


def is_compressed(file: Location) -> bool:
    """Return whether the name has the suffix of a compression."""
    return file.suffix.lower() in SUFFIXES


def plain_suffix(file: Location) -> str:
    """Return the suffix before the compression's, in lower case: `.txt` of `a.TXT.gz`."""
    return PurePath(file.stem if is_compressed(file) else file.name).suffix.lower()
