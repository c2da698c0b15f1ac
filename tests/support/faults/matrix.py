"""Which cells the matrix has, and which of them stand for all.

All of them would take a day. By default a cell is chosen for each pair of an engine and a fault,
and its moment such that engines and faults meet all moments: pairwise testing (Kuhn, Kacker and
Lei, "Practical Combinatorial Testing", NIST SP 800-142, 2010).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from engine_cases import ENGINE_CASES, EngineCase, first_of_each

from faults.injection import FAULTS, Fault
from faults.moments import MOMENTS

CASES = {one.name: one for one in ENGINE_CASES if one.launch not in {"local", "test"}}

FIRST = {
    one.name
    for one in first_of_each(
        lambda one: f"{one.make().name} {one.launch} {one.training.get('mode')}", [*CASES.values()]
    )
}
"""One case of each engine, way to start workers, and mode."""


@dataclass(frozen=True)
class Cell:
    """What is done to a training, and when.

    Attributes:
        case: Name of the engine with its mode, as the contract suite calls it.
        fault: A key of :data:`faults.injection.FAULTS`.
        moment: A key of :data:`faults.moments.MOMENTS`.
    """

    case: str
    fault: str
    moment: str

    def __str__(self) -> str:
        return f"{self.case} / {self.fault} / {self.moment}"


def moments_of(case: EngineCase, fault: Fault) -> Sequence[str]:
    """The moments at which a fault can meet a training of an engine; none if it never can."""
    return tuple(one for one in MOMENTS if one in fault.moments) if fault.meets(case) else ()


def all_cells() -> list[Cell]:
    """Every cell that there can be."""
    return [
        Cell(case, fault, moment)
        for case, made in CASES.items()
        for fault, done in FAULTS.items()
        for moment in moments_of(made, done)
    ]


def covering_cells() -> list[Cell]:
    """One for each engine and fault, with moments that go round.

    First come those of one engine of each kind: its variants share most of what can go wrong.
    """
    chosen = []
    for column, (fault, done) in enumerate(FAULTS.items()):
        for row, (case, made) in enumerate(CASES.items()):
            if moments := moments_of(made, done):
                chosen.append(Cell(case, fault, moments[(row + column) % len(moments)]))
    return sorted(chosen, key=lambda one: one.case not in FIRST)


def chosen_cells(
    cells: Iterable[Cell], cases: Sequence[str], faults: Sequence[str], moments: Sequence[str]
) -> list[Cell]:
    """The cells that have one of the names each; no name stands for all."""
    return [
        one
        for one in cells
        if (not cases or one.case in cases)
        and (not faults or one.fault in faults)
        and (not moments or one.moment in moments)
    ]
