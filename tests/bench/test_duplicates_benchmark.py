"""The benchmark of near duplicates: its copies are what it says, and so are its figures."""

import json
import random

import pytest
from corpus_factory import write_docstrings

from pipelines.settings import Config
from pipelines_bench import duplicates
from pipelines_bench.duplicates import edited, measure, plain_shingles, plain_similarity

SENTENCE = (
    "The harbour master walked slowly along the old wall and counted every ship that came in."
)


@pytest.mark.parametrize("band", [(0.5, 0.55), (0.7, 0.75), (0.9, 0.95)])
def test_copies_are_as_similar_as_they_should_be(band):
    copies = [copy for seed in range(20) for copy in edited(SENTENCE, band, random.Random(seed))]
    assert len(copies) > 10
    for copy in copies:
        similarity = plain_similarity(plain_shingles(SENTENCE), plain_shingles(copy.text))
        assert band[0] <= similarity < band[1]
        assert copy.similarity == similarity


def test_what_cannot_be_edited_into_a_band_gives_no_copy():
    assert edited("Short", (0.97, 0.99), random.Random(1)) == []


def test_planted_copies_are_found(spark, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(duplicates, "COPIES_PER_BAND", 10)
    write_docstrings(tmp_path / "docstrings.jsonl")
    lines = (tmp_path / "docstrings.jsonl").read_text().splitlines()
    texts = [json.loads(line)["text"] for line in lines]
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "docstrings.txt").write_text("\n\n".join(texts))
    figures = measure(Config(), str(folder))
    assert figures["precision"] == 1
    assert figures["recall"] >= 0.9
    assert figures["cpu_seconds_per_million"] > 0
    assert figures["threshold"] == 0.8
    assert figures["texts"] > figures["dropped"] > 30
    assert "0.80 to 0.85" in capsys.readouterr().out
