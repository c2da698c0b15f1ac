"""Qdrant's own engine, embedded, takes our ids, payloads and indexes, and answers conditions.

It has no server and no aliases, so it runs beside the stand-in. It is skipped without the package
`qdrant-edge-py`.
"""

from __future__ import annotations

import uuid
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from server_stores import VECTOR, unit
from test_server_stores import expected, layout_of, rows_of

from pipelines.publishing.qdrant import index_type, point_id
from pipelines.publishing.store import payload_of, vectors_of

qdrant_edge = pytest.importorskip("qdrant_edge", reason="no qdrant-edge-py is installed")

KEYS = ["a", "ü/1", " b ", "d"]


@pytest.fixture
def shard(tmp_path) -> Any:
    layout = layout_of(pa.string())
    rows = rows_of(layout, KEYS)
    vectors = qdrant_edge.EdgeVectorParams(layout.width, qdrant_edge.Distance.Cosine)
    (tmp_path / "shard").mkdir()
    shard = qdrant_edge.EdgeShard.create(
        str(tmp_path / "shard"), qdrant_edge.EdgeConfig(vectors=vectors)
    )
    update = qdrant_edge.UpdateOperation
    for column in layout.payload:
        kind = getattr(qdrant_edge.PayloadSchemaType, index_type(column).capitalize())
        shard.update(update.create_field_index(column.name, kind))
    points = [
        qdrant_edge.Point(uuid.UUID(point_id(key)), vector, payload)
        for key, vector, payload in zip(
            KEYS, vectors_of(layout, rows).tolist(), payload_of(rows), strict=True
        )
    ]
    for _ in range(2):
        shard.update(update.upsert_points(points))
    yield shard
    shard.close()


def test_points_come_back_whole(shard):
    assert shard.count(qdrant_edge.CountRequest(exact=True)) == len(KEYS)
    wanted = expected(rows_of(layout_of(pa.string()), KEYS))
    for key in KEYS:
        (found,) = shard.retrieve([uuid.UUID(point_id(key))], True, True)
        row = {name: value for name, value in wanted[key].items() if name != "id"}
        np.testing.assert_allclose(found.vector, unit(row.pop(VECTOR)), atol=1e-6)
        assert found.payload == row


@pytest.mark.parametrize(
    ("column", "condition"),
    [
        ("language", {"match": ("MatchValue", {"value": "de"})}),
        ("tags", {"match": ("MatchValue", {"value": "b c"})}),
        ("year", {"match": ("MatchValue", {"value": -(2**40) + 1})}),
        ("day", {"range": ("RangeDateTime", {"gte": "2026-01-30T00:00:00Z"})}),
        ("moment", {"range": ("RangeDateTime", {"lt": "2026-01-31T12:00:01Z"})}),
    ],
)
def test_filters_find_their_rows(column, condition, shard):
    asked = {name: getattr(qdrant_edge, kind)(**given) for name, (kind, given) in condition.items()}
    must = [qdrant_edge.FieldCondition(key=column, **asked)]
    request = qdrant_edge.CountRequest(exact=True, filter=qdrant_edge.Filter(must=must))
    # One of the rows has no payload.
    assert shard.count(request) == len(KEYS) - 1
