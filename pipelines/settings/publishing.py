"""The section `publish`: a store of vectors that follows a table."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pipelines.catalog import STORES
from pipelines.errors import InputError
from pipelines.settings.base import NameOrPath, Settings, choice_of


class PublishSettings(Settings):
    """The store for the vectors of `embedding.output`, and how `publish` writes it."""

    store: Annotated[str, choice_of(STORES)] = "lancedb"
    """Kind of store."""
    address: NameOrPath | None = None
    """URL of the server, or a folder for stores that need none:
    `postgresql://user@host/database`, `https://host:6333`, `s3://bucket/lance`."""
    user: str | None = None
    """User, for stores that have users and no place for them in `address`."""
    password_variable: str = "PUBLISH_PASSWORD"
    """Environment variable of the driver with the password, token or API key. The driver sends it
    to the executors."""
    collection: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")] = "documents"
    """Name for readers of the store: at most 40 lower-case letters, digits and underscores."""
    columns: tuple[str, ...] | None = None
    """Columns to store with the vectors. Null: all."""
    filters: tuple[str, ...] = ()
    """Columns of `columns` with an index, for queries with conditions."""
    metric: Literal["auto", "cosine", "dot", "euclidean"] = "auto"
    """Similarity of the store's index. `auto`: cosine, as `search` compares."""
    int8: Literal["restore", "keep"] = "restore"
    """Tables of int8: `restore` multiplies each vector by its scale; `keep` stores the bytes, which
    are right under cosine only."""
    connections: int = Field(default=8, ge=1, le=1000)
    """Most tasks that write at a time."""
    batch_rows: int | None = Field(default=None, ge=1, le=1_000_000)
    """Most rows of a request. Null: 1,000, or what suits the store."""
    timeout_seconds: float = Field(default=60.0, gt=0)
    """Time limit of a request."""
    overwrite: bool = False
    """Build a new collection from the whole table, even if the present one needs few changes, or
    has the rows of another table."""
    keep_old: int = Field(default=1, ge=0)
    """Replaced collections to keep in the store."""

    def check(self) -> None:
        """Refuse filters on columns that are not stored."""
        if self.columns is None:
            return
        for name in self.filters:
            if name not in self.columns:
                raise InputError(
                    "publish.filters",
                    f"`{name}` is not one of publish.columns",
                    "Add it there, or leave it out",
                )
