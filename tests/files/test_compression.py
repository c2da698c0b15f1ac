"""Names of compressed files."""

from pathlib import Path

import pytest

from pipelines.corpus.readers.streams import DECOMPRESSORS
from pipelines.files.locations import SUFFIXES, is_compressed, plain_suffix


@pytest.mark.parametrize(
    ("name", "compressed", "suffix"),
    [("a.TXT.gz", True, ".txt"), ("b.csv", False, ".csv"), ("c.ZST", True, ""), ("d", False, "")],
)
def test_the_name_says_what_is_compressed(name, compressed, suffix):
    assert is_compressed(Path(name)) == compressed
    assert plain_suffix(Path(name)) == suffix


def test_each_compression_has_a_reader():
    assert set(DECOMPRESSORS) == set(SUFFIXES)
