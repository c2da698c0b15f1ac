"""What the pictures say beside their lines, and what can be read off them."""

import html
import json
import math
import re

import pytest

from pipelines.report.svg_charts import Curve, Distribution, chart, distributions, histogram, stack


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


def readings(picture: str) -> dict:
    return json.loads(html.unescape(re.search(r'data-values="([^"]*)"', picture)[1]))


def test_the_values_of_curves_and_where_they_are_on_the_picture():
    curves = [Curve([2.0, math.nan, 1.23456789], label="<a> & \"b\" 'c'"), Curve([0.0, 1.0, 4.0])]
    picture = chart("a", [0, 5.4, 10], curves)
    told = readings(picture)
    assert told["places"] == [0, 5, 10]
    assert [one["values"] for one in told["series"]] == [[2, None, 1.2346], [0, 1, 4]]
    assert [one["label"] for one in told["series"]] == ["<a> & \"b\" 'c'", ""]
    assert told["series"][0]["colour"] == "var(--blue)"
    left, top, right, bottom = told["area"]
    # The last point of the second curve, as matplotlib has put it.
    path = re.findall(r'<path d="(M [^"]*)" clip-path', picture)[-1]
    x, y = map(float, path.split()[-2:])
    low, high = told["x"]
    assert left + (right - left) * (10 - low) / (high - low) == pytest.approx(x, abs=0.2)
    low, high = told["y"]
    assert bottom - (bottom - top) * (4 - low) / (high - low) == pytest.approx(y, abs=0.2)


def test_where_nothing_can_be_pointed_at_the_ends_are_told():
    curves = [Curve([2.0, 1.5, 1.0], label="loss"), Curve([math.nan] * 3, label="none")]
    picture = chart("Loss", [1, 2, 3000], curves, shares=True)
    assert "<title>Loss. loss: 200 % at 1, 100 % at 3,000</title>" in picture


def test_curves_without_names_are_summed_up():
    curves = [Curve([1.0, math.nan, 3.0]), Curve([2.0, math.nan, 1.0]), Curve([1.5, math.nan, 9.0])]
    told = readings(chart("a", [1, 2, 3], curves))["series"]
    assert {one["label"]: one["values"] for one in told} == {
        "lowest": [1, None, 1],
        "highest": [2, None, 9],
    }


def test_curves_of_other_steps_have_places_of_their_own():
    curves = [Curve([1.0, 2.0], steps=[1, 2]), Curve([3.0], label="b", steps=[9])]
    told = readings(chart("a", [], curves))
    assert "places" not in told
    assert {one["label"]: one["places"] for one in told["series"]} == {"": [1, 2], "b": [9]}


def test_layers_bars_and_shapes_can_be_read_too():
    layers = {"low": ([0.25, 0.5], "#1d4ed8"), "high": ([0.75, 0.5], "#c2410c")}
    told = readings(stack("a", [1, 2], layers))
    assert [one["label"] for one in told["series"]] == ["high", "low"]
    assert (told["shares"], told["marked"]) == (True, False)
    bars = readings(histogram("a", {1: 4, 3: 2}, [], labels=("tokens", "rows"), edge_label="b"))
    assert bars["series"][0]["values"] == [0, 4, 0, 2]
    shape = Distribution([0.1, 0.1, 0.9], "#1d4ed8", "pairs")
    spread = readings(distributions("a", [shape], [0, 0.5, 1], label="cosine"))
    assert spread["places"] == [0.25, 0.75]
    assert spread["series"][0]["values"] == [0.66667, 0.33333]
