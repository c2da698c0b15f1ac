"""The benchmark makes a part as a task does, from files that are like those of a job."""

import pyarrow.parquet as pq

from pipelines.settings import MiningSettings
from pipelines.vectors.mining_parts import Work, mine_parts
from pipelines.vectors.mining_texts import MOST_ROWS
from pipelines_bench.mine import Measured, _print, _write


def test_a_part_is_made(tmp_path, capsys) -> None:
    texts = _write(tmp_path, anchors=30, documents=MOST_ROWS + 100, dimensions=16)
    settings = MiningSettings(negatives=2, relative_margin=None)
    folder = tmp_path / "mined"
    work = Work(
        settings=settings,
        pairs=tmp_path / "pairs",
        texts=texts,
        folder=folder,
        threads=1,
    )
    assert list(mine_parts(["part-00000"], work=work, attempts=tmp_path)) == [30]
    rows = pq.read_table(folder / "part-00000.parquet").to_pylist()
    assert len(rows) == 30
    assert all(row["negative_0"].startswith("the text of number") for row in rows)
    assert all(row["positive_score"] > 0.5 for row in rows)
    _print([Measured(1000, 30, 12.3, 200.0, 50.0)])
    assert "1,000" in capsys.readouterr().out
