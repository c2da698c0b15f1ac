"""How workers are laid out, and which layouts are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.engines.base import check_fit, load_engine
from pipelines.errors import InputError
from pipelines.settings.checks import check_divided
from pipelines.settings.load import parse
from pipelines.settings.training import Place, Placement, layers_of_stage

COUNTS = st.integers(1, 5)
PLACEMENTS = st.builds(Placement, replicas=COUNTS, stages=COUNTS, members=COUNTS)


@given(PLACEMENTS)
def test_each_rank_has_a_place_of_its_own(placement):
    places = [placement.place(rank) for rank in range(placement.workers)]
    assert len(set(places)) == placement.workers
    assert [placement.rank(place) for place in places] == list(range(placement.workers))
    assert max(places) == Place(placement.replicas - 1, placement.stages - 1, placement.members - 1)


@given(PLACEMENTS, st.data())
def test_groups_share_what_their_names_say(placement, data):
    rank = data.draw(st.integers(0, placement.workers - 1))
    replica, stage, member = placement.place(rank)

    def places(ranks):
        return [placement.place(one) for one in ranks]

    everyone = places(range(placement.workers))
    assert places(placement.member_ranks(rank)) == [
        one for one in everyone if one[:2] == (replica, stage)
    ]
    assert places(placement.stage_ranks(rank)) == [
        one for one in everyone if (one.replica, one.member) == (replica, member)
    ]
    assert places(placement.copy_ranks(rank)) == [
        one for one in everyone if one[1:] == (stage, member)
    ]


@given(st.integers(1, 40), st.data())
def test_stages_have_each_layer_once_and_about_as_many(layers, data):
    stages = data.draw(st.integers(1, layers))
    parts = [layers_of_stage(layers, stages, stage) for stage in range(stages)]
    assert [layer for part in parts for layer in part] == list(range(layers))
    sizes = [len(part) for part in parts]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1


def training(**settings):
    return parse({"training": {"engine": "torch", "framework": "torch"} | settings}).training


def test_members_stand_beside_one_another():
    laid_out = training(workers=8, model_parallel=2, pipeline_parallel=2, granules_per_step=2)
    assert laid_out.placement == Placement(replicas=2, stages=2, members=2)
    assert str(laid_out.placement.place(5)) == "replica 1, stage 0, tensor rank 1"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"workers": 3, "model_parallel": 2, "granules_per_step": 3},
            r"training\.workers: 3 workers make no whole replicas of 2 x 1 .*\. Use a multiple of",
        ),
        (
            {"workers": 4, "model_parallel": 2, "granules_per_step": 3},
            r"granules_per_step: 2 replicas cannot share 3 granules\. Set it to a multiple of 2",
        ),
        (
            {"workers": 3, "granules_per_step": 4},
            r"granules_per_step: 3 workers cannot share 4 granules\. Set it to a multiple of 3",
        ),
    ],
)
def test_layouts_that_cannot_be_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        check_divided(training(**settings))


def test_an_engine_that_does_not_divide_says_so_first():
    config = parse({"training": {"engine": "horovod", "workers": 3, "model_parallel": 2}})
    with pytest.raises(InputError, match=r"model_parallel: engine horovod does not know it"):
        check_fit(load_engine("horovod"), config)
