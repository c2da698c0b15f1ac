"""Runs as a scheduler promotes them: the better, the worse, the changed, and the way back."""

import json
import shutil
from pathlib import Path

import pytest
from corpus_factory import only_retrieval, small_config

from pipelines.cli import main
from pipelines.files import storage
from pipelines.settings.load import dump

# How the engine starts a worker has tests of its own.
pytestmark = pytest.mark.usefixtures("warm_workers")

NDCG = "retrieval.ndcg@10"


@pytest.fixture(scope="module")
def runs(prepared, tmp_path_factory) -> Path:
    """A folder with the runs `poor` and `good`, trained for 1 and for 60 steps, and measured."""
    folder = tmp_path_factory.mktemp("runs")
    config = only_retrieval(small_config(prepared, engine="local", workers=1, framework="torch"))
    (folder / "small.yaml").write_text(dump(config))
    for name, steps in (("poor", 1), ("good", 60)):
        assert call(folder, name, "train", f"training.max_steps={steps}") == 0
        assert call(folder, name, "evaluate") == 0
    return folder


@pytest.fixture
def target(tmp_path) -> Path:
    return tmp_path / "served"


def call(runs: Path, run: str, command: str, *settings: str, **options: str) -> int:
    given = [f"run.folder={runs / run}", *settings]
    arguments = [command, "--config", str(runs / "small.yaml")]
    arguments += [part for setting in given for part in ("--set", setting)]
    return main([*arguments, *(part for item in options.items() for part in item)])


def promote(runs: Path, run: str, target: Path, *settings: str) -> int:
    # Of the few queries of a small corpus even a large difference may be chance at 95 %.
    given = (f"promotion.target={target}", "promotion.confidence=0.6", *settings)
    return call(runs, run, "promote", *given)


def ndcg(runs: Path, run: str) -> float:
    return json.loads((runs / run / "metrics.json").read_text())["after"]["retrieval"]["ndcg@10"]


def verdict(runs: Path, run: str) -> dict:
    return json.loads((runs / run / "promotion.json").read_text())


def content(folder: Path) -> dict[str, bytes | str]:
    return {
        str(path.relative_to(folder)): str(path.readlink())
        if path.is_symlink()
        else path.read_bytes()
        for path in folder.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def test_the_better_model_is_promoted_and_the_worse_refused(runs, target, capsys):
    from sentence_transformers import SentenceTransformer

    assert ndcg(runs, "poor") < ndcg(runs, "good")
    assert promote(runs, "poor", target) == 0
    assert "in service before: nothing" in capsys.readouterr().out
    assert promote(runs, "good", target) == 0
    told = verdict(runs, "good")
    assert (told["promoted"], told["version"], told["replaces"]) == (True, "00002", "00001")
    # On the same texts, figures that are known are not measured again.
    assert told["judgements"][0]["served"] == ndcg(runs, "poor")
    assert told["run"] == str(runs / "good")
    assert "@" in told["who"]
    assert SentenceTransformer(str(target / "current")).encode(["a text"]).shape == (1, 32)
    record = json.loads((target / "current" / "promotion.json").read_text())
    assert record == {key: told[key] for key in record}

    before = content(target)
    capsys.readouterr()
    assert promote(runs, "poor", target) == 3
    refusal = capsys.readouterr().err
    assert refusal.count("\n") == 1
    assert refusal.startswith(f"error: promotion.tolerance: {NDCG} is {ndcg(runs, 'poor'):.4f}, ")
    assert content(target) == before
    told = verdict(runs, "poor")
    assert told["promoted"] is False
    assert told["refusals"] == [refusal.removeprefix("error: ").strip()]

    # A task that is run again, after its job was killed at its end, only says what was done.
    (runs / "good" / "promotion.json").unlink()
    assert promote(runs, "good", target) == 0
    assert content(target) == before
    told = verdict(runs, "good")
    assert (told["promoted"], told["version"]) == (True, "00002")
    assert promote(runs, "poor", target, f"promotion.tolerance.{NDCG}=100") == 0
    assert storage.read_json(target / "current" / "promotion.json")["replaces"] == "00002"


def test_a_model_that_would_be_the_one_in_service_is_not_trained_again(runs, target, capsys):
    only_new = (f"promotion.target={target}", "run.only_new=true")
    good = ("training.max_steps=60", *only_new)
    # Nothing is in service yet: that the folder holds a run is noticed later.
    assert call(runs, "good", "train", *good) == 2
    assert promote(runs, "good", target) == 0
    capsys.readouterr()
    assert call(runs, "new", "train", *good) == 4
    said = capsys.readouterr().err
    assert said.startswith("run.only_new: the model in service, 00001, was trained with the same")
    assert not (runs / "new").exists()
    # Another number of steps, another seed: a training that would begin.
    assert call(runs, "poor", "train", "training.max_steps=1", *only_new) == 2
    assert call(runs, "good", "train", "training.seed=99", *good) == 2
    assert "holds a run already" in capsys.readouterr().err
    # Nor does it without a place to look for the model.
    assert call(runs, "new", "train", "run.only_new=true") == 2
    assert "promotion.target: it is not set" in capsys.readouterr().err


def test_what_was_measured_on_other_texts_is_measured_again(runs, target, caplog):
    assert promote(runs, "good", target) == 0
    path = target / "current" / "promotion.json"
    record = storage.read_json(path)
    record |= {
        "sets": {"retrieval": "of another corpus"},
        "figures": {"retrieval": {"ndcg@10": 0.0}},
    }
    storage.write_json(path, record)
    with caplog.at_level("INFO", "pipelines"):
        assert promote(runs, "poor", target) == 3
    assert "measuring the model in service on retrieval" in caplog.text
    served = verdict(runs, "poor")["judgements"][0]["served"]
    assert served == pytest.approx(ndcg(runs, "good"), abs=1e-6)


def test_minimums_hold_for_the_first_promotion(runs, target, capsys):
    assert promote(runs, "good", target, f"promotion.minimum.{NDCG}=99") == 3
    assert "error: promotion.minimum: " in capsys.readouterr().err
    assert not target.exists()


def test_there_is_a_way_back(runs, target, capsys):
    for run in ("poor", "good"):
        assert promote(runs, run, target) == 0
    back = [f"promotion.target={target}"]
    assert call(runs, "good", "rollback", *back) == 0
    assert f"in service  {target}/versions/00001" in capsys.readouterr().out
    assert promote(runs, "good", target) == 3
    refusal = capsys.readouterr().err
    assert refusal.startswith("error: promotion.target: this model is 00002, which was rolled back")
    assert refusal.count("\n") == 1
    assert call(runs, "good", "rollback", *back) == 2
    assert "keeps no version from before 00001" in capsys.readouterr().err
    assert call(runs, "good", "rollback", *back, **{"--to": "00009"}) == 2
    assert "error: --to: there is no version 00009" in capsys.readouterr().err
    assert call(runs, "good", "rollback", *back, **{"--to": "00002"}) == 0
    assert (target / "current").readlink() == Path("versions/00002")
    # What was removed by hand is replaced by what is there.
    shutil.rmtree(target / "versions" / "00002")
    assert promote(runs, "good", target) == 2
    assert "which does not exist. Put a version in service with" in capsys.readouterr().err
    assert call(runs, "good", "rollback", *back, **{"--to": "00001"}) == 0
    assert promote(runs, "good", target) == 0


def test_only_what_was_evaluated_is_promoted(runs, target, tmp_path, capsys):
    def refusal(run: str, *settings: str, target: Path | None = target) -> str:
        given = [] if target is None else [f"promotion.target={target}"]
        assert call(runs, run, "promote", *given, *settings) == 2
        return capsys.readouterr().err

    assert refusal("good", target=None).startswith("error: promotion.target: it is not set. ")
    assert "there is no model in" in refusal("absent")
    shutil.copytree(runs / "good", tmp_path / "changed")
    (tmp_path / "changed" / "model" / "modules.json").write_text("[]")
    assert "changed since its evaluation. Run `evaluate`" in refusal(str(tmp_path / "changed"))
    (tmp_path / "changed" / "metrics.json").unlink()
    assert "was not evaluated. Run `evaluate` first" in refusal(str(tmp_path / "changed"))
    asked = "promotion.metrics=[dev.spearman]"
    assert "`dev.spearman` was not measured. Choose one of retrieval.nd" in refusal("good", asked)
    assert not target.exists()
