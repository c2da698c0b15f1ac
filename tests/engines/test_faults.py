"""A few cells of the matrix of `make faults`, and what holds of its choice of cells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from corpus_factory import small_config
from faults.cell import run_cell
from faults.disk import why_no_disk
from faults.injection import FAULTS
from faults.matrix import CASES, Cell, all_cells, chosen_cells, covering_cells
from faults.moments import MOMENTS
from faults.stages.cell import STAGE_FAULTS, StageCell, stage_cells
from faults.stages.kinds import STAGES
from host_cluster import HostCluster
from host_sockets import SocketWatch
from hosts import why_not
from test_on_hosts import check_sockets

from pipelines.catalog import ENGINES
from pipelines.engines.base import load_engine

MATRIX = pytest.mark.matrix
TRIED = [
    Cell("torch-ddp", "executor killed", "checkpoint"),
    pytest.param(Cell("torch-ddp", "host cut off", "in a step"), marks=MATRIX),
    pytest.param(Cell("torch-ddp", "worker stopped", "in a step"), marks=MATRIX),
]


def test_the_choice_has_every_fault_with_every_engine_that_it_meets():
    wanted = {(one.case, one.fault) for one in all_cells()}
    chosen = covering_cells()
    assert {(one.case, one.fault) for one in chosen} == wanted
    assert len(chosen) == len(wanted)
    assert {name for name, _ in wanted} == set(CASES)
    assert {fault for _, fault in wanted} == set(FAULTS)


def test_the_choice_has_every_moment_with_every_engine():
    pairs = {(one.case, one.moment) for one in covering_cells()}
    assert pairs == {(case, moment) for case in CASES for moment in MOMENTS}


def test_every_mode_of_every_engine_on_spark_is_in_the_matrix():
    tested = {(one.make().name, one.training.get("mode", "sync")) for one in CASES.values()}
    engines = {name: load_engine(name) for name in ENGINES}
    assert tested == {
        (name, mode)
        for name, engine in engines.items()
        if engine.needs_spark
        for mode in engine.modes
    }


def test_cells_are_chosen_by_name():
    (only,) = chosen_cells(all_cells(), ["bigdl"], ["disk full"], ["export"])
    assert only == Cell("bigdl", "disk full", "export")


def test_stages_meet_the_faults_that_they_can():
    cells = stage_cells()
    assert {one.fault for one in cells if one.stage == "prepare"} == set(STAGE_FAULTS)
    assert {one.stage for one in cells if one.fault == "driver killed"} == set(STAGES)
    assert StageCell("promote", "executor killed") not in cells


ATTEMPTS = 3


@pytest.mark.slow
@pytest.mark.skipif(bool(reason := why_not() or why_no_disk()), reason=str(reason))
@pytest.mark.parametrize("cell", TRIED, ids=str)
def test_a_training_ends_as_promised_and_listens_where_the_page_says(cell, prepared, tmp_path):
    """The hosts take their own names for 127.0.1.1, as in :mod:`test_on_hosts`."""
    for _ in range(ATTEMPTS):
        most = Counter()
        outcome = run_cell(cell, prepared, tmp_path / "cell", "debian", looking(most))
        # A checkpoint is written in a moment that a busy machine may not look at: then nothing
        # was done to the training.
        if outcome.end != "not reached":
            break
    assert outcome.failings == []
    assert outcome.end == "error"
    assert outcome.resumed > 0
    case = CASES[cell.case]
    training = case.training | {"engine": case.make().name}
    check_sockets(most, small_config(prepared, **training).training)


def looking(most: Counter) -> Callable[[HostCluster], object]:
    """What has the most that listens on the hosts of a cluster at once counted."""
    return lambda cluster: SocketWatch(cluster.hosts, most).look()
