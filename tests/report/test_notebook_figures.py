"""The figures for notebooks: what they show, as matplotlib has it."""

import numpy as np
import pytest

from pipelines.lanes.files import LaneManifest
from pipelines.report.notebook_figures import curves_figure, funnel_figure, map_figure, rows_figure

FUNNEL = [
    {"level": "rows", "kind": "in", "stage": "rows read", "rows": 10},
    {"level": "rows", "kind": "dropped", "reason": "too short", "rows": 3},
    {"level": "rows", "kind": "kept", "stage": "rows that give pairs", "rows": 7},
    {"level": "pairs", "kind": "in", "stage": "pairs made", "rows": 7},
    {"level": "pairs", "kind": "kept", "stage": "pairs for training", "rows": 7},
]


def labels_of(figure) -> list[str]:
    """Of the legend."""
    return [text.get_text() for text in figure.axes[0].get_legend().get_texts()]


def test_a_funnel_has_a_bar_for_each_line_and_what_is_lost_is_right_of_what_is_kept():
    figure = funnel_figure(FUNNEL)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["rows", "pairs"]
    spans = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in figure.axes[0].patches]
    assert spans == [
        pytest.approx((0.0, 1.0)),
        pytest.approx((0.7, 1.0)),
        pytest.approx((0.0, 0.7)),
    ]
    shown = [text.get_text() for text in figure.axes[0].texts]
    assert shown == ["10", "3", "7"]


def test_rows_are_as_long_as_their_buckets(prepared):
    manifest = LaneManifest.load(prepared / "lanes")
    (stairs,) = rows_figure(manifest).axes[0].patches
    assert len(stairs.get_data().values) == manifest.rows
    total = sum(segment.length * segment.rows for segment in manifest.segments)
    assert stairs.get_data().values.sum() == total


def test_later_curves_are_narrower_so_that_equal_ones_are_seen():
    figure = curves_figure({"local": ([1, 2], [3.0, 2.0]), "torch": ([1, 2], [3.0, 2.0])})
    first, second = figure.axes[0].lines
    assert first.get_linewidth() > second.get_linewidth()
    assert labels_of(figure) == ["local", "torch"]


def test_a_map_keeps_the_distances_of_what_lies_in_a_plane_and_leaves_out_empty_groups():
    places = np.random.default_rng(3).normal(size=(50, 2))
    turn, _ = np.linalg.qr(np.random.default_rng(5).normal(size=(16, 16)))
    vectors = places @ turn[:2]
    figure = map_figure(vectors, [[1, 4], []], {"asked for $5": vectors[7]})
    shown = np.asarray(figure.axes[0].collections[0].get_offsets())
    assert np.linalg.norm(shown[3] - shown[9]) == pytest.approx(
        np.linalg.norm(places[3] - places[9])
    )
    assert labels_of(figure) == ["a text", "group 1, 2 texts"]
    star = np.asarray(figure.axes[0].collections[-1].get_offsets())[0]
    assert star == pytest.approx(shown[7])
