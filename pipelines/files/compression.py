"""Which files are compressed: their names say so, as ``corpus.jsonl.gz`` does."""

from __future__ import annotations

from pathlib import Path

SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
"""What names of compressed files end with; :mod:`pipelines.corpus.readers.streams` reads them."""


def is_compressed(file: Path) -> bool:
    """Whether the name ends with the suffix of a compression."""
    return file.suffix.lower() in SUFFIXES


def plain_suffix(file: Path) -> str:
    """The suffix under that of the compression, in lower case: `.txt` of `a.TXT.gz`."""
    return Path(file.stem if is_compressed(file) else file.name).suffix.lower()
