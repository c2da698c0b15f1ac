"""What is missing is named with its extra, or left out with one line."""

import subprocess
import sys

import pytest

import pipelines
from pipelines import libraries
from pipelines.catalog import COMMANDS, WITHOUT_SPARK
from pipelines.cli import main
from pipelines.errors import EngineUnavailable, InputError
from pipelines.jobs.base import say_report
from pipelines.jobs.report import draw_report, report
from pipelines.settings.load import parse
from pipelines.spark.session import spark_session


@pytest.fixture
def without(monkeypatch):
    """Has modules be missing."""
    find = libraries.find_spec
    monkeypatch.setattr(libraries, "_LOGGED", set())

    def hide(*modules: str) -> None:
        monkeypatch.setattr(
            libraries, "find_spec", lambda name: None if name in modules else find(name)
        )

    return hide


def test_what_is_missing_is_named_with_the_command(without):
    without("torch", "sklearn")
    with pytest.raises(InputError, match=r'^key: torch is not installed\. Run `pip .*\[torch\]"`'):
        libraries.check_installed("key", "torch")
    with pytest.raises(InputError, match=r"scikit-learn is .*\[evaluation\]\"` on the driver\.$"):
        libraries.check_installed("key", "sklearn", where=libraries.DRIVER)
    with pytest.raises(EngineUnavailable, match=r"sentence-pipelines\[deepspeed\]"):
        libraries.check_installed("training.engine", "torch", "deepspeed")
    libraries.check_installed("key", "numpy")
    assert not libraries.is_installed("no_such_package.part")


def test_a_report_is_left_out_with_one_line_and_no_path(without, caplog, capsys, tmp_path):
    without("matplotlib")
    config = parse({"run": {"folder": str(tmp_path / "run")}})
    assert draw_report(config) is None
    assert draw_report(config) is None
    assert caplog.messages == [
        "the report is left out: matplotlib is not installed. Run "
        '`pip install "sentence-pipelines[report]"`'
    ]
    say_report(tmp_path / "report.html")
    assert capsys.readouterr().out == ""
    with pytest.raises(InputError, match=r"^report: matplotlib is not installed\. .*\[report\]"):
        report(config)


@pytest.mark.parametrize("command", [*COMMANDS])
def test_a_command_needs_its_libraries_before_anything_else(without, command, capsys):
    without("pyspark", "sentencex")
    missing = ("sentencex", "jobs") if command in WITHOUT_SPARK else ("pyspark", "spark")
    assert main([command]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {command}: {missing[0]} is not installed. Run `pip install ")
    assert f"[{missing[1]}]" in said
    assert said.count("\n") == 1


def test_names_of_the_package_need_spark_and_settings_do_not(without):
    without("pyspark")
    assert pipelines.load(None) and pipelines.Config
    for name in ("train", "embed_column"):
        with pytest.raises(InputError, match=rf"^{name}: pyspark is not .*\[spark\]\"` here, or "):
            getattr(pipelines, name)
    # It starts Spark only to measure the model in service again.
    assert pipelines.promote
    with pytest.raises(InputError, match=r"^spark\.master: pyspark is not installed\. "):
        spark_session(parse({}))


@pytest.mark.parametrize("job", ["run", "train"])
def test_words_of_the_corpus_need_scikit_learn_before_anything_begins(without, tmp_path, job):
    without("sklearn")
    folders = {
        "run": {"folder": str(tmp_path / "run")},
        "prepared": {"folder": str(tmp_path / "p")},
    }
    tree = {"recipe": "domain", "training": {"engine": "torch", "framework": "torch"}}
    tree["encoder"] = {"lsa": {"dimensions": 128}}
    tree["corpus"] = {"format": "jsonl", "inputs": [str(tmp_path / "a.jsonl")]}
    with pytest.raises(InputError, match=r"encoder\.lsa\.dimensions: scikit-learn is not"):
        getattr(pipelines, job)(parse(tree | folders))
    assert not (tmp_path / "prepared" / "corpus").exists()


def test_a_search_by_an_index_needs_its_library_before_spark_starts(without):
    without("usearch")
    with pytest.raises(InputError, match=r"--index: usearch is not installed\. .*\[search\]"):
        pipelines.search(parse({}), ["a"], 1, indexed=True)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["rollback", "export"])
def test_a_job_without_spark_runs_where_spark_is_not_installed(tmp_path, command):
    code = (
        "import sys; sys.modules['py4j'] = sys.modules['pyspark'] = None\n"
        "from pipelines.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    settings = [f"--set=promotion.target={tmp_path}", f"--set=run.folder={tmp_path / 'run'}"]
    done = subprocess.run(
        [sys.executable, "-c", code, command, *settings],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    *_, last = done.stderr.splitlines()
    assert last.startswith("error: ")
    assert "Traceback" not in done.stderr
