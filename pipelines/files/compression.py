"""Which files are compressed: their names say so, as ``corpus.jsonl.gz`` does."""

from __future__ import annotations

from pathlib import PurePath

from pipelines.files.locations import Location

SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
"""What names of compressed files end with; :mod:`pipelines.corpus.readers.streams` reads them."""


def is_compressed(file: Location) -> bool:
    """Whether the name ends with the suffix of a compression."""
    return file.suffix.lower() in SUFFIXES


def plain_suffix(file: Location) -> str:
    """The suffix under that of the compression, in lower case: `.txt` of `a.TXT.gz`."""
    return PurePath(file.stem if is_compressed(file) else file.name).suffix.lower()
