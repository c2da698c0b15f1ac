"""What is counted: pairs that are the same everywhere, and bytes of a step."""

import numpy as np

from pipelines_bench.counts import MirroredPair, made_up_pairs


def test_the_pairs_are_the_same_each_time_and_all_unlike():
    pairs = made_up_pairs(200)
    assert pairs == made_up_pairs(200)
    assert len({text for pair in pairs for text in pair}) == 400


def test_a_mirrored_pair_counts_what_it_is_given():
    pair = MirroredPair()
    tensor = np.ones((4, 2), np.float32)
    assert pair.all_reduce_mean([tensor, tensor])[0] is tensor
    np.testing.assert_array_equal(pair.all_gather(tensor), np.ones((8, 2)))
    np.testing.assert_array_equal(pair.reduce_scatter(tensor), np.full((2, 2), 2))
    assert pair.sent == {"gathered": 32, "averaged": 64}
