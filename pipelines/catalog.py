"""What can be chosen by name: engines, losses, formats and others, a line each.

Nothing is imported before it is chosen. So settings take their choices from here, although what is
listed imports settings. CONTRIBUTING.md says what each kind of entry has to be.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from pipelines.errors import InputError


@dataclass(frozen=True)
class Registry:
    """Names, and where what they stand for is.

    Attributes:
        kind: What the entries are, in a word, for errors.
        key: The setting that chooses one, for errors.
        entries: ``module:attribute`` by name.
        renamed: Names of before, which are still read, and what they are called now.
    """

    kind: str
    key: str
    entries: Mapping[str, str]
    renamed: Mapping[str, str] = field(default_factory=dict)

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, name: object) -> bool:
        return name in self.entries

    def check(self, name: str) -> str:
        """A name as it is today.

        Raises:
            InputError: There is nothing of that name.
        """
        name = self.renamed.get(name, name)
        if name not in self.entries:
            known = ", ".join(self.entries)
            raise InputError(self.key, f"there is no {self.kind} `{name}`", f"one of {known}")
        return name

    def module(self, name: str) -> str:
        """The module of what a name stands for; imports nothing.

        Raises:
            InputError: There is nothing of that name.
        """
        return self.entries[self.check(name)].partition(":")[0]

    def load(self, name: str) -> Any:
        """What a name stands for; imports its module.

        Raises:
            InputError: There is nothing of that name.
            ImportError: Its module needs something that is not installed.
        """
        module, _, attribute = self.entries[self.check(name)].partition(":")
        return getattr(import_module(module), attribute)


RECIPES = Registry(
    kind="recipe",
    key="recipe",
    entries={
        "pairs": "pipelines.settings.recipes:PAIRS",
        "domain": "pipelines.settings.recipes:DOMAIN",
        "static": "pipelines.settings.recipes:STATIC",
    },
)

FORMATS = Registry(
    "format",
    "corpus.format",
    {
        "docstrings": "pipelines.corpus.readers.docstrings:DOCSTRINGS",
        "documents": "pipelines.corpus.readers.documents:DOCUMENTS",
        "text": "pipelines.corpus.readers.documents:TEXT",
        "markdown": "pipelines.corpus.readers.documents:MARKDOWN",
        "wikiextractor": "pipelines.corpus.readers.documents:WIKIEXTRACTOR",
        "jsonl": "pipelines.corpus.readers.json_lines:JSON_LINES",
        "csv": "pipelines.corpus.readers.csv_files:DELIMITED",
        "parquet": "pipelines.corpus.readers.parquet:PARQUET",
        "delta": "pipelines.corpus.readers.tables:DELTA",
        "iceberg": "pipelines.corpus.readers.tables:ICEBERG",
        "table": "pipelines.corpus.readers.tables:TABLE",
    },
)

_TABLES = ("parquet", "csv", "jsonl", "text", "delta", "iceberg", "table")

TABLE_FORMATS = Registry(
    "format", "embedding.format", {name: FORMATS.entries[name] for name in _TABLES}
)
"""Those that `embed` reads: files of Parquet, tables by name, and formats that have rows."""

ARCHITECTURES = Registry(
    kind="architecture",
    key="encoder.kind",
    entries={
        "bert": "pipelines.models.bert.architecture:BERT",
        "roberta": "pipelines.models.roberta.architecture:ROBERTA",
        "distilbert": "pipelines.models.distilbert.architecture:DISTILBERT",
        "electra": "pipelines.models.electra.architecture:ELECTRA",
        "mpnet": "pipelines.models.mpnet.architecture:MPNET",
        "static": "pipelines.models.static.architecture:STATIC",
        # Takes what the others do not, so it comes last.
        "hf": "pipelines.models.hf.architecture:HF",
    },
    renamed={"transformer": "bert", "bag": "static"},
)
"""The first one reads the folders that no other recognises, and refuses them if it must."""

BACKENDS = Registry(
    kind="backend",
    key="embedding.backend",
    entries={
        "openvino": "pipelines.models.inference.openvino:open_backend",
        "torch": "pipelines.models.inference.torch:open_backend",
        "tensorflow": "pipelines.models.inference.tensorflow:open_backend",
    },
)
"""On a CPU they stand in the order of speed: the first that is installed and has a form of the
model's architecture is taken where none is named."""

LOSSES = Registry(
    kind="loss",
    key="objective.name",
    entries={
        "in_batch_negatives": "pipelines.losses.in_batch_negatives:LOSS",
        "simcse": "pipelines.losses.simcse:LOSS",
        "triplet": "pipelines.losses.triplet:LOSS",
        "cosine_regression": "pipelines.losses.cosine_regression:LOSS",
        "cosent": "pipelines.losses.cosent:LOSS",
        "angle": "pipelines.losses.angle:LOSS",
        "contrastive": "pipelines.losses.contrastive:LOSS",
        "online_contrastive": "pipelines.losses.online_contrastive:LOSS",
        "margin_mse": "pipelines.losses.margin_mse:LOSS",
        "listwise_kl": "pipelines.losses.listwise_kl:LOSS",
        "embedding_distillation": "pipelines.losses.embedding_distillation:LOSS",
        "similarity_distillation": "pipelines.losses.similarity_distillation:LOSS",
        "mlm": "pipelines.pretraining.mlm:LOSS",
        "clm": "pipelines.pretraining.clm:LOSS",
        "tsdae": "pipelines.pretraining.tsdae:LOSS",
        "retromae": "pipelines.pretraining.retromae:LOSS",
    },
    renamed={"twins": "simcse"},
)

STEPPERS = Registry(
    "stepper",
    "training.framework",
    {
        "tensorflow": "pipelines.training.steppers.tensorflow:TensorFlowStepper",
        "torch": "pipelines.training.steppers.torch:TorchStepper",
        "torch-fsdp": "pipelines.training.steppers.sharded:FsdpStepper",
        "torch-tensor": "pipelines.training.steppers.model_parallel:ModelParallelStepper",
        "torch-tensor-fsdp": "pipelines.training.steppers.model_parallel:DividedFsdpStepper",
        "torch-pipeline": "pipelines.training.steppers.model_parallel:PipelineStepper",
        "deepspeed-pipeline": ("pipelines.training.steppers.deepspeed:DeepSpeedPipelineStepper"),
        "deepspeed": "pipelines.training.steppers.deepspeed:DeepSpeedStepper",
        "megatron": "pipelines.engines.megatron.stepper:MegatronStepper",
        "mesh": "pipelines.engines.mesh.stepper:MeshStepper",
    },
)

ENGINES = Registry(
    kind="engine",
    key="training.engine",
    entries={
        "local": "pipelines.engines.local:LocalEngine",
        "bigdl": "pipelines.engines.bigdl.engine:BigDLEngine",
        "deepspeed": "pipelines.engines.deepspeed:DeepSpeedEngine",
        "elephas": "pipelines.engines.elephas.engine:ElephasEngine",
        "horovod": "pipelines.engines.horovod.engine:HorovodEngine",
        "megatron": "pipelines.engines.megatron.engine:MegatronEngine",
        "mesh": "pipelines.engines.mesh.engine:MeshEngine",
        "tensorflowonspark": "pipelines.engines.tensorflowonspark.engine:TensorFlowOnSparkEngine",
        "torch": "pipelines.engines.torch:TorchEngine",
    },
)

EVALUATIONS = Registry(
    kind="evaluation",
    key="evaluation",
    entries={
        "retrieval": "pipelines.evaluation.retrieval:EVALUATION",
        "geometry": "pipelines.evaluation.geometry:EVALUATION",
        "similarity": "pipelines.evaluation.similarity:EVALUATION",
        "classification": "pipelines.evaluation.classification:EVALUATION",
        "retrieval_sets": "pipelines.evaluation.beir:EVALUATION",
    },
)

MERGE_FORMATS = Registry(
    "table format",
    "embedding.merge_format",
    {
        "delta": "pipelines.embedding.merge:DELTA",
        "iceberg": "pipelines.embedding.merge:ICEBERG",
    },
)

SEARCHES = Registry(
    "search",
    "mining.search",
    {
        "exact": "pipelines.mining.choosing:EXACT",
        "index": "pipelines.mining.choosing:INDEX",
    },
)

FILTERS = Registry(
    "filter",
    "mining",
    {
        "known positive": "pipelines.mining.choosing:POSITIVE",
        "same text": "pipelines.mining.choosing:TEXT",
        "same group": "pipelines.mining.choosing:GROUP",
        "above max_score": "pipelines.mining.choosing:SCORE",
        "too near the positive": "pipelines.mining.choosing:MARGIN",
    },
)
"""In the order in which a document passes them; the names are the reasons in the figures."""
