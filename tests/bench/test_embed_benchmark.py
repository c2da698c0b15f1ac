"""Embedders that embed the rows they are told, and what is compared of them."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.errors import PipelineError
from pipelines.tokens.start import default_start
from pipelines.vectors.embedding import embedding_options
from pipelines_bench.embed import _cosines, _embed, _embedder
from pipelines_bench.embedders import EMBEDDERS


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.parquet"
    pq.write_table(pa.table({"text": ["A cat sleeps.", "It rains.", "a cat sleeps.", ""]}), path)
    return path


@pytest.fixture
def threads() -> Iterator[None]:
    """Gives PyTorch back the threads that it has in this process."""
    torch = pytest.importorskip("torch")
    number = torch.get_num_threads()
    yield
    torch.set_num_threads(number)


@pytest.mark.usefixtures("threads")
def test_both_embed_the_rows_that_are_ordered(texts, tmp_path) -> None:
    options = embedding_options(default_start(), precision="fp32")
    ranges = ((0, 1), (1, 4))
    with _embedder("here", tmp_path, texts, options) as embedder:
        for start, stop in ranges:
            answer = _embed(embedder, start, stop)
            assert answer["rows"] == stop - start
            assert answer["cpu_seconds"] > 0
    # In this process: another one would import the library for seconds.
    library = tmp_path / "sentence-transformers"
    library.mkdir()
    embed = EMBEDDERS[library.name](str(texts), str(library), {"model": str(options.model)})
    for start, stop in ranges:
        embed(start, stop)
        places = (tmp_path / name / f"part-{start:05d}" for name in ("here", library.name))
        cosines, rows = _cosines(*places), stop - start
        np.testing.assert_allclose(cosines, np.ones(rows), atol=1e-5)


def test_an_embedder_that_has_ended_is_named(texts, tmp_path) -> None:
    options = embedding_options(default_start())
    with (
        pytest.raises(PipelineError, match=r"the embedder nobody .* has ended"),
        _embedder("nobody", tmp_path, texts, options) as embedder,
    ):
        _embed(embedder, 0, 1)
