"""Where everything is in the folder of a run, `run.folder`."""

from __future__ import annotations

from dataclasses import dataclass

from pipelines.files.locations import Location, location
from pipelines.files.ownership import RUN, is_ours
from pipelines.files.versions import current
from pipelines.settings import Config

OBSERVATIONS = "observations.parquet"


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run. Which of these are there depends on how far the run has come."""

    path: Location

    @classmethod
    def of(cls, config: Config) -> RunFolder:
        """The one that the settings name, absolute."""
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
        """All else that a run writes, but for checkpoints."""
        return (
            self.tokens,
            self.funnel,
            self.overlap,
            self.teacher_axes,
            self.step_metrics,
            self.metrics,
            self.history,
            self.jobs,
            self.restarts,
            self.evaluations,
            self.observations,
            self.promotion,
            self.samples,
            self.report,
            self.start,
            self.model,
            self.adapter,
            self.best,
            self.early_end,
            self.snapshots,
            self.tracking,
            self.tensorboard,
        )

    @property
    def config(self) -> Location:
        """The settings of the run, without secrets."""
        return self.path / "config.yaml"

    @property
    def environment(self) -> Location:
        """Versions and machine of the driver."""
        return self.path / "environment.json"

    @property
    def checkpoints(self) -> Location:
        """The folder of the checkpoints; see :mod:`pipelines.runs.checkpoint`."""
        return self.path / "checkpoints"

    @property
    def frozen(self) -> Location:
        """The weights that are not trained, where there are some; beside the checkpoints."""
        return current(self.checkpoints / "frozen")

    @property
    def plan(self) -> Location:
        """What the steps follow from, which a run that is resumed may not change."""
        return self.checkpoints / "plan.json"

    @property
    def history(self) -> Location:
        """Since which step settings hold that may change while a run goes on."""
        return self.path / "history.json"

    @property
    def jobs(self) -> Location:
        """Which jobs have worked on the run, when, where and how long."""
        return self.path / "jobs.json"

    @property
    def attempts(self) -> Location:
        """The folder that numbers the attempts on the run; see :mod:`pipelines.runs.attempts`."""
        return self.path / "attempts"

    @property
    def restarts(self) -> Location:
        """When workers were lost, why, and where the run went on."""
        return self.path / "restarts.json"

    @property
    def tokens(self) -> Location:
        """The manifest of the tokens that the run is trained on."""
        return self.path / "tokens.json"

    @property
    def funnel(self) -> Location:
        """The funnel of the corpus that the run is trained on, where that has one."""
        return self.path / "funnel.json"

    @property
    def overlap(self) -> Location:
        """How much of the evaluation sets is among the pairs that the run is trained on."""
        return self.path / "overlap.json"

    @property
    def teacher_axes(self) -> Location:
        """On what a teacher's vectors are projected, see :mod:`pipelines.runs.run`."""
        return self.path / "teacher_axes.npy"

    @property
    def step_metrics(self) -> Location:
        """Loss, rates and times of the steps, a line for each few of them."""
        return self.path / "metrics.jsonl"

    @property
    def metrics(self) -> Location:
        """What came of the run: figures of the training and of the evaluations."""
        return self.path / "metrics.json"

    @property
    def evaluations(self) -> Location:
        """What was measured after how many steps."""
        return self.path / "evaluations.jsonl"

    @property
    def observations(self) -> Location:
        """What the figures of the model are of, query by query and pair by pair."""
        return self.path / OBSERVATIONS

    @property
    def samples(self) -> Location:
        """Held-out pairs and their neighbours, for the report."""
        return self.path / "samples.json"

    @property
    def report(self) -> Location:
        """The report of the run."""
        return self.path / "report.html"

    @property
    def start(self) -> Location:
        """The folder of the encoder that the training began with."""
        return current(self.path / "start")

    @property
    def model(self) -> Location:
        """The folder of the trained encoder."""
        return current(self.path / "model")

    @property
    def adapter(self) -> Location:
        """The folder of what LoRA has trained, as `peft` writes it, if it was asked for."""
        return current(self.path / "adapter")

    @property
    def best(self) -> Location:
        """The folder of the best checkpoint; see :mod:`pipelines.runs.model_choice`."""
        return current(self.path / "best")

    @property
    def early_end(self) -> Location:
        """Is there if the run is to end, or has ended, before its last step."""
        return self.path / "early_end.json"

    @property
    def promotion(self) -> Location:
        """What the last promotion of the model has decided."""
        return self.path / "promotion.json"

    @property
    def snapshots(self) -> Location:
        """What checkpoints are measured on while training goes on."""
        return current(self.path / "evaluation")

    @property
    def tracking(self) -> Location:
        """State and logs of trackers."""
        return self.path / "tracking"

    @property
    def tensorboard(self) -> Location:
        """Event files of TensorBoard."""
        return self.path / "tensorboard"
