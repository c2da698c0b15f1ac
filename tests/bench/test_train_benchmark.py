"""Trainers that make steps when they are told."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpus_factory import small_config

from pipelines.errors import PipelineError
from pipelines.tokens.encoding import open_encoder
from pipelines.tokens.stage import SIDES
from pipelines.tokens.start import default_start
from pipelines.tokens.vocabulary import load_tokenizer
from pipelines_bench.train import Contender, _ratio, _trainer, computes_in_bf16
from pipelines_bench.trainers import ids_collator, token_ids


@pytest.mark.parametrize(
    "framework", ["torch", pytest.param("tensorflow", marks=pytest.mark.matrix)]
)
def test_a_trainer_makes_the_steps_that_are_ordered(prepared, framework):
    with _trainer(small_config(prepared), Contender("here", framework, "fp32")) as trainer:
        for steps in (3, 1, 2):
            trainer.order(steps)
            answer = trainer.answer()
            assert answer["steps"] == steps
            assert answer["cpu_seconds"] > 0
            assert answer["seconds"] > 0


@pytest.mark.slow
def test_their_trainer_gets_the_same_batches_from_ids_as_from_texts(tmp_path):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.data_collator import (
        SentenceTransformerDataCollator,
    )

    model = SentenceTransformer(str(default_start()), device="cpu")
    model.max_seq_length = 8
    anchors = ["a dog", "two dogs run along a beach in the sun", ""]
    texts = pa.table({"anchor": anchors, "positive": anchors[::-1]})
    encoder = open_encoder(load_tokenizer(default_start()), 8)
    encoded = {name: encoder.encode(texts[name].combine_chunks()).ids for name in SIDES}
    pq.write_table(pa.table(encoded), tmp_path / "part-0.parquet")
    ids = token_ids(tmp_path)
    expected = SentenceTransformerDataCollator(model.preprocess)(texts.to_pylist())
    found = ids_collator(model.tokenizer.pad_token_id)(ids.to_pylist())
    assert [*found] == [*expected]
    for name, values in expected.items():
        assert found[name] == values if name.endswith("modality") else found[name].equal(values)


def test_a_trainer_that_has_ended_is_named(tmp_path):
    nobody = Contender("nobody", "torch", "fp32")
    with (
        pytest.raises(PipelineError, match=r"the trainer nobody .* has ended"),
        _trainer(small_config(tmp_path), nobody) as trainer,
    ):
        trainer.order(1)
        trainer.answer()


@pytest.mark.parametrize(
    ("flags", "expected"),
    [("fma avx2", False), ("avx512_bf16 amx_tile", True), ("amx_bf16", True), ("asimd bf16", True)],
)
def test_a_cpu_without_the_instructions_is_known(tmp_path, flags, expected):
    information = tmp_path / "cpuinfo"
    information.write_text(f"processor : 0\nflags : fpu {flags}\n")
    assert computes_in_bf16(information) is expected
    assert not computes_in_bf16(tmp_path / "none")


def test_a_ratio_is_the_median_of_the_rounds():
    rates = {"ours": [2.0, 9.0, 4.0], "theirs": [1.0, 3.0, 1.0]}
    assert _ratio(rates, "ours", "theirs") == 3.0
    assert _ratio(rates, "ours", "nobody") is None
