"""What beginning costs: commands, the pairs that are prepared, and the engines that can run."""

import csv
from importlib.util import find_spec
from pathlib import Path

import pytest

from pipelines.catalog import ENGINES
from pipelines.errors import InputError, PipelineError
from pipelines.files import storage
from pipelines.progress import next_part
from pipelines.settings import Config
from pipelines.settings.load import dump, load
from pipelines_bench import benchmark, startup
from pipelines_bench.startup import (
    COMMANDS,
    Cost,
    command_cost,
    csv_pairs,
    installed_engines,
    measure,
    named_parts,
    prepare_config,
    startup_table,
)

PAIRS = [(f"what is number {n}?", f"it is the number {n}, after {n - 1}") for n in range(12)]


def write(path, rows):
    with path.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows(rows)
    return path


@pytest.fixture(autouse=True)
def once(monkeypatch):
    monkeypatch.setattr(startup, "REPEATS", 1)


@pytest.mark.slow
def test_commands_alone_have_their_cost_and_start_no_spark(capsys):
    figures = measure(Config(), None, cases="commands")
    assert {*figures["commands"]} == {*COMMANDS}
    for cost in (figures["imports"], *figures["commands"].values()):
        assert cost.keys() == {"cpu_seconds", "wall_seconds"}
        assert min(cost.values()) > 0
    assert (figures["prepare"], figures["engines"]) == ({}, [])
    assert "a wrong key" in capsys.readouterr().out


def test_a_part_that_there_is_not_is_refused():
    assert named_parts(None) == {"commands", "prepare", "engines"}
    with pytest.raises(InputError, match=r"no `engine`\. Choose from commands, prepare, engines"):
        named_parts("commands,engine")


def test_a_command_that_ends_otherwise_is_no_measurement():
    with pytest.raises(PipelineError, match=r"ended with 2 .*no such setting"):
        command_cost(["train", "--set", "training.lr=1"], 0)


def test_pairs_are_taken_by_name_or_else_by_place(tmp_path):
    rows = [["id", "question", "answer"], ["1", "a?", "a."], ["2", "", "b."], ["3", "c?", "c."]]
    file = write(tmp_path / "pairs.csv", rows)
    assert list(csv_pairs(file, ("question", "answer"))) == [("a?", "a."), ("c?", "c.")]
    assert list(csv_pairs(file, ("x", "y"))) == [("1", "a?"), ("3", "c?")]


def test_what_holds_no_pairs_is_refused(tmp_path):
    with pytest.raises(InputError, match="there is no file"):
        list(csv_pairs(tmp_path / "none.csv", ("a", "b")))
    with pytest.raises(InputError, match="has no two columns"):
        list(csv_pairs(write(tmp_path / "one.csv", [["a"], ["b"]]), ("a", "b")))


def test_the_preparation_is_of_the_pairs_alone(tmp_path):
    config = prepare_config(Config(), PAIRS, tmp_path / "rows-12")
    # The settings travel to the job as a file.
    storage.write_text(tmp_path / "job.yaml", dump(config))
    assert load(tmp_path / "job.yaml") == config
    (file,) = config.corpus.inputs
    assert list(csv_pairs(Path(file), config.corpus.pair_columns)) == PAIRS
    assert config.lanes.granule == 4
    assert config.prepared.folder.startswith(str(tmp_path))


def test_engines_without_their_libraries_are_left_out():
    found = installed_engines(Config())
    assert {"local", "torch", "tensorflowonspark"} <= set(found) <= set(ENGINES)
    assert ("horovod" in found) == (find_spec("horovod") is not None)


def test_the_table_has_a_row_for_each_start():
    engine = {"cpu_seconds_cold": 40.1, "wall_cold": 20.2, "cpu_seconds_warm": 9, "wall_warm": 5}
    table = startup_table(
        {"--help": Cost(0.2, 0.3)}, {2700: Cost(70, 40)}, [engine | {"engine": "x"}]
    )
    names, cpu, wall = (list(column.cells) for column in table.columns)
    assert names == ["--help", "prepare, 2,700 rows", "x, first run", "x, second run in a session"]
    assert cpu == ["0.20", "70.0", "40.1", "9.0"]
    assert wall == ["0.30", "40.0", "20.2", "5.0"]


def test_a_benchmark_says_what_it_does_from_its_first_second(monkeypatch, capsys):
    def slow(config: Config, data: str | None) -> dict[str, object]:
        next_part("round 1 of 2")
        assert capsys.readouterr().err == "benchmark startup\n"
        return {"data": data}

    monkeypatch.setattr("pipelines_bench.startup.measure", slow)
    assert benchmark("startup")(Config(), "pairs.csv") == {"data": "pairs.csv"}


def test_a_library_that_a_benchmark_lacks_is_named_before_it_begins(monkeypatch):
    monkeypatch.setattr("pipelines.libraries.find_spec", {"torch": None}.__getitem__)
    says = r"benchmark objectives: torch is not installed\. Run .pip install .*\[torch\]"
    with pytest.raises(InputError, match=says):
        benchmark("objectives")
