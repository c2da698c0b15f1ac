"""The plan of parts: each document in one of them, whatever their number."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from pipelines.questions.documents import Staged, build_name

FOLDER = Path("documents")
BUCKETS = st.dictionaries(st.integers(0, 999).map(str), st.integers(1, 2_000), min_size=1)


@given(BUCKETS, st.none() | st.integers(1, 65_536), st.integers(0, 9))
def test_each_document_is_in_one_part(rows, asked, build):
    staged = Staged(read=sum(rows.values()), without_text=0, rows=rows)
    parts = staged.parts(FOLDER, asked, build)
    asked_of: Counter[Path] = Counter()
    for part in parts:
        # Parts of a file follow one another.
        assert part.start == asked_of[part.path] < part.stop
        assert part.stop - part.start <= (asked or 256)
        asked_of[part.path] = part.stop
    assert {path.stem: count for path, count in asked_of.items()} == staged.files
    assert len({part.name for part in parts}) == len(parts)
    assert all(part.name.startswith(build_name(build)) for part in parts)


def test_a_million_documents_are_thousands_of_parts_and_a_hundred_are_a_few():
    # Hashes spread texts over the files, almost evenly.
    million = Staged(1_000_000, 0, {str(bucket): 8130 + bucket % 3 for bucket in range(123)})
    parts = million.parts(FOLDER, None, 0)
    assert len(parts) == 123 * 32
    assert max(part.rows for part in parts) == 256
    # The names of a second build are others: no file is taken for one of the first.
    assert not {part.name for part in parts} & {
        part.name for part in million.parts(FOLDER, None, 1)
    }
    hundred = Staged(100, 0, {"0": 100})
    assert [part.rows for part in hundred.parts(FOLDER, None, 0)] == [16] * 6 + [4]
