"""Losses on a teacher's vectors, against their formulas."""

import numpy as np
import pytest
import torch
from steppers import EACH_FRAMEWORK

from pipelines.catalog import LOSSES
from pipelines.errors import InputError
from pipelines.settings.objective import objective

EXAMPLES = 5


def unit(*shape, seed):
    found = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    return found / np.linalg.norm(found, axis=-1, keepdims=True)


def value(framework, name, sides, teacher, **keys):
    form = LOSSES.load(name).form(framework)
    if framework == "torch":
        sides, teacher = ([torch.from_numpy(side) for side in one] for one in (sides, teacher))
    return float(form(list(sides), list(teacher), objective(name, **keys)))


@pytest.mark.parametrize("framework", EACH_FRAMEWORK)
@pytest.mark.parametrize("count", [1, 3])
def test_similarities_of_all_texts_are_those_of_a_teacher_of_any_width(framework, count):
    sides, teacher = unit(count, EXAMPLES, 8, seed=1), unit(count, EXAMPLES, 3, seed=2)
    own, wanted = sides.reshape(-1, 8), teacher.reshape(-1, 3)
    texts = len(own)
    pairs = [(i, j) for i in range(texts) for j in range(texts) if i != j]
    expected = np.mean([(own[i] @ own[j] - wanted[i] @ wanted[j]) ** 2 for i, j in pairs])
    found = value(framework, "similarity_distillation", sides, teacher)
    assert found == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("framework", EACH_FRAMEWORK)
def test_a_wider_teacher_is_cut_and_scaled_again(framework):
    sides, teacher = unit(2, EXAMPLES, 3, seed=1), unit(2, EXAMPLES, 8, seed=2)
    cut = teacher[..., :3] / np.linalg.norm(teacher[..., :3], axis=-1, keepdims=True)
    expected = 1 - (sides * cut).sum(axis=-1).mean()
    found = value(framework, "embedding_distillation", sides, teacher)
    assert found == pytest.approx(expected, rel=1e-4)


def test_a_teacher_that_is_too_narrow_is_refused():
    taught = objective("embedding_distillation")
    taught.check_width(8, 8)
    told = r"^objective\.name: the teacher's vectors have 6 numbers, the encoder's embeddings 8, s"
    with pytest.raises(InputError, match=told):
        taught.check_width(8, 6)
    objective("similarity_distillation").check_width(8, 6)
