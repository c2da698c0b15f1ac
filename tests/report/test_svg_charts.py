"""What the pictures say beside their lines."""

import re

import pytest

from pipelines.report.svg_charts import Curve, chart


def words_of(picture: str) -> list[str]:
    return [" ".join(found.split()) for found in re.findall(r"<text[^>]*>([^<]*)</text>", picture)]


@pytest.mark.parametrize(
    "values", [[-3.5606, -3.5581, -3.5553], [0.0, 2e-5, 1e-5], [41.0, 48.5, 63.25]]
)
def test_no_two_ticks_look_alike(values):
    words = words_of(chart("a", [0, 60, 120], [Curve(values)], from_zero=False))
    vertical = words[words.index("step") + 1 :]
    assert len(vertical) >= 3
    assert len(vertical) == len(set(vertical))


@pytest.mark.parametrize("steps", [[3], [3, 4], [10, 19], [1, 2, 3]])
def test_steps_are_whole_and_none_is_there_twice(steps):
    words = words_of(chart("a", steps, [Curve([float(step) for step in steps])]))
    horizontal = words[: words.index("step")]
    assert horizontal
    assert len(horizontal) == len(set(horizontal))
    assert all(word.isdigit() for word in horizontal)


@pytest.mark.parametrize(("count", "is_line"), [(1, False), (2, False), (3, True)])
def test_two_points_are_no_curve(count, is_line):
    steps = list(range(count))
    picture = chart("a", steps, [Curve([1.0] * count)])
    assert ("stroke: var(--blue); stroke-width: 1.8" in picture) == is_line
    assert ("<use" in picture.partition("</title>")[2].partition("var(--blue)")[2]) != is_line


def left_of_the_axes(picture: str) -> float:
    """Share of the width that is left of the first curve."""
    width = float(re.search(r'viewBox="0 0 ([0-9.]+)', picture)[1])
    starts = re.findall(r'<path d="M ([0-9.]+) [0-9.]+ \nL [0-9.]+ [0-9.]+ \nL', picture)
    return min(map(float, starts)) / width


def test_a_long_legend_takes_two_rows_and_leaves_the_axes_their_width():
    names = ["nDCG@10", "MRR@10", "Recall@1", "Recall@10"]
    steps = [0, 60, 120]
    few = chart("a", steps, [Curve([30, 31, 30], label=names[0])])
    many = chart("a", steps, [Curve([30, 31, 30], label=name) for name in names])
    assert set(names) <= set(words_of(many))
    assert left_of_the_axes(many) == pytest.approx(left_of_the_axes(few), abs=0.02)
