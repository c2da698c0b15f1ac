"""Which model a folder holds: what is noted of it, and compared, wherever one is to be known."""

from __future__ import annotations

from collections.abc import Collection

from pipelines.files import storage
from pipelines.files.locations import Location

CARD_FILE = "README.md"
"""The model card in a model folder."""


def digest_model(folder: Location, *, without: Collection[str] = ()) -> str:
    """A digest of the files of a model, but for its card, 16 hexadecimal digits.

    The card is written again whenever the model is measured, and the model stays what it is.

    Args:
        folder: A sentence-transformers folder.
        without: Other files that do not count.
    """
    return storage.digest_folder(folder, without=(CARD_FILE, *without))
