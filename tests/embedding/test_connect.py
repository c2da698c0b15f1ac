"""What works in a session of Spark Connect, in a process of its own with a server of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from pipelines.models.inference.embedder import load_embedder
from pipelines.tokens.start import default_start

TEXTS = ["a dog runs", "ein Hund läuft", ""]
SECONDS = 300

IN_A_SESSION = """
import json, sys
from pyspark.sql import SparkSession

session = SparkSession.builder.remote("local[1]").getOrCreate()
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


def missing() -> str | None:
    """Why there can be no session of Spark Connect; None where there can."""
    home = Path(find_spec("pyspark").origin).parent
    if not list(home.glob("jars/spark-connect_*.jar")):
        return "this pyspark brings no server of Spark Connect"
    return None if find_spec("grpc_status") else "grpcio-status is not installed"


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_columns_of_vectors_work_and_jobs_are_refused():
    done = subprocess.run(
        [sys.executable, "-c", IN_A_SESSION, str(default_start()), json.dumps(TEXTS)],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_SUBMIT_OPTS": ""},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["refused"].startswith("spark.master: this session is of Spark Connect")
    wanted = load_embedder(default_start(), precision="fp32")(TEXTS)
    for found in (said["column"], said["ml"]):
        assert found[-1] is None
        assert np.abs(np.array(found[:-1]) - wanted).max() < 2e-3
