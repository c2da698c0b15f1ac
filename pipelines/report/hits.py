"""What a search found, as a table for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from pipelines.embedding.lookup import Hit


def hits_table(queries: Sequence[str], hits: Sequence[Hit]) -> Table:
    """A line for each row that was found; the query stands before its first one.

    Args:
        queries: What was asked.
        hits: Query by query, the best first.
    """
    table = Table()
    several = len(queries) > 1
    if several:
        table.add_column("query")
    table.add_column("cosine", justify="right")
    table.add_column("row", justify="right")
    table.add_column("text", overflow="fold")
    for hit in hits:
        # Not as markup: a text may hold brackets.
        asked = [Text(queries[hit.query] if hit.rank == 1 else "")] if several else []
        text = Text("" if hit.text is None else hit.text)
        last = hit is hits[-1] or hits[hits.index(hit) + 1].query != hit.query
        table.add_row(
            *asked, f"{hit.cosine:.4f}", f"{hit.position:,}", text, end_section=several and last
        )
    return table
