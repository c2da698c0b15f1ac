"""The significance of a difference between two models: an interval, and a test of no difference.

Both models are measured on the same queries (or pairs of texts). Queries of one package, document
or thread gain and lose together, so both methods draw and flip whole groups. Without known groups,
each query is a group.

- The interval is a paired bootstrap over groups: each resample, with replacement, gives a
  difference of the figure. For queries like these, the true difference lies in the interval with a
  probability of :data:`CONFIDENCE`.
- The test flips the sign of each group's difference, as a model of equal quality might. It is exact
  where few groups differ; there a bootstrap is too sure.

Sources: Efron and Tibshirani, "An Introduction to the Bootstrap", 1993; for retrieval Smucker,
Allan and Carterette, "A comparison of statistical significance tests for information retrieval
evaluation", CIKM 2007; for groups Field and Welsh, "Bootstrapping clustered data", JRSS B 69(3),
2007. The percentiles are those of Hesterberg, "What teachers should know about the bootstrap", The
American Statistician 69(4), 2015 ("expanded percentile"). Plain ones make intervals of a few dozen
queries too narrow.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np

from pipelines.files import storage
from pipelines.files.locations import Location, arrow_source


# `eq=False`: arrays have no single truth value, so a generated `__eq__` would raise.
@dataclass(frozen=True, eq=False)
class Observations:
    """A model's numbers for each item of a set.

    Attributes:
        items: [items], int64: query ids, or hashes of pairs of texts; in the same order for all
            models.
        values: By name, [items], float64: figures of each query times 100, or the cosine and the
            score of each pair.
        groups: [items], int64: equal for items that gain and lose together, such as the queries of
            one package or thread; None where each item is a group.
    """

    items: np.ndarray
    values: Mapping[str, np.ndarray]
    groups: np.ndarray | None = None


class Observed(Protocol):
    """Anything with observations of a model on a set."""

    @property
    def observations(self) -> Observations:
        """Return the observations, item by item."""
        ...


_COLUMNS = ("set", "name", "item", "value")
GROUP = "group"
"""A column, missing in tables of earlier releases; null where an item is a group by itself."""


def write_observations(path: Location, by_set: Mapping[str, Observations]) -> None:
    """Write observations by set as Parquet, whole or not at all.

    Columns are `set` and `name` (strings), `item` (int64), `value` (double) and `group` (int64).
    """
    # Not above: a server that asks for the model in service needs no pyarrow.
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = [
        pa.table(
            {
                "set": pa.array([name] * len(found.items), pa.string()),
                "name": pa.array([value] * len(found.items), pa.string()),
                "item": pa.array(found.items, pa.int64()),
                "value": pa.array(numbers, pa.float64()),
                GROUP: pa.nulls(len(found.items), pa.int64())
                if found.groups is None
                else pa.array(found.groups, pa.int64()),
            }
        )
        for name, found in by_set.items()
        for value, numbers in found.values.items()
    ]
    empty = pa.table(dict.fromkeys(_COLUMNS[:2], pa.array([], pa.string())))
    with storage.built_file(path) as aside:
        pq.write_table(pa.concat_tables(tables) if tables else empty, aside, compression="zstd")


def digest_observations(path: Location) -> str | None:
    """Return the SHA-256 of the file: it ties figures and observations to one evaluation."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(cast(Any, file), "sha256").hexdigest()


def read_observations(path: Location) -> dict[str, Observations]:
    """Read a table of :func:`write_observations`, by set; an empty dict where there is no file."""
    if not path.is_file():
        return {}
    import pyarrow.parquet as pq

    table = pq.read_table(arrow_source(path))
    if table.num_rows == 0:
        return {}
    rows: dict[str, dict[str, list[int]]] = {}
    sets, names = (table.column(name).to_pylist() for name in _COLUMNS[:2])
    for row, (of_set, name) in enumerate(zip(sets, names, strict=True)):
        rows.setdefault(of_set, {}).setdefault(name, []).append(row)
    values = table.column("value").to_numpy()
    found = {}
    for of_set, by_name in rows.items():
        of_items = table.take(next(iter(by_name.values())))
        groups = of_items.column(GROUP) if GROUP in table.column_names else None
        found[of_set] = Observations(
            of_items.column("item").to_numpy(),
            {name: values[of_name] for name, of_name in by_name.items()},
            None if groups is None or groups.null_count else groups.to_numpy(),
        )
    return found


CONFIDENCE = 0.95
BETTER, WORSE, NOT_SIGNIFICANT = "better", "worse", "not significant"
FEWEST_ITEMS = 10
"""With fewer, the estimate of the spread is too poor."""
FEWEST_DIFFERING = 6
"""Groups that differ: of five, all in one direction, a test gives 2/32, which is no evidence."""
UNSEEN = 0.005
"""Points: a difference below two decimals counts as none, however sure."""
POWER = 0.8
"""The power (probability of detection) at the smallest detectable difference."""
_RESAMPLES, _FEWEST_RESAMPLES = 9999, 1999
_DRAWN_AT_A_TIME = 2_000_000
_DRAWN = 200_000_000
"""Draws of all resamples together: a second or two, however many queries there are."""
# A correlation takes as long as thousands of means.
_MOST_OF_PAIRS, _FEWEST_OF_PAIRS = 999, 200
_DRAWN_OF_PAIRS = 5_000_000
# 16,384 flips of means, 512 of correlations.
_EXACT, _EXACT_OF_PAIRS = 14, 9
"""Up to so many differing groups, the test tries all flips."""
_EQUAL = 1e-9
# Two evaluations of one model give cosines that differ in their last bits.
_EQUAL_COSINES = 1e-6
# Fixed, so that a repeated evaluation gives the same verdict.
_SEED = 17

Measure = Callable[[np.ndarray, np.ndarray], Mapping[str, float]]
"""Figures of the cosines of pairs and of their human scores."""


@dataclass(frozen=True)
class Interval:
    """The interval of a figure's difference between two models, in points.

    Attributes:
        detectable: The smallest true difference that so many items of such a spread show with a
            probability of :data:`POWER`.
        p: How often models of equal quality differ as much, by the sign-flip test; None in records
            of releases without it.
        differing: Groups of items with any difference; None in the same records.
        groups: Groups of the items; None where each item is a group.
    """

    low: float
    high: float
    detectable: float
    p: float | None = None
    differing: int | None = None
    groups: int | None = None

    @property
    def probability(self) -> float:
        """The p value; in a record without `p`, that of a normal spread with this 95 % interval."""
        from scipy.stats import norm

        if self.p is not None:
            return self.p
        middle, half = (self.low + self.high) / 2, (self.high - self.low) / 2
        if half <= 0:
            return 1.0 if middle == 0 else 0.0
        return float(2 * norm.sf(abs(middle) / half * norm.ppf((1 + CONFIDENCE) / 2)))

    def verdict(
        self,
        *,
        lower_is_better: bool = False,
        gain_p: float | None = None,
        confidence: float = CONFIDENCE,
    ) -> str:
        """Return `better`, `worse` or `not significant`: the basis of every verdict and gate.

        Args:
            gain_p: The p value of a gain, from :func:`holm`, where there are several chances of
                one. A loss counts by itself: overlooking it costs more.
        """
        if self.low <= 0 <= self.high:
            return NOT_SIGNIFICANT
        if self.differing is not None and self.differing < FEWEST_DIFFERING:
            return NOT_SIGNIFICANT
        word = BETTER if (self.low > 0) != lower_is_better else WORSE
        p = gain_p if word == BETTER and gain_p is not None else self.p
        # `holm` multiplies p values, and the product may miss 0.05 by a rounding error.
        return NOT_SIGNIFICANT if p is not None and p > 1 - confidence + _EQUAL else word


def holm(probabilities: Sequence[float]) -> list[float]:
    """Adjust the p values of several tests: any error among them is as rare as in one test.

    Source: Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of
    Statistics 6(2), 1979. It holds however the tests depend on each other.
    """
    adjusted, highest = [0.0] * len(probabilities), 0.0
    order = sorted(range(len(probabilities)), key=probabilities.__getitem__)
    for rank, place in enumerate(order):
        highest = max(highest, (len(order) - rank) * probabilities[place])
        adjusted[place] = min(highest, 1.0)
    return adjusted


def mean_intervals(
    before: Observations, after: Observations, confidence: float = CONFIDENCE
) -> dict[str, Interval]:
    """Return the intervals of the differences of means over the items, by the name of the values.

    Values with a NaN are left out. Fewer than :data:`FEWEST_ITEMS`, or a single group, have no
    interval.
    """
    groups = _Groups.of(before, after)
    both = [name for name in before.values if name in after.values]
    differences = {name: after.values[name] - before.values[name] for name in both}
    known = {name: values for name, values in differences.items() if np.isfinite(values).all()}
    if not groups.suffice or not known:
        return {}
    sums = np.stack([groups.sums(values) for values in known.values()])
    drawn = _Drawn(groups, _drawn_means(sums, groups.sizes), sums.sum(1) / groups.items)
    differing, probabilities = _flipped_means(sums)
    return drawn.named(list(known), probabilities, differing, confidence)


def pair_intervals(
    measure: Measure,
    before: Observations,
    after: Observations,
    confidence: float = CONFIDENCE,
) -> dict[str, Interval]:
    """Return the intervals of figures other than means, such as correlations.

    ``measure`` takes the values `cosine` and `score`. There are none if the scores of any draw are
    all equal, since too few of them differ.
    """
    groups, scores = _Groups.of(before, after), before.values["score"]
    cosines = np.stack([model.values["cosine"] for model in (before, after)])
    if not groups.suffice or not np.isfinite(cosines).all():
        return {}
    names = list(measure(cosines[0], scores))

    def differences(values: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        if np.ptp(numbers) == 0:
            return np.full(len(names), np.nan)
        old, new = (measure(of_model, numbers) for of_model in values)
        return np.array([new[name] - old[name] for name in names])

    rng = np.random.default_rng(_SEED)
    tries = min(max(_DRAWN_OF_PAIRS // groups.items, _FEWEST_OF_PAIRS), _MOST_OF_PAIRS)
    drawn = (groups.drawn(rng) for _ in range(tries))
    draws = np.stack([differences(cosines[:, places], scores[places]) for places in drawn])
    if not np.isfinite(draws).all():
        return {}
    found = differences(cosines, scores)
    differing = np.flatnonzero(groups.sums(np.abs(np.diff(cosines, axis=0)[0]) > _EQUAL_COSINES))
    flips = _flips(len(differing), tries, _EXACT_OF_PAIRS, rng)
    # The figures do not depend on the scale of the cosines, and exchanged ones need to share it.
    alike = (cosines - cosines.mean(1, keepdims=True)) / (cosines.std(1, keepdims=True) + 1e-12)
    flipped = [_exchanged(alike, groups, differing[flip]) for flip in flips]
    by_chance = np.stack([differences(values, scores) for values in flipped])
    probabilities = _share_as_large(by_chance, found, is_exact=len(differing) <= _EXACT_OF_PAIRS)
    count = np.full(len(names), len(differing))
    return _Drawn(groups, draws, found).named(names, probabilities, count, confidence)


@dataclass(frozen=True, eq=False)
class _Groups:
    """The group of each item, [items], from 0 on, and the size of each group, float64 [groups]."""

    group_of: np.ndarray
    sizes: np.ndarray

    @classmethod
    def of(cls, before: Observations, after: Observations) -> _Groups:
        """Return the groups of either model's observations: one may be of an earlier release."""
        if not np.array_equal(before.items, after.items):
            raise ValueError("the two models were measured on different items")
        known = after.groups if after.groups is not None else before.groups
        if known is None:
            return cls(np.arange(len(before.items)), np.ones(len(before.items)))
        _, group_of, sizes = np.unique(known, return_inverse=True, return_counts=True)
        return cls(group_of, sizes.astype(np.float64))

    @property
    def items(self) -> int:
        return len(self.group_of)

    @property
    def suffice(self) -> bool:
        return self.items >= FEWEST_ITEMS and len(self.sizes) > 1

    @property
    def effective(self) -> float:
        """The effective number of equal-sized groups. Kish, "Survey Sampling", 1965."""
        return float(self.items**2 / (self.sizes**2).sum())

    def sums(self, values: np.ndarray) -> np.ndarray:
        return np.bincount(self.group_of, values, len(self.sizes))

    def drawn(self, rng: np.random.Generator) -> np.ndarray:
        """Return the items of as many groups as there are, drawn with replacement."""
        count = len(self.sizes)
        often = np.bincount(rng.integers(count, size=count), minlength=count)
        return np.repeat(np.arange(self.items), often[self.group_of])


@dataclass(frozen=True, eq=False)
class _Drawn:
    """Differences of figures: resampled, [draws, figures], and observed, [figures]."""

    groups: _Groups
    draws: np.ndarray
    found: np.ndarray

    def named(
        self,
        names: Sequence[str],
        probabilities: np.ndarray,
        differing: np.ndarray,
        confidence: float,
    ) -> dict[str, Interval]:
        """Return the intervals by name.

        The smallest detectable difference is that of a z test: Cohen, "Statistical power analysis
        for the behavioral sciences", 1988.
        """
        from scipy.stats import norm

        low, high, errors = self._ends(confidence)
        quantiles = norm.ppf((1 + confidence) / 2) + norm.ppf(POWER)
        count = len(self.groups.sizes)
        return {
            name: Interval(
                float(low[place]),
                float(high[place]),
                float(quantiles * errors[place]),
                float(probabilities[place]),
                int(differing[place]),
                count if count < self.groups.items else None,
            )
            for place, name in enumerate(names)
        }

    def _ends(self, confidence: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return both ends, and standard errors; few groups do not make the interval narrower."""
        from scipy.stats import norm, t

        count = self.groups.effective
        errors = self.draws.std(0, ddof=1)
        # The expanded percentile of Hesterberg, by the effective number of groups.
        quantile = t.ppf((1 + confidence) / 2, max(count - 1, 1)) * math.sqrt(count / (count - 1))
        if count < FEWEST_ITEMS:
            # Percentiles cannot lie beyond the few values of so few groups.
            return self.found - quantile * errors, self.found + quantile * errors, errors
        shares = 100 * norm.cdf([-quantile, quantile])
        low, high = np.percentile(self.draws, shares, axis=0)
        return low, high, errors


def _drawn_means(sums: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return means of groups drawn with replacement, [draws, figures], from [figures, groups]."""
    rng, count = np.random.default_rng(_SEED), len(sizes)
    # The draws of figures and sizes are one product: a mean divides by the items of its own draw.
    together = np.vstack([sums, sizes]).T
    found = []
    for rows in _batches(count):
        places = rng.integers(count, size=(rows, count)) + count * np.arange(rows)[:, None]
        often = np.bincount(places.ravel(), minlength=rows * count).reshape(rows, count)
        found.append(often @ together)
    drawn = np.concatenate(found)
    return np.asarray(drawn[:, :-1] / drawn[:, -1:])


def _flipped_means(sums: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return by figure how many groups differ, and how often flipped ones differ as much."""
    scale = np.abs(sums).max(initial=0.0)
    has_changed = np.abs(sums) > _EQUAL * max(scale, 1.0)
    differing = has_changed.sum(1)
    probabilities = np.ones(len(sums))
    for place in np.flatnonzero((differing > 0) & (differing <= _EXACT)):
        few = sums[place, has_changed[place]]
        flips = _flips(len(few), 0, _EXACT, np.random.default_rng(_SEED))
        by_chance = np.stack([few.sum() - 2 * (flips @ few)], axis=1)
        probabilities[place] = _share_as_large(by_chance, few.sum()[None], is_exact=True)[0]
    many = np.flatnonzero(differing > _EXACT)
    if len(many):
        columns = sums[np.ix_(many, np.flatnonzero(has_changed[many].any(0)))].T
        rng, total = np.random.default_rng(_SEED), columns.sum(0)
        batches = _batches(len(columns))
        flipped = [total - 2 * (_coins(rows, len(columns), rng) @ columns) for rows in batches]
        probabilities[many] = _share_as_large(np.concatenate(flipped), total, is_exact=False)
    return differing, probabilities


def _batches(count: int) -> list[int]:
    """Divide the draws of so many groups into batches of rows."""
    draws = min(max(_DRAWN // count, _FEWEST_RESAMPLES), _RESAMPLES)
    most = max(_DRAWN_AT_A_TIME // count, 1)
    return [min(most, draws - start) for start in range(0, draws, most)]


def _flips(count: int, tries: int, exact: int, rng: np.random.Generator) -> np.ndarray:
    """Return the flipped groups of each try, [tries, groups]: all combinations if these are few."""
    if count > exact:
        return _coins(tries, count, rng).astype(bool)
    numbers, places = np.arange(2**count, dtype=np.int64), np.arange(count, dtype=np.int64)
    is_flipped: np.ndarray = (numbers[:, None] >> places & 1) == 1
    return is_flipped


def _coins(rows: int, columns: int, rng: np.random.Generator) -> np.ndarray:
    """Return 0 or 1 with the same probability, float64 [rows, columns]."""
    packed = rng.integers(256, size=(rows, -(-columns // 8)), dtype=np.uint8)
    coins: np.ndarray = np.unpackbits(packed, axis=1, count=columns).astype(np.float64)
    return coins


def _share_as_large(by_chance: np.ndarray, found: np.ndarray, *, is_exact: bool) -> np.ndarray:
    """Return by figure the share of differences as large as those found, in either direction."""
    as_large = (np.abs(by_chance) >= np.abs(found) * (1 - _EQUAL) - _EQUAL).sum(0)
    count = len(by_chance)
    # Among random flips, the observed difference counts as one more: Phipson and Smyth, 2010.
    return np.asarray(as_large / count if is_exact else (as_large + 1) / (count + 1))


def _exchanged(values: np.ndarray, groups: _Groups, flipped: np.ndarray) -> np.ndarray:
    """Return the values of two models, [2, items], exchanged in some groups."""
    is_flipped = np.isin(groups.group_of, flipped)
    return np.where(is_flipped, values[::-1], values)
