"""MLflow: one of its runs for each run folder, resumed runs included."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

# MLflow reads these at each request. Its own defaults wait for many minutes, and the driver keeps
# undelivered figures and tries again anyway. The user's values take precedence.
LIMITS = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
for variable, limit in LIMITS.items():
    os.environ.setdefault(variable, limit)

import mlflow  # noqa: E402
import numpy as np  # noqa: E402
from mlflow.entities import Metric, Param, RunTag  # noqa: E402
from mlflow.exceptions import MlflowException  # noqa: E402
from mlflow.models import ModelSignature  # noqa: E402
from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema, TensorSpec  # noqa: E402

import pipelines  # noqa: E402
from pipelines.files import storage  # noqa: E402
from pipelines.files.copies import local_file, local_folder  # noqa: E402
from pipelines.files.locations import Location, location  # noqa: E402
from pipelines.models.identity import (  # noqa: E402
    FIELD,
    is_digest_of,
    model_digest,
    recorded_digest,
)
from pipelines.settings.redaction import without_password  # noqa: E402
from pipelines.tracking import pyfunc  # noqa: E402
from pipelines.tracking.base import MetricPoint, RunEnd, RunStart  # noqa: E402

MODEL = "model"
EXAMPLE = [{pyfunc.TEXT: text} for text in ("A sentence to embed.", "Another one.")]
_PARAMS_AT_ONCE = 100
_METRICS_AT_ONCE = 1000
_STATUS = {"finished": "FINISHED", "failed": "FAILED", "killed": "KILLED"}
_LIBRARIES = ("numpy", "pandas", "pyarrow", "pydantic", "pyyaml", "safetensors", "tokenizers")
_FRAMEWORKS = ("tensorflow", "torch", "openvino")

Item = TypeVar("Item")


class MlflowTracker:
    """A tracker in MLflow: it continues the run noted in the run folder, or begins one."""

    def __init__(self) -> None:
        self._run_id = ""
        self._start: RunStart | None = None

    def start(self, start: RunStart) -> None:
        """See :class:`pipelines.tracking.base.Tracker`."""
        settings = start.settings
        # On Databricks the driver's credentials bring the address with them.
        uri = settings.mlflow_uri
        if uri is not None and not uri.startswith("databricks"):
            mlflow.set_tracking_uri(uri)
        # An earlier start may have failed half way, with a run active in this process.
        while mlflow.active_run() is not None:
            mlflow.end_run("RUNNING")
        self._start = start
        known = self._known_run()
        # A run stays in its first experiment.
        if known is None and settings.mlflow_experiment is not None:
            mlflow.set_experiment(settings.mlflow_experiment)
        name = settings.mlflow_run_name or start.folder.path.name
        tags = {"mlflow.source.name": start.program, "run.folder": start.run_folder}
        run = mlflow.start_run(run_id=known, run_name=None if known else name, tags=tags)
        self._run_id = run.info.run_id
        self._note(
            {
                "run_id": self._run_id,
                "experiment_id": run.info.experiment_id,
                "tracking_uri": without_password(mlflow.get_tracking_uri()),
                # The model already logged; none in a new run.
                MODEL: None if known is None else self._noted().get(MODEL),
            }
        )
        if known is None or start.first_step is not None:
            self._log_parameters(start.parameters, run.data.params)
            mlflow.log_text(start.config, "config.yaml")

    def log(self, points: Sequence[MetricPoint]) -> None:
        """See :class:`pipelines.tracking.base.Tracker`."""
        metrics = [
            Metric(name, value, int(1000 * point.time), point.step)
            for point in points
            for name, value in point.values.items()
        ]
        for batch in _batches(metrics, _METRICS_AT_ONCE):
            mlflow.MlflowClient().log_batch(self._run_id, metrics=batch)

    def finish(self, end: RunEnd) -> None:
        """See :class:`pipelines.tracking.base.Tracker`."""
        for file in end.files:
            self._log_file(file)
        if end.model is not None:
            assert self._start is not None
            self._keep_model(local_folder(location(end.model, self._start.storage)), end.step)
        if end.problem:
            mlflow.set_tag("problem", end.problem)
        mlflow.end_run(_STATUS[end.status])

    def _log_file(self, file: str) -> None:
        assert self._start is not None
        mlflow.log_artifact(str(local_file(location(file, self._start.storage))))

    def _keep_model(self, folder: Path, step: int) -> None:
        """Log a model, unless this run has it already: a finished training may be called again."""
        assert self._start is not None
        registered = self._start.settings.mlflow_registered_model
        noted = self._noted()
        logged = noted.get(MODEL) or {}
        is_logged = is_digest_of(recorded_digest(logged), folder)
        if is_logged and registered in (None, logged["registered"]):
            return
        digest = model_digest(folder)
        log_model(folder, step, registered)
        mlflow.set_tag(FIELD, digest)
        self._note(noted | {MODEL: {FIELD: digest, "registered": registered}})

    def _noted(self) -> dict[str, Any]:
        assert self._start is not None
        path = id_path(self._start)
        return storage.read_json(path) if path.exists() else {}

    def _note(self, record: Mapping[str, Any]) -> None:
        assert self._start is not None
        storage.write_json(id_path(self._start), record)

    def _known_run(self) -> str | None:
        """Return the run to resume, if this store has it and it was not deleted."""
        noted = self._noted()
        if noted.get("tracking_uri") != without_password(mlflow.get_tracking_uri()):
            return None
        try:
            run = mlflow.get_run(noted["run_id"])
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None
        return noted["run_id"] if run.info.lifecycle_stage == "active" else None

    def _log_parameters(self, wanted: Mapping[str, str], logged: Mapping[str, str]) -> None:
        """Log new parameters; changed ones become tags, since MLflow's parameters cannot change."""
        new = [Param(key, value) for key, value in wanted.items() if key not in logged]
        # Compared by the logged length: MLflow may have cut a long value.
        changed = [
            RunTag(f"resumed.{key}", value)
            for key, value in wanted.items()
            if key in logged and logged[key] != value[: len(logged[key])]
        ]
        client = mlflow.MlflowClient()
        for params in _batches(new, _PARAMS_AT_ONCE):
            client.log_batch(self._run_id, params=params)
        for tags in _batches(changed, _PARAMS_AT_ONCE):
            client.log_batch(self._run_id, tags=tags)


def log_model(folder: Path, step: int, registered: str | None) -> None:
    """Log a sentence-transformers folder as a pyfunc model of the active run.

    This package travels with the model, for machines without it. ``step`` counts completed steps.
    With ``registered``, the model becomes a version of the registered model of this name.
    """
    example = pyfunc.load(folder).predict(EXAMPLE)
    mlflow.pyfunc.log_model(
        name=MODEL,
        loader_module=pyfunc.__name__,
        data_path=str(folder),
        code_paths=[str(Path(pipelines.__file__).parent)],
        signature=_signature(example),
        input_example=EXAMPLE,
        pip_requirements=requirements(),
        registered_model_name=registered,
        metadata={FIELD: model_digest(folder)},
        await_registration_for=0,
        step=step,
    )


def _signature(example: np.ndarray) -> ModelSignature:
    """Return a signature with the column of texts, unenforced by MLflow.

    With names in a signature MLflow refuses lists and Series; without, it takes the first column of
    any frame for the texts. So the model checks its input itself: MLflow leaves the check to models
    with a signature from type hints.
    """
    signature = ModelSignature(
        inputs=Schema([ColSpec(DataType.string, pyfunc.TEXT)]),
        outputs=Schema([TensorSpec(example.dtype, (-1, example.shape[1]))]),
        params=ParamSchema([ParamSpec(pyfunc.PROMPT_NAME, DataType.string, "")]),
    )
    signature._is_signature_from_type_hint = True
    return signature


def requirements() -> list[str]:
    """Return the requirements to load the model, in the versions installed here.

    They include the encoder's frameworks, as imported here. A build such as `2.13.0+cpu`
    becomes its release, since indexes have no builds.
    """
    frameworks = [name for name in _FRAMEWORKS if name in sys.modules]
    pinned = [f"{name}=={release(metadata.version(name))}" for name in (*_LIBRARIES, *frameworks)]
    # By the module's version: the installed package may be mlflow-skinny.
    return [f"mlflow=={release(mlflow.__version__)}", *pinned]


def release(version: str) -> str:
    """Return a version without its build label after a plus sign."""
    return version.partition("+")[0]


def id_path(start: RunStart) -> Location:
    """Return the path of the record of MLflow's run id and logged model."""
    return start.folder.tracking / "mlflow.json"


def _batches(items: Sequence[Item], size: int) -> Iterator[list[Item]]:
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch
