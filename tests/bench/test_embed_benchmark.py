"""Embedders that embed the rows they are told, and what is compared of them."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.errors import PipelineError
from pipelines.tokens.start import default_start
from pipelines.vectors.embedding import embedding_options
from pipelines_bench.embed import _cosines, _embed, _embedder


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.parquet"
    pq.write_table(pa.table({"text": ["A cat sleeps.", "It rains.", "a cat sleeps.", ""]}), path)
    return path


def test_both_embed_the_rows_that_are_ordered(texts, tmp_path) -> None:
    options = embedding_options(default_start(), precision="fp32")
    names = ("here", "sentence-transformers")
    for name in names:
        with _embedder(name, tmp_path, texts, options) as embedder:
            for start, stop in ((0, 1), (1, 4)):
                answer = _embed(embedder, start, stop)
                assert answer["rows"] == stop - start
                assert answer["cpu_seconds"] > 0
    for start, rows in (("00000", 1), ("00001", 3)):
        cosines = _cosines(*(tmp_path / name / f"part-{start}" for name in names))
        np.testing.assert_allclose(cosines, np.ones(rows), atol=1e-5)


def test_an_embedder_that_has_ended_is_named(texts, tmp_path) -> None:
    options = embedding_options(default_start())
    with (
        pytest.raises(PipelineError, match=r"the embedder nobody .* has ended"),
        _embedder("nobody", tmp_path, texts, options) as embedder,
    ):
        _embed(embedder, 0, 1)
