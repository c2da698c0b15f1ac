"""The benchmark of one more file: which jobs it runs, and what it makes of their figures."""

import json
from pathlib import Path

import pytest

from pipelines.compare.processes import Usage
from pipelines.errors import InputError, PipelineError
from pipelines.files import storage
from pipelines.settings.load import load
from pipelines_bench import increment


@pytest.fixture
def texts(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(4):
        (folder / f"{number}.txt").write_text(f"The text number {number} is here.\n\nAnd ends.\n")
    return folder


def prepared_by_nobody(seen, funnel=lambda number: []):
    """Stands in for the job: reads its configuration, and leaves what a job leaves."""

    def measured(command, *, environment, deadline_seconds):
        config = load(command[-1])
        folder = Path(config.prepared.folder)
        seen.append((len(config.corpus.inputs), folder.exists(), folder.name))
        corpus = 30.0 if folder.name == "whole" else 3.0
        storage.write_json(
            folder / "stages.json", [{"stage": "corpus", "seconds": corpus, "kept": False}]
        )
        storage.write_json(folder / "corpus" / "funnel.json", funnel(len(seen)))
        cpu = {1: 10.0, 2: 99.0, 3: 28.0, 4: 100.0}[len(seen)]
        return Usage(seconds=cpu / 2, cpu_seconds=cpu, driver_bytes=1, own_bytes=1)

    return measured


def test_the_last_file_comes_to_what_was_prepared_without_it(texts, tmp_path, monkeypatch, capsys):
    seen = []
    monkeypatch.setattr(increment, "measure_command", prepared_by_nobody(seen))
    config = load(None, [f"prepared.folder={tmp_path / 'out' / 'prepared'}"])
    figures = increment.measure(config, str(texts))
    assert seen == [
        (1, False, "start"),
        (3, False, "grown"),
        (4, True, "grown"),
        (4, False, "whole"),
    ]
    assert figures["files"] == 4
    assert figures["cpu_share"] == 0.28
    assert figures["cpu_share_less_start"] == 0.2
    assert figures["corpus_seconds_share"] == 0.1
    json.dumps(figures)
    assert list((tmp_path / "out").iterdir()) == []
    assert "one more" in capsys.readouterr().out


def test_corpora_that_differ_are_no_measurement(texts, tmp_path, monkeypatch):
    measured = prepared_by_nobody([], funnel=lambda number: [number])
    monkeypatch.setattr(increment, "measure_command", measured)
    config = load(None, [f"prepared.folder={tmp_path / 'out' / 'prepared'}"])
    with pytest.raises(PipelineError, match="is not the one of all files"):
        increment.measure(config, str(texts))


@pytest.mark.parametrize("files", [None, 1])
def test_what_cannot_be_measured_is_refused(texts, tmp_path, files):
    config = load(None, [f"prepared.folder={tmp_path / 'prepared'}"])
    with pytest.raises(InputError) as raised:
        increment.measure(config, None if files is None else str(texts / "0.txt"))
    assert raised.value.key == "--data"
