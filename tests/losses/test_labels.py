"""Labels are 0 and 1, which is seen before a training starts."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.errors import InputError
from pipelines.jobs.training_plan import check_labels
from pipelines.settings.load import parse


def config_of(name):
    corpus = {"pairs": "columns", "score_column": "score"}
    return parse({"corpus": corpus, "objective": {"name": name}})


@pytest.fixture
def examples(tmp_path):
    """Two files, the second of which holds a score that is no label."""
    for number, scores in enumerate(([0, 1, 1], [1, 0.25, 0])):
        table = pa.table({"id": [1, 2, 3], "score": pa.array(scores, pa.float32())})
        pq.write_table(table, tmp_path / f"part-{number}.parquet")
    return tmp_path


@pytest.mark.parametrize("name", ["contrastive", "online_contrastive"])
def test_other_scores_are_refused(examples, name):
    told = rf"^corpus\.score_column: `{name}` needs labels, 0 or 1, and 0\.25 is among the sc"
    with pytest.raises(InputError, match=told):
        check_labels(config_of(name), examples)
    (examples / "part-1.parquet").unlink()
    check_labels(config_of(name), examples)


def test_scores_may_be_any_where_they_are_no_labels(examples):
    check_labels(config_of("cosent"), examples)
