"""Registries of choices by name: engines, losses, formats and others.

Nothing is imported before it is chosen, so settings take their choices from here although entries
import settings. Other distributions add entries by entry points. CONTRIBUTING.md describes each
kind of entry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any

from pipelines.errors import InputError


@cache
def provided(group: str) -> Mapping[str, str]:
    """Return the entry points of distributions in a group: ``module:attribute`` by name."""
    # Not above: the command's help needs none.
    from importlib.metadata import entry_points

    return {point.name: point.value for point in entry_points(group=group)}


@dataclass(frozen=True)
class Registry:
    """Names, and the places of their values.

    Attributes:
        kind: What the entries are, in a word.
        key: The setting that chooses one.
        entries: ``module:attribute`` by name.
        group: Entry points by which other distributions add entries; a name of ours stays ours.
        renamed: Current names by former ones, which are still read.
        variants: ``module:attribute`` by name and variant, where a name stands for several things.
    """

    kind: str
    key: str
    entries: Mapping[str, str]
    group: str = ""
    renamed: Mapping[str, str] = field(default_factory=dict)
    variants: Mapping[tuple[str, str], str] = field(default_factory=dict)

    def __iter__(self) -> Iterator[str]:
        # Before the last one, which may take whatever no other does.
        names = [*self.entries]
        provided_names = provided(self.group) if self.group else ()
        names[-1:-1] = [name for name in provided_names if name not in self.entries]
        return iter(names)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return name in self.entries or name in provided(self.group)

    def check(self, name: str) -> str:
        """Return the current form of a name.

        Raises:
            InputError: There is no such entry.
        """
        name = self.renamed.get(name, name)
        if name not in self:
            known = ", ".join(self)
            raise InputError(
                self.key, f"there is no {self.kind} `{name}`", f"Choose one of {known}"
            )
        return name

    def module(self, name: str) -> str:
        """Return the module of an entry, without importing it.

        Raises:
            InputError: There is no such entry.
        """
        return self._entry(name).partition(":")[0]

    def load(self, name: str, variant: str = "") -> Any:
        """Import and return the value of a name; `variant` decides between several.

        Raises:
            InputError: There is no such entry.
            ImportError: Its module needs something that is not installed.
        """
        module, _, attribute = self._entry(name, variant).partition(":")
        return getattr(import_module(module), attribute)

    def _entry(self, name: str, variant: str = "") -> str:
        name = self.check(name)
        if (name, variant) in self.variants:
            return self.variants[name, variant]
        return self.entries.get(name) or provided(self.group)[name]


COMMANDS = Registry(
    "command",
    "command",
    {
        "prepare": "pipelines.jobs.prepare:command",
        "delete": "pipelines.jobs.delete:command",
        "train": "pipelines.jobs.train:command",
        "evaluate": "pipelines.jobs.evaluate:command",
        "report": "pipelines.jobs.report:command",
        "promote": "pipelines.jobs.promote:command",
        "clean": "pipelines.jobs.clean:command",
        "rollback": "pipelines.jobs.roll_back:command",
        "compare": "pipelines.jobs.compare:command",
        "run": "pipelines.jobs.run:command",
        "embed": "pipelines.jobs.embed:command",
        "publish": "pipelines.jobs.publish:command",
        "ask": "pipelines.jobs.ask:command",
        "mine": "pipelines.jobs.mine:command",
        "score": "pipelines.jobs.score:command",
        "search": "pipelines.jobs.search:command",
        "export": "pipelines.jobs.export:command",
        "engines": "pipelines.jobs.engines:command",
    },
)
"""The console commands; :mod:`pipelines.cli` has their options."""
WITHOUT_SPARK = frozenset({"clean", "engines", "export", "promote", "report", "rollback"})
"""The commands that do without Spark; `promote` starts it to measure the model in service again."""

RECIPES = Registry(
    kind="recipe",
    key="recipe",
    entries={
        "pairs": "pipelines.settings.recipes:PAIRS",
        "domain": "pipelines.settings.recipes:DOMAIN",
        "questions": "pipelines.settings.recipes:QUESTIONS",
        "static": "pipelines.settings.recipes:STATIC",
    },
)

FORMATS = Registry(
    "format",
    "corpus.format",
    group="sentence_pipelines.formats",
    entries={
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
    "format",
    "embedding.format",
    {name: FORMATS.entries[name] for name in _TABLES},
    "sentence_pipelines.table_formats",
)
"""Formats that `embed` reads: files of Parquet, tables by name, and formats with rows."""

ARCHITECTURES = Registry(
    kind="architecture",
    key="encoder.kind",
    group="sentence_pipelines.architectures",
    entries={
        "bert": "pipelines.models.bert.architecture:BERT",
        "roberta": "pipelines.models.bert.architecture:ROBERTA",
        "distilbert": "pipelines.models.bert.architecture:DISTILBERT",
        "electra": "pipelines.models.bert.architecture:ELECTRA",
        "mpnet": "pipelines.models.bert.architecture:MPNET",
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
    group="sentence_pipelines.backends",
    entries={
        "openvino": "pipelines.models.frameworks.openvino:open_backend",
        "torch": "pipelines.models.frameworks.torch:open_backend",
        "tensorflow": "pipelines.models.frameworks.tensorflow:open_backend",
    },
)
"""In the order of speed on a CPU. Where none is named, the first is taken that is installed and has
a form of the model's architecture."""

LOSSES = Registry(
    kind="loss",
    key="objective.name",
    group="sentence_pipelines.losses",
    entries={
        "in_batch_negatives": "pipelines.losses.in_batch_negatives:LOSS",
        "simcse": "pipelines.losses.in_batch_negatives:SIMCSE",
        "triplet": "pipelines.losses.triplet:LOSS",
        "cosine_regression": "pipelines.losses.scored_pairs:COSINE_REGRESSION",
        "cosent": "pipelines.losses.scored_pairs:COSENT",
        "angle": "pipelines.losses.scored_pairs:ANGLE",
        "contrastive": "pipelines.losses.scored_pairs:CONTRASTIVE",
        "online_contrastive": "pipelines.losses.scored_pairs:ONLINE_CONTRASTIVE",
        "margin_mse": "pipelines.losses.distillation:MARGIN_MSE",
        "listwise_kl": "pipelines.losses.distillation:LISTWISE_KL",
        "embedding_distillation": "pipelines.losses.distillation:EMBEDDING_DISTILLATION",
        "similarity_distillation": "pipelines.losses.distillation:SIMILARITY_DISTILLATION",
        "reranking": "pipelines.pretraining.reranking:LOSS",
        "mlm": "pipelines.pretraining.objectives:MLM",
        "clm": "pipelines.pretraining.objectives:CLM",
        "tsdae": "pipelines.pretraining.objectives:TSDAE",
        "retromae": "pipelines.pretraining.objectives:RETROMAE",
    },
    renamed={"twins": "simcse"},
)

STEPPERS = Registry(
    "stepper",
    "training.framework",
    group="sentence_pipelines.steppers",
    entries={
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
    group="sentence_pipelines.engines",
    entries={
        "local": "pipelines.engines.local:LocalEngine",
        "bigdl": "pipelines.engines.bigdl.dllib_engine:DllibEngine",
        "deepspeed": "pipelines.engines.deepspeed:DeepSpeedEngine",
        "elephas": "pipelines.engines.elephas.engine:ElephasEngine",
        "horovod": "pipelines.engines.horovod.engine:HorovodEngine",
        "megatron": "pipelines.engines.megatron.engine:MegatronEngine",
        "mesh": "pipelines.engines.mesh.engine:MeshEngine",
        "tensorflowonspark": "pipelines.engines.tensorflowonspark.engine:TensorFlowOnSparkEngine",
        "torch": "pipelines.engines.torch:TorchEngine",
    },
    variants={("bigdl", "torch"): "pipelines.engines.orca.engine:OrcaEngine"},
)
"""An engine whose implementation depends on the framework has variants by framework."""

EVALUATIONS = Registry(
    kind="evaluation",
    key="evaluation",
    group="sentence_pipelines.evaluations",
    entries={
        "retrieval": "pipelines.evaluation.retrieval:EVALUATION",
        "geometry": "pipelines.evaluation.geometry:EVALUATION",
        "similarity": "pipelines.evaluation.pairs:SIMILARITY",
        "classification": "pipelines.evaluation.pairs:CLASSIFICATION",
        "retrieval_sets": "pipelines.evaluation.beir:EVALUATION",
    },
)

TRACKERS = Registry(
    kind="tracker",
    key="tracking.trackers",
    entries={
        "mlflow": "pipelines.tracking.mlflow:MlflowTracker",
        "tensorboard": "pipelines.tracking.tensorboard:TensorBoardTracker",
    },
)
"""A name is also that of the extra, and the prefix of the tracker's own settings."""

EXPORTS = Registry(
    kind="export format",
    key="--to",
    group="sentence_pipelines.exports",
    entries={
        "onnx": "pipelines.exports.onnx:ONNX",
        "openvino": "pipelines.exports.openvino:OPENVINO",
        "model2vec": "pipelines.exports.model2vec:MODEL2VEC",
        "router": "pipelines.exports.router:ROUTER_FORMAT",
    },
)

MERGE_FORMATS = Registry(
    "table format",
    "embedding.merge_format",
    group="sentence_pipelines.merge_formats",
    entries={
        "delta": "pipelines.vectors.merge:DELTA",
        "iceberg": "pipelines.vectors.merge:ICEBERG",
    },
)

SEARCHES = Registry(
    "search",
    "mining.search",
    group="sentence_pipelines.searches",
    entries={
        "exact": "pipelines.vectors.negatives:EXACT",
        "index": "pipelines.vectors.negatives:INDEX",
    },
)

GENERATORS = Registry(
    kind="generator",
    key="questions.generator",
    group="sentence_pipelines.generators",
    entries={
        "endpoint": "pipelines.questions.generator:ENDPOINT",
        "transformers": "pipelines.questions.generator:TRANSFORMERS",
        "vllm": "pipelines.questions.generator:VLLM",
    },
)
"""Language models that write questions."""

SCORERS = Registry(
    kind="scorer",
    key="scoring.scorer",
    group="sentence_pipelines.scorers",
    entries={
        "cross_encoder": "pipelines.scoring.scorers:CROSS_ENCODER",
        "bi_encoder": "pipelines.scoring.scorers:BI_ENCODER",
        "fusion": "pipelines.scoring.scorers:FUSION",
    },
)
"""Teachers that score pairs."""

STORES = Registry(
    kind="store",
    key="publish.store",
    group="sentence_pipelines.stores",
    entries={
        "lancedb": "pipelines.publishing.lancedb:STORE",
        "pgvector": "pipelines.publishing.pgvector:STORE",
        "qdrant": "pipelines.publishing.qdrant:STORE",
        "milvus": "pipelines.publishing.milvus:STORE",
        "opensearch": "pipelines.publishing.search_engines:OPENSEARCH",
        "elasticsearch": "pipelines.publishing.search_engines:ELASTICSEARCH",
    },
)
"""Stores of vectors. A name is also that of the extra with the client."""
