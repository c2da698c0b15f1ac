"""The comparison of strategies: what is chosen, read, advised and predicted, and the command."""

import json
from dataclasses import asdict

import numpy as np
import pytest
from corpus_factory import small_config
from hypothesis import given
from hypothesis import strategies as st
from strategy_readings import reading

from pipelines.catalog import ENGINES, LOSSES
from pipelines.cli import main
from pipelines.compare import advice as rule
from pipelines.compare import arithmetic
from pipelines.compare.advice import Summary, advice, efficiency, summaries
from pipelines.compare.arithmetic import (
    operations_per_token,
    products,
)
from pipelines.compare.command import named_workload
from pipelines.compare.comparison import Record, prepared
from pipelines.compare.page import rule_points
from pipelines.compare.processes import Usage
from pipelines.compare.results import loss_at
from pipelines.compare.strategy import (
    OF_PAPER,
    all_strategies,
    named_strategies,
    worker_counts,
)
from pipelines.compare.trial import (
    read_trial,
    reading_of,
    settled_step,
    settled_steps,
)
from pipelines.errors import InputError
from pipelines.models.bert.spec import BertSpec
from pipelines.models.folder import read_encoder
from pipelines.models.static.architecture import StaticSpec
from pipelines.settings.load import dump, parse
from pipelines_bench.workloads import Size, causal


def test_every_engine_and_mode_has_a_strategy_and_none_has_two():
    found = all_strategies().values()
    assert {one.training["engine"] for one in found} == {*ENGINES}
    found = [one for one in found if not one.is_peer]
    trainings = [tuple(sorted(one.training.items())) for one in found]
    assert len(trainings) == len({*trainings})


def test_the_six_of_the_paper_come_first_and_share_a_framework():
    assert [*all_strategies().values()][:6] == [*OF_PAPER]
    assert {one.training["framework"] for one in OF_PAPER} == {"tensorflow"}
    assert [one.training["precision"] for one in OF_PAPER] == ["fp32"] * 4 + ["bf16"] * 2


def test_any_strategy_can_be_had_in_mixed_precision():
    (mixed,) = named_strategies("torch-parameters-bf16")
    assert mixed.training == all_strategies()["torch-parameters"].training | {"precision": "bf16"}


@pytest.mark.parametrize("name", ["caffe", "torch-bf16-bf16", ""])
def test_a_strategy_that_is_not_there_is_refused_with_those_that_are(name):
    with pytest.raises(InputError, match=r"--cases: there is no strategy .*single-worker"):
        named_strategies(name)


def test_numbers_of_workers():
    assert [*worker_counts(None)] == [1, 2]
    assert worker_counts("4, 1,4") == [1, 4]
    for text in ("", "0", "two", "1,,2", "-1"):
        with pytest.raises(InputError, match=r"--workers"):
            worker_counts(text)


def lines_of(steps, workers=2):
    return [
        {
            "step": step,
            "seconds": 10.0 + step / 4,
            "loss": 1 / step,
            "examples_per_second": 32.0,
            "tokens_per_second": 320.0,
            "cpu_seconds": 0.5,
            "workers": [
                {"rank": rank, "seconds": 0.25, "communication": 0.05} for rank in range(workers)
            ],
        }
        for step in range(1, steps + 1)
    ]


def test_rates_are_those_behind_the_warm_up():
    lines = lines_of(80)
    assert settled_step(len(lines)) == 16
    read = read_trial(lines, Usage(30, 20, 1, 2), 8, strategy="torch", workers=2, round=0)
    assert read.examples_per_second == pytest.approx(8 * 4)
    assert read.tokens_per_second == pytest.approx(10 * 8 * 4)
    assert read.examples_per_cpu_second == pytest.approx(16)
    assert read.communication == pytest.approx(0.2)
    assert read.step_seconds == ((0.25,) * 64,) * 2
    assert read.exchange == ((0.05,) * 64,) * 2
    assert read.computing == ((0.25 - 0.05,) * 64,) * 2
    assert read.curve[-1] == (640, 30.0, 1 / 80)


def test_what_does_not_count_is_a_fifth_or_16_steps_or_half():
    assert [settled_steps(steps) for steps in (1, 5, 20, 60, 200)] == [0, 3, 10, 44, 160]


def test_what_an_engine_does_not_tell_is_not_made_up():
    lines = [{k: v for k, v in line.items() if k != "cpu_seconds"} for line in lines_of(9)]
    bare = [line | {"workers": []} for line in lines]
    read = read_trial(bare, Usage(30, 20, 1, 2), 8, strategy="bigdl", workers=2, round=0)
    assert (read.examples_per_cpu_second, read.communication, read.computing) == (None, None, ())


def test_communication_is_a_share_of_all_seconds():
    lines = lines_of(9, workers=1)
    # One long step without any.
    lines[-1]["workers"] = [{"rank": 0, "seconds": 1.75, "communication": 0.0}]
    read = read_trial(lines, Usage(30, 20, 1, 2), 8, strategy="torch", workers=1, round=0)
    assert read.communication == pytest.approx(4 * 0.05 / (4 * 0.25 + 1.75))


def test_a_comparison_goes_on_where_it_was_interrupted(tmp_path):
    record = Record(tmp_path / "a", {"steps": 9, "counts": (1, 2)})
    record.add(reading(figures={"after": {}}))
    with (tmp_path / "a" / "readings.jsonl").open("a") as file:
        file.write('{"strategy": "to')
    again = Record(tmp_path / "a", {"steps": 9, "counts": (1, 2)})
    again.add(reading(workers=2))
    assert [one.key for one in again] == [("torch", 1, 0), ("torch", 2, 0)]
    assert next(iter(again)) == reading(figures={"after": {}})
    with pytest.raises(
        InputError, match=r"--output: .* holds a comparison with other values of steps"
    ):
        Record(tmp_path / "a", {"steps": 10, "counts": (1, 2)})


@given(st.floats(0.1, 9), st.lists(st.tuples(st.floats(0, 9), st.floats(0, 9)), max_size=3))
def test_a_reading_is_what_its_json_says(rate, seconds):
    known = reading(rate=rate, step_seconds=tuple(seconds), exchange=tuple(seconds))
    assert reading_of(json.loads(json.dumps(asdict(known)))) == known


def summary(strategy, workers, rate, loss=1.0, **told):
    values = {"rounds": 1, "spread": (rate, rate), "loss_spread": (loss, loss)}
    values |= {"communication": 0.1, "examples_per_second": rate, "loss": loss}
    values["last_losses"] = (loss,) * 4
    return Summary(strategy=strategy, workers=workers, **(values | told))


@pytest.mark.parametrize(
    ("found", "taken", "told"),
    [
        ([summary("a", 1, 100), summary("b", 2, 180)], "b with 2 workers", "1.80 times the 100"),
        ([summary("a", 1, 100), summary("b", 2, 119)], "a with one worker", "hardly pay"),
        ([summary("a", 1, 100), summary("b", 2, 90)], "a with one worker", "no faster"),
        # As fast within the room: the one that needs less.
        ([summary("a", 1, 98), summary("b", 1, 100)], "a with one worker", "98 examples/s"),
        # Fast, and learns less.
        (
            [summary("a", 1, 100), summary("b", 1, 300, 1.2)],
            "a with one worker",
            "equal examples: b",
        ),
        # Rounds of one differ as much.
        (
            [summary("a", 1, 100, loss_spread=(0.9, 1.15)), summary("b", 1, 300, 1.2)],
            "b with one worker",
            "300 examples/s",
        ),
        (
            [summary("a", 1, 100), summary("b", 2, 180, communication=0.4)],
            "b with 2 workers",
            "40 % of their time on communication",
        ),
        ([summary("b", 2, 180)], "b with 2 workers", "180 examples/s"),
        # Rounds of the one that learns less differ: that is no reason to take it.
        (
            [summary("a", 1, 100), summary("b", 1, 300, 1.2, loss_spread=(1.0, 1.4))],
            "a with one worker",
            "equal examples: b",
        ),
    ],
)
def test_advice_follows_from_the_rule(found, taken, told):
    sentences = advice(found)
    assert sentences[0].startswith(f"Take {taken}: ")
    assert told in " ".join(sentences)


def test_losses_that_differ_by_chance_alone_count():
    steady = summary("a", 1, 100, last_losses=(1.0, 1.0, 1.0, 1.0))
    jumping = summary("b", 1, 300, 1.1, last_losses=(0.7, 1.5, 0.8, 1.4))
    assert advice([steady, jumping])[0].startswith("Take b")
    behind = summary("b", 1, 300, 1.1, last_losses=(1.09, 1.11, 1.1, 1.1))
    assert advice([steady, behind])[0].startswith("Take a")


def test_what_was_not_measured_is_not_advised_against():
    assert advice([summary("a", 1, 100)]) == ["Take a with one worker: 100 examples/s."]


def test_there_is_no_advice_without_figures():
    assert advice([]) == []


def test_other_trainers_are_told_and_not_advised():
    told = advice([summary("a", 1, 100)], [summary("peer", 1, 40, 0.1), summary("peer", 2, 80)])
    assert told[0].startswith("Take a with one worker")
    assert told[-1] == "peer with 2 workers reaches 80 examples/s; a has 1.25 times that rate."


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(1, 4), st.floats(1, 999), st.floats(0.1, 9)),
        min_size=1,
        max_size=9,
        unique_by=lambda one: one[:2],
    )
)
def test_what_is_taken_was_measured_and_is_never_far_from_the_fastest_that_learns(drawn):
    found = [summary(*one) for one in drawn]
    least = min(one.loss for one in found)
    learning = [one for one in found if one.loss <= (1 + rule.LOSS_ROOM) * least]
    sentence = advice(found)[0]
    (taken,) = (
        one
        for one in found
        if f"Take {one.strategy} with {'one' if one.workers == 1 else one.workers} " in sentence
    )
    most = max(one.examples_per_second for one in learning)
    assert taken in learning
    assert taken.examples_per_second * rule.PAYS >= (1 - rule.RATE_ROOM) * most


def test_the_page_tells_the_rule_with_its_numbers():
    points = rule_points()
    assert len(points) == 5
    assert "last 25 % of the steps is at most 5 % above" in points[0]
    assert "2 standard errors" in points[0]
    assert "1.2 times" in points[2]
    assert not any(":data:" in point for point in points)


def test_summaries_and_efficiency():
    found = summaries([reading(rate=90), reading(rate=110), reading(workers=2, rate=150)])
    assert [(one.workers, one.rounds, one.examples_per_second) for one in found] == [
        (1, 2, 100),
        (2, 1, 150),
    ]
    assert efficiency(found) == {("torch", 1): 1.0, ("torch", 2): 0.75}


def test_the_loss_at_a_moment_is_between_those_around():
    falling = reading(curve=tuple((8 * step, float(step), 10.0 - step) for step in range(1, 10)))
    assert loss_at(falling, 4.5) == pytest.approx(5.5)
    assert loss_at(falling, 99.0) == pytest.approx(1.0)
    assert loss_at(falling, 0.5) is None


def test_operations_are_those_of_the_paper():
    spec = BertSpec(vocabulary=99, hidden=8, layers=2, heads=2, intermediate=32, positions=16)
    weights = 2 * (4 * 8 * 8 + 2 * 8 * 32)
    # PaLM, appendix B: 6 N + 12 L H Q T for each token, of texts of T tokens.
    assert operations_per_token(spec, 10) == 6 * weights + 12 * 2 * 8 * 10
    # Four matrices of attention in each of two layers, forward and back.
    assert products(spec, 5)[5, 8, 8] == 16
    assert products(spec, 5)[5, 8, 32] == 4
    assert products(spec, 5)[32, 5, 8] == 2


def test_an_encoder_without_matrices_has_no_rate():
    spec = StaticSpec(vocabulary=99, hidden=8)
    assert operations_per_token(spec, 10) == 0
    assert not products(spec, 5)


@pytest.mark.slow
def test_more_of_what_is_slow_is_slower():
    thin, thick = (1, 2048, 1), (256, 256, 256)
    rates = [
        arithmetic._measured(
            {"shapes": [(thin, times), (thick, 1)], "precision": "fp32", "seconds": 0.1}
        )
        for times in (1, 100_000)
    ]
    assert rates[0] > rates[1]


@pytest.mark.slow
def test_a_decoder_is_the_same_every_time_and_trains_as_a_language_model(tmp_path):
    size = Size(1, 16, 2)
    arrays = []
    for name in ("one", "other"):
        config = causal(parse({}), tmp_path / name, size)
        spec, weights = read_encoder(config.encoder.start)
        arrays.append(weights)
        assert config.objective.name == "clm"
        assert LOSSES.load("clm").token_loss.check_spec(spec) is None
    assert all(np.array_equal(one, arrays[1][name]) for name, one in arrays[0].items())
    # Places and words are looked up, and all words are predicted.
    weights = 16 * 48 + 16 * 16 + 2 * 16 * 64
    expected = 6 * (weights + spec.vocabulary * 16) + 12 * 16 * 10
    assert operations_per_token(spec, 10, predicted=1.0) == expected


def test_workloads_change_what_is_trained():
    asked = parse({"prepared": {"folder": "/p"}})
    assert named_workload(None)(asked, None) == asked
    masked = named_workload("masked")(asked, None)
    assert (masked.objective.name, masked.corpus.pairs) == ("mlm", "single")
    assert masked.prepared.folder != asked.prepared.folder
    with pytest.raises(InputError, match=r"--workload: there is no workload `bert`"):
        named_workload("bert")


def test_a_workload_is_made_of_the_data_that_are_named(tmp_path, monkeypatch):
    (tmp_path / "captions-en-train.parquet").touch()
    asked = []
    monkeypatch.setattr("pipelines.compare.comparison.prepare", asked.append)
    config = parse({"prepared": {"folder": str(tmp_path / "lanes")}})
    masked = named_workload("masked")
    prepared(config, str(tmp_path), lambda config: masked(config, tmp_path))
    # Captions come in groups, which a language model knows nothing of.
    assert asked[0].corpus.pairs == "single"
    assert asked[0].corpus.inputs == (str(tmp_path / "captions-en-train.parquet"),)


def test_what_cannot_train_a_workload_is_told():
    asked = named_workload("masked")(parse({}), None)
    known = all_strategies()
    assert known["torch"].missing(asked) == ""
    assert "loss mlm has no implementation in tensorflow" in known["single-server"].missing(asked)
    assert "objective.name" in known["sentence-transformers"].missing(asked)
    pairs = parse({})
    peer = known["sentence-transformers"]
    assert peer.missing(pairs) == ""
    assert "mining" in peer.missing(pairs, has_negatives=True)
    assert "encoder.lora" in peer.missing(parse({"encoder": {"lora": {"rank": 4}}}))
    random = parse({"encoder": {"start": "random"}, "tokens": {"vocabulary": "train"}})
    assert "encoder.start" in known["sentence-transformers"].missing(random)


@pytest.mark.slow
@pytest.mark.parametrize("held_out", [0.0, pytest.param(0.1, marks=pytest.mark.matrix)])
def test_strategies_are_compared_by_the_command(prepared, tmp_path, monkeypatch, capsys, held_out):
    monkeypatch.setattr(arithmetic, "SECONDS", 0.01)
    config, folder = tmp_path / "c.yaml", tmp_path / "compared"
    small = small_config(prepared)
    corpus = small.corpus.model_copy(update={"evaluation_share": held_out})
    config.write_text(dump(small.model_copy(update={"corpus": corpus})))
    options = ["--cases", "local-torch", "--steps", "5", "--runs", "1", "--output", str(folder)]
    command = ["compare", "--config", str(config), "--data", str(prepared)]
    command += options
    assert main(command) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    (row,) = figures["strategies"]
    assert (row["strategy"], row["workers"], row["efficiency"]) == ("local-torch", 1, 1.0)
    assert row["examples_per_second"] > 0
    # The model is evaluated where texts were held out.
    assert (row["gain"] is not None) == (held_out > 0)
    assert figures["matrix_operations_per_second"]["fp32"] > 0
    assert figures["advice"][0].startswith("Take local-torch with one worker: ")
    assert "<svg" in (folder / "strategies.html").read_text()
    assert (folder / "strategies.csv").read_text().startswith("strategy,workers,examples_per_")
    # Nothing is trained a second time.
    monkeypatch.setattr("pipelines.compare.command.run_trial", None)
    assert main(command) == 0
