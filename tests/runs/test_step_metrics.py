"""Lines and figures from what the workers report, in whatever order it comes."""

import random
import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planned_runs import make_run

from pipelines.errors import PipelineError
from pipelines.runs.run import Restart
from pipelines.runs.step_metrics import StepMetrics, StepRecord
from pipelines.settings import CorpusSettings
from pipelines.settings.load import parse


def record(step: int, loss: float = 1.0, granules: int = 2, **values) -> StepRecord:
    known = {
        "epoch": 0,
        "learning_rate": 0.1,
        "tokens": 30,
        "padded_tokens": 40,
        "data_seconds": 0.25,
        "seconds": step + 1.0,
    }
    return StepRecord(step=step, loss=loss, granules=granules, **(known | values))


def test_a_shared_step_is_complete_with_all_its_granules():
    lines = []
    step_metrics = StepMetrics(make_run(2, log_every=1), 2, lines.append)
    step_metrics.add(record(0, loss=1.0, granules=1))
    assert not lines
    step_metrics.add(record(0, loss=2.0, granules=1, seconds=1.5))
    assert [line["loss"] for line in lines] == [1.5]
    assert lines[0]["tokens_per_second"] == pytest.approx(60 / 1.5)
    assert lines[0]["padding"] == pytest.approx(0.25)
    assert lines[0]["data_wait"] == pytest.approx(0.5 / 1.5 / 2)
    assert (lines[0]["staleness_mean"], lines[0]["staleness_max"]) == (0, 0)
    assert step_metrics.outcome().staleness is None


def test_lines_cover_the_steps_since_the_line_before():
    lines = []
    step_metrics = StepMetrics(make_run(5, log_every=2), 2, lines.append)
    for step, age in enumerate([0, 1, 3, 0, 1]):
        step_metrics.add(record(step, loss=float(step), staleness=age))
    assert [line["step"] for line in lines] == [2, 4, 5]
    assert [line["loss"] for line in lines] == [0.5, 2.5, 4.0]
    assert [line["staleness_mean"] for line in lines] == [0.5, 1.5, 1.0]
    assert [line["staleness_max"] for line in lines] == [1, 3, 1]
    outcome = step_metrics.outcome()
    assert (outcome.steps, outcome.examples, outcome.seconds) == (5, 5 * 16, 5.0)
    assert (outcome.staleness.mean, outcome.staleness.most) == (1.0, 3)
    # The first two steps hold the framework's start-up.
    assert outcome.examples_per_second == pytest.approx(3 * 16 / 3)


def test_a_line_has_the_mean_of_the_gradient_norms_that_are_known():
    lines = []
    step_metrics = StepMetrics(make_run(4, log_every=2), 2, lines.append)
    for step, norm in enumerate([1.0, 4.0, float("inf"), None]):
        step_metrics.add(record(step, gradient_norm=norm))
    assert lines[0]["gradient_norm"] == 2.5
    assert "gradient_norm" not in lines[1]


def test_a_line_tells_the_loss_of_each_source_apart():
    pairs = {"format": "csv", "inputs": ["a.csv"], "pairs": "columns"}
    corpus = {"sources": [pairs | {"name": name} for name in ("small", "large", "unused")]}
    run = make_run(4, log_every=4)
    run = replace(run, config=run.config.model_copy(update={"corpus": parse_corpus(corpus)}))
    lines = []
    step_metrics = StepMetrics(run, 2, lines.append)
    for step, (source, loss) in enumerate([(1, 2.0), (0, 8.0), (1, 4.0), (1, 6.0)]):
        step_metrics.add(record(step, loss=loss, source=source))
    assert lines[0]["loss"] == 5.0
    assert lines[0]["sources"] == {
        "large": {"loss": 4.0, "steps": 3},
        "small": {"loss": 8.0, "steps": 1},
    }


def parse_corpus(corpus: dict) -> CorpusSettings:
    return parse({"corpus": corpus}).corpus


class Listener:
    """Hears of steps and of lines, in one list."""

    def __init__(self) -> None:
        self.heard = []

    def __call__(self, line) -> None:
        self.heard.append(f"line of {line['step']}")

    def step_done(self, step) -> None:
        self.heard.append(step)

    def checkpoint_saved(self) -> None:
        self.heard.append("saved")


def test_who_follows_steps_hears_of_each_in_order():
    listener = Listener()
    step_metrics = StepMetrics(make_run(5, log_every=2), 2, listener)
    for step in (1, 0, 3, 2, 4):
        step_metrics.add(record(step))
    step_metrics.checkpoint_saved()
    assert listener.heard == [1, "line of 2", 2, 3, "line of 4", 4, "line of 5", 5, "saved"]


def test_workers_that_round_unlike_end_the_run():
    lines = []
    step_metrics = StepMetrics(make_run(5, log_every=1), 2, lines.append)
    step_metrics.add(record(0, granules=1, rank=0, precision="bf16"))
    step_metrics.add(record(0, granules=1, rank=1, precision="bf16"))
    assert (lines[0]["precision"], step_metrics.outcome().precision) == ("bf16", "bf16")
    told = r"^rank 1 computes in fp32 and others in bf16, .* alone .*\. Set training\.precision\.$"
    with pytest.raises(PipelineError, match=told):
        step_metrics.add(record(1, granules=1, rank=1, precision="fp32"))
    # Fewer workers go on, which may all be others.
    step_metrics.go_back(Restart(step=0, workers=1))
    step_metrics.add(record(0, precision="fp32"))
    assert lines[-1]["precision"] == "fp32"


def test_a_run_of_one_line_has_a_rate():
    step_metrics = StepMetrics(make_run(2, log_every=10), 2, lambda line: None)
    for step in range(2):
        step_metrics.add(record(step))
    assert step_metrics.outcome().examples_per_second == pytest.approx(2 * 16 / 2)


def test_steps_that_are_complete_at_once_have_the_rate_of_their_workers():
    lines = []
    step_metrics = StepMetrics(make_run(2, log_every=1), 2, lines.append)
    # The worker of step 1 was the faster one.
    step_metrics.add(record(1, seconds=3.0, step_seconds=3.0))
    step_metrics.add(record(0, seconds=4.0, step_seconds=4.0))
    assert [line["examples_per_second"] for line in lines] == [16 / 4.0, 16 / (3.0 / 2)]
    assert lines[1]["data_wait"] == pytest.approx(0.25 / 1.5 / 2)


def test_steps_that_are_made_again_by_fewer_workers_count_once():
    lines = []
    step_metrics = StepMetrics(make_run(9, first_step=1, log_every=2), 2, lines.append)
    assert [step_metrics.begin(now) for now in (5.0, 7.0)] == [5.0, 5.0]
    for step in range(1, 7):
        step_metrics.add(record(step, loss=10.0 + step))
    step_metrics.add(record(7, granules=1))
    assert step_metrics.next_step == 7
    step_metrics.go_back(Restart(step=4, workers=1))
    assert step_metrics.next_step == 4
    for step in range(4, 9):
        step_metrics.add(record(step, loss=20.0 + step, seconds=step + 11.0))
    outcome = step_metrics.outcome()
    assert outcome.losses == (11.0, 12.0, 13.0, 24.0, 25.0, 26.0, 27.0, 28.0)
    assert (outcome.steps, outcome.examples, outcome.seconds) == (8, 8 * 16, 19.0)
    assert [line["step"] for line in lines] == [2, 4, 6, 6, 8, 9]
    assert [line["loss"] for line in lines[-3:]] == [24.5, 26.5, 28.0]
    assert step_metrics.begin(9.0) == 5.0


def test_a_line_tells_where_each_workers_time_went():
    lines = []
    step_metrics = StepMetrics(make_run(2, log_every=2), 2, lines.append)
    for step in range(2):
        for rank in (1, 0):
            times = {
                "compute_seconds": 1.0,
                "communication_seconds": 0.25 * rank,
                "step_seconds": 1.5,
            }
            step_metrics.add(record(step, granules=1, rank=rank, **times))
    known = {"examples": 16, "tokens": 60, "seconds": 3.0, "data": 0.5, "other": 0.5}
    assert lines[0]["workers"] == [
        {"rank": 0, "arithmetic": 2.0, "communication": 0.0} | known,
        {"rank": 1, "arithmetic": 1.5, "communication": 0.5} | known,
    ]
    assert (lines[0]["arithmetic"], lines[0]["communication"]) == (3.5 / 6, 0.5 / 6)


def test_what_was_not_measured_is_not_told():
    lines = []
    step_metrics = StepMetrics(make_run(2, log_every=1), 2, lines.append)
    step_metrics.add(record(0))
    for rank in (0, 1):
        step_metrics.add(record(1, granules=1, rank=rank, compute_seconds=1.0, step_seconds=2.0))
    assert lines[0]["workers"] == []
    assert not {"arithmetic", "communication"} & (lines[0].keys() | lines[1].keys())
    assert lines[1]["workers"][1] == {
        "rank": 1,
        "examples": 8,
        "tokens": 30,
        "seconds": 2.0,
        "data": 0.25,
        "arithmetic_and_communication": 1.0,
        "other": 0.75,
    }


@given(st.randoms(use_true_random=False), st.integers(1, 7), st.integers(0, 30))
def test_the_order_of_arrival_changes_nothing(chance: random.Random, every: int, first: int):
    def account(records):
        lines = []
        step_metrics = StepMetrics(make_run(first + 20, first, log_every=every), 2, lines.append)
        for one in records:
            step_metrics.add(one)
        return lines, step_metrics.outcome()

    records = [
        record(step, loss=step * 0.5 + part, granules=1)
        for step in range(first, first + 20)
        for part in (0, 1)
    ]
    lines, outcome = account(records)
    shuffled = records.copy()
    chance.shuffle(shuffled)
    other_lines, other = account(shuffled)
    assert len(outcome.losses) == 20
    assert other.losses == pytest.approx(outcome.losses)
    assert [line["step"] for line in other_lines] == [line["step"] for line in lines]
    assert [line["loss"] for line in other_lines] == pytest.approx([line["loss"] for line in lines])


def test_a_line_has_the_cpu_time_of_all_workers_if_all_measured_it():
    lines = []
    step_metrics = StepMetrics(make_run(2, log_every=1), 2, lines.append)
    for step, times in enumerate([(0.5, 1.0), (0.5, None)]):
        for rank, cpu_seconds in enumerate(times):
            step_metrics.add(record(step, granules=1, rank=rank, cpu_seconds=cpu_seconds))
    assert lines[0]["cpu_seconds"] == 1.5
    assert "cpu_seconds" not in lines[1]


def test_updates_of_steps_that_are_made_again_count_once():
    metrics = StepMetrics(make_run(4, log_every=2), 2, lambda line: None)
    for step, age in enumerate((1, 5, 9)):
        metrics.add(record(step, staleness=age))
    metrics.go_back(Restart(step=1, workers=2))
    for step, age in ((1, 2), (2, 3), (3, 4)):
        metrics.add(record(step, staleness=age))
    staleness = metrics.outcome().staleness
    assert (staleness.mean, staleness.most) == (2.5, 4)
    metrics.go_back(Restart(step=0, workers=2))
    assert metrics.outcome().staleness is None


@pytest.mark.parametrize("staleness", [None, 3])
def test_a_step_that_is_done_takes_few_bytes(staleness):
    steps = 20_000
    metrics = StepMetrics(make_run(steps, log_every=50), 2, lambda line: None)
    for step in range(100):
        metrics.add(record(step, staleness=staleness))
    tracemalloc.start()
    for step in range(100, steps):
        # A loss of its own for each, as in a training.
        metrics.add(record(step, loss=1 / (step + 1), staleness=staleness))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held / steps < 30
