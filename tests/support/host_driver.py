"""A driver on a host: trains a run that was pickled, and writes its losses beside it."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path

from pipelines.engines.base import engine_of
from pipelines.engines.bigdl.jars import class_paths
from pipelines.runs.run import TrainingRun
from pipelines.spark.session import spark_session, stopped_at_the_end


def main() -> None:
    path = Path(sys.argv[1])
    run: TrainingRun = pickle.loads(path.read_bytes())
    engine = engine_of(run.config)
    with_bigdl = {"conf": class_paths} if run.config.training.engine == "bigdl" else {}
    with stopped_at_the_end():
        session = spark_session(run.config, "on hosts", **with_bigdl)
        engine.check(session, run.config)
        outcome = engine.train(session, run, lambda line: None)
    path.with_suffix(".json").write_text(json.dumps(list(outcome.losses)))


if __name__ == "__main__":
    main()
