"""The identity of a model: one digest of its files, equal wherever the folder is copied to.

The digest is the SHA-256 of what `sha256sum` prints for the files of the folder, sorted by path, so
a shell computes it, too (docs/guides/serving.md has the command). Tables, promotions, cards, MLflow
and exports record it as ``model_digest``.

A Router that `export` wrote holds a copy of the model that embeds its documents. Vectors of
documents are that model's, so tables record its digest, and either folder may search them.

Earlier releases had two other digests. :func:`is_digest_of` and :func:`has_made` recognise them, so
no record is stale only by its age.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from pipelines.errors import InputError
from pipelines.files import records, storage
from pipelines.files.copies import local_folder
from pipelines.files.locations import Location, as_local
from pipelines.files.run_folder import OBSERVATIONS
from pipelines.tokens.start import DOCUMENT, QUERY, is_router
from pipelines.tokens.vocabulary import changed_tokenizer

CARD_FILE = "README.md"
"""The model card in a model folder; every evaluation rewrites it."""
PROMOTION_FILE = "promotion.json"
"""The record of a promotion, beside the files of a served model."""
BESIDE = (PROMOTION_FILE, OBSERVATIONS)
"""The files that a promotion puts beside those of a model."""
LEFT_OUT = frozenset({CARD_FILE, *BESIDE})
"""The files of a model's folder outside of its digest, as are names that begin with a dot."""
EXPORT_FILE = "export.json"
"""The record of an export, beside its files."""
DOCUMENTS, FILES = "documents", "files_digest"
"""Of a Router: the field for the model of documents in its record, and the digest of its files
but those of queries in there."""
QUERY_FILES = f"{QUERY}_"
"""The names of a Router's modules for queries begin so."""
FIELD = "model_digest"
"""The field of the digest in every record."""
_EARLIER_DIGITS = 16
_EARLIER_FIELDS = ("model", "digest")
_EARLIER_TABLE_FILES = ("*.json", "*.txt", "*.safetensors", "*.bin")


def model_digest(folder: Location) -> str:
    """Return the digest of a model's files: 64 hexadecimal digits.

    A process reads each file once, unless it changes. A folder in a store is read there.
    """
    return _digest(_sums(folder))


def is_hidden(name: str) -> bool:
    """Return whether a relative path, or a folder on it, begins with a dot."""
    return any(part.startswith(".") for part in name.split("/"))


def recorded_digest(record: Mapping[str, Any]) -> str | None:
    """Return the digest in a record of an evaluation, a promotion or a tracker, if it has one."""
    fields = (FIELD, *_EARLIER_FIELDS)
    return next((record[field] for field in fields if isinstance(record.get(field), str)), None)


def is_digest_of(recorded: str | None, folder: Location) -> bool:
    """Return whether a digest, of this or an earlier release, is that of the model in a folder."""
    if recorded is None:
        return False
    if len(recorded) != _EARLIER_DIGITS:
        return recorded == model_digest(folder)
    # Some releases counted the card, too.
    return any(recorded == storage.digest_folder(folder, without=of) for of in (LEFT_OUT, BESIDE))


def has_made(recorded: str, folder: Location) -> bool:
    """Return whether a table's digest, of this or an earlier release, is of the model in a folder.

    A table of an earlier release may have been made with the model's run or with its promotion.
    """
    local = local_folder(folder)
    if recorded == model_digest(local):
        return True
    is_served = (local / PROMOTION_FILE).is_file()
    # Without a readable tokenizer it made no table.
    with suppress(InputError):
        left_out = (BESIDE, ()) if is_served else ((),)
        return any(recorded == digest_in_earlier_tables(local, names) for names in left_out)
    return False


def digest_of_side(folder: Location, side: str) -> str:
    """Return the digest in tables of a model, or of a Router's encoder for a side."""
    known = documents_digest(folder) if side == DOCUMENT else None
    return known or model_digest(folder)


def has_embedded(recorded: str, folder: Location, side: str) -> bool:
    """Return whether a table's digest is of the model in a folder, or of its encoder for a side."""
    if has_made(recorded, folder):
        return True
    return side == DOCUMENT and recorded == documents_digest(folder)


def documents_digest(folder: Location) -> str | None:
    """Return the digest of the model that embeds a Router's documents, if its export names one.

    It is unknown once a file of the Router differs, except those of queries.
    """
    local = local_folder(folder)
    record = local / EXPORT_FILE
    # A file of that name in a plain model may be the user's.
    is_exported = is_router(local) and record.is_file()
    known = records.read_object(record).get(DOCUMENTS) if is_exported else None
    if not isinstance(known, Mapping) or known.get(FILES) != files_digest(local):
        return None
    return recorded_digest(known)


def files_digest(router: Location) -> str:
    """Return the digest of a Router's files, but those of queries and of its export's record."""
    return _digest(
        {
            name: found
            for name, found in _sums(router).items()
            if name != EXPORT_FILE and not name.startswith(QUERY_FILES)
        }
    )


def digest_in_earlier_tables(folder: Location, without: Collection[str] = ()) -> str:
    """Return the digest that tables of earlier releases record for the model in a folder."""
    local = local_folder(folder)
    digest = hashlib.sha256()
    for file in sorted(file for kind in _EARLIER_TABLE_FILES for file in local.rglob(kind)):
        name = str(file.relative_to(local))
        if name not in without:
            digest.update(f"{name}\0".encode())
            digest.update(bytes.fromhex(_sum(file)))
    digest.update((changed_tokenizer(local) or "").encode())
    return digest.hexdigest()


def _digest(sums: Mapping[str, str]) -> str:
    lines = (f"{sums[name]}  {name}\n" for name in sorted(sums))
    return hashlib.sha256("".join(lines).encode(errors="surrogateescape")).hexdigest()


def _sums(folder: Location) -> dict[str, str]:
    """Return the SHA-256 of each file of a model, by relative path."""
    names = (name for name in _names(folder) if name not in LEFT_OUT and not is_hidden(name))
    return {name: _sum(folder.joinpath(*name.split("/"))) for name in names}


def _names(folder: Location) -> Iterator[str]:
    local = as_local(folder)
    if local is None:
        yield from storage.file_names(folder)
        return
    # As `find -L` and a promotion's copy: folders of other models are often links.
    for place, folders, files in os.walk(local, followlinks=True):
        real = Path(place).resolve()
        # A link to a folder above leads round for ever.
        folders[:] = [name for name in folders if not real.is_relative_to((real / name).resolve())]
        for name in files:
            file = Path(place, name)
            if file.is_file():
                yield file.relative_to(local).as_posix()


def _sum(file: Location) -> str:
    found = file.stat()
    return _read_sum(file, getattr(found, "st_ino", 0), found.st_size, found.st_mtime_ns)


@lru_cache(maxsize=1024)
def _read_sum(file: Location, *stamp: int) -> str:
    """Read a file's SHA-256; the stamp is a cache key, so one process reads a file once."""
    with file.open("rb") as opened:
        return hashlib.file_digest(cast(Any, opened), "sha256").hexdigest()
