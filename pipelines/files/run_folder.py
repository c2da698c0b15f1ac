"""The layout of a run's folder, `run.folder`."""

from __future__ import annotations

from dataclasses import dataclass

from pipelines.files.locations import Location, location
from pipelines.files.versions import Entry
from pipelines.settings import Config

OBSERVATIONS = "observations.parquet"
MODEL = (
    *("README.md", "*config*.json", "modules.json", "*.safetensors", "*.safetensors.index.json"),
    *("tokenizer.*", "vocab.*", "merges.txt", "special_tokens_map.json", "added_tokens.json"),
    *("sentencepiece*.model", "spiece.model", "[0-9]*_*/**"),
)
"""The files of a model's or a tokenizer's folder."""
_STATE = ("*.safetensors", "state.json")


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run, and the places of its files."""

    path: Location

    @classmethod
    def of(cls, config: Config) -> RunFolder:
        """Return the absolute folder of the settings."""
        return cls(location(config.run.folder, config.storage).absolute())

    @property
    def marks(self) -> tuple[Location, ...]:
        """The marks of a run's folder, beside checkpoints."""
        return (self.environment, self.config)

    @property
    def contents(self) -> tuple[Location, ...]:
        """All other files of a run, except checkpoints and entries with ``stays``."""
        entries = vars(RunFolder).items()
        names = [name for name, entry in entries if isinstance(entry, Entry) and not entry.stays]
        return tuple(getattr(self, name) for name in names)

    @property
    def has_model(self) -> bool:
        """Whether a training has left an encoder or a cross-encoder."""
        return self.model.is_dir() or self.reranker.is_dir()

    config = Entry("config.yaml", stays=True)
    """The settings of the run, without secrets."""
    environment = Entry("environment.json", stays=True)
    """Versions and machine of the driver."""
    checkpoints = Entry("checkpoints", tuple(f"step-*/{file}" for file in _STATE), stays=True)
    """The folder of the checkpoints; see :mod:`pipelines.runs.checkpoint`."""
    frozen = Entry("checkpoints/frozen", _STATE, is_version=True, stays=True)
    """The weights that are not trained, if any; beside the checkpoints."""
    plan = Entry("checkpoints/plan.json", stays=True)
    """The basis of the steps, which a resumed run may not change."""
    history = Entry("history.json")
    """The settings that may change while a run goes on, with the steps since which they hold."""
    jobs = Entry("jobs.json")
    """The jobs that have worked on the run: when, where and how long."""
    attempts = Entry("attempts", ("*.json",), stays=True)
    """The folder that numbers the attempts on the run; see :mod:`pipelines.runs.attempts`."""
    restarts = Entry("restarts.json")
    """The losses of workers: when, why, and where the run went on."""
    tokens = Entry("tokens.json")
    """The manifest of the tokens that the run is trained on."""
    funnel = Entry("funnel.json")
    """The funnel of the run's corpus, where it has one."""
    overlap = Entry("overlap.json")
    """The share of evaluation sets among the run's training pairs."""
    teacher_axes = Entry("teacher_axes.npy")
    """The projection of a teacher's vectors; see :mod:`pipelines.runs.run`."""
    step_metrics = Entry("metrics.jsonl")
    """Loss, rates and times of the steps, one line for every few."""
    metrics = Entry("metrics.json")
    """The figures of the training and of the evaluations."""
    evaluations = Entry("evaluations.jsonl")
    """The figures of evaluations, by step."""
    observations = Entry(OBSERVATIONS)
    """The observations behind the model's figures, query by query and pair by pair."""
    samples = Entry("samples.json")
    """Held-out pairs and their neighbours, for the report."""
    report = Entry("report.html")
    start = Entry("start", MODEL, is_version=True)
    """The folder of the encoder that the training began with."""
    model = Entry("model", MODEL, is_version=True)
    """The folder of the trained encoder."""
    reranker = Entry("reranker", MODEL, is_version=True)
    """The folder of the trained cross-encoder, in place of ``model``, of `objective: reranking`."""
    adapter = Entry("adapter", MODEL, is_version=True)
    """The folder of the LoRA adapter in `peft`'s format, if wanted."""
    best = Entry("best", ("best.json", *_STATE), is_version=True)
    """The folder of the best checkpoint; see :mod:`pipelines.runs.model_choice`."""
    early_end = Entry("early_end.json")
    """Present if the run is to end, or has ended, before its last step."""
    promotion = Entry("promotion.json")
    """The decision of the model's last promotion."""
    snapshots = Entry("evaluation", ("plan.json", "log.txt", "[0-9]*/part-*"), is_version=True)
    """The evaluation data of checkpoints while training goes on."""
    tracking = Entry("tracking", ("*.json", "*.log"))
    """State and logs of trackers."""
    tensorboard = Entry("tensorboard", ("events.out.tfevents.*", "run-folder.txt"))
    """Event files of TensorBoard."""


_ENTRIES = [entry for entry in vars(RunFolder).values() if isinstance(entry, Entry)]
RUN_FILES = tuple(path for entry in _ENTRIES for path in entry.files)
"""Relative paths of a run's files, whose parts may be patterns."""
