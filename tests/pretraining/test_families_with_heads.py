"""Objectives that reconstruct texts on encoders of every family that has what they need."""

from dataclasses import replace

import numpy as np
import pytest
from reconstruction_cases import lively, loss_and_gradients, noised, texts
from steppers import IDS
from tiny_checkpoints import FAMILIES, write_plain

from pipelines.catalog import LOSSES
from pipelines.errors import InputError
from pipelines.lanes.files import Side
from pipelines.models.folder import read_encoder
from pipelines.models.weights import WORDS
from pipelines.pretraining.start import objective_weights
from pipelines.settings.load import load

VOCABULARY = 48
KNOWN = replace(IDS, vocabulary=VOCABULARY)
OF_BERT = ["bert", "roberta", "distilbert", "electra", "mpnet"]
CASES = [
    *(("mlm", kind) for kind in (*OF_BERT, "modernbert")),
    *(("tsdae", kind) for kind in OF_BERT),
    *(("retromae", kind) for kind in OF_BERT if kind != "electra"),
]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_every_weight_has_the_gradient_of_the_loss(name, kind, tmp_path):
    """A small step along it lowers the loss by its square."""
    spec, weights = read_encoder(write_plain(tmp_path / "start", FAMILIES[kind]))
    own = lively(dict(LOSSES.load(name).token_loss.shapes(spec)), 2)
    side = texts()
    side = Side(np.where(side.token_ids >= VOCABULARY, 7, side.token_ids), side.lengths)
    inputs = noised(name, side, ids=KNOWN)

    def value(sign: float, *slopes) -> float:
        moved = (
            {key: one + sign * size / norm * slope[key] for key, one in part.items()}
            for part, slope in zip((weights, own), slopes, strict=True)
        )
        return loss_and_gradients(name, inputs, *moved, spec)[0]

    _, at_encoder, at_own = loss_and_gradients(name, inputs, weights, own, spec)
    slopes = (at_encoder, at_own)
    squares = [(one.astype(np.float64) ** 2).sum() for part in slopes for one in part.values()]
    norm, size = np.sqrt(sum(squares)), 1e-3
    slope = (value(1, *slopes) - value(-1, *slopes)) / (2 * size)
    assert slope == pytest.approx(norm, rel=0.02)
    # All words are predicted from, and those of the texts are read.
    assert at_encoder[WORDS].any(axis=1).all()


def test_an_architecture_without_a_decoder_is_refused(tmp_path):
    folder = write_plain(tmp_path / "start", FAMILIES["modernbert"])
    given = ["corpus.pairs=single", "training.framework=torch", "training.engine=torch"]
    for name in ("tsdae", "retromae"):
        config = load(None, [*given, f"objective.name={name}", f"encoder.start={folder}"])
        with pytest.raises(InputError, match=rf"^objective\.name: `{name}` cannot train archit"):
            objective_weights(config, read_encoder(folder)[0])
