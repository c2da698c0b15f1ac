"""What can be read off a picture is what was drawn."""

import html
import json
import math
import re

import pytest

from pipelines.report.svg_charts import Curve, Distribution, chart, distributions, histogram, stack


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
