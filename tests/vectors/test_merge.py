"""Merging into Delta and Iceberg: the statement, as Spark parses it, and clusters without them.

Neither connector can be had here, so that no statement is carried out.
"""

import pytest

from pipelines.errors import InputError
from pipelines.settings.load import parse
from pipelines.vectors.embed import embed_table
from pipelines.vectors.merge import SOURCE, create_statement, merge_statement

SCHEMA = "`id` bigint, `the text` string, `a``b` int, embedding array<float>"


def plan_of(spark, statement: str):
    """What Spark's own parser makes of a statement."""
    return spark._jsparkSession.sessionState().sqlParser().parsePlan(statement)


def test_the_statement_says_what_becomes_of_each_row(spark) -> None:
    schema = spark.createDataFrame([], SCHEMA).schema
    plan = plan_of(spark, merge_statement("lake.db.vectors", "id", schema))
    assert plan.nodeName() == "MergeIntoTable"
    assert plan.targetTable().toString().count("[lake, db, vectors]") == 1
    assert SOURCE in plan.sourceTable().toString()
    assert "target.id" in plan.mergeCondition().toString()
    matched = plan.matchedActions()
    assert (matched.size(), plan.notMatchedActions().size()) == (1, 1)
    condition = matched.apply(0).condition().get().toString()
    for column in ("the text", "a`b", "embedding"):
        assert f"target.{column}" in condition
    assert "target.id" not in condition
    assert matched.apply(0).nodeName() == "UpdateStarAction"
    assert plan.notMatchedActions().apply(0).nodeName() == "InsertStarAction"
    gone = plan.notMatchedBySourceActions()
    assert gone.size() == 1
    assert gone.apply(0).nodeName() == "DeleteAction"


def test_rows_that_hold_a_map_are_not_compared(spark) -> None:
    nested = "id bigint, text string, m array<struct<x: map<string, int>>>"
    plan = plan_of(spark, merge_statement("t", "id", spark.createDataFrame([], nested).schema))
    assert plan.matchedActions().apply(0).condition().isEmpty()


def test_a_table_that_is_not_there_is_made_of_the_rows(spark) -> None:
    plan = plan_of(spark, create_statement("lake.db.vectors", "iceberg"))
    assert plan.nodeName() == "CreateTableAsSelect"
    assert "iceberg" in plan.toString()


@pytest.mark.parametrize(
    ("kind", "problem", "package"),
    [
        ("delta", "deltalake knows no catalog for `lake.db.vectors`", "io.delta:delta-spark"),
        ("iceberg", ".*pyiceberg knows no catalog `lake`.*", "iceberg-spark-runtime"),
    ],
)
def test_a_target_that_nothing_here_reaches_is_refused_at_once(
    spark, job, tmp_path, kind, problem, package
) -> None:
    config = job(key_column="id", merge_into="lake.db.vectors", merge_format=kind)
    refused = rf"^embedding.merge_into: {problem}\. Name .*, or add the package .*{package}"
    with pytest.raises(InputError, match=refused):
        embed_table(spark, config)
    assert not (tmp_path / "table").exists()


def test_merging_needs_keys() -> None:
    with pytest.raises(InputError, match=r"^embedding.merge_into: .* Set embedding.key_column"):
        parse({"embedding": {"merge_into": "t"}})
    with pytest.raises(InputError, match=r"^embedding.merge_format: .*delta, iceberg"):
        parse({"embedding": {"merge_into": "t", "merge_format": "hudi", "key_column": "id"}})
