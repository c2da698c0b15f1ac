"""What `publish` does with every store, asked of the stores behind servers."""

from __future__ import annotations

import numpy as np
import pytest
from publish_stores import STORES
from server_stores import unit
from test_publish import (
    publish,
    rows_of,
    table,
    test_a_table_without_the_log_is_read_whole,
    test_another_model_gets_a_collection_of_its_own,
    test_it_follows_new_changed_and_deleted_rows,
    test_keys_may_be_strings_with_any_character,
    test_other_columns_make_a_new_collection,
    test_several_versions_are_caught_up_at_once,
    test_values_of_other_types_come_whole,
)
from vector_tables import VectorTables

__all__ = [
    "table",
    "test_a_table_without_the_log_is_read_whole",
    "test_another_model_gets_a_collection_of_its_own",
    "test_it_follows_new_changed_and_deleted_rows",
    "test_keys_may_be_strings_with_any_character",
    "test_other_columns_make_a_new_collection",
    "test_several_versions_are_caught_up_at_once",
    "test_values_of_other_types_come_whole",
]

pytestmark = pytest.mark.slow
OFTEN = ("qdrant", "milvus", "opensearch")
# Other forms of the same modules.
MORE = ("qdrant_folder", "milvus_file", "elasticsearch")


@pytest.fixture(params=[*OFTEN, *(pytest.param(name, marks=pytest.mark.matrix) for name in MORE)])
def served(request, tmp_path):
    with STORES[request.param](tmp_path) as store:
        yield store


def test_int8_vectors_are_multiplied_out_to_their_direction(served, tmp_path, monkeypatch):
    table = VectorTables(tmp_path / "embedded", int8=True)
    table.write(rows_of(40, at_3=None))
    assert publish(served, table, monkeypatch).rows == 39
    found = served.rows(served.target.collection)
    assert {*found} == {*table.expected()}
    for key, (vector, _) in table.expected().items():
        # Qdrant keeps unit vectors under cosine.
        np.testing.assert_allclose(unit(found[key]["embedding"]), unit(vector), atol=1e-6)
