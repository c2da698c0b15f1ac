"""Other libraries' own ways to train: what they are given, and a short training by each."""

import json
import math
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from corpus_factory import small_config

from pipelines.compare.strategy import all_strategies
from pipelines.compare.trial import run_trial
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.lanes.files import LaneManifest
from pipelines.losses.candidates import Picks
from pipelines.losses.loss import configured_loss
from pipelines.models.folder import start_encoder, write_encoder
from pipelines.runs.step_metrics import read_metrics_lines
from pipelines.settings import Config
from pipelines.settings.load import load, parse
from pipelines_bench.peers.catalog import PEERS
from pipelines_bench.peers.lines import StepLines
from pipelines_bench.peers.pairs import PADDING, padded, random_pairs
from pipelines_bench.workloads import WORKLOADS

STEPS, GRANULE = 60, 8
ON_SPARK = [name for name in PEERS if name != "sentence-transformers"]


@pytest.fixture(scope="module")
def start(prepared, tmp_path_factory):
    """A random encoder as a folder: not every library makes one."""
    config = small_config(prepared)
    folder = PreparedFolder.of(config)
    spec, weights = start_encoder(config, LaneManifest.load(folder.lanes.path).vocabulary)
    path = tmp_path_factory.mktemp("start") / "model"
    write_encoder(path, spec, weights, folder.tokens.tokenizer, "")
    return path


def test_peers_are_strategies_of_their_names():
    known = all_strategies()
    assert [name for name, one in known.items() if one.is_peer] == [*PEERS]
    assert {name: peer.name for name, peer in PEERS.items()} == {name: name for name in PEERS}


@pytest.mark.parametrize("name", PEERS)
def test_what_a_peer_does_not_train_is_named(name):
    peer = all_strategies()[name]

    def why(tree, **told):
        return peer.missing(parse(tree), **told)

    assert why({}) == ""
    assert "mining" in why({}, has_negatives=True)
    assert "encoder.freeze" in why({"encoder": {"freeze": {"layers": 1}}})
    assert "objective.name" in peer.missing(WORKLOADS["masked"](parse({}), None))
    assert "objective: " in why({"objective": {"negatives": "step"}})


@pytest.mark.parametrize("name", ON_SPARK)
def test_a_peer_on_spark_is_measured_on_this_machine(name):
    peer, near, far = all_strategies()[name], "local-cluster[2,1,1024]", "spark://cluster:7077"
    assert peer.missing(parse({"spark": {"master": near}})) == ""
    assert "spark.master" in peer.missing(parse({"spark": {"master": far}}))


def test_pairs_are_all_of_the_lanes_each_once_and_the_same_every_time(prepared):
    config = small_config(prepared)
    manifest = LaneManifest.load(PreparedFolder.of(config).lanes.path)
    pairs = random_pairs(config, 10**6)
    assert len(pairs) == manifest.placed
    assert sum(len(text) for pair in pairs for text in pair) == manifest.tokens
    few = random_pairs(config, 9)
    assert len(few) == 9
    assert np.array_equal(padded(few), padded(random_pairs(config, 9)))


def test_padding_is_no_token():
    pairs = [(np.array([5, 6]), np.array([7])), (np.array([0]), np.array([1, 2, 3]))]
    expected = [[[5, 6, -1], [7, -1, -1]], [[0, -1, -1], [1, 2, 3]]]
    assert padded(pairs).tolist() == expected
    assert padded(pairs, 5).shape == (2, 2, 5)
    assert PADDING == -1


@pytest.mark.slow
def test_a_step_of_elephas_is_done_when_the_last_worker_has_made_it(tmp_path):
    pytest.importorskip("elephas")
    from pipelines_bench.peers.elephas.steps import write_lines

    for rank, (began, steps) in enumerate([(10.0, (11.0, 12.5, 13.0)), (10.5, (12.0, 12.2, 14.0))]):
        (tmp_path / f"began-{rank}").write_text(str(began))
        lines = [json.dumps({"at": at, "loss": rank + 1.0}) for at in steps]
        (tmp_path / f"steps-{rank}.jsonl").write_text("\n".join(lines))
    path = tmp_path / "run" / "metrics.jsonl"
    write_lines(StepLines(path, examples=8, tokens=3.0), tmp_path, 3, ended=15.0)
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["seconds"] for line in found] == [2.0, 2.5, 5.0]
    assert [line["loss"] for line in found] == [1.5] * 3
    assert found[1]["examples_per_second"] == pytest.approx(16)
    assert found[1]["tokens_per_second"] == pytest.approx(48)


@pytest.mark.slow
def test_peers_have_the_loss_of_this_package(prepared):
    import torch

    config = small_config(prepared)
    sides = np.random.default_rng(1).normal(size=(2, 2, GRANULE, 12)).astype(np.float32)
    sides /= np.linalg.norm(sides, axis=-1, keepdims=True)
    anchors, positives = (torch.from_numpy(side) for side in sides)
    picks = Picks(torch.arange(GRANULE), torch.empty((0, 2), dtype=torch.int64))
    ours = configured_loss(config.objective, "torch")
    expected = np.mean(
        [float(ours([a, p], picks)) for a, p in zip(anchors, positives, strict=True)]
    )
    scale = 1 / config.objective.temperature

    from pipelines_bench.peers import tensorflow_model

    pairs = np.stack([side.reshape(-1, 12) for side in sides], axis=1)
    in_keras = tensorflow_model.InBatchLoss(GRANULE, scale)(np.zeros(len(pairs)), pairs)
    assert float(in_keras) == pytest.approx(expected, rel=1e-5)

    pytest.importorskip("bigdl.orca")
    from pipelines_bench.peers.orca import creators

    own = torch.arange(2 * GRANULE) % GRANULE
    in_orca = creators.InBatchLoss(GRANULE, scale)(
        anchors.flatten(0, 1), positives.flatten(0, 1), own
    )
    assert float(in_orca) == pytest.approx(expected, rel=1e-5)


@pytest.fixture
def asked(prepared, start, tmp_path, monkeypatch) -> Config:
    """The settings of a short training that has to teach something."""
    tree = small_config(prepared, max_steps=STEPS, epochs=99).model_dump(mode="json")
    # Executors work in folders of their own, and have to find these all the same.
    monkeypatch.chdir(tmp_path)
    tree["prepared"]["folder"] = os.path.relpath(prepared)
    tree["encoder"], tree["tokens"]["vocabulary"] = {"start": os.path.relpath(start)}, "start"
    tree["training"] |= {"learning_rate": 3e-3, "schedule": "constant", "warmup": 0}
    return parse(tree)


def assert_learnt(losses: list[float]) -> None:
    assert len(losses) == STEPS
    # The start knows nothing, so that its loss is near that of a guess.
    assert losses[0] == pytest.approx(math.log(GRANULE), rel=0.5)
    assert np.mean(losses[-10:]) < 0.7 * np.mean(losses[:10])


@pytest.mark.slow
def test_a_peer_trains_by_the_settings_that_its_command_names(asked):
    """In this process: one of its own would import the library for seconds."""
    torch = pytest.importorskip("torch")
    strategy = all_strategies()["sentence-transformers"]
    config = strategy.configured(asked.changed("run", folder="run"), 1)
    if why := strategy.missing(config):
        pytest.skip(why)
    python, *module, settings = strategy.command(config, Path("settings.yaml"))
    assert [python, *module] == [sys.executable, "-m", "pipelines_bench.peers", strategy.name]
    threads = torch.get_num_threads()
    try:
        PEERS[strategy.name].training()(load(settings, ()))
    finally:
        torch.set_num_threads(threads)
    lines = [*read_metrics_lines(Path("run"))]
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    assert_learnt([line["loss"] for line in lines])
    assert all(line["tokens_per_second"] > line["examples_per_second"] > 0 for line in lines)


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.parametrize(
    ("name", "workers"), [("sentence-transformers", 1), *((name, 2) for name in PEERS)]
)
def test_a_peer_is_measured(asked, name, workers):
    strategy = all_strategies()[name]
    config = strategy.configured(asked, workers)
    if why := strategy.missing(config):
        pytest.skip(why)
    read = run_trial(
        config,
        name,
        0,
        Path("trial"),
        command=strategy.command,
        step_examples=2 * GRANULE,
        evaluated=False,
    )
    assert [examples for examples, _, _ in read.curve] == [
        2 * GRANULE * step for step in range(1, STEPS + 1)
    ]
    assert_learnt([loss for _, _, loss in read.curve])
    assert read.examples_per_second > 0
    assert read.tokens_per_second > read.examples_per_second
