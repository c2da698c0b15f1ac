"""Granules that pass through the encoder as one sequence have the results of each alone."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from steppers import (
    DEEP,
    HF,
    MPNET,
    PROJECTED,
    QWEN3,
    SPEC,
    STATIC,
    TRIPLET,
    fields_of,
    granule,
    start_weights,
    stepper,
    work,
)
from torch.utils._python_dispatch import TorchDispatchMode

from pipelines.lanes.files import Granule, Side
from pipelines.models.bert.architecture import RobertaSpec
from pipelines.models.frameworks import torch_batch
from pipelines.models.hf.architecture import HfSpec, config_text
from pipelines.runs.checkpoint import load_checkpoint, save_checkpoint, save_frozen
from pipelines.settings import TrainingSettings
from pipelines.training.steppers.base import Texts
from pipelines.training.steppers.packing import (
    GPU_TOKENS,
    default_tokens,
    forwards,
    packs,
    packs_by_width,
)

pytestmark = pytest.mark.slow

ROBERTA = RobertaSpec(vocabulary=50, layers=2, hidden=16, heads=2, intermediate=32, positions=20)
MODERNBERT = HfSpec(
    config=config_text(
        {
            "model_type": "modernbert",
            "vocab_size": 50,
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "global_attn_every_n_layers": 2,
            "local_attention": 4,
            "max_position_embeddings": 32,
            "pad_token_id": 0,
            "bos_token_id": 2,
            "eos_token_id": 3,
            "cls_token_id": 2,
            "sep_token_id": 3,
        }
    ),
    vocabulary=50,
    hidden=16,
    max_length=16,
)
KINDS = {
    "bert": (SPEC, {}),
    "deep": (DEEP, {}),
    "projected": (PROJECTED, {}),
    "roberta": (ROBERTA, {}),
    "mpnet": (MPNET, {}),
    "static": (STATIC, {}),
    "frozen": (DEEP, {"freeze": {"embeddings": True, "layers": 2}}),
    "lora": (SPEC, {"lora": {"rank": 2}}),
    "modernbert": (MODERNBERT, {}),
    "llama": (HF, {}),
    "qwen3 by lora": (QWEN3, {"lora": {"rank": 2}}),
}
OWN_NOISE = ("modernbert", "llama", "qwen3 by lora")
"""Their library draws the noise on all texts of a call."""
UNCLIPPED = {"clip_norm": 0.0}
ALL = 2**30


@pytest.fixture
def form(request, monkeypatch):
    """How a CPU computes, or how a GPU does: attention in one rectangle, noise by a hash."""
    if request.param == "at once":
        monkeypatch.setattr(torch_batch, "BY_SEGMENT", frozenset())
    return request.param


FORMS = ("by segment", "at once")
with_forms = pytest.mark.parametrize("form", FORMS, indirect=True)


def uneven(number: int) -> Granule:
    """A granule whose first side is short, and whose others are long."""
    generator = np.random.default_rng(number)
    sides = {}
    for name, longest in zip(TRIPLET, (4, 16, 11), strict=True):
        lengths = generator.integers(2, longest + 1, 6).astype(np.int32)
        ids = generator.integers(4, 50, (6, longest)).astype(np.int32)
        # Tokens without a place, of RoBERTa, at some ends.
        ids[2, lengths[2] - 1] = 1
        sides[name] = Side(ids * (np.arange(longest) < lengths[:, None]), lengths)
    return replace(granule(number, TRIPLET), **fields_of(sides))


GRANULES = [uneven(number) for number in range(4)]


def gradients(kind, training, enough, objective=None, parts=GRANULES):
    spec, encoder = KINDS[kind]
    each = stepper(
        "torch", objective, UNCLIPPED | training, sides=TRIPLET, spec=spec, encoder=encoder
    )
    if enough is not None:
        each._enough = enough
    start = each.checkpoint(0).weights
    # LoRA's second factors begin as zeros, and the first ones then have no gradient.
    lively = {
        name: value + np.float32(0.05) if "lora_B" in name else value
        for name, value in start.items()
    }
    return each.gradients(work(0, *parts), lively)


def assert_same(found, expected, share=2e-6):
    assert found[0] == pytest.approx(expected[0], rel=1e-6)
    assert found[1].keys() == expected[1].keys()
    largest = max(np.abs(gradient).max() for gradient in expected[1].values())
    for name, gradient in expected[1].items():
        np.testing.assert_allclose(
            found[1][name], gradient, rtol=1e-5, atol=share * largest, err_msg=name
        )


def cases():
    """Dropout where noise is the package's own; all other combinations are marked.

    So is the encoder of which that with a projection has all too. Of other families than BERT one
    has each form in turn.
    """
    for place, kind in enumerate(KINDS):
        for dropout, negatives, form in product((0.0, 0.2), ("granule", "step"), FORMS):
            usual = (dropout == 0) == (kind in OWN_NOISE)
            usual &= kind == "bert" or (negatives == "granule" and form == FORMS[place % 2])
            usual &= kind != "deep"
            marks = () if usual else pytest.mark.matrix
            yield pytest.param(kind, dropout, negatives, form, marks=marks)


@pytest.mark.parametrize(("kind", "dropout", "negatives", "form"), list(cases()), indirect=["form"])
def test_packed_granules_have_the_results_of_each_alone(kind, form, dropout, negatives):
    training, objective = {"dropout": dropout}, {"negatives": negatives}
    alone = gradients(kind, training, 1, objective)
    for enough in (ALL, 100):
        assert_same(gradients(kind, training, enough, objective), alone)
    if dropout and kind in OWN_NOISE:
        return
    # One of three sides at once; two granules at once, a few texts, one text.
    for most in (6 * 16, *((2 * 6 * 31, 30, 1) if kind == "bert" else ())):
        limited = training | {"tokens_per_forward": most}
        assert_same(gradients(kind, limited, None, objective), alone)


@pytest.mark.parametrize(
    "objective", [{"dimensions": [4, 8]}, {"name": "cosine_regression"}], ids=str
)
@with_forms
def test_other_losses_of_packed_granules(form, objective):
    sides, parts = ("anchor", "positive"), [granule(number) for number in range(4)]
    found = []
    for enough in (1, ALL):
        each = stepper("torch", objective, UNCLIPPED | {"dropout": 0.1}, sides=sides)
        each._enough = enough
        found.append(each.gradients(work(0, *parts), start_weights(SPEC)))
    assert_same(found[1], found[0])


@with_forms
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=() if kind in ("bert", "mpnet") else pytest.mark.matrix)
        for kind in KINDS
    ],
)
def test_workers_that_share_a_step_add_up_to_one(kind, form):
    training = {"dropout": 0.2, "activation_checkpointing": kind != "static"}
    loss, expected = gradients(kind, training, ALL)
    halves = [gradients(kind, training, ALL, parts=GRANULES[part::2]) for part in range(2)]
    found = {name: (halves[0][1][name] + halves[1][1][name]) / 2 for name in expected}
    assert_same(((halves[0][0] + halves[1][0]) / 2, found), (loss, expected))


@with_forms
def test_a_run_goes_on_with_other_limits(form, tmp_path):
    def steps(each, first, last):
        return [each.step(work(i, *GRANULES), 1e-3) for i in range(first, last)]

    def new(training, **more):
        made = {"dropout": 0.2} | training
        return stepper("torch", {}, made, sides=TRIPLET, spec=MPNET, **more)

    expected = steps(new({}), 0, 4)
    first = new({"tokens_per_forward": 200})
    steps(first, 0, 2)
    save_frozen(tmp_path, first.checkpoint(0).frozen)
    save_checkpoint(tmp_path, first.checkpoint(2), keep=2)
    for limit in ({}, {"tokens_per_forward": 40}):
        second = new(limit, checkpoint=load_checkpoint(tmp_path, 2))
        np.testing.assert_allclose(steps(second, 2, 4), expected[2:], rtol=2e-6)


class Counter(TorchDispatchMode):
    """Counts the operations that compute: on a GPU each would start a kernel."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        (first, *_) = func._schema.returns or (None,)
        is_view = first is not None and first.alias_info and not first.alias_info.is_write
        self.count += not is_view and "empty" not in str(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("form", ["at once"], indirect=True)
@pytest.mark.parametrize("kind", ["bert", "roberta", "mpnet", "static"])
def test_the_operations_of_the_encoder_do_not_grow_with_the_granules(kind, form):
    each = stepper("torch", {}, {}, sides=TRIPLET, spec=KINDS[kind][0])
    each._enough = ALL
    several = [uneven(number) for number in range(8)]
    (objective,) = each._objectives

    def encode(count):
        for weight in each._weights.values():
            weight.grad = None
        texts = each._texts(work(0, *several[:count]), objective)
        embedded = each._embed([side for sides in texts for side in sides])
        slopes = [torch.empty_like(side).detach() for side in embedded]
        with Counter() as counter:
            torch.autograd.backward(embedded, slopes)
        return counter.count

    def step(count):
        with Counter() as counter:
            each.step(work(0, *several[:count]), 1e-3)
        return counter.count

    assert encode(8) == encode(2)
    step(2)
    operations = {count: step(count) for count in (2, 4, 8)}
    # Each granule has a loss of its own.
    of_loss = (operations[4] - operations[2]) / 2
    assert operations[8] - operations[2] == 6 * of_loss
    assert of_loss <= 10
    # Each alone.
    each._enough = 1
    assert step(8) > 4 * operations[8] / 2


@given(
    st.lists(st.lists(st.integers(1, 30), min_size=2, max_size=2), min_size=1, max_size=8),
    st.integers(1, 9),
    st.one_of(st.none(), st.integers(1, 400)),
    st.integers(1, 1000),
)
def test_forwards_have_all_texts_in_order_within_their_limits(widths, texts, most, enough):
    granules = [
        [
            Texts(
                place,
                np.arange(texts * 30, dtype=np.int32).reshape(texts, 30) + 1000 * number,
                np.full(texts, width, np.int32),
                (number, place),
            )
            for place, width in enumerate(of_sides)
        ]
        for number, of_sides in enumerate(widths)
    ]
    found = list(forwards(granules, np.array(widths), most, enough))
    assert [number for one in found for number in one.granules] == list(range(len(widths)))
    for one in found:
        several = [side for number in one.granules for side in granules[number]]
        size = sum(texts * side.width for side in several)
        if len(one.batches) == 1:
            assert one.batches[0] == several
            assert len(one.granules) == 1 or size <= enough
            continue
        assert most is not None
        assert size > most
        parts = [part for batch in one.batches for part in batch]
        for side in several:
            of_side = [part for part in parts if part.side == side.side]
            joined = np.concatenate([part.token_ids for part in of_side])
            np.testing.assert_array_equal(joined, side.token_ids)
            firsts = [part.within.texts for part in of_side]
            assert firsts == sorted(set(firsts))
            # Each has as many tokens.
            tokens = [part.within.tokens for part in of_side]
            assert tokens == [first * side.width for first in firsts]
            assert all(len(part.lengths) * side.width <= max(most, side.width) for part in of_side)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=20), st.integers(1, 300))
def test_packs_have_each_text_once(widths, enough):
    batch = [
        Texts(0, np.ones((3, width), np.int32), np.full(3, width, np.int32), (1, 2))
        for width in widths
    ]
    in_order = packs(batch, enough)
    assert [place for pack in in_order for place in pack] == list(range(len(widths)))
    by_width = packs_by_width(batch, enough)
    assert sorted(place for pack in by_width for place in pack) == list(range(len(widths)))
    for pack in in_order:
        assert len(pack) == 1 or 3 * sum(widths[place] for place in pack) <= enough
    for pack in by_width:
        tokens = 3 * sum(widths[place] for place in pack)
        rectangle = 3 * len(pack) * max(widths[place] for place in pack)
        assert len(pack) == 1 or rectangle <= min(enough, 1.125 * tokens)


def test_packs_are_the_same_on_workers_with_other_texts():
    batches = [
        [
            Texts(0, np.ones((3, width), np.int32), np.full(3, width, np.int32), (1, 2), reach=most)
            for width, most in zip(widths, (5, 6, 30, 31), strict=True)
        ]
        for widths in ((5, 6, 30, 31), (1, 6, 7, 30))
    ]
    for form, expected in ((packs, [[0, 1], [2], [3]]), (packs_by_width, [[0, 1], [2, 3]])):
        found = [form(batch, 100 if form is packs else 1000) for batch in batches]
        assert found == [expected, expected]


def test_tokens_of_a_forward_pass_follow_from_the_memory():
    gigabytes, training = 2**30, TrainingSettings(precision="bf16")
    small, base = (384, 6), (768, 12)
    assert default_tokens(*small, training, None) == 2730
    assert default_tokens(*small, training, 80 * gigabytes) == GPU_TOKENS
    few = default_tokens(*base, training, 16 * gigabytes)
    assert 4_000 < few < 8_192
    checkpointed = training.model_copy(update={"activation_checkpointing": True})
    assert default_tokens(*base, checkpointed, 16 * gigabytes) > 5 * few
    exact = training.model_copy(update={"precision": "fp32"})
    assert default_tokens(*base, exact, 16 * gigabytes) == few // 2
