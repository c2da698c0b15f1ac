"""Whole fine-tunes of folders of sentence-transformers: two workers as one process, and back."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tiny_checkpoints import FAMILIES, TEXTS, write_sentence_folder

import pipelines
from pipelines.files.locations import location
from pipelines.models.inference.embedder import load_embedder
from pipelines.runs.step_metrics import read_metrics_lines
from pipelines.settings import Config
from pipelines.settings.load import parse

library = pytest.importorskip("sentence_transformers")
pytest.importorskip("torch")

STEPS = 6
LORA = {"rank": 4, "export": "adapter"}
STARTS = [
    ("xlm-roberta", {}),
    ("modernbert", {}),
    ("qwen3", {"lora": LORA}),
]
WORDS = sorted({word for text in TEXTS for word in text.split()})


def write_pairs(path: Path) -> None:
    draw = np.random.default_rng(1)
    anchors = [" ".join(draw.choice(WORDS, 9)) for _ in range(120)]
    # A partner has some of the words of its anchor, which is what can be learned.
    partners = [" ".join(draw.permutation(text.split())[:6]) for text in anchors]
    pq.write_table(pa.table({"sentence1": anchors, "sentence2": partners}), path)


def job(tmp_path: Path, start: Path, encoder: dict, run: str, **training) -> Config:
    tree = {
        "corpus": {"format": "parquet", "inputs": [str(tmp_path / "pairs.parquet")]},
        "tokens": {"vocabulary": "start", "max_length": 16},
        "lanes": {"count": 2, "granule": 8},
        "encoder": {"start": str(start), **encoder},
        "training": {
            "framework": "torch",
            "max_steps": STEPS,
            "learning_rate": 0.01,
            "log_every": 1,
        },
        "evaluation": {"retrieval": False, "geometry": False},
        "prepared": {"folder": str(tmp_path / "prepared")},
        "run": {"folder": str(tmp_path / run)},
    }
    tree["corpus"] |= {"pairs": "columns", "evaluation_share": 0.0}
    # In bf16 a difference of the last digit of a sum is one of the third of a product.
    tree["training"] |= {"precision": "fp32", **training}
    return parse(tree)


def vectors_of_library(model: Path, adapter: Path | None = None) -> np.ndarray:
    loaded = library.SentenceTransformer(str(model), device="cpu")
    if adapter is not None:
        peft = pytest.importorskip("peft")
        loaded[0].auto_model = peft.PeftModel.from_pretrained(loaded[0].auto_model, str(adapter))
    return loaded.encode(list(TEXTS))


@pytest.mark.matrix
@pytest.mark.parametrize(("name", "encoder"), STARTS, ids=[name for name, _ in STARTS])
def test_two_workers_give_the_model_of_one_process(spark, tmp_path, name, encoder):
    write_pairs(tmp_path / "pairs.parquet")
    start = write_sentence_folder(tmp_path / "start", FAMILIES[name])
    alone = job(tmp_path, start, encoder, "alone", engine="local", workers=1)
    both = job(tmp_path, start, encoder, "both", engine="torch", workers=2)
    pipelines.prepare(alone)
    pipelines.train(alone)
    pipelines.train(both)

    losses, found = (
        [line["loss"] for line in read_metrics_lines(location(tmp_path / run))]
        for run in ("alone", "both")
    )
    assert len(losses) == STEPS
    np.testing.assert_allclose(found, losses, rtol=1e-4)

    model = tmp_path / "both" / "model"
    ours = load_embedder(model)(list(TEXTS))
    expected = load_embedder(tmp_path / "alone" / "model")(list(TEXTS))
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-4)
    np.testing.assert_allclose(ours, vectors_of_library(model), rtol=0, atol=1e-5)
    assert np.abs(ours - load_embedder(start)(list(TEXTS))).max() > 1e-2
    if "lora" in encoder:
        adapter = tmp_path / "both" / "adapter"
        np.testing.assert_allclose(ours, vectors_of_library(start, adapter), rtol=0, atol=1e-5)
