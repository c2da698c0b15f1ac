"""Several sources, each with an objective of its own, from their files to a trained model."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpus_runs import sentence
from engine_cases import task_here, trained_here
from thread_pair import run_both

import pipelines
from pipelines.catalog import STEPPERS
from pipelines.errors import InputError
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.jobs.training_plan import batch_plan
from pipelines.lanes.files import LaneManifest
from pipelines.lanes.reader import LaneReader
from pipelines.models.folder import start_encoder
from pipelines.runs.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from pipelines.runs.job_records import read_evaluations
from pipelines.runs.run import TrainingRun
from pipelines.settings import Config
from pipelines.settings.load import dump, parse
from pipelines.training.steppers.base import lane_feed

# How the engine starts a worker has tests of its own.
pytestmark = pytest.mark.usefixtures("warm_workers")

PAIRS, SCORED, TRIPLETS, ALONE = 500, 240, 160, 300
NAMES = ["questions", "similar", "hard", "alone"]
WEIGHTS = {"questions": 1, "similar": 2, "hard": 1, "alone": 1}


def write(path: Path, **columns) -> list[str]:
    pq.write_table(pa.table(columns), path)
    return [str(path)]


def settings(folder: Path, **training) -> Config:
    """Four sources; the anchors of the pairs are among the texts of the last."""
    place = folder / "inputs"
    place.mkdir(parents=True, exist_ok=True)
    questions = [sentence(number) for number in range(PAIRS)]
    answers = [sentence(10_000 + number) for number in range(PAIRS)]
    left = [sentence(20_000 + number) for number in range(SCORED)]
    right = [sentence(30_000 + number) for number in range(SCORED)]
    hard = {
        name: [sentence(place + n) for n in range(TRIPLETS)]
        for name, place in (("a", 40_000), ("p", 41_000), ("n", 42_000))
    }
    alone = questions[:100] + [sentence(50_000 + number) for number in range(ALONE - 100)]
    sources = [
        {
            "name": "questions",
            "inputs": write(place / "questions.parquet", q=questions, a=answers),
            "pair_columns": ["q", "a"],
            "prompts": {"anchor": "query: "},
        },
        {
            "name": "similar",
            "inputs": write(
                place / "similar.parquet",
                sentence1=left,
                sentence2=right,
                score=[n % 6 / 5 for n in range(SCORED)],
            ),
            "score_column": "score",
            "objective": {"name": "cosent", "dimensions": [16, 8]},
        },
        {
            "name": "hard",
            "inputs": write(place / "hard.parquet", **hard),
            "pairs": "triplets",
            "triplet_columns": ["a", "p", "n"],
            "objective": {"name": "triplet", "dimensions": [16, 8, 4]},
        },
        {
            "name": "alone",
            "inputs": write(place / "alone.parquet", text=alone),
            "pairs": "single",
            "objective": {"name": "simcse", "dimensions": [16, 8]},
        },
    ]
    return parse(
        {
            "corpus": {
                "format": "parquet",
                "pairs": "columns",
                "evaluation_share": 0.1,
                "near_duplicates": 0,
                "sources": [one | {"weight": WEIGHTS[one["name"]]} for one in sources],
            },
            "prepared": {"folder": str(folder / "prepared")},
            "tokens": {"max_length": 32, "vocabulary": "train", "vocabulary_size": 400},
            "lanes": {"count": 4, "granule": 8},
            "encoder": {"start": "random", "layers": 1, "hidden": 16, "heads": 2},
            "objective": {"dimensions": [16, 8]},
            "evaluation": {"geometry": False, "samples": 0, "every_checkpoints": 1},
            "training": {
                "engine": "local",
                "framework": "torch",
                "workers": 1,
                "granules_per_step": 2,
                "learning_rate": 2e-3,
                "dropout": 0.1,
                "precision": "fp32",
                "max_steps": 24,
                "log_every": 4,
                # One is measured: that at the end is left to the evaluation.
                "checkpoint_every": 16,
                "keep_checkpoints": 9,
                "restarts": 0,
                "start_seconds": 300,
                "stall_seconds": 300,
                **training,
            },
            "run": {"folder": str(folder / "run")},
        }
    )


@dataclass(frozen=True)
class Trained:
    """A preparation, and a run on it."""

    config: Config
    folder: Path

    @property
    def prepared(self) -> PreparedFolder:
        return PreparedFolder.of(self.config)

    @property
    def manifest(self) -> LaneManifest:
        return LaneManifest.load(self.prepared.lanes.path)

    @property
    def lines(self) -> list[dict]:
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").open()]


@pytest.fixture(scope="module")
def trained(spark, tmp_path_factory) -> Trained:
    config = settings(tmp_path_factory.mktemp("sources"))
    pipelines.run(config)
    return Trained(config, Path(config.run.folder))


def run_of(trained: Trained, folder: Path, steps: int, **training) -> TrainingRun:
    """A run of some steps, with its first checkpoint."""
    config = trained.config.changed("training", **training)
    manifest = trained.manifest
    spec, weights = start_encoder(config, manifest.vocabulary)
    save_checkpoint(folder, Checkpoint(0, spec, weights, {}), 9)
    return TrainingRun(
        config=config,
        plan=batch_plan(config, manifest),
        manifest=manifest,
        lanes_folder=trained.prepared.lanes.path,
        run_folder=folder,
        first_step=0,
        last_step=steps,
    )


def test_the_settings_are_written_down_whole(trained):
    assert parse(json.loads(json.dumps(trained.config.model_dump(mode="json")))) == trained.config
    assert [source.format for source in trained.config.corpus.sources] == ["parquet"] * 4
    assert "cosent" in dump(trained.config)


def test_no_text_that_is_held_out_is_in_the_training_of_any_source(trained):
    pairs = pq.read_table(trained.prepared.corpus.pairs).to_pylist()
    queries = pq.read_table(trained.prepared.corpus.queries).to_pylist()
    documents = pq.read_table(trained.prepared.corpus.documents).to_pylist()
    held = {row["text"] for row in queries + documents}
    texts = {row[side] for row in pairs for side in ("anchor", "positive")}
    texts |= {text for row in pairs for text in row["negatives"] or ()}
    assert held and not held & texts
    # Texts alone are not held out by themselves.
    asked = {row["source"] for row in queries}
    assert {"questions", "hard"} <= asked and "alone" not in asked
    questions = [sentence(number) for number in range(100)]
    left = {row["anchor"] for row in pairs if row["source"] == 3}
    assert {*questions} - left == {*questions} & held
    ids = [row["id"] for row in pairs]
    assert len({*ids}) == len(ids)


def test_funnels_of_the_sources_add_up_to_that_of_the_corpus(trained):
    whole = json.loads(trained.prepared.corpus.funnel.read_text())
    own = json.loads(trained.prepared.corpus.statistics.read_text())["sources"]
    assert list(own) == NAMES
    for line in whole:
        name = {key: line[key] for key in line if key != "rows"}
        rows = [
            one["rows"] for lines in own.values() for one in lines if name.items() <= one.items()
        ]
        assert sum(rows) == line["rows"]


def test_each_source_has_its_prompts_and_its_rows(trained):
    manifest = trained.manifest
    assert [source.name for source in manifest.sources] == NAMES
    assert sum(source.rows for source in manifest.sources) == manifest.rows
    tokens = json.loads(trained.prepared.tokens.manifest.read_text())
    assert [one["prompts"] for one in tokens["sources"]] == [{"anchor": "query: "}, {}, {}, {}]
    examples = pq.read_table(trained.prepared.tokens.examples)
    of_example = dict(zip(examples["id"].to_pylist(), examples["source"].to_pylist(), strict=True))
    sides = {0: 2, 1: 2, 2: 3, 3: 1}
    for address, batch in LaneReader(trained.prepared.lanes.path, manifest):
        source = manifest.source_of(address.row)
        assert {of_example[one] for one in batch.column("id").to_pylist()} == {source}
    run = run_of(trained, Path(trained.folder.parent / "sides"), 24)
    for work in lane_feed(task_here(run)):
        assert all(len(granule.sides) == sides[work.source] for granule in work.granules)
        assert all((granule.scores is None) == (work.source != 1) for granule in work.granules)


def test_steps_follow_the_weights(trained):
    plan = batch_plan(trained.config, trained.manifest)
    asked = np.array(list(WEIGHTS.values())) * plan.steps_per_epoch / sum(WEIGHTS.values())
    counts = [source.per_epoch for source in plan.sources]
    assert sum(counts) == plan.steps_per_epoch
    assert (np.abs(counts - asked) < 1).all()
    without = parse(
        {
            **trained.config.model_dump(mode="json"),
            "corpus": {
                **trained.config.corpus.model_dump(mode="json"),
                "sources": [
                    one.model_dump(mode="json") | {"weight": None}
                    for one in trained.config.corpus.sources
                ],
            },
        }
    )
    by_size = batch_plan(without, trained.manifest).sources
    assert [one.per_epoch for one in by_size] == [one.steps for one in by_size]


@pytest.fixture(scope="module")
def losses(trained, tmp_path_factory) -> np.ndarray:
    """Of twelve steps that one worker makes without a stop."""
    return trained_here(run_of(trained, tmp_path_factory.mktemp("whole"), 12))[0]


def test_a_run_goes_on_as_if_it_had_not_stopped(trained, losses, tmp_path):
    first = run_of(trained, tmp_path / "parts", 12)
    begun, state = trained_here(first, 7)
    save_checkpoint(tmp_path / "parts", state, 9)
    rest, _ = trained_here(replace(first, first_step=7))
    np.testing.assert_allclose([*begun, *rest], losses, rtol=1e-5)


def test_frameworks_agree_on_every_objective(trained, tmp_path):
    curves = [
        trained_here(run_of(trained, tmp_path / name, 12, framework=name, dropout=0.0))[0]
        for name in ("torch", "tensorflow")
    ]
    np.testing.assert_allclose(*curves, rtol=2e-3)


def test_two_workers_share_each_step_of_one(trained, losses, tmp_path):
    run = run_of(trained, tmp_path, 12)

    def worker(collectives):
        task = task_here(run, collectives.rank, 2)
        each = STEPPERS.load("torch")(task, load_checkpoint(tmp_path, 0), collectives)
        return [each.step(work, run.learning_rate(work.index)) for work in lane_feed(task)]

    (first, second), _ = run_both(worker)
    assert first == second
    np.testing.assert_allclose(first, losses, rtol=1e-4)


@pytest.mark.matrix
def test_two_workers_give_the_curve_of_one(spark, trained, tmp_path):
    config = trained.config.changed("training", engine="torch", workers=2)
    # What is measured meanwhile changes no loss.
    config = config.changed("evaluation", every_checkpoints=0)
    pipelines.train(config.changed("run", folder=str(tmp_path / "run")))
    two = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    assert [line["step"] for line in two] == [line["step"] for line in trained.lines]
    np.testing.assert_allclose(
        [line["loss"] for line in two], [line["loss"] for line in trained.lines], rtol=1e-4
    )
    assert [line["sources"].keys() for line in two] == [
        line["sources"].keys() for line in trained.lines
    ]


def test_spark_feeds_the_same_work(trained, tmp_path):
    from pipelines.engines.tensorflowonspark.nodes import PARTITION, spark_feed

    run = run_of(trained, tmp_path / "run", 12)
    task = task_here(run)
    reader = run.lane_reader()
    messages = [(PARTITION, 0, 0, b"")] + [
        (step.index, step.epoch, reader.number(address), reader.message(address).to_pybytes())
        for step, addresses in run.shares(0, 1)
        for address in addresses
    ]
    queue = SimpleNamespace(next_batch=lambda count: [messages.pop(0) for _ in range(count)])
    for work, expected in zip(spark_feed(task, queue), lane_feed(task), strict=True):
        assert (work.index, work.source, work.visit) == (
            expected.index,
            expected.source,
            expected.visit,
        )
        sides = [granule.sides.keys() for granule in work.granules]
        assert sides == [granule.sides.keys() for granule in expected.granules]


def test_metrics_tell_the_loss_of_each_source(trained):
    for line in trained.lines:
        told = line["sources"].values()
        assert sum(one["steps"] for one in told) == 4
        mean = sum(one["loss"] * one["steps"] for one in told) / 4
        assert line["loss"] == pytest.approx(mean)
    seen = {name for line in trained.lines for name in line["sources"]}
    assert seen == {*NAMES}


def test_retrieval_is_measured_of_each_source_and_together(trained):
    after = json.loads((trained.folder / "metrics.json").read_text())["after"]
    parts = {name: one for name, one in after.items() if name.startswith("retrieval.")}
    parts = {name: one for name, one in parts.items() if "@" not in name}
    assert {"retrieval.questions", "retrieval.hard"} <= parts.keys()
    assert after["retrieval"]["queries"] == sum(one["queries"] for one in parts.values())
    corpus = trained.prepared.corpus
    pairs = pq.read_table(str(corpus.pairs), columns=["positive", "source"]).to_pylist()
    held = {row["text"] for row in pq.read_table(str(corpus.documents)).to_pylist()}
    texts = {row["positive"] for row in pairs} - {None}
    assert after["retrieval"]["documents"] == len(held | texts)
    own = {row["positive"] for row in pairs if row["source"] == NAMES.index("hard")}
    asked = pq.read_table(str(corpus.queries)).to_pylist()
    wanted = {row["document_id"] for row in asked if row["source"] == "hard"}
    assert after["retrieval.hard"]["documents"] == len(own) + len(wanted)


def test_widths_of_all_sources_are_measured_and_those_in_common_are_told(trained):
    after = json.loads((trained.folder / "metrics.json").read_text())["after"]
    assert {name for name in after if name.startswith("retrieval@")} == {
        "retrieval@8",
        "retrieval@4",
    }
    kept = {line["evaluation"] for line in read_evaluations(trained.folder)}
    assert {"retrieval@8 among held-out", "retrieval@4 among held-out"} < kept
    card = (trained.folder / "model" / "README.md").read_text()
    assert "truncatable to 8 (`truncate_dim`" in card


def test_a_run_with_other_weights_or_objectives_is_another(trained):
    tree = trained.config.model_dump(mode="json")
    tree["corpus"]["sources"][1]["objective"] = {"name": "cosine_regression"}
    tree["training"]["resume"] = True
    with pytest.raises(InputError, match=r"^corpus\.sources\.similar\.objective: the run was beg"):
        pipelines.train(parse(tree))


def test_lanes_of_other_sources_are_refused(trained):
    tree = trained.config.model_dump(mode="json")
    tree["corpus"]["sources"][1]["name"] = "other"
    with pytest.raises(InputError, match=r"^corpus\.sources: the lanes hold questions, similar, "):
        batch_plan(parse(tree), trained.manifest)


def test_a_weight_that_gives_no_step_is_refused(trained):
    tree = trained.config.model_dump(mode="json")
    tree["corpus"]["sources"][0]["weight"] = 1e-6
    told = r"^corpus\.sources\.weight: 1e-06 gives source questions none of \d+ steps"
    with pytest.raises(InputError, match=told):
        batch_plan(parse(tree), trained.manifest)
