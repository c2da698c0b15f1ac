"""`embed` and `search` as a user types them."""

import pytest

from pipelines.cli import main


@pytest.fixture
def settings(small_model, sentence_file, tmp_path):
    pairs = {
        "model": small_model,
        "inputs": f"[{sentence_file}]",
        "output": tmp_path / "table",
        "part_rows": 200,
    }
    return [p for key, value in pairs.items() for p in ("--set", f"embedding.{key}={value}")]


def test_embed_then_search(spark, settings, tmp_path, capsys, lines, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["search", "--query", "x", *settings]) == 2
    assert "error: embedding.output: there is no folder" in capsys.readouterr().err
    assert main(["embed", *settings]) == 0
    assert str(tmp_path / "table") in capsys.readouterr().out
    (tmp_path / "queries.txt").write_text(f"{lines[3]}\n\n{lines[250]}\n")
    for extra in ([], ["--index"]):
        arguments = ["--query", lines[17], "--queries", str(tmp_path / "queries.txt"), "-k", "2"]
        assert main(["search", *arguments, *extra, *settings]) == 0
        rows = [
            [cell.strip() for cell in line.split("│")[1:-1]]
            for line in capsys.readouterr().out.splitlines()
            if line.startswith("│")
        ]
        best = [row for row in rows if row[0]]
        assert len(rows) >= 6
        assert [row[2] for row in best] == ["17", "3", "250"]
        assert [float(row[1]) > 0.99 for row in best] == [True] * 3


def test_bad_arguments_are_refused(settings, tmp_path, capsys) -> None:
    cases = [
        (["embed", "--set", "embedding.model=nowhere"], "embedding.model: there is no folder"),
        (["embed", *settings[:2]], "embedding.inputs: it is empty"),
        (["embed", "--set", "embedding.quantise=int4"], "embedding.quantise: `int4` does not fit"),
        (["search", "--queries", str(tmp_path / "none.txt")], "--queries: "),
        (["search", "-k", "0", "--query", "x"], "Invalid value for '-k'"),
    ]
    for arguments, message in cases:
        assert main(arguments) == 2
        assert capsys.readouterr().err.startswith(f"error: {message}")
