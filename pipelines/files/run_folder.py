"""Where everything is in the folder of a run, `run.folder`."""

from __future__ import annotations

from dataclasses import dataclass

from pipelines.files.locations import Location, location
from pipelines.files.ownership import RUN, is_ours
from pipelines.files.versions import Entry
from pipelines.settings import Config

OBSERVATIONS = "observations.parquet"


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
    def is_run(self) -> bool:
        """Whether a run has begun there, by its record: other tools name their files alike."""
        is_whole = all(path.exists() for path in (*self.marks, self.checkpoints))
        return is_whole and is_ours(self.path, RUN)

    @property
    def contents(self) -> tuple[Location, ...]:
        """All else that a run writes, but for checkpoints and what stays when it is begun anew."""
        entries = {name: entry for name, entry in vars(RunFolder).items() if type(entry) is Entry}
        return tuple(getattr(self, name) for name, entry in entries.items() if not entry.stays)

    config = Entry("config.yaml", stays=True)
    """The settings of the run, without secrets."""
    environment = Entry("environment.json", stays=True)
    """Versions and machine of the driver."""
    checkpoints = Entry("checkpoints", stays=True)
    """The folder of the checkpoints; see :mod:`pipelines.runs.checkpoint`."""
    frozen = Entry("checkpoints/frozen", is_version=True, stays=True)
    """The weights that are not trained, where there are some; beside the checkpoints."""
    plan = Entry("checkpoints/plan.json", stays=True)
    """What the steps follow from, which a run that is resumed may not change."""
    history = Entry("history.json")
    """Since which step settings hold that may change while a run goes on."""
    jobs = Entry("jobs.json")
    """Which jobs have worked on the run, when, where and how long."""
    attempts = Entry("attempts", stays=True)
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
    start = Entry("start", is_version=True)
    """The folder of the encoder that the training began with."""
    model = Entry("model", is_version=True)
    """The folder of the trained encoder."""
    adapter = Entry("adapter", is_version=True)
    """The folder of what LoRA has trained, as `peft` writes it, if it was asked for."""
    best = Entry("best", is_version=True)
    """The folder of the best checkpoint; see :mod:`pipelines.runs.model_choice`."""
    early_end = Entry("early_end.json")
    """Is there if the run is to end, or has ended, before its last step."""
    promotion = Entry("promotion.json")
    """What the last promotion of the model has decided."""
    snapshots = Entry("evaluation", is_version=True)
    """What checkpoints are measured on while training goes on."""
    tracking = Entry("tracking")
    """State and logs of trackers."""
    tensorboard = Entry("tensorboard")
    """Event files of TensorBoard."""
