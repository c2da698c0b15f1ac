"""The benchmark of tokenising: three ways to the same ids, and their CPU time."""

import gzip
import importlib.util
import subprocess
import sys

import pyarrow.parquet as pq
import pytest

from pipelines.errors import InputError
from pipelines.settings import Config
from pipelines_bench import tokenise
from pipelines_bench.cpu import CpuMeter

BURN = """
import sys, time
while time.process_time() < 0.5:
    pass
print("done", flush=True)
sys.stdin.read()
"""
LINES = ['<doc id="1" title="One">', "One", "", "A line of text [SEP] with words.", "</doc>", " "]


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    with gzip.open(folder / "one.txt.gz", "wt") as file:
        file.write("\n".join(LINES))
    (folder / "two.md").write_bytes("# Title\r\n\r\nÜber Zeilen\r\n".encode() * 30)
    return folder


def test_lines_become_texts(data, tmp_path):
    files = [data / "one.txt.gz", data / "two.md"]
    tokenise.write_texts(files, tmp_path / "pairs.parquet")
    table = pq.read_table(tmp_path / "pairs.parquet")
    assert table["anchor"].to_pylist() == ["One", LINES[3], *["# Title", "Über Zeilen"] * 30]
    assert table["id"].to_pylist() == list(range(62))


def test_the_ids_of_the_three_are_compared(spark, data):
    figures = tokenise.measure(Config(), str(data))
    assert figures["sentences"] == 62
    assert figures["differing_sentences"] == 0
    assert figures["tokens"] > 62 * 2
    for name in ("spark", "spark_with_start", "library"):
        assert figures[f"{name}_mtok_per_cpu_s"] >= 0
    installed = importlib.util.find_spec("datasets") is not None
    assert (figures["datasets_mtok_per_cpu_s"] is not None) == installed


def test_other_ids_are_counted(spark, data, monkeypatch):
    def with_short_texts(session, config):
        tokens = config.tokens.model_copy(update={"max_length": 8})
        return whole(session, config.model_copy(update={"tokens": tokens}))

    whole = tokenise.tokenise
    monkeypatch.setattr(tokenise, "tokenise", with_short_texts)
    assert tokenise.measure(Config(), str(data))["differing_sentences"] == 1


def test_a_folder_without_text_is_refused(tmp_path):
    with pytest.raises(InputError, match="no text files"):
        tokenise.measure(Config(), str(tmp_path))


def test_time_of_a_process_that_ended_is_kept():
    with CpuMeter() as meter:
        before = meter.seconds()
        with subprocess.Popen(
            [sys.executable, "-c", BURN],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout.readline() == "done\n"
            alive = meter.seconds()
        assert alive - before >= 0.45
        assert meter.seconds() >= alive
