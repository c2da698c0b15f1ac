"""Any frame gets a column of vectors, those of sentence-transformers."""

import numpy as np
import pyarrow as pa
import pytest

from pipelines.arrow_columns import as_text
from pipelines.embedding.column import embed_column
from pipelines.errors import InputError
from pipelines.vectors.embedding import blocks, cached_embedder, embedding_options, task_device


@pytest.fixture(scope="module")
def frame(spark, lines):
    rows = [(n, text) for n, text in enumerate([*lines[:40], None, "", lines[0]])]
    return spark.createDataFrame(rows, "id long, text string").repartition(2)


def test_vectors_are_those_of_the_library(frame, small_model, lines) -> None:
    from sentence_transformers import SentenceTransformer

    found = embed_column(frame, small_model, precision="fp32").orderBy("id").collect()
    assert found[0].asDict().keys() == {"id", "text", "embedding"}
    assert found[40]["embedding"] is None
    expected = SentenceTransformer(str(small_model), device="cpu").encode([*lines[:40], ""])
    vectors = np.array([row["embedding"] for row in found if row["text"] is not None])
    np.testing.assert_allclose(vectors[:-1], expected, atol=2e-5)
    # The same text again, in another batch.
    np.testing.assert_allclose(vectors[-1], vectors[0], atol=1e-6)


def test_quantised_and_shortened(frame, small_model) -> None:
    from pipelines.vectors.embedding import restored, shortened

    whole = embed_column(frame, small_model, precision="fp32")
    small = embed_column(
        frame, small_model, precision="fp32", dimensions=8, quantise="int8", output_column="v"
    )
    assert dict(small.dtypes)["v"] == "array<tinyint>"
    rows = [row for row in small.orderBy("id").collect() if row["text"] is not None]
    back = restored(np.array([r["v"] for r in rows]), np.array([r["v_scale"] for r in rows]))
    vectors = [r["embedding"] for r in whole.orderBy("id").collect() if r["text"] is not None]
    expected = shortened(np.array(vectors, np.float32), 8, normalise=True)
    np.testing.assert_allclose(back, expected, atol=1 / 250)


def test_what_does_not_fit_is_refused(frame, small_model, tmp_path) -> None:
    cases = [
        ({"text_column": "body"}, "embedding.text_column: the table has no column `body`"),
        ({"text_column": "id"}, "embedding.text_column: `id` of the table holds no text"),
        ({"output_column": "id"}, "embedding.output_column: the table already has a column `id`"),
        ({"dimensions": 33}, "embedding.dimensions: 33 is not within the model's 32"),
        ({"backend": "abacus"}, "embedding.backend: there is no backend `abacus`"),
        ({"quantise": "int4"}, "embedding.quantise: there is no `int4`. Choose one of none, int8"),
        (
            {"precision": "fp16"},
            "embedding.precision: there is no `fp16`. Choose one of auto, fp32, bf16",
        ),
        ({"batch_tokens": -3}, "embedding.batch_tokens: -3 is too small. Set it to at least 1"),
    ]
    for options, message in cases:
        with pytest.raises(InputError, match=f"^{message}"):
            embed_column(frame, small_model, **options)
    with pytest.raises(InputError, match=r"^embedding.model: there is no folder"):
        embed_column(frame, tmp_path / "absent")
    with pytest.raises(InputError, match=r"^embedding.model: .* has no config.json"):
        embed_column(frame, tmp_path)


def test_a_model_is_kept_for_each_device(small_model) -> None:
    options = embedding_options(small_model, backend="torch", precision="fp32")
    here = cached_embedder(options, "cpu")
    assert cached_embedder(options, "cpu") is here
    # A name of another device, as a GPU's is; it computes the same.
    other = cached_embedder(options, "cpu:0")
    assert other is not here
    np.testing.assert_allclose(other(["a cat"]), here(["a cat"]), atol=1e-6)
    assert task_device("openvino") == "cpu"


def test_blocks_keep_rows_in_order() -> None:
    sizes = [3, 0, 10, 1, 7, 2]
    values = iter(range(sum(sizes)))
    batches = [pa.record_batch({"n": [next(values) for _ in range(size)]}) for size in sizes]
    found = list(blocks(batches, 5))
    assert [block.num_rows for block in found] == [5, 5, 5, 5, 3]
    joined = [value for block in found for value in block.column("n").to_pylist()]
    assert joined == list(range(23))
    assert list(blocks([])) == []


def test_bytes_that_are_no_text_are_mended() -> None:
    raw = pa.array([b"ok", b"bad \xff", None], pa.binary())
    broken = pa.StringArray.from_buffers(3, *raw.buffers()[1:], raw.buffers()[0])
    assert as_text(broken).to_pylist() == ["ok", "bad \ufffd", None]
    assert as_text(pa.array(["a", None]).dictionary_encode()).to_pylist() == ["a", None]
