"""What works in a session of Spark Connect, in a process of its own with a server of its own."""

from __future__ import annotations

import json

import numpy as np
from connected import needs_connect, said_in_a_session

from pipelines.models.inference.embedder import load_embedder
from pipelines.tokens.start import default_start

TEXTS = ["a dog runs", "ein Hund läuft", ""]

IN_A_SESSION = """
import json, sys
from pyspark.sql import SparkSession

session = SparkSession.builder.getOrCreate()
from pipelines.embedding.column import embed_column
from pipelines.errors import InputError
from pipelines.ml import SentenceEncoderModel
from pipelines.settings import Config
from pipelines.spark.session import spark_session

model, texts = sys.argv[1], json.loads(sys.argv[2])
frame = session.createDataFrame([(text,) for text in [*texts, None]], "text string").coalesce(1)
try:
    spark_session(Config())
except InputError as error:
    refused = str(error)
found = embed_column(frame, model).collect()
transformed = SentenceEncoderModel(modelFolder=model).transform(frame).collect()
print(json.dumps({
    "refused": refused,
    "column": [row.embedding for row in found],
    "ml": [row[-1] if row[-1] is None else list(map(float, row[-1])) for row in transformed],
}))
"""


@needs_connect
def test_columns_of_vectors_work_and_a_job_that_needs_a_context_is_refused():
    said = said_in_a_session(IN_A_SESSION, str(default_start()), json.dumps(TEXTS))
    assert said["refused"].startswith("spark.master: this is a Spark Connect session")
    wanted = load_embedder(default_start(), precision="fp32")(TEXTS)
    for found in (said["column"], said["ml"]):
        assert found[-1] is None
        assert np.abs(np.array(found[:-1]) - wanted).max() < 2e-3
