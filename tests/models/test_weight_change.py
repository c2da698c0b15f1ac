"""How far a model is from its start, of their files alone."""

from pathlib import Path

import numpy as np
import pytest

from pipelines.models import folder
from pipelines.models.folder import weight_change
from pipelines.models.weights import save_weights

GENERATOR = np.random.default_rng(5)


def model(path: Path, arrays: dict[str, np.ndarray], dense: np.ndarray) -> Path:
    (path / "2_Dense").mkdir(parents=True)
    save_weights(path / "model.safetensors", arrays)
    save_weights(path / "2_Dense" / "model.safetensors", {"linear.weight": dense})
    return path


def made(*shape: int) -> np.ndarray:
    return GENERATOR.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("at_a_time", [7, 2**20])
def test_it_is_relative_to_the_length_of_all_weights(tmp_path, monkeypatch, at_a_time) -> None:
    monkeypatch.setattr(folder, "_COMPARED", at_a_time)
    words, bias, dense = made(30, 4), made(5), made(4, 4)
    start = model(tmp_path / "start", {"words": words, "bias": bias}, dense)
    moved = {"words": words + 0.01, "bias": bias, "added": made(2)}
    trained = model(tmp_path / "model", moved, dense)
    (trained / "3_Other").mkdir()
    save_weights(trained / "3_Other" / "model.safetensors", {"weight": made(3)})
    length = sum(float((one.astype(float) ** 2).sum()) for one in (words, bias, dense))
    expected = np.sqrt(words.size) * 0.01 / np.sqrt(length)
    assert weight_change(trained, start) == pytest.approx(expected, rel=1e-4)
    assert weight_change(start, start) == 0.0
    (trained / "0_Transformer").mkdir()
    (trained / "model.safetensors").rename(trained / "0_Transformer" / "model.safetensors")
    assert weight_change(trained, start) == pytest.approx(expected, rel=1e-4)


def test_nothing_in_common_is_no_change_that_is_known(tmp_path) -> None:
    start = model(tmp_path / "start", {"words": made(3, 2)}, made(2, 2))
    other = model(tmp_path / "other", {"words": made(4, 2)}, made(3, 2))
    assert weight_change(other, start) is None
    (tmp_path / "empty").mkdir()
    assert weight_change(tmp_path / "empty", start) is None
