"""Documents that questions are asked about."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

DOCUMENTS = 120


def write_documents(path: Path, texts: list[str], **columns: list[Any]) -> Path:
    """A table of documents, with a title and an id each."""
    rows = {"id": list(range(len(texts))), "text": texts}
    rows["title"] = [" ".join(text.split()[:3]) for text in texts]
    pq.write_table(pa.table(rows | columns), path)
    return path
