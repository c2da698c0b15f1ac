"""How long a text may be, for a model and for its training."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.errors import InputError
from pipelines.models.spec import UNLIMITED
from pipelines.models.start import model_length, reading_limit
from pipelines.settings.load import parse
from pipelines.tokens.summary import WHOLE_SHARE, told_cuts, training_length

RANDOM = {"start": "random"}


@pytest.mark.parametrize(
    ("encoder", "told", "model", "training"),
    [
        ({}, None, 256, 256),
        ({}, 64, 256, 64),
        ({}, 300, 300, 300),
        ({"max_length": 128}, None, 128, 128),
        ({"max_length": 512}, 64, 512, 64),
        (RANDOM, None, 512, 512),
        (RANDOM, 32, 32, 32),
        (RANDOM | {"max_length": 128}, 32, 128, 32),
        (RANDOM | {"kind": "static"}, None, UNLIMITED, 512),
        (RANDOM | {"kind": "static", "max_length": 99}, None, 99, 99),
    ],
)
def test_a_model_keeps_its_length_whatever_it_is_trained_on(encoder, told, model, training) -> None:
    config = parse({"encoder": encoder, "tokens": {"max_length": told}})
    assert (model_length(config), reading_limit(config)) == (model, training)


def test_what_contradicts_itself_is_refused() -> None:
    tree = {"encoder": {"max_length": 64}, "tokens": {"max_length": 65}}
    with pytest.raises(InputError, match=r"^tokens.max_length: 65 is more .* Set it to at most 64"):
        parse(tree)
    with pytest.raises(InputError, match=r"^encoder.max_length: 513 is .*\. Set it to at most 512"):
        model_length(parse({"encoder": {"max_length": 513}}))


@given(
    lengths=st.lists(st.integers(3, 900), min_size=1, max_size=300),
    most=st.integers(8, 512),
    bucket=st.integers(1, 32),
)
def test_it_is_the_shortest_that_leaves_most_whole(lengths, most, bucket) -> None:
    chosen = training_length(np.bincount(lengths), most, bucket)
    share = np.mean([length <= chosen for length in lengths])
    assert chosen == most or (chosen % bucket == 0 and share >= WHOLE_SHARE)
    shorter = chosen - bucket
    if chosen < most and shorter >= 8:
        assert np.mean([length <= shorter for length in lengths]) < WHOLE_SHARE


def test_one_long_text_does_not_decide() -> None:
    lengths = [20] * 200
    assert training_length(np.bincount([*lengths, 500]), 512, 8) == 24
    assert training_length(np.bincount([*lengths, *[500] * 3]), 512, 8) == 504


def test_the_shares_are_told() -> None:
    manifest = {"max_length": 64, "texts": 4000, "tokens": 90, "cut": 0, "dropped": 0}
    assert told_cuts(manifest) == "texts of up to 64 tokens, none of 4,000 truncated"
    cut = manifest | {"cut": 1, "dropped": 10}
    assert told_cuts(cut) == (
        "texts of up to 64 tokens, 1 of 4,000 (less than 0.1 %) truncated,"
        " 10.0 % of the tokens dropped"
    )
