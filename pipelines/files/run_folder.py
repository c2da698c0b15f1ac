"""Where everything is in the folder of a run, `run.folder`."""

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
"""What the folder of a model, or of a tokenizer, holds."""
_STATE = ("*.safetensors", "state.json")


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run. Which of these are there depends on how far the run has come."""

    path: Location

    @classmethod
    def of(cls, config: Config) -> RunFolder:
        """Return the one that the settings name, absolute."""
        return cls(location(config.run.folder, config.storage).absolute())

    @property
    def marks(self) -> tuple[Location, ...]:
        """What a folder must hold, beside checkpoints, to be taken for that of a run."""
        return (self.environment, self.config)

    @property
    def contents(self) -> tuple[Location, ...]:
        """All else that a run writes, but for checkpoints and what stays when it is begun anew."""
        entries = vars(RunFolder).items()
        names = [name for name, one in entries if isinstance(one, Entry) and not one.stays]
        return tuple(getattr(self, name) for name in names)

    config = Entry("config.yaml", stays=True)
    """The settings of the run, without secrets."""
    environment = Entry("environment.json", stays=True)
    """Versions and machine of the driver."""
    checkpoints = Entry("checkpoints", tuple(f"step-*/{file}" for file in _STATE), stays=True)
    """The folder of the checkpoints; see :mod:`pipelines.runs.checkpoint`."""
    frozen = Entry("checkpoints/frozen", _STATE, is_version=True, stays=True)
    """The weights that are not trained, where there are some; beside the checkpoints."""
    plan = Entry("checkpoints/plan.json", stays=True)
    """What the steps follow from, which a run that is resumed may not change."""
    history = Entry("history.json")
    """Since which step settings hold that may change while a run goes on."""
    jobs = Entry("jobs.json")
    """Which jobs have worked on the run, when, where and how long."""
    attempts = Entry("attempts", ("*.json",), stays=True)
    """The folder that numbers the attempts on the run; see :mod:`pipelines.runs.attempts`."""
    restarts = Entry("restarts.json")
    """When workers were lost, why, and where the run went on."""
    tokens = Entry("tokens.json")
    """The manifest of the tokens that the run is trained on."""
    funnel = Entry("funnel.json")
    """The funnel of the corpus that the run is trained on, where that has one."""
    overlap = Entry("overlap.json")
    """How much of the evaluation sets is among the pairs that the run is trained on."""
    teacher_axes = Entry("teacher_axes.npy")
    """On what a teacher's vectors are projected, see :mod:`pipelines.runs.run`."""
    step_metrics = Entry("metrics.jsonl")
    """Loss, rates and times of the steps, a line for each few of them."""
    metrics = Entry("metrics.json")
    """What came of the run: figures of the training and of the evaluations."""
    evaluations = Entry("evaluations.jsonl")
    """What was measured after how many steps."""
    observations = Entry(OBSERVATIONS)
    """What the figures of the model are of, query by query and pair by pair."""
    samples = Entry("samples.json")
    """Held-out pairs and their neighbours, for the report."""
    report = Entry("report.html")
    """The report of the run."""
    start = Entry("start", MODEL, is_version=True)
    """The folder of the encoder that the training began with."""
    model = Entry("model", MODEL, is_version=True)
    """The folder of the trained encoder."""
    adapter = Entry("adapter", MODEL, is_version=True)
    """The folder of what LoRA has trained, as `peft` writes it, if it was asked for."""
    best = Entry("best", ("best.json", *_STATE), is_version=True)
    """The folder of the best checkpoint; see :mod:`pipelines.runs.model_choice`."""
    early_end = Entry("early_end.json")
    """Is there if the run is to end, or has ended, before its last step."""
    promotion = Entry("promotion.json")
    """What the last promotion of the model has decided."""
    snapshots = Entry("evaluation", ("plan.json", "log.txt", "[0-9]*/part-*"), is_version=True)
    """What checkpoints are measured on while training goes on."""
    tracking = Entry("tracking", ("*.json", "*.log"))
    """State and logs of trackers."""
    tensorboard = Entry("tensorboard", ("events.out.tfevents.*", "run-folder.txt"))
    """Event files of TensorBoard."""


_ENTRIES = [entry for entry in vars(RunFolder).values() if isinstance(entry, Entry)]
RUN_FILES = tuple(way for entry in _ENTRIES for way in entry.files)
"""What a run writes: ways down from its folder, whose parts may be patterns."""
