"""The benchmark of a preparation: its stages, and what it makes of their CPU time."""

import json

import pytest

from pipelines.errors import InputError
from pipelines.settings.load import load
from pipelines_bench.prepare import measure

SENTENCE = "The ship number {} left the old harbour, and nobody on the wall saw it come back."


def test_every_stage_has_its_share(spark, tmp_path, capsys):
    texts = [" ".join(SENTENCE.format(6 * page + line) for line in range(6)) for page in range(40)]
    content = "\n\n".join(texts)
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "ships.txt").write_text(content)
    config = load(None, ["corpus.near_duplicates=0", "lanes.count=2", "lanes.granule=4"])
    figures = measure(config, str(folder))
    assert list(figures["cpu_seconds"]) == ["start", "corpus", "tokens", "lanes"]
    assert figures["bytes"] == len(content)
    total = sum(figures["cpu_seconds"].values())
    assert figures["kb_per_cpu_second"] == pytest.approx(len(content) / 1000 / total, abs=0.06)
    assert figures["pairs"] > 100
    assert len(figures["lanes"]) == 16
    json.dumps(figures)
    assert "kB of text per CPU second" in capsys.readouterr().out


def test_a_folder_is_needed():
    with pytest.raises(InputError) as raised:
        measure(load(None), None)
    assert raised.value.key == "--data"
